//! The latest progress of a running call. No decision depends on it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::transaction::{Conflict, Guard, Transaction, Write};
use crate::turn::end::parts;
use crate::view::{Undecided, View};

/// A part of the turn's record until the turn ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallProgress {
    /// A report of an earlier call is out of date.
    #[serde(rename = "c")]
    pub position: usize,
    /// From 0 to 1; `None` if unknown.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    #[serde(rename = "m", default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl CallProgress {
    #[must_use]
    pub fn parse(part: &[u8]) -> Option<Self> {
        serde_json::from_slice(part).ok()
    }

    /// For example `40 %: Reading orders`.
    #[must_use]
    pub fn in_words(&self) -> String {
        match (self.fraction, self.message.as_str()) {
            (Some(fraction), "") => format!("{:.0} %", fraction * 100.0),
            (Some(fraction), message) => format!("{:.0} %: {message}", fraction * 100.0),
            (None, message) => message.to_owned(),
        }
    }
}

/// Needs no fence: a late report has the position of an earlier call.
#[derive(Debug, Clone)]
pub struct ReportProgress<'a> {
    pub name: TurnName,
    pub progress: &'a CallProgress,
}

impl Decision for ReportProgress<'_> {
    /// False if the turn has ended: nothing would remove the part.
    type Output = bool;

    fn decide(&self, _: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        if context.failed(|conflict| matches!(conflict, Conflict::Record { .. })) {
            return Ok(Step::Return(false));
        }
        let Ok(part) = serde_json::to_vec(self.progress) else { return Ok(Step::Return(false)) };
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Present(self.name.record()));
        transaction.write(Write::PutPart(self.name.record(), parts::progress(), Bytes::from(part)));
        Ok(Step::Commit(transaction, true))
    }
}

use serde::{Deserialize, Serialize};

use super::state::Turn;
use crate::record::Record;

/// The record expires after the turn's deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancellation {
    #[serde(rename = "w")]
    pub reason: String,
    /// Admission time (ms). `None` if the cancellation came before the admission. A later turn with the same ID is not
    /// canceled.
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none")]
    pub admitted_ms: Option<i64>,
}

impl Record for Cancellation {
    const SCHEMA: u32 = 1;
}

impl Cancellation {
    #[must_use]
    pub fn is_of(&self, turn: &Turn) -> bool {
        self.admitted_ms.is_none_or(|admitted_ms| admitted_ms == turn.admitted_ms)
    }
}

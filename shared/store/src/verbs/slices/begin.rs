//! The start of a call is fenced, so that a side effect is never begun twice.

use std::time::Duration;

use redis::Value;
use tickfleet_model::Durability;

use crate::connection::confirm::Confirmed;
use crate::keys::TurnName;
use crate::script::args::Args;
use crate::script::reply::{Reply, text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::slices::settle::SettledCall;
use crate::{Store, StoreError};

/// The nonce of a begin that only asks what is known of a call: nothing is written.
pub const ASKS: &str = "?";

/// The start of one call, or (without a nonce) the mark that a suspect slice was really started.
#[derive(Debug, Clone)]
pub struct Begin {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// Position of the call.
    pub position: usize,
    /// Fresh for each try; none only marks, and [`ASKS`] only asks.
    pub nonce: Option<String>,
    /// Digest of the turn's content.
    pub digest: String,
    /// The Redis (its `run_id`) that the worker has told of what it began; none where it knows none.
    pub knows: Option<String>,
}

/// The outcome of a begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Go on.
    Ok,
    /// The call's result is there already.
    Done,
    /// Somebody who is gone began the call: what it did cannot be known.
    Unknown,
    /// It was carried out, Redis lost that, and somebody knew its result.
    Kept(Box<SettledCall>),
    /// Somebody else holds the turn now.
    Stale,
    /// The turn was cancelled.
    Cancelled,
    /// The turn's deadline has come.
    Expired,
    /// Redis restarted less than a lease ago: begin again later.
    Hold,
}

impl Store {
    /// Fences the start of calls.
    ///
    /// # Errors
    /// [`StoreError`]; the same begin (same nonce) may be repeated.
    pub async fn begin(&self, calls: &[Begin]) -> Result<Vec<Begun>, StoreError> {
        let value = self.run(Verb::Begin, self.begin_args(calls)).await?;
        begun(value)
    }

    /// As [`Self::begin`], and waits `at_most` until what was begun would survive what `durability` names: with all that
    /// was written to this server before. The worker runs nothing that is not confirmed.
    ///
    /// # Errors
    /// As [`Self::begin`]: a begin that is repeated is written, and confirmed, again.
    pub async fn begin_durably(
        &self,
        calls: &[Begin],
        durability: Durability,
        at_most: Duration,
    ) -> Result<(Vec<Begun>, Confirmed), StoreError> {
        let confirming = match durability {
            Durability::None => return Ok((self.begin(calls).await?, Confirmed::Yes)),
            Durability::Disk => &self.confirming[0],
            Durability::Replica => &self.confirming[1],
        };
        let (script, args) = (&self.scripts.of(Verb::Begin).usual, self.begin_args(calls));
        let script = (script, self.keys.prefix(), &args);
        let asks = |value: &Value| matches!(value, Value::Array(all) if all.iter().any(is_ok));
        let wait = (durability, at_most);
        let (value, confirmed) = self.connection.run_confirmed(confirming, script, wait, asks).await?;
        Ok((begun(value)?, confirmed))
    }

    fn begin_args(&self, calls: &[Begin]) -> Args {
        let mut args = self.args();
        args.show(self.options.lease_ms).show(calls.len());
        for call in calls {
            args.show(&call.name).text(call.fence.as_str()).show(call.position).maybe(call.nonce.as_ref());
            args.text(call.digest.as_str()).maybe(call.knows.as_ref());
        }
        args.run_id_last();
        args
    }
}

fn is_ok(value: &Value) -> bool {
    text_of(value).as_deref() == Some("OK")
}

fn begun(value: Value) -> Result<Vec<Begun>, StoreError> {
    let mut reply = Reply::new(Verb::Begin.as_str(), value)?;
    let begun = |value: &redis::Value| {
        if let redis::Value::Array(kept) = value {
            // The word comes first.
            let mut texts = kept.iter().skip(1).map(|value| text_of(value).unwrap_or_default());
            let mut next = || texts.next().unwrap_or_default();
            let call = SettledCall { result: next(), message: next(), audit: next(), facts: None, failed: false };
            return Ok(Begun::Kept(Box::new(call)));
        }
        Ok(match text_of(value).as_deref() {
            Some("OK") => Begun::Ok,
            Some("DONE") => Begun::Done,
            Some("UNKNOWN") => Begun::Unknown,
            Some("STALE") => Begun::Stale,
            Some("CANCELLED") => Begun::Cancelled,
            Some("EXPIRED") => Begun::Expired,
            Some("HOLD") => Begun::Hold,
            _ => return Err(unexpected(Verb::Begin.as_str(), value)),
        })
    };
    reply.rest().iter().map(begun).collect()
}

//! Settling: results are committed with their audit, and the turn ends with one reply.

use crate::keys::{Queue, TurnName};
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{InboxName, TurnId};

/// The frame around the results of a reply.
#[derive(Debug, Clone, Default)]
pub struct ReplyFrame {
    /// The reply up to and with `"results":[`.
    pub head: String,
    /// The opening and the close of the dialect's messages; none if the dialect has none.
    pub messages: Option<(&'static str, &'static str)>,
    /// True if the reply carries the audit entries.
    pub audits: bool,
    /// The turn or task of the tenant that may wait for this one's end.
    pub wakes: Option<TurnId>,
}

/// One result, rendered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettledCall {
    /// The result, JSON.
    pub result: String,
    /// The dialect's message, JSON; empty where the dialect has none.
    pub message: String,
    /// The audit entry, JSON; empty where calls are not audited.
    pub audit: String,
}

/// Results of one slice, in call order.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// The turn.
    pub name: TurnName,
    /// The fence under which the results were made.
    pub fence: String,
    /// The queue that the slice was leased from; none for an ending.
    pub queue: Option<Queue>,
    /// Position of the first result.
    pub first: usize,
    /// The inbox that the reply goes to.
    pub reply_to: Option<InboxName>,
    /// The frame around the results.
    pub frame: ReplyFrame,
    /// The results.
    pub calls: Vec<SettledCall>,
}

/// The outcome of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// The turn has ended; its reply is written.
    Done,
    /// The slice has ended; the turn waits on its lane for its next one.
    Laned,
    /// The results are in; the slice goes on.
    Continue,
    /// The results are in; the slice should stop, its turn was cancelled.
    Cancelled,
    /// The results were in already.
    Already,
    /// Somebody else holds the turn now; the results are dropped.
    Stale,
    /// Earlier results of the slice are missing: settle them first.
    Gap,
}

impl Store {
    /// Commits results of a batch of slices.
    ///
    /// # Errors
    /// [`StoreError`]; the same batch may be settled again.
    pub async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(o.retain_ms).show(o.dedupe_ms.max(o.retain_ms)).show(o.reply_retain_ms);
        args.show(o.audit_entries_max).show(batch.len());
        for item in batch {
            args.text(item.name.tenant.as_str())
                .text(item.name.turn.as_str())
                .text(item.fence.as_str())
                .maybe(item.queue.as_ref());
            args.show(item.first).maybe(item.reply_to.as_ref());
            args.text(item.frame.head.as_str());
            let (open, close) = item.frame.messages.unwrap_or_default();
            args.text(open).text(close).flag(item.frame.audits).maybe(item.frame.wakes.as_ref());
            args.show(item.calls.len());
            for call in &item.calls {
                args.text(call.result.as_str()).text(call.message.as_str()).text(call.audit.as_str());
            }
        }
        let mut reply = self.ask(Verb::Settle, args).await?;
        reply.rest().iter().map(settled).collect()
    }
}

fn settled(value: &redis::Value) -> Result<Settled, StoreError> {
    Ok(match text_of(value).as_deref() {
        Some("DONE") => Settled::Done,
        Some("LANED") => Settled::Laned,
        Some("OK") => Settled::Continue,
        Some("CANCELLED") => Settled::Cancelled,
        Some("ALREADY") => Settled::Already,
        Some("STALE") => Settled::Stale,
        Some("GAP") => Settled::Gap,
        _ => return Err(unexpected(Verb::Settle.as_str(), value)),
    })
}

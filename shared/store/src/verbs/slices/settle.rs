//! Settling: results are committed with their audit, and the turn ends with one reply.

use crate::keys::{Queue, TurnName};
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::facts::FactsEnd;
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
    /// The number of calls of the whole turn, where it is known: a slice of as many from the first on is settled with
    /// its reply rendered.
    pub calls: Option<usize>,
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
    /// What the call's end does to facts of its session; none where nothing is known of that. A call that entered its
    /// session and says nothing may have done all that it could.
    pub facts: Option<FactsEnd>,
    /// True if the outcome is another than `ok`, and not `expired`: what a task has begun ends with it then. What is below one that
    /// has expired expires by itself, no later.
    pub failed: bool,
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

impl Settlement {
    /// True if it carries all results of its turn. An ending's may have to give way to what Redis knows of its calls.
    fn is_whole(&self) -> bool {
        let says_facts = self.calls.iter().any(|call| call.facts.is_some());
        self.queue.is_some() && self.first == 0 && self.frame.calls == Some(self.calls.len()) && !says_facts
    }

    /// True if it is the end of a task that failed.
    fn is_failed_task(&self) -> bool {
        self.frame.head.starts_with("{\"task_id\"") && self.calls.last().is_some_and(|call| call.failed)
    }

    /// What the ends of its calls do to facts, as `settle.lua` reads it.
    fn facts(&self) -> String {
        let mut text = String::new();
        for (position, call) in (self.first..).zip(&self.calls) {
            if let Some(end) = &call.facts {
                end.write(position, &self.name.tenant, &mut text);
            }
        }
        text
    }

    /// The reply of a turn whose results these are: what `settle.lua` makes of a turn's slices.
    fn reply(&self) -> String {
        let frame = &self.frame;
        let bytes: usize = self.calls.iter().map(|c| c.result.len() + c.message.len() + c.audit.len() + 3).sum();
        let mut text = String::with_capacity(frame.head.len() + bytes + 64);
        text.push_str(&frame.head);
        join(&mut text, self.calls.iter().map(|call| call.result.as_str()));
        text.push(']');
        if let Some((open, close)) = frame.messages {
            text.push_str(",\"messages\":");
            text.push_str(open);
            join(&mut text, self.calls.iter().map(|call| call.message.as_str()));
            text.push_str(close);
        }
        if frame.audits {
            text.push_str(",\"tool_call_audits\":[");
            join(&mut text, self.calls.iter().map(|call| call.audit.as_str()));
            text.push(']');
        }
        text.push('}');
        text
    }
}

/// Adds texts with commas between.
fn join<'a>(text: &mut String, parts: impl Iterator<Item = &'a str>) {
    for (index, part) in parts.enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(part);
    }
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
        args.show(o.audit_entries_max).show(batch.len()).flag(o.audit_admissions);
        for item in batch {
            args.text(item.name.tenant.as_str())
                .show(&item.name)
                .text(item.fence.as_str())
                .maybe(item.queue.as_ref())
                .maybe(item.reply_to.as_ref())
                .maybe(item.frame.wakes.as_ref())
                .flag(item.is_failed_task());
            if item.is_whole() {
                args.text(item.reply()).show(item.calls.len());
                for call in &item.calls {
                    args.text(call.audit.as_str());
                }
                continue;
            }
            args.text("").show(item.calls.len()).show(item.first).text(item.frame.head.as_str());
            let (open, close) = item.frame.messages.unwrap_or_default();
            args.text(open).text(close).flag(item.frame.audits).text(item.facts());
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

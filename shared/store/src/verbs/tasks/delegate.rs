//! Tasks: written durably and offered to whoever does them.

use crate::keys::Queue;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, InboxName, TaskId, TenantId, TurnId, limits};

/// One task to be written.
#[derive(Debug, Clone)]
pub struct Delegation {
    /// The inbound entry, where the task came in on the stream.
    pub entry: Option<String>,
    /// The tenant.
    pub tenant: TenantId,
    /// The task's id, given or derived.
    pub task: TaskId,
    /// True if the producer gave the id.
    pub given: bool,
    /// Digest of the content.
    pub digest: String,
    /// The queue of whoever runs it: a `ready` queue, or an external runtime's.
    pub queue: Queue,
    /// The agent that does it.
    pub agent: AgentId,
    /// When it expires, ms.
    pub deadline_ms: i64,
    /// Calls that turns under it may make.
    pub budget: u32,
    /// The task it was delegated from, whose budget it is carved from.
    pub parent: Option<TaskId>,
    /// The turn whose call delegates it.
    pub by: Option<TurnId>,
    /// True if that call waits for it.
    pub awaited: bool,
    /// The inbox of its reply.
    pub reply_to: Option<InboxName>,
    /// The meta, JSON.
    pub meta: String,
    /// The work, as a call, JSON.
    pub call: String,
    /// Silence after which an external runtime loses the task, ms; 0 where workers run it.
    pub external_lease_ms: i64,
}

/// The outcome of a delegation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delegated {
    /// It is written and offered.
    Ok,
    /// It was written before.
    Duplicate,
    /// Its id belongs to another content.
    Conflict,
    /// Refused; the word says why.
    Refused(String),
    /// Redis' memory is nearly full: it comes in later.
    Pressure,
}

impl Store {
    /// Writes tasks and offers them.
    ///
    /// # Errors
    /// [`StoreError`]; the same batch may be repeated.
    pub async fn delegate(&self, tasks: &[Delegation]) -> Result<Vec<Delegated>, StoreError> {
        let mut args = self.args();
        let o = &self.options;
        args.show(o.tenant_turns_max).show(o.inbox_unread_max).show(o.inboxes_max).show(o.reply_retain_ms);
        args.show(limits::TASKS_LISTED_MAX).show(limits::TASKS_LISTED_MS).show(o.tenant_bytes_max);
        args.show(tasks.len());
        for t in tasks {
            args.text(t.entry.as_deref().unwrap_or("")).show(&t.tenant).show(&t.task).flag(t.given);
            args.text(t.digest.as_str()).show(&t.queue).show(&t.agent).show(t.deadline_ms).show(t.budget);
            args.maybe(t.parent.as_ref()).text(t.meta.as_str()).text(t.call.as_str()).show(t.external_lease_ms);
            args.maybe(t.reply_to.as_ref()).maybe(t.by.as_ref()).flag(t.awaited);
        }
        // What came in on the stream drains; what a tool asks for is new, and can be tried again.
        let mut reply = if tasks.iter().all(|t| t.entry.is_some()) {
            self.ask(Verb::Delegate, args).await?
        } else {
            self.ask_while_there_is_memory(Verb::Delegate, args).await?
        };
        reply.number()?;
        reply.rest().iter().map(delegated).collect()
    }
}

fn delegated(value: &redis::Value) -> Result<Delegated, StoreError> {
    let word = text_of(value).unwrap_or_default();
    Ok(match word.as_str() {
        "DUPLICATE" => Delegated::Duplicate,
        "CONFLICT" => Delegated::Conflict,
        "PRESSURE" => Delegated::Pressure,
        other if other.starts_with("OK") => Delegated::Ok,
        other => match other.strip_prefix("REFUSED ") {
            Some(code) => Delegated::Refused(code.to_owned()),
            None => return Err(unexpected(Verb::Delegate.as_str(), value)),
        },
    })
}

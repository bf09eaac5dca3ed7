//! Tasks: written durably and offered to whoever does them.

use crate::keys::{Queue, TurnName};
use crate::script::reply::{Reply, text_of, unexpected};
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, InboxName, TaskId, TenantId};

/// One task to be written.
#[derive(Debug, Clone)]
pub struct Delegation {
    /// The inbound entry, where the task came in on the stream.
    pub entry: Option<String>,
    /// The tenant.
    pub tenant: TenantId,
    /// The task's id, given or derived.
    pub task: TaskId,
    /// Whether the producer gave the id.
    pub given: bool,
    /// Digest of the content.
    pub digest: String,
    /// Who runs it: a `ready` queue, or an external runtime's.
    pub queue: Queue,
    /// Who does it.
    pub agent: AgentId,
    /// When it expires, ms.
    pub deadline_ms: i64,
    /// Calls that turns under it may make.
    pub budget: u32,
    /// The task it was delegated from, whose budget it is carved from.
    pub parent: Option<TaskId>,
    /// The inbox of its reply.
    pub reply_to: Option<InboxName>,
    /// The meta, JSON.
    pub meta: String,
    /// The work, as a call, JSON.
    pub call: String,
    /// Silence after which an external runtime loses the task, ms; 0 where workers run it.
    pub external_lease_ms: i64,
}

/// What became of a delegation.
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

/// What became of a message for the `tasks` stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enqueued {
    /// It is on the stream as this entry.
    Accepted {
        /// The entry.
        entry: String,
    },
    /// The stream is full.
    QueueFull,
    /// Redis' memory is nearly full.
    Pressure,
}

/// What an external runtime's heartbeat is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touched {
    /// It still holds the task.
    Ok,
    /// It should stop: the task was cancelled.
    Cancelled,
    /// It no longer holds the task.
    Stale,
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
        args.show(tasks.len());
        for t in tasks {
            args.text(t.entry.as_deref().unwrap_or("")).show(&t.tenant).show(&t.task).flag(t.given);
            args.text(t.digest.as_str()).show(&t.queue).show(&t.agent).show(t.deadline_ms).show(t.budget);
            args.maybe(t.parent.as_ref()).text(t.meta.as_str()).text(t.call.as_str()).show(t.external_lease_ms);
            args.maybe(t.reply_to.as_ref());
        }
        // What came in on the stream drains; what a tool asks for is new, and can be tried again.
        let ran = if tasks.iter().all(|t| t.entry.is_some()) {
            self.run_draining("delegate", args).await?
        } else {
            self.run("delegate", args).await?
        };
        let mut reply = Reply::new("delegate", ran)?;
        reply.number()?;
        reply.rest().iter().map(delegated).collect()
    }

    /// Puts a message on the inbound `tasks` stream, as services in other languages do: a scheduler validates it
    /// before an agent sees it. Its bounds are looked at just before, so that producers at the same time may pass them
    /// by a few.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn enqueue_task(&self, message: &str) -> Result<Enqueued, StoreError> {
        let key = self.keys.key("tasks");
        let mut pipe = redis::pipe();
        pipe.cmd("XLEN").arg(&key).cmd("HGET").arg(self.keys.key("meta")).arg("pressure");
        let (length, pressure): (u64, Option<String>) = self.connection.pipeline("enqueue_task", &pipe).await?;
        if pressure.as_deref() == Some("1") {
            return Ok(Enqueued::Pressure);
        }
        if length >= self.options.turns_max {
            return Ok(Enqueued::QueueFull);
        }
        let command = redis::cmd("XADD").arg(&key).arg("*").arg("task").arg(message).to_owned();
        self.connection.query("enqueue_task", &command).await.map(|entry| Enqueued::Accepted { entry })
    }

    /// Looks after some of the streams that runtimes outside read: trims them, and removes those that are empty and whose
    /// agent `is_configured` no longer. Answers where to go on; 0 where the round is complete.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn retire(
        &self,
        cursor: u64,
        is_configured: impl Fn(&TenantId, &AgentId) -> bool,
    ) -> Result<u64, StoreError> {
        let scan = redis::cmd("SSCAN").arg(self.keys.key("externals")).arg(cursor).arg("COUNT").arg(100).to_owned();
        let (next, queues): (u64, Vec<String>) = self.connection.query("retire", &scan).await?;
        let streams: Vec<(Queue, bool)> = queues
            .iter()
            .filter_map(|queue| match Queue::parse(queue)? {
                Queue::External(tenant, agent) => {
                    let orphan = !is_configured(&tenant, &agent);
                    Some((Queue::External(tenant, agent), orphan))
                }
                Queue::Ready(_) | Queue::Suspect(_) => None,
            })
            .collect();
        if !streams.is_empty() {
            let mut args = self.args();
            args.show(streams.len());
            for (queue, orphan) in &streams {
                args.show(queue).flag(*orphan);
            }
            self.run("retire", args).await?;
        }
        Ok(next)
    }

    /// An external runtime says that it still works on its task.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn touch(&self, task: &TurnName, lease: &str) -> Result<Touched, StoreError> {
        let mut args = self.args();
        args.show(task).text(lease);
        let value = self.run("touch", args).await?;
        Ok(match text_of(&value).as_deref() {
            Some("OK") => Touched::Ok,
            Some("CANCELLED") => Touched::Cancelled,
            Some("STALE") => Touched::Stale,
            _ => return Err(unexpected("touch", &value)),
        })
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
            None => return Err(unexpected("delegate", value)),
        },
    })
}

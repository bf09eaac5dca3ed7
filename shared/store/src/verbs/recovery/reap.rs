//! Heartbeats, and what happens when they stop; cancelling; the policy in force.

use redis::Value;

use crate::connection::reader::Entry;
use crate::keys::{Queue, TurnName};
use crate::script::reply::{Reply, text_of, unexpected};
use crate::verbs::ending::Ending;
use crate::{Store, StoreError};
use tickfleet_model::{ConsumerId, limits};

/// Characters of the reason that a dead letter keeps of what could not be read.
const PUT_ASIDE_CHARS: usize = 500;

/// Inbound entries that one script returns, each of which may have the size of a turn.
const PUT_BACK_MAX: usize = 32;

/// What a consumer learns when it renews its lease.
#[derive(Debug, Clone)]
pub struct Beat {
    /// Shard time, ms.
    pub now_ms: i64,
    /// When the present epoch began (Redis restarted), ms; 0 in the first.
    pub epoch_ms: i64,
    /// Generation of the policy in force.
    pub policy_generation: u64,
    /// Whether Redis' memory is nearly full.
    pub pressure: bool,
    /// How often Redis' clock stepped back, and by how much the last time, ms.
    pub clock_steps: (u64, i64),
    /// What Redis calls itself: another name is another process, which may know less.
    pub run_id: String,
    /// Until when calls may be marked as begun by somebody who Redis has forgotten, ms; 0 where there never was one.
    pub marks_ms: i64,
    /// Turns that the consumer holds and should stop.
    pub cancelled: Vec<TurnName>,
}

/// A consumer's slots. A scheduler has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slots {
    /// Those that carry out a slice.
    pub busy: usize,
    /// All of them.
    pub all: usize,
}

/// What reap did.
#[derive(Debug, Default)]
pub struct Reaped {
    /// False while it waits for workers to beat again after Redis or all schedulers were away.
    pub active: bool,
    /// Entries back on their queues.
    pub requeued: u64,
    /// Quarantined slices; to be settled.
    pub endings: Vec<Ending>,
    /// Dead consumers removed.
    pub removed: u64,
    /// Entries dead-lettered unread: those that kill their readers, and those that cannot be read.
    pub dead: u64,
    /// Whether a bound was reached, so that there may be more to take back.
    pub more: bool,
    /// What was put aside, and why.
    pub aside: Vec<(String, String)>,
}

/// What became of an announced policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// It is the one in force.
    InForce {
        /// Its generation.
        generation: u64,
    },
    /// It was in force once, and a scheduler decides by a newer one.
    Older {
        /// The generation in force.
        generation: u64,
        /// True where the schedulers with the one in force have only fallen silent: they did not leave.
        silent: bool,
    },
}

/// What became of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It ends as soon as a scheduler looks.
    Ok,
    /// Its running calls end first.
    Flagged,
    /// It had ended.
    Ended,
    /// Nothing of that name has come yet. Should it come within [`limits::EARLY_CANCEL_MS`], it ends without running.
    Waiting,
    /// Nothing of that name has come yet, and too many cancels of the tenant wait already: this one is not kept.
    Full,
    /// It was admitted once, and its record is lost.
    Unknown,
}

impl Store {
    /// Renews the consumer's lease. Beat first, then read (rule 12).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn beat(&self, consumer: &ConsumerId) -> Result<Beat, StoreError> {
        self.beat_for(consumer, self.options.lease_ms, None).await
    }

    /// As [`Self::beat`], and says how many of its slots are busy and by which policy it decides (the beginning of the
    /// digest), for those who look on. Nothing decides by it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn beat_with(&self, consumer: &ConsumerId, slots: Slots, policy: &str) -> Result<Beat, StoreError> {
        self.beat_for(consumer, self.options.lease_ms, Some((slots, policy))).await
    }

    /// Says that the consumer is gone, so that nobody waits for its lease to end.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn leave(&self, consumer: &ConsumerId) -> Result<(), StoreError> {
        self.beat_for(consumer, 0, None).await.map(drop)
    }

    async fn beat_for(
        &self,
        consumer: &ConsumerId,
        lease_ms: i64,
        says: Option<(Slots, &str)>,
    ) -> Result<Beat, StoreError> {
        let mut args = self.args();
        args.show(consumer).show(lease_ms);
        if let Some((Slots { busy, all }, policy)) = says {
            args.show(format_args!("{busy} {all} {policy}"));
        }
        let mut reply = Reply::new("beat", self.run("beat", args).await?)?;
        Ok(Beat {
            now_ms: reply.number()?,
            epoch_ms: reply.number()?,
            policy_generation: reply.number()?.unsigned_abs(),
            pressure: reply.text()? == "1",
            clock_steps: (reply.number()?.unsigned_abs(), reply.number()?),
            run_id: reply.text()?,
            marks_ms: reply.number()?,
            cancelled: reply.rest().iter().filter_map(text_of).filter_map(|t| TurnName::parse(&t)).collect(),
        })
    }

    /// Takes back what dead consumers hold, at most `bound` entries, and about as many bytes as a script may move.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reap(&self, bound: usize) -> Result<Reaped, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(o.lease_ms).show(o.ending_lease_ms).show(o.crashes_max).show(o.dead_entries_max);
        args.show(bound).show(o.dedupe_ms.max(o.retain_ms)).show(limits::SCRIPT_BYTES_MAX);
        for stream in crate::keys::streams() {
            args.text(stream);
        }
        let mut reply = Reply::new("reap", self.run("reap", args).await?)?;
        let active = reply.text()? == "OK";
        reply.number()?;
        let requeued = reply.number()?.unsigned_abs();
        let endings = reply.list()?.rest().into_iter().filter_map(|e| Ending::read_one("reap", e)).collect();
        let (removed, dead) = (reply.number()?.unsigned_abs(), reply.number()?.unsigned_abs());
        let more = reply.text()? == "1";
        let aside: Vec<String> = reply.list()?.rest().iter().filter_map(text_of).collect();
        let aside = aside.chunks(2).filter_map(|pair| Some((pair.first()?.clone(), pair.get(1)?.clone()))).collect();
        Ok(Reaped { active, requeued, endings, removed, dead, more, aside })
    }

    /// Returns the inbound entries that a scheduler holds and has not decided about: it stops in order. Others read them
    /// at once, and no crash counts against them. Answers how many there were.
    ///
    /// # Errors
    /// [`StoreError`]; what was not returned is taken back when the lease ends.
    pub async fn put_back(&self, consumer: &ConsumerId) -> Result<u64, StoreError> {
        let mut returned = 0;
        loop {
            let mut args = self.args();
            args.show(consumer).show(PUT_BACK_MAX);
            for inbound in crate::verbs::turns::admit::INBOUND {
                args.text(inbound.stream());
            }
            let mut reply = Reply::new("put_back", self.run("put_back", args).await?)?;
            let now = reply.number()?.unsigned_abs();
            returned += now;
            // What it cannot return (it is too odd) is left to reap.
            if reply.number()? == 0 || now == 0 {
                return Ok(returned);
            }
        }
    }

    /// Entries of a queue that were delivered to the consumer at least `idle_ms` ago and are not acknowledged yet: at
    /// most `count` ids, the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn held(
        &self,
        consumer: &ConsumerId,
        queue: &Queue,
        idle_ms: i64,
        count: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut command = redis::cmd("XPENDING");
        command.arg(self.keys.key(queue)).arg(crate::keys::GROUP).arg("IDLE").arg(idle_ms);
        command.arg("-").arg("+").arg(count).arg(consumer.as_str());
        let found: Vec<(String, String, i64, i64)> = self.connection.query("held", &command).await?;
        Ok(found.into_iter().map(|(id, ..)| id).collect())
    }

    /// One entry of a queue; none where it is gone.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn entry(&self, queue: &Queue, id: &str) -> Result<Option<Entry>, StoreError> {
        let command = redis::cmd("XRANGE").arg(self.keys.key(queue)).arg(id).arg(id).to_owned();
        let found: Vec<Value> = self.connection.query("entry", &command).await?;
        Ok(found.into_iter().next().and_then(crate::connection::reader::entry))
    }

    /// Marks the entry of an inbound stream that the consumer is about to read, because it was there when another
    /// died. None clears it. Each stream has a mark of its own, for its own loop reads it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn suspect(
        &self,
        from: crate::Inbound,
        consumer: &ConsumerId,
        entry: Option<&str>,
    ) -> Result<(), StoreError> {
        let mut args = self.args();
        args.text(from.stream()).show(consumer).text(entry.unwrap_or_default());
        self.run("suspect", args).await.map(drop)
    }

    /// Takes an entry of a queue that is no slice of anybody's to the dead stream.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put_aside(&self, queue: &Queue, entry: &str, why: &str) -> Result<(), StoreError> {
        let mut args = self.args();
        args.show(queue).text(entry).text(why.chars().take(PUT_ASIDE_CHARS).collect::<String>());
        self.run("put_aside", args).await.map(drop)
    }

    /// Acknowledges an inbound entry that needed no decision.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn acknowledge(&self, from: crate::Inbound, entry: &str) -> Result<(), StoreError> {
        let key = self.keys.key(from.stream());
        let mut pipe = redis::pipe();
        pipe.cmd("XACK").arg(&key).arg(crate::keys::GROUP).arg(entry).cmd("XDEL").arg(&key).arg(entry);
        self.connection.pipeline::<(i64, i64)>("acknowledge", &pipe).await.map(drop)
    }

    /// Asks for the end of a turn or task.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn cancel(&self, name: &TurnName, reason: &str) -> Result<Cancelled, StoreError> {
        let mut args = self.args();
        args.show(name).text(cut(reason, limits::CANCEL_REASON_BYTES_MAX)).show(self.options.lease_ms);
        args.show(limits::EARLY_CANCEL_MS).show(limits::EARLY_CANCELS_MAX);
        let value = self.run("cancel", args).await?;
        Ok(match text_of(&value).as_deref() {
            Some("OK") => Cancelled::Ok,
            Some("FLAGGED") => Cancelled::Flagged,
            Some("ENDED") => Cancelled::Ended,
            Some("WAITING") => Cancelled::Waiting,
            Some("FULL") => Cancelled::Full,
            Some("UNKNOWN") => Cancelled::Unknown,
            _ => return Err(unexpected("cancel", &value)),
        })
    }

    /// Digest of the policy in force; none before one was announced.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn policy_in_force(&self) -> Result<Option<String>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.key("meta")).arg("policy").to_owned();
        self.connection.query("policy", &command).await
    }

    /// The generation that a policy has, or had when it was in force last; none where it never was.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn generation_of(&self, digest: &str) -> Result<Option<u64>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.key("policies")).arg(format!("g:{digest}")).to_owned();
        self.connection.query("policy", &command).await
    }

    /// Says that `scheduler` decides by the policy with this digest. A new one becomes the one in force, an older one
    /// only where no scheduler decides by the one in force any more. `take` says that those which fell silent need not
    /// be waited for. Without a scheduler's name nobody is noted as deciding by it.
    ///
    /// # Errors
    /// [`StoreError::Shards`] where the data was written with another number of shards.
    pub async fn announce(
        &self,
        digest: &str,
        scheduler: Option<&ConsumerId>,
        take: bool,
    ) -> Result<Announced, StoreError> {
        let mut args = self.args();
        args.text(digest).show(self.options.shards).text(scheduler.map_or("", |s| s.as_str()));
        args.text(if take { "1" } else { "" });
        let mut reply = Reply::new("announce", self.run("announce", args).await?)?;
        let word = reply.text()?;
        if word == "SHARDS" {
            return Err(StoreError::Shards { ours: self.options.shards, stored: reply.text()? });
        }
        let generation = reply.number()?.unsigned_abs();
        Ok(match word.as_str() {
            "OLDER" => Announced::Older { generation, silent: reply.text()? == "silent" },
            _ => Announced::InForce { generation },
        })
    }
}

/// The beginning of a text, `bytes_max` long at most, that ends between characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}

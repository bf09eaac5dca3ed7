//! The verb that takes back what dead consumers hold.

use crate::keys;
use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::verbs::ending::Ending;
use crate::{Store, StoreError};
use std::time::Duration;
use tickfleet_model::limits;

/// The outcome of a reap.
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
    /// True if a bound was reached, so that there may be more to take back.
    pub more: bool,
    /// The entries that were put aside, and why.
    pub aside: Vec<(String, String)>,
}

impl Store {
    /// Takes back what dead consumers hold, at most `bound` entries, and about as many bytes as a script may move.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reap(&self, bound: usize) -> Result<Reaped, StoreError> {
        self.reap_unless_within(Duration::ZERO, bound).await.map(Option::unwrap_or_default)
    }

    /// As [`Self::reap`], unless this or another scheduler has reaped within that time: then returns none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reap_unless_within(&self, recent: Duration, bound: usize) -> Result<Option<Reaped>, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(o.lease_ms).show(o.ending_lease_ms).show(o.crashes_max).show(o.dead_entries_max);
        args.show(bound).show(o.dedupe_ms.max(o.retain_ms)).show(limits::SCRIPT_BYTES_MAX);
        args.show(o.inboxes_max).show(o.reply_retain_ms).show(recent.as_millis());
        for stream in keys::streams() {
            args.text(stream);
        }
        let mut reply = self.ask(Verb::Reap, args).await?;
        let word = reply.text()?;
        if word == "RECENT" {
            return Ok(None);
        }
        let active = word == "OK";
        reply.number()?;
        let requeued = reply.number()?.unsigned_abs();
        let endings =
            reply.list()?.rest().into_iter().filter_map(|e| Ending::read_one(Verb::Reap.as_str(), e)).collect();
        let (removed, dead) = (reply.number()?.unsigned_abs(), reply.number()?.unsigned_abs());
        let more = reply.text()? == "1";
        let aside: Vec<String> = reply.list()?.rest().iter().filter_map(text_of).collect();
        let aside = aside.chunks(2).filter_map(|pair| Some((pair.first()?.clone(), pair.get(1)?.clone()))).collect();
        Ok(Some(Reaped { active, requeued, endings, removed, dead, more, aside }))
    }
}

//! Checks the guards (conditions) of a transaction, without changing the store. If all guards hold, the store then
//! applies their debits and acknowledgments.

use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::record::Debited;
use tickfleet_core::{
    ConditionalDebit, Conflict, CounterKey, EntryId, Guard, InboxKey, RecordKey, SetKey, StreamKey, Version, Window,
};

use super::counters::Counter;
use super::shard::Shard;
use super::streams::Id;

#[derive(Debug, Default)]
pub struct GuardEffects {
    pub counters: Vec<(CounterKey, Counter)>,
    /// In the order of the [`Guard::Debit`]s.
    pub debited: Vec<Debited>,
    pub shadowed: Vec<CounterKey>,
    pub held: Vec<(StreamKey, Id)>,
    pub inboxes: Vec<InboxKey>,
}

pub fn inbox_stream(inbox: &InboxKey) -> StreamKey {
    StreamKey::new(format!("replies:{}:{}", inbox.tenant, inbox.inbox))
}

/// The score of an inbox is the shard time of its last use.
pub fn inboxes(tenant: &str) -> SetKey {
    SetKey::new(format!("inboxes:{tenant}"))
}

/// A stored text begins with its version.
pub fn is_version(text: &Bytes, version: &Version) -> bool {
    text.strip_prefix(version.as_str().as_bytes()).is_some_and(|rest| rest.first() == Some(&b' '))
}

impl Shard {
    /// Fails with the conflict of the first guard that fails.
    pub fn check(&self, guards: &[Guard]) -> Result<GuardEffects, Conflict> {
        let mut passed = GuardEffects::default();
        for guard in guards {
            self.check_one(guard, &mut passed)?;
        }
        Ok(passed)
    }

    fn check_one(&self, guard: &Guard, passed: &mut GuardEffects) -> Result<(), Conflict> {
        let contents = &self.contents;
        let now_ms = contents.clock.last_ms;
        let (holds, conflict) = match guard {
            Guard::Version(key, version) => {
                return self.check_record(key, |text| text.is_some_and(|text| is_version(text, version)));
            }
            Guard::Absent(key) => return self.check_record(key, |text| text.is_none()),
            Guard::Present(key) => return self.check_record(key, |text| text.is_some()),
            Guard::Debit(debit) => return self.check_debit(debit, passed),
            Guard::Inbox { inbox, unread_max, inboxes_max } => {
                self.check_inbox(inbox, *unread_max, *inboxes_max)?;
                passed.inboxes.push(inbox.clone());
                return Ok(());
            }
            Guard::Before(time_ms) => (now_ms < *time_ms, Conflict::Time { now_ms }),
            Guard::Since(time_ms) => (now_ms >= *time_ms, Conflict::Time { now_ms }),
            Guard::Generation { policy, settings } => (
                contents.policy <= *policy && contents.settings <= *settings,
                Conflict::Generation { policy: contents.policy, settings: contents.settings },
            ),
            Guard::Epoch { number, lease_ms } => {
                let began_ms = contents.epoch_began_ms;
                let lasted = *lease_ms == 0 || began_ms == 0 || now_ms >= began_ms.saturating_add(*lease_ms);
                (contents.epoch == *number && lasted, Conflict::Epoch { number: contents.epoch, began_ms })
            }
            Guard::Within(stream, max) => (contents.entries(stream) < *max, Conflict::Full),
            Guard::Fits { set, member, max } => {
                (contents.size(set) < *max || contents.score(set, member).is_some(), Conflict::Full)
            }
            Guard::Member(set, member) => (contents.score(set, member).is_some(), Conflict::NoMember),
            Guard::First(set, member) => {
                let first = contents.sets.get(set).and_then(|members| members.order.first());
                (first.is_some_and(|(_, first)| first == member), Conflict::NoMember)
            }
            Guard::MemoryAvailable => (!contents.pressure, Conflict::Pressure),
            Guard::Unread(stream, entry) => (self.is_unread(stream, entry), Conflict::Read),
            Guard::Held(stream, entry) => {
                let held = Id::parse(entry).filter(|id| self.is_held(stream, *id));
                passed.held.extend(held.map(|id| (stream.clone(), id)));
                (held.is_some(), Conflict::NotHeld)
            }
        };
        if holds { Ok(()) } else { Err(conflict) }
    }

    fn check_record(&self, key: &RecordKey, holds: impl Fn(Option<&Bytes>) -> bool) -> Result<(), Conflict> {
        let text = self.contents.text(key);
        if holds(text) { Ok(()) } else { Err(Conflict::Record { key: key.clone(), stored: text.cloned() }) }
    }

    fn check_debit(&self, debit: &ConditionalDebit, passed: &mut GuardEffects) -> Result<(), Conflict> {
        let moment = self.moment();
        let debit = &ConditionalDebit { window: debit.window.running_at(moment.now_ms), ..debit.clone() };
        if let Window::Fixed { start_ms, end_ms, .. } | Window::Day { start_ms, end_ms } = debit.window
            && !(start_ms..end_ms).contains(&moment.now_ms)
        {
            return Err(Conflict::Time { now_ms: moment.now_ms });
        }
        let key = self.counter_for(debit, passed);
        let debited = passed.counters.iter().position(|(of, _)| *of == key);
        let present = match debited.and_then(|at| passed.counters.get(at)) {
            Some((_, counter)) => Some(counter),
            None => self.contents.counter(&key),
        };
        let outcome = match present {
            Some(counter) => counter.debit(debit, moment),
            None => Counter::default().debit(debit, moment),
        };
        if let Some(state) = outcome.refused {
            if !debit.shadow {
                return Err(Conflict::LimitReached { counter: debit.counter.clone(), state });
            }
            passed.shadowed.push(debit.counter.clone());
        }
        passed.debited.push(outcome.debited);
        if debit.has_only_guards() {
            return Ok(());
        }
        match debited.and_then(|at| passed.counters.get_mut(at)) {
            Some((_, counter)) => *counter = outcome.counter,
            None => passed.counters.push((key, outcome.counter)),
        }
        Ok(())
    }

    /// The limit's shared counter, if the guard's counter does not exist and the limit has the maximum number of
    /// counters.
    fn counter_for(&self, debit: &ConditionalDebit, passed: &GuardEffects) -> CounterKey {
        let stored = self.contents.counters.get(&debit.counter.limit);
        let is_stored = |name: &Arc<str>| stored.is_some_and(|counters| counters.contains_key(name));
        let is_others = |name: &str| name == ConditionalDebit::OTHERS;
        if is_stored(&debit.counter.counter)
            || is_others(&debit.counter.counter)
            || passed.counters.iter().any(|(key, _)| *key == debit.counter)
        {
            return debit.counter.clone();
        }
        let of_limit =
            stored.map_or(0, |counters| counters.len() - usize::from(counters.contains_key(ConditionalDebit::OTHERS)));
        let new = passed.counters.iter().filter(|(key, _)| {
            key.limit == debit.counter.limit && !is_others(&key.counter) && !is_stored(&key.counter)
        });
        if ((of_limit + new.count()) as u64) < debit.counters_max {
            debit.counter.clone()
        } else {
            CounterKey { limit: Arc::clone(&debit.counter.limit), counter: ConditionalDebit::OTHERS.into() }
        }
    }

    fn check_inbox(&self, inbox: &InboxKey, unread_max: u64, inboxes_max: u64) -> Result<(), Conflict> {
        if self.contents.entries(&inbox_stream(inbox)) >= unread_max {
            return Err(Conflict::InboxFull);
        }
        let of_tenant = inboxes(&inbox.tenant);
        let is_known = self.contents.score(&of_tenant, &inbox.inbox).is_some();
        if is_known || self.contents.size(&of_tenant) < inboxes_max { Ok(()) } else { Err(Conflict::TooManyInboxes) }
    }

    fn is_unread(&self, stream: &StreamKey, entry: &EntryId) -> bool {
        let (Some(stream), Some(id)) = (self.contents.streams.get(stream), Id::parse(entry)) else { return false };
        let delivered = stream.group.as_ref().map_or(Id::default(), |group| group.delivered);
        id > delivered && stream.entries.contains_key(&id)
    }

    fn is_held(&self, stream: &StreamKey, id: Id) -> bool {
        self.contents.streams.get(stream).is_some_and(|stream| stream.holder(id).is_some())
    }
}

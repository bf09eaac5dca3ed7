//! Redelivers the slices of a worker with an ended lease.
//!
//! A slice is enqueued again under a new version, and its old entry is acknowledged. An entry is never transferred to
//! another consumer, because the previous consumer could still acknowledge the entry.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tickfleet_model::RejectionCode;

use super::lease::Lease;
use super::regroup::{GROUP_MAX, HeldSlice, Load, Redelivery, regroup};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::record::{Debited, Record, Stored};
use crate::transaction::{Conflict, EntryId, Guard, RecordKey, StreamKey, Transaction, Version};
use crate::turn::dead_letter::DeadLetter;
use crate::turn::expire::begin_ending;
use crate::turn::slice::{dispatch, fields, last_calls};
use crate::turn::state::EndReason;
use crate::turn::{Destination, Note, State, Suspect, Turn};
use crate::view::{Fields, Query, Undecided, View};

/// A larger slice gets a transaction of its own.
const BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReapResult {
    /// There may be more: run the decision again with the remaining entries.
    Redelivered(Vec<TurnName>),
    Quarantined(TurnName),
    /// Entries without a slice of any turn. There may be more.
    Removed {
        dead: usize,
    },
    Nothing,
    Alive,
    Restarted,
    /// The caller must read the consumer's entries again.
    Raced,
}

impl Lease {
    #[must_use]
    pub fn refusal(&self, context: &Context) -> Option<ReapResult> {
        context.conflicts.iter().find_map(|conflict| match conflict {
            Conflict::Epoch { .. } => Some(ReapResult::Restarted),
            Conflict::Time { .. } => Some(ReapResult::Alive),
            Conflict::Record { key, .. } if *key == self.heartbeat => Some(ReapResult::Alive),
            Conflict::NotHeld => Some(ReapResult::Raced),
            _ => None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldEntry {
    pub queue: StreamKey,
    pub entry: EntryId,
    /// Empty if the queue no longer has the entry.
    pub fields: Fields,
}

impl HeldEntry {
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.fields.iter().find(|(field, _)| &**field == name)?;
        std::str::from_utf8(value).ok()
    }

    #[must_use]
    pub fn name(&self) -> Option<TurnName> {
        TurnName::parse(self.text(fields::NAME)?)
    }
}

/// The load at the crash. Several transactions redeliver the slices, and each needs this load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Identifies the crash: a worker that was only silent may crash again later.
    #[serde(rename = "h", default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Version>,
    #[serde(rename = "r")]
    pub regular: u32,
    #[serde(rename = "s")]
    pub suspects: u32,
}

impl Record for Crash {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn crash(consumer: &str) -> RecordKey {
    RecordKey::new(format!("crash:{consumer}"))
}

#[derive(Debug)]
pub struct Reap<'a> {
    pub consumer: Arc<str>,
    pub lease: Lease,
    pub held: Vec<HeldEntry>,
    pub bounds: &'a Bounds,
}

struct Owned<'a> {
    entry: &'a HeldEntry,
    name: TurnName,
    stored: Stored<Turn>,
}

struct HeldEntriesByKind<'a> {
    slices: Vec<Owned<'a>>,
    stale: Vec<&'a HeldEntry>,
    /// The text is the reason.
    foreign: Vec<(&'a HeldEntry, String)>,
}

impl Decision for Reap<'_> {
    type Output = ReapResult;

    fn reads(&self) -> Vec<Query> {
        let turns = self.held.iter().filter_map(HeldEntry::name).map(|name| Query::Record(name.record()));
        turns.chain([Query::Record(crash(&self.consumer))]).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<ReapResult>, Undecided> {
        if let Some(refusal) = self.lease.refusal(context) {
            return Ok(Step::Return(refusal));
        }
        let belongings = self.belongings(view)?;
        if !belongings.stale.is_empty() || !belongings.foreign.is_empty() {
            return Ok(self.remove(&belongings, context));
        }
        let held: Vec<HeldSlice> = belongings.slices.iter().map(Owned::held).collect();
        let known = view.record::<Crash>(&crash(&self.consumer))?;
        let of_lease = known.as_ref().filter(|known| known.value.heartbeat == self.lease.version);
        let load = of_lease.map_or_else(|| Load::of(&held), |known| known.value.load());
        let (redeliveries, groups) = regroup(&held, load, self.bounds.crashes_max);
        let Some(group) = groups.first() else { return Ok(Step::Return(ReapResult::Nothing)) };
        let mut transaction = Transaction::new(context.version.clone());
        self.lease.guard(&mut transaction, context, self.bounds.lease_ms);
        let slices: Vec<(&Owned<'_>, Redelivery)> =
            group.iter().filter_map(|at| Some((belongings.slices.get(*at)?, *redeliveries.get(*at)?))).collect();
        let slices = first_bytes(slices);
        let is_last = slices.len() == belongings.slices.len();
        self.keep_load(&mut transaction, known.as_ref(), of_lease.is_none() && !is_last, load);
        for (slice, redelivery) in &slices {
            slice.redeliver(&mut transaction, *redelivery, context.now_ms);
        }
        for (slice, _) in &slices {
            acknowledge(&mut transaction, slice.entry);
        }
        let reaped = match slices.first() {
            Some((slice, Redelivery::Quarantine(_))) => ReapResult::Quarantined(slice.name.clone()),
            _ => ReapResult::Redelivered(slices.into_iter().map(|(slice, _)| slice.name.clone()).collect()),
        };
        Ok(Step::Commit(transaction, reaped))
    }
}

fn first_bytes<'a>(mut slices: Vec<(&'a Owned<'a>, Redelivery)>) -> Vec<(&'a Owned<'a>, Redelivery)> {
    let mut bytes = 0;
    let fits = slices.iter().take_while(|(slice, _)| {
        bytes += slice.entry.fields.iter().map(|(_, value)| value.len()).sum::<usize>();
        bytes <= BYTES_MAX
    });
    let count = fits.count().max(1);
    slices.truncate(count);
    slices
}

impl Crash {
    const fn load(&self) -> Load {
        Load { regular: self.regular, suspects: self.suspects }
    }
}

fn acknowledge(transaction: &mut Transaction, entry: &HeldEntry) {
    if !mutant!("reap_acknowledges_the_old_entry") {
        transaction.guard(Guard::Held(entry.queue.clone(), entry.entry.clone()));
    }
}

impl Reap<'_> {
    fn belongings(&self, view: &View) -> Result<HeldEntriesByKind<'_>, Undecided> {
        let mut belongings = HeldEntriesByKind { slices: Vec::new(), stale: Vec::new(), foreign: Vec::new() };
        for entry in &self.held {
            if entry.fields.is_empty() {
                belongings.stale.push(entry);
                continue;
            }
            let Some(name) = entry.name() else {
                belongings.foreign.push((entry, "it names no turn".to_owned()));
                continue;
            };
            match view.record::<Turn>(&name.record()) {
                Ok(Some(stored)) if stored.in_flight_entry() == Some(&entry.entry) => {
                    belongings.slices.push(Owned { entry, name, stored });
                }
                Ok(_) => belongings.stale.push(entry),
                // The turn's timer reports the unreadable record.
                Err(Undecided::Unreadable { why, .. }) => belongings.foreign.push((entry, why.to_string())),
                Err(missing) => return Err(missing),
            }
        }
        Ok(belongings)
    }

    fn remove(&self, belongings: &HeldEntriesByKind<'_>, context: &Context) -> Step<ReapResult> {
        let mut transaction = Transaction::new(context.version.clone());
        self.lease.guard(&mut transaction, context, self.bounds.lease_ms);
        for (entry, why) in belongings.foreign.iter().take(GROUP_MAX as usize) {
            dead_letter(&mut transaction, entry, RejectionCode::Unreadable, why, self.bounds);
        }
        let foreign = belongings.foreign.iter().take(GROUP_MAX as usize).map(|(entry, _)| *entry);
        for entry in foreign.chain(belongings.stale.iter().take(GROUP_MAX as usize).copied()) {
            acknowledge(&mut transaction, entry);
        }
        Step::Commit(transaction, ReapResult::Removed { dead: belongings.foreign.len().min(GROUP_MAX as usize) })
    }

    /// `write` is true if more transactions follow.
    fn keep_load(&self, transaction: &mut Transaction, known: Option<&Stored<Crash>>, write: bool, load: Load) {
        let key = crash(&self.consumer);
        transaction.guard_read(&key, known);
        if write {
            let heartbeat = self.lease.version.clone();
            let crash = Crash { heartbeat, regular: load.regular, suspects: load.suspects };
            transaction.put_for(&key, &crash, self.bounds.retain_ms);
        }
    }
}

impl Owned<'_> {
    fn held(&self) -> HeldSlice {
        let turn = &self.stored.value;
        let priority = match turn.destination {
            Destination::Workers(priority) => priority,
            Destination::External { .. } => tickfleet_model::Priority::default(),
        };
        HeldSlice {
            priority,
            suspect: turn.suspect,
            started: matches!(turn.state, State::Running { .. }),
            exempted: turn.may_have_run,
        }
    }

    fn redeliver(&self, transaction: &mut Transaction, redelivery: Redelivery, now_ms: i64) {
        let mut turn = self.stored.value.clone();
        if !mutant!("reap_guards_the_version") {
            transaction.guard(Guard::Version(self.name.record(), self.stored.version.clone()));
        }
        turn.note_debited(self.entry.text(fields::DEBITED));
        let in_flight = turn.state.in_flight_upto().unwrap_or_default().saturating_sub(turn.position);
        let calls = last_calls(&self.entry.fields, in_flight);
        let crashed = |turn: &mut Turn, suspect: Suspect| {
            turn.crashes += 1;
            turn.suspect = Some(suspect);
        };
        match redelivery {
            Redelivery::Unchanged => {}
            Redelivery::Exempted => turn.may_have_run = true,
            Redelivery::Suspect(suspect) => crashed(&mut turn, suspect),
            Redelivery::Quarantine(suspect) => {
                crashed(&mut turn, suspect);
                let crashes = turn.crashes;
                begin_ending(transaction, &self.name, turn, EndReason::Quarantined { crashes }, &calls, now_ms, now_ms);
                return;
            }
        }
        dispatch(transaction, &self.name, &mut turn, &calls);
    }
}

/// The entry's content may be secret, so the dead letter contains only the reason.
pub fn dead_letter(
    transaction: &mut Transaction,
    entry: &HeldEntry,
    reason: RejectionCode,
    why: &str,
    bounds: &Bounds,
) {
    let HeldEntry { queue, entry: id, .. } = entry;
    let name = entry.name();
    let raw = why.chars().take(500).collect::<String>().into();
    let tenant = name.as_ref().map(|name| &name.tenant);
    DeadLetter { from: queue.as_str(), entry: id.as_str(), reason, raw, tenant }.add_to(transaction, bounds);
}

impl Turn {
    pub fn note_debited(&mut self, debited: Option<&str>) {
        let admission = self.notes.iter_mut().rev().find_map(|note| match note {
            Note::Admitted { limits, debited, .. } => Some((limits.len(), debited)),
            _ => None,
        });
        if let (Some((limits, known)), Some(debited)) = (admission, debited)
            && known.is_empty()
        {
            *known = Debited::parse_all(debited);
            // Keep only the limits. After them, the list has other bounds, such as the bound on unfinished turns.
            known.truncate(limits);
        }
    }
}

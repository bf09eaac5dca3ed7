//! The referee's world: what Redis should hold, as plain data, moved by the pure model alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tickfleet_store::Queue;
use tickfleet_tests::referee::limits::Counter;
use tickfleet_tests::referee::{
    AgentBudgets, Answer, Budget, Effects, Event, Fence, LaneMove, Lease, State, TaskBudget, next,
};

use crate::interleavings::worlds::spec::{ENDING_LEASE_MS, Spec, TENANT_READY_MAX};

/// `<tenant>:<turn>`, `<tenant>:<agent>`, `<tenant>:<inbox>`.
pub type Name = String;

/// A turn (or task) that was admitted.
#[derive(Debug, Clone)]
pub struct Turn {
    pub spec: usize,
    pub state: State<String>,
    pub lane: Name,
    pub seq: Option<u64>,
    pub timer_ms: Option<i64>,
    pub holder: Option<String>,
    /// Orders entries as their ids do.
    pub dispatched: u64,
    pub task: Option<TaskBudget>,
    pub ended_ms: i64,
    /// The lane of a limit's counter that it waits on.
    pub waits: Option<Name>,
    /// The lane of a counter that it goes to when its slice is back.
    pub back: Option<Name>,
}

/// An inbound entry that nobody has decided about. The stream holds these and no others.
#[derive(Debug, Clone)]
pub struct Inbound {
    /// Orders entries as their ids do.
    pub order: u64,
    /// Its id; none where a script wrote it anew and nobody has read it.
    pub id: Option<String>,
    pub origin: String,
    pub spec: usize,
    pub crashes: u32,
    /// Whether it came through `submit` with an id.
    pub remembered: bool,
    pub holder: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tenant {
    pub unfinished: i64,
    pub out: i64,
    pub day: Budget,
}

/// Everything.
#[derive(Debug, Clone, Default)]
pub struct World {
    pub specs: Vec<Spec>,
    pub offset_ms: i64,
    pub last_ms: i64,
    pub epoch_ms: i64,
    pub generation: u64,
    /// The generation of the tenants that were set at run time.
    pub tenants_generation: u64,
    pub seq: u64,
    pub entries: u64,
    pub agents: BTreeMap<Name, AgentBudgets>,
    pub tenants: BTreeMap<String, Tenant>,
    /// Of limits, `<limit>@<counter>`.
    pub counters: BTreeMap<Name, Counter>,
    /// The places that a turn's calls hold: how many of each counter.
    pub holds: BTreeMap<Name, BTreeMap<Name, u64>>,
    /// The counter of which a turn's calls took a place first, when they took some last.
    pub first_places: BTreeMap<Name, Name>,
    pub lanes: BTreeMap<Name, BTreeMap<u64, Name>>,
    pub lane_timers: BTreeMap<Name, i64>,
    pub turns: BTreeMap<Name, Turn>,
    pub ids: BTreeMap<Name, (char, String)>,
    /// Ids that go in a while, unless their turns are admitted meanwhile.
    pub fading: BTreeSet<Name>,
    /// What was cancelled before it came.
    pub early: BTreeSet<Name>,
    /// Until when such cancels count, ms.
    pub early_ms: i64,
    pub inbound: VecDeque<Inbound>,
    /// The last inbound entry that was read by anybody.
    pub delivered: u64,
    /// Real entry ids of fences, as far as somebody has seen them.
    pub fences: BTreeMap<(Name, Fence), String>,
    pub beats: BTreeMap<String, i64>,
    pub suspects: BTreeMap<String, String>,
    pub reap_seen_ms: Option<i64>,
    pub reap_hold_ms: i64,
    pub inboxes: BTreeMap<Name, Vec<String>>,
    /// Inboxes that count as their tenant's, from the first turn on that names them: when each was used last, ms.
    pub known_inboxes: BTreeMap<Name, i64>,
    pub dead: usize,
    /// Calls that were begun and executed although they must not be twice: how often.
    pub executed: BTreeMap<(Name, usize), u32>,
    /// Names of turns that were ever admitted, with the results they ended with and where the reply went.
    pub ended: Vec<(Name, usize, Vec<String>)>,
}

impl World {
    /// Shard time as `clock` in the scripts reckons it, without moving it.
    pub fn now_ms(&self, raw_ms: i64) -> i64 {
        (raw_ms + self.offset_ms).max(self.last_ms)
    }

    /// Rule 2, the part that every script begins with.
    pub fn clock(&mut self, raw_ms: i64) -> i64 {
        let now_ms = raw_ms + self.offset_ms;
        if now_ms < self.last_ms {
            self.offset_ms += self.last_ms - now_ms;
        } else {
            self.last_ms = now_ms;
        }
        self.last_ms
    }

    pub fn tenant(&mut self, name: &str) -> &mut Tenant {
        self.tenants.entry(tenant_of(name).to_owned()).or_default()
    }

    pub fn has_room(&mut self, name: &str) -> bool {
        self.tenant(name).out < TENANT_READY_MAX
    }

    pub fn is_waiting(&self, lane: &str) -> bool {
        self.lanes.get(lane).is_some_and(|lane| !lane.is_empty())
    }

    /// A record that has not ended.
    pub fn live(&self, name: &str) -> Option<&Turn> {
        self.turns.get(name).filter(|t| t.state.live().is_some())
    }

    /// The budget of a task that has not ended.
    pub fn task(&self, tenant: &str, task: &str) -> Option<TaskBudget> {
        self.live(&format!("{tenant}:{task}"))?.task
    }

    /// Moves one turn through the referee, and everything around it by the effects.
    ///
    /// # Errors
    /// The event cannot happen in the turn's state: Redis did what the referee forbids.
    pub fn apply(&mut self, name: &str, event: Event<String>, now_ms: i64) -> Result<Answer, String> {
        let Some(turn) = self.turns.get_mut(name) else { return Ok(Answer::Stale) };
        let before = turn.state.clone();
        let lease = Lease { ms: ENDING_LEASE_MS, epoch_ms: self.epoch_ms };
        let (state, effects) = next(before.clone(), event.clone(), now_ms, lease)
            .map_err(|illegal| format!("{name}: {illegal:?}: {event:?} in {before:?}"))?;
        turn.state = state;
        self.after(name, &before, effects, now_ms);
        Ok(effects.answer)
    }

    fn after(&mut self, name: &str, before: &State<String>, effects: Effects, now_ms: i64) {
        self.tenant(name).out += effects.out;
        self.entries += 1;
        let entries = self.entries;
        let Some(turn) = self.turns.get_mut(name) else { return };
        if turn.state.fence() != before.fence() {
            turn.dispatched = entries;
        }
        if !matches!(&turn.state, State::Out(_, slice) if slice.held) {
            turn.holder = None;
        }
        if effects.timer_ms.is_some() {
            turn.timer_ms = effects.timer_ms;
        }
        let is_free = before.keeps_places() && !turn.state.keeps_places();
        let lane = turn.lane.clone();
        let waits = if effects.lane.is_some() { turn.waits.take() } else { None };
        match (effects.lane, turn.seq) {
            (Some(LaneMove::Join), Some(seq)) if turn.back.is_some() => {
                let back = turn.back.clone().unwrap_or_default();
                turn.waits = Some(back.clone());
                self.lanes.entry(back.clone()).or_default().insert(seq, name.to_owned());
                let timer = self.lane_timers.entry(back).or_insert(now_ms);
                *timer = now_ms.min(*timer);
            }
            (Some(LaneMove::Join), Some(seq)) => {
                self.lanes.entry(lane.clone()).or_default().insert(seq, name.to_owned());
                let due_ms = self.agents.get(&lane).map_or(0, |a| a.tick.end_ms).max(now_ms);
                let timer = self.lane_timers.entry(lane).or_insert(due_ms);
                *timer = due_ms.min(*timer);
            }
            (Some(LaneMove::Leave), Some(seq)) => {
                if let Some(waiting) = self.lanes.get_mut(&waits.unwrap_or(lane)) {
                    waiting.remove(&seq);
                }
            }
            _ => {}
        }
        for counter in is_free.then(|| self.holds.remove(name)).flatten().unwrap_or_default().into_keys() {
            if let Some(timer_ms) = self.lane_timers.get_mut(&counter) {
                *timer_ms = now_ms.min(*timer_ms);
            }
        }
        if before.live().is_some() && self.turns[name].state.live().is_none() {
            self.end(name, now_ms);
        }
    }

    fn end(&mut self, name: &str, now_ms: i64) {
        let Some(turn) = self.turns.get_mut(name) else { return };
        (turn.timer_ms, turn.ended_ms) = (None, now_ms);
        let State::Ended { results, .. } = turn.state.clone() else { return };
        let (spec, budget) = (turn.spec, turn.task);
        self.tenant(name).unfinished -= 1;
        // What a task leaves is its parent's again.
        if let (Some(budget), Some(parent)) = (budget, self.specs[spec].task.clone()) {
            let parent = format!("{}:{parent}", tenant_of(name));
            let above = self.turns.get_mut(&parent).filter(|above| above.state.live().is_some());
            if let Some(above) = above.and_then(|above| above.task.as_mut()) {
                above.used = above.used.saturating_sub(budget.left());
            }
        }
        if self.specs[spec].given.is_some() {
            self.ids.insert(name.to_owned(), ('e', self.specs[spec].digest.clone()));
        }
        if let Some(inbox) = self.specs[spec].inbox {
            let inbox = format!("{}:{inbox}", tenant_of(name));
            self.known_inboxes.insert(inbox.clone(), now_ms);
            self.inboxes.entry(inbox).or_default().push(name.to_owned());
        }
        self.ended.push((name.to_owned(), spec, results));
    }

    /// Whether a slice is out on this queue: suspects have queues of their own (rule 23).
    pub fn is_on(&self, turn: &Turn, queue: &Queue) -> bool {
        let State::Out(_, slice) = &turn.state else { return false };
        let priority = self.specs[turn.spec].priority;
        *queue == if slice.crashes > 0 { Queue::Suspect(priority) } else { Queue::Ready(priority) }
    }

    /// Turns whose slice waits on this queue, in the order of their entries.
    pub fn waiting(&self, queue: &Queue) -> Vec<Name> {
        let here = |t: &Turn| queued(&t.state) && self.is_on(t, queue);
        let mut found: Vec<_> =
            self.turns.iter().filter(|(_, t)| here(t)).map(|(n, t)| (t.dispatched, n.clone())).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// What a consumer holds of this queue, in the order of the entries.
    pub fn held(&self, queue: &Queue, consumer: &str) -> Vec<Name> {
        let here = |t: &Turn| t.holder.as_deref() == Some(consumer) && self.is_on(t, queue);
        let mut found: Vec<_> =
            self.turns.iter().filter(|(_, t)| here(t)).map(|(n, t)| (t.dispatched, n.clone())).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, name)| name).collect()
    }

    /// A new inbound entry.
    pub fn push_inbound(&mut self, mut entry: Inbound) {
        self.entries += 1;
        entry.order = self.entries;
        self.inbound.push_back(entry);
    }

    /// Puts a turn that waits on another lane, with its place: that of its agent where none is named.
    pub fn hop(&mut self, name: &str, waits: Option<&Name>, until_ms: i64) {
        let Some(turn) = self.turns.get_mut(name) else { return };
        let Some(seq) = turn.seq else { return };
        let from = turn.waits.take().unwrap_or_else(|| turn.lane.clone());
        let to = waits.unwrap_or(&turn.lane).clone();
        turn.waits = waits.cloned();
        turn.back = waits.cloned();
        if let Some(lane) = self.lanes.get_mut(&from) {
            lane.remove(&seq);
        }
        let timer = self.lane_timers.entry(to.clone()).or_insert(until_ms);
        *timer = until_ms.min(*timer);
        self.lanes.entry(to).or_default().insert(seq, name.to_owned());
    }

    /// How many places of a counter are taken.
    pub fn held_of(&self, counter: &str) -> u64 {
        self.holds.values().filter_map(|held| held.get(counter)).sum()
    }

    /// Lanes of counters on which somebody waits, and whose place is the first.
    pub fn waited_for(&self) -> BTreeMap<Name, u64> {
        let of_counters = self.lanes.iter().filter(|(name, _)| name.contains('@'));
        of_counters.filter_map(|(name, lane)| Some((name.clone(), *lane.first_key_value()?.0))).collect()
    }

    /// The earliest timer, ms.
    pub fn next_timer_ms(&self) -> Option<i64> {
        let turns = self.turns.values().filter_map(|t| t.timer_ms);
        turns.chain(self.lane_timers.values().copied()).min()
    }
}

pub fn tenant_of(name: &str) -> &str {
    name.split(':').next().unwrap_or_default()
}

/// Whether a slice is on its queue, read by nobody.
fn queued(state: &State<String>) -> bool {
    matches!(state, State::Out(_, slice) if !slice.held && slice.lost.is_none())
}

//! The calls of one turn, and what was decided about when they go out, in its order.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::outcome::Premises;
use tickfleet_model::{AdmissionMore, AdmissionNote, PlacesNote, WaitCause, WaitNote};

use super::recorded::{Arguments, Recorded};

/// What was decided at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// The next calls wait: for what, and until when at least, ms (0: nobody knew).
    Wait(String, i64),
    /// So many calls go out, and their admission.
    Go(usize, Note),
    /// So many calls are refused; by which limit, none where that was no matter of policy.
    Refuse(usize, Option<String>),
}

/// What the shard wrote of an admission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Calls that were let through.
    pub calls: u32,
    /// Calls of the agent's tick with these, how many it may have, and its end, ms.
    pub tick: (u32, u32, i64),
    /// Calls of the agent's day with these, and how many it may have.
    pub day: (u32, u32),
    /// Calls of the turn's task with these, and how many it was granted; none where there is no task, or nothing is said.
    pub task: Option<(u32, u32)>,
}

impl Note {
    /// Whether tick, day or task had nothing left for more calls of the turn.
    pub(super) fn is_full(&self) -> bool {
        let is_used_up = |(used, most): (u32, u32)| used >= most;
        is_used_up((self.tick.0, self.tick.1)) || is_used_up(self.day) || self.task.is_some_and(is_used_up)
    }
}

/// A moment at which something was decided about a turn's next calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// When, ms of shard time.
    pub at_ms: i64,
    /// The first of the calls.
    pub first: usize,
    /// What.
    pub what: What,
    /// The slots that the workers had, where that decided.
    pub slots: Option<u64>,
    /// When these calls gave places back and took them again, where they waited for somebody else.
    pub places: Vec<PlacesNote>,
}

/// One call of a turn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TurnCall {
    /// The tool as the model named it.
    pub tool: String,
    /// Its arguments; none where not all of them are known.
    pub arguments: Option<String>,
    /// When its result was written, ms.
    pub written_ms: i64,
    /// When its slice gave its places back, ms of shard time, where the log says so.
    pub over_ms: Option<i64>,
}

/// A turn, as far as the log has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Turn {
    /// The shard.
    pub shard: u32,
    /// The tenant.
    pub tenant: String,
    /// The agent.
    pub agent: String,
    /// Its id.
    pub id: String,
    /// Its calls, from the first that the log has.
    pub calls: Vec<TurnCall>,
    /// The position of the first of these.
    pub first: usize,
    /// True if the log has all that there were from there on.
    pub is_whole: bool,
    /// What was decided, in order.
    pub decisions: Vec<Decision>,
    /// Calls of which it is not known how they were admitted.
    pub unknown: u64,
    /// The task that it was made for, its user and session, where entries say so; none where they say nothing of it.
    pub context: Option<TurnContext>,
}

/// What counters may be reckoned by.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TurnContext {
    /// The task.
    pub task: Option<String>,
    /// The user.
    pub user: Option<Box<RawValue>>,
    /// The session.
    pub session: Option<Box<RawValue>>,
    /// Whether consecutive reads may run at the same time.
    pub parallel_reads: bool,
}

/// What a turn waits for, as differences name it.
fn cause(cause: &WaitCause) -> String {
    match cause {
        WaitCause::Limit(name) => super::limit(name),
        WaitCause::Tick => super::TICK.into(),
        WaitCause::Day => super::DAY.into(),
        WaitCause::Earlier => EARLIER.into(),
        WaitCause::Room => ROOM.into(),
    }
}

/// Turns of the agent that came before.
pub const EARLIER: &str = "earlier turns of its agent";
/// The tenant has as much out as it may.
pub const ROOM: &str = "queues.tenant_ready_max";

impl Turn {
    /// Makes a turn of its calls, in their order; none of a task, and where there is none.
    #[must_use]
    pub fn of(calls: &[Recorded]) -> Option<Self> {
        let first = calls.first().filter(|call| !call.is_task)?;
        // What two parts of an export have is one call; behind a gap, nothing is said.
        let mut seen: Vec<&Recorded> = Vec::with_capacity(calls.len());
        for call in calls {
            match call.position.checked_sub(first.position + seen.len()) {
                Some(0) => seen.push(call),
                Some(_) => break,
                None => {}
            }
        }
        let premises = first.premises.as_ref();
        let all = premises.map_or(0, |premises| premises.calls);
        let mut turn = Self {
            shard: first.shard,
            tenant: first.tenant.clone(),
            agent: first.agent.clone(),
            id: first.turn.clone(),
            first: first.position,
            is_whole: all > 0 && first.position + seen.len() == all,
            calls: seen.iter().map(|call| turn_call(call)).collect(),
            decisions: Vec::new(),
            unknown: 0,
            context: premises.map(context),
        };
        turn.decide(&seen);
        Some(turn)
    }

    /// When the first of it was decided, ms; none where nothing is known.
    #[must_use]
    pub fn at_ms(&self) -> Option<i64> {
        self.decisions.first().map(|decision| decision.at_ms)
    }

    /// Reads what was decided from its calls.
    fn decide(&mut self, calls: &[&Recorded]) {
        let mut at = 0;
        while let Some(call) = calls.get(at) {
            let alike = |other: &&&Recorded| {
                let is_same_moment = other.refused.is_none() || other.over_ms == call.over_ms;
                is_one_admission(&other.admitted, &call.admitted) && other.refused == call.refused && is_same_moment
            };
            let count = calls[at..].iter().take_while(alike).count();
            // Those that end later know more of what became of their places.
            let places = calls[at + count - 1].places.clone();
            if let Some(note) = call.admission() {
                self.waits(at, &call.waits());
                let AdmissionNote { at_ms, calls, tick_used, tick_cap, tick_ends_ms, day_used, day_cap } = note;
                let AdmissionMore { task, slots } = AdmissionMore::read(&call.admitted);
                let note = Note { calls, tick: (tick_used, tick_cap, tick_ends_ms), day: (day_used, day_cap), task };
                self.decisions.push(Decision { at_ms, first: at, what: What::Go(count, note), slots, places });
            } else if let Some(refused) = &call.refused {
                // Where the shard says nothing: the entry is written when somebody has come to tell it, never in a later window.
                let ended_ms = call.ended_ms.min(call.written_ms);
                let told_ms = if refused.resets_ms > 0 { ended_ms.min(refused.resets_ms - 1) } else { ended_ms };
                let at_ms = call.over_ms.unwrap_or(told_ms);
                let what = What::Refuse(count, refused.by.clone());
                self.decisions.push(Decision { at_ms, first: at, what, slots: None, places: Vec::new() });
            } else if call.fate != super::recorded::Fate::NotReached {
                self.unknown += count as u64;
            }
            at += count;
        }
        // By one clock they are in order; what a step of it has put elsewhere stays behind what came before.
        let mut last_ms = i64::MIN;
        for decision in &mut self.decisions {
            decision.at_ms = decision.at_ms.max(last_ms);
            last_ms = decision.at_ms;
        }
    }

    fn waits(&mut self, first: usize, waits: &[WaitNote]) {
        for wait in waits {
            let what = What::Wait(cause(&wait.cause), wait.until_ms);
            // The turn may have waited before a limit refused its first calls; of these, entries say nothing of waits.
            let came_later = |other: &&Decision| matches!(other.what, What::Refuse(..)) && other.at_ms > wait.at_ms;
            let later = self.decisions.iter().rev().take_while(came_later).count();
            let at = self.decisions.len() - later;
            let first = self.decisions.get(at).map_or(first, |refused| refused.first);
            let waited = Decision { at_ms: wait.at_ms, first, what, slots: wait.slots, places: Vec::new() };
            self.decisions.insert(at, waited);
        }
    }
}

fn turn_call(call: &Recorded) -> TurnCall {
    let arguments = match &call.arguments {
        Arguments::Whole(text) => Some(text.clone()),
        Arguments::Hidden(_) | Arguments::Cut(_) => None,
    };
    TurnCall { tool: call.tool.clone(), arguments, written_ms: call.written_ms, over_ms: call.over_ms }
}

fn context(premises: &Premises) -> TurnContext {
    TurnContext {
        task: premises.task.clone(),
        user: premises.user_context.clone(),
        session: premises.session_data.clone(),
        parallel_reads: premises.parallel_reads,
    }
}

/// Whether two entries say the same of their admission. What it debited of limits is no part of it: an older build that
/// settles some of the calls does not say it.
fn is_one_admission(one: &str, other: &str) -> bool {
    let is_of_both = |note: &&str| !note.starts_with('D');
    one == other || one.split(';').filter(is_of_both).eq(other.split(';').filter(is_of_both))
}

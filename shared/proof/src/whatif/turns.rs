//! Builds the recorded turns: the calls of one turn, and the decisions about their dispatch, in order.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::outcome::PolicyInputs;
use tickfleet_model::{AdmissionNote, PermitsNote, WaitCause, WaitNote};

use super::recorded::{Arguments, RecordedCall};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DispatchDecision {
    /// The cause, and the earliest end of the wait (ms; 0 if unknown).
    Wait(String, i64),
    /// The number of dispatched calls.
    Go(usize, DispatchNote),
    /// The number of rejected calls, and the name of the limit or cap. `None` if the policy was not the reason.
    Refuse(usize, Option<String>),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DispatchNote {
    pub calls: u32,
    /// The agent's used calls (including the admitted calls), the cap, and the end of the tick (ms).
    pub tick: (u32, u32, i64),
    /// The agent's used calls (including the admitted calls), and the cap.
    pub day: (u32, u32),
    /// The used calls and the budget. `None` without a task, or if the note does not state these numbers.
    pub task: Option<(u32, u32)>,
}

impl DispatchNote {
    pub(super) fn is_full(&self) -> bool {
        let is_used_up = |(used, most): (u32, u32)| used >= most;
        is_used_up((self.tick.0, self.tick.1)) || is_used_up(self.day) || self.task.is_some_and(is_used_up)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// By the shard's clock.
    pub at_ms: i64,
    /// Index in the turn of the first call to which the decision applies.
    pub first: usize,
    pub what: DispatchDecision,
    /// When the slice returned its permits and acquired them again.
    pub places: Vec<PermitsNote>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TurnCall {
    /// As the model wrote it.
    pub tool: String,
    /// `None` if the log does not have all arguments.
    pub arguments: Option<String>,
    pub written_ms: i64,
    /// When the call's slice returned its permits (shard time). `None` if the log does not have this time.
    pub over_ms: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Turn {
    pub shard: u32,
    pub tenant: String,
    pub agent: String,
    pub id: String,
    pub calls: Vec<TurnCall>,
    /// The position in the turn of the first call in `calls`.
    pub first: usize,
    /// True if the log has all calls of the turn from position `first` on.
    pub is_whole: bool,
    pub decisions: Vec<Decision>,
    /// Number of calls with an unknown admission.
    pub unknown: u64,
    pub context: Option<TurnContext>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TurnContext {
    pub task: Option<String>,
    pub user: Option<Box<RawValue>>,
    pub session: Option<Box<RawValue>>,
    pub parallel_reads: bool,
}

fn cause(cause: &WaitCause) -> String {
    match cause {
        WaitCause::Limit(name) => super::limit(name),
        WaitCause::Tick => super::TICK.into(),
        WaitCause::Day => super::DAY.into(),
        WaitCause::Room => ROOM.into(),
    }
}

pub const ROOM: &str = "queues.tenant_ready_max";

impl Turn {
    #[must_use]
    pub fn of(calls: &[RecordedCall]) -> Option<Self> {
        let first = calls.first().filter(|call| !call.is_task)?;
        // If two parts of an export contain the same call, the call counts once. Calls after a gap in the positions are
        // ignored.
        let mut seen: Vec<&RecordedCall> = Vec::with_capacity(calls.len());
        for call in calls {
            match call.position.checked_sub(first.position + seen.len()) {
                Some(0) => seen.push(call),
                Some(_) => break,
                None => {}
            }
        }
        let policy_inputs = first.policy_inputs.as_ref();
        let all = policy_inputs.map_or(0, |policy_inputs| policy_inputs.calls);
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
            context: policy_inputs.map(context),
        };
        turn.decide(&seen);
        Some(turn)
    }

    #[must_use]
    pub fn at_ms(&self) -> Option<i64> {
        self.decisions.first().map(|decision| decision.at_ms)
    }

    fn decide(&mut self, calls: &[&RecordedCall]) {
        let mut at = 0;
        while let Some(call) = calls.get(at) {
            let alike = |other: &&&RecordedCall| {
                let is_same_moment = other.refused.is_none() || other.over_ms == call.over_ms;
                is_one_admission(&other.admitted, &call.admitted) && other.refused == call.refused && is_same_moment
            };
            let count = calls[at..].iter().take_while(alike).count();
            // Use the notes of the call that ended last: it has the most notes about permits.
            let places = calls[at + count - 1].places.clone();
            if let Some(note) = call.admission() {
                self.waits(at, &call.waits());
                let AdmissionNote { at_ms, calls, tick_used, tick_cap, tick_ends_ms, day_used, day_cap } = note;
                let task = AdmissionNote::task(&call.admitted);
                let note =
                    DispatchNote { calls, tick: (tick_used, tick_cap, tick_ends_ms), day: (day_used, day_cap), task };
                self.decisions.push(Decision { at_ms, first: at, what: DispatchDecision::Go(count, note), places });
            } else if let Some(refused) = &call.refused {
                // Without the shard's time, estimate when the decision was made. The entry is written later, but the
                // decision was made before the window ended.
                let ended_ms = call.ended_ms.min(call.written_ms);
                let estimated_ms = if refused.resets_ms > 0 { ended_ms.min(refused.resets_ms - 1) } else { ended_ms };
                let at_ms = call.over_ms.unwrap_or(estimated_ms);
                let what = DispatchDecision::Refuse(count, refused.by.clone());
                self.decisions.push(Decision { at_ms, first: at, what, places: Vec::new() });
            } else if call.decision != super::recorded::RecordedDecision::NotReached {
                self.unknown += count as u64;
            }
            at += count;
        }
        // The clock can be set back, but the decisions must stay in order of time.
        let mut last_ms = i64::MIN;
        for decision in &mut self.decisions {
            decision.at_ms = decision.at_ms.max(last_ms);
            last_ms = decision.at_ms;
        }
    }

    fn waits(&mut self, first: usize, waits: &[WaitNote]) {
        for wait in waits {
            let what = DispatchDecision::Wait(cause(&wait.cause), wait.until_ms);
            // Entries of rejected calls have no notes about waits, so a wait before the rejection is inserted here.
            let came_later =
                |other: &&Decision| matches!(other.what, DispatchDecision::Refuse(..)) && other.at_ms > wait.at_ms;
            let later = self.decisions.iter().rev().take_while(came_later).count();
            let at = self.decisions.len() - later;
            let first = self.decisions.get(at).map_or(first, |refused| refused.first);
            let waited = Decision { at_ms: wait.at_ms, first, what, places: Vec::new() };
            self.decisions.insert(at, waited);
        }
    }
}

fn turn_call(call: &RecordedCall) -> TurnCall {
    let arguments = match &call.arguments {
        Arguments::Whole(text) => Some(text.clone()),
        Arguments::Hidden(_) | Arguments::Cut(_) => None,
    };
    TurnCall { tool: call.tool.clone(), arguments, written_ms: call.written_ms, over_ms: call.over_ms }
}

fn context(policy_inputs: &PolicyInputs) -> TurnContext {
    TurnContext {
        task: policy_inputs.task.clone(),
        user: policy_inputs.user_context.clone(),
        session: policy_inputs.session_data.clone(),
        parallel_reads: policy_inputs.parallel_reads,
    }
}

/// Ignores debits of limits, because entries of older versions do not state these debits.
fn is_one_admission(one: &str, other: &str) -> bool {
    let is_of_both = |note: &&str| !note.starts_with('D');
    one == other || one.split(';').filter(is_of_both).eq(other.split(';').filter(is_of_both))
}

//! One try of a call: what is known before it, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_core::call::CallName;
use tickfleet_core::call::streak::{Repeat, StreakBounds, StreakName};
use tickfleet_core::turn::end::RenderedCall;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{HandBackReason, Head, Slice, Turn, WaitReason};
use tickfleet_core::{Guard, Version, View};
use tickfleet_engine::report::{self, CallHistory};
use tickfleet_model::policy::ShadowDenial;
use tickfleet_model::{Call, CallError, CallId, CallResult, Outcome};
use tickfleet_ops::traces;
use tracing::Span;

use crate::batch::WaitFor;
use crate::calls::ends::Ends;
use crate::calls::{messages, questions};
use crate::config::WorkerConfig;
use crate::held::Hold;
use crate::tools::Awaited;

/// The disposition of one try of a call.
pub(crate) enum Disposition {
    /// It has its result; with the rules in shadow that would have stopped it.
    Ended(Box<CallResult>, Vec<ShadowDenial>),
    /// Another attempt ran it, and reported this result.
    Kept(Box<RenderedCall>),
    /// It is tried again after this wait, for this try failed, for this reason.
    Again(Duration, String),
    /// It has begun, and whether it took effect is to be found out: after this wait another tool is asked (again), for this
    /// reason. Then comes the number of the try, as the record keeps it, and the result if nothing more can be found out.
    Reconciles(Duration, String, u32, Box<CallResult>),
    /// It has begun work that goes on elsewhere: it waits for this event, for this long at most.
    Waits(Awaited, Duration),
    /// It is not sent, for its tool rests; it uses up no try.
    Rests(Box<RestingCall>),
    /// Nothing of it has begun: it waits for other calls or for people.
    WaitsFor(Box<Waiting>),
    /// The worker must stop, or its lease is over: another worker may run it.
    HandBack(HandBackReason),
    /// Another worker holds the turn, or may hold it.
    Lost,
}

/// A call that waits before it begins.
pub(crate) struct Waiting {
    /// The event.
    pub(crate) reason: WaitReason,
    /// The longest wait.
    pub(crate) at_most: Duration,
    /// What the park writes.
    pub(crate) wait: WaitFor,
    /// Conditions of the wait.
    pub(crate) waits_while: Vec<Guard>,
}

/// A call whose tool rests.
pub(crate) struct RestingCall {
    /// When it is looked at again.
    pub(crate) delay: Duration,
    /// The time for which it may rest in all; `None`: until its deadline, for an operator has paused the tool.
    pub(crate) at_most: Option<Duration>,
    /// Why the tool rests.
    pub(crate) why: String,
    /// Its result, once it has rested for so long.
    pub(crate) over: Box<CallResult>,
}

/// A call on its way to its result.
pub(crate) struct Trying<'a> {
    pub(crate) slice: &'a Arc<Slice>,
    pub(crate) call: &'a Call,
    pub(crate) id: CallId,
    /// The number of this try, from 1.
    pub(crate) attempt: u32,
    /// True if it has begun work that went on elsewhere.
    pub(crate) waited: bool,
    pub(crate) context: Arc<tickfleet_model::Context>,
    pub(crate) hold: &'a Hold,
    /// The policy and tools that it is judged and carried out by.
    pub(crate) config: &'a WorkerConfig,
    /// Why the turn was canceled, if that is known.
    pub(crate) canceled: Option<&'a str>,
    /// Calls of this slice that have results, and do not count for their streaks yet.
    pub(crate) unsettled: &'a [(StreakName, StreakBounds, Repeat)],
    /// Records that the slice's earlier calls have read.
    pub(crate) view: &'a View,
    /// What has come of it so far.
    pub(crate) progress: Mutex<Progress>,
}

/// What a try has written and learned.
#[derive(Default)]
pub(crate) struct Progress {
    /// The turn's record as the try has written it, with its version.
    pub(crate) written: Option<Box<(Version, Turn)>>,
    /// The ID of this attempt, once it has begun.
    pub(crate) begun_by: Option<String>,
    /// The records that it has read and written.
    pub(crate) view: View,
    /// The effects of its end.
    pub(crate) ends: Ends,
    /// Why the turn was canceled, if the store said so.
    pub(crate) canceled: Option<String>,
}

/// A call that does not begin now.
pub(super) struct Instead {
    pub(super) disposition: Disposition,
    /// True if its end is a call of its agent's streak.
    pub(super) counts: bool,
}

impl Instead {
    pub(super) const fn of(disposition: Disposition) -> Self {
        Self { disposition, counts: false }
    }
}

impl Disposition {
    /// The disposition as a span names it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Ended(result, _) => result.outcome.as_str(),
            Self::Kept(_) => "kept",
            Self::Again(..) => "again",
            Self::Reconciles(..) => "reconciles",
            Self::Waits(..) | Self::WaitsFor(_) => "waits",
            Self::Rests(_) => "rests",
            Self::HandBack(_) => "hand_back",
            Self::Lost => "lost",
        }
    }

    /// A call of which nothing was sent, and that this worker does not carry out.
    pub(crate) const fn unsent() -> Self {
        Self::HandBack(HandBackReason::Unsent { nonce: None })
    }

    /// Whether people have not agreed to it.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Ended(result, _) if result.outcome == Outcome::ApprovalRefused)
    }
}

/// True if somebody who is gone may have held the slice's calls: then nobody knows whether they ran.
pub(crate) const fn may_have_been_held(slice: &Slice) -> bool {
    slice.turn.crashes > 0 || slice.turn.may_have_run
}

impl Trying<'_> {
    /// The immutable part of the turn.
    pub(crate) fn head(&self) -> &Head {
        &self.slice.turn.head
    }

    /// True for the call of a task.
    pub(crate) fn is_task(&self) -> bool {
        self.slice.turn.is_task()
    }

    /// True if this is the call's first try, and nothing of it has begun.
    pub(crate) const fn is_first(&self) -> bool {
        self.attempt == 1 && !self.waited
    }

    /// The call in records.
    pub(crate) fn name(&self) -> CallName {
        CallName::from(self.id.clone())
    }

    /// The name of its tool, however the model spells it.
    pub(crate) fn tool_name(&self) -> &str {
        self.config.registry.resolve(&self.call.tool).map_or(&self.call.tool, |tool| &tool.spec.name)
    }

    /// The span of this try.
    pub(crate) fn span(&self) -> Span {
        tracing::debug_span!(
            target: traces::TARGET, "call", call = %self.id, tool = self.call.tool, attempt = self.attempt,
            outcome = tracing::field::Empty,
        )
    }

    pub(super) fn result(&self, outcome: Outcome, error: CallError) -> CallResult {
        CallResult::refused(&self.id, self.call.provider_id.clone(), &self.call.tool, outcome, error)
    }

    pub(super) fn refused(&self, outcome: Outcome, error: CallError) -> Disposition {
        Disposition::Ended(Box::new(self.result(outcome, error)), Vec::new())
    }

    /// A call that this attempt has begun, and of which nothing was sent.
    pub(super) fn unsent(&self) -> Disposition {
        Disposition::HandBack(HandBackReason::Unsent { nonce: self.progress.lock().begun_by.clone() })
    }

    /// A call without lasting effect that was cancelled while it ran.
    pub(super) fn stopped(&self, why: Option<&str>) -> Disposition {
        let because = report::because(why);
        let message = format!("The turn was cancelled{because} while this call ran; its result was dropped.");
        self.refused(Outcome::Cancelled, messages::error(Outcome::Cancelled, message))
    }

    /// A call that ends without a result of its own, for one of the reasons that schedulers know too.
    pub(super) fn ended(&self, reason: &EndReason, past: &CallHistory<'_>) -> Box<CallResult> {
        let (outcome, error) = report::ended(reason, self.head().deadline_ms, past);
        Box::new(CallResult { attempts: past.tries, ..self.result(outcome, error) })
    }

    /// Tries that the call has behind it.
    pub(super) fn tries(&self) -> u32 {
        questions::own_try(self.attempt).saturating_sub(1)
    }
}

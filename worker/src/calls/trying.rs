//! One try of a call: what is known before it, and what becomes of it.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::report::{self, Past};
use tickfleet_model::policy::ShadowDenial;
use tickfleet_model::{Call, CallError, CallId, CallResult, Outcome, TurnId};
use tickfleet_ops::traces;
use tickfleet_store::{AskApproval, EndReason, SettledCall, SliceEntry};
use tracing::Span;

use crate::calls::{messages, questions};
use crate::config::WorkerConfig;
use crate::held::Hold;

/// The disposition of one try of a call.
pub(crate) enum Disposition {
    /// It has its result; with the rules in shadow that would have stopped it.
    Ended(Box<CallResult>, Vec<ShadowDenial>),
    /// It was carried out before, and this is its result.
    Kept(Box<SettledCall>),
    /// It is tried again after this wait, for this try failed, for this reason.
    Again(Duration, String),
    /// It has begun, and whether it took effect is to be found out: after this wait another tool is asked (again), for this
    /// reason. Then comes the number of the try, as the record keeps it, and what is told if nobody can wait any more.
    Reconciles(Duration, String, u32, Box<CallResult>),
    /// It has begun work that goes on elsewhere: it waits for the end of this turn or task, for this long at most.
    Waits(Option<TurnId>, Duration),
    /// It is not sent, for its tool rests; it uses up no try.
    Rests(Box<RestingCall>),
    /// Nothing of it has begun: an equal call of this turn is under way, and its outcome will be this one's. It looks
    /// again after this time.
    WaitsForEqual(TurnId, Duration),
    /// Nothing of it has begun: people are asked for their consent, and it waits for that.
    Asks(Box<AskApproval>),
    /// The worker must stop, or its lease is over; nothing took effect, so another may run it. True if a handler that
    /// may run twice was broken off.
    HandBack(bool),
    /// Somebody else holds the turn, or we can no longer be sure that nobody does.
    Lost,
}

/// A call whose tool rests.
pub(crate) struct RestingCall {
    /// When it is looked at again.
    pub(crate) delay: Duration,
    /// The time for which it may rest in all; none: until its deadline, for an operator has paused the tool.
    pub(crate) at_most: Option<Duration>,
    /// Why the tool rests.
    pub(crate) why: String,
    /// Its result, once it has rested for so long.
    pub(crate) over: Box<CallResult>,
}

/// Why a call does not run now.
pub(crate) enum Stopped {
    /// It ends, or goes on elsewhere.
    Ends(Disposition),
    /// Redis has just restarted: it is asked again.
    Held,
}

/// One call on its way.
pub(crate) struct Trying<'a> {
    pub(crate) slice: &'a SliceEntry,
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
}

impl Disposition {
    /// The disposition as a span names it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Ended(result, _) => result.outcome.as_str(),
            Self::Kept(_) => "kept",
            Self::Again(..) => "again",
            Self::Reconciles(..) => "reconciles",
            Self::Waits(..) | Self::WaitsForEqual(..) | Self::Asks(_) => "waits",
            Self::Rests(_) => "rests",
            Self::HandBack(_) => "hand_back",
            Self::Lost => "lost",
        }
    }

    /// Whether people have not agreed to it.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Ended(result, _) if result.outcome == Outcome::ApprovalRefused)
    }
}

impl Trying<'_> {
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

    /// A call without lasting effect that was cancelled while it ran.
    pub(super) fn stopped(&self, why: Option<&str>) -> Disposition {
        let because = report::because(why);
        let message = format!("The turn was cancelled{because} while this call ran; its result was dropped.");
        self.refused(Outcome::Cancelled, messages::error(Outcome::Cancelled, message))
    }

    /// A call that ends without a result of its own, for one of the reasons that schedulers know too.
    pub(super) fn ended(&self, reason: EndReason, past: &Past<'_>) -> Box<CallResult> {
        let (outcome, error) = report::ended(reason, self.slice.meta.deadline_ms, past);
        Box::new(CallResult { attempts: past.tries, ..self.result(outcome, error) })
    }

    /// Tries that the call has behind it.
    pub(super) fn tries(&self) -> u32 {
        questions::own_try(self.attempt).saturating_sub(1)
    }
}

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_core::call::CallName;
use tickfleet_core::call::streak::{Repeat, StreakBounds, StreakName};
use tickfleet_core::turn::end::RenderedCall;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{Head, RequeueReason, Slice, Turn, WaitReason};
use tickfleet_core::{Guard, Version, View};
use tickfleet_engine::report::{self, CallHistory};
use tickfleet_model::policy::ShadowDenial;
use tickfleet_model::{Call, CallError, CallId, CallResult, Outcome};
use tickfleet_ops::traces;
use tracing::Span;

use crate::batch::WaitFor;
use crate::calls::end_effects::EndEffects;
use crate::calls::{messages, reconcile_progress};
use crate::config::WorkerConfig;
use crate::held_slices::SliceLease;
use crate::tools::Awaited;

pub(crate) enum AttemptOutcome {
    /// The denials are those of rules in shadow mode.
    Ended(Box<CallResult>, Vec<ShadowDenial>),
    /// Another attempt ran the call and reported this result.
    Reported(Box<RenderedCall>),
    /// The wait before the retry, and the reason.
    Retry(Duration, String),
    /// It is unknown whether the call took effect. The fields: the wait until the next lookup, the reason, the encoded
    /// progress (`reconcile_progress`), and the result if the lookups find nothing.
    Reconcile(Duration, String, u32, Box<CallResult>),
    /// The call has begun work that continues elsewhere. It waits for this event, but at most for this time.
    WaitForWork(Awaited, Duration),
    /// The caller's process runs the call.
    Offer(Box<LocalOffer>),
    /// The unsent call does not count as an attempt.
    ToolUnavailable(Box<ToolUnavailable>),
    /// The call waits for other calls or for people.
    WaitToBegin(Box<BeginWait>),
    /// The worker must stop, or its lease is over. Another worker can run the call.
    Requeue(RequeueReason),
    /// Another worker holds the turn, or may hold it.
    Lost,
}

pub(crate) struct BeginWait {
    pub(crate) reason: WaitReason,
    pub(crate) at_most: Duration,
    pub(crate) wait: WaitFor,
    pub(crate) waits_while: Vec<Guard>,
}

/// A call that cannot use its tool now: the tool's circuit breaker is open, or an operator has paused the tool.
pub(crate) struct ToolUnavailable {
    pub(crate) delay: Duration,
    /// The longest total wait. `None` means until the call's deadline.
    pub(crate) at_most: Option<Duration>,
    pub(crate) why: String,
    /// The result if the tool is still unavailable after the longest wait.
    pub(crate) final_result: Box<CallResult>,
}

pub(crate) struct CallAttempt<'a> {
    pub(crate) slice: &'a Arc<Slice>,
    pub(crate) call: &'a Call,
    pub(crate) id: CallId,
    /// Counted from 1.
    pub(crate) number: u32,
    /// True if the call has begun work elsewhere.
    pub(crate) waited: bool,
    pub(crate) context: Arc<tickfleet_model::Context>,
    pub(crate) lease: &'a SliceLease,
    pub(crate) config: &'a WorkerConfig,
    pub(crate) canceled: Option<&'a str>,
    /// The call's share of the bytes that all calls of the turn may return together.
    pub(crate) output_bytes_max: usize,
    /// Unsettled results of this slice's earlier calls. The stored streaks do not count these results yet.
    pub(crate) unsettled: &'a [(StreakName, StreakBounds, Repeat)],
    pub(crate) view: &'a View,
    pub(crate) progress: Mutex<AttemptProgress>,
}

#[derive(Default)]
pub(crate) struct AttemptProgress {
    /// The turn's record and its version after the attempt's last write.
    pub(crate) written: Option<Box<(Version, Turn)>>,
    /// Set if the attempt has begun the call.
    pub(crate) begun_by: Option<String>,
    pub(crate) view: View,
    pub(crate) effects: EndEffects,
    pub(crate) canceled: Option<String>,
}

pub(super) struct NotBegun {
    pub(super) outcome: AttemptOutcome,
    /// True if the end of the call counts for the agent's streak.
    pub(super) counts: bool,
}

impl NotBegun {
    pub(super) const fn of(outcome: AttemptOutcome) -> Self {
        Self { outcome, counts: false }
    }
}

impl AttemptOutcome {
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Ended(result, _) => result.outcome.as_str(),
            Self::Reported(_) => "kept",
            Self::Retry(..) => "again",
            Self::Reconcile(..) => "reconciles",
            Self::WaitForWork(..) | Self::WaitToBegin(_) => "waits",
            Self::Offer(_) => "offered",
            Self::ToolUnavailable(_) => "breaker_open",
            Self::Requeue(_) => "requeue",
            Self::Lost => "lost",
        }
    }

    pub(crate) const fn unsent() -> Self {
        Self::Requeue(RequeueReason::Unsent { nonce: None })
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Ended(result, _) if result.outcome == Outcome::ApprovalRefused)
    }
}

/// True if a lost worker may have held the slice and run its calls.
pub(crate) const fn may_have_been_held(slice: &Slice) -> bool {
    slice.turn.crashes > 0 || slice.turn.may_have_run
}

impl CallAttempt<'_> {
    pub(crate) fn head(&self) -> &Head {
        &self.slice.turn.head
    }

    pub(crate) fn is_task(&self) -> bool {
        self.slice.turn.is_task()
    }

    pub(crate) const fn is_first(&self) -> bool {
        self.number == 1 && !self.waited
    }

    pub(crate) fn name(&self) -> CallName {
        CallName::from(self.id.clone())
    }

    /// The tool's own name, even if the model spells it differently.
    pub(crate) fn tool_name(&self) -> &str {
        self.config.registry.resolve(&self.call.tool).map_or(&self.call.tool, |tool| &tool.spec.name)
    }

    pub(crate) fn span(&self) -> Span {
        tracing::debug_span!(
            target: traces::TARGET, "call", call = %self.id, tool = self.call.tool, attempt = self.number,
            outcome = tracing::field::Empty,
        )
    }

    pub(super) fn result(&self, outcome: Outcome, error: CallError) -> CallResult {
        CallResult::refused(&self.id, self.call.provider_id.clone(), &self.call.tool, outcome, error)
    }

    pub(super) fn refused(&self, outcome: Outcome, error: CallError) -> AttemptOutcome {
        AttemptOutcome::Ended(Box::new(self.result(outcome, error)), Vec::new())
    }

    /// Only for a call that was begun, but not sent.
    pub(super) fn unsent(&self) -> AttemptOutcome {
        AttemptOutcome::Requeue(RequeueReason::Unsent { nonce: self.progress.lock().begun_by.clone() })
    }

    /// The outcome of a call that was canceled while it ran, without a lasting effect.
    pub(super) fn stopped(&self, why: Option<&str>) -> AttemptOutcome {
        let because = report::because(why);
        let message = format!("The turn was canceled{because} while this call ran; its result was dropped.");
        self.refused(Outcome::Cancelled, messages::error(Outcome::Cancelled, message))
    }

    pub(super) fn ended(&self, reason: &EndReason, past: &CallHistory<'_>) -> Box<CallResult> {
        let (outcome, error) = report::ended(reason, self.head().deadline_ms, past);
        Box::new(CallResult { attempts: past.tries, ..self.result(outcome, error) })
    }

    pub(super) fn tries(&self) -> u32 {
        reconcile_progress::own_attempt(self.number).saturating_sub(1)
    }
}

pub(crate) struct LocalOffer {
    pub(super) message: String,
    pub(super) note: String,
    pub(super) lease_ms: i64,
}

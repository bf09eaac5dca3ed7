//! START HERE (2): one call, end to end. Known tool → permission → arguments → rules → approval (`guards`, `consent`) →
//! loops → cached result (`cache`) or begin → execute → outcome (`attempt`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_core::View;
use tickfleet_core::call::begin::StreakCheck;
use tickfleet_core::call::streak::Streak;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{Cancellation, Destination, RequeueReason, Slice, Turn};
use tickfleet_engine::report::CallHistory;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::retry::RetryDecision;
use tickfleet_model::{CallError, Effect, Outcome, Priority, TurnId};
use tickfleet_ops::metrics::RuleAction;
use tickfleet_protocol::{cut_response, dialect_info, is_cut, text};
use tickfleet_store::TurnName;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::calls::attempt::{self, HandlerEnd, HandlerOutcome};
use crate::calls::begin::{BeginInputs, EarlierAttempts};
use crate::calls::call_attempt::{AttemptOutcome, CallAttempt, NotBegun, may_have_been_held};
use crate::calls::guards::{CheckedCall, passed_with};
use crate::calls::inner::InnerTurns;
use crate::calls::messages::{self, CallEnding};
use crate::calls::progress::store_progress;
use crate::calls::spans;
use crate::calls::state::Calls;
use crate::calls::waiting::breakers::{self, CallPermit};
use crate::calls::waiting::tool_access::ToolAccess;
use crate::tools::inner::Inner;
use crate::tools::{CallContext, ProgressSink, RegisteredTool, Toolbox};

impl Calls {
    pub(crate) async fn run_call(&self, attempt: &CallAttempt<'_>) -> AttemptOutcome {
        if self.now.is_cancelled() {
            return AttemptOutcome::unsent();
        }
        if let Some(concluded) = self.concluded(attempt).await {
            return concluded;
        }
        if let Some(over) = self.end_if_canceled_or_expired(attempt).await {
            return over;
        }
        if let Some(problem) = unreadable(attempt) {
            return attempt.refused(Outcome::InvalidArguments, problem);
        }
        let head = attempt.head();
        let grant = head.task.as_ref().map(|(_, grant)| grant);
        let active = Arc::clone(&attempt.config.active);
        let registry = Arc::clone(&attempt.config.registry);
        let tools = Toolbox::new(active, registry, head.allowed_tools.as_ref(), grant);
        let streak = self.loops.check_of(attempt);
        let passed = match passed_with(attempt, &tools, &attempt.call.arguments).await {
            Ok(passed) => passed,
            Err(ending) => {
                if let Some(begun) = self.begun_by_another(attempt).await {
                    return begun;
                }
                messages::count_rule(&ending.error, &self.metrics);
                let refused = attempt.refused(ending.outcome, ending.error);
                self.read_streak(attempt, streak.as_ref()).await;
                self.loops.count_end(streak, attempt, &refused);
                return refused;
            }
        };
        if passed.tool.local_lease.is_some() && !head.local_calls {
            return self.begun_by_another(attempt).await.unwrap_or_else(|| self.refused_local(attempt));
        }
        let now_ms = self.store.state().now_ms;
        if let Some(refused) =
            streak.as_ref().and_then(|streak| self.loops.refused_by_unsettled(streak, attempt, now_ms))
        {
            return self.begun_by_another(attempt).await.unwrap_or(refused);
        }
        let tool = Arc::clone(&passed.tool);
        let access = match self.permit_call(attempt, &tool, &passed.arguments).await {
            Ok(access) => access,
            Err(outcome) => return outcome,
        };
        Box::pin(self.begin_and_run(attempt, tools, passed, access, streak)).await
    }

    /// Reads the streak of a call that ends without beginning. If this read fails, the result has no note about a loop.
    pub(super) async fn read_streak(&self, attempt: &CallAttempt<'_>, streak: Option<&StreakCheck>) {
        let Some(key) = streak.map(|check| check.name.key()) else { return };
        if attempt.view.record::<Streak>(&key).is_ok() {
            return;
        }
        let mut view = View::default();
        match self.store.evaluate(&mut view, |view, _| view.record::<Streak>(&key).map(drop)).await {
            Ok(()) => attempt.progress.lock().view.extend(view),
            Err(error) => tracing::debug!(%error, "failed to read the streak of a call"),
        }
    }

    async fn begin_and_run(
        &self,
        attempt: &CallAttempt<'_>,
        tools: Toolbox,
        passed: CheckedCall,
        access: ToolAccess<'_>,
        streak: Option<StreakCheck>,
    ) -> AttemptOutcome {
        let tool = Arc::clone(&passed.tool);
        let once = passed.tool.spec.effect == Effect::Once;
        let own = passed.arguments.clone();
        let runs = matches!(access, ToolAccess::Call(_));
        let inputs = BeginInputs { tools: &tools, streak: streak.clone(), runs };
        let mut begun_call = match self.begin_call(attempt, inputs, passed).await {
            Ok(begun_call) => begun_call,
            Err(NotBegun { outcome, counts }) => {
                let outcome = if once { self.reconciled(attempt, &tool, tools, &own, outcome).await } else { outcome };
                self.loops.count_end(streak.filter(|_| counts), attempt, &outcome);
                return outcome;
            }
        };
        // Every attempt evaluates the rules, but a call's shadow denials are counted only once.
        if attempt.is_first() {
            begun_call
                .passed
                .shadow
                .iter()
                .for_each(|denial| self.metrics.rule_denied(&denial.rule, RuleAction::Shadow));
        }
        let lookup = begun_call.lookup.take();
        let cached = begun_call.cached.take();
        let cached_outcome = lookup.as_ref().and_then(|_| self.cache.cached_outcome(attempt, cached));
        let CheckedCall { tool, arguments, .. } = &begun_call.passed;
        let outcome = match (cached_outcome, access.into_permit()) {
            (Some(cached_outcome), _) => cached_outcome,
            (None, Err(open)) => open,
            (None, Ok(_)) if tool.local_lease.is_some() => {
                self.offered(attempt, &begun_call, tool.local_lease.unwrap_or_default()).await
            }
            (None, Ok(permit)) => {
                let outcome = self.execute(attempt, tool, tools.clone(), arguments, permit).await;
                let outcome =
                    if once { self.reconciled(attempt, tool, tools, arguments, outcome).await } else { outcome };
                let fill = lookup.and_then(|lookup| self.cache.fill(attempt, lookup, &outcome));
                attempt.progress.lock().effects.fill = fill;
                outcome
            }
        };
        // A call that people did not approve does not count for its streak.
        self.loops.count_end(streak.filter(|_| !outcome.is_refused()), attempt, &outcome);
        begun_call.annotate(outcome)
    }

    fn ended(&self, attempt: &CallAttempt<'_>, reason: &EndReason, past: &CallHistory<'_>) -> AttemptOutcome {
        let result = attempt.ended(reason, past);
        // A call that never ran is counted when its result is rendered.
        if result.attempts > 0 {
            self.metrics.call_ended(attempt.tool_name(), result.outcome, None);
        }
        AttemptOutcome::Ended(result, Vec::new())
    }

    /// A call that began is never reported as not run.
    pub(crate) async fn end_unless_begun(&self, attempt: &CallAttempt<'_>, reason: &EndReason) -> AttemptOutcome {
        let earlier = match self.begun_before(attempt).await {
            EarlierAttempts::Ends(outcome) => return outcome,
            earlier => earlier,
        };
        let why = self.cancel_reason(attempt, reason).await;
        let once = attempt.config.registry.effect(&attempt.call.tool) == Some(Effect::Once);
        let past = CallHistory {
            tries: attempt.tries(),
            // `begun_before` has shown that a `once` call has not begun, so no lost holder of the slice has run the
            // call.
            lost: matches!(earlier, EarlierAttempts::MayHaveRun) || !once && may_have_been_held(attempt.slice),
            waited: attempt.waited,
            why: why.as_deref(),
            ..CallHistory::default()
        };
        self.ended(attempt, reason, &past)
    }

    /// False if the lease of the slice is over. The caller then returns the slice, which does not count as a crash of
    /// the slice.
    pub(super) async fn still_leased(&self, attempt: &CallAttempt<'_>) -> bool {
        let sure = self.lease_clock.wait_until_valid(attempt.lease.term).await;
        if !sure {
            self.metrics.fenced("execute");
            tracing::warn!(call = %attempt.id, "lease expired; returning the slice");
        }
        sure
    }

    async fn end_if_canceled_or_expired(&self, attempt: &CallAttempt<'_>) -> Option<AttemptOutcome> {
        let reason = if attempt.lease.cancel.is_cancelled() {
            EndReason::Canceled
        } else if attempt.lease.deadline_passed() || self.store.state().now_ms >= attempt.head().deadline_ms {
            EndReason::Expired
        } else {
            return None;
        };
        Some(self.end_unless_begun(attempt, &reason).await)
    }

    pub(super) async fn canceled_because(&self, slice: &Slice) -> Option<String> {
        if let Some(why) = &slice.turn.canceled {
            return Some(why.clone());
        }
        let found = self.store.record_of::<Cancellation>(&slice.name.cancellation()).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "failed to read a cancellation's reason; the turn ends without one");
            None
        });
        found.map(|found| found.value).filter(|found| found.is_of(&slice.turn)).map(|found| found.reason)
    }

    /// Why the turn was canceled. `None` if the call ends for another reason, or if the reason is unknown.
    async fn cancel_reason(&self, attempt: &CallAttempt<'_>, reason: &EndReason) -> Option<String> {
        if *reason != EndReason::Canceled {
            return None;
        }
        let known = attempt.canceled.map(str::to_owned).or_else(|| attempt.progress.lock().canceled.clone());
        let why = match known {
            Some(why) => why,
            None => self.canceled_because(attempt.slice).await?,
        };
        attempt.progress.lock().canceled.get_or_insert_with(|| why.clone());
        Some(self.redactor.text(&why).into_owned()).filter(|why| !why.is_empty())
    }

    /// True if an earlier attempt may have begun work elsewhere that the store no longer remembers.
    pub(super) fn may_be_forgotten(&self, attempt: &CallAttempt<'_>) -> bool {
        let tried = attempt.number > 1 || may_have_been_held(attempt.slice);
        let options = self.store.options();
        let remembered_since = self.store.state().now_ms - options.dedupe_ms.max(options.retain_ms);
        let submitted_ms = attempt.head().submitted_ms;
        tried && (submitted_ms == 0 || submitted_ms <= remembered_since)
    }

    async fn execute(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        tools: Toolbox,
        arguments: &RawValue,
        permit: CallPermit<'_>,
    ) -> AttemptOutcome {
        // Invariant 7: nothing is sent if the last heartbeat may be too old.
        if !self.still_leased(attempt).await {
            return attempt.unsent();
        }
        let priority = match attempt.slice.turn.destination {
            Destination::Workers(priority) => priority,
            Destination::External { .. } => Priority::default(),
        };
        let inner_turns = Arc::new(InnerTurns::new(self.store.clone(), priority));
        let left = self.store.clock().until(attempt.head().deadline_ms);
        let limit = tool.spec.timeout.min(left);
        // A tool is called again after its inner calls, so a `once` tool cannot make inner calls.
        let inner = match tool.spec.effect {
            Effect::Once => Inner::default(),
            Effect::Read | Effect::Idempotent => Inner::of(inner_turns.clone()),
        };
        let (progress, reports) = ProgressSink::new();
        let context = CallContext { progress, ..self.context(attempt, tools, inner) };
        let started = Instant::now();
        let span = spans::tool_span(&self.redactor, attempt, tool, arguments);
        let cancelled = attempt.lease.cancel.cancelled();
        let must_stop = self.now.cancelled();
        let running = attempt::run(tool, &context, arguments, limit, cancelled, must_stop).instrument(span.clone());
        let ran = tokio::select! {
            biased;
            ran = running => ran,
            never = store_progress(&self.store, &self.redactor, attempt, reports) => match never {},
        };
        let took = started.elapsed();
        if attempt.is_task() {
            self.adopt_steps(attempt).await;
        }
        if matches!(ran, HandlerEnd::TimedOut) && limit == left {
            attempt.lease.pass_deadline();
        }
        permit.report(breakers::health_of(&ran, limit < tool.spec.timeout), took, &self.metrics);
        let handler_outcome = attempt::classify(ran, tool, &attempt.id, &attempt.call.tool, limit);
        let why = self.cancel_inner_turn(attempt, &inner_turns).await;
        let outcome = self.outcome_of(attempt, handler_outcome, why.as_deref());
        self.metrics.tool_tried(&tool.spec.name, took, spans::record_attempt(&self.redactor, &span, &outcome));
        match outcome {
            AttemptOutcome::Ended(mut result, shadow) => {
                result.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                result.attempts = attempt.number;
                // A call that will be reconciled is counted after its reconciliation.
                if result.outcome != Outcome::OutcomeUnknown || tool.spec.reconcile.is_none() {
                    self.metrics.call_ended(attempt.tool_name(), result.outcome, Some(took));
                }
                AttemptOutcome::Ended(result, shadow)
            }
            other => other,
        }
    }

    /// Reads the task's record again, because the task's handler writes to it.
    async fn adopt_steps(&self, attempt: &CallAttempt<'_>) {
        let name = &attempt.slice.name;
        let read = retry_until(&self.now, || async {
            match self.store.record_of::<Turn>(&name.record()).await {
                Ok(stored) => Attempt::Done(stored),
                Err(error) if error.is_script_error() => Attempt::Done(None),
                Err(_) => Attempt::Failed,
            }
        });
        let Some(stored) = read.await.flatten() else { return };
        if stored.in_flight_entry() == Some(&attempt.slice.entry) {
            attempt.progress.lock().written = Some(Box::new((stored.version, stored.value)));
        }
    }

    async fn cancel_inner_turn(&self, attempt: &CallAttempt<'_>, inner_turns: &InnerTurns) -> Option<String> {
        if !attempt.lease.cancel.is_cancelled() {
            return None;
        }
        let why = self.cancel_reason(attempt, &EndReason::Canceled).await;
        if let Some(inner) = inner_turns.out() {
            self.cancel_inner(&attempt.slice.name, &inner, why.as_deref()).await;
        }
        why
    }

    /// If Redis does not respond, the inner turn continues to its end.
    pub(crate) async fn cancel_inner(&self, outer: &TurnName, inner: &TurnId, why: Option<&str>) {
        let name = TurnName { tenant: outer.tenant.clone(), turn: inner.clone() };
        let why = why.unwrap_or("the turn of its outer call was canceled");
        if let Err(error) = self.store.cancel(&name, why).await {
            tracing::warn!(%error, turn = %inner, "inner call of a canceled turn continues");
        }
    }

    pub(super) fn outcome_of(
        &self,
        attempt: &CallAttempt<'_>,
        handler_outcome: HandlerOutcome,
        why: Option<&str>,
    ) -> AttemptOutcome {
        match handler_outcome {
            HandlerOutcome::Output(output) => {
                let result = |outcome, error| attempt.result(outcome, error);
                AttemptOutcome::Ended(
                    Box::new(attempt::succeeded(output, attempt.output_bytes_max, result)),
                    Vec::new(),
                )
            }
            HandlerOutcome::Failed(CallEnding { outcome, error }) => attempt.refused(outcome, error),
            // The handler may have noticed the cancellation before this check, so its failure counts as a stop.
            HandlerOutcome::Retry { .. } if attempt.lease.cancel.is_cancelled() => attempt.stopped(why),
            HandlerOutcome::Retry { message, after, reason } => self.retry_or_give_up(attempt, &message, after, reason),
            HandlerOutcome::Waits { .. } if attempt.lease.cancel.is_cancelled() => attempt.stopped(why),
            HandlerOutcome::Waits { awaits, at_most } => AttemptOutcome::WaitForWork(awaits, at_most),
            HandlerOutcome::Stopped => attempt.stopped(why),
            HandlerOutcome::Requeue => AttemptOutcome::Requeue(RequeueReason::Interrupted),
        }
    }

    pub(super) fn retry_or_give_up(
        &self,
        attempt: &CallAttempt<'_>,
        message: &str,
        after: Option<Duration>,
        reason: &'static str,
    ) -> AttemptOutcome {
        let left = self.store.clock().until(attempt.head().deadline_ms);
        match self.settings.retry_delays.decide(attempt.number, after, left) {
            RetryDecision::RetryAfter(wait) => {
                self.metrics.retried(reason);
                // People read the message in the turn's log, so it must not contain secrets.
                AttemptOutcome::Retry(wait, self.redactor.text(message).into_owned())
            }
            RetryDecision::NoRetry(why) => {
                let mut error = messages::retries_exhausted(message, attempt.number, Some(why), after);
                if reason == messages::NOT_DURABLE {
                    error.details = Some(serde_json::json!({ "reason": messages::NOT_DURABLE }));
                }
                attempt.refused(Outcome::Transient, error)
            }
        }
    }
}

/// The error of a call that could not be parsed. If the model's response was cut off, even the tool's name may be
/// incomplete.
fn unreadable(attempt: &CallAttempt<'_>) -> Option<CallError> {
    let head = attempt.head();
    let call = attempt.call;
    if attempt.is_task() {
        return None;
    }
    let error = |message| messages::error(Outcome::InvalidArguments, message);
    if dialect_info(head.dialect).in_words {
        return text::problem(call).map(error);
    }
    let cut = || CallError { details: Some(json!({ "reason": "cut" })), ..error(cut_response(&call.tool)) };
    is_cut(&call.arguments).then(cut)
}

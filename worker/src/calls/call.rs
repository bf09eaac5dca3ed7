//! START HERE (2): one call, end to end. Known tool → permission → arguments → rules → approval (`guards`, `consent`) →
//! loops → cached result (`cache`) or begin → execute → judge (`attempt`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_core::View;
use tickfleet_core::call::begin::StreakCheck;
use tickfleet_core::call::streak::Streak;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{Cancellation, Destination, HandBackReason, Slice, Turn};
use tickfleet_engine::report::Past;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::retry::Verdict;
use tickfleet_model::{CallError, Effect, Outcome, Priority, TurnId};
use tickfleet_ops::metrics::RuleAction;
use tickfleet_protocol::{about, cut_response, is_cut, text};
use tickfleet_store::TurnName;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::calls::attempt::{self, Judged, Ran};
use crate::calls::begin::{Earlier, Wanted};
use crate::calls::guards::{Passed, passed_with};
use crate::calls::inner::Begins;
use crate::calls::messages::{self, CallEnding};
use crate::calls::state::Calls;
use crate::calls::trying::{Disposition, Instead, Trying, may_have_been_held};
use crate::calls::waiting::breakers::{self, Leave};
use crate::calls::waiting::permit::Permit;
use crate::tools::inner::Inner;
use crate::tools::{RegisteredTool, Toolbox};

impl Calls {
    /// Carries out one attempt of one call.
    pub(crate) async fn carry_out(&self, trying: &Trying<'_>) -> Disposition {
        if self.now.is_cancelled() {
            return Disposition::unsent();
        }
        if let Some(over) = self.over(trying).await {
            return over;
        }
        if let Some(problem) = unreadable(trying) {
            return trying.refused(Outcome::InvalidArguments, problem);
        }
        let head = trying.head();
        let grant = head.task.as_ref().map(|(_, grant)| grant);
        let (active, registry) = (Arc::clone(&trying.config.active), Arc::clone(&trying.config.registry));
        let tools = Toolbox::new(active, registry, head.allowed_tools.as_ref(), grant);
        let streak = self.loops.check_of(trying);
        let passed = match passed_with(trying, &tools, &trying.call.arguments).await {
            Ok(passed) => passed,
            Err(ending) => {
                if let Some(begun) = self.begun_by_another(trying).await {
                    return begun;
                }
                messages::count_rule(&ending.error, &self.metrics);
                let refused = trying.refused(ending.outcome, ending.error);
                self.read_streak(trying, streak.as_ref()).await;
                self.loops.count_end(streak, trying, &refused);
                return refused;
            }
        };
        let now_ms = self.store.state().now_ms;
        if let Some(refused) =
            streak.as_ref().and_then(|streak| self.loops.refused_by_unsettled(streak, trying, now_ms))
        {
            return self.begun_by_another(trying).await.unwrap_or(refused);
        }
        let tool = Arc::clone(&passed.tool);
        let permit = match self.leave(trying, &tool, &passed.arguments).await {
            Ok(permit) => permit,
            Err(instead) => return instead,
        };
        Box::pin(self.begin_and_run(trying, tools, passed, permit, streak)).await
    }

    /// Reads the streak of a call that ends without a begin, which would have read it. On failure, its result has no note.
    async fn read_streak(&self, trying: &Trying<'_>, streak: Option<&StreakCheck>) {
        let Some(key) = streak.map(|check| check.name.key()) else { return };
        if trying.view.record::<Streak>(&key).is_ok() {
            return;
        }
        let mut view = View::default();
        match self.store.evaluate(&mut view, |view, _| view.record::<Streak>(&key).map(drop)).await {
            Ok(()) => trying.progress.lock().view.extend(view),
            Err(error) => tracing::debug!(%error, "failed to read the streak of a call"),
        }
    }

    /// Begins a call that has passed every guard, and runs its tool.
    async fn begin_and_run(
        &self,
        trying: &Trying<'_>,
        tools: Toolbox,
        passed: Passed,
        permit: Permit<'_>,
        streak: Option<StreakCheck>,
    ) -> Disposition {
        let (tool, once) = (Arc::clone(&passed.tool), passed.tool.spec.effect == Effect::Once);
        let own = passed.arguments.clone();
        let runs = matches!(permit, Permit::Call(_));
        let wanted = Wanted { tools: &tools, streak: streak.clone(), runs };
        let mut admitted = match self.let_in(trying, wanted, passed).await {
            Ok(admitted) => admitted,
            Err(Instead { disposition, counts }) => {
                let ends =
                    if once { self.reconciled(trying, &tool, tools, &own, disposition).await } else { disposition };
                self.loops.count_end(streak.filter(|_| counts), trying, &ends);
                return ends;
            }
        };
        // Rules are evaluated for each attempt, but the call is counted only once.
        if trying.is_first() {
            admitted.passed.shadow.iter().for_each(|denial| self.metrics.rule_unmet(&denial.rule, RuleAction::Shadow));
        }
        let (question, cached) = (admitted.question.take(), admitted.cached.take());
        let answered = question.as_ref().and_then(|_| self.cache.answer(trying, cached));
        let Passed { tool, arguments, .. } = &admitted.passed;
        let carried = match (answered, permit.into_leave()) {
            (Some(answered), _) => answered,
            (None, Err(rests)) => rests,
            (None, Ok(leave)) => {
                let carried = self.execute(trying, tool, tools.clone(), arguments, leave).await;
                let carried =
                    if once { self.reconciled(trying, tool, tools, arguments, carried).await } else { carried };
                let fill = question.and_then(|question| self.cache.fill(trying, question, &carried));
                trying.progress.lock().ends.fill = fill;
                carried
            }
        };
        // A call that people did not approve does not count for its streak.
        self.loops.count_end(streak.filter(|_| !carried.is_refused()), trying, &carried);
        admitted.told(carried)
    }

    /// The end of a call that does not run (again), for a reason that a scheduler can have too.
    fn ended(&self, trying: &Trying<'_>, reason: &EndReason, past: &Past<'_>) -> Disposition {
        let result = trying.ended(reason, past);
        // A call that never ran is counted when its result is rendered.
        if result.attempts > 0 {
            self.metrics.call_ended(trying.tool_name(), result.outcome, None);
        }
        Disposition::Ended(result, Vec::new())
    }

    /// Like [`Self::ended`], but checks first whether the call has begun: a call that began is never reported as not
    /// run.
    pub(crate) async fn ended_before_this_try(&self, trying: &Trying<'_>, reason: &EndReason) -> Disposition {
        let earlier = match self.begun_before(trying).await {
            Earlier::Ends(disposition) => return disposition,
            earlier => earlier,
        };
        let why = self.why(trying, reason).await;
        let once = trying.config.registry.effect(&trying.call.tool) == Some(Effect::Once);
        let past = Past {
            tries: trying.tries(),
            // For a call that must not run twice, it is certain that no lost holder began it.
            lost: matches!(earlier, Earlier::MayHaveRun) || !once && may_have_been_held(trying.slice),
            waited: trying.waited,
            why: why.as_deref(),
            ..Past::default()
        };
        self.ended(trying, reason, &past)
    }

    /// Returns true if the slice may continue. If the lease under which it was taken is over, the slice is returned: no
    /// process died, so no crash may count against the slice.
    pub(super) async fn still_leased(&self, trying: &Trying<'_>) -> bool {
        let sure = self.lease_clock.is_sure(trying.hold.term).await;
        if !sure {
            self.metrics.fenced("execute");
            tracing::warn!(call = %trying.id, "lease expired; returning the slice");
        }
        sure
    }

    /// Returns the end of a call whose turn was canceled or has expired.
    async fn over(&self, trying: &Trying<'_>) -> Option<Disposition> {
        let reason = if trying.hold.cancel.is_cancelled() {
            EndReason::Canceled
        } else if trying.hold.deadline_passed() || self.store.state().now_ms >= trying.head().deadline_ms {
            EndReason::Expired
        } else {
            return None;
        };
        Some(self.ended_before_this_try(trying, &reason).await)
    }

    /// The reason of the turn's cancellation, if the turn was canceled with a reason.
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

    /// The reason of the turn's cancellation, without secrets.
    async fn why(&self, trying: &Trying<'_>, reason: &EndReason) -> Option<String> {
        if *reason != EndReason::Canceled {
            return None;
        }
        let known = trying.canceled.map(str::to_owned).or_else(|| trying.progress.lock().canceled.clone());
        let why = match known {
            Some(why) => why,
            None => self.canceled_because(trying.slice).await?,
        };
        trying.progress.lock().canceled.get_or_insert_with(|| why.clone());
        Some(self.redactor.text(&why).into_owned()).filter(|why| !why.is_empty())
    }

    /// Returns true if an earlier attempt may have begun work elsewhere that the store no longer remembers. That work
    /// may have begun as early as the turn was submitted, and its end is remembered only for a limited time.
    pub(super) fn may_be_forgotten(&self, trying: &Trying<'_>) -> bool {
        let tried = trying.attempt > 1 || may_have_been_held(trying.slice);
        let options = self.store.options();
        let remembered_since = self.store.state().now_ms - options.dedupe_ms.max(options.retain_ms);
        let submitted_ms = trying.head().submitted_ms;
        tried && (submitted_ms == 0 || submitted_ms <= remembered_since)
    }

    async fn execute(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        tools: Toolbox,
        arguments: &RawValue,
        leave: Leave<'_>,
    ) -> Disposition {
        // Invariant 7: nothing is sent if the last heartbeat may be too old.
        if !self.still_leased(trying).await {
            return trying.unsent();
        }
        let priority = match trying.slice.turn.destination {
            Destination::Workers(priority) => priority,
            Destination::External { .. } => Priority::default(),
        };
        let begins = Arc::new(Begins::new(self.store.clone(), priority));
        let left = self.store.clock().until(trying.head().deadline_ms);
        let limit = tool.spec.timeout.min(left);
        // A tool with inner calls waits and is called again, so a `once` tool cannot make inner calls.
        let inner = match tool.spec.effect {
            Effect::Once => Inner::default(),
            Effect::Read | Effect::Idempotent => Inner::of(begins.clone()),
        };
        let context = self.context(trying, tools, inner);
        let (started, span) = (Instant::now(), self.tool_span(trying, tool, arguments));
        let (cancelled, must_stop) = (trying.hold.cancel.cancelled(), self.now.cancelled());
        let ran = attempt::run(tool, &context, arguments, limit, cancelled, must_stop).instrument(span.clone()).await;
        let took = started.elapsed();
        if trying.is_task() {
            self.adopt_steps(trying).await;
        }
        if matches!(ran, Ran::TimedOut) && limit == left {
            trying.hold.pass_deadline();
        }
        leave.heard(breakers::heard(&ran, limit < tool.spec.timeout), took, &self.metrics);
        let judged = attempt::judge(ran, tool, &trying.id, &trying.call.tool, limit);
        let why = self.cancelled(trying, &begins).await;
        let carried = self.carried(trying, judged, why.as_deref());
        self.tried(&span, tool, took, &carried);
        match carried {
            Disposition::Ended(mut result, shadow) => {
                result.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                result.attempts = trying.attempt;
                // A call that will be reconciled is counted after its reconciliation.
                if result.outcome != Outcome::OutcomeUnknown || tool.spec.reconcile.is_none() {
                    self.metrics.call_ended(trying.tool_name(), result.outcome, Some(took));
                }
                Disposition::Ended(result, shadow)
            }
            other => other,
        }
    }

    /// Adopts the record of a task as its handler has written it, if the slice still has the same entry.
    async fn adopt_steps(&self, trying: &Trying<'_>) {
        let name = &trying.slice.name;
        let read = retry_until(&self.now, || async {
            match self.store.record_of::<Turn>(&name.record()).await {
                Ok(stored) => Attempt::Done(stored),
                Err(error) if error.is_script_error() => Attempt::Done(None),
                Err(_) => Attempt::Failed,
            }
        });
        let Some(stored) = read.await.flatten() else { return };
        if stored.out_entry() == Some(&trying.slice.entry) {
            trying.progress.lock().written = Some(Box::new((stored.version, stored.value)));
        }
    }

    /// If the turn was canceled while a call ran: cancels the inner turn that the call has begun, and returns the
    /// reason.
    async fn cancelled(&self, trying: &Trying<'_>, begins: &Begins) -> Option<String> {
        if !trying.hold.cancel.is_cancelled() {
            return None;
        }
        let why = self.why(trying, &EndReason::Canceled).await;
        if let Some(inner) = begins.out() {
            self.cancel_inner(&trying.slice.name, &inner, why.as_deref()).await;
        }
        why
    }

    /// Cancels an inner turn of a canceled turn. If Redis does not respond, the inner turn continues to its end.
    pub(crate) async fn cancel_inner(&self, outer: &TurnName, inner: &TurnId, why: Option<&str>) {
        let name = TurnName { tenant: outer.tenant.clone(), turn: inner.clone() };
        let why = why.unwrap_or("the turn of its outer call was cancelled");
        if let Err(error) = self.store.cancel(&name, why).await {
            tracing::warn!(%error, turn = %inner, "inner call of a cancelled turn continues");
        }
    }

    fn carried(&self, trying: &Trying<'_>, judged: Judged, why: Option<&str>) -> Disposition {
        match judged {
            Judged::Output(output) => {
                let result = |outcome, error| trying.result(outcome, error);
                Disposition::Ended(Box::new(attempt::succeeded(output, trying.head().calls, result)), Vec::new())
            }
            Judged::Failed(CallEnding { outcome, error }) => trying.refused(outcome, error),
            // The handler may have noticed the cancellation before this check.
            Judged::Again { .. } if trying.hold.cancel.is_cancelled() => trying.stopped(why),
            Judged::Again { message, after, reason } => self.try_again(trying, &message, after, reason),
            Judged::Waits { .. } if trying.hold.cancel.is_cancelled() => trying.stopped(why),
            Judged::Waits { awaits, at_most } => Disposition::Waits(awaits, at_most),
            Judged::Stopped => trying.stopped(why),
            Judged::HandBack => Disposition::HandBack(HandBackReason::Tried),
        }
    }

    pub(super) fn try_again(
        &self,
        trying: &Trying<'_>,
        message: &str,
        after: Option<Duration>,
        reason: &'static str,
    ) -> Disposition {
        let left = self.store.clock().until(trying.head().deadline_ms);
        match self.ladder.verdict(trying.attempt, after, left) {
            Verdict::RetryAfter(wait) => {
                self.metrics.retried(reason);
                // The message goes into the turn's log, which people read.
                Disposition::Again(wait, self.redactor.text(message).into_owned())
            }
            Verdict::GiveUp(why) => {
                let mut error = messages::gave_up(message, trying.attempt, Some(why), after);
                if reason == messages::NOT_DURABLE {
                    error.details = Some(serde_json::json!({ "reason": messages::NOT_DURABLE }));
                }
                trying.refused(Outcome::Transient, error)
            }
        }
    }
}

/// The problem of an unreadable call: it was not readable in a plain-text answer, or its response was cut off, so that
/// even its tool's name may be incomplete.
fn unreadable(trying: &Trying<'_>) -> Option<CallError> {
    let (head, call) = (trying.head(), trying.call);
    if trying.is_task() {
        return None;
    }
    let error = |message| messages::error(Outcome::InvalidArguments, message);
    if about(head.dialect).in_words {
        return text::problem(call).map(error);
    }
    let cut = || CallError { details: Some(json!({ "reason": "cut" })), ..error(cut_response(&call.tool)) };
    is_cut(&call.arguments).then(cut)
}

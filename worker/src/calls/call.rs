//! START HERE (2): one call, end to end. Known tool → permission → arguments → rules → approval (`guards`, `consent`) → loops
//! → kept answer (`cache`) or begin → execute → judge (`attempt`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_engine::report::Past;
use tickfleet_model::redaction::Redactor;
use tickfleet_model::retry::{Ladder, Verdict};
use tickfleet_model::{CallError, Durability, Effect, Outcome, TurnId};
use tickfleet_ops::metrics::{Metrics, RuleAction};
use tickfleet_protocol::{about, cut_response, is_cut, text};
use tickfleet_store::{Begun, EndReason, RowCall, ShardClock, Store, TurnName};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::Common;
use crate::calls::attempt::{self, Judged, Ran};
use crate::calls::effects::Ledger;
use crate::calls::governed::cache::Cache;
use crate::calls::governed::loops::{LoopOptions, Loops};
use crate::calls::guards::{self, Admitted, Asked, Passed};
use crate::calls::inner::Begins;
use crate::calls::messages::{self, CallEnding};
use crate::calls::trying::{Disposition, Stopped, Trying};
use crate::calls::waiting::breakers::{self, Breakers, Leave};
use crate::calls::waiting::permit::Permit;
use crate::claims::Claims;
use crate::lease_clock::LeaseClock;
use crate::outbox::Outbox;
use crate::tools::inner::Inner;
use crate::tools::{RegisteredTool, Toolbox};

/// Carries out calls, one try at a time.
pub(crate) struct Calls {
    pub(super) store: Store,
    pub(super) clock: Arc<ShardClock>,
    pub(super) lease_clock: Arc<LeaseClock>,
    pub(super) claims: Arc<Claims>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) ledger: Ledger,
    pub(super) cache: Cache,
    loops: Loops,
    pub(super) breakers: Breakers,
    pub(super) metrics: Arc<Metrics>,
    /// The waits between tries.
    pub(super) ladder: Ladder,
    /// What has to know that a call has begun before it runs, where its tool does not say; and the longest wait for that.
    pub(in crate::calls) durable: (Durability, Duration),
    /// Takes secrets out of messages.
    pub(super) redactor: Arc<Redactor>,
    /// Cancelled when running calls must stop at once.
    pub(super) now: CancellationToken,
}

impl Calls {
    /// Tries calls again by `ladder`; `redactor` takes secrets out of what is told of them; `durable` is what has to know
    /// that a call has begun, and for how long that is waited for; `loops` says when an agent goes in circles, if that is
    /// looked for.
    pub(crate) fn new(
        common: &Common,
        claims: &Arc<Claims>,
        outbox: &Arc<Outbox>,
        ladder: Ladder,
        redactor: Arc<Redactor>,
        durable: (Durability, Duration),
        loops: Option<LoopOptions>,
    ) -> Self {
        Self {
            store: common.store.clone(),
            clock: common.clock.clone(),
            lease_clock: common.lease_clock.clone(),
            claims: claims.clone(),
            outbox: outbox.clone(),
            ledger: Ledger::new(common, outbox, claims),
            cache: Cache::new(outbox, common),
            loops: Loops::new(loops, outbox, &common.metrics),
            breakers: common.breakers.clone(),
            metrics: common.metrics.clone(),
            ladder,
            durable,
            redactor,
            now: common.now.clone(),
        }
    }

    /// Carries out one try of one call.
    pub(crate) async fn carry_out(&self, trying: &Trying<'_>) -> Disposition {
        if self.now.is_cancelled() {
            return Disposition::HandBack(false);
        }
        if let Some(over) = self.over(trying).await {
            return over;
        }
        if let Some(problem) = unreadable(trying) {
            return trying.refused(Outcome::InvalidArguments, problem);
        }
        let meta = &trying.slice.meta;
        let grant = meta.task.as_ref().map(|(_, grant)| grant);
        let (active, registry) = (Arc::clone(&trying.config.active), Arc::clone(&trying.config.registry));
        let tools = Toolbox::new(active, registry, meta.allowed_tools.as_ref(), grant);
        let row = self.loops.row_of(trying);
        let passed = match passed_with(trying, &tools, &trying.call.arguments).await {
            Ok(passed) => self.unless_looping(row.as_ref(), trying, passed).await,
            Err(ending) => Err((ending, true)),
        };
        let passed = match passed {
            Ok(passed) => passed,
            Err((ending, counts)) => {
                if let Some(begun) = self.begun_by_another(trying).await {
                    return begun;
                }
                messages::count_rule(&ending.error, &self.metrics);
                let mut refused = trying.refused(ending.outcome, ending.error);
                self.loops.count_end(row.filter(|_| counts), &mut refused).await;
                return refused;
            }
        };
        let asked = Arc::clone(&passed.tool);
        let permit = match self.leave(trying, &asked, &passed.arguments).await {
            Ok(permit) => permit,
            Err(instead) => return instead,
        };
        let admitted = match self.let_in(trying, &tools, passed).await {
            Ok(admitted) => admitted,
            Err(waits_or_ends) => return waits_or_ends,
        };
        let Passed { tool, arguments, shadow, .. } = &admitted.passed;
        // Each try is judged anew; the call is counted once.
        if trying.attempt == 1 && !trying.waited {
            shadow.iter().for_each(|denial| self.metrics.rule_unmet(&denial.rule, RuleAction::Shadow));
        }
        let mut carried = if tool.spec.effect == Effect::Once {
            Box::pin(self.carry_out_once(trying, &admitted, tools, permit)).await
        } else {
            self.read_or_execute(trying, tool, tools, arguments, permit).await
        };
        // One that people did not agree to is none of its row.
        self.loops.count_end(row.filter(|_| !carried.is_refused()), &mut carried).await;
        admitted.told(carried)
    }

    /// A call that passed every guard, unless it is refused for a while; false: its end is no call of its row.
    async fn unless_looping(
        &self,
        row: Option<&RowCall>,
        trying: &Trying<'_>,
        passed: Passed,
    ) -> Result<Passed, (Box<CallEnding>, bool)> {
        let Some(row) = row else { return Ok(passed) };
        self.loops.refusal(row, trying).await.map_or(Ok(passed), |ending| Err((ending, false)))
    }

    /// Carries out a call that may run twice, unless its answer is kept.
    async fn read_or_execute(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        tools: Toolbox,
        arguments: &RawValue,
        permit: Permit<'_>,
    ) -> Disposition {
        let asked = self.cache.asked(trying, tool, arguments);
        if let Some(asked) = &asked
            && let Some(kept) = self.cache.answer(asked, trying).await
        {
            return kept;
        }
        let carried = match permit.into_leave() {
            Ok(leave) => self.execute(trying, tool, tools, arguments, leave).await,
            Err(rests) => rests,
        };
        if let Some(asked) = asked {
            self.cache.keep(asked, &carried);
        }
        carried
    }

    /// Carries out a call that must not run twice. With an effect key, an equal call answers it, and it answers those
    /// that come after.
    async fn carry_out_once(
        &self,
        trying: &Trying<'_>,
        admitted: &Admitted,
        tools: Toolbox,
        permit: Permit<'_>,
    ) -> Disposition {
        // Begun and then handed back, a call could only be reported as unknown: look before it is begun, too.
        if !self.still_leased(trying).await {
            return Disposition::HandBack(false);
        }
        let Passed { tool, arguments, .. } = &admitted.passed;
        let changed = admitted.approved.as_ref().and_then(|approved| approved.arguments.as_deref());
        let leave = permit.into_leave();
        let (claim, begun) = loop {
            let claim = match self.ledger.claim(trying, tool, arguments).await {
                Ok(claim) => claim,
                Err(answered) => return *answered,
            };
            if leave.is_err() {
                break (claim, None);
            }
            match self.begin_agreed(trying, admitted).await {
                // This Redis may have lost the claim, and facts.
                Err(Stopped::Held) => {
                    if let Err(instead) = self.enter(trying, tool, changed, &tools).await {
                        break (claim, Some(*instead));
                    }
                }
                Err(Stopped::Ends(stopped)) => break (claim, Some(stopped)),
                Ok(()) => break (claim, None),
            }
        };
        let carried = match (begun, leave) {
            (Some(stopped), _) => stopped,
            (None, Err(rests)) => rests,
            (None, Ok(leave)) => self.execute(trying, tool, tools.clone(), arguments, leave).await,
        };
        let carried = self.reconciled(trying, tool, tools, arguments, carried).await;
        if let Some(claim) = claim {
            self.ledger.conclude(&claim, &carried).await;
        }
        carried
    }

    /// The end of a call that does not run (again), for one of the reasons that schedulers know too.
    fn ended(&self, trying: &Trying<'_>, reason: EndReason, past: &Past<'_>) -> Disposition {
        let result = trying.ended(reason, past);
        // What has never run is counted where it is rendered.
        if result.attempts > 0 {
            self.metrics.call_ended(trying.tool_name(), result.outcome, None);
        }
        Disposition::Ended(result, Vec::new())
    }

    /// As [`Self::ended`], with what is known of the call: one that has begun is never told as not run.
    pub(crate) async fn ended_before_this_try(&self, trying: &Trying<'_>, reason: EndReason) -> Disposition {
        let why = self.why(trying, reason).await;
        let past = Past {
            tries: trying.tries(),
            lost: trying.slice.may_have_been_held(),
            waited: trying.waited,
            why: why.as_deref(),
            limit: None,
        };
        self.ended(trying, reason, &past)
    }

    /// Returns true if the slice may go on. If the lease that it came under is over, it is handed back: nothing died,
    /// so no crash should count against it.
    async fn still_leased(&self, trying: &Trying<'_>) -> bool {
        let sure = self.lease_clock.is_sure(trying.hold.term).await;
        if !sure {
            self.metrics.fenced("execute");
            tracing::warn!(call = %trying.id, "lease expired; returning the slice");
        }
        sure
    }

    /// Returns how a call ends whose turn was cancelled or has expired.
    async fn over(&self, trying: &Trying<'_>) -> Option<Disposition> {
        let reason = if trying.hold.cancel.is_cancelled() {
            EndReason::Cancelled
        } else if trying.hold.deadline_passed() || self.clock.now_ms() >= trying.slice.meta.deadline_ms {
            EndReason::Expired
        } else {
            return None;
        };
        let begun = self.begun_by_another(trying).await;
        if begun.is_some() {
            return begun;
        }
        Some(self.ended_before_this_try(trying, reason).await)
    }

    /// The reason of the turn's cancel, if it was cancelled and somebody gave one, without secrets.
    async fn why(&self, trying: &Trying<'_>, reason: EndReason) -> Option<String> {
        if reason != EndReason::Cancelled {
            return None;
        }
        let why = self.store.cancelled_because(&trying.slice.name).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "failed to read a cancellation's reason; the turn ends without one");
            None
        })?;
        Some(self.redactor.text(&why).into_owned())
    }

    /// Returns how a call ends that is about to end without having run, if a holder of the slice was lost and had begun
    /// it. The policy and the tools may be others by now; what was begun may have happened all the same.
    async fn begun_by_a_lost_holder(&self, trying: &Trying<'_>) -> Option<Disposition> {
        if trying.slice.crashes > 0 || self.claims.expects_marks() { self.ask(trying).await } else { None }
    }

    /// As [`Self::begun_by_a_lost_holder`], of a call that is refused, or whose turn is over. It is asked of any that may
    /// not run twice: of a Redis that has just restarted, no heartbeat has told yet.
    pub(super) async fn begun_by_another(&self, trying: &Trying<'_>) -> Option<Disposition> {
        match trying.config.registry.effect(&trying.call.tool) {
            Some(Effect::Read | Effect::Idempotent) => self.begun_by_a_lost_holder(trying).await,
            Some(Effect::Once) | None => self.ask(trying).await,
        }
    }

    /// Whether an earlier try may have begun something elsewhere that is forgotten by now: it can have begun it when its
    /// turn was submitted, and its end is remembered for so long.
    pub(super) fn may_be_forgotten(&self, trying: &Trying<'_>) -> bool {
        let tried = trying.attempt > 1 || trying.slice.may_have_been_held();
        let options = self.store.options();
        let remembered_since = self.clock.now_ms() - options.dedupe_ms.max(options.retain_ms);
        tried && trying.slice.meta.submitted().is_none_or(|submitted| submitted <= remembered_since)
    }

    /// The end of a call whose turn was over when it was about to begin.
    pub(super) async fn over_before(&self, trying: &Trying<'_>, over: Begun) -> Disposition {
        let reason = if over == Begun::Expired { EndReason::Expired } else { EndReason::Cancelled };
        let why = self.why(trying, reason).await;
        // Of a call that must not run twice it is certain that no lost holder began it.
        let once = trying.config.registry.effect(&trying.call.tool) == Some(Effect::Once);
        let past = Past {
            why: why.as_deref(),
            lost: !once && trying.slice.may_have_been_held(),
            tries: trying.tries(),
            limit: None,
            waited: trying.waited,
        };
        self.ended(trying, reason, &past)
    }

    async fn execute(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        tools: Toolbox,
        arguments: &RawValue,
        leave: Leave<'_>,
    ) -> Disposition {
        // Rule 7: nothing is sent on a heartbeat that may be too old.
        if !self.still_leased(trying).await {
            return Disposition::HandBack(false);
        }
        let meta = &trying.slice.meta;
        let begins = Arc::new(Begins::new(self.store.clone(), trying.slice.queue.priority()));
        let left = self.clock.until(meta.deadline_ms);
        let limit = tool.spec.timeout.min(left);
        // A tool that waits is run again.
        let inner = match tool.spec.effect {
            Effect::Once => Inner::default(),
            Effect::Read | Effect::Idempotent => Inner::of(begins.clone()),
        };
        let context = self.context(trying, tools, inner);
        let (started, span) = (Instant::now(), self.tool_span(trying, tool, arguments));
        let (cancelled, must_stop) = (trying.hold.cancel.cancelled(), self.now.cancelled());
        let ran = attempt::run(tool, &context, arguments, limit, cancelled, must_stop).instrument(span.clone()).await;
        let took = started.elapsed();
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
                // What is to be found out is counted when it has been.
                if result.outcome != Outcome::OutcomeUnknown || tool.spec.reconcile.is_none() {
                    self.metrics.call_ended(trying.tool_name(), result.outcome, Some(took));
                }
                Disposition::Ended(result, shadow)
            }
            other => other,
        }
    }

    /// Where the turn was cancelled while a call ran: cancels what that has begun, and answers the reason.
    async fn cancelled(&self, trying: &Trying<'_>, begins: &Begins) -> Option<String> {
        if !trying.hold.cancel.is_cancelled() {
            return None;
        }
        let why = self.why(trying, EndReason::Cancelled).await;
        if let Some(inner) = begins.out() {
            self.cancel_inner(&trying.slice.name, &inner, why.as_deref()).await;
        }
        why
    }

    /// Cancels an inner turn of a turn that was cancelled. Where Redis does not answer, it goes on to its end.
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
                Disposition::Ended(Box::new(attempt::succeeded(output, trying.slice.meta.calls, result)), Vec::new())
            }
            Judged::Failed(CallEnding { outcome, error }) => trying.refused(outcome, error),
            // The handler may have heard of the cancel before we looked.
            Judged::Again { .. } if trying.hold.cancel.is_cancelled() => trying.stopped(why),
            Judged::Again { message, after, reason } => self.try_again(trying, &message, after, reason),
            Judged::Waits { .. } if trying.hold.cancel.is_cancelled() => trying.stopped(why),
            Judged::Waits { awaits, at_most } => Disposition::Waits(awaits, at_most),
            Judged::Stopped => trying.stopped(why),
            Judged::HandBack => Disposition::HandBack(true),
        }
    }

    pub(super) fn try_again(
        &self,
        trying: &Trying<'_>,
        message: &str,
        after: Option<Duration>,
        reason: &'static str,
    ) -> Disposition {
        let left = self.clock.until(trying.slice.meta.deadline_ms);
        match self.ladder.verdict(trying.attempt, after, left) {
            Verdict::RetryAfter(wait) => {
                self.metrics.retried(reason);
                // It goes into the turn's log, which people read.
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

/// The tool and its arguments, if the call passes every guard with these. A task's work is its agent's handler.
pub(super) async fn passed_with(
    trying: &Trying<'_>,
    tools: &Toolbox,
    arguments: &str,
) -> Result<Passed, Box<CallEnding>> {
    let meta = &trying.slice.meta;
    let asked = if meta.is_task {
        Asked::Task { handlers: &trying.config.task_handlers, agent: &meta.agent }
    } else {
        let (tenant, name) = (&trying.slice.name.tenant, trying.call.tool.as_str());
        let (strict, context, task) = (meta.strict, &*trying.context, meta.task.as_ref());
        Asked::Tool { tools, tenant, agent: &meta.agent, name, strict, context, task }
    };
    guards::pass(&asked, arguments, |_, _| {}).await
}

/// The problem of a call that cannot be read: it is one of a plain answer, or its response was cut off, so that its
/// tool's name may be half of another one.
fn unreadable(trying: &Trying<'_>) -> Option<CallError> {
    let (meta, call) = (&trying.slice.meta, trying.call);
    if meta.is_task {
        return None;
    }
    let error = |message| messages::error(Outcome::InvalidArguments, message);
    if about(meta.dialect).in_words {
        return text::problem(call).map(error);
    }
    let cut = || CallError { details: Some(json!({ "reason": "cut" })), ..error(cut_response(&call.tool)) };
    is_cut(&call.arguments).then(cut)
}

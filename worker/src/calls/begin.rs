//! One decision checks the conditions and begins a call.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::call::approval::{self, UseConsent};
use tickfleet_core::call::begin::{BeginResult, ConsentCheck, Refusal, Started, StreakCheck};
use tickfleet_core::call::claim::{ClaimEffect, Claimant};
use tickfleet_core::call::facts::KnownFact;
use tickfleet_core::recovery::epoch::{QueryUnrunCalls, RecoveredCall, UnrunCallsResult};
use tickfleet_core::turn::end::RenderedCall;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{RequeueReason, WaitReason};
use tickfleet_core::{Query, View};
use tickfleet_engine::report;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::outcome::CallApproval;
use tickfleet_model::{CallResult, Durability, Effect, Outcome, idempotency_key};
use tickfleet_ops::metrics::RuleAction;
use tickfleet_store::Confirmed;
use tickfleet_store::seam::RunError;
use tokio::time::Instant;

use crate::batch::{BeginCall, WaitFor};
use crate::calls::call_attempt::{AttemptOutcome, BeginWait, CallAttempt, NotBegun};
use crate::calls::claims;
use crate::calls::governed::facts::FactsCheck;
use crate::calls::governed::{consent, facts};
use crate::calls::guards::{BegunCall, CheckedCall};
use crate::calls::messages;
use crate::calls::state::Calls;
use crate::tools::inner::Inner;
use crate::tools::{CallContext, ProgressSink, ToolSecrets, Toolbox};

pub(super) const RESTART_WAIT: Duration = Duration::from_millis(500);
/// Not every waiting call is woken: the end of an equal call wakes at most 64 calls.
const RECHECK_AFTER: Duration = Duration::from_secs(5);

pub(super) enum EarlierAttempts {
    None,
    /// The call may have run, and running it twice is harmless.
    MayHaveRun,
    Ends(AttemptOutcome),
}

pub(super) struct BeginInputs<'a> {
    pub(super) tools: &'a Toolbox,
    pub(super) streak: Option<StreakCheck>,
    /// False if the call only needs a cached result or the result of an equal call.
    pub(super) runs: bool,
}

enum AfterBegin {
    Started(Box<Started>),
    /// The claimant's call certainly had no effect, so this call begins again and replaces the claim.
    Nothing(Claimant),
    Again,
}

impl Calls {
    /// Finds out whether an earlier attempt began the call. After a restart of the store, first waits for the reports
    /// of other workers.
    pub(super) async fn begun_before(&self, attempt: &CallAttempt<'_>) -> EarlierAttempts {
        let once =
            !matches!(attempt.config.registry.effect(&attempt.call.tool), Some(Effect::Read | Effect::Idempotent));
        let turn = &attempt.slice.turn;
        let position = attempt.id.position;
        let is_begun =
            turn.begun.as_ref().is_some_and(|begun| begun.position == position || once && begun.position > position);
        if is_begun {
            return EarlierAttempts::Ends(self.unknown(attempt));
        }
        let ask = QueryUnrunCalls {
            name: &attempt.slice.name,
            digest: &attempt.head().digest,
            from: position,
            upto: position + 1,
            lease_ms: self.store.options().lease_ms,
        };
        let reports = retry_until(&self.now, || async {
            match self.store.decide(ask).await.map(|receipt| receipt.result) {
                Ok(UnrunCallsResult::Confirmed(known)) => Attempt::Done(Some(known)),
                Ok(UnrunCallsResult::RetryAt(_)) => Attempt::Later(RESTART_WAIT),
                Err(RunError::Unreadable { key, why }) => {
                    tracing::error!(call = %attempt.id, %key, %why, "failed to read the reports of begun calls");
                    Attempt::Done(None)
                }
                Err(_) => Attempt::Failed,
            }
        });
        let mut known = match reports.await {
            Some(Some(known)) => known,
            // One of the unread reports may be about this call, so the outcome of the call is unknown.
            Some(None) => return EarlierAttempts::Ends(self.unknown(attempt)),
            None => return EarlierAttempts::Ends(AttemptOutcome::unsent()),
        };
        match known.began.remove(&position) {
            None => {
                attempt.progress.lock().effects.unrun = Some(known);
                EarlierAttempts::None
            }
            Some(RecoveredCall { result: Some(result), .. }) => {
                EarlierAttempts::Ends(AttemptOutcome::Reported(Box::new(RenderedCall::from(&result))))
            }
            Some(mark) if mark.once || once => EarlierAttempts::Ends(self.unknown(attempt)),
            Some(_) => EarlierAttempts::MayHaveRun,
        }
    }

    pub(super) async fn begun_by_another(&self, attempt: &CallAttempt<'_>) -> Option<AttemptOutcome> {
        match self.begun_before(attempt).await {
            EarlierAttempts::Ends(outcome) => Some(outcome),
            EarlierAttempts::None | EarlierAttempts::MayHaveRun => None,
        }
    }

    fn unknown(&self, attempt: &CallAttempt<'_>) -> AttemptOutcome {
        // The attempt that began the call was lost, or could not write its result. The text fits both cases.
        let what = "This call was started before, but no result was recorded.";
        let error = messages::outcome_unknown(&attempt.call.tool, what);
        let begun = attempt.slice.turn.begun.as_ref().filter(|begun| begun.position == attempt.id.position);
        let approval = begun.and_then(|begun| begun.consent.as_ref()).map(|consent| {
            report::approved(&consent.approval, &consent.by, consent.narrowed.as_deref(), &attempt.call.arguments)
        });
        let has_facts = facts::row_of(attempt.config, attempt.slice, &attempt.call.tool).is_some();
        let facts_evaluated_ms = has_facts.then_some(0);
        let unknown = CallResult { approval, facts_evaluated_ms, ..attempt.result(Outcome::OutcomeUnknown, error) };
        AttemptOutcome::Ended(Box::new(unknown), Vec::new())
    }

    /// The error is the outcome of a call that does not begin.
    pub(super) async fn begin_call(
        &self,
        attempt: &CallAttempt<'_>,
        inputs: BeginInputs<'_>,
        passed: CheckedCall,
    ) -> Result<BegunCall, NotBegun> {
        let facts_row = facts::row_of(attempt.config, attempt.slice, &attempt.call.tool);
        let uses = (!passed.approvals.is_empty()).then(|| consent::uses(attempt, &passed));
        // A local call has no intent record of its own: the entry for the caller's process serves as one.
        let once = passed.tool.spec.effect == Effect::Once && passed.tool.local_lease.is_none();
        let mut nothing = None;
        let mut view = attempt.view.clone();
        let mut by = None;
        loop {
            let mut agreed = None;
            if let Some(uses) = &uses {
                let queries = self.queries(attempt, &inputs, &passed, uses);
                self.read(attempt, &mut view, queries).await?;
                agreed = Some(self.consented(attempt, inputs.tools, &passed, uses, &view).await?);
            }
            let (check, narrowed) = agreed.map_or((None, None), |(check, narrowed)| (Some(check), narrowed));
            let runs = narrowed.as_ref().unwrap_or(&passed);
            let changed = narrowed.as_ref().map(|again| &*again.arguments);
            let facts = facts_row.map(|row| facts::check_of(attempt, row, changed));
            let claim = self.claims.claim_of(attempt, &runs.tool, &runs.arguments, nothing.take());
            let claim = claim.map_err(|invalid| NotBegun::of(*invalid))?;
            let lookup = self.cache.lookup_of(attempt, &runs.tool, &runs.arguments);
            // Check the lease first: a `once` call that begins and then goes back to the queue ends with an unknown
            // outcome.
            if once && inputs.runs && !self.still_leased(attempt).await {
                return Err(NotBegun::of(AttemptOutcome::unsent()));
            }
            let default = if once { self.settings.durable } else { Durability::None };
            let durability = match inputs.runs {
                true => runs.tool.spec.durable.unwrap_or(default),
                false => Durability::None,
            };
            let by = by.get_or_insert_with(|| self.store.versions().draw().to_string());
            let begin = BeginCall {
                slice: Arc::clone(attempt.slice),
                position: attempt.id.position,
                by: by.clone(),
                once: once && inputs.runs,
                is_durable: durability != Durability::None,
                epoch: self.journal.epoch(),
                streak: inputs.streak.clone().filter(|_| attempt.is_first()),
                facts: facts.as_ref().map(|facts| facts.check.clone()),
                consent: check.clone(),
                claim: claim.clone(),
                cache: lookup.as_ref().map(|lookup| lookup.name.clone()).filter(|_| !attempt.waited),
                view: view.clone(),
            };
            let started_at = Instant::now();
            let answer = self.decisions.begin(begin, durability, self.settings.durable_wait).await;
            let Some(((result, read), confirmed)) = answer else {
                self.metrics.fenced("begin");
                return Err(NotBegun::of(AttemptOutcome::Lost));
            };
            view.extend(read);
            let context = BeginContext {
                attempt,
                inputs: &inputs,
                passed: &passed,
                facts: facts.as_ref(),
                claim: claim.as_ref(),
            };
            let next = match self.next(&context, uses.as_ref(), check.as_ref(), result, &view).await {
                Ok(next) => next,
                Err(not_begun) => {
                    attempt.progress.lock().view.extend(view);
                    return Err(not_begun);
                }
            };
            match next {
                AfterBegin::Started(started) => {
                    let Started { version, turn, shadow, checked_ms, agreed, cached } = *started;
                    let is_begun = turn.begun.as_ref().is_some_and(|begun| begun.by == *by);
                    {
                        let mut progress = attempt.progress.lock();
                        progress.written = Some(Box::new((version, turn)));
                        progress.begun_by = is_begun.then(|| by.clone());
                        progress.effects.unrun = None;
                        progress.view.extend(view);
                    }
                    if let Some(claim) = &claim {
                        self.journal.record_claim(claims::opened(claim), attempt.head().deadline_ms);
                    }
                    if !self.journal.begin(attempt.slice, attempt.id.position, by, once, attempt.lease.epoch) {
                        // A restarted store may have lost the begin record, so the call is not sent.
                        return Err(NotBegun::of(attempt.unsent()));
                    }
                    if let Err(outcome) = self.confirmed(attempt, durability, confirmed, started_at.elapsed()) {
                        // Undo the begin record: if the store loses this turn, the same turn may be submitted again and
                        // run the call.
                        self.journal.undo(attempt.slice, attempt.id.position).await;
                        return Err(NotBegun::of(outcome));
                    }
                    let approved = check.map(|check| {
                        let arguments = changed.map(ToOwned::to_owned);
                        CallApproval { id: check.uses.id, by: agreed, arguments }
                    });
                    if approved.is_some() {
                        self.approvals.count_approved(attempt);
                    }
                    let shadow = facts
                        .as_ref()
                        .map(|facts| facts.in_shadow(attempt, &runs.tool, inputs.tools, &shadow))
                        .unwrap_or_default();
                    // Only the first attempt checks the conditions. On a retry, 0 means that the time of the check is
                    // unknown.
                    let facts_evaluated_ms = checked_ms.map(|at_ms| if attempt.number == 1 { at_ms } else { 0 });
                    let mut passed = narrowed.unwrap_or(passed);
                    passed.shadow.extend(shadow);
                    return Ok(BegunCall { passed, approved, facts_evaluated_ms, lookup, cached });
                }
                AfterBegin::Nothing(claimant) => nothing = Some(claimant),
                AfterBegin::Again => {
                    if let Some(check) = &check {
                        view.remove(&Query::Record(approval::key(&attempt.slice.name.tenant, &check.uses.id)));
                    }
                }
            }
        }
    }

    /// Applies the arguments that people changed. The error is the outcome of a call that cannot run with them.
    async fn consented(
        &self,
        attempt: &CallAttempt<'_>,
        tools: &Toolbox,
        passed: &CheckedCall,
        uses: &UseConsent,
        view: &View,
    ) -> Result<(ConsentCheck, Option<CheckedCall>), NotBegun> {
        let narrowed = self.approvals.narrowed_values(attempt, uses, view);
        let again = match &narrowed {
            Some(values) => {
                let begun = self.begun_by_another(attempt).await;
                Some(self.approvals.narrowed(attempt, tools, passed, values, begun).await?)
            }
            None => None,
        };
        Ok((ConsentCheck { uses: uses.clone(), narrowed }, again))
    }

    fn denied_by_fact(
        &self,
        context: &BeginContext<'_>,
        facts: &FactsCheck<'_>,
        condition: usize,
        known: KnownFact,
    ) -> AttemptOutcome {
        let attempt = context.attempt;
        let denied = facts.denied(attempt, &context.passed.tool, context.inputs.tools, condition, known);
        let Some((rule, error)) = denied else { return AttemptOutcome::Lost };
        self.metrics.rule_denied(&rule, RuleAction::Deny);
        let facts_evaluated_ms = Some(if attempt.number == 1 { self.store.state().now_ms } else { 0 });
        let denied = CallResult { facts_evaluated_ms, ..attempt.result(Outcome::Denied, error) };
        AttemptOutcome::Ended(Box::new(denied), Vec::new())
    }

    fn queries(
        &self,
        attempt: &CallAttempt<'_>,
        inputs: &BeginInputs<'_>,
        passed: &CheckedCall,
        uses: &UseConsent,
    ) -> Vec<Query> {
        let tenant = &attempt.slice.name.tenant;
        let row = facts::row_of(attempt.config, attempt.slice, &attempt.call.tool);
        let claim = self.claims.claim_of(attempt, &passed.tool, &passed.arguments, None).ok().flatten();
        let cached = self.cache.lookup_of(attempt, &passed.tool, &passed.arguments);
        let records = [
            Some(approval::key(tenant, &uses.id)),
            inputs.streak.as_ref().map(|streak| streak.name.key()),
            row.map(|row| facts::session_of(attempt.slice, row).key()),
            claim.map(|claim| claim.effect.key()),
        ];
        let records = records.into_iter().flatten().map(Query::Record);
        let cached = cached.into_iter().flat_map(|lookup| [lookup.name.query()]);
        records.chain(cached).collect()
    }

    async fn read(&self, attempt: &CallAttempt<'_>, view: &mut View, queries: Vec<Query>) -> Result<(), NotBegun> {
        let missing: Vec<Query> = queries.into_iter().filter(|query| view.get(query).is_err()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let read = retry_until(&self.now, || async {
            match self.store.seam().read(&missing).await {
                Ok(values) => Attempt::Done(Some(values)),
                Err(error) if error.is_script_error() => {
                    tracing::error!(%error, call = %attempt.id, "store rejected a read");
                    Attempt::Done(None)
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to read before a call; retrying");
                    Attempt::Failed
                }
            }
        });
        let Some(values) = read.await.flatten() else { return Err(NotBegun::of(AttemptOutcome::Lost)) };
        for (query, value) in missing.into_iter().zip(values) {
            view.insert(query, value);
        }
        Ok(())
    }

    async fn next(
        &self,
        context: &BeginContext<'_>,
        uses: Option<&UseConsent>,
        check: Option<&ConsentCheck>,
        result: BeginResult,
        view: &View,
    ) -> Result<AfterBegin, NotBegun> {
        let attempt = context.attempt;
        let counted = |outcome| NotBegun { outcome, counts: true };
        Err(match result {
            BeginResult::Started(started) => return Ok(AfterBegin::Started(started)),
            BeginResult::ConsentChanged => return Ok(AfterBegin::Again),
            BeginResult::Waits(reason) => NotBegun::of(self.waits(context, reason, view)),
            BeginResult::Asks { before } => {
                let Some(uses) = uses else { return Err(NotBegun::of(AttemptOutcome::Lost)) };
                NotBegun::of(self.approvals.request_approval(attempt, context.passed, uses, before).await)
            }
            BeginResult::Refused(refusal) => self.refused_by(context, check, refusal).await,
            BeginResult::AnsweredBy { by, result } => {
                let Some(claim) = context.claim else { return Err(NotBegun::of(AttemptOutcome::Lost)) };
                counted(self.claims.equal_call_outcome(attempt, claim, &by, &result))
            }
            BeginResult::Abandoned { by, result } => {
                let Some(claim) = context.claim else { return Err(NotBegun::of(AttemptOutcome::Lost)) };
                match self.claims.end_of(claim, &by, result).await {
                    Some(result) => counted(self.claims.known_outcome(attempt, claim, &by, result)),
                    None => return Ok(AfterBegin::Nothing(by)),
                }
            }
            BeginResult::Reported { call } => NotBegun::of(AttemptOutcome::Reported(Box::new(call))),
            BeginResult::Unknown => counted(self.unknown(attempt)),
            BeginResult::Canceled { reason } => {
                attempt.lease.cancel.cancel();
                attempt.progress.lock().canceled = Some(reason.clone());
                counted(self.end_unless_begun(attempt, &EndReason::Canceled).await)
            }
            BeginResult::Expired => counted(self.end_unless_begun(attempt, &EndReason::Expired).await),
            // A restarted store may have lost another worker's begin record of this call, so wait for that worker's
            // report.
            BeginResult::Hold => {
                tokio::select! {
                    () = self.now.cancelled() => return Err(NotBegun::of(AttemptOutcome::unsent())),
                    () = tokio::time::sleep(RESTART_WAIT) => {}
                }
                if self.journal.epoch() != attempt.lease.epoch {
                    return Err(NotBegun::of(AttemptOutcome::Requeue(RequeueReason::ParallelReads)));
                }
                return Ok(AfterBegin::Again);
            }
            BeginResult::Stale => {
                self.metrics.fenced("begin");
                NotBegun::of(AttemptOutcome::Lost)
            }
        })
    }

    fn waits(&self, context: &BeginContext<'_>, reason: WaitReason, view: &View) -> AttemptOutcome {
        let attempt = context.attempt;
        let (at_most, wait, waits_while) = match (&reason, context.facts, context.claim) {
            (WaitReason::Fact { .. }, Some(facts), _) => {
                self.metrics.waited_for_facts();
                (facts::RECHECK_AFTER, WaitFor::Facts(facts.check.clone(), attempt.name()), Vec::new())
            }
            (WaitReason::EqualCall { .. }, _, Some(claim)) => {
                (RECHECK_AFTER, WaitFor::Claim(claim.clone()), Vec::new())
            }
            (WaitReason::Approval { approval }, ..) => {
                let (at_most, guard) = self.approvals.approval_wait_bounds(attempt, approval, view);
                (at_most, WaitFor::Timer, guard.into_iter().collect())
            }
            _ => (RECHECK_AFTER, WaitFor::Timer, Vec::new()),
        };
        AttemptOutcome::WaitToBegin(Box::new(BeginWait { reason, at_most, wait, waits_while }))
    }

    async fn refused_by(&self, context: &BeginContext<'_>, check: Option<&ConsentCheck>, refusal: Refusal) -> NotBegun {
        let attempt = context.attempt;
        let id = check.map_or("", |check| check.uses.id.as_str());
        NotBegun::of(match refusal {
            Refusal::Streak { until_ms } => self.loops.refused(attempt, until_ms),
            Refusal::Fact { condition, known } => match context.facts {
                Some(facts) => self.denied_by_fact(context, facts, condition, known),
                None => AttemptOutcome::Lost,
            },
            Refusal::FactsFull => facts::session_full(attempt, &context.passed.tool.spec.name),
            Refusal::Denied { by, reason } => self.approvals.denied_by(attempt, id, &by, &reason),
            Refusal::ConsentExpired { since_ms } => self.approvals.consent_expired(attempt, since_ms, id),
            Refusal::NotAsked => {
                tracing::error!(call = %attempt.id, approval = id, "approval id belongs to another call; ending the call");
                self.approvals.cannot_be_asked(attempt)
            }
            Refusal::EqualAbove { by } => {
                let error = messages::equal_call_waits(&context.passed.tool.spec.name, &by.to_string());
                attempt.refused(Outcome::Denied, error)
            }
        })
    }

    /// Fails if the begin record lacks the durability that the tool requires. Nothing is sent then.
    fn confirmed(
        &self,
        attempt: &CallAttempt<'_>,
        durability: Durability,
        confirmed: Confirmed,
        took: Duration,
    ) -> Result<(), AttemptOutcome> {
        if durability == Durability::None {
            return Ok(());
        }
        self.metrics.begun_durably(durability, confirmed == Confirmed::Yes, took);
        let message = match confirmed {
            Confirmed::Yes => return Ok(()),
            Confirmed::NotInTime => messages::not_durable(durability, self.settings.durable_wait),
            Confirmed::CannotTell(why) => {
                let durable = durability.as_str();
                tracing::error!(call = %attempt.id, durable, why, "Redis cannot confirm that the begin is durable; call not executed");
                messages::cannot_be_durable(durability)
            }
        };
        Err(self.retry_or_give_up(attempt, &message, None, messages::NOT_DURABLE))
    }

    pub(super) fn context(&self, attempt: &CallAttempt<'_>, tools: Toolbox, inner: Inner) -> CallContext {
        let head = attempt.head();
        let name = &attempt.slice.name;
        CallContext {
            tenant: name.tenant.clone(),
            agent: head.agent.clone(),
            call: attempt.id.clone(),
            idempotency_key: idempotency_key(&name.tenant, &attempt.id.turn, &head.digest, attempt.id.position),
            deadline_ms: head.deadline_ms,
            attempt: attempt.number,
            context: attempt.context.clone(),
            task: head.task.clone(),
            tools,
            reply_to: head.reply_to.clone(),
            secrets: ToolSecrets::default(),
            fence: attempt.slice.entry.to_string(),
            waited: attempt.waited,
            may_be_forgotten: self.may_be_forgotten(attempt),
            inner,
            progress: ProgressSink::default(),
            cancel: attempt.lease.cancel.child_token(),
        }
    }
}

struct BeginContext<'a> {
    attempt: &'a CallAttempt<'a>,
    inputs: &'a BeginInputs<'a>,
    passed: &'a CheckedCall,
    facts: Option<&'a FactsCheck<'a>>,
    claim: Option<&'a ClaimEffect>,
}

//! The single decision that begins a call: consent, facts, idempotency claim, streak, cached result and intent record.
//! If the begin must be durable, the call waits for that before it runs.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::call::approval::{self, UseConsent};
use tickfleet_core::call::begin::{BeginResult, ConsentCheck, Refusal, Started, StreakCheck};
use tickfleet_core::call::claim::{ClaimEffect, Claimant};
use tickfleet_core::recovery::epoch::{AskUnrun, Mark, Unrun};
use tickfleet_core::turn::end::RenderedCall;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{HandBackReason, WaitReason};
use tickfleet_core::{Query, View};
use tickfleet_engine::report;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::outcome::Approved;
use tickfleet_model::{CallResult, Durability, Effect, Outcome, idempotency_key};
use tickfleet_store::Confirmed;
use tickfleet_store::seam::RunError;
use tokio::time::Instant;

use crate::batch::{BeginCall, WaitFor};
use crate::calls::effects;
use crate::calls::governed::facts::FactsCheck;
use crate::calls::governed::{consent, facts};
use crate::calls::guards::{Admitted, Passed};
use crate::calls::messages;
use crate::calls::state::Calls;
use crate::calls::trying::{Disposition, Instead, Trying, Waiting};
use crate::tools::inner::Inner;
use crate::tools::{CallContext, ToolSecrets, Toolbox};

/// The time between two begins of a store that has just restarted.
pub(super) const HOLD: Duration = Duration::from_millis(500);
/// The end of an equal call wakes the calls that wait for it. If that wake-up is lost, they check again after this
/// time.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The state of earlier attempts of a call that this attempt does not begin.
pub(super) enum Earlier {
    /// No attempt has begun it.
    None,
    /// It may have run, and running it twice is harmless.
    MayHaveRun,
    /// The call ends with this disposition.
    Ends(Disposition),
}

/// The inputs of a begin that stay the same when it is repeated.
pub(super) struct Wanted<'a> {
    pub(super) tools: &'a Toolbox,
    pub(super) streak: Option<StreakCheck>,
    /// True if the call is about to run; false if only a cached result or the result of an equal call is wanted.
    pub(super) runs: bool,
}

/// The next step after a begin.
enum Next {
    Started(Box<Started>),
    /// Begin again, because this equal call certainly had no effect.
    Nothing(Claimant),
    Again,
}

impl Calls {
    /// Returns whether another attempt has begun a call that will not run here. After a restart of the store, waits
    /// until other workers have reported the calls that they have begun.
    pub(super) async fn begun_before(&self, trying: &Trying<'_>) -> Earlier {
        let once = !matches!(trying.config.registry.effect(&trying.call.tool), Some(Effect::Read | Effect::Idempotent));
        let (turn, position) = (&trying.slice.turn, trying.id.position);
        let is_begun =
            turn.begun.as_ref().is_some_and(|begun| begun.position == position || once && begun.position > position);
        if is_begun {
            return Earlier::Ends(self.unknown(trying));
        }
        let ask = AskUnrun {
            name: &trying.slice.name,
            digest: &trying.head().digest,
            from: position,
            upto: position + 1,
            lease_ms: self.store.options().lease_ms,
        };
        let asked = retry_until(&self.now, || async {
            match self.store.decide(ask).await.map(|receipt| receipt.result) {
                Ok(Unrun::Known(known)) => Attempt::Done(Some(known)),
                Ok(Unrun::Hold(_)) => Attempt::Later(HOLD),
                Err(RunError::Unreadable { key, why }) => {
                    tracing::error!(call = %trying.id, %key, %why, "failed to read the reports of begun calls");
                    Attempt::Done(None)
                }
                Err(_) => Attempt::Failed,
            }
        });
        let mut known = match asked.await {
            Some(Some(known)) => known,
            // The reports cannot be read, and this call may be among them.
            Some(None) => return Earlier::Ends(self.unknown(trying)),
            None => return Earlier::Ends(Disposition::unsent()),
        };
        match known.began.remove(&position) {
            None => {
                trying.progress.lock().ends.unrun = Some(known);
                Earlier::None
            }
            Some(Mark { result: Some(result), .. }) => {
                Earlier::Ends(Disposition::Kept(Box::new(RenderedCall::from(&result))))
            }
            Some(mark) if mark.once || once => Earlier::Ends(self.unknown(trying)),
            Some(_) => Earlier::MayHaveRun,
        }
    }

    /// Like [`Self::begun_before`], but returns only a disposition that ends the call.
    pub(super) async fn begun_by_another(&self, trying: &Trying<'_>) -> Option<Disposition> {
        match self.begun_before(trying).await {
            Earlier::Ends(disposition) => Some(disposition),
            Earlier::None | Earlier::MayHaveRun => None,
        }
    }

    /// The end of a call that another attempt has begun, and whose outcome is unknown.
    fn unknown(&self, trying: &Trying<'_>) -> Disposition {
        // The attempt that began it was lost or could not write its result. The text is true in both cases.
        let what = "This call was begun before, and no result of it was recorded.";
        let error = messages::outcome_unknown(&trying.call.tool, what);
        let begun = trying.slice.turn.begun.as_ref().filter(|begun| begun.position == trying.id.position);
        let approval = begun.and_then(|begun| begun.consent.as_ref()).map(|consent| {
            report::approved(&consent.approval, &consent.by, consent.narrowed.as_deref(), &trying.call.arguments)
        });
        let goes_by_facts = facts::row_of(trying.config, trying.slice, &trying.call.tool).is_some();
        let entered_ms = goes_by_facts.then_some(0);
        let unknown = CallResult { approval, entered_ms, ..trying.result(Outcome::OutcomeUnknown, error) };
        Disposition::Ended(Box::new(unknown), Vec::new())
    }

    /// Begins a call that has passed every guard.
    ///
    /// # Errors
    /// The disposition of a call that waits or ends instead.
    pub(super) async fn let_in(
        &self,
        trying: &Trying<'_>,
        wanted: Wanted<'_>,
        passed: Passed,
    ) -> Result<Admitted, Instead> {
        let facts_row = facts::row_of(trying.config, trying.slice, &trying.call.tool);
        let uses = (!passed.asked.is_empty()).then(|| consent::uses(trying, &passed));
        let once = passed.tool.spec.effect == Effect::Once;
        let (mut nothing, mut view, mut by) = (None, trying.view.clone(), None);
        loop {
            let mut agreed = None;
            if let Some(uses) = &uses {
                let queries = self.queries(trying, &wanted, &passed, uses);
                self.read(trying, &mut view, queries).await?;
                agreed = Some(self.consented(trying, wanted.tools, &passed, uses, &view).await?);
            }
            let (check, narrowed) = agreed.map_or((None, None), |(check, narrowed)| (Some(check), narrowed));
            let runs = narrowed.as_ref().unwrap_or(&passed);
            let changed = narrowed.as_ref().map(|again| &*again.arguments);
            let facts = facts_row.map(|row| facts::check_of(trying, row, changed));
            let claim = self.ledger.claim_of(trying, &runs.tool, &runs.arguments, nothing.take());
            let claim = claim.map_err(|invalid| Instead::of(*invalid))?;
            let question = self.cache.asked(trying, &runs.tool, &runs.arguments);
            // If a call is begun and then returned, its outcome can only be reported as unknown, so check the lease
            // before the begin too.
            if once && wanted.runs && !self.still_leased(trying).await {
                return Err(Instead::of(Disposition::unsent()));
            }
            let by = by.get_or_insert_with(|| self.store.versions().draw().to_string());
            let begin = BeginCall {
                slice: Arc::clone(trying.slice),
                position: trying.id.position,
                by: by.clone(),
                once: once && wanted.runs,
                epoch: self.journal.epoch(),
                streak: wanted.streak.clone().filter(|_| trying.is_first()),
                facts: facts.as_ref().map(|facts| facts.check.clone()),
                consent: check.clone(),
                claim: claim.clone(),
                cache: question.as_ref().map(|question| question.name.clone()).filter(|_| !trying.waited),
                view: view.clone(),
            };
            let durability =
                if begin.once { runs.tool.spec.durable.unwrap_or(self.durable.0) } else { Durability::None };
            let asked = Instant::now();
            let answer = self.outbox.begin(begin, durability, self.durable.1).await;
            let Some(((result, read), confirmed)) = answer else {
                self.metrics.fenced("begin");
                return Err(Instead::of(Disposition::Lost));
            };
            view.extend(read);
            let asks = Asks { trying, wanted: &wanted, passed: &passed, facts: facts.as_ref(), claim: claim.as_ref() };
            let next = match self.next(&asks, uses.as_ref(), check.as_ref(), result, &view).await {
                Ok(next) => next,
                Err(instead) => {
                    trying.progress.lock().view.extend(view);
                    return Err(instead);
                }
            };
            match next {
                Next::Started(started) => {
                    let Started { version, turn, shadow, checked_ms, agreed, cached } = *started;
                    let is_begun = turn.begun.as_ref().is_some_and(|begun| begun.by == *by);
                    {
                        let mut progress = trying.progress.lock();
                        progress.written = Some(Box::new((version, turn)));
                        progress.begun_by = is_begun.then(|| by.clone());
                        // From here on the call may run.
                        progress.ends.unrun = None;
                        progress.view.extend(view);
                    }
                    if let Some(claim) = &claim {
                        self.journal.claimed(effects::opened(claim), trying.head().deadline_ms);
                    }
                    if !self.journal.begin(trying.slice, trying.id.position, by, once, trying.hold.epoch) {
                        // The store may have lost the begin already.
                        return Err(Instead::of(trying.unsent()));
                    }
                    if let Err(disposition) = self.confirmed(trying, durability, confirmed, asked.elapsed()) {
                        // Also if this was its last attempt: if this store loses the turn, another one may carry it
                        // out.
                        self.journal.undo(&trying.slice.name, trying.id.position).await;
                        return Err(Instead::of(disposition));
                    }
                    let approved = check.map(|check| {
                        let arguments = changed.map(ToOwned::to_owned);
                        Approved { id: check.uses.id, by: agreed, arguments }
                    });
                    if approved.is_some() {
                        self.count_agreed(trying);
                    }
                    let shadow = facts
                        .as_ref()
                        .map(|facts| facts.in_shadow(trying, &runs.tool, wanted.tools, &shadow))
                        .unwrap_or_default();
                    // On a retry the conditions are not evaluated again.
                    let entered_ms = checked_ms.map(|at_ms| if trying.attempt == 1 { at_ms } else { 0 });
                    let mut passed = narrowed.unwrap_or(passed);
                    passed.shadow.extend(shadow);
                    return Ok(Admitted { passed, approved, entered_ms, question, cached });
                }
                Next::Nothing(claimant) => nothing = Some(claimant),
                Next::Again => {
                    if let Some(check) = &check {
                        view.remove(&Query::Record(approval::key(&trying.slice.name.tenant, &check.uses.id)));
                    }
                }
            }
        }
    }

    /// Everything that the begin of a call reads.
    fn queries(&self, trying: &Trying<'_>, wanted: &Wanted<'_>, passed: &Passed, uses: &UseConsent) -> Vec<Query> {
        let tenant = &trying.slice.name.tenant;
        let row = facts::row_of(trying.config, trying.slice, &trying.call.tool);
        let claim = self.ledger.claim_of(trying, &passed.tool, &passed.arguments, None).ok().flatten();
        let cached = self.cache.asked(trying, &passed.tool, &passed.arguments);
        let records = [
            Some(approval::key(tenant, &uses.id)),
            wanted.streak.as_ref().map(|streak| streak.name.key()),
            row.map(|row| facts::session_of(trying.slice, row).key()),
            claim.map(|claim| claim.effect.key()),
        ];
        let records = records.into_iter().flatten().map(Query::Record);
        let cached = cached.into_iter().flat_map(|question| [question.name.query()]);
        records.chain(cached).collect()
    }

    /// Reads the queries that the view lacks.
    async fn read(&self, trying: &Trying<'_>, view: &mut View, queries: Vec<Query>) -> Result<(), Instead> {
        let missing: Vec<Query> = queries.into_iter().filter(|query| view.get(query).is_err()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let read = retry_until(&self.now, || async {
            match self.store.seam().read(&missing).await {
                Ok(values) => Attempt::Done(Some(values)),
                Err(error) if error.is_script_error() => {
                    tracing::error!(%error, call = %trying.id, "store rejected a read");
                    Attempt::Done(None)
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to read before a call; retrying");
                    Attempt::Failed
                }
            }
        });
        let Some(values) = read.await.flatten() else { return Err(Instead::of(Disposition::Lost)) };
        for (query, value) in missing.into_iter().zip(values) {
            view.insert(query, value);
        }
        Ok(())
    }

    /// The next step after the result of a begin.
    async fn next(
        &self,
        asks: &Asks<'_>,
        uses: Option<&UseConsent>,
        check: Option<&ConsentCheck>,
        result: BeginResult,
        view: &View,
    ) -> Result<Next, Instead> {
        let trying = asks.trying;
        let counted = |disposition| Instead { disposition, counts: true };
        Err(match result {
            BeginResult::Started(started) => return Ok(Next::Started(started)),
            BeginResult::ConsentChanged => return Ok(Next::Again),
            BeginResult::Waits(reason) => Instead::of(self.waits(asks, reason, view)),
            BeginResult::Asks { before } => {
                let Some(uses) = uses else { return Err(Instead::of(Disposition::Lost)) };
                Instead::of(self.asks(trying, asks.passed, uses, before).await)
            }
            BeginResult::Refused(refusal) => self.refused_by(asks, check, refusal).await,
            BeginResult::AnsweredBy { by, result } => {
                let Some(claim) = asks.claim else { return Err(Instead::of(Disposition::Lost)) };
                counted(self.ledger.answered(trying, claim, &by, &result))
            }
            BeginResult::Abandoned { by, result } => {
                let Some(claim) = asks.claim else { return Err(Instead::of(Disposition::Lost)) };
                match self.ledger.end_of(claim, &by, result).await {
                    Some(result) => counted(self.ledger.told(trying, claim, &by, result)),
                    None => return Ok(Next::Nothing(by)),
                }
            }
            BeginResult::Reported { call } => Instead::of(Disposition::Kept(Box::new(call))),
            BeginResult::Unknown => counted(self.unknown(trying)),
            BeginResult::Canceled { reason } => {
                trying.hold.cancel.cancel();
                trying.progress.lock().canceled = Some(reason.clone());
                counted(self.ended_before_this_try(trying, &EndReason::Canceled).await)
            }
            BeginResult::Expired => counted(self.ended_before_this_try(trying, &EndReason::Expired).await),
            // The store restarted, and it may have lost another worker's begin of this same call.
            BeginResult::Hold => {
                tokio::select! {
                    () = self.now.cancelled() => return Err(Instead::of(Disposition::unsent())),
                    () = tokio::time::sleep(HOLD) => {}
                }
                if self.journal.epoch() != trying.hold.epoch {
                    return Err(Instead::of(Disposition::HandBack(HandBackReason::Beside)));
                }
                return Ok(Next::Again);
            }
            BeginResult::Stale => {
                self.metrics.fenced("begin");
                Instead::of(Disposition::Lost)
            }
        })
    }

    /// The disposition of a call that must wait before it begins.
    fn waits(&self, asks: &Asks<'_>, reason: WaitReason, view: &View) -> Disposition {
        let trying = asks.trying;
        let (at_most, wait, waits_while) = match (&reason, asks.facts, asks.claim) {
            (WaitReason::Fact { .. }, Some(facts), _) => {
                self.metrics.waited_for_facts();
                (facts::LOOK_AGAIN, WaitFor::Facts(facts.check.clone(), trying.name()), Vec::new())
            }
            (WaitReason::EqualCall { .. }, _, Some(claim)) => (LOOK_AGAIN, WaitFor::Claim(claim.clone()), Vec::new()),
            (WaitReason::Approval { approval }, ..) => {
                let (at_most, guard) = self.waits_for_people(trying, approval, view);
                (at_most, WaitFor::Timer, guard.into_iter().collect())
            }
            _ => (LOOK_AGAIN, WaitFor::Timer, Vec::new()),
        };
        Disposition::WaitsFor(Box::new(Waiting { reason, at_most, wait, waits_while }))
    }

    /// The end of a call that a check in the begin refuses.
    async fn refused_by(&self, asks: &Asks<'_>, check: Option<&ConsentCheck>, refusal: Refusal) -> Instead {
        let trying = asks.trying;
        let id = check.map_or("", |check| check.uses.id.as_str());
        Instead::of(match refusal {
            Refusal::Streak { until_ms } => self.loops.refused(trying, until_ms),
            Refusal::Fact { condition, known } => match asks.facts {
                Some(facts) => {
                    let tool = (&*asks.passed.tool, asks.wanted.tools);
                    self.denied_by_fact(trying, tool, facts, condition, known)
                }
                None => Disposition::Lost,
            },
            Refusal::FactsFull => facts::full(trying, &asks.passed.tool.spec.name),
            Refusal::Denied { by, reason } => self.denied_by(trying, id, &by, &reason),
            Refusal::ConsentExpired { since_ms } => self.consent_expired(trying, since_ms, id),
            Refusal::NotAsked => {
                tracing::error!(call = %trying.id, approval = id, "approval id belongs to another call; ending the call");
                self.cannot_be_asked(trying)
            }
            Refusal::EqualAbove { by } => {
                let error = messages::equal_above(&asks.passed.tool.spec.name, &by.to_string());
                trying.refused(Outcome::Denied, error)
            }
        })
    }

    /// A begun call runs only if its begin has the durability that its tool requires. Otherwise nothing is sent, and
    /// this attempt fails with certainly no effect.
    fn confirmed(
        &self,
        trying: &Trying<'_>,
        durability: Durability,
        confirmed: Confirmed,
        took: Duration,
    ) -> Result<(), Disposition> {
        if durability == Durability::None {
            return Ok(());
        }
        self.metrics.begun_durably(durability, confirmed == Confirmed::Yes, took);
        let message = match confirmed {
            Confirmed::Yes => return Ok(()),
            Confirmed::NotInTime => messages::not_durable(durability, self.durable.1),
            Confirmed::CannotTell(why) => {
                let durable = durability.as_str();
                tracing::error!(call = %trying.id, durable, why, "Redis cannot confirm that the begin is durable; call not executed");
                messages::cannot_be_durable(durability)
            }
        };
        Err(self.try_again(trying, &message, None, messages::NOT_DURABLE))
    }

    /// The context of the call for its handler.
    pub(super) fn context(&self, trying: &Trying<'_>, tools: Toolbox, inner: Inner) -> CallContext {
        let (head, name) = (trying.head(), &trying.slice.name);
        CallContext {
            tenant: name.tenant.clone(),
            agent: head.agent.clone(),
            call: trying.id.clone(),
            idempotency_key: idempotency_key(&name.tenant, &trying.id.turn, &head.digest, trying.id.position),
            deadline_ms: head.deadline_ms,
            attempt: trying.attempt,
            context: trying.context.clone(),
            task: head.task.clone(),
            tools,
            reply_to: head.reply_to.clone(),
            secrets: ToolSecrets::default(),
            fence: trying.slice.entry.to_string(),
            waited: trying.waited,
            may_be_forgotten: self.may_be_forgotten(trying),
            inner,
            cancel: trying.hold.cancel.child_token(),
        }
    }
}

/// A begin with its inputs. Messages about its result need them.
struct Asks<'a> {
    trying: &'a Trying<'a>,
    wanted: &'a Wanted<'a>,
    passed: &'a Passed,
    facts: Option<&'a FactsCheck<'a>>,
    claim: Option<&'a ClaimEffect>,
}

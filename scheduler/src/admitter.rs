//! START HERE: the life of an inbound turn. [`crate::intake`] takes a batch of turns. This module admits the batch in
//! one commit.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tickfleet_core::Receipt;
use tickfleet_core::bounds::Bounds;
use tickfleet_core::turn::admit::{Admit, AdmitRefusal, AdmitResult};
use tickfleet_core::turn::advance::AdvanceResult;
use tickfleet_core::turn::submit::Inbound;
use tickfleet_core::turn::{Head, Turn};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::{ConsumerId, RejectionCode, TaskGrant, limits};
use tickfleet_ops::metrics::{Decision, LimitAction, Metrics};
use tickfleet_protocol::{RejectionStatus, parse_turn};
use tickfleet_store::seam::RunError;
use tickfleet_store::{Store, StoreError, TurnName, worker_queues};
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::admission::{Arrival, Candidate, Rejection, expected, head, refuse};
use crate::inbound_reader::InboundReader;
use crate::intake::{BatchHandler, Intake, WRONG_SHARD, rejections_length};
use crate::janitor::trim_inbox;
use crate::policy::PolicySnapshot;
use crate::policy_tracker::PolicyTracker;
use crate::unrun_calls::{RecordingRenderer, turn_ended};

const ROOM_EVERY: Duration = Duration::from_millis(50);
/// While memory is short, turns are admitted only below this number of slices in queues and workers. Some slices must
/// run, because finished slices free memory.
const TIGHT_SLICES: u64 = 256;
/// Replaces [`TIGHT_SLICES`] while the store's memory is full.
const FULL_SLICES: u64 = 16;
/// In one commit, while memory is short.
const TIGHT_TURNS: usize = 16;
/// In one commit, while memory is short.
const TIGHT_BYTES: usize = 512 * 1024;

pub(crate) struct Admitter {
    store: Store,
    active: Arc<PolicyHandle>,
    policy_tracker: Arc<PolicyTracker>,
    intake: Arc<Intake>,
    metrics: Arc<Metrics>,
}

impl BatchHandler for Admitter {
    /// Entries of a dead scheduler are admitted one by one, and each is first marked as a suspect.
    async fn handle_batch(&self, reader: &InboundReader, arrivals: Vec<Arrival>) {
        let (suspects, clean): (Vec<_>, Vec<_>) = arrivals.into_iter().partition(|arrival| arrival.crashes > 0);
        self.admit_batch(reader, clean).await;
        for suspect in suspects {
            // If the loop must stop, this consumer keeps the remaining entries, and releases them to other schedulers
            // at its end.
            if self.policy_tracker.is_over() || !reader.mark_suspect(&suspect.entry.id).await {
                return;
            }
            self.admit_batch(reader, vec![suspect]).await;
            reader.clear_suspect().await;
        }
    }
}

impl Admitter {
    pub(crate) fn new(common: &Common, intake: &Arc<Intake>) -> Self {
        Self {
            store: common.store.clone(),
            active: common.active.clone(),
            policy_tracker: common.policy_tracker.clone(),
            intake: intake.clone(),
            metrics: common.metrics.clone(),
        }
    }

    pub(crate) async fn run(self: Arc<Self>, consumer: ConsumerId, stop: CancellationToken) {
        self.intake.read(Inbound::Turns, consumer, stop, &*self).await;
    }

    async fn admit_batch(&self, reader: &InboundReader, arrivals: Vec<Arrival>) {
        let mut rejections = Vec::new();
        let mut candidates = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            match parse_turn(&arrival.raw) {
                Ok(turn) => candidates.push(Candidate::new(turn, arrival)),
                Err(refusal) => {
                    self.metrics.admitted(Decision::Rejected, 1);
                    tracing::debug!(entry = %arrival.entry.id, code = refusal.code.as_str(), reason = refusal.message, "turn rejected");
                    rejections.push(self.intake.rejection(
                        Inbound::Turns,
                        &arrival,
                        &refusal,
                        RejectionStatus::Rejected,
                    ));
                }
            }
            // Rejections can be many times larger than their messages, so they must not grow far beyond one commit.
            if rejections_length(&rejections) < rejections.len() {
                self.intake.reject_all(reader, Inbound::Turns, std::mem::take(&mut rejections)).await;
            }
        }
        let mut rest = candidates.as_slice();
        while !rest.is_empty() && !self.policy_tracker.is_over() {
            let Some(count) = self.wait_for_room(reader, rest).await else { break };
            let (batch, later) = rest.split_at(count);
            rejections.extend(self.admit_until_decided(reader, batch).await);
            rest = later;
        }
        self.intake.reject_all(reader, Inbound::Turns, rejections).await;
    }

    /// Returns the number of candidates for the next commit, at least one. `None` if this incarnation must stop.
    async fn wait_for_room(&self, reader: &InboundReader, candidates: &[Candidate]) -> Option<usize> {
        let room = retry_until(reader, || async {
            if !self.store.state().pressure {
                let cost = self.policy_tracker.cost_of_call();
                return Attempt::Done(batch_length(candidates, usize::MAX, limits::BATCH_BYTES_MAX, cost));
            }
            match self.has_few_dispatched_slices().await {
                Ok(true) => Attempt::Done(batch_length(candidates, TIGHT_TURNS, TIGHT_BYTES, 1)),
                Ok(false) => Attempt::Later(ROOM_EVERY),
                Err(error) => {
                    tracing::warn!(%error, "failed to count the slices on queues; retrying");
                    Attempt::Failed
                }
            }
        });
        room.await
    }

    /// Returns true if turns can be admitted even while memory is short.
    async fn has_few_dispatched_slices(&self) -> Result<bool, StoreError> {
        self.store.refresh_state().await?;
        let (used, max) = self.store.seam().sample_memory().await?;
        let queues = worker_queues();
        let backlogs = try_join_all(queues.iter().map(|queue| self.store.seam().backlog(queue))).await?;
        let out: u64 = backlogs.iter().map(|backlog| backlog.waiting + backlog.held).sum();
        Ok(out < if used >= max { FULL_SLICES } else { TIGHT_SLICES })
    }

    /// The candidates must fit one commit.
    async fn admit_until_decided(&self, reader: &InboundReader, candidates: &[Candidate]) -> Vec<Rejection> {
        let mut left: Vec<&Candidate> = candidates.iter().collect();
        let mut rejections = Vec::new();
        while !left.is_empty() {
            let attempt = retry_until(reader, || async {
                match self.try_to_admit(&left).await {
                    Ok(tried) => Attempt::Done(tried),
                    Err(StoreError::StateLost(what)) => {
                        self.policy_tracker.restore_lost_state(&what).await;
                        Attempt::AtOnce
                    }
                    Err(error) => {
                        tracing::warn!(%error, "admission got no response; retrying");
                        Attempt::Failed
                    }
                }
            });
            // Without a result, this incarnation must stop. Other schedulers take over its entries.
            let Some(AdmissionAttempt { retry, rejections: more }) = attempt.await else { break };
            rejections.extend(more);
            left = retry.into_iter().filter_map(|at| left.get(at).copied()).collect();
        }
        rejections
    }

    async fn try_to_admit(&self, candidates: &[&Candidate]) -> Result<AdmissionAttempt, StoreError> {
        self.refresh_for_unknown(candidates).await?;
        let grants = self.grants(candidates).await?;
        // Without a snapshot, a newer policy is in force, and this incarnation must stop.
        let Some(snapshot) = self.policy_tracker.policy_snapshot().await? else {
            return Ok(AdmissionAttempt::default());
        };
        let now_ms = self.store.state().now_ms;
        let mut heads = Vec::with_capacity(candidates.len());
        let mut tried = AdmissionAttempt::default();
        for (at, candidate) in candidates.iter().enumerate() {
            match self.head(candidate, &snapshot, grants.get(&at).cloned(), now_ms) {
                Ok(head) => heads.push((at, head)),
                Err(rejection) => tried.rejections.push(*rejection),
            }
        }
        self.announce_fact_calls(&snapshot, candidates, &heads).await;
        let (rules, render, bounds) =
            (snapshot.rules(), RecordingRenderer::new(snapshot.renderer()), self.store.bounds());
        let mut positions = Vec::with_capacity(heads.len());
        let mut admits = Vec::with_capacity(heads.len());
        for (at, head) in heads {
            let Some(candidate) = candidates.get(at) else { continue };
            snapshot.slots.count_arrival();
            positions.push(at);
            admits.push(admit(candidate, head, &rules, &render, &bounds));
        }
        if admits.is_empty() {
            return Ok(tried);
        }
        let decided = self.store.decide_all(&admits).await?;
        let mut counts: HashMap<Decision, u64> = HashMap::new();
        let mut is_stale = false;
        for ((at, admit), decided) in positions.into_iter().zip(&admits).zip(decided) {
            let Some(candidate) = candidates.get(at) else { continue };
            let decision = match decided {
                Ok(Receipt { result: AdmitResult::PolicyStale, .. }) => {
                    (is_stale, _) = (true, tried.retry.push(at));
                    continue;
                }
                Ok(Receipt { result: AdmitResult::Refused(AdmitRefusal::InboxFull), .. })
                    if self.has_trimmed(candidate).await? =>
                {
                    tried.retry.push(at);
                    continue;
                }
                Ok(receipt) => match self.count_decision(candidate, admit, &render, &receipt) {
                    Ok(decision) => decision,
                    Err(rejection) => {
                        let is_conflict = rejection.reason == RejectionCode::Conflict;
                        tried.rejections.push(*rejection);
                        if is_conflict { Decision::Conflict } else { Decision::Rejected }
                    }
                },
                Err(RunError::Contended(_)) => {
                    tried.retry.push(at);
                    continue;
                }
                Err(error) => {
                    tried.rejections.push(self.reject_faulty(candidate, &error));
                    Decision::Rejected
                }
            };
            candidate.span.record("decision", decision.as_str());
            *counts.entry(decision).or_default() += 1;
        }
        for (decision, turns) in counts {
            self.metrics.admitted(decision, turns);
        }
        if is_stale {
            self.policy_tracker.handle_stale_policy().await?;
        }
        Ok(tried)
    }

    /// Readers may have just confirmed replies, so a full inbox is trimmed before a turn is rejected.
    async fn has_trimmed(&self, candidate: &Candidate) -> Result<bool, StoreError> {
        let Some(inbox) = &candidate.turn.reply_to else { return Ok(false) };
        let age_ms = self.store.options().reply_retain_ms;
        Ok(trim_inbox(&self.store, &candidate.turn.tenant, inbox.as_str(), age_ms).await? > 0)
    }

    /// New run-time settings may define the unknown tenant or agent.
    async fn refresh_for_unknown(&self, candidates: &[&Candidate]) -> Result<(), StoreError> {
        let active = self.active.load();
        if candidates.iter().any(|one| active.policy.look_up(&one.turn.tenant, &one.turn.agent).is_err()) {
            self.active.refresh_if_changed(&self.store).await?;
        }
        Ok(())
    }

    /// By index of the candidate: the grant and the deadline (ms) of the turn's task. Leaves out unknown tasks, because
    /// [`Admit`] rejects their turns.
    async fn grants(&self, candidates: &[&Candidate]) -> Result<HashMap<usize, (TaskGrant, i64)>, StoreError> {
        let mut grants = HashMap::new();
        for (at, candidate) in candidates.iter().enumerate() {
            let Some(task) = &candidate.turn.task else { continue };
            let record = TurnName::task(&candidate.turn.tenant, task).record();
            let head = match self.store.record_of::<Turn>(&record).await {
                Err(error) if error.is_script_error() => None,
                found => found?.map(|stored| stored.value.head),
            };
            let grant = head.and_then(|head| Some((head.task?.1, head.deadline_ms)));
            grants.extend(grant.map(|grant| (at, grant)));
        }
        Ok(grants)
    }

    fn head(
        &self,
        candidate: &Candidate,
        snapshot: &PolicySnapshot,
        grant: Option<(TaskGrant, i64)>,
        now_ms: i64,
    ) -> Result<Head, Box<Rejection>> {
        if !self.store.is_home_of(&candidate.turn.tenant) {
            let refusal = refuse(RejectionCode::WrongShard, WRONG_SHARD.into(), &candidate.turn);
            return Err(Box::new(self.reject_before_decision(candidate, &refusal)));
        }
        head(candidate, &snapshot.active.policy, grant, now_ms)
            .map_err(|refusal| Box::new(self.reject_before_decision(candidate, &refusal)))
    }

    fn reject_before_decision(
        &self,
        candidate: &Candidate,
        refusal: &tickfleet_protocol::RejectedMessage,
    ) -> Rejection {
        self.metrics.admitted(Decision::Rejected, 1);
        let entry = &candidate.arrival.entry.id;
        let code = refusal.code.as_str();
        let reason = &refusal.message;
        tracing::debug!(%entry, code, reason, "turn rejected");
        let rejection = self.intake.rejection(Inbound::Turns, &candidate.arrival, refusal, RejectionStatus::Rejected);
        rejection.of_turn(candidate)
    }

    /// Announces the calls that can set facts. Calls that need these facts wait for them. A failed write loses no
    /// guarantee: the calls then do not wait.
    async fn announce_fact_calls(&self, snapshot: &PolicySnapshot, candidates: &[&Candidate], heads: &[(usize, Head)]) {
        let batch: Vec<_> =
            heads.iter().filter_map(|(at, head)| candidates.get(*at).map(|candidate| (*candidate, head))).collect();
        let expected = expected(&snapshot.active.policy, &batch);
        if expected.is_empty() {
            return;
        }
        if let Err(error) = self.store.decide_all(&expected).await {
            tracing::debug!(%error, "failed to announce calls that may set facts");
        }
    }

    fn count_decision(
        &self,
        candidate: &Candidate,
        admit: &Admit<'_>,
        render: &RecordingRenderer<'_>,
        receipt: &Receipt<AdmitResult>,
    ) -> Result<Decision, Box<Rejection>> {
        let now_ms = receipt.committed.as_ref().map_or_else(|| self.store.state().now_ms, |it| it.now_ms);
        let shadowed: Vec<String> =
            receipt.committed.iter().flat_map(|it| &it.shadowed).map(|counter| counter.limit.to_string()).collect();
        self.metrics.limits_reached(&shadowed, LimitAction::Shadow);
        let decision = match &receipt.result {
            AdmitResult::Advanced(advanced) => {
                let is_over = matches!(advanced, AdvanceResult::Ended { .. });
                render.count(&candidate.name, is_over, now_ms, &self.metrics);
                match advanced {
                    AdvanceResult::Dispatched { calls, .. } => {
                        self.metrics.calls_admitted(*calls as u64);
                        Decision::Dispatched
                    }
                    AdvanceResult::Throttled { counter, .. } => {
                        count_throttled(&self.metrics, &counter.limit);
                        Decision::Queued
                    }
                    // A turn without calls ends immediately. The metrics must not count it as ended by a cap.
                    AdvanceResult::Ended { reason: None } => {
                        turn_ended(admit.head.submitted_ms, now_ms, &self.metrics);
                        Decision::Dispatched
                    }
                    _ => Decision::Capped,
                }
            }
            AdmitResult::Duplicate | AdmitResult::NotHeld | AdmitResult::PolicyStale => Decision::Duplicate,
            AdmitResult::Refused(refused) => {
                let status = match refused {
                    AdmitRefusal::Conflict => RejectionStatus::Conflict,
                    _ => RejectionStatus::Rejected,
                };
                let refusal = refuse(refused.code(), refusal_message(*refused).into(), &candidate.turn);
                let rejection = self.intake.rejection(Inbound::Turns, &candidate.arrival, &refusal, status);
                return Err(Box::new(rejection.of_turn(candidate)));
            }
        };
        Ok(decision)
    }

    fn reject_faulty(&self, candidate: &Candidate, error: &RunError) -> Rejection {
        tracing::error!(%error, entry = %candidate.arrival.entry.id, "turn cannot be admitted");
        let message = "The turn could not be admitted. The error has been logged.".to_owned();
        let refusal = refuse(RejectionCode::Internal, message, &candidate.turn);
        self.intake.rejection(Inbound::Turns, &candidate.arrival, &refusal, RejectionStatus::Rejected)
    }
}

/// Skips built-in limits. Their names begin with `_`.
pub(crate) fn count_throttled(metrics: &Metrics, limit: &str) {
    if !limit.starts_with('_') {
        metrics.limits_reached(&[limit.to_owned()], LimitAction::Wait);
    }
}

fn admit<'a>(
    candidate: &'a Candidate,
    head: Head,
    rules: &'a tickfleet_engine::rules::ActiveRules<'a>,
    render: &'a RecordingRenderer<'a>,
    bounds: &'a Bounds,
) -> Admit<'a> {
    Admit {
        entry: candidate.arrival.entry.clone(),
        origin: candidate.arrival.origin.clone(),
        name: candidate.name.clone(),
        given: candidate.turn.id.is_some(),
        head,
        priority: candidate.turn.priority,
        calls: &candidate.turn.calls,
        policy: rules,
        render,
        bounds,
    }
}

#[derive(Default)]
struct AdmissionAttempt {
    retry: Vec<usize>,
    rejections: Vec<Rejection>,
}

/// Returns at least one. `cost` is the relative cost of a call: 1 without limits, and more with limits.
fn batch_length(candidates: &[Candidate], turns_max: usize, bytes_max: usize, cost: usize) -> usize {
    let mut calls = 0;
    let mut bytes = 0;
    let fits = |candidate: &&Candidate| {
        calls += candidate.turn.calls.len() * cost;
        bytes += candidate.arrival.raw.len();
        calls <= limits::BATCH_CALLS_MAX && bytes <= bytes_max
    };
    candidates.iter().take(turns_max).take_while(fits).count().max(1)
}

const fn refusal_message(refusal: AdmitRefusal) -> &'static str {
    match refusal {
        AdmitRefusal::Conflict => "this turn_id was accepted before with other content",
        AdmitRefusal::UnknownAgent => "the agent is not configured",
        AdmitRefusal::UnknownTask => "the task is unknown, has ended, or belongs to another agent",
        AdmitRefusal::UnreadableTenant => "the stored declaration of the tenant is unreadable",
        AdmitRefusal::TenantQueueFull => {
            "the tenant has too many unfinished turns, or they have too many bytes; retry later"
        }
        AdmitRefusal::InboxFull => "the inbox has too many unread replies; read and trim them first",
        AdmitRefusal::TooManyInboxes => "the tenant has too many inboxes; use fewer reply_to names",
    }
}

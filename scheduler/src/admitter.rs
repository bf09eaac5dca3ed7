//! START HERE: the life of an inbound turn. A batch is read ([`crate::intake`]); here it is parsed and admitted in one
//! script, what ends at once is ended, and what cannot be admitted is rejected.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::{ConsumerId, RejectionCode, TaskGrant, limits};
use tickfleet_ops::metrics::{Decision, LimitAction, Metrics};
use tickfleet_protocol::{RejectedMessage, RejectionStatus, parse_turn};
use tickfleet_store::{
    Admission, AdmitReply, Admitted, Ending, Inbound, Rejection, ShardClock, Store, StoreError, TurnName,
};
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::admission::{Arrival, Candidate, admission, expected, refuse};
use crate::decider::Decider;
use crate::endings::Endings;
use crate::intake::{Intake, Taker, WRONG_SHARD, rejections_length};
use crate::policy::{Deciding, Reckoning, Rows};
use crate::reading::Reading;

/// While memory is short and nothing more may come, how often it is looked whether that has changed.
const ROOM_EVERY: Duration = Duration::from_millis(50);
/// While memory is short, bytes of turns that come at a time.
const BITE_BYTES_MAX: usize = 512 * 1024;

/// Admits turns.
pub(crate) struct Admitter {
    store: Store,
    active: Arc<PolicyHandle>,
    clock: Arc<ShardClock>,
    decider: Arc<Decider>,
    intake: Arc<Intake>,
    endings: Arc<Endings>,
    metrics: Arc<Metrics>,
}

impl Taker for Admitter {
    async fn take(&self, reading: &Reading, arrivals: Vec<Arrival>) {
        self.admit_all(reading, arrivals).await;
    }
}

impl Admitter {
    /// Admits what `intake` reads.
    pub(crate) fn new(common: &Common, intake: &Arc<Intake>, endings: &Arc<Endings>) -> Self {
        Self {
            store: common.store.clone(),
            active: common.active.clone(),
            clock: common.clock.clone(),
            decider: common.decider.clone(),
            intake: intake.clone(),
            endings: endings.clone(),
            metrics: common.metrics.clone(),
        }
    }

    /// Reads and admits turns until `stop`.
    pub(crate) async fn run(self: Arc<Self>, consumer: ConsumerId, stop: CancellationToken) {
        self.intake.read(Inbound::Turns, consumer, stop, &*self).await;
    }

    /// Admits a batch. What was there when a scheduler died is read alone, after a mark that names it.
    async fn admit_all(&self, reading: &Reading, arrivals: Vec<Arrival>) {
        let (suspects, clean): (Vec<_>, Vec<_>) = arrivals.into_iter().partition(|a| a.crashes > 0);
        self.admit_batch(reading, clean).await;
        for suspect in suspects {
            // What is left stays ours until we leave, and is returned then.
            if self.decider.is_over() || !reading.look_into(&suspect.entry).await {
                return;
            }
            self.admit_batch(reading, vec![suspect]).await;
            reading.look_away().await;
        }
    }

    async fn admit_batch(&self, reading: &Reading, arrivals: Vec<Arrival>) {
        let mut rejections = Vec::new();
        let mut candidates = Vec::with_capacity(arrivals.len());
        for arrival in arrivals {
            match parse_turn(&arrival.raw) {
                Ok(turn) => candidates.push(Candidate::new(turn, arrival)),
                Err(refusal) => rejections.push(self.rejected(&arrival, &refusal)),
            }
            // A batch of refused turns may ask for many times its own bytes.
            if rejections_length(&rejections) < rejections.len() {
                self.intake.reject_all(reading, Inbound::Turns, std::mem::take(&mut rejections)).await;
            }
        }
        let (mut rest, mut bounds) = (candidates.as_slice(), BatchBounds::default());
        while !rest.is_empty() && !self.decider.is_over() {
            let (batch, later) = rest.split_at(bounds.length(rest, self.decider.cost_of_call()));
            match self.admit_some(reading, batch).await {
                Ok(rejected) => {
                    rejections.extend(rejected);
                    rest = later;
                    bounds.widen();
                }
                // Nothing was written: the same again, less of it at a time.
                Err(SmallerBites { turns_max }) => bounds = BatchBounds::tight(turns_max),
            }
        }
        self.intake.reject_all(reading, Inbound::Turns, rejections).await;
    }

    fn rejected(&self, arrival: &Arrival, refusal: &RejectedMessage) -> Rejection {
        self.metrics.admitted(Decision::Rejected, 1);
        tracing::debug!(entry = arrival.entry, code = refusal.code.as_str(), reason = refusal.message, "turn rejected");
        self.intake.rejection(Inbound::Turns, arrival, refusal, RejectionStatus::Rejected)
    }

    /// Admits turns that fit one script, trying until Redis has decided. Answers what is to be rejected; or, where
    /// memory is short, how many may come.
    async fn admit_some(&self, reading: &Reading, candidates: &[Candidate]) -> Result<Vec<Rejection>, SmallerBites> {
        match retry_until(reading, || async { self.try_to_admit(candidates).await }).await {
            Some(Tried::Decided(rejections)) => Ok(rejections),
            Some(Tried::TooMany(smaller)) => Err(smaller),
            Some(Tried::AtFault(mut rejections, error)) => {
                rejections.extend(self.find_culprit(reading, candidates, &error).await);
                Ok(rejections)
            }
            // Our name is given up: the batch is written anew for others.
            None => Ok(Vec::new()),
        }
    }

    /// One attempt to have turns decided.
    async fn try_to_admit(&self, candidates: &[Candidate]) -> Attempt<Tried> {
        let (deciding, grants) = match self.premises(candidates).await {
            Ok(Some(premises)) => premises,
            // Our policy is not the one in force, so we are over.
            Ok(None) => return Attempt::Done(Tried::Decided(Vec::new())),
            Err(NotRead) => return Attempt::Failed,
        };
        let (rows, batch, mut rejections) = self.batch(&deciding.active, candidates, &grants);
        if batch.is_empty() {
            return Attempt::Done(Tried::Decided(rejections));
        }
        let turns: Vec<Admission> = batch.iter().map(|(_, a)| a.clone()).collect();
        self.expect(&deciding.active, candidates, &batch).await;
        match self.store.admit(deciding.generations, &rows.rows, &rows.limits, &turns).await {
            Ok(AdmitReply::Decided { now_ms, turns, waits, shades }) => {
                self.clock.set(now_ms);
                self.metrics.limits_reached(&waits, LimitAction::Wait);
                self.metrics.limits_reached(&shades, LimitAction::Shadow);
                rejections.extend(self.decided(candidates, &batch, turns).await);
                Attempt::Done(Tried::Decided(rejections))
            }
            Ok(AdmitReply::PolicyStale) => {
                self.decider.policy_stale();
                Attempt::AtOnce
            }
            Ok(AdmitReply::TenantsStale) => match self.decider.tenants_stale().await {
                Ok(()) => Attempt::AtOnce,
                Err(error) => {
                    tracing::warn!(%error, "failed to read run-time settings; retrying");
                    Attempt::Failed
                }
            },
            Ok(AdmitReply::DayStale { now_ms }) => {
                self.clock.set(now_ms);
                Attempt::AtOnce
            }
            Ok(AdmitReply::Pressure { turns_max: 0 }) => Attempt::Later(ROOM_EVERY),
            Ok(AdmitReply::Pressure { turns_max }) => Attempt::Done(Tried::TooMany(SmallerBites { turns_max })),
            Err(error) if error.is_script_error() => Attempt::Done(Tried::AtFault(rejections, error)),
            Err(StoreError::StateLost(what)) => {
                self.decider.state_lost(&what).await;
                Attempt::AtOnce
            }
            Err(error) => {
                tracing::warn!(%error, "admission got no response; retrying");
                Attempt::Failed
            }
        }
    }

    /// Says which calls may set facts: who needs one of them waits for it. Where Redis does not answer, nobody waits.
    async fn expect(&self, active: &ActivePolicy, candidates: &[Candidate], batch: &[(usize, Admission)]) {
        let batch: Vec<_> = batch.iter().map(|(at, admission)| (&candidates[*at], admission)).collect();
        let expected = expected(&active.policy, &batch);
        if !expected.is_empty()
            && let Err(error) = self.store.expect(&expected).await
        {
            tracing::debug!(%error, "failed to announce calls that may set facts");
        }
    }

    /// All that a decision about these turns rests on: the policy, and what their tasks grant. None if this scheduler
    /// may decide nothing any more.
    async fn premises(&self, candidates: &[Candidate]) -> Result<Option<(Deciding, Grants)>, NotRead> {
        if let Err(error) = self.hear_of_new_tenants(candidates).await {
            tracing::warn!(%error, "failed to read run-time settings; retrying");
            return Err(NotRead);
        }
        let grants = match self.grants(candidates).await {
            Ok(grants) => grants,
            Err(error) => {
                // That Redis is away says nothing about the tasks.
                tracing::warn!(%error, "failed to read the tasks of turns; retrying");
                return Err(NotRead);
            }
        };
        match self.decider.deciding().await {
            Ok(deciding) => Ok(deciding.map(|deciding| (deciding, grants))),
            Err(error) => {
                tracing::warn!(%error, "failed to announce the policy; retrying");
                Err(NotRead)
            }
        }
    }

    /// Before a turn is refused because nobody knows its tenant or agent: it may have been set a moment ago.
    async fn hear_of_new_tenants(&self, candidates: &[Candidate]) -> Result<(), StoreError> {
        let active = self.active.load();
        let unknown = |c: &Candidate| active.policy.look_up(&c.turn.tenant, &c.turn.agent).is_err();
        if candidates.iter().any(unknown) {
            self.active.refresh_where_news(&self.store).await?;
        }
        Ok(())
    }

    /// Rule 11: a script error is the fault of one turn; that one is rejected, the others are admitted.
    async fn find_culprit(&self, reading: &Reading, candidates: &[Candidate], error: &StoreError) -> Vec<Rejection> {
        if let [candidate] = candidates {
            let refusal = refuse(
                RejectionCode::Internal,
                "The turn could not be admitted. The error has been logged.".into(),
                &candidate.turn,
            );
            tracing::error!(%error, entry = candidate.arrival.entry, "turn cannot be admitted");
            return vec![self.rejected(&candidate.arrival, &refusal)];
        }
        tracing::warn!(%error, turns = candidates.len(), "batch admission failed; admitting turn by turn");
        let mut rejections = Vec::new();
        for candidate in candidates {
            // A single turn is never too many if any may come.
            let admitted = Box::pin(self.admit_some(reading, std::slice::from_ref(candidate))).await;
            rejections.extend(admitted.unwrap_or_default());
        }
        rejections
    }

    fn batch(
        &self,
        active: &ActivePolicy,
        candidates: &[Candidate],
        grants: &Grants,
    ) -> (Rows, Vec<(usize, Admission)>, Vec<Rejection>) {
        let (mut rows, mut batch, mut rejections) = (Rows::default(), Vec::with_capacity(candidates.len()), Vec::new());
        let by = Reckoning::new(&active.policy, self.decider.policy(), &self.store, self.clock.now_ms());
        for (index, candidate) in candidates.iter().enumerate() {
            if !self.store.is_home_of(&candidate.turn.tenant) {
                let refusal = refuse(RejectionCode::WrongShard, WRONG_SHARD.into(), &candidate.turn);
                rejections.push(self.rejected(&candidate.arrival, &refusal));
                continue;
            }
            let grant = grants.get(&index).cloned();
            if candidate.turn.task.is_some() && grant.is_none() {
                let refusal = refuse(
                    RejectionCode::UnknownTask,
                    "the task is unknown, has ended, or belongs to another agent".into(),
                    &candidate.turn,
                );
                rejections.push(self.rejected(&candidate.arrival, &refusal));
                continue;
            }
            match admission(candidate, &by, &mut rows, grant) {
                Ok(admission) => batch.push((index, admission)),
                Err(refusal) => rejections.push(self.rejected(&candidate.arrival, &refusal)),
            }
        }
        (rows, batch, rejections)
    }

    /// The grants of the tasks that turns run under. A turn under a task of another agent gets nothing.
    async fn grants(&self, candidates: &[Candidate]) -> Result<Grants, StoreError> {
        let mut grants = Grants::new();
        for (index, candidate) in candidates.iter().enumerate() {
            let Some(task) = &candidate.turn.task else { continue };
            let found = match self.store.task_grant(&TurnName::task(&candidate.turn.tenant, task)).await {
                // What is there under the task's name cannot be read: no other turn may suffer for it.
                Err(error) if error.is_script_error() => None,
                found => found?,
            };
            let found = found.filter(|(agent, ..)| *agent == candidate.turn.agent);
            grants.extend(found.map(|(_, grant, deadline_ms)| (index, (grant, deadline_ms))));
        }
        Ok(grants)
    }

    /// Acts on a decision: counts it, settles what ends, answers what is to be rejected.
    async fn decided(
        &self,
        candidates: &[Candidate],
        batch: &[(usize, Admission)],
        decisions: Vec<Admitted>,
    ) -> Vec<Rejection> {
        let mut endings: Vec<Ending> = Vec::new();
        let (mut rejections, mut dispatched) = (Vec::new(), Vec::new());
        let mut counts: HashMap<Decision, u64> = HashMap::new();
        for ((index, _), decision) in batch.iter().zip(decisions) {
            let candidate = &candidates[*index];
            let counted = match decision {
                Admitted::Dispatched => {
                    let name = TurnName { tenant: candidate.turn.tenant.clone(), turn: candidate.id.clone() };
                    dispatched.push((name, candidate.turn.calls.len()));
                    Decision::Dispatched
                }
                Admitted::Laned => Decision::Laned,
                Admitted::Duplicate => Decision::Duplicate,
                Admitted::Ending(ending) => {
                    // A turn without calls is done, not capped.
                    let decision = if ending.is_of_no_calls() { Decision::Dispatched } else { Decision::Capped };
                    endings.push(*ending);
                    decision
                }
                Admitted::Later => Decision::Capped,
                Admitted::Conflict => {
                    let message = "this turn_id was accepted before with other content".to_owned();
                    let refusal = refuse(RejectionCode::Conflict, message, &candidate.turn);
                    rejections.push(self.intake.rejection(
                        Inbound::Turns,
                        &candidate.arrival,
                        &refusal,
                        RejectionStatus::Conflict,
                    ));
                    Decision::Conflict
                }
                Admitted::Refused(code) => {
                    let refusal = refuse(refusal_code(&code), refusal_message(&code), &candidate.turn);
                    rejections.push(self.intake.rejection(
                        Inbound::Turns,
                        &candidate.arrival,
                        &refusal,
                        RejectionStatus::Rejected,
                    ));
                    Decision::Rejected
                }
            };
            candidate.span.record("decision", counted.as_str());
            *counts.entry(counted).or_default() += 1;
        }
        for (decision, turns) in counts {
            self.metrics.admitted(decision, turns);
        }
        self.count_calls(dispatched);
        self.endings.settle(endings).await;
        rejections
    }

    /// Counts the calls that were let through at once. Of a turn with several calls only its record knows how many; it
    /// is asked beside the way, for nothing waits for a count.
    fn count_calls(&self, dispatched: Vec<(TurnName, usize)>) {
        let (single, several): (Vec<_>, Vec<_>) = dispatched.into_iter().partition(|(_, calls)| *calls == 1);
        self.metrics.calls_admitted(single.len() as u64);
        if several.is_empty() {
            return;
        }
        let (store, metrics) = (self.store.clone(), Arc::clone(&self.metrics));
        tokio::spawn(async move {
            let names: Vec<TurnName> = several.into_iter().map(|(name, _)| name).collect();
            match store.admitted_first(&names).await {
                Ok(calls) => metrics.calls_admitted(calls),
                Err(error) => tracing::debug!(%error, "admitted calls are missing from their counter"),
            }
        });
    }
}

/// Redis' memory is short: fewer turns may come at a time.
struct SmallerBites {
    turns_max: usize,
}

/// The end of the attempts to have turns decided.
enum Tried {
    /// These are to be rejected; all others are decided.
    Decided(Vec<Rejection>),
    TooMany(SmallerBites),
    /// One of those that are not to be rejected makes the script fail.
    AtFault(Vec<Rejection>, StoreError),
}

/// Something that a decision rests on could not be read; it is logged.
struct NotRead;

/// By a candidate's number, what the task grants that its turn runs under, and when that expires, ms.
type Grants = HashMap<usize, (TaskGrant, i64)>;

/// The bounds of one script.
struct BatchBounds {
    turns_max: usize,
    bytes_max: usize,
}

impl Default for BatchBounds {
    fn default() -> Self {
        Self { turns_max: usize::MAX, bytes_max: limits::BATCH_BYTES_MAX }
    }
}

impl BatchBounds {
    /// While memory is short.
    const fn tight(turns_max: usize) -> Self {
        Self { turns_max, bytes_max: BITE_BYTES_MAX }
    }

    /// More room may have come.
    const fn widen(&mut self) {
        self.turns_max = self.turns_max.saturating_mul(2);
    }

    /// Counts the candidates that fit, by number, calls and bytes; at least one. A call costs what `cost` calls do that meet
    /// no limit.
    fn length(&self, candidates: &[Candidate], cost: usize) -> usize {
        let (mut calls, mut bytes) = (0, 0);
        let fits = |candidate: &&Candidate| {
            calls += candidate.turn.calls.len() * cost;
            bytes += candidate.arrival.raw.len();
            calls <= limits::BATCH_CALLS_MAX && bytes <= self.bytes_max
        };
        candidates.iter().take(self.turns_max).take_while(fits).count().max(1)
    }
}

/// The codes that the script may answer with; a newer build's script may know others.
fn refusal_code(code: &str) -> RejectionCode {
    match code {
        "tenant_queue_full" => RejectionCode::TenantQueueFull,
        "inbox_full" => RejectionCode::InboxFull,
        "too_many_inboxes" => RejectionCode::TooManyInboxes,
        "unknown_task" => RejectionCode::UnknownTask,
        _ => RejectionCode::Refused,
    }
}

fn refusal_message(code: &str) -> String {
    match code {
        "tenant_queue_full" => "the tenant has too many unfinished turns, or they have too many bytes; retry later",
        "inbox_full" => "the inbox has too many unread replies; read and trim them first",
        "too_many_inboxes" => "the tenant has too many inboxes; use fewer reply_to names",
        "unknown_task" => "the task is unknown or has ended",
        _ => "the turn was rejected",
    }
    .to_owned()
}

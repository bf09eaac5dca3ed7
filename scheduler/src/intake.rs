//! START HERE: the life of an inbound turn. Read a batch, parse it, admit it in one script, end what ends at once,
//! reject what cannot be admitted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_engine::retry_until::{Attempt, Waiting, retry_until};
use tickfleet_model::{ConsumerId, TaskGrant, TenantId, limits};
use tickfleet_ops::metrics::Decision;
use tickfleet_protocol::{Refusal, RefusalStatus, parse_turn};
use tickfleet_store::{
    Admission, AdmitReply, Admitted, Backoff, Ending, Entry, Inbound, Reader, Rejection, StoreError, TurnName,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Scheduler;
use crate::admission::{Arrival, Candidate, admission, refuse, rejection};
use crate::policy::{Deciding, Rows};
use crate::reading::Reading;

/// Rule 10: a tenant's budgets are kept in one shard, so its turns count in no other.
pub(crate) const WRONG_SHARD: &str = "the tenant lives in another shard: CRC32(tenant) mod the number of shards";

/// While memory is short and nothing more may come, how often it is looked whether that has changed.
const ROOM_EVERY: Duration = Duration::from_millis(50);
/// While memory is short, bytes of turns that come at a time.
const BITE_BYTES_MAX: usize = 512 * 1024;

/// Reads and admits turns until `stop`.
pub(crate) async fn turns(scheduler: Arc<Scheduler>, consumer: ConsumerId, stop: CancellationToken) {
    scheduler
        .read(Inbound::Turns, consumer, stop, async |this, reading, arrivals| {
            this.admit_all(reading, arrivals).await;
        })
        .await;
}

impl Scheduler {
    /// Reads one inbound stream until `stop` and hands each batch to `take`, which answers when all is written.
    pub(crate) async fn read(
        &self,
        from: Inbound,
        consumer: ConsumerId,
        stop: CancellationToken,
        take: impl AsyncFn(&Self, &Reading, Vec<Arrival>),
    ) {
        let block = Duration::from_millis(self.store.options().lease_ms.unsigned_abs() / limits::BLOCK_FRACTION);
        let handle = self.progress.register(from.stream(), block * 4 + Duration::from_secs(30));
        let reading = Reading::new(from, consumer, handle, stop.clone());
        let streams = [from.stream().to_owned()];
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        let mut reader = self.store.reader(&reading.consumer, block);
        let mut backoff = Backoff::default();
        let mut compared = Instant::now();
        while !stop.is_cancelled() {
            // Rule 12: here nothing is in hand. Whatever is pending was delivered to a connection that broke, some of it
            // after the new one was made; nobody takes it from a consumer that lives.
            let compare = reader.is_fresh() || compared.elapsed() >= lease;
            if compare {
                compared = Instant::now();
            }
            match self.next(&mut reader, &streams, &stop, compare).await {
                Ok(entries) => {
                    backoff.reset();
                    if !entries.is_empty() {
                        self.metrics.inbound(from.stream(), entries.len() as u64);
                        let arrivals = entries.into_iter().map(|e| arrival(from, e)).collect();
                        take(self, &reading, arrivals).await;
                    }
                }
                Err(StoreError::StateLost(what)) => self.state_lost(&what).await,
                Err(error) => {
                    tracing::warn!(%error, stream = from.stream(), "could not read; trying again");
                    reading.pause(backoff.pause()).await;
                }
            }
            reading.advanced();
        }
        reading.finished();
    }

    /// The next batch. What was delivered and never arrived is read again first, where `compare` says so.
    async fn next(
        &self,
        reader: &mut Reader,
        streams: &[String],
        stop: &CancellationToken,
        compare: bool,
    ) -> Result<Vec<Entry>, StoreError> {
        if compare {
            let mine = reader.mine(&streams[0], self.options.batch).await?;
            if !mine.is_empty() {
                return Ok(mine);
            }
        }
        tokio::select! {
            // The reader is dropped with its connection when this loop ends, so nothing is delivered to nobody.
            () = stop.cancelled() => Ok(Vec::new()),
            read = reader.wait(streams, self.options.batch) => Ok(read?.into_iter().map(|(_, entry)| entry).collect()),
        }
    }

    /// Admits a batch. What was there when a scheduler died is read alone, after a mark that names it.
    async fn admit_all(&self, reading: &Reading, arrivals: Vec<Arrival>) {
        let (suspects, clean): (Vec<_>, Vec<_>) = arrivals.into_iter().partition(|a| a.crashes > 0);
        self.admit_batch(reading, clean).await;
        for suspect in suspects {
            // What is left stays ours until we leave, and is returned then.
            if self.is_over() {
                return;
            }
            self.mark(reading, Some(&suspect.entry)).await;
            self.admit_batch(reading, vec![suspect]).await;
            self.mark(reading, None).await;
        }
    }

    /// Names the entry that is looked into, or none: a crash counts against what was named.
    pub(crate) async fn mark(&self, reading: &Reading, suspect: Option<&str>) {
        match (self.store.suspect(reading.from, &reading.consumer, suspect).await, suspect) {
            (Ok(()), _) => {}
            (Err(error), Some(_)) => {
                tracing::warn!(%error, "a suspect entry could not be marked; it is read all the same");
            }
            (Err(error), None) => tracing::debug!(%error, "the mark of a suspect entry stays until the next"),
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
                self.reject_all(reading, Inbound::Turns, std::mem::take(&mut rejections)).await;
            }
        }
        let (mut rest, mut bounds) = (candidates.as_slice(), BatchBounds::default());
        while !rest.is_empty() && !self.is_over() {
            let (batch, later) = rest.split_at(bounds.length(rest));
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
        self.reject_all(reading, Inbound::Turns, rejections).await;
    }

    /// The rejection of an inbound entry, without the secrets that it may hold. A tenant that nobody knows has no inbox:
    /// whoever writes such messages could make any number of them. The dead stream alone tells.
    pub(crate) fn rejection(
        &self,
        from: Inbound,
        arrival: &Arrival,
        refusal: &Refusal,
        status: RefusalStatus,
    ) -> Rejection {
        let rejection = rejection(from, arrival, refusal, status, &self.report.redactor);
        let active = self.active.load();
        let policy = &active.policy;
        // One whose declaration cannot be read is known all the same.
        let known = |tenant: &TenantId| policy.tenants.contains_key(tenant) || policy.withheld.contains(tenant);
        Rejection { reply_to: rejection.reply_to.filter(|(tenant, _)| known(tenant)), ..rejection }
    }

    fn rejected(&self, arrival: &Arrival, refusal: &Refusal) -> Rejection {
        self.metrics.admitted(Decision::Rejected, 1);
        tracing::debug!(entry = arrival.entry, code = refusal.code, reason = refusal.message, "a turn is rejected");
        self.rejection(Inbound::Turns, arrival, refusal, RefusalStatus::Rejected)
    }

    /// Admits turns that fit one script, trying until Redis has decided. Answers what is to be rejected; or, where
    /// memory is short, how many may come.
    async fn admit_some(&self, reading: &Reading, candidates: &[Candidate]) -> Result<Vec<Rejection>, SmallerBites> {
        let waiting = InHand { scheduler: self, reading, candidates };
        match retry_until(&waiting, || async { self.try_to_admit(candidates).await }).await {
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
        match self.store.admit(deciding.generations, &rows.rows, &turns).await {
            Ok(AdmitReply::Decided { now_ms, turns }) => {
                self.clock.set(now_ms);
                rejections.extend(self.decided(candidates, &batch, turns).await);
                Attempt::Done(Tried::Decided(rejections))
            }
            Ok(AdmitReply::PolicyStale) => {
                self.policy_stale();
                Attempt::AtOnce
            }
            Ok(AdmitReply::TenantsStale) => match self.tenants_stale().await {
                Ok(()) => Attempt::AtOnce,
                Err(error) => {
                    tracing::warn!(%error, "what was set at run time could not be read; trying again");
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
                self.state_lost(&what).await;
                Attempt::AtOnce
            }
            Err(error) => {
                tracing::warn!(%error, "admit did not answer; trying again");
                Attempt::Failed
            }
        }
    }

    /// All that a decision about these turns rests on: the policy, and what their tasks grant. None if this scheduler
    /// may decide nothing any more.
    async fn premises(&self, candidates: &[Candidate]) -> Result<Option<(Deciding, Grants)>, NotRead> {
        if let Err(error) = self.hear_of_new_tenants(candidates).await {
            tracing::warn!(%error, "what was set at run time could not be read; trying again");
            return Err(NotRead);
        }
        let grants = match self.grants(candidates).await {
            Ok(grants) => grants,
            Err(error) => {
                // That Redis is away says nothing about the tasks.
                tracing::warn!(%error, "the tasks of turns could not be read; trying again");
                return Err(NotRead);
            }
        };
        match self.deciding().await {
            Ok(deciding) => Ok(deciding.map(|deciding| (deciding, grants))),
            Err(error) => {
                tracing::warn!(%error, "the policy could not be announced; trying again");
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
                "internal",
                "The turn could not be admitted. The error has been logged.".into(),
                &candidate.turn,
            );
            tracing::error!(%error, entry = candidate.arrival.entry, "this turn cannot be admitted");
            return vec![self.rejected(&candidate.arrival, &refusal)];
        }
        tracing::warn!(%error, turns = candidates.len(), "admit failed; repeating turn by turn");
        let mut rejections = Vec::new();
        for candidate in candidates {
            // A single turn is never too many where any may come.
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
        let now_ms = self.clock.now_ms();
        for (index, candidate) in candidates.iter().enumerate() {
            if !self.store.is_home_of(&candidate.turn.tenant) {
                let refusal = refuse("wrong_shard", WRONG_SHARD.into(), &candidate.turn);
                rejections.push(self.rejected(&candidate.arrival, &refusal));
                continue;
            }
            let grant = grants.get(&index).cloned();
            if candidate.turn.task.is_some() && grant.is_none() {
                let refusal = refuse(
                    "unknown_task",
                    "the task is not known, has ended, or belongs to another agent".into(),
                    &candidate.turn,
                );
                rejections.push(self.rejected(&candidate.arrival, &refusal));
                continue;
            }
            match admission(candidate, active, &self.policy, &mut rows, now_ms, grant) {
                Ok(admission) => batch.push((index, admission)),
                Err(refusal) => rejections.push(self.rejected(&candidate.arrival, &refusal)),
            }
        }
        (rows, batch, rejections)
    }

    /// What the tasks grant that turns run under. A turn under a task of another agent gets nothing.
    async fn grants(&self, candidates: &[Candidate]) -> Result<Grants, StoreError> {
        let mut grants = Grants::new();
        for (index, candidate) in candidates.iter().enumerate() {
            let Some(task) = &candidate.turn.task else { continue };
            let found = match self.store.task_grant(&TurnName::task(&candidate.turn.tenant, task)).await {
                // What is there under the task's name cannot be read: no other turn may suffer for it.
                Err(error) if error.is_script_error() => None,
                found => found?,
            };
            grants.extend(found.filter(|(agent, _)| *agent == candidate.turn.agent).map(|(_, grant)| (index, grant)));
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
                Admitted::Conflict => {
                    let message = "this turn_id was accepted before with other content".to_owned();
                    let refusal = refuse("conflict", message, &candidate.turn);
                    rejections.push(self.rejection(
                        Inbound::Turns,
                        &candidate.arrival,
                        &refusal,
                        RefusalStatus::Conflict,
                    ));
                    Decision::Conflict
                }
                Admitted::Refused(code) => {
                    let refusal = refuse(refusal_code(&code), refusal_message(&code), &candidate.turn);
                    rejections.push(self.rejection(
                        Inbound::Turns,
                        &candidate.arrival,
                        &refusal,
                        RefusalStatus::Rejected,
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
        self.settle_endings(endings).await;
        rejections
    }

    /// Rejects until Redis has written it.
    pub(crate) async fn reject_all(&self, reading: &Reading, from: Inbound, mut rejections: Vec<Rejection>) {
        while !rejections.is_empty() {
            let rest = rejections.split_off(rejections_length(&rejections));
            let written = retry_until(reading, || async {
                match self.store.reject(from, &rejections).await {
                    Ok(ours) => Attempt::Done(ours),
                    Err(error) => {
                        tracing::warn!(%error, "could not reject; trying again");
                        Attempt::Failed
                    }
                }
            });
            let Some(ours) = written.await else { return };
            self.count_rejected(from, &rejections, &ours);
            rejections = rest;
        }
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
                Err(error) => tracing::debug!(%error, "calls that were let through are missing from their count"),
            }
        });
    }

    /// Counts what this scheduler has rejected; another may have been first.
    fn count_rejected(&self, from: Inbound, rejections: &[Rejection], ours: &[bool]) {
        for (rejection, _) in rejections.iter().zip(ours).filter(|(_, ours)| **ours) {
            self.metrics.dead(&rejection.reason);
            if from == Inbound::Turns {
                self.metrics.refused(&rejection.reason);
            }
        }
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

/// By a candidate's number, what the task grants that its turn runs under.
type Grants = HashMap<usize, TaskGrant>;

/// Turns that are read and not decided yet.
struct InHand<'a> {
    scheduler: &'a Scheduler,
    reading: &'a Reading,
    candidates: &'a [Candidate],
}

impl Waiting for InHand<'_> {
    fn is_over(&self) -> bool {
        self.reading.is_over()
    }

    /// A suspect that comes so far has been looked into and killed nobody: whatever ends this process from here on, the
    /// crash does not count against it.
    async fn pause(&self, time: Duration) {
        if matches!(self.candidates, [one] if one.arrival.crashes > 0) {
            self.scheduler.mark(self.reading, None).await;
        }
        self.reading.pause(time).await;
    }
}

/// What one script takes.
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

    /// How many of the candidates fit, by number, calls and bytes; at least one.
    fn length(&self, candidates: &[Candidate]) -> usize {
        let (mut calls, mut bytes) = (0, 0);
        let fits = |candidate: &&Candidate| {
            calls += candidate.turn.calls.len();
            bytes += candidate.arrival.raw.len();
            calls <= limits::BATCH_CALLS_MAX && bytes <= self.bytes_max
        };
        candidates.iter().take(self.turns_max).take_while(fits).count().max(1)
    }
}

/// How many of the rejections fit one script, by number and by bytes; at least one.
fn rejections_length(rejections: &[Rejection]) -> usize {
    let mut bytes = 0;
    let fits = |rejection: &&Rejection| {
        bytes += rejection.raw.len() + rejection.reply.len();
        bytes <= limits::BATCH_BYTES_MAX
    };
    rejections.iter().take(64).take_while(fits).count().max(1)
}

fn arrival(from: Inbound, entry: Entry) -> Arrival {
    let text = |name: &str| entry.field(name).map(|v| String::from_utf8_lossy(v).into_owned());
    Arrival {
        origin: text("o").unwrap_or_else(|| entry.id.clone()),
        crashes: text("x").and_then(|x| x.parse().ok()).unwrap_or(0),
        raw: entry.field(from.field()).map(<[u8]>::to_vec).unwrap_or_default(),
        entry: entry.id,
    }
}

/// Codes of the script as stable words.
fn refusal_code(code: &str) -> &'static str {
    match code {
        "tenant_queue_full" => "tenant_queue_full",
        "inbox_full" => "inbox_full",
        "too_many_inboxes" => "too_many_inboxes",
        "unknown_task" => "unknown_task",
        _ => "refused",
    }
}

fn refusal_message(code: &str) -> String {
    match code {
        "tenant_queue_full" => "the tenant has too many unfinished turns; try again later",
        "inbox_full" => "the inbox has too many unread replies; read and trim them first",
        "too_many_inboxes" => "the tenant has too many inboxes; use fewer reply_to names",
        "unknown_task" => "the task is not known or has ended",
        _ => "the turn was refused",
    }
    .to_owned()
}

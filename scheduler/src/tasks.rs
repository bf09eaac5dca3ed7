//! The inbound `tasks` stream: new tasks are validated before an agent sees them; what external runtimes say of
//! theirs is acted on.

use std::sync::Arc;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::delegation;
use tickfleet_engine::report::{self, Reported};
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::retry::{Ladder, Verdict};
use tickfleet_model::{Call, CallError, CallId, CallResult, ConsumerId, Outcome, RejectionCode, Task, TaskId, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::traces;
use tickfleet_protocol::{
    CancelTarget, Leased, RejectedMessage, RejectionStatus, TaskMessage, bounded_output, parse_task_message,
};
use tickfleet_store::{
    Cancelled, Delegated, Inbound, Parked, Queue, Retry, Settled, Settlement, ShardClock, SliceMeta, Store, StoreError,
    Touched, TurnName, TurnView,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::Common;
use crate::admission::{Arrival, minted};
use crate::decider::Decider;
use crate::endings::Endings;
use crate::intake::{Intake, Taker, WRONG_SHARD};
use crate::reading::Reading;

/// Takes in tasks, and what external runtimes say of theirs.
pub(crate) struct TaskQueues {
    store: Store,
    active: Arc<PolicyHandle>,
    clock: Arc<ShardClock>,
    decider: Arc<Decider>,
    intake: Arc<Intake>,
    endings: Arc<Endings>,
    metrics: Arc<Metrics>,
}

impl Taker for TaskQueues {
    async fn take(&self, reading: &Reading, arrivals: Vec<Arrival>) {
        for arrival in arrivals {
            // What is left stays ours until we leave, and is returned then.
            if self.decider.is_over() {
                return;
            }
            if arrival.crashes > 0 && !reading.look_into(&arrival.entry).await {
                return;
            }
            self.message(reading, &arrival).await;
            reading.look_away().await;
        }
    }
}

impl TaskQueues {
    /// Takes in what `intake` reads.
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

    /// Reads and handles task messages until `stop`.
    pub(crate) async fn run(self: Arc<Self>, consumer: ConsumerId, stop: CancellationToken) {
        self.intake.read(Inbound::Tasks, consumer, stop, &*self).await;
    }

    async fn message(&self, reading: &Reading, arrival: &Arrival) {
        let handled = match parse_task_message(&arrival.raw) {
            Ok(TaskMessage::Delegate(task)) => {
                let span = tracing::debug_span!(
                    target: traces::TARGET, "delegate", tenant = %task.tenant, agent = %task.target,
                );
                traces::follow(&span, task.context.traceparent.as_deref(), task.context.tracestate.as_deref());
                return self.delegate(reading, arrival, *task).instrument(span).await;
            }
            Ok(message) => self.runtime_says(reading, message).await,
            Err(refusal) => Err(refusal),
        };
        match handled {
            Ok(()) if self.decider.is_over() => {}
            Ok(()) => self.acknowledge(arrival).await,
            Err(refusal) => self.refuse_task(reading, arrival, &refusal).await,
        }
    }

    async fn refuse_task(&self, reading: &Reading, arrival: &Arrival, refusal: &RejectedMessage) {
        tracing::debug!(
            entry = arrival.entry,
            code = refusal.code.as_str(),
            reason = refusal.message,
            "task message rejected"
        );
        let rejected = self.intake.rejection(Inbound::Tasks, arrival, refusal, RejectionStatus::Rejected);
        self.intake.reject_all(reading, Inbound::Tasks, vec![rejected]).await;
    }

    async fn acknowledge(&self, arrival: &Arrival) {
        if let Err(error) = self.store.acknowledge(Inbound::Tasks, &arrival.entry).await {
            // Repeating a message about a lease is harmless: its fence has moved on.
            tracing::warn!(%error, "task message handled but not acknowledged");
        }
    }

    /// Validates a task and writes it durably, trying until Redis has decided.
    async fn delegate(&self, reading: &Reading, arrival: &Arrival, task: Task) {
        let decided = retry_until(reading, || async {
            match self.try_delegate(arrival, task.clone()).await {
                Ok(Tried::Written) => Attempt::Done(None),
                Ok(Tried::Later) => Attempt::Failed,
                Ok(Tried::Refused(refusal)) => Attempt::Done(Some(refusal)),
                Err(error) if error.is_script_error() => {
                    tracing::error!(%error, "cannot write a task");
                    Attempt::Done(Some(refuse(&task, RejectionCode::Internal, "The task could not be written.".into())))
                }
                Err(error) => {
                    self.unanswered("delegate", &error).await;
                    Attempt::Failed
                }
            }
        });
        let Some(refusal) = decided.await.flatten() else { return };
        if refusal.code == RejectionCode::Conflict {
            let rejected = self.intake.rejection(Inbound::Tasks, arrival, &refusal, RejectionStatus::Conflict);
            return self.intake.reject_all(reading, Inbound::Tasks, vec![rejected]).await;
        }
        self.refuse_task(reading, arrival, &refusal).await;
    }

    async fn try_delegate(&self, arrival: &Arrival, mut task: Task) -> Result<Tried, StoreError> {
        let id = minted(Inbound::Tasks, &arrival.origin, task.id.clone().map(Into::into));
        if !self.store.is_home_of(&task.tenant) {
            return Ok(Tried::Refused(refuse(&task, RejectionCode::WrongShard, WRONG_SHARD.into())));
        }
        if self.active.load().policy.look_up(&task.tenant, &task.target).is_err() {
            // It may have been set a moment ago.
            self.active.refresh_where_news(&self.store).await?;
        }
        let active = self.active.load();
        if let Some(parent) = task.parent.clone().filter(|_| active.policy.tenants.contains_key(&task.tenant)) {
            let Some((agent, grant, deadline_ms)) =
                self.store.task_grant(&TurnName::task(&task.tenant, &parent)).await?
            else {
                let (code, message) = delegation::refused("unknown_parent");
                return Ok(Tried::Refused(refuse(&task, code, message.into())));
            };
            if let Err((code, message)) = delegation::under_parent(&mut task, &agent, &grant) {
                return Ok(Tried::Refused(refuse(&task, code, message)));
            }
            delegation::end_with(&mut task, deadline_ms, self.clock.now_ms());
        }
        let planned = match delegation::plan(&active, &task, self.clock.now_ms()) {
            Ok(planned) => planned,
            Err((code, message)) => return Ok(Tried::Refused(refuse(&task, code, message))),
        };
        let Ok(id) = TaskId::new(id.as_str()) else {
            return Ok(Tried::Refused(refuse(&task, RejectionCode::Internal, "the task has no valid id".into())));
        };
        let written = planned.delegation(Some(arrival.entry.clone()), id, task.id.is_some());
        Ok(match self.store.delegate(&[written]).await?.pop() {
            Some(Delegated::Ok | Delegated::Duplicate) | None => Tried::Written,
            Some(Delegated::Pressure) => Tried::Later,
            Some(Delegated::Conflict) => Tried::Refused(refuse(
                &task,
                RejectionCode::Conflict,
                "this task_id was accepted before with other content".into(),
            )),
            Some(Delegated::Refused(code)) => {
                let (code, message) = delegation::refused(&code);
                Tried::Refused(refuse(&task, code, message.into()))
            }
        })
    }

    async fn unanswered(&self, verb: &'static str, error: &StoreError) {
        if let StoreError::StateLost(what) = error {
            return self.decider.state_lost(what).await;
        }
        tracing::warn!(%error, verb, "Redis did not respond; retrying");
    }

    /// Heartbeat, finish, fail, cancel, tried until Redis has decided: a runtime says a thing once. A message about a
    /// lease that has moved on changes nothing.
    async fn runtime_says(&self, reading: &Reading, message: TaskMessage) -> Result<(), Box<RejectedMessage>> {
        let decided = retry_until(reading, || async {
            match self.act(&message).await {
                Ok(None) => Attempt::Done(Ok(())),
                Ok(Some(refusal)) => Attempt::Done(Err(refusal)),
                Err(error) if error.is_script_error() => {
                    tracing::error!(%error, "cannot handle a task message");
                    let message = "the message could not be handled; the error has been logged".to_owned();
                    Attempt::Done(Err(Box::new(RejectedMessage::new(RejectionCode::Internal, message))))
                }
                Err(error) => {
                    self.unanswered("task", &error).await;
                    Attempt::Failed
                }
            }
        });
        // Without an answer, our name is given up: the entry stays pending, and reap writes it anew for others.
        decided.await.unwrap_or(Ok(()))
    }

    /// Answers the refusal of a message that cannot be acted on.
    async fn act(&self, message: &TaskMessage) -> Result<Option<Box<RejectedMessage>>, StoreError> {
        match message {
            TaskMessage::Heartbeat(leased) => self.touched(leased).await?,
            TaskMessage::Finish { leased, output } => {
                self.finish(leased, |call| finished(call, output.clone())).await?
            }
            TaskMessage::Fail { leased, error, retryable: true } => self.fail_for_now(leased, error.clone()).await?,
            TaskMessage::Fail { leased, error, retryable: false } => {
                self.finish(leased, |call| failed(call, Outcome::Permanent, error.clone())).await?;
            }
            TaskMessage::Cancel { tenant, target, reason } => {
                let turn = match target {
                    CancelTarget::Task(task) => task.clone().into(),
                    CancelTarget::Turn(turn) => turn.clone(),
                };
                let name = TurnName { tenant: tenant.clone(), turn };
                return self.cancel(&name, reason.as_deref().unwrap_or("cancelled")).await;
            }
            TaskMessage::Delegate(_) => {}
        }
        Ok(None)
    }

    /// A turn that has not come yet is waited for, so its cancel leaves a trace: for tenants of this shard alone.
    async fn cancel(&self, name: &TurnName, reason: &str) -> Result<Option<Box<RejectedMessage>>, StoreError> {
        let refusal = |code, message: String| Ok(Some(Box::new(RejectedMessage::new(code, message))));
        if !self.store.is_home_of(&name.tenant) {
            return refusal(RejectionCode::WrongShard, WRONG_SHARD.into());
        }
        let is_known = || self.active.load().policy.tenants.contains_key(&name.tenant);
        if !is_known() {
            // It may have been set a moment ago.
            self.active.refresh_where_news(&self.store).await?;
        }
        if !is_known() {
            return refusal(
                RejectionCode::UnknownTenant,
                format!("tenant {:?} is not configured", name.tenant.as_str()),
            );
        }
        match self.store.cancel(name, reason).await? {
            Cancelled::Full => {
                refusal(RejectionCode::TooManyCancels, "too many early cancels are pending; retry later".into())
            }
            Cancelled::Ok | Cancelled::Flagged | Cancelled::Ended | Cancelled::Waiting | Cancelled::Unknown => Ok(None),
        }
    }

    async fn touched(&self, leased: &Leased) -> Result<(), StoreError> {
        if self.store.touch(&TurnName::task(&leased.tenant, &leased.task), &leased.lease).await? == Touched::Stale {
            self.metrics.fenced("touch");
        }
        Ok(())
    }

    /// The task as its record has it, if the lease is still the one in force.
    async fn leased(&self, leased: &Leased) -> Result<Option<Held>, StoreError> {
        let name = TurnName::task(&leased.tenant, &leased.task);
        let TurnView::Live(live) = self.store.look(&name).await? else { return Ok(None) };
        let record = live.record;
        let queue = record.queue.as_deref().and_then(Queue::parse).filter(|q| matches!(q, Queue::External(..)));
        let holds = record.fence.as_ref() == Some(&leased.lease);
        let (Some(queue), Some(meta)) = (queue.filter(|_| holds), record.slice_meta()) else {
            self.metrics.fenced("finish");
            return Ok(None);
        };
        let call = report::call_of(&meta, Some(&record.first_call.clone().unwrap_or_default()));
        Ok(Some(Held { name, queue, meta, call, attempt: record.attempts, offered_ms: record.admitted_ms }))
    }

    /// Ends the task with one record and one reply.
    async fn finish(&self, leased: &Leased, result: impl FnOnce(CallResult) -> CallResult) -> Result<(), StoreError> {
        let Some(held) = self.leased(leased).await? else { return Ok(()) };
        let call = CallId { turn: held.name.turn.clone(), position: 0 };
        let blank = CallError { code: String::new(), message: String::new(), details: None };
        let blank = CallResult::refused(&call, None, &held.call.tool, Outcome::Ok, blank);
        // Redis does not note when the runtime took it: since the offer, its stream and its lease are the runtime's.
        let took_ms = held.offered_ms.map_or(0, |offered_ms| (self.clock.now_ms() - offered_ms).max(0).unsigned_abs());
        let result = result(CallResult { attempts: held.attempt + 1, duration_ms: took_ms, ..blank });
        let reported = Reported {
            tenant: &held.name.tenant,
            agent: &held.meta.agent,
            delegated: report::delegated(&held.meta),
            turn: held.name.turn.as_str(),
            dialect: held.meta.dialect,
            tool_name: None,
            tool_id: None,
            arguments: &held.call.arguments,
            result: &result,
            ran: result.ran(),
            shadow: &[],
            meta: &held.meta,
            effect: None,
            now_ms: self.clock.now_ms(),
        };
        let settlement = Settlement {
            fence: leased.lease.clone(),
            queue: Some(held.queue.clone()),
            first: 0,
            reply_to: held.meta.reply_to.clone(),
            frame: report::frame(&held.name, &held.meta),
            calls: vec![report::settled_call(&self.decider.report(), &reported)],
            name: held.name,
        };
        match self.store.settle(&[settlement]).await?.first() {
            Some(Settled::Done) => {
                self.endings.turn_ended(held.meta.submitted());
                // No tool of ours did it.
                self.metrics.call_not_run(None, result.outcome);
            }
            Some(Settled::Stale | Settled::Gap) => self.metrics.fenced("finish"),
            Some(Settled::Laned | Settled::Continue | Settled::Cancelled | Settled::Already) | None => {}
        }
        Ok(())
    }

    /// The runtime says that another try makes sense: 1, 3, 9 s, then the failure is final.
    async fn fail_for_now(&self, leased: &Leased, error: CallError) -> Result<(), StoreError> {
        let Some(held) = self.leased(leased).await? else { return Ok(()) };
        let left = self.clock.until(held.meta.deadline_ms);
        let Verdict::RetryAfter(wait) = Ladder::default().verdict(held.attempt + 1, None, left) else {
            return self.finish(leased, |call| failed(call, Outcome::Transient, error)).await;
        };
        self.metrics.retried("task");
        let (name, report) = (held.name.clone(), self.decider.report());
        let retry = Retry {
            name: held.name,
            fence: leased.lease.clone(),
            queue: held.queue,
            position: 0,
            delay_ms: i64::try_from(wait.as_millis()).unwrap_or(limits::RETRY_AFTER_MS_MAX as i64),
            attempt: held.attempt + 1,
            begun: false,
            beside: false,
            cause: self.decider.report().redactor.text(&format!("{}: {}", error.code, error.message)).into_owned(),
        };
        if self.store.retry(&[retry]).await?.first() == Some(&Parked::Cancelled) {
            let why = self.store.cancelled_because(&name).await?;
            let because = report::because(why.as_deref().map(|why| report.redactor.text(why)).as_deref());
            let message = format!("The task was cancelled{because} after a try had failed: {}", error.message);
            let error = CallError { message, ..error };
            return self.finish(leased, |call| failed(call, Outcome::Cancelled, error)).await;
        }
        Ok(())
    }
}

fn refuse(task: &Task, code: RejectionCode, message: String) -> Box<RejectedMessage> {
    Box::new(RejectedMessage {
        tenant: Some(task.tenant.clone()),
        task_id: task.id.clone(),
        agent: Some(task.target.to_string()),
        reply_to: task.reply_to.clone(),
        correlation_id: task.context.correlation_id.clone(),
        traceparent: task.context.traceparent.clone(),
        ..RejectedMessage::new(code, message)
    })
}

/// The result of one try to write a task.
enum Tried {
    Written,
    Refused(Box<RejectedMessage>),
    /// Redis' memory is short.
    Later,
}

/// A task that an external runtime holds.
struct Held {
    name: TurnName,
    queue: Queue,
    meta: SliceMeta,
    call: Call,
    attempt: u32,
    /// When the task was offered, ms of shard time.
    offered_ms: Option<i64>,
}

fn finished(blank: CallResult, output: Box<serde_json::value::RawValue>) -> CallResult {
    CallResult {
        success: true,
        outcome: Outcome::Ok,
        output: Some(bounded_output(output, limits::OUTPUT_BYTES_MAX)),
        error: None,
        ..blank
    }
}

fn failed(blank: CallResult, outcome: Outcome, error: CallError) -> CallResult {
    CallResult { success: false, outcome, output: None, error: Some(error), ..blank }
}

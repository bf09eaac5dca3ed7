//! Handles the inbound `tasks` stream: new tasks, and messages of external runtimes about their tasks.

use std::sync::Arc;

use tickfleet_core::EntryId;
use tickfleet_core::recovery::inbound::AcknowledgeInbound;
use tickfleet_core::task::delegate::{DelegateResult, Source};
use tickfleet_core::task::external::{ReadHeld, RenewTaskLease, RenewTaskLeaseResult};
use tickfleet_core::task::refusal::Refusal;
use tickfleet_core::turn::submit::Inbound;
use tickfleet_core::turn::{Conclude, Concluded, Park, ParkReason, ParkResult, Settle, SettleResult, Slice, Turn};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::delegation;
use tickfleet_engine::report::{self, ReportedCall};
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::retry::{RetryDecision, RetryDelays};
use tickfleet_model::{
    AgentId, CallError, CallId, CallResult, ConsumerId, Outcome, RejectionCode, Task, TaskGrant, TaskId, limits,
    task_digest,
};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::traces;
use tickfleet_protocol::{
    CancelTarget, ClaimedCall, LeasedTask, RejectedMessage, RejectionStatus, TaskMessage, bounded_output,
    parse_task_message,
};
use tickfleet_store::{CancelResult, Store, StoreError, TurnName};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::Common;
use crate::admission::{Arrival, minted};
use crate::inbound_reader::InboundReader;
use crate::intake::{BatchHandler, Intake, WRONG_SHARD};
use crate::policy_tracker::PolicyTracker;
use crate::unrun_calls::turn_ended;

/// An attempt fails if a heartbeat of the task's runtime changes the task at the same time.
const ATTEMPTS_MAX: usize = 4;

pub(crate) struct TaskQueues {
    store: Store,
    active: Arc<PolicyHandle>,
    policy_tracker: Arc<PolicyTracker>,
    intake: Arc<Intake>,
    metrics: Arc<Metrics>,
}

impl BatchHandler for TaskQueues {
    async fn handle_batch(&self, reader: &InboundReader, arrivals: Vec<Arrival>) {
        for arrival in arrivals {
            // If the loop must stop, this consumer keeps the remaining entries, and releases them to other schedulers
            // at its end.
            if self.policy_tracker.is_over() {
                return;
            }
            if arrival.crashes > 0 && !reader.mark_suspect(&arrival.entry.id).await {
                return;
            }
            self.handle_message(reader, &arrival).await;
            reader.clear_suspect().await;
        }
    }
}

impl TaskQueues {
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
        self.intake.read(Inbound::Tasks, consumer, stop, &*self).await;
    }

    async fn handle_message(&self, reader: &InboundReader, arrival: &Arrival) {
        let handled = match parse_task_message(&arrival.raw) {
            Ok(TaskMessage::Delegate(task)) => {
                let span = tracing::debug_span!(
                    target: traces::TARGET, "delegate", tenant = %task.tenant, agent = %task.target,
                );
                traces::follow(&span, task.context.traceparent.as_deref(), task.context.tracestate.as_deref());
                return self.delegate(reader, arrival, *task).instrument(span).await;
            }
            Ok(message) => self.apply_runtime_message(reader, message).await,
            Err(refusal) => Err(refusal),
        };
        match handled {
            Ok(()) if self.policy_tracker.is_over() => {}
            Ok(()) => self.acknowledge(arrival).await,
            Err(refusal) => self.refuse_task(reader, arrival, &refusal).await,
        }
    }

    async fn refuse_task(&self, reader: &InboundReader, arrival: &Arrival, refusal: &RejectedMessage) {
        tracing::debug!(
            entry = %arrival.entry.id,
            code = refusal.code.as_str(),
            reason = refusal.message,
            "task message rejected"
        );
        let rejected = self.intake.rejection(Inbound::Tasks, arrival, refusal, RejectionStatus::Rejected);
        self.intake.reject_all(reader, Inbound::Tasks, vec![rejected]).await;
    }

    async fn acknowledge(&self, arrival: &Arrival) {
        let stream = Inbound::Tasks.stream();
        let entry = arrival.entry.clone();
        if let Err(error) = self.store.decide(AcknowledgeInbound { stream, entry }).await {
            // Handling the message twice is harmless: the message is idempotent, or the lease has ended.
            tracing::warn!(%error, "task message handled but not acknowledged");
        }
    }

    async fn delegate(&self, reader: &InboundReader, arrival: &Arrival, task: Task) {
        let decided = retry_until(reader, || async {
            match self.try_delegate(arrival, task.clone()).await {
                Ok(DelegateAttempt::Written) => Attempt::Done(None),
                Ok(DelegateAttempt::Later) => Attempt::Failed,
                Ok(DelegateAttempt::Refused(refusal)) => Attempt::Done(Some(refusal)),
                Err(error) if error.is_script_error() => {
                    tracing::error!(%error, "cannot write a task");
                    Attempt::Done(Some(refuse(&task, RejectionCode::Internal, "The task could not be written.".into())))
                }
                Err(error) => {
                    self.handle_store_error("delegate", &error).await;
                    Attempt::Failed
                }
            }
        });
        let Some(mut refusal) = decided.await.flatten() else { return };
        // With the digest of the task as submitted, the rejection makes the task's ID available again.
        refusal.digest = Some(task_digest(&task));
        if refusal.code == RejectionCode::Conflict {
            let rejected = self.intake.rejection(Inbound::Tasks, arrival, &refusal, RejectionStatus::Conflict);
            return self.intake.reject_all(reader, Inbound::Tasks, vec![rejected]).await;
        }
        self.refuse_task(reader, arrival, &refusal).await;
    }

    async fn try_delegate(&self, arrival: &Arrival, mut task: Task) -> Result<DelegateAttempt, StoreError> {
        let id = minted(Inbound::Tasks, &arrival.origin, task.id.clone().map(Into::into));
        if !self.store.is_home_of(&task.tenant) {
            return Ok(DelegateAttempt::Refused(refuse(&task, RejectionCode::WrongShard, WRONG_SHARD.into())));
        }
        if self.active.load().policy.look_up(&task.tenant, &task.target).is_err() {
            // The tenant or agent may just have been configured, so the settings are read again.
            self.active.refresh_if_changed(&self.store).await?;
        }
        let active = self.active.load();
        if let Some(parent) = task.parent.clone().filter(|_| active.policy.tenants.contains_key(&task.tenant)) {
            let Some((agent, grant, deadline_ms)) = self.grant_of(&TurnName::task(&task.tenant, &parent)).await? else {
                let (code, message) = delegation::refused(Refusal::UnknownParent);
                return Ok(DelegateAttempt::Refused(refuse(&task, code, message.into())));
            };
            if let Err((code, message)) = delegation::under_parent(&mut task, &agent, &grant) {
                return Ok(DelegateAttempt::Refused(refuse(&task, code, message)));
            }
            delegation::end_with(&mut task, deadline_ms, self.store.state().now_ms);
        }
        let planned = match delegation::plan(&active, &task, self.store.state().now_ms) {
            Ok(planned) => planned,
            Err((code, message)) => return Ok(DelegateAttempt::Refused(refuse(&task, code, message))),
        };
        let Ok(id) = TaskId::new(id.as_str()) else {
            return Ok(DelegateAttempt::Refused(refuse(
                &task,
                RejectionCode::Internal,
                "the task has no valid id".into(),
            )));
        };
        let bounds = self.store.bounds();
        let delegate = planned.decision(Source::Inbound(arrival.entry.clone()), id, task.id.is_some(), &bounds);
        Ok(match self.store.decide(delegate).await?.result {
            DelegateResult::Offered | DelegateResult::Ends | DelegateResult::Duplicate => DelegateAttempt::Written,
            DelegateResult::Pressure => DelegateAttempt::Later,
            DelegateResult::Conflict => DelegateAttempt::Refused(refuse(
                &task,
                RejectionCode::Conflict,
                "this task_id was accepted before with other content".into(),
            )),
            DelegateResult::Refused(refusal) => {
                let (code, message) = delegation::refused(refusal);
                DelegateAttempt::Refused(refuse(&task, code, message.into()))
            }
        })
    }

    /// (agent, grant, deadline in ms). `None` if no unfinished task has this name.
    async fn grant_of(&self, name: &TurnName) -> Result<Option<(AgentId, TaskGrant, i64)>, StoreError> {
        let stored = self.store.record_of::<Turn>(&name.record()).await?;
        let head = stored.filter(|stored| stored.value.is_task()).map(|stored| stored.value.head);
        Ok(head.and_then(|head| Some((head.agent, head.task?.1, head.deadline_ms))))
    }

    async fn handle_store_error(&self, verb: &'static str, error: &StoreError) {
        if let StoreError::StateLost(what) = error {
            return self.policy_tracker.restore_lost_state(what).await;
        }
        tracing::warn!(%error, verb, "Redis did not respond; retrying");
    }

    /// A runtime sends each message only once, so this function retries until Redis has decided. If the lease has
    /// ended, the message changes nothing.
    async fn apply_runtime_message(
        &self,
        reader: &InboundReader,
        message: TaskMessage,
    ) -> Result<(), Box<RejectedMessage>> {
        let decided = retry_until(reader, || async {
            match self.apply(&message).await {
                Ok(None) => Attempt::Done(Ok(())),
                Ok(Some(refusal)) => Attempt::Done(Err(refusal)),
                Err(error) if error.is_script_error() => {
                    tracing::error!(%error, "cannot handle a task message");
                    let message = "the message could not be handled; the error has been logged".to_owned();
                    Attempt::Done(Err(Box::new(RejectedMessage::new(RejectionCode::Internal, message))))
                }
                Err(error) => {
                    self.handle_store_error("task", &error).await;
                    Attempt::Failed
                }
            }
        });
        // Without a result, this incarnation must stop. Another scheduler then receives the pending entry.
        decided.await.unwrap_or(Ok(()))
    }

    async fn apply(&self, message: &TaskMessage) -> Result<Option<Box<RejectedMessage>>, StoreError> {
        match message {
            TaskMessage::Heartbeat(leased) => self.renew_lease(leased).await?,
            TaskMessage::Finish { leased, output } => {
                self.finish(leased, |call| success_result(call, output.clone())).await?
            }
            TaskMessage::Fail { leased, error, retryable: true } => self.fail_for_now(leased, error.clone()).await?,
            TaskMessage::Fail { leased, error, retryable: false } => {
                self.finish(leased, |call| failure_result(call, Outcome::Permanent, error.clone())).await?;
            }
            TaskMessage::Renew(claimed) => {
                let renewal = RenewTaskLease { name: claimed_name(claimed), entry: EntryId::new(&claimed.lease) };
                if self.store.decide(renewal).await?.result == RenewTaskLeaseResult::Stale {
                    self.metrics.fenced("touch");
                }
            }
            TaskMessage::Conclude { claimed, conclusion } => {
                let entry = EntryId::new(&claimed.lease);
                let conclude = Conclude { name: claimed_name(claimed), entry, conclusion: conclusion.clone() };
                if self.store.decide(conclude).await?.result == Concluded::Stale {
                    self.metrics.fenced("finish");
                }
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

    /// The store keeps a cancellation that arrives before the turn, so the tenant must belong to this shard.
    async fn cancel(&self, name: &TurnName, reason: &str) -> Result<Option<Box<RejectedMessage>>, StoreError> {
        let refusal = |code, message: String| Ok(Some(Box::new(RejectedMessage::new(code, message))));
        if !self.store.is_home_of(&name.tenant) {
            return refusal(RejectionCode::WrongShard, WRONG_SHARD.into());
        }
        let is_known = || self.active.load().policy.tenants.contains_key(&name.tenant);
        if !is_known() {
            // The tenant may just have been configured, so the settings are read again.
            self.active.refresh_if_changed(&self.store).await?;
        }
        if !is_known() {
            return refusal(
                RejectionCode::UnknownTenant,
                format!("tenant {:?} is not configured", name.tenant.as_str()),
            );
        }
        match self.store.cancel(name, reason).await? {
            CancelResult::Full => {
                refusal(RejectionCode::TooManyCancels, "too many early cancels are pending; retry later".into())
            }
            CancelResult::Ok
            | CancelResult::Flagged
            | CancelResult::Ended
            | CancelResult::Waiting
            | CancelResult::Unknown => Ok(None),
        }
    }

    async fn renew_lease(&self, leased: &LeasedTask) -> Result<(), StoreError> {
        let renewal = RenewTaskLease { name: leased_name(leased), entry: EntryId::new(&leased.lease) };
        if self.store.decide(renewal).await?.result == RenewTaskLeaseResult::Stale {
            self.metrics.fenced("touch");
        }
        Ok(())
    }

    /// `None` if `leased` is not the current lease.
    async fn leased_slice(&self, leased: &LeasedTask) -> Result<Option<Box<Slice>>, StoreError> {
        let read = ReadHeld { name: leased_name(leased), entry: EntryId::new(&leased.lease) };
        Ok(self.store.decide(read).await?.result)
    }

    async fn finish(&self, leased: &LeasedTask, result: impl Fn(CallResult) -> CallResult) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(slice) = self.leased_slice(leased).await? else { break };
            let name = &slice.name;
            let head = &slice.turn.head;
            let call = slice.calls.first();
            let blank = CallError { code: String::new(), message: String::new(), details: None };
            let id = CallId { turn: name.turn.clone(), position: 0 };
            let tool = delegation::TASK_TOOL;
            let blank = CallResult::refused(&id, None, tool, Outcome::Ok, blank);
            let now_ms = self.store.state().now_ms;
            // The duration starts at the offer, because the time when the runtime took the task is unknown.
            let took_ms = (now_ms - slice.turn.admitted_ms).max(0).unsigned_abs();
            let result = result(CallResult { attempts: slice.turn.attempts + 1, duration_ms: took_ms, ..blank });
            let reported = ReportedCall {
                name,
                head,
                tool_name: None,
                tool_id: None,
                arguments: call.map_or("", |call| call.arguments.as_str()),
                result: &result,
                ran: result.ran(),
                shadow: &[],
                effect: None,
                now_ms,
            };
            let rendered = [report::rendered_call(&self.policy_tracker.report(), &reported)];
            let frame = report::frame(name, head);
            let bounds = self.store.bounds();
            let settle = Settle {
                slice: &slice,
                results: &rendered,
                frame: &frame,
                sections: &[],
                reason: None,
                canceled: None,
                bounds: &bounds,
            };
            if self.store.decide(settle).await?.result == SettleResult::Ended {
                turn_ended(head.submitted_ms, self.store.state().now_ms, &self.metrics);
                // The task ran outside the fleet and not in a tool.
                self.metrics.call_not_run(None, result.outcome);
                return Ok(());
            }
        }
        self.metrics.fenced("finish");
        Ok(())
    }

    /// The next attempt begins after 1, 3 or 9 s. The fourth failure is final.
    async fn fail_for_now(&self, leased: &LeasedTask, error: CallError) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let Some(slice) = self.leased_slice(leased).await? else { break };
            let attempts = slice.turn.attempts + 1;
            let left = self.store.clock().until(slice.turn.head.deadline_ms);
            let RetryDecision::RetryAfter(wait) = RetryDelays::default().decide(attempts, None, left) else {
                return self.finish(leased, |call| failure_result(call, Outcome::Transient, error.clone())).await;
            };
            let cause = format!("{}: {}", error.code, error.message);
            let reason = ParkReason::Retry {
                attempts,
                delay_ms: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
                cause: self.policy_tracker.report().redactor.text(&cause).into_owned(),
                keeps_begun: false,
            };
            let park =
                Park { slice: &slice, reason: &reason, had_parallel_reads: false, waits_while: &[], sections: &[] };
            match self.store.decide(park).await?.result {
                ParkResult::Until(_) => {
                    self.metrics.retried("task");
                    return Ok(());
                }
                ParkResult::Canceled => return self.end_canceled(leased, &slice.name, error).await,
                // The slice is read again: the runtime has sent a heartbeat since the read, or another runtime has the
                // task now.
                ParkResult::Stale => {}
            }
        }
        self.metrics.fenced("finish");
        Ok(())
    }

    async fn end_canceled(&self, leased: &LeasedTask, name: &TurnName, error: CallError) -> Result<(), StoreError> {
        let why = self.store.canceled_because(name).await?;
        let report = self.policy_tracker.report();
        let because = report::because(why.as_deref().map(|why| report.redactor.text(why)).as_deref());
        let message = format!("The task was canceled{because} after a try had failed: {}", error.message);
        let error = CallError { message, ..error };
        self.finish(leased, |call| failure_result(call, Outcome::Cancelled, error.clone())).await
    }
}

fn leased_name(leased: &LeasedTask) -> TurnName {
    TurnName::task(&leased.tenant, &leased.task)
}

fn claimed_name(claimed: &ClaimedCall) -> TurnName {
    TurnName { tenant: claimed.tenant.clone(), turn: claimed.turn.clone() }
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

enum DelegateAttempt {
    Written,
    Refused(Box<RejectedMessage>),
    /// The store is short of memory, so the task must be written later.
    Later,
}

fn success_result(blank: CallResult, output: Box<serde_json::value::RawValue>) -> CallResult {
    CallResult {
        success: true,
        outcome: Outcome::Ok,
        output: Some(bounded_output(output, limits::OUTPUT_BYTES_MAX)),
        error: None,
        ..blank
    }
}

fn failure_result(blank: CallResult, outcome: Outcome, error: CallError) -> CallResult {
    CallResult { success: false, outcome, output: None, error: Some(error), ..blank }
}

//! Calls that a tool makes while one of its own calls runs. These inner calls are turns of the same agent.

use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::value::RawValue;
use tickfleet_client::Reply;
use tickfleet_engine::begin_turn::{BegunTurn, SameTurn, begin_turn};
use tickfleet_model::turn::inner::inner_turn;
use tickfleet_model::{Call, Dialect, Priority, Turn, TurnId};
use tickfleet_store::{Store, StoreError, TurnName, TurnView};

use crate::tools::inner::{InnerCalls, InnerResult};
use crate::tools::{CallContext, ToolError};

/// A waiting call checks again after this time, in case its wake-up is lost.
const RECHECK_AFTER: Duration = Duration::from_secs(15);

pub(crate) struct InnerTurns {
    store: Store,
    priority: Priority,
    /// The inner turn that this attempt has sent to the store. `None` after the turn's end.
    out: Mutex<Option<TurnId>>,
}

impl InnerTurns {
    pub(crate) const fn new(store: Store, priority: Priority) -> Self {
        Self { store, priority, out: Mutex::new(None) }
    }

    pub(crate) fn out(&self) -> Option<TurnId> {
        self.out.lock().clone()
    }

    /// The store forgets inner calls in order: a store that knows the previous inner call has not forgotten this call.
    async fn is_new(&self, context: &CallContext, number: usize) -> Result<bool, StoreError> {
        let Some(before) = number.checked_sub(1).filter(|before| *before > 0) else {
            return Ok(!context.waited && !context.may_be_forgotten);
        };
        let Ok(turn) = inner_turn(&context.call, before) else { return Ok(false) };
        let name = TurnName { tenant: context.tenant.clone(), turn };
        Ok(matches!(self.store.turn_view(&name).await?, TurnView::Finished(_)))
    }
}

#[async_trait]
impl InnerCalls for InnerTurns {
    async fn call(
        &self,
        context: &CallContext,
        number: usize,
        tool: &str,
        arguments: Box<RawValue>,
    ) -> Result<InnerResult, ToolError> {
        let id = inner_turn(&context.call, number).map_err(ToolError::Permanent)?;
        let turn = turn(context, self.priority, id.clone(), tool, &arguments);
        // Set `out` before sending: if this future is dropped, it is unknown whether the turn was sent.
        *self.out.lock() = Some(id.clone());
        let later = |message: String| ToolError::NotExecuted { message, retry_after: None };
        match begin_turn(&self.store, &turn, SameTurn::Agent, self.is_new(context, number))
            .await
            .map_err(|error| later(error.to_string()))?
        {
            BegunTurn::Ended(reply) => {
                *self.out.lock() = None;
                result(&reply)
            }
            BegunTurn::Out(turn) => Err(ToolError::Waits { awaits: Some(turn), at_most: RECHECK_AFTER }),
            BegunTurn::RecordExpired => Err(ToolError::Permanent(format!(
                "{tool} may have run: its result is no longer stored. Check before you repeat it."
            ))),
            BegunTurn::Refused(why) => Err(ToolError::Permanent(format!("{tool} was not called: {why}"))),
            BegunTurn::Later(why) => Err(later(why.to_owned())),
        }
    }
}

/// The inner turn has exactly the permissions of the outer call.
fn turn(context: &CallContext, priority: Priority, id: TurnId, tool: &str, arguments: &RawValue) -> Turn {
    Turn {
        id: Some(id),
        tenant: context.tenant.clone(),
        agent: context.agent.clone(),
        priority,
        deadline_ms: Some(context.deadline_ms),
        reply_to: None,
        dialect: Dialect::Raw,
        task: context.task.as_ref().map(|(task, _)| task.clone()),
        context: context.for_child_work(),
        want_audits: false,
        strict: false,
        allowed_tools: context.tools.narrowed().cloned(),
        parallel_reads: false,
        pending_approval: false,
        local_calls: false,
        calls: vec![Call { provider_id: None, tool: tool.to_owned(), arguments: arguments.get().to_owned() }],
    }
}

fn result(reply: &str) -> Result<InnerResult, ToolError> {
    let reply: Reply = serde_json::from_str(reply).map_err(ToolError::internal)?;
    let result = reply.results.into_iter().next().ok_or_else(|| ToolError::internal("a turn without a result"))?;
    Ok(InnerResult {
        outcome: result.outcome.as_str().to_owned(),
        output: result.output.filter(|_| result.success),
        error: result.error.map(|error| error.message),
    })
}

//! The task handler `llm`: it asks an agent's model, carries out the model's calls as a turn, and returns the results
//! to the model, until the model answers.
//!
//! START HERE: `run` carries out one task from its current state to its next wait or its end. Continue with `history`
//! (the stored state of a task, and its next step), `task_input` (what reaches a task from outside: its session, and
//! messages of other agents), `prompt` (the requests to the model), `budget` (limits on usage), `answer` (answers in a
//! given form), `compact` (summaries of old steps), `turns` (how calls are submitted and their results read), and
//! `models` (the configured models).
//!
//! A task is carried out in steps, each of which is stored in Redis before the next one begins: `plan` (the model's
//! answer), `execute` (its calls are submitted as a turn), `validate` (their results have arrived), `answer`. While
//! the task waits for a turn, it uses no slot: its slice is parked, and the end of the turn wakes it. After a crash,
//! another worker reads the history and continues from there. It repeats at most one request to the model: the one
//! whose answer was not stored.

mod answer;
mod budget;
mod compact;
mod failure;
mod history;
mod models;
mod prompt;
mod run;
mod task_input;
mod turns;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tickfleet_config::LlmDef;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::Effect;
use tickfleet_models::ModelChain;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::Store;
use tickfleet_tools::{CallContext, DeclarationError, DeclaredHandler, Handler, ToolFailure, ToolKind, ToolOutput};

pub use models::ModelSet;

/// Makes the handlers of agents that are run by a model.
#[derive(Clone)]
pub struct LlmKind {
    store: Store,
    models: Arc<ModelSet>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
}

impl LlmKind {
    /// Creates handlers for tasks of the shard of `store`. They use `models`, within the budgets of the active policy.
    #[must_use]
    pub fn new(store: Store, models: Arc<ModelSet>, active: Arc<PolicyHandle>, metrics: Arc<Metrics>) -> Self {
        Self { store, models, active, metrics }
    }
}

impl ToolKind<LlmDef> for LlmKind {
    fn make(&self, def: &LlmDef, _: &serde_json::Value, _: Effect) -> Result<DeclaredHandler, DeclarationError> {
        let models = self.models.chain(&def.models);
        let configured = models.is_ok();
        let set = Arc::clone(&self.models);
        let active = Arc::clone(&self.active);
        let metrics = Arc::clone(&self.metrics);
        let form = def.answer_schema.as_ref().map(answer::AnswerForm::compile).transpose()?;
        let compacts = (!def.compact_with.is_empty()).then(|| self.models.chain(&def.compact_with));
        if let Some(Err(why)) = &compacts {
            tracing::warn!(%why, "compact_with: old steps are truncated, not summarized");
        }
        let agent =
            LlmAgent { def: def.clone(), store: self.store.clone(), models, compacts, set, active, metrics, form };
        Ok(DeclaredHandler { handler: Arc::new(agent), configured })
    }
}

/// Carries out the tasks of one agent.
struct LlmAgent {
    def: LlmDef,
    store: Store,
    /// The models in order, or why none are available.
    models: Result<ModelChain, String>,
    /// The models that summarize old steps, if the agent is configured for this.
    compacts: Option<Result<ModelChain, String>>,
    /// All models, with their prices.
    set: Arc<ModelSet>,
    /// Limits, tenants and agents.
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    /// The form of the agent's answers, if they must have one.
    form: Option<answer::AnswerForm>,
}

#[async_trait]
impl Handler for LlmAgent {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        let models = self.models.as_ref().map_err(|why| ToolFailure::NotConfigured { message: why.clone() })?;
        run::task(self, models, context, arguments).await
    }
}

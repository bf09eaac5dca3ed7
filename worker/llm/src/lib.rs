//! The task handler `llm`: an agent's model is asked, its calls are carried out as turns like anybody's, the results go
//! back to the model, until it answers.
//!
//! START HERE: `run` is one task from wherever it stands to its next wait or its end. Read on in `history` (what is
//! kept of a task, and what follows from it), `around` (what comes to a task from outside: the session that it belongs
//! to, and messages of other agents), `prompt` (what the model is told), `budget` (what it may use), `answer`
//! (answers in a form), `compact` (old steps in fewer words), `turns` (how calls are submitted and
//! their results read), and `models` (which models there are).
//!
//! A task is carried out in steps, each of which is in Redis before the next one begins: `plan` (the model's answer),
//! `execute` (its calls are out as a turn), `validate` (their results are in), `answer`. While a turn is out the task
//! holds no slot: its slice is parked, and the turn's end wakes it. Whoever takes the task over after a crash reads the
//! history and goes on from there; at most an answer of the model that nobody had written down is asked for again.

mod answer;
mod around;
mod budget;
mod compact;
mod failure;
mod history;
mod models;
mod prompt;
mod run;
mod turns;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tickfleet_config::LlmDef;
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::Effect;
use tickfleet_models::Models;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::Store;
use tickfleet_tools::{CallContext, DeclarationError, DeclaredHandler, Handler, ToolFailure, ToolKind, ToolOutput};

pub use models::ModelSet;

/// Makes the handlers of agents that a model runs.
#[derive(Clone)]
pub struct LlmKind {
    store: Store,
    models: Arc<ModelSet>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
}

impl LlmKind {
    /// Handlers for tasks of the shard of `store`, run on `models`, within the budgets of what is in force.
    #[must_use]
    pub fn new(store: Store, models: Arc<ModelSet>, active: Arc<PolicyHandle>, metrics: Arc<Metrics>) -> Self {
        Self { store, models, active, metrics }
    }
}

impl ToolKind<LlmDef> for LlmKind {
    fn make(&self, def: &LlmDef, _: &serde_json::Value, _: Effect) -> Result<DeclaredHandler, DeclarationError> {
        let models = self.models.chain(&def.models);
        let configured = models.is_ok();
        let (set, active, metrics) = (Arc::clone(&self.models), Arc::clone(&self.active), Arc::clone(&self.metrics));
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

/// What carries out the tasks of one agent.
struct LlmAgent {
    def: LlmDef,
    store: Store,
    /// The models in order; or why there are none.
    models: Result<Models, String>,
    /// Those that summarise old steps, where the agent wants that.
    compacts: Option<Result<Models, String>>,
    /// All models, with their prices.
    set: Arc<ModelSet>,
    /// Limits, tenants and agents.
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    /// The form of its answers, where they have one.
    form: Option<answer::AnswerForm>,
}

#[async_trait]
impl Handler for LlmAgent {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        let models = self.models.as_ref().map_err(|why| ToolFailure::NotConfigured { message: why.clone() })?;
        run::task(self, models, context, arguments).await
    }
}

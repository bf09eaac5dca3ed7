//! The task handler `llm`: asks an agent's model, carries out the model's calls as a turn, and returns the results to
//! the model. It repeats this until the model gives its final answer.
//!
//! START HERE: `run` carries out one task from its current state to its next wait or its end. Then read:
//!
//! - `history`: the stored state of a task, and its next step.
//! - `task_input`: what reaches a task from outside: its session, and messages of other agents.
//! - `prompt`: the requests to the model.
//! - `budget`: limits on usage.
//! - `answer`: answers in a given form.
//! - `compact`: summaries of old steps.
//! - `turns`: the submission of calls and their results.
//! - `models`: the configured models.
//!
//! A task is carried out in steps, and each step is stored in Redis before the next one begins: `plan` (the model's
//! answer), `execute` (its calls are submitted as a turn), `validate` (their results have arrived), `answer`. A task
//! that waits for a turn uses no slot: its slice is parked, and the end of the turn wakes it. After a crash, another
//! worker reads the history and continues. At most one request to the model is repeated, if its answer was not stored
//! before the crash.

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

#[derive(Clone)]
pub struct LlmKind {
    store: Store,
    models: Arc<ModelSet>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
}

impl LlmKind {
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

struct LlmAgent {
    def: LlmDef,
    store: Store,
    /// In the order in which they are asked, or the reason why none is available.
    models: Result<ModelChain, String>,
    /// For summaries of old steps. `None` if the agent is not configured for summaries.
    compacts: Option<Result<ModelChain, String>>,
    set: Arc<ModelSet>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    /// `None` if the agent's answers need no form.
    form: Option<answer::AnswerForm>,
}

#[async_trait]
impl Handler for LlmAgent {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        let models = self.models.as_ref().map_err(|why| ToolFailure::NotConfigured { message: why.clone() })?;
        run::task(self, models, context, arguments).await
    }
}

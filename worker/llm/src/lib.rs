//! The task handler `llm`. START HERE: `run`. Each step is stored in Redis before the next one begins, so that another
//! worker can continue after a crash.

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
    models: Result<ModelChain, String>,
    /// `None` if the agent is not configured for summaries.
    compacts: Option<Result<ModelChain, String>>,
    set: Arc<ModelSet>,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    /// `None` if answers need no form.
    form: Option<answer::AnswerForm>,
}

#[async_trait]
impl Handler for LlmAgent {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        let models = self.models.as_ref().map_err(|why| ToolFailure::NotConfigured { message: why.clone() })?;
        run::task(self, models, context, arguments).await
    }
}

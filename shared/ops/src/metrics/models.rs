//! Metrics of models, and of tasks that run on models.

use prometheus::IntCounterVec;

use super::builder::MetricBuilder;
use super::{Metrics, catalogue as c, labels};

#[derive(Debug)]
pub(super) struct ModelMetrics {
    requests: IntCounterVec,
    tokens: IntCounterVec,
    cost: IntCounterVec,
    steps: IntCounterVec,
}

impl ModelMetrics {
    pub(super) fn register(builder: &MetricBuilder) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: builder.counters(&c::MODEL_REQUESTS)?,
            tokens: builder.counters(&c::MODEL_TOKENS)?,
            cost: builder.counters(&c::MODEL_COST)?,
            steps: builder.counters(&c::TASK_STEPS)?,
        })
    }
}

impl Metrics {
    /// `outcome` is `ok` or a kind of failure.
    pub fn model_asked(&self, model: &str, outcome: &str) {
        self.models.requests.with_label_values(&[model, labels::known(&labels::MODEL_OUTCOMES, outcome)]).inc();
    }

    /// `cost` is in millionths of the currency.
    pub fn model_used(&self, model: &str, input: u64, output: u64, cost: u64) {
        self.models.tokens.with_label_values(&[model, "input"]).inc_by(input);
        self.models.tokens.with_label_values(&[model, "output"]).inc_by(output);
        self.models.cost.with_label_values(&[model]).inc_by(cost);
    }

    /// `step` is `plan`, `execute`, `validate`, `answer` or `compact`.
    pub fn task_step(&self, step: &str) {
        self.models.steps.with_label_values(&[labels::known(&labels::STEPS, step)]).inc();
    }
}

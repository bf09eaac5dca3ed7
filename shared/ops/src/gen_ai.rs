//! Spans and a metric under OpenTelemetry's names for models and agents (`gen_ai.*`). The conventions are still in
//! development (semantic-conventions-genai, read in November 2026), so a setting must enable these names.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus::{Error, HistogramOpts, HistogramVec, Registry};
use tracing::Span;

use crate::traces::TARGET;

/// In seconds, as the conventions require.
const BUCKETS: [f64; 14] = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// `gen_ai.execute_tool.duration` in the notation of Prometheus.
const TOOL_SECONDS: &str = "gen_ai_execute_tool_duration_seconds";

static NAMES: AtomicBool = AtomicBool::new(false);
static CONTENT: AtomicBool = AtomicBool::new(false);

/// With `content`, the spans include arguments and results.
pub fn record(names: bool, content: bool) {
    NAMES.store(names, Ordering::Relaxed);
    CONTENT.store(names && content, Ordering::Relaxed);
}

#[must_use]
pub fn is_recorded() -> bool {
    NAMES.load(Ordering::Relaxed)
}

#[must_use]
pub fn records_content() -> bool {
    CONTENT.load(Ordering::Relaxed)
}

/// `id` is the provider's ID of the call, or else the fleet's ID of the call.
#[must_use]
pub fn tool_span(tool: &str, id: &str, agent: &str) -> Span {
    if !is_recorded() {
        return Span::none();
    }
    tracing::debug_span!(
        target: TARGET, "execute_tool", otel.name = format!("execute_tool {tool}"), otel.kind = "internal",
        otel.status_code = tracing::field::Empty, gen_ai.operation.name = "execute_tool", gen_ai.tool.name = tool,
        gen_ai.tool.type = "function", gen_ai.tool.call.id = id, gen_ai.agent.name = agent,
        error.type = tracing::field::Empty, gen_ai.tool.call.arguments = tracing::field::Empty,
        gen_ai.tool.call.result = tracing::field::Empty,
    )
}

#[must_use]
pub fn chat_span(provider: &str, model: &str, agent: &str) -> Span {
    if !is_recorded() {
        return Span::none();
    }
    tracing::debug_span!(
        target: TARGET, "chat", otel.name = format!("chat {model}"), otel.kind = "client",
        otel.status_code = tracing::field::Empty, gen_ai.operation.name = "chat", gen_ai.provider.name = provider,
        gen_ai.request.model = model, gen_ai.agent.name = agent, error.type = tracing::field::Empty,
        gen_ai.usage.input_tokens = tracing::field::Empty, gen_ai.usage.output_tokens = tracing::field::Empty,
    )
}

/// `word` is an error type from a closed list.
pub fn failed(span: &Span, word: &str) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", word);
}

#[derive(Debug)]
pub(crate) struct ToolSeconds(HistogramVec);

impl ToolSeconds {
    pub(crate) fn register(registry: &Registry) -> Result<Self, Error> {
        let help = "Duration of one try of a call (OpenTelemetry's gen_ai.execute_tool.duration).";
        let options = HistogramOpts::new(TOOL_SECONDS, help).buckets(BUCKETS.to_vec());
        let seconds = HistogramVec::new(options, &["gen_ai_tool_name", "error_type"])?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self(seconds))
    }

    pub(crate) fn observe(&self, tool: &str, took: Duration, failed: Option<&str>) {
        if is_recorded() {
            self.0.with_label_values(&[tool, failed.unwrap_or_default()]).observe(took.as_secs_f64());
        }
    }
}

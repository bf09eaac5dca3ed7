//! The names that OpenTelemetry has for what models and agents do (`gen_ai.*`): beside our own, where that is asked for.
//!
//! The conventions are in development (semantic-conventions-genai, read in November 2026), which is why a setting asks for
//! them. What was said, arguments and results, is recorded only where a second one asks for that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus::{Error, HistogramOpts, HistogramVec, Registry};
use tracing::Span;

use crate::traces::TARGET;

/// Buckets of [`TOOL_SECONDS`], seconds, as the conventions ask for.
const BUCKETS: [f64; 14] = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92];
/// `gen_ai.execute_tool.duration` as Prometheus writes it.
const TOOL_SECONDS: &str = "gen_ai_execute_tool_duration_seconds";

/// What is recorded: one choice per process.
static NAMES: AtomicBool = AtomicBool::new(false);
static CONTENT: AtomicBool = AtomicBool::new(false);

/// From here on, spans and the metric have these names too; with `content`, arguments and results are in them.
pub fn record(names: bool, content: bool) {
    NAMES.store(names, Ordering::Relaxed);
    CONTENT.store(names && content, Ordering::Relaxed);
}

/// Whether the names are recorded.
#[must_use]
pub fn is_recorded() -> bool {
    NAMES.load(Ordering::Relaxed)
}

/// Whether arguments and results are recorded.
#[must_use]
pub fn records_content() -> bool {
    CONTENT.load(Ordering::Relaxed)
}

/// The span of one try of a call; none where the names are not recorded. `id` is the provider's id of the call, or ours.
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

/// The span of one request to a model; none where the names are not recorded.
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

/// Says that what the span is of has failed, by a word of a closed list.
pub fn failed(span: &Span, word: &str) {
    span.record("otel.status_code", "ERROR");
    span.record("error.type", word);
}

/// The metric of the conventions: without series until it is recorded.
#[derive(Debug)]
pub(crate) struct ToolSeconds(HistogramVec);

impl ToolSeconds {
    pub(crate) fn made(registry: &Registry) -> Result<Self, Error> {
        let help = "Duration of one try of a call (OpenTelemetry's gen_ai.execute_tool.duration).";
        let options = HistogramOpts::new(TOOL_SECONDS, help).buckets(BUCKETS.to_vec());
        let seconds = HistogramVec::new(options, &["gen_ai_tool_name", "error_type"])?;
        registry.register(Box::new(seconds.clone()))?;
        Ok(Self(seconds))
    }

    /// A try of a call of `tool` took so long, and failed by this word, or did not.
    pub(crate) fn observe(&self, tool: &str, took: Duration, failed: Option<&str>) {
        if is_recorded() {
            self.0.with_label_values(&[tool, failed.unwrap_or_default()]).observe(took.as_secs_f64());
        }
    }
}

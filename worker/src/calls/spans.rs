//! OpenTelemetry's standard spans for attempts of calls, if they are recorded.

use serde_json::value::RawValue;
use tickfleet_model::Redactor;
use tickfleet_ops::gen_ai;
use tracing::Span;

use crate::calls::call_attempt::{AttemptOutcome, CallAttempt};
use crate::tools::{RegisteredTool, wording};

const CONTENT_BYTES_MAX: usize = 16 * 1024;

pub(super) fn tool_span(
    redactor: &Redactor,
    attempt: &CallAttempt<'_>,
    tool: &RegisteredTool,
    arguments: &RawValue,
) -> Span {
    let own = attempt.id.to_string();
    let id = attempt.call.provider_id.as_deref().unwrap_or(&own);
    let span = gen_ai::tool_span(&tool.spec.name, id, attempt.head().agent.as_str());
    if gen_ai::records_content() {
        span.record("gen_ai.tool.call.arguments", content(redactor, arguments));
    }
    span
}

/// Returns the outcome's word if the attempt failed.
pub(super) fn record_attempt(redactor: &Redactor, span: &Span, outcome: &AttemptOutcome) -> Option<&'static str> {
    let ok = matches!(outcome, AttemptOutcome::Ended(result, _) if result.success);
    let failed = (!ok && !matches!(outcome, AttemptOutcome::WaitForWork(..))).then(|| outcome.as_str());
    if let Some(word) = failed {
        gen_ai::failed(span, word);
    }
    if let (true, AttemptOutcome::Ended(result, _)) = (gen_ai::records_content(), outcome) {
        let output = result.output.as_deref();
        let _ = output.map(|output| span.record("gen_ai.tool.call.result", content(redactor, output)));
    }
    failed
}

fn content(redactor: &Redactor, json: &RawValue) -> String {
    wording::cut(&redactor.json(json.get()), CONTENT_BYTES_MAX)
}

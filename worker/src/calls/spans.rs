//! OpenTelemetry's standard spans for attempts of calls, if they are recorded.

use std::time::Duration;

use serde_json::value::RawValue;
use tickfleet_ops::gen_ai;
use tracing::Span;

use crate::calls::call_attempt::{AttemptOutcome, CallAttempt};
use crate::calls::state::Calls;
use crate::tools::{RegisteredTool, wording};

const CONTENT_BYTES_MAX: usize = 16 * 1024;

impl Calls {
    pub(super) fn tool_span(&self, attempt: &CallAttempt<'_>, tool: &RegisteredTool, arguments: &RawValue) -> Span {
        let own = attempt.id.to_string();
        let id = attempt.call.provider_id.as_deref().unwrap_or(&own);
        let span = gen_ai::tool_span(&tool.spec.name, id, attempt.head().agent.as_str());
        if gen_ai::records_content() {
            span.record("gen_ai.tool.call.arguments", self.content(arguments));
        }
        span
    }

    pub(super) fn record_attempt(&self, span: &Span, tool: &RegisteredTool, took: Duration, outcome: &AttemptOutcome) {
        let ok = matches!(outcome, AttemptOutcome::Ended(result, _) if result.success);
        let failed = (!ok && !matches!(outcome, AttemptOutcome::WaitForWork(..))).then(|| outcome.as_str());
        if let Some(word) = failed {
            gen_ai::failed(span, word);
        }
        if let (true, AttemptOutcome::Ended(result, _)) = (gen_ai::records_content(), outcome) {
            let output = result.output.as_deref();
            let _ = output.map(|output| span.record("gen_ai.tool.call.result", self.content(output)));
        }
        self.metrics.tool_tried(&tool.spec.name, took, failed);
    }

    fn content(&self, json: &RawValue) -> String {
        wording::cut(&self.redactor.json(json.get()), CONTENT_BYTES_MAX)
    }
}

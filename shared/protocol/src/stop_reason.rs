//! The words with which providers report the end of a response.

/// In lower case. Every other word, such as `stop` or `end_turn`, means that the response is complete.
const CUT_OFF: [&str; 30] = [
    "length",
    "content_filter",
    "incomplete",
    "max_output_tokens",
    "in_progress",
    "queued",
    "failed",
    "cancelled",
    "error",
    "abort",
    "aborted",
    "timeout",
    "model_length",
    "max_tokens",
    "model_context_window_exceeded",
    "refusal",
    "content_filtered",
    "guardrail_intervened",
    "safety",
    "recitation",
    "language",
    "other",
    "blocklist",
    "prohibited_content",
    "spii",
    "malformed_function_call",
    "unexpected_tool_call",
    "too_many_tool_calls",
    "image_safety",
    "error_toxic",
];

#[must_use]
pub fn is_unfinished(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    CUT_OFF.contains(&word.strip_prefix("finish_reason_").unwrap_or(&word))
}

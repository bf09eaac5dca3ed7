//! Why a response ended, in the words of its provider: complete, or cut off.

/// The words of providers for a response that is not complete, in lower case. Every other word is one of a response
/// that is: `stop`, `tool_calls`, `tool_use`, `end_turn`, `STOP`, `completed`.
const CUT_OFF: [&str; 30] = [
    // OpenAI and servers that speak its dialects.
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
    // Anthropic, and Bedrock.
    "max_tokens",
    "model_context_window_exceeded",
    "refusal",
    "content_filtered",
    "guardrail_intervened",
    // Gemini.
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
    // Cohere.
    "error_toxic",
];

/// Returns true if a response, or an item of one, ended by this word before it was complete.
#[must_use]
pub fn is_unfinished(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    CUT_OFF.contains(&word.strip_prefix("finish_reason_").unwrap_or(&word))
}

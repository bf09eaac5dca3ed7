//! Parses unmodified responses of model providers: whole responses, or only their assistant messages.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use tickfleet_protocol::{TURN_FIELDS, call_fields};

/// The members keep their order. Duplicate names are rejected, because the fleet also rejects them.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members: Vec<(String, Box<RawValue>)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if members.iter().any(|(other, _)| *other == name) {
                        return Err(A::Error::custom(format!("the key {name:?} occurs twice")));
                    }
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }

        from.deserialize_map(Reader)
    }
}

impl Members {
    fn of(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    /// `None` if the member is missing or null.
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| other == name)?;
        Some(found.1.get()).filter(|value| *value != "null")
    }

    fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.get(name)?).ok()
    }

    fn list(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|value| value.starts_with('['))
    }
}

const NO_CALL: &str = "is a message without tool calls; if its text contains calls, submit the text with --format text";

/// Converts a provider's response to a turn. `None` if `json` is not a provider's response, for example if it is a turn
/// in the fleet's own format. Fails if the response has no calls, or if it is ambiguous which calls are meant.
///
/// Supports these responses, exactly as the APIs return them:
/// - OpenAI's Chat Completions: the response with one choice, or its message
/// - OpenAI's Responses: the response
/// - Anthropic's Messages: the message
/// - Gemini's API: the response with one candidate, or its content
pub(crate) fn turn_of(json: &str) -> Option<Result<String, String>> {
    let members = Members::of(json)?;
    let calls = calls(&members)?;
    Some(calls.map(|(field, calls)| {
        let stop_reason = stop_reason(&members).map(|why| format!("\"stop_reason\":{why},")).unwrap_or_default();
        // The turn takes these fields from the calls and the stop reason. Members with these names are left out.
        let taken: Vec<&str> = call_fields().chain(["format", "stop_reason"]).collect();
        let kept = members
            .0
            .iter()
            .filter(|(name, _)| TURN_FIELDS.contains(&name.as_str()) && !taken.contains(&name.as_str()));
        let kept = kept.map(|(name, value)| format!("\"{name}\":{},", value.get())).collect::<String>();
        format!("{{{kept}{stop_reason}{field}{calls}}}")
    }))
}

/// Returns the provider's reason as a JSON string. The fleet does not run the last call of a truncated response.
fn stop_reason(response: &Members) -> Option<String> {
    let of = |members: &Members, name: &str| members.get(name).filter(|why| why.starts_with('"')).map(str::to_owned);
    let only = |list: &str, name: &str| of(&only(response, list, "").ok()?, name);
    let incomplete = || of(&Members::of(response.get("incomplete_details")?)?, "reason");
    of(response, "stop_reason")
        .or_else(|| only("choices", "finish_reason"))
        .or_else(|| only("candidates", "finishReason"))
        .or_else(|| only("candidates", "finish_reason"))
        .or_else(incomplete)
        .or_else(|| of(response, "status").filter(|_| response.list("output").is_some()))
        .or_else(|| of(response, "finish_reason"))
}

/// Returns the JSON text in front of the calls, and the calls. `None` if `members` are not a provider's response.
fn calls(members: &Members) -> Option<Result<(&'static str, String), String>> {
    if members.get("choices").is_some() {
        return Some(choice(members));
    }
    if members.list("output").is_some() && members.text("object").is_none_or(|object| object == "response") {
        let items = members.list("output").unwrap_or_default();
        return Some(Ok(("\"format\":\"openai_responses\",\"calls\":", items.to_owned())));
    }
    if members.get("candidates").is_some() {
        return Some(candidate(members));
    }
    // A message has a role. A turn has none, so `None` is returned.
    members.get("role")?;
    Some(message(members))
}

/// Returns the only element of the list `name`. If there are several, the error names the `part` to submit.
fn only(response: &Members, name: &str, part: &str) -> Result<Members, String> {
    let list = response.list(name).and_then(|list| serde_json::from_str::<Vec<Box<RawValue>>>(list).ok());
    let list = list.ok_or_else(|| format!("has {name} that is not a list"))?;
    let [one] = &list[..] else {
        return Err(format!("has {} {name}: submit the {part} of only one", list.len()));
    };
    Members::of(one.get()).ok_or_else(|| format!("has a {} that is not an object", name.trim_end_matches('s')))
}

fn candidate(response: &Members) -> Result<(&'static str, String), String> {
    let candidate = only(response, "candidates", "content")?;
    let content = candidate.get("content").and_then(Members::of).ok_or("has a candidate without a content")?;
    parts(&content)
}

fn parts(content: &Members) -> Result<(&'static str, String), String> {
    let parts = content.list("parts").ok_or(NO_CALL)?;
    Ok(("\"format\":\"gemini\",\"calls\":", parts.to_owned()))
}

fn choice(response: &Members) -> Result<(&'static str, String), String> {
    let choice = only(response, "choices", "message")?;
    let message_of = choice.get("message").and_then(Members::of);
    message(&message_of.ok_or("has a choice without a message (assemble the parts of a stream first)")?)
}

fn message(message: &Members) -> Result<(&'static str, String), String> {
    let role = message.text("role");
    if role.as_deref() == Some("model") {
        return parts(message);
    }
    if let Some(role) = role.filter(|role| role != "assistant") {
        return Err(format!(
            "is a message of the role {role:?}; submit the assistant's message, which contains the calls"
        ));
    }
    if let Some(calls) = message.list("tool_calls") {
        return Ok(("\"tool_calls\":", calls.to_owned()));
    }
    if let Some(blocks) = message.list("content") {
        return Ok(("\"content\":", blocks.to_owned()));
    }
    Err(NO_CALL.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use tickfleet_model::{Dialect, Turn};
    use tickfleet_protocol::parse_turn;

    use super::*;

    const CHAT: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-5","choices":[{"index":0,
        "message":{"role":"assistant","content":null,"refusal":null,"annotations":[],"tool_calls":[{"id":"call_1",
        "type":"function","function":{"name":"echo","arguments":"{\"text\":\"hi\"}"}}]},"logprobs":null,
        "finish_reason":"tool_calls"}],"usage":{"total_tokens":9},"system_fingerprint":"fp"}"#;
    const RESPONSES: &str = r#"{"id":"resp_1","object":"response","status":"completed","error":null,"output":[
        {"type":"reasoning","id":"rs_1","summary":[]},{"type":"function_call","id":"fc_1","call_id":"call_1","name":"echo",
        "arguments":"{}","status":"completed"}],"parallel_tool_calls":true,"tools":[],"usage":{}}"#;
    const ANTHROPIC: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":[{"type":"text",
        "text":"Let me see."},{"type":"tool_use","id":"toolu_1","name":"echo","input":{"n":90071992547409931234}}],
        "stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":1}}"#;
    const GEMINI: &str = r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"Let me see.","thought":true},
        {"functionCall":{"name":"echo","args":{"text":"hi"}},"thoughtSignature":"c2ln"}]},"finishReason":"STOP","index":0}],
        "usageMetadata":{"totalTokenCount":9},"modelVersion":"gemini-3-pro","responseId":"r1"}"#;

    fn turn(json: &str) -> Turn {
        let turn = turn_of(json).unwrap().unwrap();
        parse_turn(turn.replacen('{', r#"{"tenant":"demo","agent":"kelly","#, 1).as_bytes()).unwrap()
    }

    fn read(json: &str) -> (Dialect, Vec<(Option<String>, String)>) {
        let turn = turn(json);
        (turn.dialect, turn.calls.into_iter().map(|call| (call.provider_id, call.arguments)).collect())
    }

    #[test]
    fn provider_responses_and_messages_become_turns() {
        let call = |id: &str, arguments: &str| vec![(Some(id.to_owned()), arguments.to_owned())];
        assert_eq!(read(CHAT), (Dialect::OpenaiChat, call("call_1", r#"{"text":"hi"}"#)));
        let message = serde_json::from_str::<serde_json::Value>(CHAT).unwrap()["choices"][0]["message"].to_string();
        assert_eq!(read(&message), read(CHAT));
        assert_eq!(read(RESPONSES), (Dialect::OpenaiResponses, call("call_1", "{}")));
        assert_eq!(read(ANTHROPIC), (Dialect::Anthropic, call("toolu_1", r#"{"n":90071992547409931234}"#)));
    }

    #[test]
    fn a_gemini_response_or_content_becomes_a_turn() {
        assert_eq!(read(GEMINI), (Dialect::Gemini, vec![(None, r#"{"text":"hi"}"#.to_owned())]));
        let content =
            serde_json::from_str::<serde_json::Value>(GEMINI).unwrap()["candidates"][0]["content"].to_string();
        assert_eq!(read(&content), read(GEMINI));
    }

    #[test]
    fn the_last_call_of_a_truncated_response_is_marked_as_cut() {
        let cut = |json: String| {
            let turn = turn(&json);
            turn.calls.last().is_some_and(|call| tickfleet_protocol::is_cut(&call.arguments))
        };
        assert!(cut(CHAT.replace(r#""finish_reason":"tool_calls""#, r#""finish_reason":"length""#)));
        assert!(cut(ANTHROPIC.replace(r#""stop_reason":"tool_use""#, r#""stop_reason":"max_tokens""#)));
        assert!(cut(GEMINI.replace(r#""finishReason":"STOP""#, r#""finishReason":"MAX_TOKENS""#)));
        let incomplete = r#""status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"error""#;
        assert!(cut(RESPONSES.replace(r#""status":"completed","error""#, incomplete)));
        for whole in [CHAT, ANTHROPIC, GEMINI, RESPONSES] {
            assert!(!cut(whole.to_owned()), "{whole}");
        }
    }

    #[test]
    fn a_turn_keeps_its_own_fields_beside_a_provider_message() {
        let turn = turn(&ANTHROPIC.replacen('{', r#"{"turn_id":"mine","priority":"high","#, 1));
        assert_eq!((turn.id.unwrap().as_str(), turn.priority.as_str()), ("mine", "high"));
    }

    #[test]
    fn a_native_turn_is_unchanged_and_an_ambiguous_response_is_rejected() {
        for own in [r#"{"calls":[{"name":"echo"}]}"#, r#"{"content":[]}"#, "[1]", "no JSON", r#"{"answer":"x"}"#] {
            assert!(turn_of(own).is_none(), "{own}");
        }
        let refused = |json: &str| turn_of(json).unwrap().unwrap_err();
        assert!(refused(r#"{"choices":[{"message":{}},{"message":{}}]}"#).contains("2 choices"));
        assert!(refused(r#"{"choices":[{"delta":{}}]}"#).contains("without a message"));
        assert!(refused(r#"{"candidates":[]}"#).contains("0 candidates"));
        assert!(refused(r#"{"candidates":[{"content":{"role":"model"}}]}"#).contains("without tool calls"));
        assert!(refused(r#"{"role":"user","content":"hi"}"#).contains("\"user\""));
        assert!(refused(r#"{"role":"assistant","content":"hi"}"#).contains("--format text"));
        assert!(turn_of(r#"{"role":"assistant","tool_calls":[],"tool_calls":[]}"#).is_none());
    }
}

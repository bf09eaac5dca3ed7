//! The reply to a rejected message: one result for every readable call, so that the conversation can continue.

use super::dialects::RejectedCall;
use super::dialects::rules;
use super::rejected_message::RejectedMessage;
use super::result::{messages_frame, result_json};
use super::write::Object;
use tickfleet_model::{CallError, CallId, CallResult, Outcome, TurnId, limits};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionStatus {
    Rejected,
    /// The message's ID belongs to another turn. The reply has no results, because the producer would assign them to
    /// that turn.
    Conflict,
}

impl RejectionStatus {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Conflict => "conflict",
        }
    }
}

/// If the message's own ID is unreadable, the ID is derived from the stream entry.
#[derive(Debug, Clone, Copy)]
pub enum RejectedId<'a> {
    Turn(&'a TurnId),
    Task(&'a str),
}

/// JSON lists without brackets. `left_out` counts the calls without a result.
#[derive(Default)]
struct RejectionResults {
    results: String,
    messages: String,
    left_out: usize,
}

/// Results are in call order. Results beyond [`limits::REFUSED_REPLY_BYTES_MAX`] bytes are omitted, and the error
/// states their number.
#[must_use]
pub fn rejection_reply(refusal: &RejectedMessage, status: RejectionStatus, id: RejectedId<'_>) -> String {
    let rejection_results = match (status, id) {
        (RejectionStatus::Rejected, RejectedId::Turn(turn)) => rejection_results(refusal, turn),
        (RejectionStatus::Rejected, RejectedId::Task(_)) | (RejectionStatus::Conflict, _) => {
            RejectionResults::default()
        }
    };
    let mut reply = Object::new(512 + rejection_results.results.len() + rejection_results.messages.len());
    match id {
        RejectedId::Turn(turn) => reply.text("turn_id", turn.as_str()),
        RejectedId::Task(task) => reply.text("task_id", task),
    }
    reply.optional("tenant", refusal.tenant.as_ref().map(tickfleet_model::TenantId::as_str));
    reply.text("agent", refusal.agent.as_deref().unwrap_or_default());
    reply.text("status", status.as_str());
    reply.text("dialect", refusal.dialect.as_str());
    reply.optional("correlation_id", refusal.correlation_id.as_deref());
    reply.optional("traceparent", refusal.traceparent.as_deref());
    reply.raw("error", &error(refusal, rejection_results.left_out));
    reply.raw("results", &format!("[{}]", rejection_results.results));
    if let Some((open, close)) = messages_frame(refusal.dialect).filter(|_| !rejection_results.messages.is_empty()) {
        reply.raw("messages", &format!("{open}{}{close}", rejection_results.messages));
    }
    reply.end()
}

fn error(refusal: &RejectedMessage, left_out: usize) -> String {
    let mut error = Object::new(refusal.message.len() + 128);
    error.text("code", refusal.code.as_str());
    if left_out == 0 {
        error.text("message", &refusal.message);
    } else {
        let all = refusal.calls.len();
        let max = limits::REFUSED_REPLY_BYTES_MAX;
        let left_out_note =
            format!("the last {left_out} of {all} calls have no result: a reply has at most {max} bytes");
        error.text("message", &format!("{}; {left_out_note}", refusal.message));
        error.raw("details", &format!("{{\"calls_without_result\":{left_out}}}"));
    }
    error.end()
}

fn rejection_results(refusal: &RejectedMessage, turn: &TurnId) -> RejectionResults {
    let mut rejection_results = RejectionResults::default();
    for (position, call) in refusal.calls.iter().enumerate() {
        let result = result(refusal, turn, position, call);
        let json = result_json(&result);
        let message = rules(refusal.dialect).rejection_message(&result, call).unwrap_or_default();
        let bytes = rejection_results.results.len() + rejection_results.messages.len() + json.len() + message.len() + 2;
        if bytes > limits::REFUSED_REPLY_BYTES_MAX {
            rejection_results.left_out = refusal.calls.len() - position;
            break;
        }
        for (list, next) in [(&mut rejection_results.results, json), (&mut rejection_results.messages, message)] {
            if !list.is_empty() {
                list.push(',');
            }
            list.push_str(&next);
        }
    }
    rejection_results
}

fn result(refusal: &RejectedMessage, turn: &TurnId, position: usize, call: &RejectedCall) -> CallResult {
    let message = if position < limits::CALLS_PER_TURN_MAX {
        refusal.message.clone()
    } else {
        "The turn was not accepted; the first result says why.".to_owned()
    };
    let error = CallError { code: refusal.code.to_string(), message, details: None };
    let id = CallId { turn: turn.clone(), position };
    CallResult::refused(&id, call.provider_id.clone(), &call.tool, Outcome::Rejected, error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::{Value, json};

    use super::*;
    use crate::parse_turn;

    fn refused(text: &str) -> Value {
        let refusal = parse_turn(text.as_bytes()).unwrap_err();
        let turn = TurnId::new("t").unwrap();
        let reply = rejection_reply(&refusal, RejectionStatus::Rejected, RejectedId::Turn(&turn));
        serde_json::from_str(&reply).unwrap_or_else(|e| panic!("{reply}: {e}"))
    }

    fn with(members: &str) -> String {
        format!(r#"{{"turn_id":"t","tenant":"acme","agent":"kelly",{members}}}"#)
    }

    fn ids<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
        list.as_array().unwrap().iter().map(|one| one[key].as_str().unwrap()).collect()
    }

    #[test]
    fn a_rejected_turn_returns_a_message_per_call_in_its_dialect() {
        let reply = refused(&with(
            r#""oops":1,"content":[{"type":"tool_use","id":"u1","name":"x","input":{}},{"type":"tool_use","id":"u2","name":"y","input":{}}]"#,
        ));
        assert_eq!((&reply["status"], &reply["turn_id"]), (&json!("rejected"), &json!("t")));
        assert_eq!(reply["error"]["code"], "unknown_field");
        assert_eq!(reply["results"][1]["call"], "t/1");
        assert_eq!(reply["results"][1]["outcome"], "rejected");
        assert_eq!(reply["messages"][0]["content"][1]["tool_use_id"], "u2");
    }

    #[test]
    fn calls_beyond_the_turn_limit_still_get_results() {
        let calls: Vec<Value> = (0..300).map(|i| json!({"id": format!("c{i}"), "function": {"name": "t"}})).collect();
        let reply = refused(&with(&format!(r#""tool_calls":{}"#, Value::from(calls))));
        assert_eq!(reply["error"]["code"], "too_many_calls");
        let left_out_note = ids(&reply["messages"], "tool_call_id");
        assert_eq!((left_out_note.len(), left_out_note[128], left_out_note[299]), (300, "c128", "c299"));
        assert_eq!(reply["results"].as_array().unwrap().len(), 300);
        assert!(reply["results"][127]["error"]["message"].as_str().unwrap().contains("split the turn"));
        assert!(reply["results"][128]["error"]["message"].as_str().unwrap().contains("the first result says why"));
    }

    #[test]
    fn an_id_of_any_length_is_echoed_unchanged() {
        for long in ["x".repeat(257), "é\u{1}\"".repeat(9_000)] {
            let call = json!({"id": long, "function": {"name": "t"}});
            let reply = refused(&with(&format!(r#""oops":1,"tool_calls":[{call}]"#)));
            assert_eq!(ids(&reply["messages"], "tool_call_id"), [&long]);
            let answer = json!({"tool": "t", "id": long}).to_string();
            let reply = refused(&with(&format!(r#""oops":1,"answer":{}"#, Value::from(answer))));
            assert_eq!(ids(&reply["results"], "tool_call_id"), [&long]);
        }
    }

    #[test]
    fn a_custom_tool_call_gets_an_output_of_its_own_type() {
        let reply = refused(&with(
            r#""format":"openai_responses","calls":[{"type":"reasoning","id":"r"},
            {"type":"function_call","call_id":"a","name":"x","arguments":"{}"},
            {"type":"custom_tool_call","call_id":"b","name":"y","input":"words"}]"#,
        ));
        assert_eq!(ids(&reply["messages"], "call_id"), ["a", "b"]);
        assert_eq!(ids(&reply["messages"], "type"), ["function_call_output", "custom_tool_call_output"]);
        assert!(reply["messages"][1]["output"].as_str().unwrap().contains("custom_tool_call"));
        let custom = r#""tool_calls":[{"id":"c","type":"custom","custom":{"name":"y","input":"words"}}]"#;
        let reply = refused(&with(custom));
        assert_eq!((&reply["results"][0]["tool_call_id"], &reply["results"][0]["tool"]), (&json!("c"), &json!("y")));
    }

    #[test]
    fn a_bounded_reply_reports_the_number_of_omitted_calls() {
        let calls = vec![r#"{"id":"c","name":"t"}"#; 40_000].join(",");
        let text = with(&format!(r#""calls":[{calls}]"#));
        let refusal = parse_turn(text.as_bytes()).unwrap_err();
        let turn = TurnId::new("t").unwrap();
        let reply = rejection_reply(&refusal, RejectionStatus::Rejected, RejectedId::Turn(&turn));
        assert!(reply.len() <= limits::REFUSED_REPLY_BYTES_MAX + 2_000, "{}", reply.len());
        let reply: Value = serde_json::from_str(&reply).unwrap();
        let answered = reply["results"].as_array().unwrap().len();
        assert!(answered > 5_000, "{answered}");
        assert_eq!(reply["error"]["details"]["calls_without_result"], 40_000 - answered);
        assert!(reply["error"]["message"].as_str().unwrap().contains("of 40000 calls have no result"));
    }

    #[test]
    fn a_conflict_has_no_results() {
        let refusal = parse_turn(with(r#""oops":1,"calls":[{"name":"x"}]"#).as_bytes()).unwrap_err();
        let turn = TurnId::new("t").unwrap();
        let reply = rejection_reply(&refusal, RejectionStatus::Conflict, RejectedId::Turn(&turn));
        let reply: Value = serde_json::from_str(&reply).unwrap();
        assert_eq!((&reply["status"], &reply["results"]), (&json!("conflict"), &json!([])));
    }
}

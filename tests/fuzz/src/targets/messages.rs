//! Turns and tasks as producers append them to a stream.

use serde_json::Value;
use tickfleet_model::{CallError, CallId, CallResult, Conclusion, Dialect, Outcome, Turn, TurnId, limits};
use tickfleet_protocol::{
    TaskMessage, bounded_output, glance, messages, parse_task_message, parse_turn, tool_message, write_task, write_turn,
};

use crate::bounds::{assert_calls, assert_json, assert_refusal, head_and_rest, text};

pub(super) fn turn(bytes: &[u8]) {
    let seen = glance(bytes);
    match parse_turn(bytes) {
        Ok(turn) => {
            assert_eq!(seen.tenant.as_ref(), Some(&turn.tenant), "a glance reads the same tenant");
            assert_eq!(seen.turn_id, turn.id, "a glance reads the same id");
            assert_turn(&turn);
        }
        Err(refusal) => assert_refusal(&refusal),
    }
}

fn assert_turn(turn: &Turn) {
    assert_calls(&turn.calls);
    assert!(!turn.calls.is_empty() || turn.dialect == Dialect::Text, "a turn without calls");
    let context = &turn.context;
    let json = [&context.user_context, &context.session_data];
    let context_bytes: usize = json.into_iter().flatten().map(|raw| raw.get().len()).sum();
    assert!(context_bytes <= limits::CONTEXT_BYTES_MAX, "a context of {context_bytes} bytes");
    let tools = turn.allowed_tools.as_ref().map_or(0, |tools| tools.len());
    assert!(tools <= limits::ALLOWED_TOOLS_MAX, "{tools} allowed tools");
    let written = write_turn(turn);
    // Escapes can make the written text longer than the original, and then also longer than the limit.
    if written.len() > limits::TURN_BYTES_MAX {
        return;
    }
    let back = parse_turn(written.as_bytes()).unwrap_or_else(|refusal| panic!("{}: {written}", refusal.message));
    assert_eq!(format!("{back:?}"), format!("{turn:?}"), "what is written is read as it was: {written}");
}

pub(super) fn task(bytes: &[u8]) {
    match parse_task_message(bytes) {
        Err(refusal) => assert_refusal(&refusal),
        Ok(TaskMessage::Delegate(task)) => {
            assert!(
                task.description.len() <= limits::TASK_DESCRIPTION_BYTES_MAX && !task.description.trim().is_empty()
            );
            assert!(task.input.as_ref().is_none_or(|input| input.get().len() <= limits::ARGUMENTS_BYTES_MAX));
            let capabilities = task.grant.capabilities.as_ref().map_or(0, |names| names.len());
            assert!(capabilities <= limits::TASK_CAPABILITIES_MAX, "{capabilities} capabilities");
            let written = write_task(&task);
            if written.len() > limits::TURN_BYTES_MAX {
                return;
            }
            let back = parse_task_message(written.as_bytes());
            let Ok(TaskMessage::Delegate(back)) = back else { panic!("{back:?}: {written}") };
            assert_eq!(format!("{back:?}"), format!("{task:?}"), "{written}");
        }
        Ok(TaskMessage::Heartbeat(leased)) => assert_lease(&leased.lease),
        Ok(TaskMessage::Finish { leased, output }) => {
            assert_lease(&leased.lease);
            let cut = bounded_output(output, limits::OUTPUT_BYTES_MAX);
            assert!(cut.get().len() <= limits::OUTPUT_BYTES_MAX);
        }
        Ok(TaskMessage::Fail { leased, error, .. }) => {
            assert_lease(&leased.lease);
            assert!(error.code.len() <= limits::NAME_BYTES_MAX && error.message.len() <= limits::REASON_BYTES_MAX);
        }
        Ok(TaskMessage::Renew(claimed)) => assert_lease(&claimed.lease),
        Ok(TaskMessage::Conclude { claimed, conclusion }) => {
            assert_lease(&claimed.lease);
            match conclusion {
                Conclusion::Output { json, .. } => assert!(json.len() <= limits::OUTPUT_BYTES_MAX),
                Conclusion::Failed { code, message, .. } => {
                    assert!(code.len() <= limits::NAME_BYTES_MAX && message.len() <= limits::REASON_BYTES_MAX);
                }
                Conclusion::Lost => panic!("a process reports that it was silent"),
            }
        }
        Ok(TaskMessage::Cancel { reason, .. }) => {
            assert!(reason.unwrap_or_default().len() <= limits::REASON_BYTES_MAX);
        }
    }
}

fn assert_lease(lease: &str) {
    assert!(!lease.is_empty() && lease.len() <= limits::LEASE_BYTES_MAX, "{lease}");
    assert!(lease.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'), "{lease}");
}

/// The first line names the dialect. The calls follow.
pub(super) fn dialect(bytes: &[u8]) {
    let (word, calls) = head_and_rest(bytes);
    let Some(dialect) = Dialect::parse(&text(word)) else { return };
    let member = if dialect == Dialect::Text { "answer" } else { "calls" };
    let word = dialect.as_str();
    let calls = text(calls);
    let calls = if dialect == Dialect::Text { Value::from(calls).to_string() } else { calls };
    let message = format!(r#"{{"tenant":"acme","agent":"kelly","format":"{word}","{member}":{calls}}}"#);
    match parse_turn(message.as_bytes()) {
        Err(refusal) => assert_refusal(&refusal),
        Ok(turn) => {
            assert_turn(&turn);
            assert_answers(&turn);
        }
    }
}

fn assert_answers(turn: &Turn) {
    let id = TurnId::new("t").unwrap();
    let outcomes = [Outcome::Denied, Outcome::Ok, Outcome::InvalidArguments];
    let answered = turn.calls.iter().enumerate().map(|(position, call)| {
        let error =
            CallError { code: "denied".into(), message: call.arguments.chars().take(99).collect(), details: None };
        let outcome = outcomes[position % outcomes.len()];
        let call_id = CallId { turn: id.clone(), position };
        let result = CallResult::refused(&call_id, call.provider_id.clone(), &call.tool, outcome, error);
        if outcome.is_success() { succeeded(result, &call.arguments) } else { result }
    });
    let results: Vec<CallResult> = answered.collect();
    for result in &results {
        let json = tickfleet_protocol::result_json(result);
        let back: CallResult = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"));
        assert_eq!(back.tool_call_id, result.tool_call_id, "an id is echoed as it came");
        if let Some(message) = tool_message(turn.dialect, result) {
            assert_json(&message);
        }
    }
    if let Some(all) = messages(turn.dialect, &results) {
        assert_json(&all);
    }
}

fn succeeded(result: CallResult, arguments: &str) -> CallResult {
    let output = serde_json::value::RawValue::from_string(arguments.to_owned());
    let output = output.or_else(|_| serde_json::value::to_raw_value(arguments)).ok();
    CallResult { success: true, error: None, output, ..result }
}

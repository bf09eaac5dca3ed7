//! Assertions about bounds, errors and secrets.

use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_model::{Call, RejectionCode, TurnId, limits};
use tickfleet_protocol::{RejectedId, RejectedMessage, RejectionStatus, rejection_reply};
use tickfleet_tools::{ToolFailure, ToolOutput};

pub(crate) const SECRET: &str = "s3cr+t/<&>\"canary-7f3a9c";

/// The maximum size of a reply without its results.
const REPLY_FRAME_BYTES_MAX: usize = 16 * 1024;

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub(crate) fn assert_json(text: &str) {
    serde_json::from_str::<IgnoredAny>(text).unwrap_or_else(|error| panic!("{error}: {text}"));
}

pub(crate) fn head_and_rest(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

pub(crate) fn assert_calls(calls: &[Call]) {
    assert!(calls.len() <= limits::CALLS_PER_TURN_MAX, "{} calls", calls.len());
    for call in calls {
        // A name over the limit is cut and ends in `…`.
        let most = limits::TOOL_NAME_BYTES_MAX + '…'.len_utf8();
        assert!(call.tool.len() <= most, "a name of {} bytes", call.tool.len());
        assert!(call.arguments.len() <= limits::ARGUMENTS_BYTES_MAX, "arguments of {} bytes", call.arguments.len());
    }
}

pub(crate) fn assert_refusal(refusal: &RejectedMessage) {
    assert!(RejectionCode::WORDS.contains(&refusal.code.as_str()));
    assert!(refusal.message.len() <= limits::ERROR_BYTES_MAX, "a message of {} bytes", refusal.message.len());
    let agent = refusal.agent.as_deref().unwrap_or_default();
    assert!(agent.len() <= limits::NAME_BYTES_MAX + '…'.len_utf8(), "an agent of {} bytes", agent.len());
    let minted = TurnId::new("minted").unwrap();
    for status in [RejectionStatus::Rejected, RejectionStatus::Conflict] {
        let id = RejectedId::Turn(refusal.turn_id.as_ref().unwrap_or(&minted));
        assert_reply(refusal, &rejection_reply(refusal, status, id), status);
    }
}

fn assert_reply(refusal: &RejectedMessage, reply: &str, status: RejectionStatus) {
    let bytes_max = limits::REFUSED_REPLY_BYTES_MAX + REPLY_FRAME_BYTES_MAX;
    assert!(reply.len() <= bytes_max, "a reply of {} bytes", reply.len());
    let read: Value = serde_json::from_str(reply).unwrap_or_else(|error| panic!("{error}: {reply}"));
    if refusal.tenant.is_some() {
        serde_json::from_str::<tickfleet_client::Reply>(reply).unwrap_or_else(|error| panic!("{error}: {reply}"));
    }
    assert_eq!(read["error"]["code"], refusal.code.as_str());
    let left_out = read["error"]["details"]["calls_without_result"].as_u64().unwrap_or(0);
    let answered = read["results"].as_array().map_or(0, Vec::len) as u64;
    let expected = if status == RejectionStatus::Conflict { 0 } else { refusal.calls.len() as u64 };
    assert_eq!(answered + left_out, expected, "every call is answered or counted");
}

pub(crate) fn assert_outcome(outcome: &Result<ToolOutput, ToolFailure>) {
    match outcome {
        Ok(output) => assert_output(&output.json),
        Err(ToolFailure::InvalidArguments { message } | ToolFailure::Transient { message, .. }) => {
            assert_message(message);
        }
        Err(ToolFailure::Ended { message, details, .. }) => {
            assert_message(message);
            assert_no_secret(&details.clone().unwrap_or_default());
        }
        Err(ToolFailure::Internal { message }) => panic!("a bug of ours: {message}"),
        Err(ToolFailure::NotConfigured { .. } | ToolFailure::Waits { .. }) => {}
    }
}

pub(crate) fn assert_message(message: &str) {
    assert!(message.len() <= limits::ERROR_BYTES_MAX, "a message of {} bytes", message.len());
    assert!(!message.contains(SECRET), "a secret in the words: {message}");
}

fn assert_output(json: &RawValue) {
    assert_json(json.get());
    if let Ok(value) = serde_json::from_str::<Value>(json.get()) {
        assert!(depth(&value) <= limits::JSON_DEPTH_MAX, "an output nests too deep");
        assert_no_secret(&value);
    }
    for bytes_max in
        [limits::OUTPUT_BYTES_MAX, limits::output_bytes_max(limits::CALLS_PER_TURN_MAX, limits::OUTPUT_BYTES_MAX), 200]
    {
        let cut = tickfleet_protocol::bounded_output(json.to_owned(), bytes_max);
        assert!(cut.get().len() <= bytes_max, "a result of {} bytes", cut.get().len());
        assert_json(cut.get());
    }
}

pub(crate) fn assert_no_secret(value: &Value) {
    match value {
        Value::String(text) => assert!(!text.contains(SECRET), "a secret in {text}"),
        Value::Array(items) => items.iter().for_each(assert_no_secret),
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            assert!(!key.contains(SECRET), "a secret in the key {key}");
            assert_no_secret(value);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

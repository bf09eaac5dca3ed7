//! Encodes and decodes messages, with every digit preserved. The protocol library would take fifty times a message's
//! size and would round large numbers.

use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, CustomResult, ErrorCode, ErrorData, InitializeResult, JsonRpcError,
    JsonRpcMessage, JsonRpcResponse, JsonRpcVersion2_0, NumberOrString, ProtocolVersion, RequestId,
    ServerJsonRpcMessage, ServerResult,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_model::limits;
use tickfleet_tools::wording;

use super::scan;

/// Marks errors that this module creates. The value is one of the two kinds below.
const MARK: &str = "tickfleet/unread";
const TOO_LARGE: &str = "too large";
const UNREADABLE: &str = "unreadable";
/// The maximum size of messages that are parsed into values: handshake responses, errors, notifications and requests.
const SMALL_BYTES_MAX: usize = 64 * 1024;
const WORDS_BYTES_MAX: usize = 200;

/// The arguments as text, so that no number is rounded.
#[derive(Debug, Clone)]
pub(super) struct RawArguments(pub(super) Arc<str>);

/// Never fails in practice: messages of this client can always be encoded.
pub(super) fn encoded(message: &ClientJsonRpcMessage) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Call<'a> {
        jsonrpc: &'a str,
        id: &'a RequestId,
        method: &'a str,
        params: Params<'a>,
    }
    #[derive(Serialize)]
    struct Params<'a> {
        _meta: Value,
        name: &'a str,
        arguments: &'a RawValue,
    }
    if let JsonRpcMessage::Request(request) = message
        && let ClientRequest::CallToolRequest(call) = &request.request
        && let Some(RawArguments(arguments)) = call.extensions.get()
    {
        // The library merges its own metadata into the request's metadata. Keep the merged metadata.
        let mut written = serde_json::to_value(message)?;
        let meta = written.pointer_mut("/params/_meta").map(Value::take).unwrap_or_default();
        let arguments = serde_json::from_str(arguments)?;
        let params = Params { _meta: meta, name: &call.params.name, arguments };
        return serde_json::to_vec(&Call { jsonrpc: "2.0", id: &request.id, method: "tools/call", params });
    }
    serde_json::to_vec(message)
}

pub(super) fn request_id(message: &ClientJsonRpcMessage) -> Option<u64> {
    match message {
        JsonRpcMessage::Request(request) => number(&request.id),
        _ => None,
    }
}

pub(super) fn number(id: &RequestId) -> Option<u64> {
    match id {
        NumberOrString::Number(number) => u64::try_from(*number).ok(),
        NumberOrString::String(_) => None,
    }
}

pub(super) fn id_of(number: u64) -> RequestId {
    // The ids begin at 0 and count the requests of one connection, so they always fit.
    NumberOrString::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn replacement_error(id: u64, kind: &str, why: &str) -> ServerJsonRpcMessage {
    let error = ErrorData::new(ErrorCode(-32000), why.to_owned(), Some(json!({ MARK: kind })));
    ServerJsonRpcMessage::Error(JsonRpcError::new(Some(id_of(id)), error))
}

pub(super) fn too_large(id: u64) -> ServerJsonRpcMessage {
    let why = format!("its answer has more than {} bytes and was not read", limits::MCP_MESSAGE_BYTES_MAX);
    replacement_error(id, TOO_LARGE, &why)
}

pub(super) fn unreadable(id: u64, why: &str) -> ServerJsonRpcMessage {
    replacement_error(id, UNREADABLE, why)
}

fn is_marked(error: &ErrorData, kind: &str) -> bool {
    error.data.as_ref().and_then(|data| data.get(MARK)).and_then(Value::as_str) == Some(kind)
}

pub(super) fn is_too_large(error: &ErrorData) -> bool {
    is_marked(error, TOO_LARGE)
}

pub(super) fn is_unreadable(error: &ErrorData) -> bool {
    is_marked(error, UNREADABLE)
}

#[allow(clippy::large_enum_variant, reason = "nearly each is a message, and is moved on at once")]
#[derive(Debug)]
pub(super) enum Decoded {
    /// Results stay unparsed text in a `CustomResult`, except for the response to `initialize`.
    Message(ServerJsonRpcMessage),
    Ignored,
    Unreadable(DecodeError),
}

#[derive(Debug)]
pub(super) struct DecodeError {
    /// The id of the request, if it could be read.
    pub(super) id: Option<u64>,
    pub(super) why: String,
    pub(super) is_cut: bool,
}

impl DecodeError {
    fn of(id: Option<u64>, why: impl Into<String>) -> Decoded {
        Decoded::Unreadable(Self { id, why: why.into(), is_cut: false })
    }
}

/// A member that is `null` counts as present.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "given")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    method: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "given")]
    error: Option<&'a RawValue>,
}

fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

#[derive(Debug, Default)]
pub(super) struct Decoder {
    /// The id of the handshake request. Only the response to this request is parsed for the protocol library.
    handshake: Mutex<Option<u64>>,
}

impl Decoder {
    pub(super) fn note(&self, message: &ClientJsonRpcMessage) {
        if let JsonRpcMessage::Request(request) = message
            && matches!(request.request, ClientRequest::InitializeRequest(_))
        {
            *self.handshake.lock() = number(&request.id);
        }
    }

    pub(super) fn decode(&self, bytes: &[u8]) -> Decoded {
        let Ok(text) = std::str::from_utf8(bytes) else { return DecodeError::of(None, "it is not UTF-8") };
        let envelope: Envelope<'_> = match serde_json::from_str(text) {
            Ok(envelope) => envelope,
            Err(error) => {
                let why = format!("it is not a JSON message ({error})");
                return Decoded::Unreadable(DecodeError { id: None, why, is_cut: error.is_eof() });
            }
        };
        let id = envelope.id.and_then(|id| own_id(id.get()));
        match (envelope.method, envelope.result, envelope.error) {
            (Some(method), None, None) => from_server(text, envelope.id, method),
            (None, Some(result), None) => self.result(id, result.get()),
            (None, None, Some(error)) => refusal(id, error.get()),
            (None, None, None) => DecodeError::of(None, "it is not a message of the protocol"),
            _ => DecodeError::of(id, "it is a response and another message at once"),
        }
    }

    fn result(&self, id: Option<u64>, result: &str) -> Decoded {
        let Some(number) = id else { return DecodeError::of(None, "its id is not that of a request") };
        if let Some(flaw) = scan::flaw(result) {
            return DecodeError::of(id, flaw);
        }
        let result = if *self.handshake.lock() == Some(number) {
            match initialized(result) {
                Ok(result) => ServerResult::InitializeResult(result),
                Err(why) => return DecodeError::of(id, why),
            }
        } else {
            ServerResult::CustomResult(CustomResult::new(Value::String(result.to_owned())))
        };
        let response = JsonRpcResponse { jsonrpc: JsonRpcVersion2_0, id: id_of(number), result };
        Decoded::Message(ServerJsonRpcMessage::Response(response))
    }
}

/// This client's ids are integers, but some servers return them as strings.
fn own_id(id: &str) -> Option<u64> {
    id.trim_matches('"').parse().ok()
}

/// The error's details are not read, because they can be any JSON.
fn refusal(id: Option<u64>, error: &str) -> Decoded {
    #[derive(Deserialize)]
    struct Refusal {
        #[serde(default)]
        code: Value,
        #[serde(default)]
        message: Value,
    }
    if error.len() > SMALL_BYTES_MAX {
        return DecodeError::of(id, format!("its error has more than {SMALL_BYTES_MAX} bytes"));
    }
    let flaw = scan::flaw(error);
    let refusal = match serde_json::from_str::<Refusal>(error) {
        Ok(refusal) if flaw.is_none() => refusal,
        _ => return DecodeError::of(id, "its error does not follow the protocol"),
    };
    let code =
        refusal.code.as_i64().and_then(|code| i32::try_from(code).ok()).map_or(ErrorCode::INTERNAL_ERROR, ErrorCode);
    let message = match refusal.message {
        Value::String(message) => message,
        Value::Null => "without a message".to_owned(),
        other => other.to_string(),
    };
    let error = ErrorData::new(code, message, None);
    Decoded::Message(ServerJsonRpcMessage::Error(JsonRpcError::new(id.map(id_of), error)))
}

fn from_server(text: &str, id: Option<&RawValue>, method: &RawValue) -> Decoded {
    const KNOWN: [&str; 3] = ["notifications/progress", "notifications/tools/list_changed", "notifications/cancelled"];
    let is_small = text.len() <= SMALL_BYTES_MAX && scan::flaw(text).is_none();
    let method = serde_json::from_str::<String>(method.get()).unwrap_or_default();
    let message = match id {
        None if !is_small || !KNOWN.contains(&method.as_str()) => return Decoded::Ignored,
        Some(id) if !is_small => {
            // The client rejects the request by its method name, so the parameters are not needed.
            serde_json::from_str(&format!(r#"{{"jsonrpc":"2.0","id":{},"method":{}}}"#, id.get(), json!(method)))
        }
        _ => serde_json::from_str(text),
    };
    match message {
        Ok(message) => Decoded::Message(message),
        Err(_) => {
            DecodeError::of(None, format!("its {} is not part of the protocol", wording::cut(&method, WORDS_BYTES_MAX)))
        }
    }
}

/// Only the protocol revision, and the server's name and version, are used.
fn initialized(result: &str) -> Result<InitializeResult, String> {
    if result.len() > SMALL_BYTES_MAX {
        return Err(format!("its response to `initialize` has more than {SMALL_BYTES_MAX} bytes"));
    }
    let answer: Value =
        serde_json::from_str(result).map_err(|error| format!("its response to `initialize`: {error}"))?;
    let Some(revision) = answer.get("protocolVersion") else {
        return Err("its response to `initialize` has no `protocolVersion`".to_owned());
    };
    let known = ProtocolVersion::KNOWN_VERSIONS.iter().filter(|known| known.has_initialize());
    let known: Vec<&str> = known.map(ProtocolVersion::as_str).collect();
    if !revision.as_str().is_some_and(|revision| known.contains(&revision)) {
        return Err(format!(
            "its response to `initialize` has the revision {} of MCP; expected one of {}",
            wording::cut(&revision.to_string(), WORDS_BYTES_MAX),
            known.join(", ")
        ));
    }
    let word = |name: &str| answer.pointer(&format!("/serverInfo/{name}")).and_then(Value::as_str).unwrap_or_default();
    let read = json!({
        "protocolVersion": revision,
        "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": word("name"), "version": word("version")},
    });
    serde_json::from_value(read).map_err(|error| format!("its response to `initialize`: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use rmcp::model::{CallToolRequest, CallToolRequestParams};

    use super::*;

    fn decoded(bytes: &[u8]) -> (Option<u64>, Result<String, String>) {
        match Decoder::default().decode(bytes) {
            Decoded::Message(ServerJsonRpcMessage::Response(response)) => match response.result {
                ServerResult::CustomResult(CustomResult(Value::String(text))) => (number(&response.id), Ok(text)),
                other => panic!("{other:?}"),
            },
            Decoded::Unreadable(flaw) => (flaw.id, Err(flaw.why)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_result_keeps_its_text_and_every_digit() {
        let text = r#"{"structuredContent":{"n":1180591620717411303424,"b":1e400}}"#;
        let answer = format!(r#"{{"jsonrpc":"2.0","id":7,"result":{text}}}"#);
        assert_eq!(decoded(answer.as_bytes()), (Some(7), Ok(text.to_owned())));
        assert_eq!(decoded(br#"{"id":"7","result":null}"#), (Some(7), Ok("null".to_owned())));
    }

    #[test]
    fn an_unreadable_response_reports_the_reason_and_its_request() {
        let deep = format!(r#"{{"id":1,"result":{}{}}}"#, "[".repeat(200), "]".repeat(200));
        for (bytes, id, why) in [
            (br#"{"id":1,"result":{"n":NaN}}"#.as_slice(), None, "not a JSON message"),
            (b"{\"id\":1,\"result\":{\"n\":\"caf\xe9\"}}", None, "not UTF-8"),
            (br#"{"id":1,"result":{"n":"\ud83d"}}"#, Some(1), "a lone surrogate"),
            (deep.as_bytes(), Some(1), "deeper than 128 levels"),
            (br#"{"result":{}}"#, None, "not that of a request"),
            (br#"{"level":"info"}"#, None, "not a message"),
            (br#"{"id":1,"error":"no"}"#, Some(1), "its error does not follow"),
        ] {
            let (got_id, got) = decoded(bytes);
            assert_eq!(got_id, id, "{}", String::from_utf8_lossy(bytes));
            assert!(got.as_ref().is_err_and(|got| got.contains(why)), "{got:?}");
        }
    }

    #[test]
    fn an_unsupported_protocol_revision_is_rejected_with_the_reason() {
        let server = r#""capabilities":{},"serverInfo":{"name":"s","version":"1"}"#;
        let said = |answer: &str| initialized(answer).map(|read| read.protocol_version.to_string());
        assert_eq!(said(&format!(r#"{{"protocolVersion":"2025-06-18",{server}}}"#)), Ok("2025-06-18".to_owned()));
        assert!(said(r#"{"protocolVersion":"2024-11-05"}"#).is_ok(), "an odd description costs itself");
        for (answer, why) in [
            (
                format!(r#"{{"protocolVersion":"2026-07-28",{server}}}"#),
                "\"2026-07-28\" of MCP; expected one of 2024-11-05",
            ),
            (format!(r#"{{"protocolVersion":"1",{server}}}"#), "the revision \"1\""),
            (format!(r#"{{"protocolVersion":3,{server}}}"#), "the revision 3"),
            (format!("{{{server}}}"), "has no `protocolVersion`"),
        ] {
            let error = said(&answer).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn arguments_are_sent_unchanged() {
        let text = r#"{"z":123456789012345678901234567890,"a":1.0}"#;
        let mut call = CallToolRequest::new(CallToolRequestParams::new("t"));
        call.extensions.insert(RawArguments(text.into()));
        let message = ClientJsonRpcMessage::request(ClientRequest::CallToolRequest(call), id_of(3));
        let sent = String::from_utf8(encoded(&message).unwrap()).unwrap();
        assert!(sent.contains(&format!(r#""arguments":{text}"#)), "{sent}");
        assert!(sent.contains(r#""id":3"#) && sent.contains(r#""name":"t""#), "{sent}");
    }
}

//! The team calendar of the fake services: an MCP server over streamable HTTP. It has no sessions, so every response is
//! one JSON message.

use serde_json::{Value, json};

pub(super) const PATH: &str = "/mcp";
pub(super) const TOKEN: &str = "stand-in-for-a-calendar-token";
const VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
const METHOD_NOT_FOUND: i32 = -32601;
const INVALID_REQUEST: i32 = -32600;
const INVALID_PARAMS: i32 = -32602;

#[derive(Debug, PartialEq)]
pub(super) enum ParsedMessage {
    Notification,
    /// The response to a request about the server itself, or to an invalid request.
    Respond(Value),
    Call {
        id: Value,
        call: CalendarCall,
    },
}

#[derive(Debug, PartialEq)]
pub(super) enum CalendarCall {
    List,
    Book(Value),
}

pub(super) fn parse_message(message: &Value) -> ParsedMessage {
    let id = message["id"].clone();
    if !message.is_object() {
        return error(&id, INVALID_REQUEST, "This is not a JSON-RPC message.");
    }
    let (true, Some(method)) = (message.get("id").is_some(), message["method"].as_str()) else {
        return ParsedMessage::Notification;
    };
    let params = &message["params"];
    match method {
        "initialize" => ParsedMessage::Respond(answer(&id, &handshake(params))),
        "ping" => ParsedMessage::Respond(answer(&id, &json!({}))),
        "tools/list" => ParsedMessage::Respond(answer(&id, &json!({"tools": tools()}))),
        "tools/call" => match (params["name"].as_str(), &params["arguments"]) {
            (Some("list_meetings"), _) => ParsedMessage::Call { id, call: CalendarCall::List },
            (Some("book_meeting"), meeting) if meeting["title"].is_string() => {
                ParsedMessage::Call { id, call: CalendarCall::Book(meeting.clone()) }
            }
            _ => error(&id, INVALID_PARAMS, "There is no such tool, or it needs other arguments."),
        },
        _ => error(&id, METHOD_NOT_FOUND, "There is no such method."),
    }
}

/// Some clients support only text, so the response has the output as JSON and as text.
pub(super) fn called(id: &Value, output: &Value) -> Value {
    answer(id, &json!({"content": [{"type": "text", "text": output.to_string()}], "structuredContent": output}))
}

fn answer(id: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

fn error(id: &Value, code: i32, message: &str) -> ParsedMessage {
    ParsedMessage::Respond(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
}

fn handshake(params: &Value) -> Value {
    let wanted = VERSIONS.into_iter().find(|version| params["protocolVersion"] == *version);
    json!({
        "protocolVersion": wanted.unwrap_or(VERSIONS[0]),
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "team-calendar", "version": "1.0.0"},
    })
}

fn tools() -> Value {
    json!([
        {
            "name": "list_meetings",
            "description": "Lists the meetings in the team's calendar, each with its title, day and start. Use it \
                            before you book one, or to see whether a booking was made.",
            "inputSchema": {"type": "object", "properties": {}, "additionalProperties": false},
            "annotations": {"readOnlyHint": true},
        },
        {
            "name": "book_meeting",
            "description": "Books a meeting in the team's calendar and invites everybody at once. Returns the meeting.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "title": {"type": "string", "minLength": 1, "maxLength": 80, "description": "What it is about."},
                    "day": {"type": "string", "enum": ["monday", "tuesday", "wednesday", "thursday", "friday"]},
                    "starts_at": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$", "description": "HH:MM."},
                },
                "required": ["title", "day", "starts_at"],
                "additionalProperties": false,
            },
        },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, params: &Value) -> ParsedMessage {
        parse_message(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
    }

    fn code(message: &ParsedMessage) -> Option<i64> {
        match message {
            ParsedMessage::Respond(answer) => answer["error"]["code"].as_i64(),
            _ => None,
        }
    }

    #[test]
    fn a_client_gets_the_requested_version_or_the_newest() {
        for (wanted, got) in [("2025-06-18", "2025-06-18"), ("2030-01-01", VERSIONS[0])] {
            let ParsedMessage::Respond(answer) = request("initialize", &json!({"protocolVersion": wanted})) else {
                panic!("{wanted}: no response")
            };
            assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!(7), &json!(got)));
        }
    }

    #[test]
    fn notifications_get_no_response_and_invalid_requests_get_errors() {
        assert_eq!(
            parse_message(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})),
            ParsedMessage::Notification
        );
        assert_eq!(parse_message(&json!({"jsonrpc": "2.0", "id": 1, "result": {}})), ParsedMessage::Notification);
        assert_eq!(code(&parse_message(&Value::Null)), Some(-32600));
        assert_eq!(code(&request("resources/list", &json!({}))), Some(-32601));
        assert_eq!(code(&request("tools/call", &json!({"name": "cancel_meeting"}))), Some(-32602));
        assert_eq!(code(&request("tools/call", &json!({"name": "book_meeting", "arguments": {}}))), Some(-32602));
        let meeting = json!({"title": "Review"});
        let called = request("tools/call", &json!({"name": "book_meeting", "arguments": meeting}));
        assert_eq!(called, ParsedMessage::Call { id: json!(7), call: CalendarCall::Book(meeting) });
    }
}

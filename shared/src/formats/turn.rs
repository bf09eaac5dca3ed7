//! Turns in: one message in any dialect becomes a validated [`Turn`]; and out again, for producers in Rust.

use super::fields::{Fields, Place, read_message};
use super::json::{Bounds, Document, Kind, Value, check};
use super::refusal::{Problem, Refusal};
use super::write::{Object, time};
use crate::model::{AgentId, Call, Dialect, InboxName, TaskId, TenantId, Turn, TurnId, limits};

/// The fields of a turn on the wire.
const FIELDS: [&str; 15] = [
    "turn_id",
    "tenant",
    "agent",
    "priority",
    "deadline",
    "reply_to",
    "task_id",
    "user_context",
    "session_data",
    "correlation_id",
    "traceparent",
    "tool_call_audits",
    "calls",
    "tool_calls",
    "content",
];

/// Reads the JSON of one turn (the `turn` field of an entry on the `turns` stream).
///
/// The arguments of calls stay text and are judged when a call is carried out, so that one call with broken
/// arguments does not cost its siblings.
///
/// # Errors
/// [`Refusal`] says which rule the message breaks, and carries what can still be read for the reply.
pub fn parse_turn(bytes: &[u8]) -> Result<Turn, Box<Refusal>> {
    read_message(bytes, strict)
}

fn strict(document: &Document<'_>) -> Result<Turn, Problem> {
    let fields = Fields::of(document.root(), Place::Message)?.only(&FIELDS)?;
    let (dialect, calls) = calls(&fields)?;
    Ok(Turn {
        id: fields.id("turn_id", TurnId::new)?,
        tenant: fields.required("tenant", fields.id("tenant", TenantId::new)?)?,
        agent: fields.required("agent", fields.id("agent", AgentId::new)?)?,
        priority: fields.priority()?,
        deadline_ms: fields.deadline()?,
        reply_to: fields.id("reply_to", InboxName::new)?,
        dialect,
        task: fields.id("task_id", TaskId::new)?,
        context: fields.context()?,
        want_audits: fields.flag("tool_call_audits")?,
        calls,
    })
}

/// The name of the field that holds the calls of a dialect.
const fn calls_field(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Raw => "calls",
        Dialect::OpenaiChat => "tool_calls",
        Dialect::Anthropic => "content",
    }
}

/// The dialect and the calls of the one list of calls that the message must have.
fn calls(fields: &Fields<'_, '_>) -> Result<(Dialect, Vec<Call>), Problem> {
    let lists = [Dialect::Raw, Dialect::OpenaiChat, Dialect::Anthropic];
    let mut present = lists.into_iter().filter_map(|dialect| Some((dialect, fields.get(calls_field(dialect))?)));
    let one_of = "a turn has exactly one of calls (raw), tool_calls (OpenAI Chat) and content (Anthropic)";
    let Some((dialect, list)) = present.next() else {
        return Err(Problem::new("missing_field", format!("{one_of}; this one has none")));
    };
    if let Some((other, _)) = present.next() {
        let (one, other) = (calls_field(dialect), calls_field(other));
        return Err(Problem::new("invalid_field", format!("{one_of}; this one has {one} and {other}")));
    }
    let field = calls_field(dialect);
    if dialect == Dialect::Anthropic && list.kind() == Kind::String {
        return Err(Problem::new("no_calls", "content is plain text: the turn has no tool_use block"));
    }
    if list.kind() != Kind::Array {
        let found = list.kind().as_str();
        return Err(fields.invalid(field, &format!("expected an array of calls, found {found}")));
    }
    Ok((dialect, read_list(dialect, field, list)?))
}

fn read_list(dialect: Dialect, field: &'static str, list: Value<'_, '_>) -> Result<Vec<Call>, Problem> {
    let mut calls = Vec::new();
    for (index, element) in list.elements().enumerate() {
        let fields = Fields::of(Some(element), Place::Element(field, index))?;
        let call = match dialect {
            Dialect::Raw => Some(raw_call(fields)?),
            Dialect::OpenaiChat => Some(openai_call(&fields, index)?),
            Dialect::Anthropic => anthropic_call(&fields)?,
        };
        if calls.len() == limits::CALLS_PER_TURN_MAX && call.is_some() {
            let max = limits::CALLS_PER_TURN_MAX;
            return Err(Problem::new("too_many_calls", format!("{field} has more than {max} calls; split the turn")));
        }
        calls.extend(call);
    }
    if calls.is_empty() {
        let what = if dialect == Dialect::Anthropic { "has no tool_use block" } else { "is empty" };
        return Err(Problem::new("no_calls", format!("{field} {what}: a turn has at least one call")));
    }
    Ok(calls)
}

/// `{id?, name, arguments?}`: a call without arguments has the arguments `{}`.
fn raw_call(fields: Fields<'_, '_>) -> Result<Call, Problem> {
    let fields = fields.only(&["id", "name", "arguments"])?;
    let arguments = match fields.get_or_null("arguments") {
        Some(value) => arguments(&fields, "arguments", value)?,
        None => "{}".into(),
    };
    Ok(Call { provider_id: provider_id(&fields)?, tool: tool(&fields)?, arguments })
}

/// `{id, type: "function", function: {name, arguments}}`. Members that providers add (`index`) are ignored.
fn openai_call(fields: &Fields<'_, '_>, index: usize) -> Result<Call, Problem> {
    let kind = fields.string("type", limits::NAME_BYTES_MAX)?;
    if let Some(kind) = kind.filter(|kind| kind != "function") {
        return Err(fields.invalid("type", &format!("{kind:?} is not supported; expected \"function\"")));
    }
    let function = fields.required("function", fields.get("function"))?;
    let function = Fields::of(Some(function), Place::Inside("tool_calls", index, "function"))?;
    let arguments = match function.get_or_null("arguments") {
        Some(value) => arguments(&function, "arguments", value)?,
        None => String::new(),
    };
    Ok(Call { provider_id: provider_id(fields)?, tool: tool(&function)?, arguments })
}

/// `{type: "tool_use", id, name, input}`; `None` for a block of any other type: text, thinking, and the
/// blocks of tools that the provider itself carries out.
fn anthropic_call(fields: &Fields<'_, '_>) -> Result<Option<Call>, Problem> {
    let kind = fields.string("type", limits::NAME_BYTES_MAX)?;
    if fields.required("type", kind)? != "tool_use" {
        return Ok(None);
    }
    let arguments = match fields.get_or_null("input") {
        Some(value) => arguments(fields, "input", value)?,
        None => String::new(),
    };
    Ok(Some(Call { provider_id: provider_id(fields)?, tool: tool(fields)?, arguments }))
}

/// The text of arguments: a string holds it as is, any other value is its own text.
fn arguments(fields: &Fields<'_, '_>, name: &str, value: Value<'_, '_>) -> Result<String, Problem> {
    let max = limits::ARGUMENTS_BYTES_MAX;
    if value.kind() == Kind::String {
        return Ok(fields.string(name, max)?.unwrap_or_default().into_owned());
    }
    let text = value.text().unwrap_or_default();
    if text.len() > max {
        return Err(fields.too_large(name, text.len(), max));
    }
    Ok(text.to_owned())
}

fn provider_id(fields: &Fields<'_, '_>) -> Result<Option<String>, Problem> {
    Ok(fields.string("id", limits::PROVIDER_ID_BYTES_MAX)?.map(Into::into))
}

fn tool(fields: &Fields<'_, '_>) -> Result<String, Problem> {
    Ok(fields.required("name", fields.string("name", limits::TOOL_NAME_BYTES_MAX)?)?.into())
}

/// Writes a turn as [`parse_turn`] reads it, in the turn's own dialect.
///
/// Arguments that are no JSON (which a raw call may carry, to be refused one by one) are written as a string.
#[must_use]
pub fn write_turn(turn: &Turn) -> String {
    let mut object = Object::new(256 + turn.calls.iter().map(|call| call.arguments.len() + 96).sum::<usize>());
    object.optional("turn_id", turn.id.as_ref().map(TurnId::as_str));
    object.text("tenant", turn.tenant.as_str());
    object.text("agent", turn.agent.as_str());
    object.text("priority", turn.priority.as_str());
    object.optional("deadline", turn.deadline_ms.map(time).as_deref());
    object.optional("reply_to", turn.reply_to.as_ref().map(InboxName::as_str));
    object.optional("task_id", turn.task.as_ref().map(TaskId::as_str));
    object.context(&turn.context);
    if turn.want_audits {
        object.raw("tool_call_audits", "true");
    }
    let calls: Vec<String> = turn.calls.iter().map(|call| write_call(turn.dialect, call)).collect();
    object.raw(calls_field(turn.dialect), &format!("[{}]", calls.join(",")));
    object.end()
}

fn write_call(dialect: Dialect, call: &Call) -> String {
    let mut object = Object::new(call.arguments.len() + 96);
    if dialect == Dialect::Anthropic {
        object.text("type", "tool_use");
    }
    object.optional("id", call.provider_id.as_deref());
    match dialect {
        Dialect::OpenaiChat => {
            let mut function = Object::new(call.arguments.len() + 48);
            function.text("name", &call.tool);
            function.text("arguments", &call.arguments);
            object.text("type", "function");
            object.raw("function", &function.end());
        }
        Dialect::Raw | Dialect::Anthropic => {
            let field = if dialect == Dialect::Raw { "arguments" } else { "input" };
            object.text("name", &call.tool);
            if stands_alone(&call.arguments) {
                object.raw(field, &call.arguments);
            } else {
                object.text(field, &call.arguments);
            }
        }
    }
    object.end()
}

/// Whether arguments can be written as a JSON value and read back as the same text.
fn stands_alone(arguments: &str) -> bool {
    // Message, list and call are around the arguments.
    const BOUNDS: Bounds =
        Bounds { bytes_max: limits::ARGUMENTS_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX - 3 };
    let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r');
    !arguments.starts_with(|c| c == '"' || blank(c))
        && !arguments.ends_with(blank)
        && check(arguments.as_bytes(), BOUNDS).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;
    use crate::model::{Context, Priority};

    fn parse(text: &str) -> Turn {
        parse_turn(text.as_bytes()).unwrap_or_else(|refusal| panic!("{text}: {refusal:?}"))
    }

    fn refuse(text: &str) -> Refusal {
        *parse_turn(text.as_bytes()).expect_err(text)
    }

    fn with(member: &str) -> String {
        format!(r#"{{"tenant":"acme","agent":"kelly",{member},"calls":[{{"name":"ping"}}]}}"#)
    }

    #[test]
    fn every_dialect_gives_the_same_calls() {
        let head = r#""tenant":"acme","agent":"kelly""#;
        let raw = parse(&format!(r#"{{{head},"calls":[{{"id":"c1","name":"add","arguments":{{"a": 1}}}}]}}"#));
        let text = parse(&format!(r#"{{{head},"calls":[{{"id":"c1","name":"add","arguments":"{{\"a\": 1}}"}}]}}"#));
        let openai = parse(&format!(
            r#"{{{head},"content":null,"tool_calls":[{{"index":0,"id":"c1","type":"function","function":{{"name":"add","arguments":"{{\"a\": 1}}"}}}}]}}"#
        ));
        let anthropic = parse(&format!(
            r#"{{{head},"content":[{{"type":"text","text":"hm"}},{{"type":"tool_use","id":"c1","name":"add","input":{{"a": 1}}}}]}}"#
        ));
        let expected = [Call { provider_id: Some("c1".into()), tool: "add".into(), arguments: r#"{"a": 1}"#.into() }];
        for (turn, dialect) in [
            (raw, Dialect::Raw),
            (text, Dialect::Raw),
            (openai, Dialect::OpenaiChat),
            (anthropic, Dialect::Anthropic),
        ] {
            assert_eq!((turn.calls.as_slice(), turn.dialect), (expected.as_slice(), dialect));
        }
    }

    #[test]
    fn arguments_are_never_made_up_and_keep_their_digits() {
        let arguments = |call: &str| {
            let mut turn = parse(&format!(r#"{{"tenant":"acme","agent":"kelly","calls":[{call}]}}"#));
            turn.calls.remove(0).arguments
        };
        assert_eq!(arguments(r#"{"name":"t"}"#), "{}");
        assert_eq!(arguments(r#"{"name":"t","arguments":null}"#), "null");
        assert_eq!(arguments(r#"{"name":"t","arguments":""}"#), "");
        assert_eq!(arguments(r#"{"name":"t","arguments":"{oops"}"#), "{oops");
        let number = r#"{"n":123456789012345678901234567890.10}"#;
        assert_eq!(arguments(&format!(r#"{{"name":"t","arguments":{number}}}"#)), number);
        let bare = r#"{"tenant":"a","agent":"k","tool_calls":[{"function":{"name":"t"}}]}"#;
        assert_eq!(parse(bare).calls[0].arguments, "");
    }

    #[test]
    fn every_rule_has_its_code() {
        let calls = |n: usize| vec![r#"{"name":"ping"}"#; n].join(",");
        for (text, code) in [
            ("{".to_owned(), "malformed_json"),
            ("[]".into(), "invalid_field"),
            (r#"{"agent":"kelly","calls":[{"name":"t"}]}"#.into(), "missing_field"),
            (r#"{"tenant":"acme","calls":[{"name":"t"}]}"#.into(), "missing_field"),
            (r#"{"tenant":"acme","agent":"kelly"}"#.into(), "missing_field"),
            (r#"{"tenant":"acme","agent":"kelly","calls":[]}"#.into(), "no_calls"),
            (r#"{"tenant":"acme","agent":"kelly","content":"hello"}"#.into(), "no_calls"),
            (r#"{"tenant":"acme","agent":"kelly","content":[{"type":"text"}]}"#.into(), "no_calls"),
            (r#"{"tenant":"acme","agent":"kelly","calls":{}}"#.into(), "invalid_field"),
            (r#"{"tenant":"acme","agent":"kelly","calls":[1]}"#.into(), "invalid_field"),
            (r#"{"tenant":"acme","agent":"kelly","calls":[{}]}"#.into(), "missing_field"),
            (r#"{"tenant":"acme","agent":"kelly","calls":[{"name":"t","args":{}}]}"#.into(), "unknown_field"),
            (r#"{"tenant":"acme","agent":"kelly","tool_calls":[{"type":"custom"}]}"#.into(), "invalid_field"),
            (format!(r#"{{"tenant":"acme","agent":"kelly","calls":[{}]}}"#, calls(129)), "too_many_calls"),
            (with(r#""content":[]"#), "invalid_field"),
            (with(r#""turn_id":"a:b""#), "invalid_field"),
            (with(r#""turn_id":"a\u0000b""#), "invalid_field"),
            (with(r#""turn_id":7"#), "invalid_field"),
            (with(r#""priority":"asap""#), "invalid_field"),
            (with(r#""deadline":"tomorrow""#), "invalid_field"),
            (with(r#""deadline":1700000000"#), "invalid_field"),
            (with(r#""tool_call_audits":"yes""#), "invalid_field"),
            (with(r#""traceparent":"00-0""#), "invalid_field"),
            (with(r#""turnid":"x""#), "unknown_field"),
            (with(r#""tenant":"acme""#), "duplicate_key"),
            (with(&format!(r#""user_context":{}1{}"#, "[".repeat(64), "]".repeat(64))), "too_deep"),
            (with(&format!(r#""correlation_id":"{}""#, "x".repeat(257))), "too_large"),
            (with(&format!(r#""session_data":"{}""#, "x".repeat(17_000))), "too_large"),
            (with(&format!(r#""user_context":"{0}","session_data":"{0}""#, "x".repeat(9_000))), "too_large"),
            (" ".repeat(limits::TURN_BYTES_MAX + 1), "too_large"),
        ] {
            let refusal = refuse(&text);
            assert_eq!(refusal.code, code, "{} {}", &text[..text.len().min(200)], refusal.message);
            assert!(!refusal.message.is_empty() && refusal.message.len() <= limits::ERROR_BYTES_MAX);
        }
        let within = parse(&format!(r#"{{"tenant":"acme","agent":"kelly","calls":[{}]}}"#, calls(128)));
        assert_eq!(within.calls.len(), 128);
        assert!(refuse(&with(r#""turnid":"x""#)).message.contains("turn_id, tenant, agent"));
    }

    #[test]
    fn a_refusal_keeps_whom_to_answer_and_every_readable_call() {
        let refusal = refuse(
            r#"{"turn_id":"t1","tenant":"acme","agent":"no such:agent","reply_to":"in","correlation_id":"c",
               "priority":7,"tool_calls":[{"id":"a","function":{"name":"x"}},{"oops":1},{"id":"b","function":{"name":"y""#,
        );
        assert_eq!(refusal.code, "malformed_json");
        assert_eq!(refusal.tenant.as_ref().map(TenantId::as_str), Some("acme"));
        assert_eq!(refusal.turn_id.as_ref().map(TurnId::as_str), Some("t1"));
        assert_eq!(refusal.reply_to.as_ref().map(InboxName::as_str), Some("in"));
        assert_eq!(refusal.agent.as_deref(), Some("no such:agent"));
        assert_eq!(refusal.correlation_id.as_deref(), Some("c"));
        assert_eq!(refusal.dialect, Dialect::OpenaiChat);
        let calls: Vec<_> = refusal.calls.iter().map(|c| (c.provider_id.as_deref(), c.tool.as_str())).collect();
        // The text breaks off inside the second name: its own quotes are there, so it still counts.
        assert_eq!(calls, [(Some("a"), "x"), (Some("b"), "y")]);
    }

    #[test]
    fn a_refusal_reads_on_after_a_duplicate_key_bad_bytes_or_too_many_of_them() {
        let long = "x".repeat(limits::TURN_BYTES_MAX);
        let duplicate = br#"{"calls":[{"name":"x","arguments":{"a":1,"a":2}}],"reply_to":"in","tenant":"acme"}"#.to_vec();
        let bytes = b"{\"calls\":[{\"name\":\"x\",\"arguments\":\"\xff\"}],\"reply_to\":\"in\",\"tenant\":\"acme\"}".to_vec();
        let large = format!(r#"{{"calls":[{{"name":"x","arguments":"{long}"}}],"reply_to":"in","tenant":"acme"}}"#);
        for (text, code) in
            [(duplicate, "duplicate_key"), (bytes, "malformed_json"), (large.into_bytes(), "too_large")]
        {
            let refusal = parse_turn(&text).unwrap_err();
            assert_eq!(refusal.code, code);
            assert!(refusal.tenant.is_some() && refusal.reply_to.is_some() && refusal.calls.len() == 1, "{code}");
        }
    }

    fn id() -> impl Strategy<Value = String> {
        "[A-Za-z0-9_.-]{1,64}"
    }

    fn any_json() -> impl Strategy<Value = Box<RawValue>> {
        prop_oneof![
            Just("12345678901234567890123.50".to_owned()),
            Just(r#"{"a": [1, {"b" : "\u00e9"}]}"#.to_owned()),
            any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        ]
        .prop_map(|text| RawValue::from_string(text).unwrap())
    }

    fn any_call() -> impl Strategy<Value = Call> {
        let arguments = prop_oneof![
            Just(r#"{"a": 123456789012345678901234567890}"#.to_owned()),
            Just(" {} ".to_owned()),
            Just(r#""text""#.to_owned()),
            Just(r#"{"a":1,"a":2}"#.to_owned()),
            Just(format!("{}{}", "[".repeat(62), "]".repeat(62))),
            any::<String>(),
        ];
        (proptest::option::of(r"\PC{0,40}"), r"\PC{0,40}", arguments)
            .prop_map(|(provider_id, tool, arguments)| Call { provider_id, tool, arguments })
    }

    fn any_turn() -> impl Strategy<Value = Turn> {
        use proptest::option::of;
        let head = (of(id()), id(), id(), 0usize..4, of(-62_167_219_200_000i64..253_402_300_799_999), of(id()), of(id()));
        let context = (of(any_json()), of(any_json()), of(r"\PC{0,40}"), any::<bool>());
        let calls = proptest::collection::vec(any_call(), 1..6);
        (head, context, calls, 0usize..3).prop_map(|(head, context, calls, dialect)| Turn {
            id: head.0.map(|id| TurnId::new(id).unwrap()),
            tenant: TenantId::new(head.1).unwrap(),
            agent: AgentId::new(head.2).unwrap(),
            priority: Priority::ALL[head.3],
            deadline_ms: head.4,
            reply_to: head.5.map(|id| InboxName::new(id).unwrap()),
            task: head.6.map(|id| TaskId::new(id).unwrap()),
            dialect: [Dialect::Raw, Dialect::OpenaiChat, Dialect::Anthropic][dialect],
            context: Context {
                user_context: context.0,
                session_data: context.1,
                correlation_id: context.2,
                traceparent: context.3.then(|| format!("00-{}-{}-01", "a1".repeat(16), "b2".repeat(8))),
            },
            want_audits: context.3,
            calls,
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_the_same(turn in any_turn()) {
            let text = write_turn(&turn);
            let back = parse_turn(text.as_bytes()).map_err(|r| TestCaseError::fail(format!("{text}: {r:?}")))?;
            prop_assert_eq!(format!("{back:?}"), format!("{turn:?}"));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_turn(&bytes);
        }

        #[test]
        fn no_broken_turn_makes_the_parser_panic(turn in any_turn(), at in any::<usize>(), with in any::<u8>(), cut in any::<bool>()) {
            let mut bytes = write_turn(&turn).into_bytes();
            let at = at % bytes.len();
            if cut { bytes.truncate(at) } else { bytes[at] = with }
            let _ = parse_turn(&bytes);
        }
    }
}

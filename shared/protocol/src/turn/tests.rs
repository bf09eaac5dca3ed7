#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;
use tickfleet_model::{Call, Context, Dialect, Priority, SessionName, limits};

fn parse(text: &str) -> Turn {
    parse_turn(text.as_bytes()).unwrap_or_else(|refusal| panic!("{text}: {refusal:?}"))
}

fn refuse(text: &str) -> RejectedMessage {
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
    for (turn, dialect) in
        [(raw, Dialect::Raw), (text, Dialect::Raw), (openai, Dialect::OpenaiChat), (anthropic, Dialect::Anthropic)]
    {
        assert_eq!((turn.calls.as_slice(), turn.dialect), (expected.as_slice(), dialect));
    }
}

#[test]
fn arguments_keep_their_original_text_and_digits() {
    let arguments = |call: &str| {
        let mut turn = parse(&format!(r#"{{"tenant":"acme","agent":"kelly","calls":[{call}]}}"#));
        turn.calls.remove(0).arguments
    };
    assert_eq!(arguments(r#"{"name":"t"}"#), "{}");
    assert_eq!(arguments(r#"{"name":"t","arguments":null}"#), "{}");
    assert_eq!(arguments(r#"{"name":"t","arguments":""}"#), "");
    assert_eq!(arguments(r#"{"name":"t","arguments":"{oops"}"#), "{oops");
    let number = r#"{"n":123456789012345678901234567890.10}"#;
    assert_eq!(arguments(&format!(r#"{{"name":"t","arguments":{number}}}"#)), number);
    let bare = r#"{"tenant":"a","agent":"k","tool_calls":[{"function":{"name":"t"}}]}"#;
    assert_eq!(parse(bare).calls[0].arguments, "");
}

#[test]
fn each_invalid_turn_has_its_rejection_code() {
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
        (with(r#""turnid":"x""#), "unknown_field"),
        (with(r#""tenant":"acme""#), "duplicate_key"),
        (with(&format!(r#""user_context":{}1{}"#, "[".repeat(64), "]".repeat(64))), "too_deep"),
        (with(&format!(r#""correlation_id":"{}""#, "x".repeat(257))), "too_large"),
        (with(&format!(r#""session_data":"{}""#, "x".repeat(17_000))), "too_large"),
        (with(&format!(r#""user_context":"{0}","session_data":"{0}""#, "x".repeat(9_000))), "too_large"),
        (" ".repeat(limits::TURN_BYTES_MAX + 1), "too_large"),
    ] {
        let refusal = refuse(&text);
        assert_eq!(refusal.code.as_str(), code, "{} {}", &text[..text.len().min(200)], refusal.message);
        assert!(!refusal.message.is_empty() && refusal.message.len() <= limits::ERROR_BYTES_MAX);
    }
    let within = parse(&format!(r#"{{"tenant":"acme","agent":"kelly","calls":[{}]}}"#, calls(128)));
    assert_eq!(within.calls.len(), 128);
    assert!(refuse(&with(r#""turnid":"x""#)).message.contains("turn_id, tenant, agent"));
}

#[test]
fn a_rejection_keeps_the_reply_address_and_every_readable_call() {
    let refusal = refuse(
        r#"{"turn_id":"t1","tenant":"acme","agent":"no such:agent","reply_to":"in","correlation_id":"c",
           "priority":7,"tool_calls":[{"id":"a","function":{"name":"x"}},{"oops":1},{"id":"b","function":{"name":"y""#,
    );
    assert_eq!(refusal.code.as_str(), "malformed_json");
    assert_eq!(refusal.tenant.as_ref().map(TenantId::as_str), Some("acme"));
    assert_eq!(refusal.turn_id.as_ref().map(TurnId::as_str), Some("t1"));
    assert_eq!(refusal.reply_to.as_ref().map(InboxName::as_str), Some("in"));
    assert_eq!(refusal.agent.as_deref(), Some("no such:agent"));
    assert_eq!(refusal.correlation_id.as_deref(), Some("c"));
    assert_eq!(refusal.dialect, Dialect::OpenaiChat);
    let calls: Vec<_> = refusal.calls.iter().map(|c| (c.provider_id.as_deref(), c.tool.as_str())).collect();
    // The text ends after the second name, so the second call is read too.
    assert_eq!(calls, [(Some("a"), "x"), (Some("b"), "y")]);
}

#[test]
fn a_rejection_keeps_the_fields_after_the_first_fault() {
    let long = "x".repeat(limits::TURN_BYTES_MAX);
    let duplicate = br#"{"calls":[{"name":"x","arguments":{"a":1,"a":2}}],"reply_to":"in","tenant":"acme"}"#.to_vec();
    let bytes =
        b"{\"calls\":[{\"name\":\"x\",\"arguments\":\"\xff\"}],\"reply_to\":\"in\",\"tenant\":\"acme\"}".to_vec();
    let large = format!(r#"{{"calls":[{{"name":"x","arguments":"{long}"}}],"reply_to":"in","tenant":"acme"}}"#);
    for (text, code) in [(duplicate, "duplicate_key"), (bytes, "malformed_json"), (large.into_bytes(), "too_large")] {
        let refusal = parse_turn(&text).unwrap_err();
        assert_eq!(refusal.code.as_str(), code);
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
    (proptest::option::of(r"\PC{0,40}"), r"\PC{0,40}", arguments).prop_map(|(provider_id, tool, arguments)| Call {
        provider_id,
        tool,
        arguments,
    })
}

#[test]
fn a_malformed_trace_context_is_ignored() {
    let good = format!("00-{}-{}-01", "a1".repeat(16), "b2".repeat(8));
    let read = |parent: &str, state: &str| {
        let calls = r#""calls":[{"name":"x"}]"#;
        let text = format!(r#"{{"tenant":"a","agent":"b","traceparent":{parent},"tracestate":{state},{calls}}}"#);
        let context = parse_turn(text.as_bytes()).unwrap().context;
        (context.traceparent, context.tracestate)
    };
    let quoted = format!("\"{good}\"");
    assert_eq!(read(&quoted, r#""a=b""#), (Some(good.clone()), Some("a=b".into())));
    for state in [r#""no pairs""#, r#""a=\u0001""#, "7", r#""""#, &format!("\"a={}\"", "x".repeat(512))] {
        assert_eq!(read(&quoted, state), (Some(good.clone()), None), "{state}");
    }
    let zero = format!("\"00-{}-{}-01\"", "0".repeat(32), "b2".repeat(8));
    for parent in [r#""00-0""#, "7", "null", "{}", &zero, &quoted.to_uppercase(), &quoted.replace("00-", "ff-")] {
        assert_eq!(read(parent, r#""a=b""#), (None, None), "{parent}");
    }
}

fn any_turn() -> impl Strategy<Value = Turn> {
    use proptest::option::of;
    let head = (of(id()), id(), id(), 0usize..4, of(-62_167_219_200_000i64..253_402_300_799_999), of(id()), of(id()));
    let names = proptest::collection::btree_set(r#"[a-z_"é]{1,20}"#, 0..4);
    let context = (of(any_json()), of(any_json()), of(r"\PC{0,40}"), any::<bool>(), of(names));
    let calls = proptest::collection::vec(any_call(), 1..6);
    (head, context, calls, 0..Dialect::ALL.len()).prop_map(|(head, context, calls, dialect)| Turn {
        id: head.0.map(|id| TurnId::new(id).unwrap()),
        tenant: TenantId::new(head.1).unwrap(),
        agent: AgentId::new(head.2).unwrap(),
        priority: Priority::ALL[head.3],
        deadline_ms: head.4,
        reply_to: head.5.map(|id| InboxName::new(id).unwrap()),
        task: head.6.map(|id| TaskId::new(id).unwrap()),
        dialect: Dialect::ALL[dialect],
        context: Context {
            user_context: context.0,
            session_data: context.1,
            session_id: context.3.then(|| SessionName::new("ses-1").unwrap()),
            correlation_id: context.2,
            traceparent: context.3.then(|| format!("00-{}-{}-01", "a1".repeat(16), "b2".repeat(8))),
            tracestate: context.3.then(|| "vendor=x, other=y".into()),
        },
        want_audits: context.3,
        strict: context.3,
        allowed_tools: context.4,
        parallel_reads: context.3,
        pending_approval: context.3,
        local_calls: context.3,
        calls,
    })
}

proptest! {
    #[test]
    fn a_written_turn_reads_back_the_same(turn in any_turn()) {
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

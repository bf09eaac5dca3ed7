#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use serde_json::json;

use super::explain::PROBLEMS_MAX;
use super::*;

fn check() -> ArgumentCheck {
    ArgumentCheck::compile(&json!({
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1},
            "mode": {"enum": ["append", "replace"]},
            "count": {"type": "integer", "minimum": 0},
            "owner": {"type": "object", "properties": {"emails": {"type": "array", "items": {"type": "string"}}}},
            "when": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["from"]}]}
        },
        "required": ["path"],
        "additionalProperties": false
    }))
    .unwrap()
}

fn message(text: &str) -> String {
    check().check(text).unwrap_err().message("write_file")
}

#[test]
fn an_error_names_the_argument_and_the_expected_value() {
    assert_eq!(message("{}"), "Missing required argument 'path' for tool 'write_file'.");
    let typed = r#"Argument 'count' must be of type integer; found "three" for tool 'write_file'."#;
    assert_eq!(message(r#"{"path":"a","count":"three"}"#), typed);
    let nested = "Argument 'owner.emails[1]' must be of type string; found another value for tool 'write_file'.";
    assert_eq!(message(r#"{"path":"a","owner":{"emails":["x",7]}}"#), nested);
    assert!(message(r#"{"path":"a","mode":"rw"}"#).contains(r#"must be one of ["append", "replace"]; found "rw""#));
    assert!(message(r#"{"path":"a","cuont":1}"#).contains("Unknown argument 'cuont', did you mean 'count'?"));
    assert!(message(r#"{"path":"a","zzz":1}"#).contains("expected: path, mode, count, owner, when"));
    assert!(message(r#"{"path":"a","when":{}}"#).contains(r#"(must be of type string / needs "from")"#));
}

#[test]
fn arguments_that_are_not_an_object_are_rejected() {
    for bad in ["null", "[]", "\"{}\"", "{", "{\"path\":\"a\",\"path\":\"b\"}"] {
        assert!(check().check(bad).is_err(), "{bad}");
    }
    assert!(message("[]").contains("must be a JSON object, not []"));
    assert!(message(r#"{"path":"a","path":"b"}"#).contains("'path' is given twice"));
}

#[test]
fn empty_text_is_an_empty_object() {
    let check = ArgumentCheck::compile(&json!({"type": "object"})).unwrap();
    for empty in ["", " \n"] {
        assert_eq!(check.check(empty).unwrap().get(), "{}");
        assert_eq!(message(empty), "Missing required argument 'path' for tool 'write_file'.");
    }
}

#[test]
fn unknown_and_missing_arguments_are_named() {
    let text = message(r#"{"path":"a","cuont":1,"zzz":1,"owner":{}}"#);
    assert!(text.contains("Unknown arguments 'cuont' (did you mean 'count'?), 'zzz', expected: path, mode"), "{text}");
    let names: Vec<String> = (0..60).map(|n| format!("argument_{n}")).collect();
    let many = ArgumentCheck::compile(&json!({"type": "object", "required": names})).unwrap();
    let error = many.check("{}").unwrap_err();
    assert!(error.message("t").contains("Missing required arguments 'argument_0', 'argument_1'"), "{error:?}");
    assert!(error.message("t").contains("'argument_21' and 38 more for tool 't'"), "{}", error.message("t"));
    let typed: serde_json::Map<_, _> = (0..9).map(|n| (format!("a{n}"), json!({"type": "string"}))).collect();
    let wrong: serde_json::Map<_, _> = (0..9).map(|n| (format!("a{n}"), json!(n))).collect();
    let error = ArgumentCheck::compile(&json!({"properties": typed})).unwrap();
    let error = error.check(&Value::Object(wrong).to_string()).unwrap_err();
    assert!(error.message("t").contains("have more than 5 problems, these first: Argument 'a0'"));
    assert_eq!(error.details()["more"], true);
}

#[test]
fn a_length_error_reports_the_actual_length() {
    let check = ArgumentCheck::compile(&json!({"properties": {
        "text": {"type": "string", "minLength": 2, "maxLength": 3}, "list": {"type": "array", "maxItems": 1},
        "object": {"type": "object", "minProperties": 1},
    }}))
    .unwrap();
    for (text, expected) in [
        (r#"{"text":"éééé"}"#, "Argument 'text' must have at most 3 characters and has 4; found \"éééé\""),
        (r#"{"text":""}"#, "Argument 'text' must have at least 2 characters and has 0; found \"\""),
        (r#"{"list":[1,2,3]}"#, "Argument 'list' must have at most 1 items and has 3; found [1,2,3]"),
        (r#"{"object":{}}"#, "Argument 'object' must have at least 1 members and has 0; found {}"),
    ] {
        assert_eq!(check.check(text).unwrap_err().problems[0].message, expected);
    }
}

#[test]
fn an_enum_error_lists_its_values_up_to_a_limit() {
    let of = |schema: Value| ArgumentCheck::compile(&json!({"properties": {"x": schema}})).unwrap();
    let problem_of = |schema: Value| of(schema).check(r#"{"x":"no"}"#).unwrap_err().problems[0].message.clone();
    let values = ["draft", "queued", "sent", "failed"];
    let consts: Vec<Value> =
        values.iter().map(|value| json!({"const": value, "type": "string", "description": "d"})).collect();
    let whole = r#"Argument 'x' must be one of ["draft", "queued", "sent", "failed"]; found "no""#;
    assert_eq!(problem_of(json!({"enum": values})), whole);
    assert_eq!(problem_of(json!({"oneOf": consts})), whole);
    assert_eq!(problem_of(json!({"anyOf": consts})), whole);
    let optional = problem_of(json!({"anyOf": [{"oneOf": consts}, {"type": "null"}]}));
    assert!(optional.contains(r#"must be one of ["draft", "queued", "sent", "failed", null]"#), "{optional}");
    assert_eq!(
        of(json!({"oneOf": consts})).check(r#"{"x":7}"#).unwrap_err().problems[0].message,
        r#"Argument 'x' must be one of ["draft", "queued", "sent", "failed"]; found 7"#
    );
    let many: Vec<Value> = (0..200).map(|n| json!({"const": format!("value_{n}")})).collect();
    let cut = problem_of(json!({"oneOf": many}));
    assert!(cut.contains(r#"["value_0", "value_1", "#) && cut.contains(" more]; found"), "{cut}");
    let forms: Vec<Value> = (0..5).map(|n| json!({"type": "object", "required": [format!("m{n}")]})).collect();
    assert!(problem_of(json!({"anyOf": forms})).contains(" / and 2 more)"));
}

#[test]
fn a_secret_argument_is_never_quoted() {
    let check = ArgumentCheck::compile(&json!({"properties": {
        "password": {"type": "string", "minLength": 9}, "login": {"properties": {"pin": {"type": "string"}}},
    }}))
    .unwrap();
    let text = check.check(r#"{"password":"hunter2","login":{"pin":4711}}"#).unwrap_err().message("sign_in");
    assert!(!text.contains("hunter2") && !text.contains("4711"), "{text}");
    assert!(text.contains("must have at least 9 characters and has 7; found another text"), "{text}");
}

#[test]
fn integers_beyond_64_bits_pass_unchanged() {
    let text = r#" {"path":"a","count":123456789012345678901234567890} "#;
    assert_eq!(check().check(text).unwrap().get(), text.trim());
}

#[tokio::test]
async fn a_timed_check_validates_long_arguments() {
    let check = ArgumentCheck::compile(&json!({"properties": {"x": {"uniqueItems": true}}})).unwrap();
    let long = |from: usize| json!({"x": (0..30_000).map(|n| n.max(from)).collect::<Vec<_>>()}).to_string();
    assert!(check.check_in_time(&long(0)).await.is_ok());
    let twice = check.check_in_time(&long(2)).await.unwrap_err();
    assert!(twice.message("t").contains("must not have the same item twice"), "{}", twice.message("t"));
}

#[test]
fn a_check_that_exceeds_its_time_limit_is_reported() {
    // The only blocking thread is busy, so the check certainly exceeds the time limit.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (free, busy) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || busy.recv());
    let check = ArgumentCheck::compile(&json!({"properties": {"x": {"uniqueItems": true}}})).unwrap();
    let long = json!({"x": (0..30_000).collect::<Vec<_>>()}).to_string();
    let late = runtime.block_on(check.check_within(&long, Duration::ZERO)).unwrap_err();
    assert_eq!(late.message("t"), "The arguments could not be checked within 0 ms for tool 't'.");
    drop(free);
}

#[test]
fn every_digit_of_every_number_reaches_the_handler() {
    let decimals = ["0.1000000000000000055511151231257827", "1.10", "-0.0", "123456789.123456789123456789"];
    for number in ["18446744073709551616", "-99999999999999999999"].into_iter().chain(decimals) {
        let text = format!(r#"{{"path":"a","owner":{{"n":{number}}}}}"#);
        assert_eq!(check().check(&text).unwrap().get(), text);
    }
    let beyond = r#"{"path":"a","owner":{"n":1E400}}"#;
    assert_eq!(check().check(beyond).unwrap().get(), beyond, "also beyond every number that can be compared");
}

#[test]
fn a_huge_invalid_value_gives_a_short_error() {
    let names: String = (0..200).map(|n| format!("\"unknown_{n}_{}\":1,", "x".repeat(100))).collect();
    let text = format!("{{{names}\"path\":{}}}", json!(vec!["y".repeat(1_000); 20]));
    let error = check().check(&text).unwrap_err();
    assert!(error.message(&"t".repeat(1_000)).len() <= limits::ERROR_BYTES_MAX);
    assert!(error.details().to_string().len() < 6 * limits::ERROR_BYTES_MAX);
    assert!(error.problems.len() <= PROBLEMS_MAX);
    let long = format!(r#"{{"path":"a","owner":{{"emails":[0{}]}}}}"#, ",0".repeat(100_000));
    assert_eq!(check().check(&long).unwrap_err().problems.len(), 1, "the first problem stands for all");
}

#[tokio::test]
async fn an_output_error_names_members_of_the_result() {
    let schema = json!({
        "properties": {"area": {"type": "number"}, "unit": {}}, "required": ["area", "unit"],
        "additionalProperties": false
    });
    let check = OutputCheck::compile(&schema).unwrap();
    assert!(check.check_in_time(r#"{"area":1,"unit":"m2"}"#).await.is_ok());
    let unfit = check.check_in_time(r#"{"area":"one","zone":1}"#).await.unwrap_err();
    let mut messages: Vec<&str> = unfit.problems.iter().map(|problem| problem.message.as_str()).collect();
    messages.sort_unstable();
    let expected = [
        "It has the undeclared member 'zone', expected: area, unit",
        "It lacks the member 'unit'",
        "Its member 'area' must be of type number",
    ];
    assert_eq!(messages, expected);
    let long = format!(r#"{{"area":"{}"}}"#, "x".repeat(limits::ARGUMENTS_BYTES_MAX));
    assert_eq!(check.check_in_time(&long).await.unwrap_err().problems.len(), 1, "long, and still looked at");
    let strings = OutputCheck::compile(&json!({"type": "string"})).unwrap();
    assert!(strings.check_in_time("\"a\"").await.is_ok(), "a result need not be an object");
}

#[test]
fn an_invalid_argument_schema_is_rejected() {
    let compile = |schema: Value| ArgumentCheck::compile(&schema).unwrap_err();
    assert!(matches!(compile(json!(true)), SchemaError::NotAnObject(_)));
    assert!(matches!(compile(json!({"type": "string"})), SchemaError::NotAnObject(_)));
    assert!(matches!(compile(json!({"properties": {"a": {"type": "strnig"}}})), SchemaError::Invalid { .. }));
    let remote = json!({"properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}});
    assert!(matches!(compile(remote), SchemaError::Unbounded { .. }));
}

#[test]
fn a_schema_error_reports_its_path() {
    let schema = json!({"properties": {"a": {"type": "strnig"}}});
    let typed = check_schema(&schema, SchemaUse::Arguments).unwrap_err();
    assert_eq!(typed.at, "/properties/a/type");
    assert!(typed.why.contains("strnig") && typed.why.contains("string"), "{}", typed.why);
}

#[derive(serde::Deserialize)]
struct Pattern {
    pattern: String,
    fits: Vec<String>,
    unfit: Vec<String>,
    /// True if no available engine supports the pattern.
    #[serde(default)]
    unread: bool,
}

#[test]
fn ecma_patterns_are_checked_or_skipped_with_a_warning() {
    let text = include_str!("../../../../../tests/data/trouble/patterns.json");
    for case in serde_json::from_str::<Vec<Pattern>>(text).unwrap() {
        let pattern = case.pattern.as_str();
        let schema = json!({"properties": {"a": {"type": "string", "pattern": pattern}, "n": {"type": "integer"}}});
        let warnings =
            check_schema(&schema, SchemaUse::Arguments).unwrap_or_else(|error| panic!("{pattern}: {error:?}"));
        let places: Vec<_> = warnings.iter().map(|warning| warning.at.as_str()).collect();
        assert_eq!(places, if case.unread { vec!["/properties/a/pattern"] } else { vec![] }, "{pattern}");
        let check = ArgumentCheck::compile(&schema).unwrap();
        for (texts, fits) in [(&case.fits, true), (&case.unfit, case.unread)] {
            for text in texts {
                assert_eq!(check.check(&json!({"a": text}).to_string()).is_ok(), fits, "{pattern}: {text:?}");
            }
        }
        assert!(check.check(r#"{"a": 5}"#).is_err() && check.check(r#"{"n": "x"}"#).is_err(), "the rest is in force");
    }
    // A match that takes too many steps does not reject the value.
    let slow = json!({"properties": {"a": {"pattern": "^(?:a|a(?!b))+$"}, "n": {"type": "integer"}}});
    let slow = ArgumentCheck::compile(&slow).unwrap();
    let long = "a".repeat(40) + "!";
    // Without the limit on steps, the check would take hours.
    assert!(slow.check(&json!({"a": long}).to_string()).is_ok());
    let wrong = slow.check(&json!({"a": long, "n": "x"}).to_string()).unwrap_err();
    assert_eq!(wrong.problems.len(), 1, "{wrong:?}");
    // An unsupported pattern might allow these names, so they are left to the tool.
    let names = json!({"type": "object", "patternProperties": {"(": {}}, "additionalProperties": false});
    assert!(ArgumentCheck::compile(&names).unwrap().check(r#"{"x": 1}"#).is_ok());
    let data = json!({"properties": {"a": {"const": {"pattern": "("}}, "b": {"pattern": "("}}});
    assert!(ArgumentCheck::compile(&data).unwrap().check(r#"{"a": {"pattern": "("}}"#).is_ok());
}

#[test]
fn truncated_arguments_are_reported_as_a_cut_response() {
    let check = check();
    for text in [r#"{"path":"a"#, r#"{"path":"a""#, "{", r#"{"path":"a"}…"#, "…"] {
        let error = check.check(text).unwrap_err();
        assert!(error.is_cut, "{text}");
        let text = error.message("write_file");
        assert!(text.contains("was cut off") && text.contains("Request the response again"), "{text}");
        assert_eq!(error.details()["reason"], "cut");
    }
    for text in [r#"{"path":a}"#, r#"{"path":"…"}"#, "[]"] {
        assert!(check.check(text).err().is_none_or(|error| !error.is_cut), "{text}");
    }
}

#[test]
fn null_means_empty_arguments_and_numbers_keep_their_digits() {
    let any = ArgumentCheck::compile(&json!({"type": "object", "properties": {"n": {"type": "integer"}}})).unwrap();
    for (given, kept) in [
        ("null", "{}"),
        (" null ", "{}"),
        ("", "{}"),
        (r#"{"n":1180591620717411303424}"#, r#"{"n":1180591620717411303424}"#),
        (r#"{"n":123456789012345678901234567890}"#, r#"{"n":123456789012345678901234567890}"#),
        (r#"{"x":0.10,"y":1e400,"z":-1E-400}"#, r#"{"x":0.10,"y":1e400,"z":-1E-400}"#),
        (r#"{"n":3.0,"x":3.0}"#, r#"{"n":3,"x":3.0}"#),
    ] {
        assert_eq!(any.check(given).unwrap().get(), kept);
    }
}

#[test]
fn the_same_schema_is_compiled_once() {
    let one = check();
    let other = check();
    assert!(Arc::ptr_eq(&one.0.0, &other.0.0));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics_and_errors_are_bounded(text in "[\\PC\u{0}-\u{1f}{}\\[\\]\",:0-9a-z]{0,200}") {
        if let Err(error) = check().check(&text) {
            prop_assert!(error.message("write_file").len() <= limits::ERROR_BYTES_MAX);
            prop_assert!(!error.problems.is_empty());
        }
    }
}

//! Compares this crate's evaluation with the interpreter of the `cel` crate.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::value::RawValue;
use tickfleet_model::policy::{AgentPolicy, TenantPolicy};
use tickfleet_model::{AgentId, Context, TenantId};

use super::{Evaluation, Facts, compile};

const ARGUMENTS: &str = r#"{"i": 3, "j": -2, "d": 2.5, "s": "ab", "t": "abc", "l": [1, 2, 3], "m": {"a": 1, "b": "x"},
    "e": [], "n": null, "y": true, "f": false, "w": ["ab", "c", "ab"], "x": [1, "a", null]}"#;

fn cel_result(condition: &str) -> Option<bool> {
    let mut context = cel::Context::default();
    let arguments: serde_json::Value = serde_json::from_str(ARGUMENTS).unwrap();
    context.add_variable("args", arguments).unwrap();
    let program = cel::Program::compile(condition).ok()?;
    match program.execute(&context) {
        Ok(cel::Value::Bool(holds)) => Some(holds),
        _ => None,
    }
}

fn our_result(condition: &str) -> Option<bool> {
    let arguments = RawValue::from_string(ARGUMENTS.to_owned()).unwrap();
    let agent = AgentId::new("a").unwrap();
    let tenant = TenantId::new("t").unwrap();
    let policy = AgentPolicy::default();
    let owner = TenantPolicy::default();
    let tool = super::tests::spec();
    let context = Context::default();
    let facts = Facts {
        arguments: &arguments,
        agent: (&agent, &policy),
        tenant: (&tenant, &owner),
        tool: &tool,
        context: &context,
        task: None,
    };
    let node = compile::condition(condition).ok()?;
    Evaluation::of(&facts).holds(&node).ok()
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "args.i",
        "args.j",
        "args.d",
        "args.s",
        "args.t",
        "args.l",
        "args.m",
        "args.e",
        "args.n",
        "args.w",
        "args.x",
        "args.m.a",
        "args.m.b",
        "args.missing",
        "args.y",
        "0",
        "3",
        "2.5",
        "-1",
        "'ab'",
        "'b'",
        "''",
        "null",
        "[1, 2, 3]",
        "['ab', 'c']",
        "args.l[1]",
        "args.l[7]",
        "args['s']",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(2, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), prop::sample::select(vec!["-", "*"]), inner.clone())
                .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            inner.clone().prop_map(|a| format!("size({a})")),
            (inner.clone(), inner.clone(), inner).prop_map(|(c, a, b)| format!("({c} == 3 ? {a} : {b})")),
        ]
    })
}

fn fitting(of: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(of).prop_map(str::to_owned)
}

const NUMBERS: &[&str] =
    &["args.i", "args.j", "args.d", "args.m.a", "size(args.l)", "args.l[1]", "0", "3", "2.5", "-1", "3u"];
const TEXTS: &[&str] = &["args.s", "args.t", "args.m.b", "args['s']", "'ab'", "'b'", "''"];

fn condition() -> impl Strategy<Value = String> {
    let compared = || prop::sample::select(vec!["<", "<=", ">", ">=", "==", "!="]);
    let any = (value(), prop::sample::select(vec!["<", "<=", ">", ">=", "==", "!=", "in"]), value())
        .prop_map(|(a, op, b)| format!("({a} {op} {b})"));
    let numbers = (fitting(NUMBERS), compared(), fitting(NUMBERS)).prop_map(|(a, op, b)| format!("({a} {op} {b})"));
    let texts = (fitting(TEXTS), compared(), fitting(TEXTS)).prop_map(|(a, op, b)| format!("({a} {op} {b})"));
    let comparison = prop_oneof![2 => any, 4 => numbers, 3 => texts];
    let text = prop_oneof![3 => fitting(TEXTS), 1 => value()];
    let text = (text, prop::sample::select(vec!["startsWith", "endsWith", "contains"]), fitting(TEXTS))
        .prop_map(|(a, f, b)| format!("{a}.{f}({b})"));
    let has = prop::sample::select(vec![
        "has(args.i)",
        "has(args.missing)",
        "has(args.m.a)",
        "has(args.m.z)",
        "has(args.s.z)",
        "args.y",
        "args.f",
    ]);
    let leaf = prop_oneof![4 => comparison, 2 => text, 1 => has.prop_map(str::to_owned)];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let of = prop::sample::select(vec![
            "args.l",
            "args.l",
            "args.w",
            "args.w",
            "args.x",
            "args.e",
            "args.m",
            "args.missing",
            "args.s",
        ]);
        let item =
            prop::sample::select(vec!["v == 2", "v < 3", "v == 'ab'", "v.contains('a')", "v != null", "v > args.j"]);
        prop_oneof![
            (inner.clone(), prop::sample::select(vec!["&&", "||"]), inner.clone())
                .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            inner.clone().prop_map(|a| format!("!({a})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(c, a, b)| format!("({c} ? {a} : {b})")),
            (of, prop::sample::select(vec!["all", "exists", "exists_one"]), item, inner)
                .prop_map(|(of, q, item, a)| format!("{of}.{q}(v, {item} || {a})")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// An error in only one evaluator is not a disagreement. For example, the `cel` crate rejects comparisons of
    /// different number types.
    #[test]
    fn both_evaluators_agree_when_both_give_a_result(condition in condition()) {
        if let (Some(our_result), Some(cel_result)) = (our_result(&condition), cel_result(&condition)) {
            prop_assert_eq!(our_result, cel_result, "{}", condition);
        }
    }

    #[test]
    fn no_text_makes_the_compiler_panic(text in "[ -~äö\\n]{0,200}") {
        let _ = (compile::condition(&text), super::check_message(&text));
    }
}

#[test]
fn both_evaluators_decide_most_generated_conditions() {
    let runner = &mut proptest::test_runner::TestRunner::deterministic();
    let mut both = 0;
    let mut neither = 0;
    let mut ours_alone = 0;
    let mut theirs_alone = Vec::new();
    for _ in 0..2_000 {
        let drawn = condition().new_tree(runner).unwrap().current();
        match (our_result(&drawn), cel_result(&drawn)) {
            (Some(_), Some(_)) => both += 1,
            (None, None) => neither += 1,
            (Some(_), None) => ours_alone += 1,
            (None, Some(_)) => theirs_alone.push(drawn),
        }
    }
    assert!(both > 1_000 && neither > 100, "both {both}, neither {neither}, ours alone {ours_alone}");
    // This crate's compiler rejects a third level of quantifiers.
    let refused = |one: &String| one.matches("(v, ").count() > 2;
    assert!(theirs_alone.iter().all(refused), "{theirs_alone:?}");
}

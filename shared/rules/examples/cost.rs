//! Measures the cost of rules per call: `cargo run --release -p tickfleet-rules --example cost`. Each time is the best
//! of ten rounds.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods, reason = "a bench measures and prints")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_model::policy::{AgentPolicy, Rule, TenantPolicy, ToolGrant};
use tickfleet_model::{AgentId, Context, Effect, TenantId, ToolSpec};
use tickfleet_rules::{Facts, Rulebook};

const PAYMENT: &str =
    r#"{"recipient": "bob@acme.test", "amount": 420.50, "subject": "Rent for May", "date": "2026-05-01"}"#;

fn tool() -> ToolSpec {
    ToolSpec {
        id: "tool_send_money".into(),
        name: "send_money".into(),
        display_name: String::new(),
        description: String::new(),
        input_schema: json!({"type": "object"}),
        output_schema: None,
        category: "finance".into(),
        version: "1.0.0".into(),
        effect: Effect::Once,
        timeout: Duration::from_secs(1),
        required_capabilities: Vec::new(),
        required_features: Vec::new(),
        requires_approval: false,
        approval: None,
        effect_key: None,
        cache: None,
        reconcile: None,
        durable: None,
        configured: true,
    }
}

fn measure(what: &str, rules: &[&str], arguments: &str, context: &Context, rounds: u32) {
    let rule = |require: &&str| Rule { require: (*require).to_owned(), ..Rule::default() };
    let row = ToolGrant { rules: rules.iter().map(rule).collect(), ..ToolGrant::default() };
    let book = Rulebook::of(&BTreeMap::from([("send_money".to_owned(), row)]));
    let tool = tool();
    let arguments = RawValue::from_string(arguments.to_owned()).unwrap();
    let agent = AgentId::new("kelly").unwrap();
    let tenant = TenantId::new("acme").unwrap();
    let policy = AgentPolicy::default();
    let owner = TenantPolicy::default();
    let facts = Facts {
        arguments: &arguments,
        agent: (&agent, &policy),
        tenant: (&tenant, &owner),
        tool: &tool,
        context,
        task: None,
    };
    let one = || {
        let began = Instant::now();
        (0..rounds).for_each(|_| drop(black_box(book.decide("send_money", black_box(&facts)))));
        began.elapsed() / rounds
    };
    let best = (0..10).map(|_| one()).min().unwrap_or_default();
    let verdict = if book.decide("send_money", &facts).is_ok() { "met" } else { "stopped" };
    println!("{what:<48} {verdict:<8} {:>12} ns", best.as_nanos());
}

fn main() {
    let contacts = (0..20).map(|n| format!("user{n}@acme.test")).chain(["bob@acme.test".into()]).collect::<Vec<_>>();
    let user = RawValue::from_string(json!({"user_id": "u1", "contacts": contacts}).to_string()).unwrap();
    let context = Context { user_context: Some(user), ..Context::default() };
    let run = |what, rules: &[&str]| measure(what, rules, PAYMENT, &context, 20_000);
    run("no rules", &[]);
    run("an amount", &["args.amount <= 500"]);
    run("an amount that is too large", &["args.amount <= 400"]);
    run("an amount and a domain", &["args.amount <= 500 && args.recipient.endsWith('@acme.test')"]);
    run("a pattern", &["args.recipient.matches('^[a-z]+@acme[.]test$')"]);
    run("one of 21 contacts of the turn's user", &["args.recipient in user_context.contacts"]);
    let list = format!(r#"{{"list": [{}]}}"#, vec!["1"; 2_000].join(","));
    let long = format!(r#"{{"list": [{}]}}"#, vec!["1"; 130_000].join(","));
    measure("each of 2,000 items", &["args.list.all(x, x == 1)"], &list, &context, 100);
    let squared = "args.list.all(x, args.list.all(y, x == y))";
    measure("each of 2,000 with each: ends at the bound", &[squared], &list, &context, 20);
    measure("each of 130,000 items: ends at the bound", &["args.list.all(x, x == 1)"], &long, &context, 20);
    let texts = format!(r#"{{"list": [{}]}}"#, vec![r#""aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa""#; 6_000].join(","));
    measure(
        "a heavy pattern on 6,000 texts: ends at the bound",
        &["args.list.all(x, x.matches('^(a|aa|[a-z]+)*$'))"],
        &texts,
        &context,
        20,
    );
}

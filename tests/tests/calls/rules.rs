//! Rules on arguments and context. A call that violates a rule is denied before it begins.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tickfleet_model::policy::{Rule, RuleMode, ToolGrant};
use tickfleet_model::{AgentId, Effect, Policy};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

fn rule(name: &str, require: &str, message: &str) -> Rule {
    Rule {
        name: Some(name.to_owned()),
        require: require.to_owned(),
        message: Some(message.to_owned()),
        ..Rule::default()
    }
}

fn ruled(rules: Vec<Rule>) -> ToolGrant {
    ToolGrant { everyone: true, rules, ..ToolGrant::default() }
}

fn with_rules(policy: &mut Policy) {
    let short = rule("short", "args.value.amount <= 500", "amount {args.value.amount} exceeds 500");
    let known =
        rule("known", "args.value.to in user_context.contacts", "{args.value.to} is nobody that the user knows");
    let known = Rule { when: Some("has(args.value.to)".into()), ..known };
    policy.permissions.matrix.insert("echo".into(), ruled(vec![short, known]));
    let broken = Rule { message: None, name: None, ..rule("", "args.value.amount <=", "") };
    policy.permissions.matrix.insert("fail".into(), ruled(vec![broken]));
    let sam = AgentId::new("sam").unwrap();
    let row = Rule { when: Some("agent.name == 'sam'".into()), ..rule("nap", "args.ms < 10", "no naps") };
    policy
        .permissions
        .matrix
        .insert("sleep".into(), ToolGrant { everyone: false, agents: [sam].into(), ..ruled(vec![row]) });
}

fn errors(reply: &Value) -> Vec<(&str, &str, &str)> {
    let text = |value: &'_ Value| -> &'static str { value.as_str().unwrap_or_default().to_owned().leak() };
    let results = reply["results"].as_array().unwrap().iter();
    results
        .map(|result| {
            let error = &result["error"];
            (text(&result["outcome"]), text(&error["message"]), text(&error["details"]["rule"]))
        })
        .collect()
}

#[tokio::test]
async fn a_call_that_violates_a_rule_is_denied_and_names_the_rule() {
    let mut fleet =
        Fleet::start(Plan { agents: vec!["kelly".into(), "sam".into()], policy: with_rules, ..Plan::default() }).await;
    let echo = |arguments: Value| json!({"name": "echo", "arguments": {"value": arguments}});
    let calls = json!([
        echo(json!({"amount": 500, "to": "bob"})),
        echo(json!({"amount": 500.01, "to": "bob"})),
        echo(json!({"amount": 1, "to": "eve"})),
        echo(json!({"amount": "1"})),
        echo(json!({"to": "bob"})),
        {"name": "fail", "arguments": {"outcomes": ["ok"]}},
        {"name": "sleep", "arguments": {"ms": 1}},
    ]);
    fleet.submit_turn(json!({"user_context": {"contacts": ["bob"]}, "calls": calls})).await;
    let reply = fleet.reply().await;
    let reported = errors(&reply);
    let may_not = |why: &str| format!("You may not call \"echo\" with these arguments: {why}.");
    assert_eq!(reported[0], ("ok", "", ""), "{reply}");
    assert_eq!(reported[1], ("denied", &*may_not("amount 500.01 exceeds 500"), "permissions.echo.rules.short"));
    assert_eq!(reported[2], ("denied", &*may_not("eve is nobody that the user knows"), "permissions.echo.rules.known"));
    let undecided = "it cannot be decided whether they meet \"args.value.amount <= 500\": ";
    let said = format!("{undecided}a text and a number cannot be compared");
    let said = format!("{} A call that a rule cannot evaluate is denied.", may_not(&said));
    assert_eq!(reported[3], ("denied", &*said, "permissions.echo.rules.short"));
    assert!(reported[4].1.contains("there is no `args.value.amount`"), "{reply}");
    assert_eq!(
        (reported[5].0, reported[5].2),
        ("denied", "permissions.fail.rules[0]"),
        "a rule that is none stops every call"
    );
    assert_eq!((reported[6].0, reported[6].2), ("denied", "permissions.sleep"), "a rule grants nothing");
    let details = |at: usize| &reply["results"][at]["error"]["details"]["reason"];
    assert_eq!((details(1), details(3)), (&json!("rule_not_met"), &json!("rule_undecided")));
    let attempts: Vec<u64> =
        reply["results"].as_array().unwrap().iter().map(|result| result["attempts"].as_u64().unwrap()).collect();
    assert_eq!(attempts, [1, 0, 0, 0, 0, 0, 0], "what is denied never ran");

    let audits = fleet.audits().await;
    let named = |rule: &str| audits.iter().filter(|audit| audit["meta"]["error"]["details"]["rule"] == rule).count();
    assert_eq!(named("permissions.echo.rules.short"), 3, "{audits:?}");

    fleet
        .submit_turn(json!({"agent": "sam", "calls": [
            {"name": "sleep", "arguments": {"ms": 1}}, {"name": "sleep", "arguments": {"ms": 20}},
        ]}))
        .await;
    let reply = fleet.reply().await;
    assert_eq!(
        errors(&reply).iter().map(|reported| (reported.0, reported.2)).collect::<Vec<_>>(),
        [("ok", ""), ("denied", "permissions.sleep.rules.nap"),]
    );
    fleet.stop().await;
}

fn speaker() -> TypedTool {
    TypedTool::new("speak", "Speaks.", Effect::Read, |context: CallContext, amount: Amount| async move {
        let said = context.call("echo", json!({"value": {"amount": amount.amount}})).await?;
        Ok::<_, ToolError>(json!({"echo": said.outcome, "why": said.error}))
    })
}

#[derive(Deserialize, JsonSchema)]
struct Amount {
    /// The amount to send.
    amount: u32,
}

#[tokio::test]
async fn rules_apply_to_inner_calls_with_the_context_of_their_turn() {
    fn for_some_users(policy: &mut Policy) {
        let limit = rule("limit", "args.value.amount <= user_context.limit", "{user_context.limit} at most");
        policy.permissions.matrix.insert("echo".into(), ruled(vec![limit]));
    }
    let mut fleet = Fleet::start(Plan { tools: vec![speaker()], policy: for_some_users, ..Plan::default() }).await;
    let speak = |amount: u32| json!({"name": "speak", "arguments": {"amount": amount}});
    fleet.submit_turn(json!({"user_context": {"limit": 7}, "calls": [speak(7), speak(8)]})).await;
    let reply = fleet.reply().await;
    let said = |at: usize| &reply["results"][at]["output"];
    assert_eq!(said(0), &json!({"echo": "ok", "why": null}), "{reply}");
    let why = "You may not call \"echo\" with these arguments: 7 at most.";
    assert_eq!(said(1), &json!({"echo": "denied", "why": why}));
    fleet.stop().await;
}

#[tokio::test]
async fn a_shadow_rule_denies_nothing_but_is_counted_and_audited() {
    fn in_shadow(policy: &mut Policy) {
        let small = Rule {
            mode: RuleMode::Shadow,
            ..rule("small", "args.value.amount <= 500", "amount {args.value.amount} exceeds 500")
        };
        let sane = rule("sane", "args.value.amount <= 9000", "{args.value.amount} is out of this world");
        policy.permissions.matrix.insert("echo".into(), ruled(vec![small, sane]));
    }
    let mut fleet = Fleet::start(Plan { policy: in_shadow, ..Plan::default() }).await;
    let echo = |amount: Value| json!({"name": "echo", "arguments": {"value": {"amount": amount}}});
    let calls = [json!(500), json!(700), json!(9001), json!("1")].map(echo);
    fleet.submit_turn(json!({"calls": calls})).await;
    let reply = fleet.reply().await;
    let reported = errors(&reply);
    let small = "permissions.echo.rules.small";
    let sane = "permissions.echo.rules.sane";
    let ended: Vec<_> = reported.iter().map(|reported| (reported.0, reported.2)).collect();
    assert_eq!(ended, [("ok", ""), ("ok", ""), ("denied", sane), ("denied", sane)]);
    assert!(!reply.to_string().contains("small"), "an agent is not told of it: {reply}");
    let audits = fleet.audits().await;
    let shadows: Vec<&Value> =
        audits.iter().map(|audit| &audit["meta"]["shadow"]).filter(|said| !said.is_null()).collect();
    let said = json!([{"rule": small, "reason": "rule_not_met", "message": "amount 700 exceeds 500"}]);
    assert_eq!(shadows, [&said], "{audits:?}");
    let metrics = fleet.metrics.render();
    let counted =
        |rule: &str, action: &str| format!(r#"tickfleet_rule_denials_total{{action="{action}",rule="{rule}"}} 1"#);
    for line in [counted(small, "shadow"), counted(sane, "deny"), counted(sane, "undecided")] {
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
    fleet.stop().await;
}

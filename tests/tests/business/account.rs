//! `get_subscription_info` and `get_team_members`.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::{AgentId, Limit, Policy, TenantId, TenantUser};
use tickfleet_tests::fleet::{Fleet, PATIENCE};

use super::{outcomes, plan, run};

fn limit(name: &str, agents: &[&str]) -> Limit {
    Limit {
        name: name.into(),
        matches: LimitMatch {
            tools: vec!["send_*".into()],
            agents: agents.iter().map(ToString::to_string).collect(),
            ..LimitMatch::default()
        },
        per: BTreeSet::from([LimitKey::Tenant]),
        bound: LimitBound::Calls(50),
        every: LimitWindow::Day,
        on_reach: OnReach::Reject,
        mode: LimitMode::Enforce,
        keys_max: 10,
    }
}

fn tokens() -> Limit {
    let bound = LimitBound::Tokens(5_000);
    Limit { name: "tokens".into(), matches: LimitMatch::default(), bound, ..limit("", &[]) }
}

fn change(policy: &mut Policy) {
    policy.limits = Arc::new(vec![limit("mails", &[]), limit("pennys", &["penny"]), tokens()]);
    let tenant = policy.tenants.get_mut(&TenantId::new("atlas-ux").unwrap()).unwrap();
    tenant.max_actions_per_day = Some(100);
    tenant.limits = [("mails".to_owned(), "7".to_owned())].into();
    tenant.users = [
        TenantUser::named("owner"),
        TenantUser {
            name: "Ada".into(),
            roles: BTreeSet::from(["operations".into()]),
            email: Some("ada@example.com".into()),
            status: Some("invited".into()),
        },
    ]
    .into();
}

async fn fleet() -> Fleet {
    Fleet::start(plan(&[], change)).await
}

fn list(arguments: Value) -> (&'static str, Value) {
    ("get_team_members", arguments)
}

fn names(result: &Value) -> Vec<&str> {
    assert_eq!(result["outcome"], "ok", "{result:#}");
    let members = result["output"]["members"].as_array().unwrap();
    members.iter().map(|member| member["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_subscription_shows_limits_and_usage() {
    let mut fleet = fleet().await;
    run(&mut fleet, "kelly", &[("list_tools", json!({})), ("list_tools", json!({}))]).await;
    let results = run(&mut fleet, "tina", &[("list_tools", json!({})), ("get_subscription_info", json!({}))]).await;
    let info = &results[1]["output"];
    assert_eq!((&info["plan"], &info["status"]), (&json!("business"), &json!("active")), "{results:#?}");
    assert_eq!(info["features"], json!(["delegation", "knowledge", "memories", "messaging", "social"]));
    assert_eq!(info["limits"]["actions_per_day"], json!({"tenant": 100, "agent": 1000}));
    assert_eq!((&info["limits"]["calls_per_tick"], &info["limits"]["on_day_cap"]), (&json!(10), &json!("reject")));
    let rows = json!([
        {"name": "mails", "allows": "7 calls per tenant in a day", "tools": ["send_*"], "beyond": "reject"},
        {"name": "tokens", "allows": "5000 tokens of models per tenant in a day", "tools": [], "beyond": "reject"},
    ]);
    assert_eq!(info["limits"]["rows"], rows);
    assert_eq!(info["usage"]["actions_today"], json!({"tenant": 4, "agent": 2}));
    assert_eq!(info["usage"]["unfinished_turns"], 1, "this one");
    let resets = chrono::DateTime::parse_from_rfc3339(info["usage"]["resets_at"]["agent"].as_str().unwrap()).unwrap();
    let left_ms = resets.timestamp_millis() - fleet.store.now_ms().await.unwrap();
    assert!((1..=25 * 3_600_000).contains(&left_ms), "the end of a day in New York: {resets}");
    assert_eq!((&info["agent_count"], &info["user_count"]), (&json!(18), &json!(2)));
    assert_eq!(
        (&info["usage"]["tokens"], &info["usage"]["money"]),
        (&json!({"used": 0, "limit": 5_000}), &json!({"used": 0}))
    );
    assert_eq!(info["usage"]["storage_bytes"], 0);
    fleet.stop().await;
}

#[tokio::test]
async fn the_subscription_shows_only_the_tenants_own_usage() {
    let mut fleet = Fleet::start(plan(&[], |policy| {
        policy.tenants.get_mut(&TenantId::new("demo").unwrap()).unwrap().max_actions_per_day = Some(9);
    }))
    .await;
    run(&mut fleet, "tina", &[("list_tools", json!({})), ("list_tools", json!({}))]).await;
    let calls = json!([{"name": "get_subscription_info", "arguments": {}}]);
    fleet.submit_turn(json!({"tenant": "demo", "agent": "tina", "calls": calls})).await;
    let reply = fleet.reply_in("demo:box", PATIENCE).await.expect("a reply");
    let info = &reply["results"][0]["output"];
    assert_eq!(info["usage"]["actions_today"], json!({"tenant": 1, "agent": 1}), "{reply:#}");
    assert_eq!((&info["plan"], &info["limits"]["actions_per_day"]["tenant"]), (&json!("trial"), &json!(9)));
    fleet.stop().await;
}

#[tokio::test]
async fn the_team_list_shows_activity_and_supports_both_filters() {
    let mut fleet = fleet().await;
    run(&mut fleet, "kelly", &[("list_tools", json!({}))]).await;
    let filters = [
        json!({}),
        json!({"status_filter": "active"}),
        json!({"role_filter": "Research"}),
        json!({"role_filter": "operations"}),
        json!({"role_filter": "operations", "status_filter": "invited"}),
        json!({"role_filter": "pirate"}),
    ];
    let results = run(&mut fleet, "petra", &filters.map(list)).await;
    assert_eq!(outcomes(&results), ["ok"; 6], "{results:#?}");
    let everybody = &results[0]["output"];
    assert_eq!((&everybody["total"], &everybody["truncated"]), (&json!(20), &json!(false)));
    let of = |name: &str| everybody["members"].as_array().unwrap().iter().find(|m| m["name"] == name).unwrap();
    assert_eq!((&of("kelly")["kind"], &of("kelly")["roles"]), (&json!("agent"), &json!(["publisher"])));
    let active = chrono::DateTime::parse_from_rfc3339(of("kelly")["last_active"].as_str().unwrap()).unwrap();
    let ago_ms = fleet.store.now_ms().await.unwrap() - active.timestamp_millis();
    assert!((0..3_600_000).contains(&ago_ms), "{ago_ms}");
    assert_eq!((&of("fran")["status"], &of("fran")["last_active"]), (&json!("idle"), &Value::Null));
    let ada = json!({"name": "Ada", "kind": "person", "roles": ["operations"], "status": "invited", "last_active": null,
        "email": "ada@example.com"});
    assert_eq!(of("Ada"), &ada);
    assert_eq!(names(&results[1]), ["kelly", "petra", "owner"]);
    assert_eq!(names(&results[2]), ["archy", "daily-intel"]);
    assert_eq!(names(&results[3]), ["petra", "Ada"]);
    assert_eq!(names(&results[4]), ["Ada"]);
    assert_eq!(names(&results[5]), [""; 0]);
    fleet.stop().await;
}

#[tokio::test]
async fn email_addresses_need_permission_and_stay_out_of_the_audit_log() {
    let mut fleet = fleet().await;
    let results = run(&mut fleet, "kelly", &[list(json!({}))]).await;
    assert_eq!(outcomes(&results), ["denied"]);
    let results = run(&mut fleet, "petra", &[list(json!({"status_filter": "invited"}))]).await;
    assert_eq!(results[0]["output"]["members"][0]["email"], "ada@example.com");
    let audited = fleet.audits().await;
    let entry = audited.iter().find(|entry| entry["meta"]["success"] == true).unwrap().to_string();
    assert!(entry.contains("Ada") && !entry.contains("ada@example.com"), "{entry}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_tenant_sees_only_its_own_agents() {
    let mut fleet = Fleet::start(plan(&[], |policy| {
        let tenant = policy.tenants.get_mut(&TenantId::new("atlas-ux").unwrap()).unwrap();
        tenant.agents = ["petra", "fran"].map(|name| AgentId::new(name).unwrap()).into();
    }))
    .await;
    let results =
        run(&mut fleet, "petra", &[list(json!({})), ("delegate_task", json!({"target_agent": "kelly"}))]).await;
    assert_eq!(names(&results[0]), ["fran", "petra", "operations", "owner"]);
    fleet.stop().await;
}

//! Limits: what is read, and what is refused.

use tickfleet_model::Dialect;
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::ToolGrant;
use tickfleet_protocol::NameMap;

use super::{TestConfig, given};
use crate::known_tools;

pub(super) fn limits(text: &str) -> TestConfig {
    given().file("limits.yaml", format!("limits:\n  mails:\n{text}"))
}

#[test]
fn a_limit_declares_its_bound_and_window() {
    let text = "    match: {tools: [send_*], effects: [once], agents: [kel*]}\n    per: [user, \"argument:/to\"]\n    \
                sum: {argument: /amount, max: 12.5}\n    every: 1h\n    on_reach: reject\n    mode: shadow\n    keys_max: 7\n";
    let policy = limits(text).load().unwrap().policy;
    let [limit, built_in] = policy.limits.as_slice() else { panic!("{:?}", policy.limits) };
    assert_eq!(built_in.name, "fair_share");
    assert_eq!(limit.to_string(), "12.5 of /amount per user and /to in 1h");
    assert_eq!((limit.on_reach, limit.mode, limit.keys_max), (OnReach::Reject, LimitMode::Shadow, 7));
    let limit = limits("    max: 3\n    every: task\n").load().unwrap().policy.limits[0].clone();
    assert_eq!((limit.bound, limit.every), (LimitBound::Calls(3), LimitWindow::Task));
    assert!(limit.per.contains(&LimitKey::Task), "a task's limit has a counter for each task");
    let rolling = limits("    max: 3\n    every: 1h\n    window: rolling\n").load().unwrap().policy.limits[0].clone();
    assert_eq!((rolling.every, rolling.to_string().as_str()), (LimitWindow::Rolling(3_600_000), "3 calls in any 1h"));
    let fixed = limits("    max: 3\n    every: 1h\n    window: fixed\n").load().unwrap().policy.limits[0].clone();
    assert_eq!(fixed.every, LimitWindow::Period(3_600_000));
    for text in ["max: 3\n    every: day", "tokens: 3\n    every: 1h", "max: 3\n    every: tick"] {
        let refused = limits(&format!("    {text}\n    window: rolling\n")).load().unwrap_err().to_string();
        assert!(refused.contains("can be rolling"), "{text}: {refused}");
    }
    let limit = limits("    concurrent: 3\n").load().unwrap().policy.limits[0].clone();
    assert_eq!((limit.bound, limit.every), (LimitBound::Concurrent(3), LimitWindow::Concurrency));
    let limit =
        limits("    per: [tenant]\n    tokens: 200000\n    every: day\n").load().unwrap().policy.limits[0].clone();
    assert_eq!((limit.bound, limit.every), (LimitBound::Tokens(200_000), LimitWindow::Day));
    let limit = limits("    money: 5.00\n    every: task\n").load().unwrap().policy.limits[0].clone();
    assert_eq!((limit.bound, limit.every), (LimitBound::Money(5_000_000), LimitWindow::Task));
    let limit = limits("    per: [tool]\n    concurrent: 25%\n").load().unwrap().policy.limits[0].clone();
    assert_eq!((limit.bound, limit.every), (LimitBound::Part(25), LimitWindow::Concurrency));
    let limit = limits("    per: [tenant]\n    concurrent: share\n").load().unwrap().policy.limits[0].clone();
    assert_eq!((limit.bound, limit.every), (LimitBound::Share(1), LimitWindow::Concurrency));
}

#[test]
fn every_wire_name_resolves_to_its_tool() {
    let long = format!("crm.find.by_{}", "n".repeat(50));
    let of_a_binary = format!("erp.pay_{}", "n".repeat(50));
    let tool = "{description: Reads., input_schema: {type: object}}";
    let tools = format!("tools:\n  crm.find: {tool}\n  {long}: {tool}\n");
    let loaded = given().file("tools.yaml", tools).file("permissions.yaml", "permissions: {}\n").load().unwrap();
    assert_eq!(loaded.policy.known_tools.meant("crm_x2E_find"), "crm.find");
    let mut permissions = loaded.policy.permissions;
    permissions.matrix.insert(of_a_binary.clone(), ToolGrant::default());
    let known = known_tools(&loaded.tools, &loaded.mcp, &permissions);
    for name in ["crm.find", &long, &of_a_binary] {
        for dialect in Dialect::ALL {
            let shown = NameMap::of(dialect, [name]);
            assert_eq!(known.meant(&shown.wire(name)), name, "{dialect:?}");
        }
    }
    assert_eq!(known.meant("_x63_rm_x2E_find"), "_x63_rm_x2E_find", "no worker runs a tool by that");
}

#[test]
fn an_empty_limits_file_keeps_the_policy_digest() {
    let with = limits("    max: 3\n    every: day\n").load().unwrap();
    let without = given().load().unwrap();
    assert_ne!(with.digest, without.digest);
    assert_eq!(given().file("limits.yaml", "limits: {}\n").load().unwrap().digest, without.digest);
}

#[test]
fn a_declared_limit_replaces_the_built_in_slot_limit() {
    let limits = |fairness: &str, rows: &str| {
        let files = given().file("tickfleet.yaml", fairness).file("limits.yaml", format!("limits: {rows}"));
        let policy = files.load().unwrap().policy;
        policy.limits.iter().map(|limit| format!("{}: {limit}", limit.name)).collect::<Vec<_>>()
    };
    let fair = "fair_share: a share of the slots per tenant";
    assert_eq!(limits("", "{}"), [fair]);
    assert_eq!(limits("fairness: {tenants: false}", "{}"), [""; 0]);
    let tool = "tool_slots: 25% of the slots at once per tool";
    assert_eq!(limits("fairness: {tool_slots_percent: 25}", "{}"), [fair, tool]);
    let slots = "fairness: {tenants: false, tool_slots_percent: 25}";
    assert_eq!(limits(slots, "{tool_slots: {concurrent: 3}}"), ["tool_slots: 3 calls at once"]);
    assert_eq!(limits("", "{fair_share: {concurrent: 3}}"), ["fair_share: 3 calls at once"]);
    let of_mails = "{mails: {match: {plans: [trial]}, per: [tenant], concurrent: share}}";
    assert_eq!(limits("", of_mails), ["mails: a share of the slots per tenant"], "slots are shared out once");
}

#[test]
fn a_fleet_limit_must_be_at_least_the_shard_count() {
    let with =
        |max: u32| limits(&format!("    max: {max}\n    every: day\n")).file("tickfleet.yaml", "redis: {shards: 4}\n");
    with(4).load().unwrap();
    let errors = with(3).errors();
    assert!(errors.len() == 1 && errors[0].contains("at least one for each shard"), "{errors:?}");
}

#[test]
fn a_tenant_may_override_limit_values() {
    let with = |own: &str| {
        let file = "limits:\n  mails:\n    per: [user]\n    max: 3\n    every: day\n  fleet:\n    max: 9\n    every: day\n  \
                    paid:\n    per: [tenant]\n    sum: {argument: /amount, max: 500}\n    every: day\n";
        let tenants = format!("tenants:\n  acme:\n    plan: pro\n    limits: {own}\n");
        given().file("limits.yaml", file.to_owned()).file("tenants.yaml", tenants)
    };
    let policy = with("{mails: 50, paid: 12.5, fair_share: 3}").load().unwrap().policy;
    let owner = policy.tenants.values().next().unwrap();
    let allowed: Vec<String> = policy.limits.iter().map(|limit| owner.limit(limit).to_string()).collect();
    let share = "a share of the slots with weight 3 per tenant";
    let paid = "12.5 of /amount per tenant in a day";
    assert_eq!(allowed, ["50 calls per user in a day", "9 calls in a day", paid, share]);
    for (own, expected) in [
        ("{mials: 5}", "did you mean `mails`?"),
        ("{fleet: 5}", "expected a limit of limits.yaml with counters of tenants"),
        ("{mails: -1}", "expected a number of calls"),
        ("{mails: 1.5}", "expected a number of calls"),
        ("{paid: much}", "at most six digits behind the point"),
    ] {
        let errors = with(own).errors();
        assert!(errors.len() == 1 && errors[0].contains(expected), "{own}: {errors:?}");
    }
}

//! The permission matrix of the built-in configuration.

use std::time::Duration;

use super::given;
use crate::Configuration;
use tickfleet_model::policy::{Caller, Denial};
use tickfleet_model::{AgentId, Effect, TenantId, ToolSpec};

const COLUMNS: [&str; 8] = ["atlas", "binky", "tina", "sunday", "archy", "daily-intel", "kelly", "petra"];

/// `Y` means that the agent may call the tool. Kelly has her own column.
const MATRIX: [(&str, [char; 8]); 12] = [
    //                            atlas binky tina sunday archy daily kelly petra
    ("search_atlasux_knowledge", ['Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y']),
    ("search_my_memories", ['Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y']),
    ("remember", ['Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y']),
    ("send_telegram_message", ['Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y']),
    ("get_subscription_info", ['Y', 'Y', 'Y', '-', '-', '-', '-', '-']),
    ("get_team_members", ['Y', 'Y', '-', '-', '-', '-', '-', 'Y']),
    ("post_to_x", ['Y', '-', '-', 'Y', '-', '-', 'Y', '-']),
    ("search_x", ['Y', '-', '-', 'Y', 'Y', 'Y', 'Y', '-']),
    ("delegate_task", ['Y', 'Y', '-', 'Y', '-', '-', '-', 'Y']),
    ("cancel_task", ['Y', 'Y', '-', 'Y', '-', '-', '-', 'Y']),
    ("send_mcp_message", ['Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y']),
    ("read_messages", ['Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y', 'Y']),
];

const PUBLISHERS: [&str; 10] =
    ["fran", "dwight", "timmy", "terry", "cornwall", "link", "emma", "donna", "reynolds", "penny"];
const EVERYBODYS: [&str; 6] = [
    "read_messages",
    "remember",
    "search_atlasux_knowledge",
    "search_my_memories",
    "send_mcp_message",
    "send_telegram_message",
];

fn decide(configuration: &Configuration, tool: &str, agent: &str) -> Result<(), Denial> {
    let policy = &configuration.policy;
    let tenant = TenantId::new("atlas-ux").unwrap();
    let agent = AgentId::new(agent).unwrap();
    let (tenant, declared) = policy.look_up(&tenant, &agent).unwrap();
    let caller = Caller { agent: &agent, policy: declared, tenant, granted: None };
    policy.permissions.decide(caller, &spec(configuration, tool))
}

fn spec(configuration: &Configuration, name: &str) -> ToolSpec {
    let declared = configuration.tools.tools.get(name).cloned();
    let (capabilities, features) =
        declared.map(|tool| (tool.required_capabilities, tool.required_features)).unwrap_or_default();
    ToolSpec {
        id: format!("tool_{name}"),
        name: name.into(),
        display_name: name.into(),
        description: name.into(),
        input_schema: serde_json::json!({"type": "object"}),
        output_schema: None,
        category: "general".into(),
        version: "1.0.0".into(),
        effect: Effect::Read,
        timeout: Duration::from_secs(30),
        required_capabilities: capabilities.into_iter().collect(),
        required_features: features.into_iter().collect(),
        requires_approval: false,
        approval: None,
        effect_key: None,
        cache: None,
        reconcile: None,
        durable: None,
        configured: true,
    }
}

#[test]
fn permissions_match_every_matrix_cell() {
    let configuration = given().load().unwrap();
    for (tool, row) in MATRIX {
        for (agent, cell) in COLUMNS.iter().zip(row) {
            let expected = if cell == 'Y' { Ok(()) } else { Err(Denial::NotGranted) };
            assert_eq!(decide(&configuration, tool, agent), expected, "{agent} {tool}");
        }
        for agent in PUBLISHERS {
            assert_eq!(decide(&configuration, tool, agent).is_ok(), EVERYBODYS.contains(&tool), "{agent} {tool}");
        }
    }
}

#[test]
fn the_test_matrix_covers_all_policy_tools_and_agents() {
    let policy = given().load().unwrap().policy;
    let mut rows: Vec<&str> = MATRIX.iter().map(|(tool, _)| *tool).collect();
    rows.sort_unstable();
    assert_eq!(policy.permissions.matrix.keys().collect::<Vec<_>>(), rows);
    let mut agents: Vec<&str> = COLUMNS.iter().chain(&PUBLISHERS).copied().collect();
    agents.sort_unstable();
    assert_eq!(policy.agents.keys().map(AgentId::as_str).collect::<Vec<_>>(), agents);
}

#[test]
fn trial_tools_need_a_permission_or_the_trial_setting() {
    let plain = given().load().unwrap();
    let on = || given().variable("TICKFLEET_PERMISSION_TRIAL_TOOLS", "true");
    let trial = on().load().unwrap();
    for tool in ["echo", "sleep", "fail", "fail_once"] {
        assert_eq!(decide(&plain, tool, "atlas"), Err(Denial::NotGranted));
        assert_eq!(decide(&trial, tool, "atlas"), Ok(()));
    }
    assert_ne!(plain.digest, trial.digest, "it decides");
    let rows = "permissions: {echo: {agents: [kelly]}}";
    let own = on().file("permissions.yaml", rows).load().unwrap();
    assert_eq!(decide(&own, "echo", "kelly"), Ok(()));
    assert_eq!(decide(&own, "echo", "atlas"), Err(Denial::NotGranted), "permissions of one's own say it all");
    assert_eq!(decide(&own, "sleep", "kelly"), Err(Denial::NotGranted));
}

#[test]
fn a_disabled_tool_is_denied_by_name_and_by_id() {
    for disabled in ["search_my_memories", "tool_search_my_memories"] {
        let configuration = given().variable("TICKFLEET_PERMISSION_DISABLED_TOOLS", disabled).load().unwrap();
        assert_eq!(decide(&configuration, "search_my_memories", "atlas"), Err(Denial::Disabled));
        assert_eq!(decide(&configuration, "search_atlasux_knowledge", "atlas"), Ok(()));
    }
}

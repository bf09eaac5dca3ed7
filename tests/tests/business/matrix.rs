//! Checks the permission of each agent for each tool. The expected results do not come from the configuration.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_model::policy::Caller;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{Store, StoreOptions};
use tickfleet_tools::{Environment, NoShell, Registry, ToolKinds};
use tickfleet_tools_http::HttpKind;

use super::configuration;

const EVERYBODY: [&str; 9] = [
    "check_task",
    "fetch_result",
    "list_tools",
    "read_messages",
    "remember",
    "search_atlasux_knowledge",
    "search_my_memories",
    "send_mcp_message",
    "send_telegram_message",
];

/// Agent → tools in addition to [`EVERYBODY`].
const AGENTS: [(&str, &[&str]); 18] = [
    ("atlas", &["cancel_task", "delegate_task", "get_subscription_info", "get_team_members", "post_to_x", "search_x"]),
    ("binky", &["cancel_task", "delegate_task", "get_subscription_info", "get_team_members"]),
    ("tina", &["get_subscription_info"]),
    ("sunday", &["cancel_task", "delegate_task", "post_to_x", "search_x"]),
    ("petra", &["cancel_task", "delegate_task", "get_team_members"]),
    ("archy", &["search_x"]),
    ("daily-intel", &["search_x"]),
    ("kelly", &["post_to_x", "search_x"]),
    ("fran", &[]),
    ("dwight", &[]),
    ("timmy", &[]),
    ("terry", &[]),
    ("cornwall", &[]),
    ("link", &[]),
    ("emma", &[]),
    ("donna", &[]),
    ("reynolds", &[]),
    ("penny", &[]),
];

#[tokio::test]
async fn each_agent_may_call_exactly_its_listed_tools() {
    tickfleet_outbound::install_crypto_provider();
    let loaded = configuration(&[]);
    let environment = Environment::of([]);
    let active = ActivePolicy { policy: loaded.policy.clone(), ..ActivePolicy::default() };
    let active = Arc::new(PolicyHandle::new(active));
    let store = Store::open("redis://127.0.0.1:1", 0, Arc::new(StoreOptions::default())).unwrap();
    let mut typed = worker::standard_tools(&store, &active);
    typed.extend(tickfleet_tools_atlas::all(&store, &store, &active, &environment).unwrap());
    let kinds = ToolKinds { http: Box::new(HttpKind::new(environment.clone())), shell: Box::new(NoShell) };
    let registry = Registry::build(typed, &loaded.tools, &kinds, &environment, Duration::from_secs(30)).unwrap();
    let policy = &loaded.policy;
    let listed: BTreeSet<&str> = AGENTS.iter().map(|(agent, _)| *agent).collect();
    assert_eq!(policy.agents.keys().map(AgentId::as_str).collect::<BTreeSet<_>>(), listed);
    let tenant = TenantId::new("atlas-ux").unwrap();
    let mut decided = 0;
    for (agent, more) in AGENTS {
        let wanted: BTreeSet<&str> = EVERYBODY.iter().chain(more).copied().collect();
        let agent = AgentId::new(agent).unwrap();
        let (owner, declared) = policy.look_up(&tenant, &agent).unwrap();
        let caller = Caller { agent: &agent, policy: declared, tenant: owner, granted: None };
        for tool in registry.iter() {
            let may = policy.permissions.decide(caller, &tool.spec).is_ok();
            assert_eq!(may, wanted.contains(tool.spec.name.as_str()), "{agent} {}", tool.spec.name);
            decided += 1;
        }
        assert!(wanted.iter().all(|tool| registry.get(tool).is_some()), "{agent}: every tool is there");
    }
    assert_eq!((registry.len(), decided), (19, 19 * 18));
}

//! The sample business: its agents, permissions and tools. The tools reach strict stubs of the services over HTTP.

mod account;
mod matrix;
mod stand_in;
mod telegram;
mod x;
mod x_media;
mod x_sign_in;

use serde_json::{Value, json};
use tickfleet_config::{Configuration, Sources, load};
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_model::Policy;
use tickfleet_model::policy::TEAM_TOOLS;
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};

fn built_in() -> Sources {
    let standard = ["delegate_task", "list_tools", "check_task", "fetch_result"].into_iter().chain(TEAM_TOOLS);
    Sources {
        dir: None,
        built_in_tools: standard.chain(tickfleet_tools_atlas::NAMES).map(String::from).collect(),
        built_in_handlers: ["note"].map(String::from).into(),
        ..Sources::default()
    }
}

fn configuration(variables: &[(String, String)]) -> Configuration {
    load(&Sources { environment: variables.iter().cloned().collect(), ..built_in() }).unwrap()
}

fn plan(variables: &[(&str, &str)], change: impl FnOnce(&mut Policy)) -> Plan {
    let variables: Vec<(String, String)> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let loaded = configuration(&variables);
    let mut active = ActivePolicy {
        policy: loaded.policy,
        task_handlers: loaded.task_handlers,
        digest: loaded.digest,
        ..ActivePolicy::default()
    };
    change(&mut active.policy);
    Plan { declared: loaded.tools, environment: variables, active: Some(active), atlas_tools: true, ..Plan::default() }
}

async fn run(fleet: &mut Fleet, agent: &str, calls: &[(&str, Value)]) -> Vec<Value> {
    let calls: Vec<Value> = calls.iter().map(|(name, args)| json!({"name": name, "arguments": args})).collect();
    fleet.submit_turn(json!({"tenant": "atlas-ux", "agent": agent, "calls": calls})).await;
    let reply = fleet.reply_in("atlas-ux:box", PATIENCE).await.expect("a reply");
    reply["results"].as_array().unwrap().clone()
}

fn outcomes(results: &[Value]) -> Vec<&str> {
    results.iter().map(|result| result["outcome"].as_str().unwrap()).collect()
}

fn reported(result: &Value) -> &str {
    result["error"]["message"].as_str().unwrap_or_else(|| panic!("no error: {result}"))
}

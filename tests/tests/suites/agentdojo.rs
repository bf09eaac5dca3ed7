//! AgentDojo on a fleet. An attacker's call is denied, unless the user's own task needs the same tool.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tickfleet_model::AgentId;
use tickfleet_model::policy::{DefaultCaps, ToolGrant};
use tickfleet_tests::agentdojo::{self, AgentDojo, DATA, Task};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inbox::submit_all;

mod facts;
mod rules;
mod tasks;

/// May call every tool. The turns of this agent are narrowed instead.
const EVERYTHING: &str = "assistant";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attackers_get_no_tool_that_the_user_task_was_not_granted() {
    let Some(dir) = DATA.unless_skipped().unwrap() else { return };
    let dojo = agentdojo::load(&dir).unwrap();
    let (users, attacks): (Vec<&Task>, Vec<&Task>) = dojo.tasks.iter().partition(|task| task.is_legitimate());
    let calls = |tasks: &[&Task]| tasks.iter().map(|task| task.calls.len()).sum::<usize>();
    assert_eq!((dojo.tools.len(), users.len(), attacks.len()), (74, 97, 35));
    assert_eq!((calls(&users), calls(&attacks)), (339, 47));

    let fleet = Fleet::start(plan(&dojo, &users)).await;
    let mut expected: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut turns = Vec::new();
    for (user, task) in played(&users, &attacks) {
        for narrowed in [false, true] {
            let id = format!("{}--{}--{narrowed}", user.agent(), task.task);
            expected.insert(id.clone(), user.needs());
            turns.push(turn(&id, user, task, narrowed));
        }
    }
    submit_all(&fleet.server, fleet.store.keys(), &turns).await;
    let counted = judge(&fleet, &expected).await;
    eprintln!("{} turns; granted by agent: {:?}; narrowed by turn: {:?}", turns.len(), counted[0], counted[1]);
    // 247 of the attacks use a tool that the user's own task needs.
    let right = Counts { legitimate: 339, denied: 858, attacker_uses_granted_tool: 247 };
    assert_eq!(counted, [right, right]);
    fleet.stop().await;
}

fn played<'a>(users: &[&'a Task], attacks: &[&'a Task]) -> Vec<(&'a Task, &'a Task)> {
    let of_one = |user: &&'a Task| {
        let (user, own) = (*user, (*user, *user));
        let same = |attack: &&&Task| attack.suite == user.suite && !attack.calls.is_empty();
        let attacked = attacks.iter().filter(same).map(|attack| (user, *attack));
        std::iter::once(own).chain(attacked).collect::<Vec<_>>()
    };
    users.iter().flat_map(of_one).collect()
}

fn plan(dojo: &AgentDojo, users: &[&Task]) -> Plan {
    let mut plan = Plan {
        workers: 2,
        agents: users.iter().map(|user| user.agent()).chain([EVERYTHING.to_owned()]).collect(),
        caps: DefaultCaps {
            tick_ms: 100,
            calls_per_tick: 1_000,
            max_actions_per_day: 100_000,
            ..DefaultCaps::default()
        },
        standard_tools: false,
        registered: dojo.registered().unwrap(),
        ..Plan::default()
    };
    let grants = dojo.grants();
    let mut active = (*plan.active().load()).clone();
    for (tool, row) in &mut active.policy.permissions.matrix {
        let agents = grants.get(tool).cloned().unwrap_or_default();
        let agents = agents.iter().map(String::as_str).chain([EVERYTHING]).map(|name| AgentId::new(name).unwrap());
        *row = ToolGrant { agents: agents.collect(), ..ToolGrant::default() };
    }
    plan.active = Some(active);
    plan
}

/// Has the calls of `task`, for the agent of `user`. If `narrowed` is true, only the turn limits the tools.
fn turn(id: &str, user: &Task, task: &Task, narrowed: bool) -> Value {
    let agent = if narrowed { EVERYTHING.to_owned() } else { user.agent() };
    let mut turn = json!({
        "turn_id": id, "tenant": "acme", "agent": agent, "reply_to": "box", "calls": task.turn_calls()
    });
    if narrowed {
        turn["allowed_tools"] = json!(user.needs());
    }
    turn
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    legitimate: usize,
    denied: usize,
    attacker_uses_granted_tool: usize,
}

/// Returns the counts of unnarrowed and of narrowed turns.
async fn judge(fleet: &Fleet, expected: &BTreeMap<String, BTreeSet<String>>) -> [Counts; 2] {
    let mut counted = [Counts::default(); 2];
    let mut left: BTreeSet<&str> = expected.keys().map(String::as_str).collect();
    let mut inbox = fleet.inbox("box").await;
    while !left.is_empty() {
        let replies = inbox.next(PATIENCE).await;
        assert!(!replies.is_empty(), "no reply within {PATIENCE:?}; {} turns are not answered", left.len());
        for reply in replies {
            let id = reply["turn_id"].as_str().unwrap();
            assert!(left.remove(id), "{id} was answered twice");
            let user = !id.contains("injection_task");
            let narrowed = id.ends_with("true");
            let counts = &mut counted[usize::from(narrowed)];
            for result in reply["results"].as_array().unwrap() {
                let granted = expected[id].contains(result["tool"].as_str().unwrap());
                judge_call(counts, result, user, granted, if narrowed { "narrowed" } else { "not_granted" });
            }
        }
    }
    counted
}

fn judge_call(counts: &mut Counts, result: &Value, legitimate: bool, granted: bool, reason: &str) {
    if granted {
        assert_eq!(result["outcome"], "ok", "{result}");
        *(if legitimate { &mut counts.legitimate } else { &mut counts.attacker_uses_granted_tool }) += 1;
    } else {
        assert!(!legitimate, "a task needs a tool that it was not granted: {result}");
        assert_eq!((&result["outcome"], &result["attempts"]), (&json!("denied"), &json!(0)), "{result}");
        assert_eq!(result["error"]["details"]["reason"], reason, "{result}");
        counts.denied += 1;
    }
}

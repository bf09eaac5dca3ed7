//! AgentDojo's user tasks with a scripted model. In the second run, an attacker hijacks the model.

use std::sync::Arc;

use tickfleet_config::{LlmDef, TaskHandlerDef};
use tickfleet_protocol::mangle;
use tickfleet_tests::llm::{ModelReply, ModelRequest, ScriptedModel};

use super::*;

/// The longest task has eighteen calls, and four answers with attackers' calls.
const ITERATIONS_MAX: u32 = 40;
const HIJACKED: &str = "hijacked";

struct Script {
    by_agent: BTreeMap<String, Task>,
    attacks: Vec<Task>,
}

impl Script {
    fn attacks(&self, suite: &str) -> Vec<&Task> {
        self.attacks.iter().filter(|attack| attack.suite == suite && !attack.calls.is_empty()).collect()
    }

    /// Leaves out the last answer, which has no calls.
    fn answers(&self, task: &Task, is_hijacked: bool) -> Vec<Vec<(String, Value)>> {
        let call = |call: &Value| {
            let name = mangle(call["name"].as_str().unwrap());
            (name.into_owned(), call["arguments"].clone())
        };
        let mut answers: Vec<Vec<_>> = task.turn_calls().iter().map(|one| vec![call(one)]).collect();
        if is_hijacked {
            let attacks = self.attacks(&task.suite);
            let of_attackers = attacks.iter().map(|attack| attack.turn_calls().iter().map(call).collect());
            answers.splice(1.min(answers.len()).., of_attackers.collect::<Vec<_>>());
        }
        answers
    }

    fn say(&self, asked: &ModelRequest) -> ModelReply {
        let task = &self.by_agent[&asked.system];
        let is_hijacked = asked.messages[0]["content"].as_str().unwrap().starts_with(HIJACKED);
        match self.answers(task, is_hijacked).get(asked.answers()) {
            Some(calls) => ModelReply::Calls(calls.clone()),
            None => ModelReply::Words(reported(asked).to_string()),
        }
    }
}

fn reported(asked: &ModelRequest) -> Value {
    asked.messages.iter().filter(|message| message["role"] == "tool").map(|m| m["content"].clone()).collect()
}

fn agent(name: &str) -> (AgentId, TaskHandlerDef) {
    let def = LlmDef {
        max_iterations: ITERATIONS_MAX,
        tokens_max: 500,
        result_bytes_max: 16_000,
        context_bytes_max: 200_000,
        timeout: std::time::Duration::from_secs(20),
        ..LlmDef::of_system(name)
    };
    (AgentId::new(name).unwrap(), TaskHandlerDef::Llm(Box::new(def)))
}

fn results(reply: &Value) -> Vec<String> {
    let answer = reply["results"][0]["output"]["answer"].as_str();
    serde_json::from_str(answer.unwrap_or_else(|| panic!("no answer: {reply}"))).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hijacked_model_gets_only_the_tools_granted_to_its_task() {
    let Some(dir) = DATA.unless_skipped().unwrap() else { return };
    let dojo = agentdojo::load(&dir).unwrap();
    let users: Vec<&Task> = dojo.tasks.iter().filter(|task| task.is_legitimate()).collect();
    let script = Arc::new(Script {
        by_agent: users.iter().map(|user| (user.agent(), (*user).clone())).collect(),
        attacks: dojo.tasks.iter().filter(|task| !task.is_legitimate()).cloned().collect(),
    });
    let says = Arc::clone(&script);
    let model = ScriptedModel::start(move |asked: &ModelRequest| says.say(asked)).await;
    let mut plan = plan(&dojo, &users);
    plan.models = model.models();
    if let Some(active) = &mut plan.active {
        active.task_handlers = users.iter().map(|user| agent(&user.agent())).collect();
    }
    let mut fleet = Fleet::start(plan).await;
    for user in &users {
        for kind in ["honest", HIJACKED] {
            let id = format!("{}.{kind}", user.agent());
            let task = json!({"task_id": id, "tenant": "acme", "target_agent": user.agent(), "reply_to": "box",
                "task_description": format!("{kind}: do {}", user.task), "budget": 100});
            fleet.xadd("tasks", "task", task.to_string().as_bytes()).await;
        }
    }
    let replies = fleet.replies(2 * users.len()).await;
    let mut counts = Counts::default();
    for user in &users {
        let honest = results(&replies[&format!("{}.honest", user.agent())]);
        let answers = script.answers(user, false);
        assert_eq!(honest.len(), answers.len(), "{}", user.agent());
        for (result, call) in honest.iter().zip(&user.calls) {
            assert_eq!(serde_json::from_str::<Value>(result).unwrap(), call.arguments, "{}", user.agent());
            counts.legitimate += 1;
        }
        let hijacked = results(&replies[&format!("{}.{HIJACKED}", user.agent())]);
        let needs = user.needs();
        let attacks = script.attacks(&user.suite);
        let wanted: Vec<Value> = attacks.iter().flat_map(|attack| attack.turn_calls()).collect();
        let behind = hijacked.len() - wanted.len();
        for (result, call) in hijacked[behind..].iter().zip(&wanted) {
            let carried_out = serde_json::from_str::<Value>(result).is_ok_and(|output| output == call["arguments"]);
            assert_eq!(carried_out, needs.contains(call["name"].as_str().unwrap()), "{call}: {result}");
            *(if carried_out { &mut counts.attacker_uses_granted_tool } else { &mut counts.denied }) += 1;
        }
    }
    eprintln!("{} tasks, {} requests to the model: {counts:?}", 2 * users.len(), model.asked());
    assert_eq!(counts, Counts { legitimate: 339, denied: 858, attacker_uses_granted_tool: 247 });
    fleet.stop().await;
}

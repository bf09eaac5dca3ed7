//! A model summarizes old steps.

use super::*;

const ROUNDS: usize = 10;
const KEEPER: &str = "You keep the notes of an agent";
const NOTES: &str = "Notes on your earlier steps";

/// Each result has 1,900 bytes, and a request has at most 6,000 bytes of results.
fn forgetful(model: &ScriptedModel) -> Plan {
    let find = TypedTool::new("find", "Finds.", Effect::Read, |_, args: Value| async move {
        Ok::<_, ToolError>(json!({"n": args["n"], "text": "x".repeat(1_850)}))
    });
    let mut kelly = llm("You are kelly.");
    if let TaskHandlerDef::Llm(def) = &mut kelly {
        (def.max_iterations, def.context_bytes_max) = (20, 6_000);
        def.compact_with = vec!["default".into()];
    }
    let mut plan = plan(model, vec![find]);
    plan.handlers.insert(AgentId::new("kelly").unwrap(), kelly);
    plan
}

fn requests(model: &ScriptedModel) -> Vec<ModelRequest> {
    model.seen().into_iter().filter(|asked| !asked.system.starts_with(KEEPER)).collect()
}

fn says(asked: &ModelRequest, words: &str) -> bool {
    asked.messages.iter().any(|message| message["content"].as_str().is_some_and(|content| content.contains(words)))
}

#[tokio::test]
async fn old_steps_are_summarized_once_and_summaries_count_as_usage() {
    // Requests have summaries instead of old calls, so the scripted model counts the calls.
    let calls = AtomicUsize::new(0);
    let notes = AtomicUsize::new(0);
    let model = ScriptedModel::start(move |asked: &ModelRequest| {
        if asked.system.starts_with(KEEPER) {
            return ModelReply::words(&format!("notes number {}", notes.fetch_add(1, Ordering::SeqCst) + 1));
        }
        match calls.fetch_add(1, Ordering::SeqCst) {
            ROUNDS => ModelReply::words("found"),
            n => ModelReply::call("find", json!({"n": n})),
        }
    })
    .await;
    let mut fleet = Fleet::start(forgetful(&model)).await;
    enqueue(&fleet, task("job-1", "kelly", "Find all.")).await;
    let reply = fleet.reply().await;
    let output = &result(&reply)["output"];
    assert_eq!((&output["answer"], &output["iterations"]), (&json!("found"), &json!(ROUNDS + 1)), "{reply}");

    let seen = requests(&model);
    let kept = model.asked() - seen.len();
    assert_eq!(output["usage"]["input_tokens"], json!(100 * model.asked()), "summaries are counted: {reply}");
    // Four results do not fit, so three are summarized and one stays.
    assert_eq!(kept, 3, "{kept} summaries");
    let results = |asked: &ModelRequest| asked.messages.iter().filter(|message| message["role"] == "tool").count();
    assert!(seen.iter().all(|asked| results(asked) <= 3), "{:?}", seen.iter().map(results).collect::<Vec<_>>());
    let last = seen.last().unwrap();
    assert!(says(last, NOTES) && says(last, "notes number 3") && !says(last, "notes number 2"), "{last:?}");
    let keepers: Vec<ModelRequest> =
        model.seen().into_iter().filter(|asked| asked.system.starts_with(KEEPER)).collect();
    assert!(says(&keepers[1], "notes number 1") && says(&keepers[1], "Find all.") && keepers[1].tools.is_empty());
    let name = tickfleet_store::TurnName::parse("acme:job-1").unwrap();
    let story = tickfleet_client::tasks::task_details(&fleet.store, &name).await.unwrap().unwrap();
    let reported =
        story.rounds.iter().flat_map(|round| &round.notes).filter(|note| note.contains("summarized")).count();
    assert_eq!(reported, 3);
    fleet.stop().await;
}

#[tokio::test]
async fn a_failed_summary_falls_back_to_shortened_results() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        _ if asked.system.starts_with(KEEPER) => ModelReply::Status(400, 0),
        ROUNDS => ModelReply::words("found"),
        n => ModelReply::call("find", json!({"n": n})),
    })
    .await;
    let mut fleet = Fleet::start(forgetful(&model)).await;
    enqueue(&fleet, task("job-1", "kelly", "Find all.")).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["output"]["answer"], "found", "{reply}");
    assert_eq!(result(&reply)["attempts"], 1, "{reply}");
    assert!(requests(&model).iter().all(|asked| !says(asked, NOTES)));
    assert!(says(requests(&model).last().unwrap(), "an old result, shortened"));
    fleet.stop().await;
}

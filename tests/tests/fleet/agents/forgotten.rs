//! The record of some work expires before a task that waits for the work reads the result. Nothing may be done twice.

use tickfleet_store::StoreOptions;
use tokio_util::sync::CancellationToken;

use super::*;

/// Longer than `retain_ms`.
const SLEEP_MS: u64 = 1_500;

fn forgetful(plan: Plan) -> Plan {
    let store = StoreOptions { retain_ms: 300, dedupe_ms: 300, ..plan.store.clone() };
    Plan { slots: 1, store, ..plan }
}

/// Submits a turn that takes the slot next. The post may return only after this turn is queued.
async fn keep_busy(fleet: &Fleet, may_end: &CancellationToken) {
    let calls = json!([{"name": "sleep", "arguments": {"ms": SLEEP_MS}}]);
    let turn = json!({"turn_id": "busy", "tenant": "acme", "agent": "atlas", "priority": "urgent", "calls": calls});
    fleet.xadd("turns", "turn", turn.to_string().as_bytes()).await;
    fleet.until("it is queued", async |fleet| fleet.ask::<u64>("XLEN", "ready:urgent", &[]).await == 1).await;
    may_end.cancel();
}

fn slow_post(posts: &Arc<AtomicUsize>, may_end: &CancellationToken) -> TypedTool {
    let posts = Arc::clone(posts);
    let may_end = may_end.clone();
    TypedTool::new("post", "Posts.", Effect::Once, move |_, _: Post| {
        let posts = Arc::clone(&posts);
        let may_end = may_end.clone();
        async move {
            let number = posts.fetch_add(1, Ordering::SeqCst) + 1;
            may_end.cancelled().await;
            Ok::<_, ToolError>(Posted { number })
        }
    })
}

async fn posted(posts: &AtomicUsize) {
    while posts.load(Ordering::SeqCst) == 0 {
        // The tool does not report that it runs, so this polls. The test ends after a minute.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn calls_of_a_step_with_an_expired_record_are_unknown_and_not_repeated() {
    let posts = Arc::new(AtomicUsize::new(0));
    let may_end = CancellationToken::new();
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        0 => ModelReply::call("post", json!({"content": "News"})),
        _ => ModelReply::words(asked.results()[0]),
    })
    .await;
    let mut fleet = Fleet::start(forgetful(plan(&model, vec![slow_post(&posts, &may_end)]))).await;
    enqueue(&fleet, task("job-1", "kelly", "Post.")).await;
    posted(&posts).await;
    keep_busy(&fleet, &may_end).await;
    let reply = fleet.reply().await;
    let answer = result(&reply)["output"]["answer"].as_str().unwrap();
    assert!(answer.contains("may have run"), "{reply}");
    assert_eq!(posts.load(Ordering::SeqCst), 1, "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn an_awaited_task_with_an_expired_record_is_not_delegated_again() {
    let posts = Arc::new(AtomicUsize::new(0));
    let may_end = CancellationToken::new();
    let work = json!({"target_agent": "kelly", "task_description": "Post.", "wait": true});
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        0 => ModelReply::call("post", json!({"content": "News"})),
        _ => ModelReply::words("Posted."),
    })
    .await;
    let mut fleet = Fleet::start(forgetful(plan(&model, vec![slow_post(&posts, &may_end)]))).await;
    let calls = json!([{"name": "delegate_task", "arguments": work}]);
    let turn = json!({"turn_id": "t1", "tenant": "acme", "agent": "atlas", "reply_to": "box", "calls": calls});
    fleet.submit_turn(turn).await;
    posted(&posts).await;
    keep_busy(&fleet, &may_end).await;
    let mut replies = Vec::new();
    while !replies.iter().any(|reply: &Value| reply["turn_id"] == "t1") {
        replies.push(fleet.reply().await);
    }
    assert_eq!(posts.load(Ordering::SeqCst), 1, "{replies:?}");
    // kelly's own answer may go to the same inbox.
    assert!(replies.len() <= 2, "{replies:?}");
    fleet.stop().await;
}

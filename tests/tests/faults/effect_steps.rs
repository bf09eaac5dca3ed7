//! Everything dies at each step of two turns that make the same payment: it is made once at most, and nobody is told wrongly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_store::{Scripts, StoreOptions};
use tickfleet_tests::doomed::Doomed;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{ToolError, TypedTool};

use super::steps::steps_asked_for;

/// The verbs that bring the turns on. Others (beats, looks at timers) come at any time.
const VERBS: [&str; 6] = ["admit", "claim", "begin", "conclude", "settle", "wait"];

fn pay(paid: &Arc<AtomicUsize>) -> TypedTool {
    let paid = Arc::clone(paid);
    let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |_, _: Value| {
        let number = paid.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            // Long enough that the other turn meets it on its way, and that a kill may.
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok::<_, ToolError>(json!({"number": number}))
        }
    });
    pay.effect_key(&["/to"], Duration::from_secs(3_600))
}

/// What a run came to.
#[derive(Debug)]
struct Played {
    /// Scripts that brought the turns on.
    scripts: usize,
    results: Vec<Value>,
    paid: usize,
    killed: bool,
}

/// Plays both turns; after so many scripts everything dies, and starts anew.
async fn play(kill_after: usize) -> Played {
    let paid = Arc::new(AtomicUsize::new(0));
    let plan = Plan {
        schedulers: 0,
        workers: 0,
        tools: vec![pay(&paid)],
        agents: vec!["kelly".into(), "fran".into()],
        store: StoreOptions { lease_ms: 1_000, ..StoreOptions::default() },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await;
    let of_verbs = Scripts::embedded();
    let of_verbs = of_verbs.iter().filter(|(verb, _)| VERBS.contains(verb));
    let digests: Vec<String> = of_verbs.map(|(_, text)| redis::Script::new(text).get_hash().to_owned()).collect();
    let monitor = redis::Client::open(fleet.server.url()).unwrap().get_async_monitor().await.unwrap();
    let mut commands = monitor.into_on_message::<String>();
    let mut first = Some(Doomed::both(&fleet, "a"));
    let call = json!({"name": "pay", "arguments": {"to": "kim"}});
    for (turn, agent) in [("t1", "kelly"), ("t2", "fran")] {
        let turn = json!({"turn_id": turn, "tenant": "acme", "agent": agent, "reply_to": "box", "calls": [call]});
        fleet.submit_turn(turn).await;
    }
    let (mut scripts, mut second, mut results) = (0, None, Vec::new());
    while results.len() < 2 {
        tokio::select! {
            command = commands.next() => {
                let command = command.unwrap();
                let is_ours = command.contains("\"EVALSHA\"") && digests.iter().any(|digest| command.contains(digest));
                scripts += usize::from(is_ours);
                if is_ours && scripts == kill_after {
                    first.take().unwrap().kill();
                    second = Some(Doomed::both(&fleet, "b"));
                }
            }
            reply = fleet.try_reply(Duration::from_secs(60)) => {
                results.push(reply.expect("a reply within a minute")["results"][0].clone());
            }
        }
    }
    assert!(fleet.try_reply(Duration::from_millis(50)).await.is_none(), "two turns, two replies");
    let (killed, paid) = (second.is_some(), paid.load(Ordering::SeqCst));
    drop((first, second));
    Played { scripts, results, paid, killed }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_turns_make_the_same_payment_once_at_most_wherever_everything_dies() {
    let whole = play(usize::MAX).await;
    assert_eq!((whole.paid, whole.killed), (1, false), "{whole:?}");
    let steps = steps_asked_for().unwrap_or(10);
    let every = (whole.scripts / steps).max(1);
    for kill_after in (1..=whole.scripts).step_by(every) {
        let played = play(kill_after).await;
        let outcomes: Vec<&str> = played.results.iter().filter_map(|result| result["outcome"].as_str()).collect();
        assert!(played.paid <= 1, "killed after {kill_after}: paid twice: {played:?}");
        // Both are told the same: that it was done, and it was; or that nobody knows.
        assert_eq!(outcomes[0], outcomes[1], "killed after {kill_after}: {played:?}");
        assert!(["ok", "outcome_unknown"].contains(&outcomes[0]), "killed after {kill_after}: {played:?}");
        assert!(outcomes[0] != "ok" || played.paid == 1, "killed after {kill_after}: told wrongly: {played:?}");
        let repeated = played.results.iter().filter(|result| !result["repeats"].is_null()).count();
        assert_eq!(repeated, 1, "killed after {kill_after}: one of them is the other's: {played:?}");
    }
}

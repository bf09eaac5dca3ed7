//! Everything dies after so many of the scripts that bring a turn or task on, and starts anew. START HERE: [`play`].

mod approvals;
mod composed;
mod effects;
mod tasks;

use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use tickfleet_store::Scripts;
use tickfleet_tests::doomed::Doomed;
use tickfleet_tests::fleet::Fleet;

/// What a run came to.
#[derive(Debug)]
struct Played {
    /// Scripts that brought it on.
    scripts: usize,
    replies: Vec<Value>,
    killed: bool,
}

/// Plays what `submit` submits to a fleet that has no scheduler and no worker of its own, until so many replies are there.
/// After `kill_after` scripts of these verbs everything dies, and starts anew; other verbs (beats, looks at timers) come at
/// any time.
async fn play(
    fleet: &mut Fleet,
    verbs: &[&str],
    replies: usize,
    kill_after: usize,
    submit: impl AsyncFnOnce(&Fleet),
) -> Played {
    let scripts = Scripts::embedded();
    let of_verbs = scripts.iter().filter(|(verb, _)| verbs.contains(verb));
    let digests: Vec<String> = of_verbs.map(|(_, text)| redis::Script::new(text).get_hash().to_owned()).collect();
    let monitor = redis::Client::open(fleet.server.url()).unwrap().get_async_monitor().await.unwrap();
    let mut commands = monitor.into_on_message::<String>();
    let mut first = Some(Doomed::both(fleet, "a"));
    submit(fleet).await;
    let (mut scripts, mut second, mut told) = (0, None, Vec::new());
    while told.len() < replies {
        tokio::select! {
            command = commands.next() => {
                let command = command.unwrap();
                let is_ours = command.contains("\"EVALSHA\"") && digests.iter().any(|digest| command.contains(digest));
                scripts += usize::from(is_ours);
                if is_ours && scripts == kill_after {
                    first.take().unwrap().kill();
                    second = Some(Doomed::both(fleet, "b"));
                }
            }
            reply = fleet.try_reply(Duration::from_secs(60)) => told.push(reply.expect("a reply within a minute")),
        }
    }
    assert!(fleet.try_reply(Duration::from_millis(50)).await.is_none(), "a reply too many, killed after {kill_after}");
    Played { scripts, replies: told, killed: second.is_some() }
}

/// For how long a worker may be silent: where everything dies, somebody waits for it.
fn lease_ms(kill_after: usize) -> i64 {
    if kill_after == usize::MAX { 10_000 } else { 1_500 }
}

/// How many places everything dies at, where `TICKFLEET_STEPS` says nothing else.
#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside it")]
fn steps(usual: usize) -> usize {
    std::env::var("TICKFLEET_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}

/// These places: every so many scripts, from the first to the last.
fn places(scripts: usize, steps: usize) -> impl Iterator<Item = usize> {
    (1..=scripts).step_by((scripts / steps).max(1))
}

//! All processes die after a number of commits, and new processes start. Start at [`play`].

mod approvals;
mod composed;
mod effects;
mod local;
mod tasks;

use std::time::Duration;

use futures::{StreamExt, future};
use serde_json::Value;
use tickfleet_tests::fleet::Fleet;
use tickfleet_tests::killable::KillableProcess;

#[derive(Debug)]
struct DyingRun {
    commits: usize,
    replies: Vec<Value>,
    killed: bool,
}

/// Ignores commits of heartbeats, which can come at any time.
fn is_commit(line: &str) -> bool {
    ["] \"FCALL\" ", "] \"EVALSHA\" "].iter().any(|command| line.contains(command)) && line.contains(":acme:")
}

/// `fleet` must have no schedulers and no workers. All processes die after `kill_after` commits.
async fn play(fleet: &mut Fleet, replies: usize, kill_after: usize, submit: impl AsyncFnOnce(&Fleet)) -> DyingRun {
    let monitor = redis::Client::open(fleet.server.url()).unwrap().get_async_monitor().await.unwrap();
    let mut commits_made = monitor.into_on_message::<String>().filter(|line| future::ready(is_commit(line)));
    let mut first = Some(KillableProcess::both(fleet, "a"));
    submit(fleet).await;
    let mut commits = 0;
    let mut second = None;
    let mut received = Vec::new();
    while received.len() < replies {
        tokio::select! {
            commit = commits_made.next() => {
                assert!(commit.is_some(), "Redis reports its commands no longer");
                commits += 1;
                if commits == kill_after {
                    first.take().unwrap().kill();
                    second = Some(KillableProcess::both(fleet, "b"));
                }
            }
            reply = fleet.try_reply(Duration::from_secs(60)) => received.push(reply.expect("a reply within a minute")),
        }
    }
    assert!(fleet.try_reply(Duration::from_millis(50)).await.is_none(), "a reply too many, killed after {kill_after}");
    DyingRun { commits, replies: received, killed: second.is_some() }
}

/// In ms. Short if processes die, because the test then waits for the end of a lease.
fn lease_ms(kill_after: usize) -> i64 {
    if kill_after == usize::MAX { 10_000 } else { 1_500 }
}

/// `TICKFLEET_STEPS` sets another number.
#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside it")]
fn steps(usual: usize) -> usize {
    std::env::var("TICKFLEET_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}

fn places(commits: usize, steps: usize) -> impl Iterator<Item = usize> {
    (1..=commits).step_by((commits / steps).max(1))
}

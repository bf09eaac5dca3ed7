//! What keeps governance in order, one guard after the other: each is switched off once, and has to be missed.

mod approvals;
mod facts;
mod kept;
mod ledger;

use std::fmt::Debug;

use tickfleet_testkit::guards::Guard;

use super::*;

type Held = (TurnName, String);

/// An empty shard, at the beginning of its time.
async fn fresh(shard: &Shard) {
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("FLUSHALL").query_async(&mut redis).await.unwrap();
    shard.clock.store(START_MS, Ordering::SeqCst);
    shard.store.ensure_groups().await.unwrap();
    shard.store.announce("policy", None, false).await.unwrap();
}

fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

/// A slice that is parked goes on: its new holder.
async fn gone_on(shard: &Shard, held: &Held) -> Result<Held, String> {
    shard.store.wake(std::slice::from_ref(&held.0)).await.unwrap();
    let promoted = shard.store.promote(std::slice::from_ref(&held.0)).await.unwrap();
    if !matches!(promoted[..], [Promoted::Promoted]) {
        return Err(format!("it does not go on: {promoted:?}"));
    }
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    Ok((held.0.clone(), entry.id))
}

/// Parks a slice until another turn has ended.
async fn waits_for(shard: &Shard, held: &Held, other: &Held, has_begun: bool) -> Result<(), String> {
    let wait = tickfleet_store::Wait {
        name: held.0.clone(),
        fence: held.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        awaits: Some(other.0.turn.clone()),
        at_most: Duration::from_secs(300),
        has_begun,
        beside: false,
    };
    same("it is parked", shard.store.wait(&[wait]).await.unwrap(), vec![Parked::Ok])
}

async fn begin(shard: &Shard, held: &Held) {
    let (name, fence) = held.clone();
    let begin = Begin { name, fence, position: 0, nonce: Some("n".into()), digest: "d".into(), knows: None };
    assert_eq!(shard.store.begin(&[begin]).await.unwrap(), [Begun::Ok]);
}

/// Plays `all` without each guard, and panics where nothing notices that it is gone.
async fn each_is_missed<F: Future<Output = Result<(), String>>>(guards: &[Guard], all: impl Fn(Scripts) -> F) {
    all(Scripts::embedded()).await.unwrap();
    for (rule, what, from, to) in guards {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        let noticed = all(scripts).await;
        println!("{what}: {noticed:?}");
        assert!(noticed.is_err(), "rule {rule}: {what}: not noticed");
    }
}

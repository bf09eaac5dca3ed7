//! Slices that wait for a turn: whose end wakes them, and when they look by themselves; with rows that switch that off.

use tickfleet_store::Wait;
use tickfleet_testkit::guards::WAITS;

use super::*;

/// How long whoever waits does so where nobody wakes it.
const AT_MOST: Duration = Duration::from_secs(300);

type Held = (TurnName, String);

async fn park(shard: &Shard, waiter: &Held, awaits: &Held) {
    let wait = Wait {
        name: waiter.0.clone(),
        fence: waiter.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        awaits: Some(awaits.0.turn.clone()),
        at_most: AT_MOST,
        has_begun: true,
        beside: false,
    };
    assert_eq!(shard.store.wait(&[wait]).await.unwrap(), [Parked::Ok]);
}

/// Ends a turn of two calls, as one whose end may concern `wakes`; whole, or call by call.
async fn end(shard: &Shard, held: &Held, wakes: &Held, is_whole: bool) {
    let frame = ReplyFrame {
        head: r#"{"results":["#.into(),
        calls: is_whole.then_some(2),
        wakes: Some(wakes.0.turn.clone()),
        ..ReplyFrame::default()
    };
    let settlement = Settlement {
        name: held.0.clone(),
        fence: held.1.clone(),
        queue: Some(Queue::Ready(Priority::Normal)),
        first: 0,
        reply_to: None,
        frame,
        calls: vec![SettledCall { result: "1".into(), ..SettledCall::default() }; 2],
    };
    assert_eq!(shard.store.settle(&[settlement]).await.unwrap(), [Settled::Done]);
}

/// What has a timer that is due `ms` from now.
pub(super) async fn due(shard: &Shard, ms: i64) -> Vec<TurnName> {
    shard.store.due(START_MS + ms, 10).await.unwrap().turns
}

/// A turn waits for another one: `is_early`, it waits before that has ended, else it begins to wait afterwards.
async fn woken(scripts: &Scripts, is_early: bool, is_whole: bool) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts.clone()).await;
    let held = shard.leased(3).await;
    let [waiter, awaited, other] = held.as_slice() else { panic!("three slices: {held:?}") };
    if is_early {
        park(&shard, waiter, awaited).await;
        let early = due(&shard, 0).await;
        if !early.is_empty() {
            return Err(format!("before the end of what it waits for: {early:?}"));
        }
        // One that it does not wait for, whoever says so.
        end(&shard, other, waiter, is_whole).await;
        let foreign = due(&shard, 0).await;
        if !foreign.is_empty() {
            return Err(format!("at the end of another turn: {foreign:?}"));
        }
        end(&shard, awaited, waiter, is_whole).await;
    } else {
        end(&shard, awaited, waiter, is_whole).await;
        park(&shard, waiter, awaited).await;
    }
    match due(&shard, 0).await.as_slice() {
        [woken] if *woken == waiter.0 => Ok(()),
        found => Err(format!("early {is_early}, whole {is_whole}: it is not woken at that end: {found:?}")),
    }
}

async fn all(scripts: &Scripts) -> Result<(), String> {
    for (is_early, is_whole) in [(true, true), (true, false), (false, true), (false, false)] {
        woken(scripts, is_early, is_whole).await?;
    }
    Ok(())
}

#[tokio::test]
async fn whoever_waits_for_a_turn_is_woken_by_its_end_and_by_no_other() {
    all(&Scripts::embedded()).await.unwrap();
}

#[tokio::test]
async fn whoever_nobody_wakes_looks_by_itself() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = shard.leased(2).await;
    park(&shard, &held[0], &held[1]).await;
    let at_most = i64::try_from(AT_MOST.as_millis()).unwrap();
    assert_eq!(due(&shard, at_most - 1).await, []);
    assert_eq!(due(&shard, at_most).await, [held[0].0.clone()]);
}

#[tokio::test]
async fn switching_off_a_guard_of_waits_is_noticed() {
    for (rule, what, from, to) in WAITS {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        let noticed = all(&scripts).await;
        println!("{what}: {noticed:?}");
        assert!(noticed.is_err(), "rule {rule}: {what}: not noticed");
    }
}

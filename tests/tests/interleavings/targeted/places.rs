//! Who waits for a limit goes on: when a place is free, when what would give it back is gone, when the limit is raised.

use tickfleet_model::Limit;
use tickfleet_model::limit::counters::Debits;
use tickfleet_model::limit::{Every, LimitBound, LimitMatch, LimitMode, OnReach};
use tickfleet_store::fields::turn;
use tickfleet_store::{
    CounterDebits, JudgedBy, Lane, LanePolicy, LaneRelease, LaneTurns, LimitRow, ReleaseReply, Released, WaitingTurn,
};

use super::*;

fn limit(bound: LimitBound, every: Every) -> Limit {
    Limit {
        name: "one".into(),
        matches: LimitMatch::default(),
        per: std::collections::BTreeSet::new(),
        bound,
        every,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1,
    }
}

/// One place, and whoever calls needs it.
fn place() -> LimitRow {
    LimitRow::new(&limit(LimitBound::Concurrent(1), Every::Held), (0, 1), 1_000, (0, 0))
}

fn counters() -> Vec<CounterDebits> {
    let debits = Debits { limit: 0, key: "x".into(), amounts: vec![Some(1), Some(0)] };
    vec![CounterDebits { row: 0, stagger_ms: 0, debits }]
}

const BY: Generations = Generations { policy: 1, tenants: 0 };

/// Two turns want the place: the first has it, the second waits.
async fn contested() -> Shard {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut turns = shard.inbound(2).await;
    turns.iter_mut().for_each(|turn| turn.counters = counters());
    let AdmitReply::Decided { turns, .. } = shard.store.admit(BY, &[row()], &[place()], &turns).await.unwrap() else {
        panic!("nothing is decided")
    };
    assert!(matches!(&turns[..], [Admitted::Dispatched, Admitted::Laned]), "{turns:?}");
    shard
}

/// What a look at the lane of the place comes to.
async fn look(shard: &Shard, limit: LimitRow) -> Released {
    let by = JudgedBy { agent: "a1".into(), policy: LanePolicy::Row(0), stagger_ms: 0 };
    let waiting = WaitingTurn { name: "acme:t1".into(), next: 0, by, counters: counters() };
    let lane = Lane::parse("one@x").unwrap();
    let batch = [LaneRelease { lane, turns: LaneTurns::These(vec![waiting]) }];
    match shard.store.release(BY, 16, &[row()], &[limit], &batch).await.unwrap() {
        ReleaseReply::Released(mut lanes) => lanes.remove(0),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn whoever_ends_wakes_who_waits_for_its_place() {
    let shard = contested().await;
    assert_eq!(look(&shard, place()).await.turns, 0, "nobody is due before a look");
    shard.advance(1);
    shard.beat("w").await;
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    let slice = (TurnName::parse("acme:t0").unwrap(), entry.id);
    assert_eq!(shard.settle(&slice, 2).await.unwrap(), [Settled::Done]);
    assert_eq!(look(&shard, place()).await.turns, 1, "at once");
    // What is said twice gives back nothing more: the place is the other's now.
    assert_eq!(shard.settle(&slice, 2).await.unwrap(), [Settled::Already]);
    let mut redis = shard.server.connection().await;
    let key = shard.store.keys().key("held:one@x");
    let held: Vec<String> = redis::cmd("ZRANGE").arg(key).arg(0).arg(-1).query_async(&mut redis).await.unwrap();
    assert_eq!(held, ["acme:t1/1"]);
}

#[tokio::test]
async fn a_place_whose_record_is_gone_is_taken_back_where_somebody_waits() {
    let shard = contested().await;
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("DEL").arg(shard.store.keys().key("turn:acme:t0")).query_async(&mut redis).await.unwrap();
    shard.advance(4_999);
    assert_eq!(look(&shard, place()).await.turns, 0, "its lane is looked at every five seconds");
    shard.advance(1);
    assert_eq!(look(&shard, place()).await.turns, 1);
}

#[tokio::test]
async fn a_place_that_is_held_is_not_taken_back_however_long_that_takes() {
    let shard = contested().await;
    for _ in 0..20 {
        shard.advance(5_000);
        assert_eq!(look(&shard, place()).await.turns, 0);
    }
}

/// So many calls in a day.
fn day(max: u64) -> LimitRow {
    LimitRow::new(&limit(LimitBound::Calls(max), Every::Day), (0, 1), 1_000, (START_MS, START_MS + 86_400_000))
}

/// The limit may have one counter: two more of one turn are what all others share.
#[tokio::test]
async fn counters_that_share_one_have_together_what_it_allows() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let debit = |key: &str, amounts: [u64; 2]| {
        let debits = Debits { limit: 0, key: key.into(), amounts: amounts.map(Some).into() };
        CounterDebits { row: 0, stagger_ms: 0, debits }
    };
    let mut turns = shard.inbound(2).await;
    turns[0].counters = vec![debit("x", [1, 0])];
    turns[1].counters = vec![debit("y", [1, 0]), debit("z", [0, 1])];
    shard.store.admit(BY, &[row()], &[day(1)], &turns).await.unwrap();
    let mut redis = shard.server.connection().await;
    for (id, calls) in [("t0", "2"), ("t1", "1")] {
        let record = shard.store.keys().key(format_args!("turn:acme:{id}"));
        let went: String = redis::cmd("HGET").arg(record).arg(turn::ADMITTED).query_async(&mut redis).await.unwrap();
        assert_eq!(went, calls, "{id}");
    }
}

#[tokio::test]
async fn who_waits_for_a_long_window_looks_whether_its_limit_was_raised() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut turns = shard.inbound(2).await;
    turns.iter_mut().for_each(|turn| turn.counters = counters());
    shard.store.admit(BY, &[row()], &[day(1)], &turns).await.unwrap();
    shard.advance(299_999);
    assert_eq!(look(&shard, day(1)).await.turns, 0, "nobody is due before that");
    shard.advance(1);
    assert_eq!(look(&shard, day(1)).await.turns, 0, "it is as it was");
    shard.advance(300_000);
    assert_eq!(look(&shard, day(2)).await.turns, 1);
}

/// What the newest entries of the audit log say of when their calls were over, the oldest first.
async fn said_over(shard: &Shard) -> Vec<String> {
    let entries = shard.store.log_entries("-", "+", 100).await.unwrap();
    entries.into_iter().map(|entry| entry.text).collect()
}

#[tokio::test]
async fn the_log_has_the_shards_word_of_when_places_were_given_back_and_when_an_end_was_decided() {
    let mut shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let options = Arc::new(StoreOptions { audit_admissions: true, ..StoreOptions::default() });
    let store = Store::open(&shard.server.url(), 0, options).unwrap();
    shard.store = store.with_time(TimeSource::Injected(shard.clock.clone()));
    let mut turns = shard.inbound(2).await;
    turns.iter_mut().for_each(|turn| turn.counters = counters());
    let rejects = Limit { on_reach: OnReach::Reject, ..limit(LimitBound::Concurrent(1), Every::Held) };
    let row_of = LimitRow::new(&rejects, (0, 1), 1_000, (0, 0));
    let reply = shard.store.admit(BY, &[row()], &[row_of], &turns).await.unwrap();
    let AdmitReply::Decided { turns, .. } = reply else { panic!("nothing is decided") };
    let [Admitted::Dispatched, Admitted::Ending(ending)] = &turns[..] else { panic!("{turns:?}") };
    let audit = |call: &str| SettledCall {
        result: "1".into(),
        audit: format!(r#"{{"meta":{{"call":"{call}"}}}}"#),
        ..SettledCall::default()
    };
    let settlement = |name: &TurnName, fence: &str, queue: Option<Queue>, calls: Vec<SettledCall>| Settlement {
        name: name.clone(),
        fence: fence.to_owned(),
        queue,
        first: 0,
        reply_to: None,
        frame: ReplyFrame { head: r#"{"results":["#.into(), ..ReplyFrame::default() },
        calls,
    };
    shard.beat("w").await;
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    let (name, queue) = (TurnName::parse("acme:t0").unwrap(), Some(Queue::Ready(Priority::Normal)));
    shard.advance(100);
    let first = settlement(&name, &entry.id, queue.clone(), vec![audit("t0/0")]);
    assert_eq!(shard.store.settle(&[first]).await.unwrap(), [Settled::Continue]);
    shard.advance(100);
    let both = settlement(&name, &entry.id, queue, vec![audit("t0/0"), audit("t0/1")]);
    assert_eq!(shard.store.settle(&[both]).await.unwrap(), [Settled::Done]);
    // It was refused when it came; whoever tells it comes later.
    let calls = ["t1/0", "t1/1"][..ending.upto].iter().map(|call| audit(call)).collect();
    shard.store.settle(&[settlement(&ending.name, &ending.fence, None, calls)]).await.unwrap();
    let said = said_over(&shard).await;
    let of = |call: &str, over: &str| format!(r#"{{"meta":{{"call":"{call}"{over}}}}}"#);
    let at = |ms: i64| format!(r#","ended_ms":{}"#, START_MS + ms);
    assert_eq!(said[..3], [of("t0/0", ""), of("t0/1", &at(200)), of("t1/0", &at(0))]);
    assert!(said[3..].iter().all(|text| text.ends_with(&format!("{}}}}}", at(0)))), "{said:?}");
}

/// One call in each window of this length.
fn every(period_ms: i64) -> LimitRow {
    LimitRow::new(&limit(LimitBound::Calls(1), Every::Period(period_ms)), (0, 1), 1_000, (0, 0))
}

#[tokio::test]
async fn a_limit_that_gets_a_longer_window_while_calls_wait_lets_none_through_before_that_is_over() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut turns = shard.inbound(3).await;
    turns.iter_mut().for_each(|turn| turn.counters = counters());
    let AdmitReply::Decided { turns, .. } = shard.store.admit(BY, &[row()], &[every(1_000)], &turns).await.unwrap()
    else {
        panic!("nothing is decided")
    };
    assert!(matches!(&turns[..], [Admitted::Dispatched, Admitted::Laned, Admitted::Laned]), "{turns:?}");
    let look = async |turn: usize, limit: LimitRow| {
        let by = JudgedBy { agent: format!("a{turn}"), policy: LanePolicy::Row(0), stagger_ms: 0 };
        let waiting = WaitingTurn { name: format!("acme:t{turn}"), next: 0, by, counters: counters() };
        let batch = [LaneRelease { lane: Lane::parse("one@x").unwrap(), turns: LaneTurns::These(vec![waiting]) }];
        match shard.store.release(BY, 16, &[row()], &[limit], &batch).await.unwrap() {
            ReleaseReply::Released(mut lanes) => lanes.remove(0).turns,
            other => panic!("{other:?}"),
        }
    };
    shard.advance(1_000);
    assert_eq!(look(1, every(60_000)).await, 1, "the running window has ended, and the new one begins");
    shard.advance(59_000);
    assert_eq!(look(2, every(60_000)).await, 0, "59 s are no window of a minute");
    shard.advance(59_999);
    assert_eq!(look(2, every(60_000)).await, 0);
    shard.advance(1);
    assert_eq!(look(2, every(60_000)).await, 1);
}

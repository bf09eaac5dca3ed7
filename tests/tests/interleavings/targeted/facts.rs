//! Facts of sessions: what is written with results and what is not, and who waits for whom.

use tickfleet_model::Context;
use tickfleet_model::policy::{Becomes, FactRow, FactsSession};
use tickfleet_store::{
    AskedFact, ChangedFact, Entered, Expected, ExpectedCall, FactState, FactsEnd, FactsEntry, MayChange, Restatement,
};

use super::*;

const KEPT_MS: i64 = 60_000;

type Held = (TurnName, String);

pub(super) async fn leased(shard: &Shard, turns: usize) -> Vec<Held> {
    let mut batch = shard.inbound(turns).await;
    batch.iter_mut().for_each(|turn| turn.meta = r#"{"dg":"d"}"#.into());
    shard.admit(&batch).await.unwrap();
    shard.beat("w").await;
    let entries = shard.reader("w").take("ready:normal", turns).await.unwrap();
    let text = |e: &Entry| String::from_utf8_lossy(e.field("t").unwrap_or_default()).into_owned();
    entries.iter().map(|e| (TurnName::parse(&text(e)).unwrap(), e.id.clone())).collect()
}

pub(super) fn session() -> FactsSession {
    FactRow::default().session(&AgentId::new("kelly").unwrap(), None, &Context::default())
}

/// A call that requires (`+f`) or forbids (`-f`) facts, and may set (`S f`) or clear (`C f`) others.
pub(super) fn entry(held: &Held, conditions: &[&str], changes: &[&str]) -> FactsEntry {
    let asked = |text: &&str| AskedFact { fact: text[1..].to_owned(), required: text.starts_with('+'), shadow: false };
    let change = |text: &&str| MayChange { fact: text[2..].to_owned(), sets: text.starts_with('S'), kept_ms: KEPT_MS };
    FactsEntry {
        name: held.0.clone(),
        fence: held.1.clone(),
        position: 0,
        digest: "d".into(),
        session: session(),
        conditions: conditions.iter().map(asked).collect(),
        changes: changes.iter().map(change).collect(),
        knows: None,
        submitted_ms: 0,
        looks: false,
    }
}

pub(super) async fn enter(shard: &Shard, held: &Held, conditions: &[&str], changes: &[&str]) -> Entered {
    shard.store.enter(&[entry(held, conditions, changes)]).await.unwrap().remove(0).entered
}

pub(super) fn end(becomes: Becomes, fact: &str) -> FactsEnd {
    FactsEnd { session: session(), changes: vec![ChangedFact { fact: fact.into(), becomes, kept_ms: KEPT_MS }] }
}

pub(super) async fn settle(shard: &Shard, held: &Held, facts: Option<FactsEnd>) -> Settled {
    let settlement = Settlement {
        name: held.0.clone(),
        fence: held.1.clone(),
        queue: Some(Queue::Ready(Priority::Normal)),
        first: 0,
        reply_to: None,
        frame: ReplyFrame { head: r#"{"results":["#.into(), ..ReplyFrame::default() },
        calls: vec![SettledCall { result: "1".into(), facts, ..SettledCall::default() }],
    };
    shard.store.settle(&[settlement]).await.unwrap().remove(0)
}

fn state(entered: Entered) -> FactState {
    match entered {
        Entered::Unmet(0, known) => known.state,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_fact_is_set_with_its_result_and_not_again_by_a_settle_that_is_repeated() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 4).await;
    assert_eq!(enter(&shard, &held[0], &[], &["S f"]).await, Entered::Ok(vec![]));
    // Whoever takes the slice over enters again.
    assert_eq!(enter(&shard, &held[0], &[], &["S f"]).await, Entered::Ok(vec![]));
    assert_eq!(enter(&shard, &held[1], &["+f"], &[]).await, Entered::Waits(held[0].0.turn.clone()));
    let stale = (held[0].0.clone(), "1-1".to_owned());
    assert_eq!(settle(&shard, &stale, Some(end(Becomes::Set, "f"))).await, Settled::Stale);
    assert_eq!(enter(&shard, &held[1], &["+f"], &[]).await, Entered::Waits(held[0].0.turn.clone()));
    assert_ne!(settle(&shard, &held[0], Some(end(Becomes::Set, "f"))).await, Settled::Stale);
    assert_eq!(enter(&shard, &held[1], &["+f"], &["C f"]).await, Entered::Ok(vec![]));
    assert_ne!(settle(&shard, &held[1], Some(end(Becomes::Cleared, "f"))).await, Settled::Stale);
    assert_eq!(settle(&shard, &held[0], Some(end(Becomes::Set, "f"))).await, Settled::Already);
    assert_eq!(state(enter(&shard, &held[2], &["+f"], &[]).await), FactState::Cleared);
    // It is over by itself, and that is told.
    assert_eq!(enter(&shard, &held[2], &[], &["S g"]).await, Entered::Ok(vec![]));
    assert_ne!(settle(&shard, &held[2], Some(end(Becomes::Set, "g"))).await, Settled::Stale);
    shard.advance(KEPT_MS + 1);
    assert_eq!(state(enter(&shard, &held[3], &["+g"], &[]).await), FactState::Over);
}

#[tokio::test]
async fn of_an_end_that_says_nothing_of_facts_the_call_may_have_changed_them() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 3).await;
    assert_eq!(enter(&shard, &held[0], &[], &["S f"]).await, Entered::Ok(vec![]));
    // A build of before, or a scheduler that ends it, does not know what it does.
    assert_ne!(settle(&shard, &held[0], None).await, Settled::Stale);
    assert_eq!(state(enter(&shard, &held[1], &["-f"], &[]).await), FactState::Perhaps);
    assert_eq!(state(enter(&shard, &held[1], &["+f"], &[]).await), FactState::Perhaps);
    assert_eq!(enter(&shard, &held[2], &[], &["S g", "C f"]).await, Entered::Ok(vec![]));
    // A record that a hand has taken away: the call is gone, and left what it may have.
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("DEL").arg(shard.store.keys().turn(&held[2].0)).query_async(&mut redis).await.unwrap();
    assert_eq!(state(enter(&shard, &held[1], &["-g"], &[]).await), FactState::Perhaps);
}

/// What happens to the fact `f` in a session.
#[derive(Debug, Clone, Copy)]
enum Then {
    /// A call ends that makes it so, for so many minutes.
    Becomes(Becomes, i64),
    /// Whether a call begins that requires it, and one that forbids it.
    Begins(bool, bool),
}

use Then::{Becomes as Is, Begins};

/// All that happens, each after so many minutes.
async fn in_time(all: &[(i64, Then)]) {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, all.iter().filter(|(_, then)| matches!(then, Is(..))).count() + 1).await;
    let (asks, ends) = held.split_last().unwrap();
    let (mut ends, mut last) = (ends.iter(), 0);
    for (minute, then) in all {
        shard.advance((minute - last) * 60_000);
        last = *minute;
        match *then {
            Is(becomes, minutes) => {
                let changes = vec![ChangedFact { fact: "f".into(), becomes, kept_ms: minutes * 60_000 }];
                let facts = Some(FactsEnd { session: session(), changes });
                assert_ne!(settle(&shard, ends.next().unwrap(), facts).await, Settled::Stale);
            }
            Begins(required, forbidden) => {
                let needs = enter(&shard, asks, &["+f"], &[]).await == Entered::Ok(vec![]);
                let shuns = enter(&shard, asks, &["-f"], &[]).await == Entered::Ok(vec![]);
                assert_eq!((needs, shuns), (required, forbidden), "after {minute} minutes of {all:?}");
            }
        }
    }
}

#[tokio::test]
async fn what_perhaps_has_happened_counts_where_it_forbids_for_as_long_as_it_may_and_never_where_it_is_required() {
    use Becomes::{Cleared, MaybeCleared, MaybeSet, Set};
    let (certain, perhaps, not) = (Begins(true, false), Begins(false, false), Begins(false, true));
    // A quote of an hour, and one more that perhaps was made: for certain it ends when it would have.
    in_time(&[(0, Is(Set, 60)), (59, Is(MaybeSet, 60)), (59, certain), (61, perhaps), (118, perhaps), (120, not)])
        .await;
    in_time(&[(0, Is(Set, 60)), (10, Is(MaybeSet, 5)), (16, certain), (59, certain), (61, not)]).await;
    in_time(&[(0, Is(MaybeSet, 60)), (1, Is(Set, 5)), (5, certain), (7, perhaps), (61, not)]).await;
    in_time(&[(0, Is(MaybeSet, 60)), (1, Is(MaybeSet, 5)), (7, perhaps), (61, not)]).await;
    // What perhaps was cleared ends when it would have, however long that is noted, or how shortly.
    in_time(&[(0, Is(Set, 600)), (1, Is(MaybeCleared, 5)), (7, perhaps), (599, perhaps), (601, not)]).await;
    in_time(&[(0, Is(Set, 60)), (1, Is(MaybeCleared, 600)), (59, perhaps), (61, not)]).await;
    in_time(&[
        (0, Is(Set, 60)),
        (1, Is(MaybeSet, 90)),
        (2, Is(MaybeCleared, 5)),
        (3, perhaps),
        (90, perhaps),
        (92, not),
    ])
    .await;
    in_time(&[(0, Is(MaybeSet, 60)), (1, Is(MaybeCleared, 5)), (59, perhaps), (61, not)]).await;
    // What sets it for a shorter time takes nothing away; what clears it for certain takes all.
    in_time(&[(0, Is(Set, 60)), (1, Is(Set, 5)), (59, certain), (61, not)]).await;
    in_time(&[(0, Is(Set, 60)), (1, Is(MaybeSet, 90)), (2, Is(Cleared, 5)), (3, not), (8, not)]).await;
}

#[tokio::test]
async fn what_was_cleared_is_told_as_cleared_and_what_only_may_have_been_so_not_as_over() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 4).await;
    for (held, becomes, fact) in
        [(&held[0], Becomes::Cleared, "f"), (&held[1], Becomes::MaybeSet, "g"), (&held[2], Becomes::Set, "h")]
    {
        assert_ne!(settle(&shard, held, Some(end(becomes, fact))).await, Settled::Stale);
    }
    shard.advance(KEPT_MS + 1);
    for (fact, told, by) in [("+f", FactState::Cleared, 0), ("+g", FactState::Never, 4), ("+h", FactState::Over, 2)] {
        match enter(&shard, &held[3], &[fact], &[]).await {
            Entered::Unmet(0, known) => {
                let by = held.get(by).map(|(name, _)| format!("{}/0", name.turn));
                assert_eq!((known.state, known.by), (told, by), "{fact}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn what_is_said_again_makes_nothing_certain_that_may_have_ended_since() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 4).await;
    let said = |at: usize, becomes, ended_ms| Restatement {
        name: held[at].0.clone(),
        position: 0,
        end: end(becomes, "f"),
        ended_ms,
    };
    // Redis has the first of them still, and hears of the last one before it does of the one between.
    assert_ne!(settle(&shard, &held[0], Some(end(Becomes::Set, "f"))).await, Settled::Stale);
    shard.advance(20);
    let (later, between) = (said(2, Becomes::MaybeSet, START_MS + 15), said(1, Becomes::Cleared, START_MS + 10));
    let all = [said(0, Becomes::Set, START_MS), later, between];
    assert_eq!(shard.store.restate(&all, START_MS + 20).await.unwrap(), 2);
    assert_eq!(state(enter(&shard, &held[3], &["+f"], &[]).await), FactState::Perhaps);
    assert_eq!(state(enter(&shard, &held[3], &["-f"], &[]).await), FactState::Perhaps);
    assert_eq!(shard.store.restate(&all, START_MS + 20).await.unwrap(), 0);
}

/// What a call said of the fact `f`, `minutes` after the beginning, for so many minutes.
fn said(held: &Held, minutes: i64, (becomes, kept): (Becomes, i64)) -> Restatement {
    let changes = vec![ChangedFact { fact: "f".into(), becomes, kept_ms: kept * 60_000 }];
    let end = FactsEnd { session: session(), changes };
    Restatement { name: held.0.clone(), position: 0, end, ended_ms: START_MS + minutes * 60_000 }
}

/// What is known of the fact `f`.
async fn known(shard: &Shard, held: &Held) -> FactState {
    match enter(shard, held, &["-f"], &[]).await {
        Entered::Unmet(0, known) => known.state,
        _ => state(enter(shard, held, &["+f"], &[]).await),
    }
}

/// Ends of calls, one a minute; then a Redis that has only the first `had` of them is told the others again, in this order, by
/// one script each. What it knows of the fact then, and whether that is the same when all of them are said once more.
async fn said_again(ends: &[(Becomes, i64)], had: usize, told: &[usize]) -> (FactState, usize) {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, ends.len() + 1).await;
    let (asks, held) = held.split_last().unwrap();
    let all: Vec<_> = (0..).zip(held).zip(ends).map(|((minute, held), end)| said(held, minute, *end)).collect();
    for (at, (one, held)) in all.iter().zip(held).enumerate() {
        if at < had {
            assert_ne!(settle(&shard, held, Some(one.end.clone())).await, Settled::Stale);
        }
        shard.advance(60_000);
    }
    let now_ms = START_MS + i64::try_from(ends.len()).unwrap() * 60_000;
    let mut lost = 0;
    for at in told {
        lost += shard.store.restate(std::slice::from_ref(&all[*at]), now_ms).await.unwrap();
    }
    let first = known(&shard, asks).await;
    assert_eq!(shard.store.restate(&all, now_ms).await.unwrap(), 0, "{ends:?} {had} {told:?}");
    assert_eq!(known(&shard, asks).await, first, "{ends:?} {had} {told:?}");
    (first, lost)
}

#[tokio::test]
async fn of_two_changes_that_redis_has_lost_both_come_back_whoever_speaks_first() {
    use Becomes::{Cleared, MaybeSet, Set};
    for told in [[0, 1], [1, 0]] {
        // Spoken the other way round, the earlier one is known to be over.
        let lost = if told[0] == 0 { 2 } else { 1 };
        assert_eq!(said_again(&[(Set, 60), (Cleared, 60)], 0, &told).await, (FactState::Cleared, lost));
        assert_eq!(said_again(&[(Cleared, 60), (Set, 60)], 0, &told).await, (FactState::Set, lost));
    }
    // A mark, a review that cleared it, and a mark again: that one must not go.
    for told in [[1, 2], [2, 1]] {
        let (state, _) = said_again(&[(Set, 60), (Cleared, 60), (Set, 60)], 1, &told).await;
        assert_eq!(state, FactState::Set, "{told:?}");
        // One that ends earlier than the first would have leaves a trace as well.
        let (state, _) = said_again(&[(Set, 1_440), (Cleared, 60), (Set, 60)], 1, &told).await;
        assert_eq!(state, FactState::Set, "{told:?}");
        let (state, _) = said_again(&[(Set, 1_440), (Cleared, 60), (MaybeSet, 60)], 1, &told).await;
        assert_eq!(state, FactState::Perhaps, "{told:?}");
    }
}

#[tokio::test]
async fn what_a_call_clears_and_sets_anew_is_set_when_it_is_said_again() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 3).await;
    let change = |becomes| ChangedFact { fact: "f".into(), becomes, kept_ms: KEPT_MS };
    let end = |first, second| FactsEnd { session: session(), changes: vec![change(first), change(second)] };
    let said = |at: usize, end: &FactsEnd| {
        [Restatement { name: held[at].0.clone(), position: 0, end: end.clone(), ended_ms: START_MS }]
    };
    let anew = end(Becomes::Cleared, Becomes::Set);
    shard.advance(10);
    for lost in [2, 0] {
        assert_eq!(shard.store.restate(&said(0, &anew), START_MS + 10).await.unwrap(), lost);
        assert_eq!(known(&shard, &held[2]).await, FactState::Set);
    }
    // So it is of one that nobody knows of, and of a Redis that has all of it.
    let perhaps = end(Becomes::MaybeCleared, Becomes::MaybeSet);
    assert_ne!(settle(&shard, &held[1], Some(perhaps.clone())).await, Settled::Stale);
    assert_eq!(shard.store.restate(&said(1, &perhaps), START_MS + 10).await.unwrap(), 0);
    assert_eq!(known(&shard, &held[2]).await, FactState::Perhaps);
}

#[tokio::test]
async fn what_is_said_again_to_a_redis_that_lost_nothing_changes_nothing() {
    use Becomes::{Cleared, MaybeCleared, MaybeSet, Set};
    for (ends, state) in [
        // What perhaps was cleared is not certain again, however long something else may be so.
        (&[(MaybeSet, 1_440), (Set, 60), (MaybeCleared, 60)], FactState::Perhaps),
        (&[(MaybeSet, 60), (Set, 1_440), (MaybeCleared, 60)], FactState::Perhaps),
        (&[(MaybeSet, 60), (Set, 1_440), (MaybeSet, 60)], FactState::Set),
        (&[(Set, 1_440), (MaybeSet, 60), (Cleared, 60)], FactState::Cleared),
        (&[(Set, 1_440), (Cleared, 60), (MaybeSet, 60)], FactState::Perhaps),
    ] {
        for told in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            assert_eq!(said_again(ends, 3, &told).await, (state, 0), "{ends:?} {told:?}");
        }
    }
}

#[tokio::test]
async fn a_worker_says_again_what_a_restarted_redis_has_lost() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 2).await;
    assert_eq!(enter(&shard, &held[0], &[], &["S f"]).await, Entered::Ok(vec![]));
    settle(&shard, &held[0], Some(end(Becomes::Set, "f"))).await;
    let mut redis = shard.server.connection().await;
    let facts = shard.store.keys().key(format!("facts:{}:{}", held[0].0.tenant, session()));
    let gone: u32 = redis::cmd("DEL").arg(&facts).query_async(&mut redis).await.unwrap();
    assert_eq!(gone, 1);
    let said = Restatement { name: held[0].0.clone(), position: 0, end: end(Becomes::Set, "f"), ended_ms: START_MS };
    assert_eq!(shard.store.restate(std::slice::from_ref(&said), START_MS).await.unwrap(), 1);
    assert_eq!(shard.store.restate(std::slice::from_ref(&said), START_MS).await.unwrap(), 0);
    assert_eq!(state(enter(&shard, &held[1], &["-f"], &[]).await), FactState::Set);
    let left: i64 = redis::cmd("PTTL").arg(&facts).query_async(&mut redis).await.unwrap();
    assert!(left > 0, "it ends by itself");
}

#[tokio::test]
async fn of_two_turns_that_need_each_other_the_later_one_waits_and_the_earlier_is_denied() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 2).await;
    for (held, fact) in held.iter().zip(["f", "g"]) {
        let call = ExpectedCall { position: 0, session: session(), sets: vec![(fact.into(), KEPT_MS)] };
        let deadline_ms = START_MS + KEPT_MS;
        shard.store.expect(&[Expected { name: held.0.clone(), deadline_ms, calls: vec![call] }]).await.unwrap();
    }
    assert_eq!(enter(&shard, &held[1], &["+f"], &["S g"]).await, Entered::Waits(held[0].0.turn.clone()));
    assert_eq!(state(enter(&shard, &held[0], &["+g"], &["S f"]).await), FactState::Never);
    // What is only expected stops nobody who must not have it.
    assert_eq!(enter(&shard, &held[1], &["-f"], &[]).await, Entered::Ok(vec![]));
}

#[tokio::test]
async fn a_call_waits_for_every_call_under_way_that_may_change_what_it_goes_by() {
    for (condition, change, before) in [("-f", "S f", None), ("+f", "C f", Some(Becomes::Set))] {
        let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
        let held = leased(&shard, 4).await;
        if let Some(becomes) = before {
            assert_ne!(settle(&shard, &held[3], Some(end(becomes, "f"))).await, Settled::Stale);
        }
        // The first turn was admitted first, and comes to its call after the second.
        for held in &held[..2] {
            let call = ExpectedCall { position: 0, session: session(), sets: vec![("f".into(), KEPT_MS)] };
            let expected = Expected { name: held.0.clone(), deadline_ms: START_MS + KEPT_MS, calls: vec![call] };
            shard.store.expect(&[expected]).await.unwrap();
        }
        let (asks, changes) = ([condition], [change]);
        let enters = |at: usize| enter(&shard, &held[at], &asks, &changes);
        assert_eq!(enters(1).await, Entered::Ok(vec![]));
        assert_eq!(enters(0).await, Entered::Waits(held[1].0.turn.clone()), "{change}");
        assert_eq!(enters(2).await, Entered::Waits(held[1].0.turn.clone()), "{change}");
        let becomes = if before.is_some() { Becomes::Cleared } else { Becomes::Set };
        assert_ne!(settle(&shard, &held[1], Some(end(becomes, "f"))).await, Settled::Stale);
        let found = if before.is_some() { FactState::Cleared } else { FactState::Set };
        assert_eq!(state(enters(0).await), found);
    }
}

/// Calls that have entered and wait for a turn of their own; each of these turns, but the last, waits for the next call. What the
/// last one hears, and what the first one does once the last one's call has ended.
async fn in_a_circle(of: usize) -> (Entered, Entered) {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 2 * of).await;
    let (calls, inner) = held.split_at(of);
    let fact = |at: usize| format!("f{}", at % of);
    for (at, call) in calls.iter().enumerate() {
        assert_eq!(enter(&shard, call, &[], &[&format!("S {}", fact(at))]).await, Entered::Ok(vec![]));
        let wait = tickfleet_store::Wait {
            name: call.0.clone(),
            fence: call.1.clone(),
            queue: Queue::Ready(Priority::Normal),
            position: 0,
            awaits: Some(inner[at].0.turn.clone()),
            at_most: Duration::from_secs(300),
            has_begun: true,
            beside: false,
        };
        assert_eq!(shard.store.wait(&[wait]).await.unwrap(), [Parked::Ok]);
    }
    // A call that is part of it goes by what its own caller may set.
    assert_eq!(enter(&shard, &inner[0], &["-f0"], &[]).await, Entered::Ok(vec![]));
    for (at, call) in inner.iter().enumerate().take(of - 1) {
        let asks = format!("-{}", fact(at + 1));
        assert_eq!(enter(&shard, call, &[&asks], &[]).await, Entered::Waits(calls[at + 1].0.turn.clone()));
    }
    let closes = enter(&shard, &inner[of - 1], &[&format!("-{}", fact(0))], &[]).await;
    // It is denied, and the call that it was part of ends.
    assert_ne!(settle(&shard, &inner[of - 1], None).await, Settled::Stale);
    shard.store.wake(std::slice::from_ref(&calls[of - 1].0)).await.unwrap();
    shard.store.promote(std::slice::from_ref(&calls[of - 1].0)).await.unwrap();
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    let changed = end(Becomes::Cleared, &fact(of - 1));
    assert_ne!(settle(&shard, &(calls[of - 1].0.clone(), entry.id), Some(changed)).await, Settled::Stale);
    let next = enter(&shard, &inner[of - 2], &[&format!("-{}", fact(of - 1))], &[]).await;
    (closes, next)
}

#[tokio::test]
async fn a_circle_of_calls_that_wait_for_each_other_ends_with_the_one_that_would_close_it() {
    for of in [2, 3] {
        let (closes, next) = in_a_circle(of).await;
        match closes {
            Entered::Unmet(0, known) => {
                assert_eq!((known.state, known.by.as_deref()), (FactState::Undecided, Some("t0/0")), "{of}");
            }
            other => panic!("{of}: {other:?}"),
        }
        assert_eq!(next, Entered::Ok(vec![]), "{of}: the others go on");
    }
}

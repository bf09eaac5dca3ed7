//! Who enters a session, who waits for whom, and what is known of those who are gone.

use tickfleet_model::policy::Becomes;
use tickfleet_store::{Entered, Expected, ExpectedCall, FactState, FactsEntry};
use tickfleet_testkit::guards::FACTS;

use super::super::facts::{end, enter, entry, leased, session, settle};
use super::*;

async fn ask(shard: &Shard, entry: FactsEntry) -> Entered {
    shard.store.enter(&[entry]).await.unwrap().remove(0).entered
}

fn unmet(what: &str, entered: Entered, expected: FactState) -> Result<(), String> {
    match entered {
        Entered::Unmet(0, known) => same(what, known.state, expected),
        other => Err(format!("{what}: {other:?}")),
    }
}

/// `fact` is set by a call of a turn of its own.
async fn is_set(shard: &Shard, held: &Held, fact: &str) -> Result<(), String> {
    same("it sets a fact", enter(shard, held, &[], &[&format!("S {fact}")]).await, Entered::Ok(vec![]))?;
    let settled = settle(shard, held, Some(end(Becomes::Set, fact))).await;
    if settled == Settled::Stale { Err("it cannot settle".into()) } else { Ok(()) }
}

/// A turn whose call at this position is expected to set a fact.
async fn is_expected(shard: &Shard, held: &Held, fact: &str) {
    let call = ExpectedCall { position: 0, session: session(), sets: vec![(fact.into(), 60_000)] };
    let deadline_ms = START_MS + 60_000;
    shard.store.expect(&[Expected { name: held.0.clone(), deadline_ms, calls: vec![call] }]).await.unwrap();
}

fn waits(held: &Held) -> Entered {
    Entered::Waits(held.0.turn.clone())
}

/// Of two turns that are expected and need each other, the later one waits.
async fn order(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 2).await;
    for (held, fact) in held.iter().zip(["f", "g"]) {
        is_expected(shard, held, fact).await;
    }
    unmet("the first does not wait", enter(shard, &held[0], &["+g"], &["S f"]).await, FactState::Never)?;
    same("the second waits", enter(shard, &held[1], &["+f"], &["S g"]).await, waits(&held[0]))
}

/// A call waits for one that has entered, though its own turn came first.
async fn later(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 2).await;
    for held in &held {
        is_expected(shard, held, "f").await;
    }
    same("the second comes first", enter(shard, &held[1], &["-f"], &["S f"]).await, Entered::Ok(vec![]))?;
    same("the first waits", enter(shard, &held[0], &["-f"], &["S f"]).await, waits(&held[1]))
}

/// A call that is over, and said nothing of facts, may have set its own.
async fn over(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 2).await;
    same("it enters", enter(shard, &held[0], &[], &["S f"]).await, Entered::Ok(vec![]))?;
    let record = shard.store.keys().turn(&held[0].0);
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("HSET").arg(record).arg("dn").arg(1).query_async(&mut redis).await.unwrap();
    unmet("what is over is known as far as it is", enter(shard, &held[1], &["+f"], &[]).await, FactState::Perhaps)
}

/// Who waits for work of its own does not hold that work up, and holds up others.
async fn own_work(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 3).await;
    same("it enters", enter(shard, &held[0], &[], &["S f"]).await, Entered::Ok(vec![]))?;
    waits_for(shard, &held[0], &held[2], true).await?;
    unmet("its own work goes on", enter(shard, &held[2], &["+f"], &[]).await, FactState::Never)?;
    same("others wait", enter(shard, &held[1], &["-f"], &[]).await, waits(&held[0]))
}

/// Two calls wait for work of their own, which waits for the other one.
async fn circle(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 4).await;
    for (of, fact) in [(0, "S f"), (1, "S g")] {
        same("it enters", enter(shard, &held[of], &[], &[fact]).await, Entered::Ok(vec![]))?;
        waits_for(shard, &held[of], &held[of + 2], true).await?;
    }
    same("the first waits", enter(shard, &held[2], &["-g"], &[]).await, waits(&held[1]))?;
    unmet("the circle is not closed", enter(shard, &held[3], &["-f"], &[]).await, FactState::Undecided)
}

/// What a call needs is expected of a turn that stands in line for a place which the call's own caller holds.
async fn place(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 2).await;
    is_expected(shard, &held[0], "f").await;
    let mut redis = shard.server.connection().await;
    let keys = shard.store.keys();
    let set = |turn: &TurnName, fields: &[(&str, &str)]| {
        let mut hset = redis::cmd("HSET");
        hset.arg(keys.turn(turn)).arg(fields);
        hset
    };
    let parent = TurnName { tenant: held[0].0.tenant.clone(), turn: TurnId::new("job").unwrap() };
    let all = [
        set(&held[0].0, &[("ln", "pairs@acme")]),
        set(&held[1].0, &[("tk", "job")]),
        set(&parent, &[("ho", "pairs@acme 1")]),
    ];
    for one in all {
        let () = one.query_async(&mut redis).await.unwrap();
    }
    let () = redis::cmd("HDEL").arg(keys.turn(&held[0].0)).arg("f").query_async(&mut redis).await.unwrap();
    unmet("nothing can come of it", enter(shard, &held[1], &["+f"], &[]).await, FactState::Never)
}

/// A call that is only expected is waited for where something is missing, and stops nobody else.
async fn expected(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 3).await;
    is_expected(shard, &held[0], "f").await;
    same("what is missing is waited for", enter(shard, &held[1], &["+f"], &[]).await, waits(&held[0]))?;
    same("it stops nobody", enter(shard, &held[2], &["-f"], &[]).await, Entered::Ok(vec![]))
}

/// What was so when a call was let in lets it in again; and of one that has begun its begin says what is known.
async fn once(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 3).await;
    same("it enters", enter(shard, &held[0], &["-f"], &["S g"]).await, Entered::Ok(vec![]))?;
    begin(shard, &held[2]).await;
    is_set(shard, &held[1], "f").await?;
    same("it was let in", enter(shard, &held[0], &["-f"], &["S g"]).await, Entered::Ok(vec![]))?;
    same("it has begun", enter(shard, &held[2], &["-f"], &[]).await, Entered::Begun)
}

/// Redis is another than the worker knows.
async fn restarted(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 1).await;
    let asks = FactsEntry { knows: Some("another".into()), ..entry(&held[0], &[], &[]) };
    same("somebody may know more", ask(shard, asks).await, Entered::Hold)?;
    let stale = (held[0].0.clone(), "1-1".to_owned());
    same("it is another's", enter(shard, &stale, &[], &["S f"]).await, Entered::Stale)
}

/// A turn that came before is not decided about yet.
async fn early(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 1).await;
    let turn = Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: TurnId::new("first").ok(),
        digest: "d".into(),
        reply_to: None,
        payload: "{}".into(),
    };
    shard.store.submit(&[turn]).await.unwrap();
    let asks = |submitted_ms| FactsEntry { submitted_ms, ..entry(&held[0], &["+f"], &[]) };
    let waits = Entered::Waits(held[0].0.turn.clone());
    same("it may bring it", ask(shard, asks(i64::MAX)).await, waits.clone())?;
    unmet("it came later", ask(shard, asks(1)).await, FactState::Never)?;
    // Somebody had read it, and it stands behind later ones now.
    let reader = ConsumerId::new("s-gone").unwrap();
    let turns = shard.store.keys().key("turns");
    let mut redis = shard.server.connection().await;
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP").arg("workers").arg(&*reader.to_string()).arg("STREAMS").arg(&turns).arg(">");
    let _: redis::Value = read.query_async(&mut redis).await.unwrap();
    same("it is given back", shard.store.put_back(&reader).await.unwrap(), 1)?;
    same("it may have come before", ask(shard, asks(1)).await, waits)
}

async fn full(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 1).await;
    let (mut redis, mut pipe) = (shard.server.connection().await, redis::pipe());
    let key = shard.store.keys().key(format_args!("facts:acme:{}", session()));
    for number in 0..limits::FACTS_PER_SESSION_MAX {
        let fact = format!("{} y {START_MS} t/0", START_MS + 60_000);
        pipe.hset(&key, format!("f{number}"), fact).ignore();
    }
    let () = pipe.query_async(&mut redis).await.unwrap();
    same("there is no room", enter(shard, &held[0], &[], &["S one_more"]).await, Entered::Full)
}

/// Whoever only looks changes nothing.
async fn looks(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 2).await;
    let looks = FactsEntry { looks: true, ..entry(&held[0], &["-g"], &["S f"]) };
    same("it might begin", ask(shard, looks).await, Entered::Ok(vec![]))?;
    unmet("nobody is under way", enter(shard, &held[1], &["+f"], &[]).await, FactState::Never)
}

/// A call that waits for an equal one begins by what is so when it begins, and is expected until then.
async fn again(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 3).await;
    same("it enters", enter(shard, &held[0], &["-f"], &["S g"]).await, Entered::Ok(vec![]))?;
    waits_for(shard, &held[0], &held[2], false).await?;
    let waits = Entered::Waits(held[0].0.turn.clone());
    same("it may bring it still", enter(shard, &held[1], &["+g"], &[]).await, waits)?;
    is_set(shard, &held[1], "f").await?;
    let next = gone_on(shard, &held[0]).await?;
    unmet("it has not begun", enter(shard, &next, &["-f"], &["S g"]).await, FactState::Set)
}

async fn all(scripts: Scripts) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    order(&shard).await?;
    fresh(&shard).await;
    over(&shard).await?;
    fresh(&shard).await;
    later(&shard).await?;
    fresh(&shard).await;
    own_work(&shard).await?;
    fresh(&shard).await;
    circle(&shard).await?;
    fresh(&shard).await;
    place(&shard).await?;
    fresh(&shard).await;
    expected(&shard).await?;
    fresh(&shard).await;
    once(&shard).await?;
    fresh(&shard).await;
    restarted(&shard).await?;
    fresh(&shard).await;
    early(&shard).await?;
    fresh(&shard).await;
    full(&shard).await?;
    fresh(&shard).await;
    looks(&shard).await?;
    fresh(&shard).await;
    again(&shard).await
}

#[tokio::test]
async fn switching_off_a_guard_of_facts_is_noticed() {
    each_is_missed(FACTS, all).await;
}

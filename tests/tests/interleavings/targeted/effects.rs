//! The ledger of effects: who may begin, who waits, and what is told of whom.

use tickfleet_store::{Claimant, Claimed, Concluded, Conclusion, EffectClaim, EffectEnd, EffectName, Wait};

use super::*;

/// For how long an end answers equal calls.
pub(super) const WINDOW_MS: i64 = 60_000;

type Held = (TurnName, String);

/// Turns of two calls that are out, as schedulers write them.
pub(super) async fn leased(shard: &Shard, turns: usize) -> Vec<Held> {
    let mut batch = shard.inbound(turns).await;
    batch.iter_mut().for_each(|turn| turn.meta = r#"{"dg":"d"}"#.into());
    shard.admit(&batch).await.unwrap();
    shard.beat("w").await;
    let entries = shard.reader("w").take("ready:normal", turns).await.unwrap();
    let text = |e: &Entry| String::from_utf8_lossy(e.field("t").unwrap_or_default()).into_owned();
    entries.iter().map(|e| (TurnName::parse(&text(e)).unwrap(), e.id.clone())).collect()
}

fn effect() -> EffectName {
    EffectName { tenant: TenantId::new("acme").unwrap(), tool: "pay".into(), hash: "0".repeat(64) }
}

pub(super) fn claimant(held: &Held) -> Claimant {
    Claimant::new(&held.0.turn, 0, "d")
}

pub(super) async fn claim_over(shard: &Shard, held: &Held, nothing: Option<Claimant>) -> Claimed {
    let claim = EffectClaim {
        name: held.0.clone(),
        fence: held.1.clone(),
        position: 0,
        digest: "d".into(),
        effect: effect(),
        window_ms: WINDOW_MS,
        nothing,
        knows: None,
    };
    shard.store.claim(&[claim]).await.unwrap().remove(0)
}

pub(super) async fn claim(shard: &Shard, held: &Held) -> Claimed {
    claim_over(shard, held, None).await
}

pub(super) async fn conclude(shard: &Shard, held: &Held, end: EffectEnd) -> Concluded {
    let conclusion = Conclusion { effect: effect(), by: claimant(held), window_ms: WINDOW_MS, end };
    shard.store.conclude(&[conclusion]).await.unwrap().remove(0)
}

#[tokio::test]
async fn one_of_equal_calls_begins_and_its_end_answers_the_others_within_the_window() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 3).await;
    assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
    // A worker that takes the slice over claims again.
    assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
    assert_eq!(claim(&shard, &held[1]).await, Claimed::Waits(held[0].0.turn.clone()));
    assert_eq!(conclude(&shard, &held[1], EffectEnd::Undone).await, Concluded::Others);
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Ended("first".into())).await, Concluded::Ok);
    // What a later holder, who knows less, says of it changes nothing.
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Unknown("?".into())).await, Concluded::Known);
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Undone).await, Concluded::Known);
    for call in &held[..2] {
        assert_eq!(claim(&shard, call).await, Claimed::Ended(claimant(&held[0]), "first".into()));
    }
    shard.advance(WINDOW_MS - 1);
    assert_eq!(claim(&shard, &held[2]).await, Claimed::Ended(claimant(&held[0]), "first".into()));
    shard.advance(1);
    assert_eq!(claim(&shard, &held[2]).await, Claimed::Ours);
}

#[tokio::test]
async fn what_certainly_did_nothing_lets_the_next_call_begin_and_wakes_who_waits() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 2).await;
    assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
    assert_eq!(claim(&shard, &held[1]).await, Claimed::Waits(held[0].0.turn.clone()));
    let wait = Wait {
        name: held[1].0.clone(),
        fence: held[1].1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        awaits: Some(held[0].0.turn.clone()),
        at_most: Duration::from_secs(300),
        has_begun: false,
        beside: false,
    };
    assert_eq!(shard.store.wait(&[wait]).await.unwrap(), [Parked::Ok]);
    assert_eq!(waits::due(&shard, 0).await, []);
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Undone).await, Concluded::Ok);
    assert_eq!(waits::due(&shard, 0).await, [held[1].0.clone()]);
}

#[tokio::test]
async fn a_claim_whose_call_is_over_without_a_word_is_not_taken_for_nothing() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 3).await;
    assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
    // Known to have come to nothing, says somebody; but it is under way.
    let early = claim_over(&shard, &held[1], Some(claimant(&held[0]))).await;
    assert_eq!(early, Claimed::Waits(held[0].0.turn.clone()));
    let mut connection = shard.server.connection().await;
    let record = shard.store.keys().turn(&held[0].0);
    let _: () = redis::cmd("HSET")
        .arg(&record)
        .arg("dn")
        .arg(1)
        .arg("r0")
        .arg("its result")
        .query_async(&mut connection)
        .await
        .unwrap();
    let told = Claimed::Gone(claimant(&held[0]), Some("its result".into()));
    assert_eq!(claim(&shard, &held[1]).await, told);
    let _: () = redis::cmd("DEL").arg(&record).query_async(&mut connection).await.unwrap();
    assert_eq!(claim(&shard, &held[1]).await, Claimed::Gone(claimant(&held[0]), None));
    assert_eq!(claim_over(&shard, &held[1], Some(claimant(&held[0]))).await, Claimed::Ours);
    // The next one that had heard the same comes too late.
    assert_eq!(claim_over(&shard, &held[2], Some(claimant(&held[0]))).await, Claimed::Waits(held[1].0.turn.clone()));
    // Nobody claims for a slice that is another's.
    let stale = (held[2].0.clone(), "1-1".to_owned());
    assert_eq!(claim(&shard, &stale).await, Claimed::Stale);
}

#[tokio::test]
async fn a_call_that_was_begun_is_never_answered_by_another_and_a_lost_claim_is_held_for_a_lease() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 3).await;
    let begin = Begin {
        name: held[1].0.clone(),
        fence: held[1].1.clone(),
        position: 0,
        nonce: Some("n".into()),
        digest: "d".into(),
        knows: None,
    };
    assert_eq!(shard.store.begin(&[begin]).await.unwrap(), [Begun::Ok]);
    assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
    assert_eq!(claim(&shard, &held[1]).await, Claimed::Begun);
    // Redis is another: its last second is lost, the claim with it.
    let mut connection = shard.server.connection().await;
    let key = shard.store.keys().key(format_args!("effect:{}", effect()));
    let left: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut connection).await.unwrap();
    assert!(left > WINDOW_MS, "{left}");
    let _: () = redis::cmd("DEL").arg(&key).query_async(&mut connection).await.unwrap();
    let meta = shard.store.keys().key("meta");
    let _: () = redis::cmd("HSET").arg(&meta).arg("run_id").arg("another").query_async(&mut connection).await.unwrap();
    assert_eq!(claim(&shard, &held[2]).await, Claimed::Hold);
    // Whoever runs it says that it has claimed it; the next to say so comes too late.
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Open).await, Concluded::Ok);
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Open).await, Concluded::Known);
    assert_eq!(conclude(&shard, &held[2], EffectEnd::Open).await, Concluded::Others);
    assert_eq!(claim(&shard, &held[2]).await, Claimed::Waits(held[0].0.turn.clone()));
    // Whoever ran it says meanwhile what came of it.
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Ended("first".into())).await, Concluded::Ok);
    assert_eq!(conclude(&shard, &held[0], EffectEnd::Open).await, Concluded::Known);
    assert_eq!(claim(&shard, &held[2]).await, Claimed::Ended(claimant(&held[0]), "first".into()));
}

#[tokio::test]
async fn the_record_of_a_call_whose_claim_was_said_again_says_whose_it_is() {
    let without = ("    leave_trace(tt)\n    return 'CLAIMED'", "    return 'CLAIMED'");
    let scripts = [(Scripts::embedded(), true), (Scripts::embedded().sabotage(without.0, without.1).unwrap(), false)];
    for (scripts, says) in scripts {
        let shard = Shard::new(RedisOptions::default(), scripts).await;
        let held = leased(&shard, 1).await;
        // Redis has lost the claim, and with it that the turn has made one.
        assert_eq!(conclude(&shard, &held[0], EffectEnd::Open).await, Concluded::Ok);
        assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
        assert_eq!(shard.settle(&held[0], 2).await.unwrap(), [Settled::Done]);
        let mut redis = shard.server.connection().await;
        let done = shard.store.keys().done(&held[0].0);
        let record: String = redis::cmd("GET").arg(&done).query_async(&mut redis).await.unwrap();
        assert_eq!(record.lines().next().is_some_and(|trace| trace.ends_with(" dg=d")), says, "{record}");
    }
}

#[tokio::test]
async fn while_memory_is_short_a_result_is_kept_without_a_large_output() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 2).await;
    let mut redis = shard.server.connection().await;
    let meta = shard.store.keys().key("meta");
    let result = |output: &str| format!(r#"{{"call":"t0/0","output":{output},"error":null}}"#);
    let large = format!("{:?}", "x".repeat(300));
    for (pressure, output, kept) in [("1", &*large, "null"), ("1", "1", "1"), ("0", &*large, &*large)] {
        let () = redis::cmd("HSET").arg(&meta).arg("pressure").arg(pressure).query_async(&mut redis).await.unwrap();
        assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
        assert_eq!(conclude(&shard, &held[0], EffectEnd::Ended(result(output))).await, Concluded::Ok);
        let kept = Claimed::Ended(claimant(&held[0]), result(kept));
        assert_eq!(claim(&shard, &held[1]).await, kept, "{pressure} {output}");
        shard.advance(WINDOW_MS + 1);
    }
}

//! Of equal calls, which may begin, and what the others are told.

use tickfleet_store::{Claimed, Concluded, EffectEnd};
use tickfleet_testkit::guards::LEDGER_ALONE;

use super::super::effects::{WINDOW_MS, claim, claim_over, claimant, conclude, leased};
use super::*;

fn ended() -> EffectEnd {
    EffectEnd::Ended("first".into())
}

/// Who has the claim answers equal calls for a while, but none that was begun, and for nobody who is stale.
async fn answered(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 3).await;
    let stale = (held[0].0.clone(), "1-1".to_owned());
    same("it is another's", claim(shard, &stale).await, Claimed::Stale)?;
    same("it has the claim", claim(shard, &held[0]).await, Claimed::Ours)?;
    same("it ends", conclude(shard, &held[0], ended()).await, Concluded::Ok)?;
    for less in [EffectEnd::Undone, EffectEnd::Unknown("?".into())] {
        same("nobody knows better", conclude(shard, &held[0], less).await, Concluded::Known)?;
    }
    let told = Claimed::Ended(claimant(&held[0]), "first".into());
    same("it answers another", claim(shard, &held[1]).await, told)?;
    begin(shard, &held[1]).await;
    same("but none that was begun", claim(shard, &held[1]).await, Claimed::Begun)?;
    shard.advance(WINDOW_MS);
    same("nor for ever", claim(shard, &held[2]).await, Claimed::Ours)
}

/// A claim is nobody's but its call's, and its call's as long as that is under way.
async fn claimed(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 2).await;
    same("it has the claim", claim(shard, &held[0]).await, Claimed::Ours)?;
    let early = claim_over(shard, &held[1], Some(claimant(&held[0]))).await;
    same("it runs", early, Claimed::Waits(held[0].0.turn.clone()))?;
    let mut redis = shard.server.connection().await;
    let record = shard.store.keys().turn(&held[0].0);
    let () = redis::cmd("HSET").arg(record).arg("m").arg(r#"{"dg":"e"}"#).query_async(&mut redis).await.unwrap();
    same("its id is another's", claim(shard, &held[1]).await, Claimed::Gone(claimant(&held[0]), None))
}

/// Who waits for an equal call is woken by its end, also where its claim was said again.
async fn woken(shard: &Shard) -> Result<(), String> {
    let held = leased(shard, 2).await;
    same("it has the claim", claim(shard, &held[0]).await, Claimed::Ours)?;
    same("the other waits", claim(shard, &held[1]).await, Claimed::Waits(held[0].0.turn.clone()))?;
    waits_for(shard, &held[1], &held[0], false).await?;
    same("it is said again", conclude(shard, &held[0], EffectEnd::Open).await, Concluded::Known)?;
    same("it ends", conclude(shard, &held[0], ended()).await, Concluded::Ok)?;
    same("it is woken", waits::due(shard, 0).await, vec![held[1].0.clone()])
}

async fn all(scripts: Scripts) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    answered(&shard).await?;
    fresh(&shard).await;
    claimed(&shard).await?;
    fresh(&shard).await;
    woken(&shard).await
}

#[tokio::test]
async fn switching_off_a_guard_of_the_ledger_that_no_interleaving_shows_is_noticed() {
    each_is_missed(LEDGER_ALONE, all).await;
}

/// A turn that waited for an equal call is parked for a retry when that ends: its wait between tries stays as it is.
#[tokio::test]
async fn whoever_waited_for_an_equal_call_and_failed_since_is_not_tried_again_before_its_time() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let held = leased(&shard, 2).await;
    assert_eq!(claim(&shard, &held[0]).await, Claimed::Ours);
    assert_eq!(claim(&shard, &held[1]).await, Claimed::Waits(held[0].0.turn.clone()));
    waits_for(&shard, &held[1], &held[0], false).await.unwrap();
    // It looks by itself, and waits once more by the ledger's word; but is parked for another reason before.
    let next = gone_on(&shard, &held[1]).await.unwrap();
    assert_eq!(claim(&shard, &next).await, Claimed::Waits(held[0].0.turn.clone()));
    let retry = Retry {
        name: next.0.clone(),
        fence: next.1.clone(),
        queue: Queue::Ready(Priority::Normal),
        position: 0,
        delay_ms: 60_000,
        attempt: 1,
        beside: false,
        begun: false,
        cause: "busy".into(),
    };
    assert_eq!(shard.store.retry(&[retry]).await.unwrap(), [Parked::Ok]);
    assert_eq!(conclude(&shard, &held[0], ended()).await, Concluded::Ok);
    assert_eq!(waits::due(&shard, 59_999).await, []);
    assert_eq!(waits::due(&shard, 60_000).await, [next.0]);
}

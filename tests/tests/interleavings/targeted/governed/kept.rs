//! Kept answers, and rows of equal calls.

use tickfleet_store::Answer;
use tickfleet_testkit::guards::KEPT;

use super::super::kept::{answer, call, count, looked, refused};
use super::*;

async fn all(scripts: Scripts) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    // Its worker was stopped for ten seconds before it said so.
    let old = Answer { asked_ms: START_MS, ..answer("acme", 1, 60, "1") };
    shard.advance(10_000);
    same("it is kept", shard.store.fill(std::slice::from_ref(&old)).await.unwrap(), vec![true])?;
    same("it is as old as its question", looked(&shard, "acme", 1).await, Some((10, "1".into())))?;
    shard.advance(49_999);
    same("until its time has come", looked(&shard, "acme", 1).await, Some((59, "1".into())))?;
    shard.advance(1);
    same("and no longer", looked(&shard, "acme", 1).await, None)?;
    same("nor is it kept then", shard.store.fill(&[old]).await.unwrap(), vec![false])?;
    for number in 1..5 {
        same("it came so often", count(&shard, call(None, "look"), "same", number).await, number as u64)?;
        same("that is not too often", refused(&shard, call(None, "look")).await, false)?;
    }
    count(&shard, call(None, "look"), "same", 5).await;
    same("and then it is", refused(&shard, call(None, "look")).await, true)
}

#[tokio::test]
async fn switching_off_a_guard_of_what_is_kept_is_noticed() {
    each_is_missed(KEPT, all).await;
}

//! What operators do with what was put aside, and with workers: each once, told, and bounded; with rows that switch that off.

use redis::AsyncCommands;
use tickfleet_model::policy::Pause;
use tickfleet_model::{InboxName, limits};
use tickfleet_store::{Anew, Aside, Handled, PauseSet, Restored};
use tickfleet_testkit::guards::ASIDE;

use super::*;

/// The worker, and the name of one of its starts.
const WORKER: (&str, &str) = ("w-host-7", "w-host-7-1a4-0");

fn is(what: &str, found: impl std::fmt::Debug, expected: impl std::fmt::Debug) -> Result<(), String> {
    let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
    if found == expected { Ok(()) } else { Err(format!("{what}: {found}, not {expected}")) }
}

/// Whatever is replayed is sent once, by whoever asks, and under an id that nobody has.
async fn replays(scripts: &Scripts) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts.clone()).await;
    let (mut redis, key) = (shard.server.connection().await, |name: &str| shard.store.keys().key(name));
    let letter: String = redis.xadd(key("dead"), "*", &[("any", "letter")]).await.unwrap();
    let call: String = redis.xadd(key("audit"), "*", &[("audit", "{}")]).await.unwrap();
    let task = Anew::Task("{}");
    for (aside, again) in [(Aside::Letter(&letter), Handled::Gone), (Aside::Call(&call), Handled::Again)] {
        is("the first time", shard.store.replay(aside, task, "{}").await.unwrap(), Handled::Ok)?;
        is("the second time", shard.store.replay(aside, task, "{}").await.unwrap(), again)?;
    }
    is("tasks that were sent", redis.xlen::<_, usize>(key("tasks")).await.unwrap(), 2)?;
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("mine").unwrap() };
    let inbox = InboxName::new("nobody-reads").unwrap();
    for (digest, reply_to, expected) in
        [("d", None, Handled::Ok), ("d", None, Handled::Duplicate), ("x", None, Handled::Conflict)]
    {
        let letter: String = redis.xadd(key("dead"), "*", &[("any", "letter")]).await.unwrap();
        let anew = Anew::Turn { name: &name, digest, message: "{}", reply_to };
        is(digest, shard.store.replay(Aside::Letter(&letter), anew, "{}").await.unwrap(), expected)?;
    }
    // As many replies as an inbox may have, all of them unread.
    let mut replies = redis::pipe();
    for _ in 0..StoreOptions::default().inbox_unread_max {
        replies.xadd(key("replies:acme:nobody-reads"), "*", &[("any", "reply")]).ignore();
    }
    let () = replies.query_async(&mut redis).await.unwrap();
    let other = TurnName { turn: TurnId::new("other").unwrap(), ..name };
    let letter: String = redis.xadd(key("dead"), "*", &[("any", "letter")]).await.unwrap();
    let anew = Anew::Turn { name: &other, digest: "d", message: "{}", reply_to: Some(&inbox) };
    is("nobody reads", shard.store.replay(Aside::Letter(&letter), anew, "{}").await.unwrap(), Handled::InboxFull)
}

/// A worker hears of its drain, by who had it drained first; it ends with the worker, and there are not too many.
async fn drains(scripts: &Scripts) -> Result<(), String> {
    let shard = Shard::new(RedisOptions::default(), scripts.clone()).await;
    let (mut redis, consumer) = (shard.server.connection().await, ConsumerId::new(WORKER.1).unwrap());
    let note = |by: &str| Pause { by: by.into(), reason: "a kernel".into(), since_ms: START_MS };
    for (by, set) in [("anna", PauseSet::Ok), ("ben", PauseSet::None)] {
        is(by, shard.store.drain_worker(WORKER.0, &note(by), "{}", &[]).await.unwrap(), set)?;
    }
    let beat = shard.store.beat(&consumer).await.unwrap();
    is("who it was", beat.drained.map(|note| note.by), Some("anna"))?;
    shard.store.leave(&consumer).await.unwrap();
    let beat = shard.store.beat(&consumer).await.unwrap();
    is("after it has left", beat.drained, None::<Pause>)?;
    let many: Vec<(String, String)> = (0..limits::DRAINS_MAX).map(|n| (format!("w-gone-{n}"), "{}".into())).collect();
    let () = redis.hset_multiple(shard.store.keys().key("drains"), &many).await.unwrap();
    is("one too many", shard.store.drain_worker(WORKER.0, &note("anna"), "{}", &[]).await.unwrap(), PauseSet::Full)?;
    // One that is put back is in the log already.
    let logged = || async { redis.clone().xlen::<_, usize>(shard.store.keys().key("audit")).await.unwrap() };
    let before = logged().await;
    let () = redis.clone().del(shard.store.keys().key("drains")).await.unwrap();
    is("it is put back", shard.store.restore_drain(WORKER.0, &note("anna")).await.unwrap(), Restored::Ok)?;
    is("it stands there", shard.store.restore_drain(WORKER.0, &note("anna")).await.unwrap(), Restored::Ok)?;
    is("entries of the log", logged().await, before)?;
    // Whoever resumes it has the last word, also where Redis knows of no drain: the worker may not have heard that.
    for set in [PauseSet::Ok, PauseSet::None] {
        shard.advance(10);
        is("it is resumed", shard.store.resume_worker(WORKER.0, "{}").await.unwrap(), set)?;
        is("its own is older", shard.store.restore_drain(WORKER.0, &note("anna")).await.unwrap(), Restored::Lifted)?;
    }
    is("nobody drains it", shard.store.beat(&consumer).await.unwrap().drained, None::<Pause>)?;
    let later = Pause { since_ms: START_MS + 20, ..note("ben") };
    is("drained anew", shard.store.drain_worker(WORKER.0, &later, "{}", &[]).await.unwrap(), PauseSet::Ok)?;
    let () = redis.clone().del(shard.store.keys().key("drains")).await.unwrap();
    is("which is lost", shard.store.restore_drain(WORKER.0, &later).await.unwrap(), Restored::Ok)
}

async fn all(scripts: &Scripts) -> Result<(), String> {
    replays(scripts).await?;
    drains(scripts).await
}

#[tokio::test]
async fn what_was_put_aside_is_replayed_once_and_a_worker_hears_of_its_drain() {
    all(&Scripts::embedded()).await.unwrap();
}

#[tokio::test]
async fn switching_off_a_guard_of_replays_and_drains_is_noticed() {
    for (rule, what, from, to) in ASIDE {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        let noticed = all(&scripts).await;
        println!("{what}: {noticed:?}");
        assert!(noticed.is_err(), "rule {rule}: {what}: not noticed");
    }
}

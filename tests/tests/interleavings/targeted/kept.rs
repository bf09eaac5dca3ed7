//! Kept answers of reads, and rows of equal calls: what is kept, for how long, and what makes room.

use tickfleet_store::{Answer, ReadName, Repeat, Repeated, RowBounds, RowCall, RowName};

use super::*;

fn read(tenant: &str, hash: impl ToString) -> ReadName {
    ReadName { tenant: TenantId::new(tenant).unwrap(), hash: hash.to_string() }
}

pub(super) fn answer(tenant: &str, hash: impl ToString, ttl: u64, output: &str) -> Answer {
    let (read, ttl) = (read(tenant, hash), Duration::from_secs(ttl));
    let text = |text: &str| text.to_owned();
    Answer {
        read,
        ttl,
        asked_ms: i64::MAX,
        call: text("t/0"),
        content_type: text("application/json"),
        output: text(output),
    }
}

pub(super) async fn looked(shard: &Shard, tenant: &str, hash: impl ToString) -> Option<(u64, String)> {
    let found = shard.store.lookup(&[read(tenant, hash)]).await.unwrap().remove(0)?;
    Some((found.age.as_secs(), found.output))
}

async fn bytes(shard: &Shard) -> (i64, i64, i64) {
    let mut redis = shard.server.connection().await;
    let key = |name: &str| format!("{}{name}:acme", shard.store.keys().prefix());
    let mut pipe = redis::pipe();
    pipe.hget(key("cached"), "b").zcard(key("cached_order")).ttl(key("cached"));
    let (kept, entries, ttl): (Option<i64>, i64, i64) = pipe.query_async(&mut redis).await.unwrap();
    (kept.unwrap_or_default(), entries, ttl)
}

#[tokio::test]
async fn an_answer_is_kept_for_its_time_by_the_shards_clock_and_for_its_tenant_alone() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    assert_eq!(looked(&shard, "acme", 1).await, None);
    let output = "{\"a b\": \"c\\nd  e\"}";
    shard.store.fill(&[answer("acme", 1, 60, output), answer("acme", 2, 120, "2")]).await.unwrap();
    shard.advance(59_999);
    assert_eq!(looked(&shard, "acme", 1).await, Some((59, output.to_owned())));
    assert_eq!(looked(&shard, "bolt", 1).await, None);
    shard.advance(1);
    assert_eq!(looked(&shard, "acme", 1).await, None);
    assert_eq!(looked(&shard, "acme", 2).await.unwrap().1, "2");
    // A clock that steps back makes nothing younger than it is, nor older.
    shard.advance(-50_000);
    assert_eq!(looked(&shard, "acme", 2).await.unwrap().0, 60);
    // What is over goes with the next that comes; what comes again takes its own place.
    shard.store.fill(&[answer("acme", 2, 60, "22")]).await.unwrap();
    let (kept, entries, ttl) = bytes(&shard).await;
    assert_eq!((entries, ttl > 0), (1, true), "{kept}");
    shard.advance(200_000);
    shard.store.fill(&[answer("acme", 3, 60, "3")]).await.unwrap();
    let (again, entries, _) = bytes(&shard).await;
    assert_eq!((entries, again), (1, kept - 1), "bytes follow what is there");
    // What a hand left there is no answer.
    let mut redis = shard.server.connection().await;
    let key = format!("{}cached:acme", shard.store.keys().prefix());
    let () = redis::cmd("HSET").arg(key).arg("3").arg("no answer").query_async(&mut redis).await.unwrap();
    assert_eq!(looked(&shard, "acme", 3).await, None);
}

#[tokio::test]
async fn a_tenants_answers_stay_within_their_bytes_and_what_would_go_first_makes_room() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let large = format!("\"{}\"", "x".repeat(limits::CACHED_OUTPUT_BYTES_MAX - 2));
    let fits = limits::CACHED_TENANT_BYTES_MAX / limits::CACHED_OUTPUT_BYTES_MAX;
    for from in (0..fits + 20).step_by(10) {
        let batch: Vec<Answer> = (from..from + 10).map(|i| answer("acme", i, 100 + i as u64, &large)).collect();
        shard.store.fill(&batch).await.unwrap();
    }
    let (kept, entries, _) = bytes(&shard).await;
    assert!(kept <= limits::CACHED_TENANT_BYTES_MAX as i64 && entries > fits as i64 / 2, "{kept} {entries}");
    assert_eq!(looked(&shard, "acme", 0).await, None, "it would have gone first");
    assert!(looked(&shard, "acme", fits + 15).await.is_some());
}

#[tokio::test]
async fn nothing_is_kept_while_memory_is_short_and_what_is_there_is_read() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    assert_eq!(shard.store.fill(&[answer("acme", 1, 60, "1")]).await.unwrap(), [true]);
    shard.fill_memory().await;
    let refused = shard.store.fill(&[answer("acme", 2, 60, "2")]).await;
    assert!(refused.is_err() || refused.is_ok_and(|kept| kept == [false]));
    assert_eq!(looked(&shard, "acme", 1).await, Some((0, "1".into())));
    assert_eq!(looked(&shard, "acme", 2).await, None);
}

const BOUNDS: RowBounds =
    RowBounds { refused_after: 5, refused_for: Duration::from_secs(60), forgotten_after: Duration::from_secs(600) };

pub(super) fn call(task: Option<&str>, hash: &str) -> RowCall {
    let task = task.map(|task| TaskId::new(task).unwrap());
    let row = RowName { tenant: TenantId::new("acme").unwrap(), agent: AgentId::new("kelly").unwrap(), task };
    RowCall { row, hash: hash.into() }
}

pub(super) async fn count(shard: &Shard, of: RowCall, result: &str, by: usize) -> u64 {
    let repeat = Repeat { call: of, result: result.into(), by: format!("t{by}/0"), bounds: BOUNDS };
    let Repeated { count, .. } = shard.store.count_repeat(&[repeat]).await.unwrap().remove(0);
    count
}

pub(super) async fn refused(shard: &Shard, of: RowCall) -> bool {
    shard.store.brake(&[of]).await.unwrap().remove(0).is_some()
}

#[tokio::test]
async fn a_row_is_of_one_agent_call_and_result_and_is_refused_for_a_while_when_it_is_too_long() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let look = || call(None, "look");
    for n in 1..=4 {
        assert_eq!(count(&shard, look(), "same", n).await, n as u64);
    }
    assert_eq!(count(&shard, look(), "same", 4).await, 4, "carried out again, it is the same call");
    assert_eq!(count(&shard, call(Some("job"), "look"), "same", 5).await, 1, "a task has a row of its own");
    assert_eq!(count(&shard, look(), "other", 6).await, 1, "it got somewhere");
    assert_eq!(count(&shard, look(), "same", 7).await, 1);
    assert_eq!(count(&shard, call(None, "write"), "same", 8).await, 1);
    for n in 1..=5 {
        assert!(!refused(&shard, look()).await, "{n}");
        assert_eq!(count(&shard, look(), "same", 10 + n).await, n as u64);
    }
    assert!(refused(&shard, look()).await);
    assert!(!refused(&shard, call(None, "write")).await && !refused(&shard, call(Some("job"), "look")).await);
    // Another call in between does not help.
    count(&shard, call(None, "write"), "same", 20).await;
    assert!(refused(&shard, look()).await);
    shard.advance(60_000);
    assert!(!refused(&shard, look()).await);
    assert_eq!(count(&shard, look(), "same", 21).await, 1, "after the rest, the row begins anew");
    for n in 0..200 {
        for _ in 0..5 {
            count(&shard, call(None, &n.to_string()), "same", n * 5).await;
        }
    }
    let mut redis = shard.server.connection().await;
    let key = format!("{}row:acme:kelly", shard.store.keys().prefix());
    let (fields, ttl): (i64, i64) = redis::pipe().hlen(&key).ttl(&key).query_async(&mut redis).await.unwrap();
    assert!(fields <= 41 && ttl > 0, "{fields} {ttl}");
}

//! Scripts that run for one turn alone: what they save costs no promise.

use super::*;

async fn entries(shard: &Shard, stream: &str) -> u64 {
    let mut redis = shard.server.connection().await;
    redis::cmd("XLEN").arg(shard.store.keys().key(stream)).query_async(&mut redis).await.unwrap()
}

/// Leases one slice: its turn and its fence.
async fn leased(shard: &Shard) -> (TurnName, String) {
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    (TurnName::parse(&String::from_utf8_lossy(entry.field("t").unwrap())).unwrap(), entry.id)
}

#[tokio::test]
async fn turns_that_end_one_by_one_leave_nothing_behind_and_take_nothing_that_is_unread() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    shard.beat("w").await;
    let turns = shard.inbound(3).await;
    for (turn, left) in turns.iter().zip([2, 1, 0]) {
        shard.admit(std::slice::from_ref(turn)).await.unwrap();
        assert_eq!(entries(&shard, "turns").await, left);
    }
    let (first, second) = (leased(&shard).await, leased(&shard).await);
    // The older one that is held keeps what has ended; the unread one stays.
    assert_eq!(shard.settle(&second, 2).await.unwrap(), [Settled::Done]);
    assert_eq!(shard.settle(&first, 2).await.unwrap(), [Settled::Done]);
    assert_eq!(entries(&shard, "ready:normal").await, 1);
    let third = leased(&shard).await;
    assert_eq!(shard.settle(&third, 2).await.unwrap(), [Settled::Done]);
    assert_eq!(entries(&shard, "ready:normal").await, 0);
}

#[tokio::test]
async fn an_admission_sees_a_new_epoch_and_opens_none_that_is_known() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let turns = shard.inbound(3).await;
    let mut redis = shard.server.connection().await;
    let meta = shard.store.keys().key("meta");
    let mut seen = Vec::new();
    for turn in &turns {
        shard.admit(std::slice::from_ref(turn)).await.unwrap();
        let known: (String, u64) =
            redis::cmd("HMGET").arg(&meta).arg(&["run_id", "epoch"]).query_async(&mut redis).await.unwrap();
        seen.push(known);
        if seen.len() == 2 {
            let other = redis::cmd("HSET").arg(&meta).arg(&["run_id", "0123456789abcdef"]).to_owned();
            let () = other.query_async(&mut redis).await.unwrap();
        }
    }
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut redis).await.unwrap();
    let own = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap().trim_end().to_owned();
    let began = seen[0].1;
    assert_eq!(seen, [(own.clone(), began), (own.clone(), began), (own, began + 1)]);
}

#[tokio::test]
async fn a_begin_and_a_promotion_see_a_new_epoch_and_open_none_that_is_known() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (name, fence) = shard.leased(1).await.remove(0);
    let nonce = Some("w.1".to_owned());
    let begin = Begin { name: name.clone(), fence, position: 0, nonce, digest: "d".into(), knows: None };
    assert_eq!(shard.store.begin(std::slice::from_ref(&begin)).await.unwrap(), [Begun::Ok]);
    let mut redis = shard.server.connection().await;
    let meta = shard.store.keys().key("meta");
    let mut epochs = Vec::new();
    for _ in 0..2 {
        let other = redis::cmd("HSET").arg(&meta).arg(&["run_id", "0123456789abcdef"]).to_owned();
        let () = other.query_async(&mut redis).await.unwrap();
        // Somebody else's begin, for one's own is repeated at any time.
        let other = Begin { nonce: Some("w.2".into()), ..begin.clone() };
        assert_eq!(shard.store.begin(&[other]).await.unwrap(), [Begun::Hold]);
        shard.store.promote(std::slice::from_ref(&name)).await.unwrap();
        let epoch: u64 = redis::cmd("HGET").arg(&meta).arg("epoch").query_async(&mut redis).await.unwrap();
        epochs.push(epoch);
        let () =
            redis::cmd("HSET").arg(&meta).arg(&["run_id", "fedcba9876543210"]).query_async(&mut redis).await.unwrap();
        shard.store.promote(std::slice::from_ref(&name)).await.unwrap();
        let epoch: u64 = redis::cmd("HGET").arg(&meta).arg("epoch").query_async(&mut redis).await.unwrap();
        epochs.push(epoch);
    }
    let first = epochs[0];
    assert_eq!(epochs, [first, first + 1, first + 2, first + 3]);
}

#[tokio::test]
async fn audit_entries_that_are_too_old_go_when_the_house_is_kept() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let (mut redis, key) = (shard.server.connection().await, shard.store.keys().key("audit"));
    let (seconds, _): (i64, i64) = redis::cmd("TIME").query_async(&mut redis).await.unwrap();
    let kept_ms = shard.store.options().audit_retain_ms;
    // Redis removes whole nodes of a hundred entries.
    for (of_ms, count) in [(seconds * 1_000 - kept_ms - 60_000, 300), (seconds * 1_000 - kept_ms + 600_000, 50)] {
        for n in 0..count {
            let add = redis::cmd("XADD").arg(&key).arg(format!("{of_ms}-{n}")).arg(&["audit", "{}"]).to_owned();
            let _: String = add.query_async(&mut redis).await.unwrap();
        }
    }
    let memory = shard.store.weigh().await.unwrap();
    shard.store.housekeep(memory, 1 << 30, kept_ms).await.unwrap();
    let left = entries(&shard, "audit").await;
    assert!((50..150).contains(&left), "{left} are left");
}

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

/// Commands that Redis has carried out in scripts since its statistics were reset.
async fn commands(shard: &Shard) -> u64 {
    let mut redis = shard.server.connection().await;
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut redis).await.unwrap();
    let () = redis::cmd("CONFIG").arg("RESETSTAT").query_async(&mut redis).await.unwrap();
    let outside = ["evalsha", "config", "info", "xreadgroup", "script"];
    let is_of_a_script = |line: &&str| !outside.iter().any(|name| line.starts_with(&format!("cmdstat_{name}")));
    let calls = |line: &str| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok();
    stats.lines().filter(is_of_a_script).filter_map(calls).sum()
}

#[tokio::test]
async fn a_turn_that_comes_alone_costs_redis_few_commands() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    shard.beat("w").await;
    let mut turns = shard.inbound(3).await;
    let (mut counts, inbox) = (Vec::new(), turns[0].tenant.as_str().to_owned() + ":box");
    let replies = shard.store.keys().key(format_args!("replies:{inbox}"));
    let mut redis = shard.server.connection().await;
    for turn in &mut turns {
        turn.reply_to = "box".parse().ok();
        commands(&shard).await;
        shard.admit(std::slice::from_ref(turn)).await.unwrap();
        let admitted = commands(&shard).await;
        let (name, fence) = leased(&shard).await;
        let head = r#"{"turn_id":"t","results":["#.into();
        let settlement = Settlement {
            name,
            fence,
            queue: Some(Queue::Ready(Priority::Normal)),
            first: 0,
            reply_to: turn.reply_to.clone(),
            frame: ReplyFrame { head, calls: Some(2), ..ReplyFrame::default() },
            calls: vec![SettledCall { result: "1".into(), ..SettledCall::default() }; 2],
        };
        commands(&shard).await;
        assert_eq!(shard.store.settle(&[settlement]).await.unwrap(), [Settled::Done]);
        counts.push((admitted, commands(&shard).await));
        let left_ms: i64 = redis::cmd("PTTL").arg(&replies).query_async(&mut redis).await.unwrap();
        let retain_ms = shard.store.options().reply_retain_ms;
        assert!(left_ms > retain_ms && left_ms <= retain_ms + retain_ms / 1_000, "{left_ms}");
        // Before the last one, a hand takes the inbox its end: it gets it back.
        if counts.len() == 2 {
            let () = redis::cmd("PERSIST").arg(&replies).query_async(&mut redis).await.unwrap();
        }
    }
    // The first one makes the inbox.
    assert_eq!(counts[1], (18, 17), "{counts:?}");
}

#[tokio::test]
async fn one_look_for_dead_consumers_is_enough_for_all_schedulers() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    shard.beat("w").await;
    let within = Duration::from_secs(3);
    let look = async || shard.store.reap_unless_within(within, 10).await.unwrap().map(|reaped| reaped.active);
    assert_eq!(look().await, Some(false), "the first one waits a lease");
    assert_eq!(look().await, None);
    shard.advance(2_999);
    assert_eq!(look().await, None);
    shard.advance(1);
    assert!(look().await.is_some(), "another one is due");
    // Whoever is not through looks again at once.
    assert!(shard.store.reap_unless_within(Duration::ZERO, 10).await.unwrap().is_some());
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

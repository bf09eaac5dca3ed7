//! Bounds on memory and inboxes, one by one.

use tickfleet_model::InboxName;
use tickfleet_store::Submitted;

use super::*;

#[tokio::test]
async fn while_memory_is_short_so_much_is_out_that_its_results_find_room() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let turns = shard.inbound(40).await;
    let come = async |turns: &[Admission]| match shard.admit(turns).await.unwrap() {
        AdmitReply::Decided { turns, .. } => Ok(turns.len()),
        AdmitReply::Pressure { turns_max } => Err(turns_max),
        other => panic!("{other:?}"),
    };
    // Full, and Redis refuses whatever is not meant to run then: sixteen slices at a time. Both forms of the script, which
    // are much in so small a server, are learned first.
    shard.bound_memory(95).await;
    assert!(come(&turns[..17]).await.is_err());
    shard.bound_memory(95).await;
    assert_eq!(come(&turns[..17]).await, Err(16));
    assert_eq!(come(&turns[..16]).await, Ok(16));
    assert_eq!(come(&turns[16..17]).await, Err(0));
    shard.beat("w").await;
    let entry = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    let name = TurnName::parse(&String::from_utf8_lossy(entry.field("t").unwrap())).unwrap();
    assert_eq!(shard.settle(&(name, entry.id), 2).await.unwrap(), [Settled::Done]);
    // Beside what is kept, the server has learned some scripts meanwhile.
    shard.bound_memory(95).await;
    assert_eq!(come(&turns[16..18]).await, Err(1), "one has ended");
    assert_eq!(come(&turns[16..17]).await, Ok(1));
    // What is kept has come to more than all of it: nothing more, until somebody reads or time passes.
    shard.bound_memory(75).await;
    assert_eq!(come(&turns[17..18]).await, Err(0));
    // Nearly full: many at a time, once it was looked at.
    shard.bound_memory(115).await;
    shard.store.weigh().await.unwrap();
    assert_eq!(come(&turns[17..]).await, Ok(23));
}

#[tokio::test]
async fn what_waits_inbound_is_bounded_by_bytes_and_by_half_of_the_memory() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let submission = Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: None,
        digest: String::new(),
        reply_to: None,
        payload: "x".repeat(4_000),
    };
    let batch = vec![submission; 64];
    let full = async || shard.store.submit(&batch).await.unwrap().contains(&Submitted::QueueFull);
    assert!(!full().await);
    shard.bound_memory(800).await;
    shard.store.weigh().await.unwrap();
    let mut batches = 1;
    while !full().await {
        batches += 1;
        assert!(batches < 10_000, "it is never full");
    }
    let mut redis = shard.server.connection().await;
    let key = shard.store.keys().key("turns");
    let bytes: u64 = redis::cmd("MEMORY").arg("USAGE").arg(key).query_async(&mut redis).await.unwrap();
    let max: u64 =
        redis::cmd("HGET").arg(shard.store.keys().key("meta")).arg("memory_max").query_async(&mut redis).await.unwrap();
    assert!((max * 2 / 5..max * 3 / 5).contains(&bytes), "{bytes} of {max}");
}

#[tokio::test]
async fn a_message_that_kills_its_readers_is_answered_where_it_is_plain_whom_to_tell() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut redis = shard.server.connection().await;
    let key = |suffix: &str| shard.store.keys().key(suffix);
    let () = redis::cmd("ZADD").arg(key("inboxes:acme")).arg(1).arg("box").query_async(&mut redis).await.unwrap();
    let () = redis::cmd("PEXPIRE").arg(key("inboxes:acme")).arg(600_000).query_async(&mut redis).await.unwrap();
    let messages = [
        r#"{"turn_id":"bad","tenant":"acme","agent":"kelly","reply_to" : "box","calls":["#,
        // Whose it is is not plain; and nobody uses that inbox, nor is the tenant known.
        r#"{"user_context":{"tenant":"bolt"},"tenant":"acme","reply_to":"box"}"#,
        r#"{"tenant":"acme","reply_to":"other"}"#,
        // Nobody has used these inboxes before: one tenant is known, for an id of it was accepted, and one by its turns.
        r#"{"turn_id":"first","tenant":"bolt","agent":"kelly","reply_to":"new","calls":["#,
        r#"{"turn_id":"early","tenant":"cord","agent":"kelly","reply_to":"new","calls":["#,
        // Sent a second time: the first one has its reply.
        r#"{"turn_id":"known","tenant":"acme","agent":"kelly","reply_to":"box","calls":["#,
    ];
    let () = redis::cmd("SET").arg(key("done:acme:known")).arg("").query_async(&mut redis).await.unwrap();
    let () = redis::cmd("SET").arg(key("id:bolt:first")).arg("q1").query_async(&mut redis).await.unwrap();
    let () = redis::cmd("HSET").arg(key("tenant:cord")).arg("u").arg(0).query_async(&mut redis).await.unwrap();
    let mut dead = 0;
    for (number, message) in messages.iter().enumerate() {
        let mut add = redis::cmd("XADD");
        add.arg(key("turns")).arg("*").arg("x").arg(2).arg("o").arg("5-5").arg("turn").arg(message);
        if message.contains("first") {
            add.arg("i").arg("bolt:first");
        }
        let _: String = add.query_async(&mut redis).await.unwrap();
        let consumer = format!("s{number}");
        let entry = shard.reader(&consumer).take("turns", 1).await.unwrap().remove(0);
        shard.store.suspect(Inbound::Turns, &ConsumerId::new(&consumer).unwrap(), Some(&entry.id)).await.unwrap();
        for _ in 0..5 {
            shard.advance(4_000);
            shard.beat("alive").await;
            dead += shard.store.reap(10).await.unwrap().dead;
        }
    }
    assert_eq!(dead, 6);
    for (tenant, id) in [("bolt", "first"), ("cord", "early")] {
        let told: Vec<(String, HashMap<String, String>)> = redis::cmd("XRANGE")
            .arg(key(&format!("replies:{tenant}:new")))
            .arg("-")
            .arg("+")
            .query_async(&mut redis)
            .await
            .unwrap();
        assert!(matches!(told.as_slice(), [(_, one)] if one["reply"].contains(id)), "{told:?}");
        let left: i64 =
            redis::cmd("PTTL").arg(key(&format!("inboxes:{tenant}"))).query_async(&mut redis).await.unwrap();
        assert!(left > 0, "the inbox of {tenant} is kept for ever");
    }
    let replies: Vec<(String, HashMap<String, String>)> =
        redis::cmd("XRANGE").arg(key("replies:acme:box")).arg("-").arg("+").query_async(&mut redis).await.unwrap();
    assert_eq!(replies.len(), 1, "{replies:?}");
    assert_eq!(replies[0].1["seq"], "1");
    let told = &replies[0].1["reply"];
    assert!(told.starts_with(r#"{"turn_id":"bad","tenant":"acme","agent":"kelly","status":"rejected","#), "{told}");
    assert!(serde_json::from_str::<tickfleet_client::Reply>(told).is_ok(), "{told}");
    assert!(replies[0].1["reply"].contains(r#""code":"poison""#));
}

#[tokio::test]
async fn inboxes_of_tasks_count_as_those_of_turns_do() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let with = |id: usize, inbox: usize| Delegation {
        reply_to: Some(InboxName::new(format!("box{inbox}")).unwrap()),
        ..task(&format!("k{id}-0"))
    };
    let max = usize::try_from(StoreOptions::default().inboxes_max).unwrap();
    for first in (0..max).step_by(100) {
        let tasks: Vec<Delegation> = (first..first + 100).map(|i| with(i, i)).collect();
        assert_eq!(shard.store.delegate(&tasks).await.unwrap(), vec![Delegated::Ok; 100]);
    }
    let found = shard.store.delegate(&[with(max, max), with(max, 0)]).await.unwrap();
    assert_eq!(found, [Delegated::Refused("too_many_inboxes".into()), Delegated::Ok]);
}

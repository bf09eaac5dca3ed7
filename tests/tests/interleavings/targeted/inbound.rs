//! Inbound entries: what kills its readers, what comes back, and ids that are forged.

use tickfleet_store::{Enqueued, Submitted, TurnView};

use super::*;

#[tokio::test]
async fn of_a_message_that_kills_whoever_reads_it_the_ids_are_kept_and_nothing_else() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let raw =
        r#"{"turn_id":"t-1", "tenant" : "acme","agent":"kel\"ly","calls":[{"name":"x","arguments":{"pin":4711}}]}"#;
    let mut redis = shard.server.connection().await;
    let add = redis::cmd("XADD").arg(shard.store.keys().key("turns")).arg(&["*", "turn", raw]).to_owned();
    let () = add.query_async(&mut redis).await.unwrap();
    for n in 1..=3 {
        let name = format!("s{n}");
        shard.beat(&name).await;
        let entry = shard.reader(&name).take("turns", 1).await.unwrap().remove(0);
        shard.store.suspect(Inbound::Turns, &ConsumerId::new(&name).unwrap(), Some(&entry.id)).await.unwrap();
        for _ in 0..6 {
            shard.advance(4_000);
            shard.store.reap(10).await.unwrap();
        }
    }
    let dead = redis::cmd("XRANGE").arg(shard.store.keys().key("dead")).arg(&["-", "+"]).to_owned();
    let dead: Vec<(String, HashMap<String, String>)> = dead.query_async(&mut redis).await.unwrap();
    let expected = format!(r#"{{"turn_id":"t-1","tenant":"acme","unread_bytes":{}}}"#, raw.len());
    assert_eq!(dead.iter().map(|(_, letter)| letter["raw"].as_str()).collect::<Vec<_>>(), [expected]);
}

#[tokio::test]
async fn an_inbound_entry_that_reap_put_back_is_admitted_once_even_after_its_record_has_gone() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let stale = shard.inbound(1).await;
    for _ in 0..5 {
        shard.advance(4_000);
        shard.beat("s2").await;
        shard.store.reap(10).await.unwrap();
    }
    let again = shard.reader("s2").take("turns", 1).await.unwrap().remove(0);
    let admission = Admission { entry: again.id, ..stale[0].clone() };
    shard.admit(&[admission]).await.unwrap();
    shard.beat("w").await;
    let slice = shard.reader("w").take("ready:normal", 1).await.unwrap().remove(0);
    let name = TurnName::parse("acme:t0").unwrap();
    assert_eq!(shard.settle(&(name.clone(), slice.id), 2).await.unwrap(), [Settled::Done]);
    let mut redis = shard.server.connection().await;
    let keys = [shard.store.keys().done(&name), shard.store.keys().key(format!("id:{name}"))];
    let () = redis::cmd("DEL").arg(&keys).query_async(&mut redis).await.unwrap();

    shard.admit(&stale).await.unwrap();
    assert!(shard.reader("w").take("ready:normal", 1).await.unwrap().is_empty(), "it would run a second time");
}

#[tokio::test]
async fn a_forged_id_on_a_message_that_cannot_be_read_does_not_drop_the_turn_of_another() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut redis = shard.server.connection().await;
    let forge = async |redis: &mut redis::aio::MultiplexedConnection| -> String {
        let mut command = redis::cmd("XADD");
        command.arg(shard.store.keys().key("turns")).arg("*").arg("turn").arg("{").arg("i").arg("acme:t0");
        command.query_async(redis).await.unwrap()
    };
    let entry = forge(&mut redis).await;
    let batch = shard.inbound(2).await;
    let rejection = |entry: String, given: Option<&str>| Rejection {
        entry,
        reason: "malformed_json".into(),
        raw: b"{".to_vec(),
        reply_to: None,
        absent: None,
        reply: String::new(),
        given: given.map(|digest| (TurnName::parse("acme:t0").unwrap(), digest.to_owned())),
    };
    // The forger's own entry, and one that names the same id with content of its own.
    shard.store.reject(Inbound::Turns, &[rejection(entry, None)]).await.unwrap();
    let entry = forge(&mut redis).await;
    shard.reader("s").take("turns", 2).await.unwrap();
    shard.store.reject(Inbound::Turns, &[rejection(entry, Some("other"))]).await.unwrap();
    let victim = Admission { entry: batch[1].entry.clone(), ..batch[0].clone() };
    let AdmitReply::Decided { turns, .. } = shard.admit(&[victim]).await.unwrap() else { panic!("not decided") };
    assert!(matches!(turns[0], Admitted::Dispatched), "{turns:?}");
    let ttl: i64 = redis::cmd("PTTL").arg(shard.store.keys().key("id:acme:t0")).query_async(&mut redis).await.unwrap();
    assert_eq!(ttl, -1, "what is admitted is remembered until it has ended");
}

#[tokio::test]
async fn each_inbound_stream_has_a_mark_of_its_own_for_what_is_read_alone() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let turns = shard.inbound(1).await;
    let scheduler = ConsumerId::new("s").unwrap();
    shard.store.suspect(Inbound::Turns, &scheduler, Some(&turns[0].entry)).await.unwrap();
    shard.store.suspect(Inbound::Tasks, &scheduler, None).await.unwrap();
    let mut redis = shard.server.connection().await;
    let marks: HashMap<String, String> =
        redis::cmd("HGETALL").arg(shard.store.keys().key("suspects")).query_async(&mut redis).await.unwrap();
    assert_eq!(marks, HashMap::from([("turns s".to_owned(), turns[0].entry.clone())]));
}

/// The turn of [`Shard::inbound`], submitted again.
fn again() -> Submission {
    Submission {
        tenant: TenantId::new("acme").unwrap(),
        turn: TurnId::new("t0").ok(),
        digest: "d".into(),
        reply_to: None,
        payload: "{}".into(),
    }
}

/// A task's entry that cannot be accepted.
fn refused(entry: &Entry) -> Rejection {
    Rejection {
        entry: entry.id.clone(),
        reason: "unknown_agent".into(),
        raw: entry.field("task").unwrap().to_vec(),
        reply_to: None,
        absent: None,
        reply: String::new(),
        given: None,
    }
}

#[tokio::test]
async fn a_task_that_was_taken_in_is_found_at_every_step_until_somebody_has_decided_and_leaves_nothing() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let tenant = TenantId::new("acme").unwrap();
    let task = |id: &str| TurnName::task(&tenant, &TaskId::new(id).unwrap());
    let message = |id: &str| format!(r#"{{"task_id":"{id}","tenant":"acme","target_agent":"far"}}"#);
    let found = async |id: &str| shard.store.undecided(&task(id)).await.unwrap().map(|waits| waits.message);
    for id in ["job", "refused"] {
        let enqueued = shard.store.enqueue_task(&message(id), Some(&task(id)), None).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Accepted { .. }), "{enqueued:?}");
        assert_eq!(found(id).await, Some(message(id)), "nobody has read it");
    }
    // A turn of that name is another thing, and keeps its own.
    let [turn] = shard.inbound(1).await.try_into().unwrap();
    let waits = shard.store.undecided(&TurnName::parse("acme:t0").unwrap()).await.unwrap().unwrap();
    assert_eq!((waits.from, waits.is_minted), (Inbound::Turns, false), "{turn:?}");
    shard.store.enqueue_task(&message("t0"), Some(&task("t0")), None).await.unwrap();
    assert_eq!(shard.store.submit(&[again()]).await.unwrap(), [Submitted::Duplicate], "its own entry is known");

    // Whoever reads it ends in order, and whoever reads it then dies: it comes anew each time.
    let mut reader = shard.reader("s1");
    shard.beat("s1").await;
    assert_eq!(reader.take("tasks", 10).await.unwrap().len(), 3);
    assert_eq!(found("job").await, Some(message("job")), "somebody holds it");
    assert_eq!(shard.store.put_back(&ConsumerId::new("s1").unwrap()).await.unwrap(), 3);
    assert_eq!(found("job").await, Some(message("job")), "it was put back");
    shard.beat("s2").await;
    assert_eq!(shard.reader("s2").take("tasks", 10).await.unwrap().len(), 3);
    for _ in 0..6 {
        shard.advance(4_000);
        shard.beat("s3").await;
        shard.store.reap(10).await.unwrap();
    }
    assert_eq!(found("job").await, Some(message("job")), "it was taken back from a dead one");

    // Somebody decides: its record tells from then on, or nothing does.
    let entries = shard.reader("s3").take("tasks", 10).await.unwrap();
    let of = |id: &str| entries.iter().find(|entry| entry.field("task") == Some(message(id).as_bytes())).unwrap();
    shard.store.reject(Inbound::Tasks, &[refused(of("refused")), refused(of("t0"))]).await.unwrap();
    let delegation = external::delegation("job", Some(of("job").id.clone()));
    assert_eq!(shard.store.delegate(&[delegation]).await.unwrap(), [Delegated::Ok]);
    assert!(matches!(shard.store.look(&task("job")).await.unwrap(), TurnView::Live(_)));
    for id in ["job", "refused"] {
        assert_eq!(found(id).await, None, "{id}");
    }
    let mut redis = shard.server.connection().await;
    let left: Vec<String> =
        redis::cmd("HKEYS").arg(shard.store.keys().key("queued")).query_async(&mut redis).await.unwrap();
    assert_eq!(left, ["acme:t0"], "what waits is the turn");
}

#[tokio::test]
async fn a_tenant_that_is_not_configured_is_noted_for_its_producers_for_a_minute_and_in_bounds() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut redis = shard.server.connection().await;
    let tenant = |name: &str| TenantId::new(name).unwrap();
    let mut refuse = async |name: &str| {
        let mut command = redis::cmd("XADD");
        command.arg(shard.store.keys().key("turns")).arg("*").arg("turn").arg("{}");
        let entry: String = command.query_async(&mut redis).await.unwrap();
        let rejection = Rejection {
            entry,
            reason: "unknown_tenant".into(),
            raw: b"{}".to_vec(),
            reply_to: None,
            absent: Some(tenant(name)),
            reply: String::new(),
            given: None,
        };
        assert_eq!(shard.store.reject(Inbound::Turns, &[rejection]).await.unwrap(), [true]);
    };
    refuse("nowhere").await;
    assert!(shard.store.is_absent(&tenant("nowhere")).await.unwrap());
    assert!(!shard.store.is_absent(&tenant("acme")).await.unwrap());
    // Whoever may write to the stream may name any number of them.
    for number in 0..1_005 {
        refuse(&format!("nowhere-{number}")).await;
    }
    let key = shard.store.keys().key("absent");
    let mut redis = shard.server.connection().await;
    let noted: usize = redis::cmd("ZCARD").arg(&key).query_async(&mut redis).await.unwrap();
    assert_eq!(noted, 1_000);
    let left_ms: i64 = redis::cmd("PTTL").arg(&key).query_async(&mut redis).await.unwrap();
    assert!((1..=60_000).contains(&left_ms), "{left_ms}");
    let letters: Vec<redis::Value> = redis::cmd("XRANGE")
        .arg(shard.store.keys().key("dead"))
        .arg("-")
        .arg("+")
        .query_async(&mut redis)
        .await
        .unwrap();
    assert_eq!(letters.len(), 1_006);
}

//! Inbound entries: what kills its readers, what comes back, and ids that are forged.

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

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines;
use tickfleet_proof::seal::{Leaf, Losses, SealBody, seal};
use tickfleet_proof::verify::{Verdict, Verifier};
use tickfleet_store::{Memory, Pool, StoreOptions};
use tickfleet_testkit::RedisServer;

use super::*;

/// A shard of its own, and who fills its log.
struct Shard {
    redis: RedisServer,
    /// Put together once: its scripts are many.
    store: Store,
}

impl Shard {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let store = Store::open(&redis.url(), 0, Arc::new(StoreOptions::default())).unwrap();
        Self { redis, store }
    }

    fn store(&self) -> Store {
        self.store.clone()
    }

    /// A sealer whose lease is over at once, so that others are never kept from sealing but by the position.
    fn sealing(&self, anchor: Option<Place>) -> Arc<Sealing> {
        self.sealing_as("k1", "07", anchor)
    }

    fn sealing_as(&self, key_id: &str, secret: &str, anchor: Option<Place>) -> Arc<Sealing> {
        let signer = Arc::new(Signer::new(key_id, &secret.repeat(32)).unwrap());
        Arc::new(Sealing {
            store: self.store(),
            metrics: Arc::new(Metrics::new().unwrap()),
            progress: Progress::default(),
            public_key: signer.public_key(),
            options: SealOptions { signer, every: Duration::from_millis(10), anchor },
            lease_ms: 1,
        })
    }

    async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.redis.connection().await).await.unwrap()
    }

    async fn write(&self, entries: std::ops::Range<usize>) {
        let mut pipe = redis::pipe();
        for n in entries {
            let text = format!(r#"{{"action":"TOOL_CALL","tenant":"t{}","meta":{{"call":"x{n}/0"}}}}"#, n % 3);
            pipe.cmd("XADD").arg(self.store().keys().key("audit")).arg("*").arg("audit").arg(text).ignore();
        }
        pipe.query_async::<()>(&mut self.redis.connection().await).await.unwrap();
    }

    /// Seals all that is there.
    async fn seal_all(&self) {
        self.sealing(None).round(&consumer("last"), &mut Known::default(), &CancellationToken::new()).await.unwrap();
    }

    async fn verify(&self, anchors: &[Anchor]) -> Verdict {
        let store = self.store();
        let mut verifier = Verifier::new(store.seal_keys().await.unwrap());
        for entry in store.log_entries("-", "+", 100_000).await.unwrap() {
            verifier.line(&lines::entry(0, &entry.id, &entry.admitted, &entry.text));
        }
        for seal in store.seals("0-0", 100_000).await.unwrap() {
            verifier.line(&lines::seal(0, &seal.body, &seal.signature));
        }
        verifier.finish(anchors, None)
    }
}

fn consumer(name: &str) -> ConsumerId {
    ConsumerId::new(name).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealers_that_take_over_from_each_other_and_die_seal_each_entry_once() {
    let shard = Shard::start().await;
    let stop = CancellationToken::new();
    for round in 0..3_usize {
        let both: Vec<_> = ["one", "two"]
            .map(|name| tokio::spawn(shard.sealing(None).run(consumer(&format!("{name}-{round}")), stop.clone())))
            .into();
        for part in 0..5 {
            let first = (round * 5 + part) * 100;
            shard.write(first..first + 100).await;
        }
        // Wherever they are.
        both.iter().for_each(tokio::task::JoinHandle::abort);
        for sealer in both {
            let _ = sealer.await;
        }
    }
    shard.seal_all().await;
    let verdict = shard.verify(&[]).await;
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert_eq!((verdict.sealed, verdict.unsealed), (1_500, 0));
    assert_eq!(verdict.chains.iter().map(|chain| chain.entries).sum::<u64>(), 1_500);
    assert!(verdict.chains.iter().all(|chain| chain.lost == 0));
}

#[tokio::test]
async fn one_that_stood_still_while_another_sealed_writes_nothing() {
    let shard = Shard::start().await;
    shard.write(0..10).await;
    let (slow, name) = (shard.sealing(None), consumer("slow"));
    let mut known = Known::default();
    slow.step(&name, &mut known).await.unwrap();
    let sealed: u64 = shard.command(&["XLEN", &shard.store().keys().key("seals")]).await;
    // What it knows is what was so a step ago.
    shard.write(10..20).await;
    shard.seal_all().await;
    let between: u64 = shard.command(&["XLEN", &shard.store().keys().key("seals")]).await;
    assert_eq!((sealed, between), (3, 6));
    tokio::time::sleep(Duration::from_millis(5)).await; // the lease of the other ends, which nothing signals
    let row =
        tickfleet_store::SealRow { tenant: "t0".into(), head: "x".into(), body: "x".into(), signature: "x".into() };
    let state = known.position.to_string();
    let answer = slow.store.seal(slow.sealer(&name), &state, "another", &[row]).await.unwrap();
    assert!(matches!(answer, SealReply::Stale { .. }), "{answer:?}");
    slow.round(&name, &mut known, &CancellationToken::new()).await.unwrap();
    let after: u64 = shard.command(&["XLEN", &shard.store().keys().key("seals")]).await;
    assert_eq!(after, between);
    assert!(shard.verify(&[]).await.intact);
}

#[tokio::test]
async fn the_lease_of_one_that_is_gone_ends_by_shard_time_however_long_redis_keeps_it() {
    let shard = Shard::start().await;
    shard.write(0..3).await;
    let lease = shard.store().keys().key("sealer");
    let sealed = async || shard.verify(&[]).await.sealed;
    // What stands there for long yet: the clock has stepped back. The build before this one wrote no time.
    for (holder, expected) in [("gone 9999999999999", 0), ("gone", 0), ("gone 1", 3)] {
        let _: String = shard.command(&["SET", &lease, holder, "PX", "600000"]).await;
        shard.seal_all().await;
        assert_eq!(sealed().await, expected, "{holder}");
    }
}

#[tokio::test]
async fn entries_that_were_trimmed_unsealed_are_told_by_number() {
    let shard = Shard::start().await;
    let stream = shard.store().keys().key("audit");
    shard.write(0..50).await;
    shard.seal_all().await;
    shard.write(50..100).await;
    let _: u64 = shard.command(&["XTRIM", &stream, "MAXLEN", "30"]).await;
    shard.seal_all().await;
    let verdict = shard.verify(&[]).await;
    assert!(verdict.chains.iter().all(|chain| chain.lost == 20), "{:?}", verdict.chains);
    assert!(verdict.told.iter().any(|told| told.starts_with("20 entries of shard 0")), "{:?}", verdict.told);
    // Nothing but what was trimmed sealed is missing.
    assert!(verdict.findings.iter().all(|finding| finding.kind.as_str() == "missing"), "{:?}", verdict.findings);
    // A log that is gone altogether is a loss that nobody can count.
    let _: u64 = shard.command(&["DEL", &stream]).await;
    shard.write(100..103).await;
    shard.seal_all().await;
    let verdict = shard.verify(&[]).await;
    assert!(verdict.told.iter().any(|told| told.contains("its log was recreated")), "{:?}", verdict.told);
}

#[tokio::test]
async fn seals_stay_as_long_as_their_entries_though_redis_numbered_these_while_its_clock_was_days_ahead() {
    let shard = Shard::start().await;
    // Whole nodes are trimmed.
    let _: String = shard.command(&["CONFIG", "SET", "stream-node-max-entries", "1"]).await;
    let (stream, meta) = (shard.store().keys().key("audit"), shard.store().keys().key("meta"));
    let time: Vec<i64> = shard.command(&["TIME"]).await;
    let ahead_ms = (time[0] + 2 * 86_400) * 1_000;
    // So it is when the clock has stepped back: the log goes on behind its last entry, and so does shard time.
    let _: String = shard.command(&["XADD", &stream, &format!("{ahead_ms}-0"), "audit", r#"{"tenant":"t0"}"#]).await;
    let _: u64 = shard.command(&["HSET", &meta, "last_ms", &ahead_ms.to_string()]).await;
    shard.write(0..5).await;
    shard.seal_all().await;
    shard.store().housekeep(Memory { used: 0, max: 0 }, u64::MAX, 1_000).await.unwrap();
    let verdict = shard.verify(&[]).await;
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert_eq!((verdict.sealed, verdict.unsealed), (6, 0));
    // Where a hand has taken shard time away, seals go behind the last one.
    let _: u64 = shard.command(&["DEL", &meta]).await;
    shard.write(5..9).await;
    shard.seal_all().await;
    let verdict = shard.verify(&[]).await;
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert_eq!((verdict.sealed, verdict.unsealed), (10, 0));
}

#[tokio::test]
async fn heads_are_kept_in_a_file_and_what_is_cut_off_afterwards_is_found() {
    let shard = Shard::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("anchors.jsonl");
    shard.write(0..9).await;
    let sealing = shard.sealing(Some(Place::File(path.clone())));
    let mut known = Known::default();
    for _ in 0..2 {
        sealing.round(&consumer("a"), &mut known, &CancellationToken::new()).await.unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let anchors: Vec<Anchor> = text.lines().filter_map(Anchor::read).collect();
    assert_eq!(anchors.len(), 3, "{text}");
    assert!(shard.verify(&anchors).await.intact);
    let _: u64 = shard.command(&["DEL", &shard.store().keys().key("seals")]).await;
    let verdict = shard.verify(&anchors).await;
    assert!(verdict.findings.iter().filter(|finding| finding.kind.as_str() == "truncated").count() == 3);
    // A place that cannot be written is told, and keeps nothing from being sealed.
    let broken = shard.sealing(Some(Place::File("/nowhere/anchors".into())));
    shard.write(9..12).await;
    tokio::time::sleep(Duration::from_millis(5)).await; // the lease of the other ends, which nothing signals
    broken.round(&consumer("b"), &mut Known::default(), &CancellationToken::new()).await.unwrap();
    let page = broken.metrics.render();
    assert!(page.contains("tickfleet_audit_anchor_failures_total 1"), "{page}");
    assert!(page.contains("tickfleet_audit_sealed_total 3"), "{page}");
}

#[tokio::test]
async fn heads_in_a_stream_of_this_or_another_redis_find_what_is_cut_off() {
    let (shard, other) = (Shard::start().await, RedisServer::start().await);
    let pool = Pool::open(&other.url(), 1).unwrap();
    let own = Pool::open(&shard.redis.url(), 1).unwrap();
    let own_stream = shard.store().keys().key("anchors");
    for (place, kept, stream) in
        [(Place::Stream, own, own_stream.as_str()), (Place::OtherStream(pool.clone(), "heads".into()), pool, "heads")]
    {
        shard.write(0..9).await;
        let _: u64 = shard.command(&["HDEL", &shard.store().keys().key("sealing"), "anchored"]).await;
        tokio::time::sleep(Duration::from_millis(5)).await; // the lease of the other ends, which nothing signals
        let (sealing, mut known) = (shard.sealing(Some(place)), Known::default());
        for _ in 0..2 {
            sealing.round(&consumer("a"), &mut known, &CancellationToken::new()).await.unwrap();
        }
        let anchors: Vec<Anchor> = kept.anchors(stream).await.unwrap().iter().filter_map(|l| Anchor::read(l)).collect();
        assert_eq!(anchors.len(), 3, "{anchors:?}");
        assert!(shard.verify(&anchors).await.intact);
        let newest: Vec<String> =
            shard.store().newest_seals(1).await.unwrap().into_iter().map(|seal| seal.id).collect();
        let _: u64 = shard.command(&["XDEL", &shard.store().keys().key("seals"), &newest[0]]).await;
        let verdict = shard.verify(&anchors).await;
        assert!(verdict.findings.iter().any(|finding| finding.kind.as_str() == "truncated"), "{:?}", verdict.findings);
        let _: u64 = shard
            .command(&[
                "DEL",
                &shard.store().keys().key("seals"),
                &shard.store().keys().key("sealing"),
                &shard.store().keys().key("seal_heads"),
                &shard.store().keys().key("audit"),
            ])
            .await;
    }
    // One that is away is told, and keeps nothing from being sealed.
    drop(other);
}

#[tokio::test]
async fn another_key_under_a_known_name_seals_nothing_and_under_a_new_one_goes_on() {
    let shard = Shard::start().await;
    shard.write(0..3).await;
    shard.seal_all().await;
    shard.write(3..6).await;
    for (key_id, sealed) in [("k1", 3), ("k2", 6)] {
        tokio::time::sleep(Duration::from_millis(5)).await; // the lease of the other ends, which nothing signals
        let other = shard.sealing_as(key_id, "08", None);
        other.round(&consumer(key_id), &mut Known::default(), &CancellationToken::new()).await.unwrap();
        let verdict = shard.verify(&[]).await;
        assert!(verdict.intact, "{:?}", verdict.findings);
        assert_eq!(verdict.sealed, sealed);
    }
    let keys: BTreeMap<String, String> = shard.store().seal_keys().await.unwrap();
    assert_eq!(keys.len(), 2);
}

#[tokio::test]
async fn the_last_heads_of_quiet_tenants_are_kept_outside_by_whoever_seals_with_the_next_key() {
    let (shard, folder) = (Shard::start().await, tempfile::tempdir().unwrap());
    let file = folder.path().join("anchors.jsonl");
    shard.write(0..9).await;
    // The place is away, or the scheduler dies between sealing and keeping.
    shard.seal_all().await;
    // Then there is another key, and one tenant alone writes more.
    let text = r#"{"action":"TOOL_CALL","tenant":"t1","meta":{"call":"y/0"}}"#;
    let _: String = shard.command(&["XADD", &shard.store().keys().key("audit"), "*", "audit", text]).await;
    tokio::time::sleep(Duration::from_millis(5)).await; // the lease of the other ends, which nothing signals
    let next = shard.sealing_as("k2", "08", Some(Place::File(file.clone())));
    next.round(&consumer("next"), &mut Known::default(), &CancellationToken::new()).await.unwrap();
    let kept = std::fs::read_to_string(&file).unwrap();
    let anchors: Vec<Anchor> = kept.lines().filter_map(Anchor::read).collect();
    let named: BTreeMap<&str, (&str, u64)> =
        anchors.iter().map(|anchor| (&*anchor.tenant, (&*anchor.key_id, anchor.entries))).collect();
    assert_eq!(named, BTreeMap::from([("t0", ("k1", 3)), ("t1", ("k2", 4)), ("t2", ("k1", 3))]));
    let verdict = shard.verify(&anchors).await;
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert!(verdict.chains.iter().all(|chain| chain.anchored == Some(chain.last_seal)), "{:?}", verdict.told);
}

#[tokio::test]
async fn what_somebody_puts_among_the_seals_displaces_no_head() {
    let (shard, folder) = (Shard::start().await, tempfile::tempdir().unwrap());
    let file = folder.path().join("anchors.jsonl");
    shard.write(0..3).await;
    shard.seal_all().await;
    let (seals, keys) = (shard.store().keys().key("seals"), shard.store().keys().key("seal_keys"));
    let forger = Signer::new("x", &"09".repeat(32)).unwrap();
    let _: u64 = shard.command(&["HSET", &keys, "x", &forger.public_key()]).await;
    // As if by the same key, and by one that is said to be an older one.
    let last = shard.store().newest_seals(1).await.unwrap().remove(0);
    let newer = last.body.replacen("\"number\":1", "\"number\":9", 1);
    let chain = serde_json::from_str::<SealBody>(&last.body).unwrap().chain();
    let leaf = Leaf::of("1-0".parse().unwrap(), "", "x");
    let other = seal(&chain, &Head::default(), &[leaf], &Losses::default(), 1, &forger);
    for (body, signature) in [(&newer, &last.signature), (&other.body, &other.signature)] {
        let _: String = shard.command(&["XADD", &seals, "*", "body", body, "signature", signature]).await;
    }
    assert_ne!(newer, last.body);
    let mut anchors = Anchors::default();
    let public_key = Signer::new("k1", &"07".repeat(32)).unwrap().public_key();
    anchors.follow(&shard.store(), &Place::File(file.clone()), &public_key, "k1").await.unwrap();
    let kept = std::fs::read_to_string(&file).unwrap();
    let own: Vec<u64> = kept
        .lines()
        .filter_map(Anchor::read)
        .filter(|anchor| anchor.key_id == "k1")
        .map(|anchor| anchor.number)
        .collect();
    assert_eq!(own, [1, 1, 1], "{kept}");
}

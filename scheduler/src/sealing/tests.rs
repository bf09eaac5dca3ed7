#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use bytes::Bytes;
use tickfleet_core::audit::seal::{Seal, SealResult, Sealing as Record, anchors, key, seals};
use tickfleet_core::audit::{AuditAppend, Report};
use tickfleet_core::{Context, Decision, Query, Step as Decided, Transaction, Value, View, Write, keys};
use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines;
use tickfleet_proof::seal::{Leaf, Losses, SealBody, seal};
use tickfleet_proof::verify::{ExportVerdict, Verifier};
use tickfleet_store::seam::TrimBounds;
use tickfleet_store::seam::memory::MemoryStore;
use tickfleet_store::{Pool, StoreOptions};
use tickfleet_testkit::RedisServer;

use super::*;

struct Shard {
    store: Store,
}

impl Shard {
    fn start() -> Self {
        Self { store: Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default())) }
    }

    fn store(&self) -> Store {
        self.store.clone()
    }

    /// The lease ends immediately, so that only the position prevents double sealing.
    fn sealing(&self, anchor: Option<AnchorTarget>) -> Arc<Sealing> {
        self.sealing_as("k1", "07", anchor)
    }

    fn sealing_as(&self, key_id: &str, secret: &str, anchor: Option<AnchorTarget>) -> Arc<Sealing> {
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

    async fn write(&self, entries: std::ops::Range<usize>) {
        for number in entries {
            self.write_of(number % 3, number).await;
        }
    }

    async fn write_of(&self, tenant: usize, number: usize) {
        let text = format!(r#"{{"action":"TOOL_CALL","tenant":"t{tenant}","meta":{{"call":"x{number}/0"}}}}"#);
        self.store.decide(Report(AuditAppend { text: text.into(), entries_max: 1_000_000 })).await.unwrap();
    }

    async fn seals(&self) -> usize {
        self.store.seals("0-0", 100_000).await.unwrap().len()
    }

    async fn seal_all(&self) {
        self.sealing(None)
            .round(&consumer("last"), &mut SealState::default(), &CancellationToken::new())
            .await
            .unwrap();
    }

    async fn verify(&self, anchors: &[Anchor]) -> ExportVerdict {
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
async fn alternating_and_dying_sealers_seal_each_entry_once() {
    let shard = Shard::start();
    let stop = CancellationToken::new();
    for round in 0..3_usize {
        let both: Vec<_> = ["one", "two"]
            .map(|name| tokio::spawn(shard.sealing(None).run(consumer(&format!("{name}-{round}")), stop.clone())))
            .into();
        for part in 0..5 {
            let first = (round * 5 + part) * 100;
            shard.write(first..first + 100).await;
        }
        // The sealers stop at an arbitrary point of their work.
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
async fn a_stalled_sealer_writes_nothing_after_another_took_over() {
    let shard = Shard::start();
    shard.write(0..10).await;
    let (slow, name) = (shard.sealing(None), consumer("slow"));
    let mut seal_state = SealState::default();
    slow.step(&name, &mut seal_state).await.unwrap();
    let sealed = shard.seals().await;
    shard.write(10..20).await;
    shard.seal_all().await;
    let between = shard.seals().await;
    assert_eq!((sealed, between), (3, 6));
    tokio::time::sleep(Duration::from_millis(5)).await; // wait until the other lease ends, which causes no event
    let row = Seal { tenant: "t0".into(), head: "x".into(), body: "x".into(), signature: "x".into() };
    let state = seal_state.position.to_string();
    let result = slow.extend(&name, &state, "another", vec![row]).await.unwrap();
    assert!(matches!(result, SealResult::Stale { .. }), "{result:?}");
    slow.round(&name, &mut seal_state, &CancellationToken::new()).await.unwrap();
    assert_eq!(shard.seals().await, between);
    assert!(shard.verify(&[]).await.intact);
}

#[tokio::test]
async fn the_number_of_entries_trimmed_before_sealing_is_reported() {
    let shard = Shard::start();
    shard.write(0..50).await;
    shard.seal_all().await;
    shard.write(50..100).await;
    shard.store.seam().trim(&keys::audit(), TrimBounds { entries: 30, ..TrimBounds::default() }).await.unwrap();
    shard.seal_all().await;
    let verdict = shard.verify(&[]).await;
    assert!(verdict.chains.iter().all(|chain| chain.lost == 20), "{:?}", verdict.chains);
    assert!(verdict.notes.iter().any(|note| note.starts_with("20 entries of shard 0")), "{:?}", verdict.notes);
    assert!(verdict.findings.iter().all(|finding| finding.kind.as_str() == "missing"), "{:?}", verdict.findings);
    // If the whole log is lost, the number of lost entries is unknown.
    shard.store.seam().drop_stream(&keys::audit()).await.unwrap();
    shard.write(100..103).await;
    shard.seal_all().await;
    let verdict = shard.verify(&[]).await;
    assert!(verdict.notes.iter().any(|note| note.contains("its log was recreated")), "{:?}", verdict.notes);
}

#[tokio::test]
async fn anchors_in_a_file_reveal_truncated_seals() {
    let shard = Shard::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("anchors.jsonl");
    shard.write(0..9).await;
    let sealing = shard.sealing(Some(AnchorTarget::File(path.clone())));
    let mut seal_state = SealState::default();
    for _ in 0..2 {
        sealing.round(&consumer("a"), &mut seal_state, &CancellationToken::new()).await.unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let anchors: Vec<Anchor> = text.lines().filter_map(Anchor::read).collect();
    assert_eq!(anchors.len(), 3, "{text}");
    assert!(shard.verify(&anchors).await.intact);
    shard.store.seam().drop_stream(&seals()).await.unwrap();
    let verdict = shard.verify(&anchors).await;
    assert!(verdict.findings.iter().filter(|finding| finding.kind.as_str() == "truncated").count() == 3);
    let broken = shard.sealing(Some(AnchorTarget::File("/nowhere/anchors".into())));
    shard.write(9..12).await;
    tokio::time::sleep(Duration::from_millis(5)).await; // wait until the other lease ends, which causes no event
    broken.round(&consumer("b"), &mut SealState::default(), &CancellationToken::new()).await.unwrap();
    let page = broken.metrics.render();
    assert!(page.contains("tickfleet_audit_anchor_failures_total 1"), "{page}");
    assert!(page.contains("tickfleet_audit_sealed_total 3"), "{page}");
}

#[tokio::test]
async fn anchors_in_a_stream_reveal_truncated_seals() {
    let redis = RedisServer::start().await;
    let pool = Pool::open(&redis.url(), 1).unwrap();
    for place in [AnchorTarget::Stream, AnchorTarget::OtherStream(pool.clone(), "heads".into())] {
        let shard = Shard::start();
        shard.write(0..9).await;
        let sealing = shard.sealing(Some(place.clone()));
        let mut seal_state = SealState::default();
        for _ in 0..2 {
            sealing.round(&consumer("a"), &mut seal_state, &CancellationToken::new()).await.unwrap();
        }
        let kept = match &place {
            AnchorTarget::OtherStream(pool, stream) => pool.anchors(stream).await.unwrap(),
            _ => own_anchors(&shard.store).await,
        };
        let anchors: Vec<Anchor> = kept.iter().filter_map(|line| Anchor::read(line)).collect();
        assert_eq!(anchors.len(), 3, "{anchors:?}");
        assert!(shard.verify(&anchors).await.intact);
        shard.store.seam().drop_stream(&seals()).await.unwrap();
        let verdict = shard.verify(&anchors).await;
        assert!(verdict.findings.iter().any(|finding| finding.kind.as_str() == "truncated"), "{:?}", verdict.findings);
    }
}

async fn own_anchors(store: &Store) -> Vec<String> {
    let entries = Query::Entries { stream: anchors(), after: None, count: 100 };
    let Value::Entries(entries) = store.query(entries).await.unwrap() else { panic!("no entries") };
    let line = |fields: Vec<(Arc<str>, Bytes)>| String::from_utf8(fields[0].1.to_vec()).unwrap();
    entries.into_iter().map(|(_, fields)| line(fields)).collect()
}

#[tokio::test]
async fn a_different_key_seals_only_under_a_new_key_id() {
    let shard = Shard::start();
    shard.write(0..3).await;
    shard.seal_all().await;
    shard.write(3..6).await;
    for (key_id, sealed) in [("k1", 3), ("k2", 6)] {
        tokio::time::sleep(Duration::from_millis(5)).await; // wait until the other lease ends, which causes no event
        let other = shard.sealing_as(key_id, "08", None);
        other.round(&consumer(key_id), &mut SealState::default(), &CancellationToken::new()).await.unwrap();
        let verdict = shard.verify(&[]).await;
        assert!(verdict.intact, "{:?}", verdict.findings);
        assert_eq!(verdict.sealed, sealed);
    }
    let keys: BTreeMap<String, String> = shard.store().seal_keys().await.unwrap();
    assert_eq!(keys.len(), 2);
}

#[tokio::test]
async fn the_sealer_with_the_next_key_anchors_heads_of_quiet_tenants() {
    let shard = Shard::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("anchors.jsonl");
    shard.write(0..9).await;
    // These seals get no anchors, as if the scheduler had died before it wrote the anchors.
    shard.seal_all().await;
    // The key changes, and only one tenant writes more entries.
    shard.write_of(1, 9).await;
    tokio::time::sleep(Duration::from_millis(5)).await; // wait until the other lease ends, which causes no event
    let next = shard.sealing_as("k2", "08", Some(AnchorTarget::File(file.clone())));
    next.round(&consumer("next"), &mut SealState::default(), &CancellationToken::new()).await.unwrap();
    let kept = std::fs::read_to_string(&file).unwrap();
    let anchors: Vec<Anchor> = kept.lines().filter_map(Anchor::read).collect();
    let named: BTreeMap<&str, (&str, u64)> =
        anchors.iter().map(|anchor| (&*anchor.tenant, (&*anchor.key_id, anchor.entries))).collect();
    assert_eq!(named, BTreeMap::from([("t0", ("k1", 3)), ("t1", ("k2", 4)), ("t2", ("k1", 3))]));
    let verdict = shard.verify(&anchors).await;
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert!(verdict.chains.iter().all(|chain| chain.anchored == Some(chain.last_seal)), "{:?}", verdict.notes);
}

#[tokio::test]
async fn a_forged_seal_displaces_no_anchored_head() {
    let shard = Shard::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("anchors.jsonl");
    shard.write(0..3).await;
    shard.seal_all().await;
    let forger = Signer::new("x", &"09".repeat(32)).unwrap();
    // One forged seal has the ID of the sealer's key. The other has the ID of a listed older key.
    let last = shard.store().seals("0-0", 100).await.unwrap().pop().unwrap();
    let newer = last.body.replacen("\"number\":1", "\"number\":9", 1);
    let chain = serde_json::from_str::<SealBody>(&last.body).unwrap().chain();
    let leaf = Leaf::of("1-0".parse().unwrap(), "", "x");
    let other = seal(&chain, &Head::default(), &[leaf], &Losses::default(), 1, &forger);
    let forged = [(newer.clone(), last.signature.clone()), (other.body, other.signature)];
    shard.store.decide(Forge { key: forger.public_key(), seals: forged.to_vec() }).await.unwrap();
    assert_ne!(newer, last.body);
    let mut anchors = Anchors::default();
    let public_key = Signer::new("k1", &"07".repeat(32)).unwrap().public_key();
    let candidate = shard.sealing(None).candidate(&consumer("a"));
    anchors
        .write_new_heads(&shard.store(), &AnchorTarget::File(file.clone()), &public_key, "k1", candidate)
        .await
        .unwrap();
    let kept = std::fs::read_to_string(&file).unwrap();
    let own: Vec<u64> = kept
        .lines()
        .filter_map(Anchor::read)
        .filter(|anchor| anchor.key_id == "k1")
        .map(|anchor| anchor.number)
        .collect();
    assert_eq!(own, [1, 1, 1], "{kept}");
}

struct Forge {
    key: String,
    seals: Vec<(String, String)>,
}

impl Decision for Forge {
    type Output = ();

    fn decide(&self, view: &View, context: &Context) -> Result<Decided<()>, tickfleet_core::view::Undecided> {
        let mut record = view.record::<Record>(&key())?.unwrap().value;
        record.keys.insert("x".into(), self.key.clone());
        let mut transaction = Transaction::new(context.version.clone());
        transaction.put(&key(), &record);
        for (body, signature) in &self.seals {
            let text = |text: &String| Bytes::from(text.clone());
            let fields = vec![("body".into(), text(body)), ("signature".into(), text(signature))];
            transaction.write(Write::Append { log: seals(), fields, max_entries: 1_000 });
        }
        Ok(Decided::Commit(transaction, ()))
    }
}

//! Redis comes back as it was a moment ago, under another name, and a worker knows what it did since.

use tickfleet_model::ConsumerId;
use tickfleet_store::{
    Admission, AdmitReply, Admitted, Asserted, Assertion, Begin, Begun, Claim, Scripts, SettledCall, TurnName,
};
use tickfleet_testkit::RedisOptions;

use super::targeted::{START_MS, Shard};

/// How far the turn had come in what Redis comes back with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Left {
    Inbound,
    Ready,
    Leased,
    Begun,
}

const ALL: [Left; 4] = [Left::Inbound, Left::Ready, Left::Leased, Left::Begun];

/// All keys with their values.
pub(super) struct Snapshot(Vec<(String, Vec<u8>)>);

impl Snapshot {
    pub(super) async fn of(shard: &Shard) -> Self {
        let mut redis = shard.server.connection().await;
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.unwrap();
        let mut all = Vec::new();
        for key in keys {
            let value = redis::cmd("DUMP").arg(&key).query_async(&mut redis).await.unwrap();
            all.push((key, value));
        }
        Self(all)
    }

    /// Redis starts again with these keys alone.
    pub(super) async fn comes_back(&self, shard: &Shard) {
        let mut redis = shard.server.connection().await;
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL").ignore();
        for (key, value) in &self.0 {
            pipe.cmd("RESTORE").arg(key).arg(0).arg(value.as_slice()).ignore();
        }
        pipe.cmd("HSET").arg(shard.store.keys().key("meta")).arg("run_id").arg("0123456789abcdef").ignore();
        let () = pipe.query_async(&mut redis).await.unwrap();
    }
}

pub(super) fn name() -> TurnName {
    TurnName::parse("acme:t0").unwrap()
}

pub(super) fn begin(fence: &str, nonce: &str, digest: &str) -> [Begin; 1] {
    let (nonce, digest) = (Some(nonce.into()), digest.into());
    [Begin { name: name(), fence: fence.into(), position: 0, nonce, digest, knows: None }]
}

pub(super) fn says(claim: Claim) -> [Assertion; 1] {
    let (digest, nonce) = ("d".into(), "mine".into());
    [Assertion { name: name(), position: 0, digest, nonce, kept_ms: 3_600_000, claim }]
}

pub(super) fn result() -> SettledCall {
    SettledCall { result: "1".into(), message: "2".into(), audit: "3".into(), facts: None, failed: false }
}

async fn admit(shard: &Shard, turns: &[Admission]) {
    let AdmitReply::Decided { turns, .. } = shard.admit(turns).await.unwrap() else { panic!("not decided") };
    assert!(matches!(turns[0], Admitted::Dispatched), "{turns:?}");
}

pub(super) async fn lease(shard: &Shard, worker: &str) -> String {
    shard.beat(worker).await;
    shard.reader(worker).take("ready:normal", 1).await.unwrap().remove(0).id
}

/// A turn is carried out up to its begun call, of which Redis comes back with what it had `left`.
pub(super) async fn redis_loses(scripts: Scripts, left: Left) -> (Shard, Vec<Admission>, Option<String>) {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let mut turns = shard.inbound(1).await;
    turns[0].meta = r#"{"dg":"d"}"#.into();
    let mut snapshot = Snapshot::of(&shard).await;
    admit(&shard, &turns).await;
    if matches!(left, Left::Ready) {
        snapshot = Snapshot::of(&shard).await;
    }
    let fence = lease(&shard, "w").await;
    if matches!(left, Left::Leased) {
        snapshot = Snapshot::of(&shard).await;
    }
    assert_eq!(shard.store.begin(&begin(&fence, "mine", "d")).await.unwrap(), [Begun::Ok]);
    if matches!(left, Left::Begun) {
        snapshot = Snapshot::of(&shard).await;
    }
    assert_eq!(shard.settle(&(name(), fence.clone()), 1).await.unwrap().len(), 1);
    snapshot.comes_back(&shard).await;
    (shard, turns, matches!(left, Left::Leased | Left::Begun).then_some(fence))
}

/// What another worker hears that begins the call, when nobody holds begins back any more.
async fn begun_by_another(
    shard: &Shard,
    turns: &[Admission],
    fence: Option<String>,
    left: Left,
    digest: &str,
) -> Begun {
    if matches!(left, Left::Inbound) {
        // Nothing is admitted in a window that began before Redis came back.
        shard.advance(6_000);
        admit(shard, turns).await;
    }
    let fence = match fence {
        Some(fence) => fence,
        None => lease(shard, "other").await,
    };
    shard.advance(11_000);
    shard.store.begin(&begin(&fence, "other", digest)).await.unwrap().remove(0)
}

async fn after(scripts: Scripts, left: Left, claim: Option<Claim>) -> Begun {
    let (shard, turns, fence) = redis_loses(scripts, left).await;
    // The first heartbeat finds that this is another Redis.
    let beat = shard.store.beat(&ConsumerId::new("w").unwrap()).await.unwrap();
    assert!(beat.epoch_ms > 0);
    if let Some(claim) = claim {
        assert_eq!(shard.store.assert(&says(claim), true).await.unwrap(), [Asserted::Marked]);
    }
    begun_by_another(&shard, &turns, fence, left, "d").await
}

#[tokio::test]
async fn a_call_that_was_asserted_is_not_begun_again_whatever_redis_still_knows_of_its_turn() {
    for left in ALL {
        let ended = Claim::Ended(result());
        assert_eq!(after(Scripts::embedded(), left, Some(ended)).await, Begun::Kept(Box::new(result())), "{left:?}");
        assert_eq!(after(Scripts::embedded(), left, Some(Claim::Begun)).await, Begun::Unknown, "{left:?}");
    }
    let sabotage = || Scripts::embedded().sabotage("if mark and mark.nonce ~= nonce then", "if false then").unwrap();
    for left in [Left::Inbound, Left::Ready, Left::Leased] {
        let again = after(sabotage(), left, Some(Claim::Ended(result()))).await;
        assert_eq!(again, Begun::Ok, "{left:?}: without the mark it runs a second time");
        assert_eq!(after(Scripts::embedded(), left, None).await, Begun::Ok, "{left:?}: nobody knew");
    }
}

/// What somebody hears that begins the call again right after the restart, and then when the worker has told of it.
async fn right_after_the_restart(scripts: Scripts) -> (Begun, Begun) {
    let (shard, _, fence) = redis_loses(scripts, Left::Begun).await;
    shard.store.beat(&ConsumerId::new("w").unwrap()).await.unwrap();
    let again = begin(&fence.unwrap(), "other", "d");
    let before = shard.store.begin(&again).await.unwrap().remove(0);
    assert_eq!(shard.store.assert(&says(Claim::Ended(result())), true).await.unwrap(), [Asserted::Marked]);
    (before, shard.store.begin(&again).await.unwrap().remove(0))
}

#[tokio::test]
async fn a_result_that_a_worker_remembers_is_waited_for_before_its_call_is_told_as_unknown() {
    let kept = Begun::Kept(Box::new(result()));
    assert_eq!(right_after_the_restart(Scripts::embedded()).await, (Begun::Hold, kept.clone()));
    let sabotage = Scripts::embedded().sabotage("return early and 'HOLD' or 'UNKNOWN' end", "return 'UNKNOWN' end");
    assert_eq!(right_after_the_restart(sabotage.unwrap()).await, (Begun::Unknown, kept), "told before it could speak");
}

#[tokio::test]
async fn who_said_that_it_began_goes_on_and_who_began_other_calls_under_the_id_is_not_concerned() {
    let (shard, turns, fence) = redis_loses(Scripts::embedded(), Left::Leased).await;
    shard.store.assert(&says(Claim::Begun), true).await.unwrap();
    shard.advance(11_000);
    let fence = fence.unwrap();
    assert_eq!(shard.store.begin(&begin(&fence, "mine", "d")).await.unwrap(), [Begun::Ok], "its own begin again");
    assert_eq!(shard.store.assert(&says(Claim::Ended(result())), true).await.unwrap(), [Asserted::Marked]);

    let (other, _, _) = redis_loses(Scripts::embedded(), Left::Ready).await;
    other.store.assert(&says(Claim::Ended(result())), true).await.unwrap();
    assert_eq!(begun_by_another(&other, &turns, None, Left::Ready, "of other content").await, Begun::Ok);

    let (undone, _, _) = redis_loses(Scripts::embedded(), Left::Ready).await;
    undone.store.assert(&says(Claim::Begun), true).await.unwrap();
    assert_eq!(undone.store.assert(&says(Claim::Undone), true).await.unwrap(), [Asserted::Unmarked]);
    assert_eq!(begun_by_another(&undone, &turns, None, Left::Ready, "d").await, Begun::Ok, "it did nothing");
}

#[tokio::test]
async fn who_speaks_too_late_hears_it_and_who_has_nothing_new_too() {
    let (shard, turns, _) = redis_loses(Scripts::embedded(), Left::Ready).await;
    assert_eq!(begun_by_another(&shard, &turns, None, Left::Ready, "d").await, Begun::Ok);
    assert_eq!(shard.store.assert(&says(Claim::Ended(result())), true).await.unwrap(), [Asserted::Late]);

    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let slice = shard.leased(1).await.remove(0);
    shard.settle(&slice, 1).await.unwrap();
    assert_eq!(shard.store.assert(&says(Claim::Ended(result())), true).await.unwrap(), [Asserted::Known]);
    shard.settle(&slice, 2).await.unwrap();
    assert_eq!(shard.store.assert(&says(Claim::Ended(result())), true).await.unwrap(), [Asserted::Known]);
}

#[tokio::test]
async fn a_redis_that_has_lost_everything_is_no_new_one_to_a_worker_that_knew_it() {
    let shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut redis = shard.server.connection().await;
    let () = redis::cmd("FLUSHALL").query_async(&mut redis).await.unwrap();
    shard.store.assert(&[], true).await.unwrap();
    let beat = shard.store.beat(&ConsumerId::new("w").unwrap()).await.unwrap();
    assert_eq!(beat.epoch_ms, START_MS, "begins are held from here on");
}

async fn begin_knowing_another_redis(scripts: Scripts) -> Begun {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let slice = shard.leased(1).await.remove(0);
    let [call] = begin(&slice.1, "n", "d");
    shard.store.begin(&[Begin { knows: Some("another".into()), ..call }]).await.unwrap().remove(0)
}

#[tokio::test]
async fn who_has_not_told_this_redis_what_it_began_begins_nothing() {
    assert_eq!(begin_knowing_another_redis(Scripts::embedded()).await, Begun::Hold);
    let sabotage = Scripts::embedded().sabotage("and knows ~= run_id)", "and false)").unwrap();
    assert_eq!(begin_knowing_another_redis(sabotage).await, Begun::Ok, "its own lost call would run a second time");
}

//! Who follows a log for others: one of a name at a time, from where the last one has come to; with rows that switch that
//! off.

use tickfleet_store::{Checkpoint, Follower, Notices, SealReply, SealRow, Sealer};
use tickfleet_testkit::guards::FOLLOWERS;

use super::*;

/// Longer than any test: Redis' own clock, by which it ends keys, ends none of them.
const LEASE_MS: u64 = 600_000;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, not {expected:?}")) }
}

fn process(name: &str) -> ConsumerId {
    ConsumerId::new(name).unwrap()
}

/// The one who has the lease has not come back in time, by the shard's clock.
fn is_gone(shard: &Shard) {
    shard.clock.fetch_add(LEASE_MS.cast_signed() + 1, Ordering::SeqCst);
}

/// Redis' clock steps back by an hour: the lease neither ends nor lasts for as much longer. Schedulers and workers record
/// the clock all the time, before the step and after it.
async fn steps_back(shard: &Shard) {
    let beat = async || drop(shard.store.beat(&process("witness")).await.unwrap());
    beat().await;
    shard.clock.fetch_sub(3_600_000, Ordering::SeqCst);
    beat().await;
}

/// What stands where a lease would be.
async fn stands(shard: &Shard, lease: &str, command: &str, value: &str) {
    let (mut redis, key) = (shard.server.connection().await, shard.store.keys().key(lease));
    let mut pipe = redis::pipe();
    pipe.del(&key).ignore().cmd(command).arg(&key).arg(value).ignore();
    let () = pipe.query_async(&mut redis).await.unwrap();
}

async fn exporters(shard: &Shard) -> Result<(), String> {
    let (first, second) = (process("first"), process("second"));
    // What came of it, and the position that there is.
    let checkpoint = async |process: &ConsumerId, before: &str, after: &str| {
        let follower = Follower { name: "export", process, lease_ms: LEASE_MS };
        match shard.store.checkpoint(follower, before, after).await.unwrap() {
            Checkpoint::Done { .. } => "done".to_owned(),
            Checkpoint::Held => "held".to_owned(),
            Checkpoint::Stale { position, .. } => format!("stale {position}"),
        }
    };
    let (done, held) = ("done".to_owned(), "held".to_owned());
    same("nobody exports", checkpoint(&first, "", "5").await, done.clone())?;
    same("another one does", checkpoint(&second, "5", "9").await, held.clone())?;
    steps_back(shard).await;
    same("the clock stepped back", checkpoint(&second, "5", "9").await, held.clone())?;
    is_gone(shard);
    same("it goes on", checkpoint(&second, "5", "9").await, done.clone())?;
    is_gone(shard);
    same("the first one stood still", checkpoint(&first, "5", "7").await, "stale 9".to_owned())?;
    same("and goes on from there", checkpoint(&first, "9", "9").await, done.clone())?;
    // A build before this one has the lease for as long as Redis keeps its key.
    stands(shard, "follower:export", "SET", "older").await;
    is_gone(shard);
    same("a process of another build exports", checkpoint(&first, "9", "9").await, held)?;
    stands(shard, "follower:export", "LPUSH", "what no build wrote").await;
    same("what is no lease is nobody's", checkpoint(&first, "9", "9").await, done)
}

/// An event of an approval, as the verbs of approvals write it; its id.
async fn event(shard: &Shard, word: &str) -> String {
    let mut redis = shard.server.connection().await;
    let add =
        redis::cmd("XADD").arg(shard.store.keys().key("approvals:acme")).arg("*").arg(&["event", word]).to_owned();
    add.query_async(&mut redis).await.unwrap()
}

async fn tellers(shard: &Shard) -> Result<(), String> {
    let (first, second) = (process("first"), process("second"));
    // The ids that are to be told; none where another tells.
    let tell = async |process: &ConsumerId, most: usize, told: &[String]| {
        let teller = Follower { name: "hook", process, lease_ms: LEASE_MS };
        let told = [(TenantId::new("acme").unwrap(), told.to_vec())];
        match shard.store.notices(teller, most, &told).await.unwrap() {
            Notices::Held => None,
            Notices::Found { mut of, .. } => Some(of.remove(0).into_iter().map(|notice| notice.id).collect::<Vec<_>>()),
        }
    };
    same("there is nothing", tell(&first, 2, &[]).await, Some(vec![]))?;
    let mut ids = Vec::new();
    for word in ["asked", "agreed", "approved", "used"] {
        ids.push(event(shard, word).await);
    }
    same("as many as asked for", tell(&first, 2, &[]).await, Some(ids[..2].to_vec()))?;
    same("another one tells", tell(&second, 2, &[]).await, None)?;
    steps_back(shard).await;
    same("also when the clock stepped back", tell(&second, 2, &[]).await, None)?;
    is_gone(shard);
    same("what was not told comes again", tell(&second, 2, &[]).await, Some(ids[..2].to_vec()))?;
    same("and what was told does not", tell(&second, 3, &ids[..1]).await, Some(ids[1..].to_vec()))?;
    same("that is all", tell(&second, 3, &ids[1..]).await, Some(vec![]))
}

async fn sealers(shard: &Shard) -> Result<(), String> {
    let (first, second) = (process("first"), process("second"));
    let seal = async |name: &ConsumerId, key: &str, before: &str, after: &str| {
        let sealer = Sealer { name, lease_ms: LEASE_MS, key_id: "seal-1", public_key: key };
        let text = |text: &str| text.to_owned();
        let row = SealRow { tenant: text("acme"), head: text("h"), body: text("b"), signature: text("s") };
        shard.store.seal(sealer, before, after, &[row]).await.unwrap()
    };
    let seals = async || shard.store.seals("0", 10).await.unwrap().len();
    let is_done = |what: &str, reply: SealReply| match reply {
        SealReply::Done { .. } => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    };
    is_done("nobody seals", seal(&first, "k", "", "5").await)?;
    same("another one does", seal(&second, "k", "5", "9").await, SealReply::Held)?;
    steps_back(shard).await;
    same("also when the clock stepped back", seal(&second, "k", "5", "9").await, SealReply::Held)?;
    is_gone(shard);
    same("another key has this name", seal(&second, "other", "5", "9").await, SealReply::OtherKey)?;
    is_done("it goes on", seal(&second, "k", "5", "9").await)?;
    is_gone(shard);
    let reply = seal(&first, "k", "5", "7").await;
    if !matches!(reply, SealReply::Stale { .. }) {
        return Err(format!("the first one stood still: {reply:?}"));
    }
    same("each entry has one seal", seals().await, 2)
}

async fn all(shard: &Shard) -> Result<(), String> {
    exporters(shard).await?;
    tellers(shard).await?;
    sealers(shard).await
}

#[tokio::test]
async fn one_of_a_name_at_a_time_follows_a_log_and_the_next_one_goes_on_from_there() {
    all(&Shard::new(RedisOptions::default(), Scripts::embedded()).await).await.unwrap();
}

#[tokio::test]
async fn switching_off_a_guard_of_those_who_follow_a_log_is_noticed() {
    let mut shard = Shard::new(RedisOptions::default(), Scripts::embedded()).await;
    let mut redis = shard.server.connection().await;
    for (rule, what, from, to) in FOLLOWERS {
        let scripts = Scripts::embedded().sabotage(from, to).unwrap_or_else(|error| panic!("rule {rule}: {error}"));
        let () = redis::cmd("FLUSHALL").query_async(&mut redis).await.unwrap();
        let store = Store::open(&shard.server.url(), 0, Arc::new(StoreOptions::default())).unwrap();
        shard.store = store.with_time(TimeSource::Injected(shard.clock.clone())).with_scripts(scripts);
        let noticed = all(&shard).await;
        println!("{what}: {noticed:?}");
        assert!(noticed.is_err(), "rule {rule}: {what}: not noticed");
    }
}

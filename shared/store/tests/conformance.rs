//! One suite for both stores: plays random transactions on the store in memory and on a real server, and compares all
//! results and contents. `TICKFLEET_CONFORMANCE_GAMES` is the number of games. `TICKFLEET_CONFORMANCE_SEED` repeats a
//! run. `TICKFLEET_REDIS_SERVER` is the program of the server.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod conformance {
    pub mod dice;
    pub mod plan;
    pub mod play;
    pub mod resolve;
    pub mod server;
    pub mod subjects;
    pub mod universe;
}

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use tickfleet_core::{Committed, InboxKey, StreamKey, Transaction, Version, Write};
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::seam::inspect::FollowRequest;
use tokio::sync::Mutex;

use conformance::dice::Games;
use conformance::plan::Step;
use conformance::play::{Differs, Seen, Subject, Table};
use conformance::server::Server;
use conformance::subjects::{InMemory, OnRedis, OverSocket};

/// Takes about 20 s on two processors in CI.
const GAMES: u32 = 400;
const OFTEN: usize = 10;
const STEPS: usize = 40;
const BEGIN_MS: i64 = 1_700_000_000_000;

/// If these events did not occur in a run of [`GAMES`] games, the suite would not compare their effects.
const EXPECTED: &[&str] = &[
    "is committed",
    "is refused",
    "is repeated",
    "is shadowed",
    "is taken",
    "held Version",
    "held Absent",
    "held Present",
    "held Debit",
    "held Before",
    "held Since",
    "held Generation",
    "held Epoch",
    "held Within",
    "held Fits",
    "held Member",
    "held First",
    "held MemoryAvailable",
    "held Inbox",
    "held Unread",
    "held Held",
    "wrote Put",
    "wrote PutPart",
    "wrote DeleteParts",
    "wrote Delete",
    "wrote Enqueue",
    "wrote Remove",
    "wrote Timer",
    "wrote ClearTimer",
    "wrote AddMember",
    "wrote RemoveMember",
    "wrote Add",
    "wrote Restart",
    "wrote DeleteCounter",
    "wrote Append",
    "wrote Reply",
    "wrote PolicyGeneration",
    "wrote SettingsGeneration",
    "conflict Record",
    "conflict LimitReached",
    "conflict Time",
    "conflict Generation",
    "conflict Epoch",
    "conflict Full",
    "conflict NoMember",
    "conflict Pressure",
    "conflict InboxFull",
    "conflict TooManyInboxes",
    "conflict Read",
    "conflict NotHeld",
];

fn play_games(games: u32, play: impl Fn(&[Step]) -> (Seen, Result<(), Differs>)) {
    let seed = number("TICKFLEET_CONFORMANCE_SEED").unwrap_or_else(|| RandomState::new().hash_one("seed"));
    let games = number("TICKFLEET_CONFORMANCE_GAMES").and_then(|games| games.try_into().ok()).unwrap_or(games);
    let config = Config {
        cases: games,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 4_000,
        ..Config::default()
    };
    // Events are counted only until the first failed game.
    let seen = RefCell::new(Seen::default());
    let played = Cell::new(0);
    let has_failed = Cell::new(false);
    let result = TestRunner::new(config).run(&Games(STEPS), |steps| {
        let (happened, outcome) = play(&steps);
        if !has_failed.get() {
            played.set(played.get() + 1);
            seen.borrow_mut().add(&happened);
            has_failed.set(outcome.is_err());
        }
        outcome.map_err(TestCaseError::fail)
    });
    let seen = seen.into_inner();
    eprintln!("{} games with seed {seed}: {seen:#?}", played.get());
    if let Err(error) = result {
        match error {
            TestError::Fail(why, steps) => {
                panic!("TICKFLEET_CONFORMANCE_SEED={seed} repeats this game:\n{steps:#?}\n{why}")
            }
            TestError::Abort(why) => panic!("{why}"),
        }
    }
    if games >= GAMES {
        for what in EXPECTED {
            assert!(
                seen.of(what) >= OFTEN,
                "{what} happened {} times only: the suite does not compare it",
                seen.of(what)
            );
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    #[allow(clippy::disallowed_methods, reason = "how long a test plays is the environment's to say")]
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn stores_on_disk_and_in_memory_agree() {
    let runtime = runtime();
    play_games(GAMES, |steps| {
        runtime.block_on(play(steps, &mut InMemory::on_disk(BEGIN_MS), &mut InMemory::new(BEGIN_MS)))
    });
}

#[test]
fn stores_over_a_socket_and_in_memory_agree() {
    let runtime = runtime();
    play_games(GAMES, |steps| {
        runtime.block_on(async { play(steps, &mut OverSocket::new(BEGIN_MS), &mut InMemory::new(BEGIN_MS)).await })
    });
}

#[test]
fn stores_on_redis_and_in_memory_agree() {
    let runtime = runtime();
    let server = Mutex::new(runtime.block_on(Server::start(BEGIN_MS)));
    play_games(GAMES, |steps| {
        runtime.block_on(async {
            let mut server = server.lock().await;
            let mut redis = OnRedis::new(&mut server, BEGIN_MS).await;
            play(steps, &mut InMemory::new(BEGIN_MS), &mut redis).await
        })
    });
}

#[tokio::test]
async fn a_waiting_take_receives_an_entry_from_any_queue() {
    let mut server = Server::start(BEGIN_MS).await;
    waits(&InMemory::new(BEGIN_MS)).await;
    waits(&OverSocket::new(BEGIN_MS)).await;
    waits(&OnRedis::new(&mut server, BEGIN_MS).await).await;
}

async fn waits(subject: &impl Subject) {
    let store = subject.store();
    let queues = vec![StreamKey::new("preferred"), StreamKey::new("other")];
    let take = TakeRequest { consumer: "worker".into(), queues, count: 3, wait_ms: 60_000 };
    let mut transaction = Transaction::new(Version::new("v1"));
    transaction.write(Write::Enqueue(StreamKey::new("other"), vec![("t".into(), "1".into())]));
    let enqueue = async {
        // Gives the take time to block before an entry arrives.
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.commit(&[transaction]).await.unwrap()
    };
    let both = async { tokio::join!(store.take(&take), enqueue) };
    let (taken, batch) = tokio::time::timeout(Duration::from_secs(30), both).await.expect("the take is woken");
    let [taken] = taken.unwrap().try_into().expect("one entry");
    assert_eq!(
        batch.results,
        [Ok(Committed {
            now_ms: BEGIN_MS,
            was_committed: false,
            entries: vec![taken.entry.clone()],
            shadowed: Vec::new()
        })]
    );
    assert_eq!(taken.queue, StreamKey::new("other"));
}

#[tokio::test]
async fn an_inbox_reader_receives_replies_before_and_after_removal() {
    let mut server = Server::start(BEGIN_MS).await;
    follows(&InMemory::new(BEGIN_MS)).await;
    follows(&OverSocket::new(BEGIN_MS)).await;
    follows(&OnRedis::new(&mut server, BEGIN_MS).await).await;
}

async fn follows(subject: &impl Subject) {
    let store = subject.store();
    let inbox = InboxKey { tenant: "acme".into(), inbox: "box".into() };
    let log = StreamKey::new("replies:acme:box");
    let reply = |version: &str| {
        let mut transaction = Transaction::new(Version::new(version));
        transaction.write(Write::Reply(inbox.clone(), "{}".into()));
        transaction
    };
    let follow = FollowRequest { log: log.clone(), after: None, count: 3, wait_ms: 60_000 };
    let send = async {
        // Gives the reader time to block before a reply arrives.
        tokio::time::sleep(Duration::from_millis(50)).await;
        store.commit(&[reply("v1")]).await.unwrap()
    };
    let both = async { tokio::join!(store.follow(&follow), send) };
    let (found, _) = tokio::time::timeout(Duration::from_secs(30), both).await.expect("the reader is woken");
    let [(entry, fields)] = found.unwrap().try_into().expect("one reply");
    let number = |fields: &[(std::sync::Arc<str>, bytes::Bytes)]| {
        fields.iter().find(|(name, _)| &**name == "seq").map(|(_, number)| number.clone())
    };
    assert_eq!(number(&fields), Some("1".into()));
    // Do not wait: the server's clock is stopped, so a blocking read would wait forever.
    let nothing = FollowRequest { after: Some(entry), wait_ms: 0, ..follow.clone() };
    assert!(store.follow(&nothing).await.unwrap().is_empty());
    store.drop_stream(&log).await.unwrap();
    assert!(store.follow(&FollowRequest { wait_ms: 0, ..follow.clone() }).await.unwrap().is_empty());
    store.commit(&[reply("v2")]).await.unwrap();
    let found = store.follow(&follow).await.unwrap();
    assert_eq!(number(&found[0].1), Some("1".into()), "the removed inbox begins again");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn play(steps: &[Step], first: &mut impl Subject, second: &mut impl Subject) -> (Seen, Result<(), Differs>) {
    let mut table = Table::new(first, second, BEGIN_MS);
    let outcome = table.play(steps).await;
    (table.seen, outcome)
}

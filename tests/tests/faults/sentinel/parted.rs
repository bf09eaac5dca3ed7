//! A primary is cut off from most Sentinels and from its replica, and continues to accept writes.

use tickfleet_testkit::Network;

use super::*;

/// Numbers of servers in the test's network. All URLs name `FIRST_SENTINEL` first.
const PRIMARY: usize = 0;
const FIRST_SENTINEL: usize = 2;

/// `None` if servers on this system cannot connect from their own addresses.
async fn apart(extra_args: &[&str]) -> Option<SentinelSetup> {
    if Network::is_possible().await {
        return Some(SentinelSetup::start_apart(1, extra_args).await);
    }
    eprintln!("skipped: servers cannot call from addresses of their own here");
    None
}

impl Fleet {
    /// The fleet and its producers still reach all servers.
    async fn cut_off(&self) {
        self.trio.replicated(PRIMARY, 1).await;
        self.trio.network().isolate(&[PRIMARY, FIRST_SENTINEL], self.trio.on_network());
        assert_eq!(self.trio.another_primary(PRIMARY).await, 1);
    }

    async fn join(&self) {
        self.trio.network().join();
        self.trio.replicated(1, 1).await;
        self.until_led_to(1).await;
    }

    fn ran(&self, prefix: &str) -> Vec<usize> {
        let runs = self.gate.runs.lock().unwrap();
        runs.iter().filter(|(mark, _)| mark.starts_with(prefix)).map(|(_, runs)| *runs).collect()
    }
}

fn good(replies: &BTreeMap<String, Vec<Value>>, prefix: &str, words: &[&str]) -> usize {
    let mut good = 0;
    for (turn, replies) in replies.iter().filter(|(turn, _)| turn.starts_with(prefix)) {
        let [reply] = &replies[..] else { panic!("{turn} has {} replies", replies.len()) };
        let said = outcomes(reply);
        assert!(words.contains(&said[0]), "{reply:#}");
        good += usize::from(said == ["ok"]);
    }
    good
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reaches_another_sentinel_moves_to_the_new_primary() {
    let Some(trio) = apart(&[]).await else { return };
    // The first Sentinel names the old primary, and the second names the new one.
    let url = trio.url_by(0..2);
    let fleet = Fleet::start_on(trio, url, Durability::None).await;
    fleet.submit("before").await;
    fleet.until_replied(PRIMARY, TURNS).await;

    fleet.cut_off().await;
    let first = Store::open(&fleet.trio.url_by(0..1), 0, Arc::new(StoreOptions::default())).unwrap();
    first.now_ms().await.unwrap();
    assert!(first.connection().primary().unwrap().unwrap().ends_with(fleet.trio.port(PRIMARY)));
    fleet.until_led_to(1).await;
    fleet.submit("during").await;
    let replies = fleet.until_replied(1, 2 * TURNS).await;
    assert_eq!(good(&replies, "during", &["ok"]), TURNS);

    fleet.join().await;
    fleet.submit("after").await;
    let replies = fleet.until_replied(1, 3 * TURNS).await;
    assert_eq!(good(&replies, "", &["ok"]), 3 * TURNS);
    assert_eq!(fleet.ran(""), vec![1; 3 * TURNS]);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_calls_do_not_run_on_a_partitioned_primary() {
    let Some(trio) = apart(&[]).await else { return };
    let url = trio.url_by(0..1);
    let fleet = Fleet::start_on(trio, url, Durability::Replica).await;
    fleet.cut_off().await;

    fleet.submit("cut-off").await;
    let replies = fleet.until_replied(PRIMARY, TURNS).await;
    assert_eq!(good(&replies, "", &["transient"]), 0);
    assert_eq!(fleet.ran(""), [0; 0], "a call ran, and nobody will know of it");

    fleet.join().await;
    assert_eq!(fleet.replies(1).await.len(), 0, "what the old primary took is still there");
    fleet.submit("cut-off").await;
    let replies = fleet.until_replied(1, TURNS).await;
    // A stall of half a second makes a confirmation fail, so a call can use up its attempts without running.
    let ran = good(&replies, "", &["ok", "transient"]);
    assert_eq!(fleet.ran(""), vec![1; ran]);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partitioned_primary_with_min_replicas_rejects_writes() {
    let Some(trio) = apart(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"]).await else { return };
    let url = trio.url_by(0..1);
    let fleet = Fleet::start_on(trio, url, Durability::None).await;
    fleet.submit("before").await;
    fleet.until_replied(PRIMARY, TURNS).await;

    fleet.cut_off().await;
    let deadline = Instant::now() + RECOVERS_WITHIN;
    let store = &fleet.client.stores()[0];
    let refused = loop {
        match store.ensure_groups().await {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(Instant::now() < deadline, "the old primary goes on taking writes"),
        }
        // Redis checks the lag every second; the deadline bounds the wait.
        sleep(Duration::from_millis(50)).await;
    };
    assert!(refused.contains("NOREPLICAS"), "{refused}");

    fleet.join().await;
    fleet.submit("after").await;
    let replies = fleet.until_replied(1, 2 * TURNS).await;
    assert_eq!(good(&replies, "", &["ok"]), 2 * TURNS);
    assert_eq!(fleet.ran(""), vec![1; 2 * TURNS]);
    fleet.stop().await;
}

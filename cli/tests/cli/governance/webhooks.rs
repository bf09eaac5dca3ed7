//! Webhooks must deliver all approval events, even if their senders are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use nix::sys::signal::Signal;
use serde_json::Value;
use tickfleet_testkit::RedisServer;
use tokio::sync::Notify;

use crate::support::binary::tickfleet;
use crate::support::process::{Process, pause};
use crate::support::serve::serve;

/// (ID, signature, body)
type Post = (String, String, Value);

#[derive(Clone, Default)]
struct Receiver {
    posts: Arc<Mutex<Vec<Post>>>,
    held: Arc<Notify>,
}

impl Receiver {
    async fn start(&self) -> String {
        let receiver = self.clone();
        let take =
            axum::routing::post(async move |headers: HeaderMap, body: String| receiver.take(&headers, body).await);
        format!("http://{}/hook", serve(axum::Router::new().route("/hook", take)).await)
    }

    async fn take(&self, headers: &HeaderMap, body: String) -> axum::response::Response {
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        let id: String = header("webhook-id");
        let body: Value = serde_json::from_str(&body).unwrap();
        // A receiver rejects a timestamp that differs by more than five minutes from its clock.
        let off = header("webhook-timestamp").parse::<i64>().unwrap() - wall_ms() / 1_000;
        assert!(off.abs() < 300, "{off} s off");
        let seen = {
            let mut posts = self.posts.lock().unwrap();
            posts.push((id.clone(), header("webhook-signature"), body.clone()));
            posts.iter().filter(|(known, ..)| *known == id).count()
        };
        match (body["data"]["call"].as_str().unwrap(), seen) {
            ("bad/0", _) => StatusCode::UNPROCESSABLE_ENTITY.into_response(),
            ("late/0", 1) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            // The receiver accepts this event, but the sender gets no response.
            ("held/0", 1) => {
                self.held.notify_one();
                std::future::pending().await
            }
            ("slow/0", _) => std::future::pending().await,
            _ => StatusCode::NO_CONTENT.into_response(),
        }
    }

    fn calls(&self) -> Vec<String> {
        self.posts
            .lock()
            .unwrap()
            .iter()
            .map(|(_, _, body)| body["data"]["call"].as_str().unwrap().to_owned())
            .collect()
    }
}

#[allow(clippy::disallowed_methods, reason = "receivers go by their own clock")]
fn wall_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

async fn tell(redis: &RedisServer, call: &str, event: &str) {
    tell_at(redis, call, event, wall_ms()).await;
}

async fn tell_at(redis: &RedisServer, call: &str, event: &str, at_ms: i64) {
    let mut command = redis::cmd("XADD");
    command.arg("{tickfleet:0}:approvals:demo").arg("*").arg(&["event", event, "approval", "apr-1", "call", call]);
    command.arg(&["at_ms", &at_ms.to_string(), "agent", "kelly", "arguments", "{\"amount\":700}"]);
    command.query_async::<String>(&mut redis.connection().await).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_webhooks_are_signed_and_retried_under_the_same_id() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::default();
    let to = receiver.start().await;
    let url = redis.url();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let place = format!("file:{}", secret.display());
    let command = ["approvals", "notify", "--to", &to, "--secret", &place];
    tickfleet(&[&command[..], &["--redis-url", &url]].concat()).exits(1).prints_error("allow_private");
    let with = [&command[..], &["--allow-private", "127.0.0.1"]].concat();

    tell(&redis, "bad/0", "asked").await;
    tell(&redis, "late/0", "asked").await;
    tell(&redis, "held/0", "asked").await;
    tell(&redis, "good/0", "used").await;
    let approved_ms = wall_ms();
    tell_at(&redis, "good/0", "approved", approved_ms).await;
    let teller = Process::start_command(&with, folder.path(), &url, None);
    receiver.held.notified().await;
    teller.signal(Signal::SIGKILL);
    drop(teller);
    let mut connection = redis.connection().await;
    let _: u64 = redis::cmd("DEL").arg("{tickfleet:0}:follow:webhook").query_async(&mut connection).await.unwrap();
    let teller = Process::start_command(&with, folder.path(), &url, None);
    tell(&redis, "last/0", "denied").await;
    let times = |call: &str| receiver.calls().iter().filter(|reported| *reported == call).count();
    while times("held/0") < 2 || times("late/0") < 2 || times("last/0") < 1 || times("bad/0") < 2 {
        pause();
    }
    while !teller.metrics().contains("tickfleet_approval_notifications_total{result=\"failed\"}") {
        pause();
    }
    assert_eq!(teller.stop(), Some(0));
    let posts = receiver.posts.lock().unwrap().clone();
    let mut ids: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (id, signature, body) in &posts {
        assert!(signature.starts_with("v1,"), "{signature}");
        assert_ne!(body["data"]["event"], "used");
        ids.entry(body["data"]["call"].as_str().unwrap().to_owned()).or_default().insert(id.clone());
    }
    assert!(ids.values().all(|ids| ids.len() == 1), "{ids:?}");
    let first = &posts.iter().find(|(_, _, body)| body["data"]["call"] == "good/0").unwrap().2;
    let approved = chrono::DateTime::from_timestamp_millis(approved_ms).unwrap();
    let approved = approved.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    assert_eq!((&first["type"], &first["timestamp"]), (&"approval.approved".into(), &approved.into()));
    assert_eq!(
        (&first["data"]["arguments"]["amount"], &first["data"]["approval"]),
        (&700.into(), &"demo:apr-1".into())
    );
    assert_eq!(pending(&redis).await, 1);
}

async fn pending(redis: &RedisServer) -> usize {
    let mut connection = redis.connection().await;
    let record: String =
        redis::cmd("GET").arg("{tickfleet:0}:notified:webhook:demo").query_async(&mut connection).await.unwrap();
    let delivered: Value = serde_json::from_str(&record[record.find('{').unwrap()..]).unwrap();
    let read = |id: &str| {
        let (ms, seq) = id.split_once('-').unwrap();
        (ms.parse::<u64>().unwrap(), seq.parse::<u64>().unwrap())
    };
    let upto = delivered["to"].as_str().map_or((0, 0), read);
    let later: Vec<_> = delivered["l"].as_array().into_iter().flatten().map(|id| read(id.as_str().unwrap())).collect();
    let mut range = redis::cmd("XRANGE");
    range.arg("{tickfleet:0}:approvals:demo").arg("-").arg("+");
    let events: Vec<(String, redis::Value)> = range.query_async(&mut connection).await.unwrap();
    events.iter().map(|(id, _)| read(id)).filter(|id| *id > upto && !later.contains(id)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_timestamps_match_the_receivers_clock_after_a_clock_jump() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::default();
    let to = receiver.start().await;
    let url = redis.url();
    let ahead_ms = 2 * 86_400_000;
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let place = format!("file:{}", secret.display());
    let with = ["approvals", "notify", "--to", &to, "--secret", &place, "--allow-private", "127.0.0.1"];
    // Shard time never steps back, so it stays ahead of Redis' clock.
    let mut ahead = redis::cmd("HSET");
    ahead.arg("{tickfleet:0}:meta").arg(&["offset_ms", &ahead_ms.to_string()]);
    ahead.query_async::<u64>(&mut redis.connection().await).await.unwrap();
    tell(&redis, "before/0", "asked").await;
    tell_at(&redis, "since/0", "asked", wall_ms() + ahead_ms).await;
    let teller = Process::start_command(&with, folder.path(), &url, None);
    while receiver.calls().len() < 2 {
        pause();
    }
    assert!(!teller.metrics().contains("result=\"given_up\"} 1"), "{}", teller.metrics());
    assert_eq!(teller.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn accepted_webhooks_are_recorded_while_a_receiver_hangs() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::default();
    let to = receiver.start().await;
    let url = redis.url();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let place = format!("file:{}", secret.display());
    let with = ["approvals", "notify", "--to", &to, "--secret", &place, "--allow-private", "127.0.0.1"];
    for n in 0..16 {
        tell(&redis, &format!("quick-{n}/0"), "asked").await;
    }
    for _ in 0..40 {
        tell(&redis, "slow/0", "asked").await;
    }
    let teller = Process::start_command(&with, folder.path(), &url, None);
    while !receiver.calls().contains(&"slow/0".to_owned()) {
        pause();
    }
    assert_eq!(pending(&redis).await, 40, "those that were taken are noted before the next ones are tried");
    teller.signal(Signal::SIGKILL);
}

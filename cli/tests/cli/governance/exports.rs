//! Exports the audit log to files, to standard output and to a collector, while exporters are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use nix::sys::signal::Signal;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Content;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message as _;
use tickfleet_proof::lines::Line;
use tickfleet_testkit::RedisServer;
use tokio::sync::Notify;

use crate::support::binary::tickfleet;
use crate::support::process::{Process, pause};
use crate::support::serve::serve;

const LOG: &str = "{tickfleet:0}:audit";

struct Log {
    redis: RedisServer,
    folder: tempfile::TempDir,
    written: usize,
}

impl Log {
    async fn new() -> Self {
        let redis = RedisServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("conf")).unwrap();
        Self { redis, folder, written: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn write(&mut self, entries: usize) {
        let mut pipe = redis::pipe();
        for n in self.written..self.written + entries {
            let text = format!(
                r#"{{"level":"info","action":"TOOL_CALL","tenant":"t{}","meta":{{"call":"x{n}/0","outcome":"ok"}}}}"#,
                n % 3
            );
            pipe.cmd("XADD").arg(LOG).arg("*").arg("audit").arg(text).ignore();
        }
        self.written += entries;
        pipe.query_async::<()>(&mut self.redis.connection().await).await.unwrap();
    }

    async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        redis::cmd(words[0]).arg(&words[1..]).query_async(&mut self.redis.connection().await).await.unwrap()
    }

    async fn ids(&self) -> Vec<String> {
        let found: Vec<(String, BTreeMap<String, String>)> = self.command(&["XRANGE", LOG, "-", "+"]).await;
        found.into_iter().map(|(id, _)| id).collect()
    }

    fn follow(&self, to: &str, more: &[&str], out: Option<File>) -> Process {
        let args = [&["audit", "export", "--follow", "--to", to][..], more].concat();
        Process::start_command(&args, &self.path("conf"), &self.redis.url(), out)
    }
}

/// Returns the files of the export, the oldest first.
fn files(current: &Path) -> Vec<PathBuf> {
    let name = format!("{}.", current.file_name().unwrap().to_str().unwrap());
    let all = current.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let is_closed = |path: &PathBuf| {
        let number = path.file_name().unwrap().to_str().unwrap().strip_prefix(&name).map(ToOwned::to_owned);
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let mut found: Vec<PathBuf> = all.filter(is_closed).collect();
    found.sort();
    found.extend(current.exists().then(|| current.to_owned()));
    found
}

fn lines(files: &[PathBuf]) -> Vec<String> {
    let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap_or_default()).collect();
    text.lines().map(ToOwned::to_owned).collect()
}

fn entries(lines: &[String]) -> Vec<String> {
    let id = |line: &String| match Line::read(line) {
        Some(Line::Entry(entry)) => Some(entry.id.into_owned()),
        _ => None,
    };
    lines.iter().filter_map(id).collect()
}

fn until_whole(path: &Path, count: usize) {
    let sealed = |line: &String| match Line::read(line) {
        Some(Line::Seal(seal)) => serde_json::from_str::<serde_json::Value>(seal.body).unwrap()["count"].as_u64(),
        _ => None,
    };
    loop {
        let lines = lines(&files(path));
        let seals: u64 = lines.iter().filter_map(sealed).sum();
        if entries(&lines).len() >= count && seals >= count as u64 {
            break;
        }
        pause();
    }
}

async fn assert_trimmed_is_reported(log: &mut Log, path: &Path, to: &str, bounds: &[&str]) {
    let there = log.written;
    log.write(50).await;
    let _: u64 = log.command(&["XTRIM", LOG, "MAXLEN", "20"]).await;
    let exporter = log.follow(to, bounds, None);
    while entries(&lines(&files(path))).len() < there + 20 {
        pause();
    }
    let gone = lines(&files(path)).iter().find_map(|line| match Line::read(line) {
        Some(Line::Lost(lost)) => Some(lost.entries),
        _ => None,
    });
    assert_eq!(gone, Some(30));
    exporter.says("audit entries were trimmed before export");
    assert!(exporter.metrics().contains("tickfleet_audit_trimmed_unexported_total 30"), "{}", exporter.metrics());
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_files_have_each_entry_once_and_verify_after_kills() {
    let mut log = Log::new().await;
    let key = log.path("seal.key");
    let path = log.path("audit.jsonl");
    let public = tickfleet(&["audit", "key", "--new", key.to_str().unwrap()]).exits(0).stdout.trim().to_owned();
    let settings = format!("seal: {{key: 'file:{}', every: 100ms}}\n", key.display());
    fs::write(log.path("conf/tickfleet.yaml"), settings).unwrap();
    log.write(300).await;
    let scheduler = Process::start("scheduler", &log.path("conf"), &log.redis.url());
    let to = format!("file:{}", path.display());
    let bounds = ["--max-size", "8KiB", "--max-files", "1000"];
    for _ in 0..4 {
        let exporter = log.follow(&to, &bounds, None);
        let there = log.written;
        while entries(&lines(&files(&path))).len() < there {
            pause();
        }
        log.write(150).await;
        exporter.signal(Signal::SIGKILL);
        drop(exporter);
    }
    let torn = fs::read(&path).unwrap_or_default();
    fs::write(&path, [&torn[..], br#"{"shard":0,"id":"17"#].concat()).unwrap();
    let exporter = log.follow(&to, &bounds, None);
    let ids = log.ids().await;
    until_whole(&path, ids.len());
    let url = log.redis.url();
    let conf = log.folder.path().join("conf").to_str().unwrap().to_owned();
    let with = ["--redis-url", &url, "--config", &conf];
    let second = tickfleet(&[&["audit", "export", "--follow", "--to", &to][..], &with].concat());
    second.exits(1).prints_error("another process exports to this file");
    assert_eq!(exporter.stop(), Some(0));
    let parts = files(&path);
    assert!(parts.len() > 3, "{parts:?}");
    assert_eq!(entries(&lines(&parts)), ids, "each once, in order");
    let named: Vec<&str> = parts.iter().map(|part| part.to_str().unwrap()).collect();
    let verify = |parts: &[&str]| tickfleet(&[&["audit", "verify", "--json", "--key", &public], parts].concat());
    let verdict = verify(&named).exits(0).json();
    assert_eq!((&verdict["sealed"], &verdict["unsealed"]), (&ids.len().into(), &0.into()), "{verdict}");
    let doctor = || tickfleet(&[&["doctor"][..], &with].concat()).stdout;
    let reported = doctor();
    assert!(reported.contains("are unchanged") && !reported.contains("was CHANGED"), "{reported}");
    verify(&[&["--partial"], &named[2..]].concat()).exits(0);
    verify(&["--partial", named[0], named[3]]).exits(1);

    assert_trimmed_is_reported(&mut log, &path, &to, &bounds).await;
    while !scheduler.metrics().contains("tickfleet_audit_unsealed_age_seconds 0\n") {
        pause();
    }
    let last = log.ids().await.pop().unwrap();
    let _: u64 = log.command(&["XDEL", LOG, &last]).await;
    let reported = doctor();
    assert!(reported.contains("was CHANGED"), "{reported}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_files_respect_max_files_and_keep_the_newest_entries() {
    let mut log = Log::new().await;
    let path = log.path("audit.jsonl");
    log.write(2_000).await;
    let bounds = ["--max-size", "32KiB", "--max-files", "3"];
    let exporter = log.follow(&format!("file:{}", path.display()), &bounds, None);
    while !exporter.metrics().contains("tickfleet_audit_exported_total 2000") {
        pause();
    }
    assert_eq!(exporter.stop(), Some(0));
    let parts = files(&path);
    assert!((2..=3).contains(&parts.len()), "{parts:?}");
    let sizes: Vec<u64> = parts.iter().map(|part| std::fs::metadata(part).unwrap().len()).collect();
    // A file is closed after the batch that reaches its size. The 2,000 entries total more than 500 KiB.
    assert!(sizes.iter().all(|size| *size < 128 * 1_024), "{sizes:?}");
    let kept = entries(&lines(&parts));
    let all = log.ids().await;
    assert_eq!(kept[..], all[all.len() - kept.len()..], "the newest");
}

#[tokio::test(flavor = "multi_thread")]
async fn stdout_exports_every_entry_despite_exporter_kills() {
    let mut log = Log::new().await;
    let mut outs = Vec::new();
    log.write(700).await;
    for round in 0..3 {
        let out = log.path(&format!("out-{round}"));
        let exporter = log.follow("stdout", &[], Some(File::create(&out).unwrap()));
        log.write(100).await;
        if round < 2 {
            exporter.signal(Signal::SIGKILL);
            // The test would otherwise have to wait until the lease of the killed exporter expires.
            let _: u64 = log.command(&["DEL", "{tickfleet:0}:follower:stdout"]).await;
        } else {
            let last = log.ids().await.pop().unwrap();
            while entries(&lines(std::slice::from_ref(&out))).last() != Some(&last) {
                pause();
            }
            assert_eq!(exporter.stop(), Some(0));
        }
        outs.push(out);
    }
    let reported = lines(&outs);
    let found: BTreeSet<String> = entries(&reported).into_iter().collect();
    assert_eq!(found, log.ids().await.into_iter().collect());
    assert!(matches!(Line::read(&lines(&outs[2..])[0]), Some(Line::Header(_))));
}

#[derive(Clone, Default)]
struct Collector {
    taken: Arc<Mutex<Vec<LogRecord>>>,
    requests: Arc<Mutex<usize>>,
    asked: Arc<Notify>,
}

impl Collector {
    async fn start(&self) -> String {
        let collector = self.clone();
        let take = axum::routing::post(async move |body: Bytes| collector.take(&body).await);
        format!("http://{}", serve(axum::Router::new().route("/v1/logs", take)).await)
    }

    async fn take(&self, body: &[u8]) -> axum::response::Response {
        let request = ExportLogsServiceRequest::decode(body).unwrap();
        let resource = request.resource_logs.into_iter().next().unwrap();
        let records = resource.scope_logs.into_iter().flat_map(|scope| scope.log_records).collect::<Vec<_>>();
        let number = {
            let mut requests = self.requests.lock().unwrap();
            *requests += 1;
            *requests
        };
        if number == 1 {
            return (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response();
        }
        let body_of = |record: &LogRecord| match record.body.clone().unwrap().value.unwrap() {
            Content::StringValue(text) => text,
            _ => String::new(),
        };
        if records.iter().any(|record| body_of(record).contains("\"call\":\"x7/0\"")) {
            return StatusCode::BAD_REQUEST.into_response();
        }
        self.taken.lock().unwrap().extend(records);
        if number == 3 {
            // The collector has accepted the records, but the exporter gets no response.
            self.asked.notify_one();
            std::future::pending::<()>().await;
        }
        StatusCode::OK.into_response()
    }

    fn uids(&self) -> Vec<String> {
        let uid = |record: &LogRecord| {
            let uid = record.attributes.iter().find(|attribute| attribute.key == "log.record.uid").unwrap();
            format!("{:?}", uid.value.as_ref().unwrap().value)
        };
        self.taken.lock().unwrap().iter().map(uid).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_otlp_export_resumes_after_a_kill_and_skips_a_rejected_entry() {
    let mut log = Log::new().await;
    let collector = Collector::default();
    let to = format!("otlp:{}", collector.start().await);
    log.write(20).await;
    let exporter = log.follow(&to, &[], None);
    collector.asked.notified().await;
    exporter.signal(Signal::SIGKILL);
    drop(exporter);
    let exporter = log.follow(&to, &[], None);
    log.write(5).await;
    let distinct = || collector.uids().into_iter().collect::<BTreeSet<_>>().len();
    while distinct() < 24 {
        pause();
    }
    while !exporter.metrics().contains("tickfleet_audit_export_rejected_total 1") {
        pause();
    }
    assert_eq!(exporter.stop(), Some(0));
    assert!(collector.uids().len() > 24, "what was under way is sent again");
    let first = collector.taken.lock().unwrap()[0].clone();
    assert_eq!((first.event_name.as_str(), first.severity_text.as_str()), ("tickfleet.audit", "INFO"));
    let named: Vec<&str> = first.attributes.iter().map(|attribute| attribute.key.as_str()).collect();
    assert!(named.contains(&"tickfleet.tenant") && named.contains(&"tickfleet.outcome"), "{named:?}");
    let kept: String = log.command(&["GET", "{tickfleet:0}:follow:otlp"]).await;
    assert!(kept.contains(&format!(r#""at":"{}"#, log.ids().await.last().unwrap())), "{kept}");
}

//! `explain` for missing processes, tasks, and turns that only the audit log still contains.

use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use tickfleet_testkit::RedisServer;

use crate::support::binary::{DevFleet, submit, tickfleet};
use crate::support::process::Process;

#[tokio::test]
async fn explain_reports_a_missing_scheduler_worker_or_runtime() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let url = redis.url();
    let ask = |args: &[&str]| tickfleet(&[args, &["--redis-url", &url]].concat());
    ask(&submit(&["--call", "echo", "--turn-id", "early"])).exits(0);
    ask(&["explain", "demo:early"]).exits(0).says("no scheduler is alive");
    let scheduler = Process::start("scheduler", folder.path(), &url);
    let of = ["delegate", "--tenant", "atlas-ux", "--to", "archy", "Find out why", "--task-id", "why"];
    ask(&of).exits(0);
    let reported = |id: &str, words: &str| loop {
        let said = ask(&["explain", id]).exits(0);
        if !said.stdout.contains("waits for a scheduler") {
            said.says(words);
            break said.stdout;
        }
    };
    reported("demo:early", "No worker is alive");
    let task = reported("atlas-ux:why", "No runtime has ever read {tickfleet:0}:external:atlas-ux:archy");
    assert!(task.contains("To do: Find out why"), "{task}");
    let mut runtime = redis.connection().await;
    let mut read = redis::cmd("XREADGROUP");
    read.arg("GROUP")
        .arg("workers")
        .arg("runtime-1")
        .arg("STREAMS")
        .arg("{tickfleet:0}:external:atlas-ux:archy")
        .arg(">");
    let _: redis::Value = read.query_async(&mut runtime).await.unwrap();
    reported("atlas-ux:why", "runtime-1 runs it");
    ask(&[&of[..6], &["--task-id", "next"]].concat()).exits(0);
    reported("atlas-ux:next", "A runtime reads {tickfleet:0}:external:atlas-ux:archy");
    assert_eq!(scheduler.stop(), Some(0));
}

#[tokio::test]
async fn explain_finds_an_old_turn_among_many_newer_audit_entries() {
    let redis = RedisServer::start().await;
    let mut at = redis.connection().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let minted = fleet.run(&submit(&["--call", "echo {\"text\":\"one\"}", "--wait", "--json"])).exits(0).json();
    let minted = format!("demo:{}", minted["turn_id"].as_str().unwrap());
    noise(&mut at).await;
    fleet.run(&submit(&["--call", "echo", "--call", "nope", "--turn-id", "given", "--wait"])).exits(1);
    noise(&mut at).await;
    for (id, entries) in [(minted.as_str(), 1), ("demo:given", 2)] {
        let story = fleet.run(&["explain", id, "--json"]).exits(0).json();
        let audit = &story["audit"];
        assert_eq!(audit["entries"].as_array().map(Vec::len), Some(entries), "{story}");
        assert_eq!(audit["complete"], true, "{story}");
        assert!(audit["read"].as_u64().unwrap() > 2_000, "the noise lies in the way: {audit}");
    }
    fleet.run(&["explain", "demo:given/1"]).exits(0).says("kelly called nope");

    // In a real fleet, these records expire earlier than the audit log. Here, they are deleted.
    let ids = [
        format!("{{tickfleet:0}}:done:{minted}"),
        "{tickfleet:0}:done:demo:given".into(),
        "{tickfleet:0}:id:demo:given".into(),
    ];
    let _: i64 = redis::cmd("DEL").arg(&ids).query_async(&mut at).await.unwrap();
    let said = fleet.run(&["explain", &minted]).exits(0);
    said.says("of agent kelly has ended; its record has expired").says("kelly called echo");
    fleet.run(&["explain", "demo:given"]).exits(1).prints_error("search them with --since");
    let said = fleet.run(&["explain", "demo:given", "--since", "1h"]).exits(0);
    said.says("kelly called echo").says("kelly called nope");
    fleet.run(&["explain", "demo:given", "--since", "3h", "--until", "2h"]).exits(1);
}

/// One read cannot return all these entries, so every search around this time makes further reads.
async fn noise(at: &mut MultiplexedConnection) {
    let stream = "{tickfleet:0}:audit";
    let last: StreamRangeReply =
        redis::cmd("XREVRANGE").arg(&[stream, "+", "-", "COUNT", "1"]).query_async(at).await.unwrap();
    let (ms, seq) = last.ids[0].id.split_once('-').unwrap();
    let seq: u64 = seq.parse().unwrap();
    let mut pipe = redis::pipe();
    for number in 1..=3_000 {
        let entry = format!(r#"{{"tenant":"demo","meta":{{"call":"other-{number}/0","turn":"other-{number}"}}}}"#);
        pipe.cmd("XADD").arg(stream).arg(format!("{ms}-{}", seq + number)).arg("audit").arg(entry).ignore();
    }
    pipe.exec_async(at).await.unwrap();
}

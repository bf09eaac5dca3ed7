//! Seals, searches, exports and verifies the audit log, and uses it for proofs.

use tickfleet_testkit::RedisServer;

use crate::support::binary::{DevFleet, tickfleet};

const SETTINGS: &str = "audit: {admissions: true}
caps: {tick: 1s, max_calls_per_tick: 3}
seal: {key: 'file:KEY', anchor: 'file:ANCHORS', every: 100ms}
";

#[tokio::test]
async fn an_export_verifies_without_the_fleet_and_an_edit_is_detected() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let key = path("seal.key");
    let anchors = path("anchors");
    let export = path("day.jsonl");
    let report = path("report.md");
    let public = tickfleet(&["audit", "key", "--new", &key]).exits(0).stdout.trim().to_owned();
    assert!(public.starts_with("seal-1="), "{public}");
    tickfleet(&["audit", "key", "--new", &key]).exits(1);
    let conf = path("conf");
    std::fs::create_dir(&conf).unwrap();
    let settings = SETTINGS.replace("KEY", &key).replace("ANCHORS", &anchors);
    std::fs::write(format!("{conf}/tickfleet.yaml"), settings).unwrap();
    let fleet = DevFleet::start(&["--redis-url", &redis.url(), "--config", &conf]);
    let mut turn = vec!["submit", "--tenant", "demo", "--agent", "kelly", "--wait"];
    turn.extend(["--call", "echo"].repeat(7));
    fleet.run(&turn).exits(0);
    fleet.run(&["submit", "--tenant", "demo", "--agent", "fran", "--call", "post_to_x {}", "--wait"]);
    let with = ["--config", &conf];
    loop {
        let reported = std::fs::read_to_string(&anchors).unwrap_or_default();
        if reported.lines().any(|line| line.contains("\"entries\":8")) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await; // another process writes the file
    }
    let found = fleet.run(&["audit", "search", "--outcome", "denied", "--json", with[0], with[1]]).exits(0).json();
    assert_eq!(found["entries"].as_array().unwrap().len(), 1, "{found}");
    fleet.run(&["audit", "export", "--tenant", "demo", "--to", &export, with[0], with[1]]).exits(0);
    assert_eq!(fleet.stop(), Some(0));

    let verify = ["audit", "verify", &export, "--anchors", &anchors, "--key", &public];
    let verdict = tickfleet(&[&verify[..], &["--json"]].concat()).exits(0).json();
    assert_eq!((&verdict["sealed"], &verdict["unsealed"]), (&8.into(), &0.into()), "{verdict}");
    tickfleet(&["prove", &export, "--report", &report, "--anchors", &anchors, "--key", &public]).exits(0);
    let reported = std::fs::read_to_string(&report).unwrap();
    assert!(reported.contains("| No tick of an agent overran its cap. | yes | 4 windows"), "{reported}");
    assert!(
        reported.contains("## As the export says") && reported.contains("- Days of demo are in the time zone UTC"),
        "{reported}"
    );
    let verdict = tickfleet(&[&verify[..], &["--tenant", "demo", "--json"]].concat()).exits(0).json();
    assert_eq!(verdict["sealed"], 8, "{verdict}");
    tickfleet(&[&verify[..], &["--anchors-from", "2h"]].concat()).exits(2);
    tickfleet(&[&verify[..], &["--fleet", "tickfleet"]].concat()).exits(0);
    let reported = tickfleet(&[&verify[..], &["--fleet", "another"]].concat()).exits(1).stdout;
    assert!(reported.contains("header wrong of demo in shard 0: its seals are of the fleet tickfleet"), "{reported}");

    let text = std::fs::read_to_string(&export).unwrap();
    std::fs::write(&export, text.replacen("\"outcome\":\"denied\"", "\"outcome\":\"ok\"", 1)).unwrap();
    let reported = tickfleet(&verify).exits(1).stdout;
    assert!(reported.contains("edited entry"), "{reported}");
    tickfleet(&["prove", &export]).exits(1);
}

const LIMITS: &str = "limits:
  echoes: {match: {tools: [echo]}, per: [agent], max: 3, every: 31d, on_reach: reject}
  shade: {match: {tools: [echo]}, max: 1, every: 31d, mode: shadow}
";

/// The log contains an operator's resets, but not a change by hand in Redis, so the proof reports the change.
#[tokio::test]
async fn a_proof_covers_limit_windows_and_detects_a_deleted_counter() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().to_str().unwrap();
    std::fs::write(format!("{conf}/tickfleet.yaml"), "audit: {admissions: true}\n").unwrap();
    std::fs::write(format!("{conf}/limits.yaml"), LIMITS).unwrap();
    let fleet = DevFleet::start(&["--redis-url", &redis.url(), "--config", conf]);
    let echo = |times: usize| {
        let turn = ["submit", "--config", conf, "--tenant", "demo", "--agent", "kelly", "--wait"];
        fleet.run(&[&turn[..], &["--call", "echo"].repeat(times)].concat())
    };
    let proved = |name: &str| {
        let export = folder.path().join(name).to_str().unwrap().to_owned();
        fleet.run(&["audit", "export", "--config", conf, "--to", &export]).exits(0);
        tickfleet(&["prove", &export])
    };
    echo(2).exits(0);
    fleet
        .run(&["limits", "reset", "echoes", "demo:kelly", "--config", conf, "--reason", "a try", "--by", "anna"])
        .exits(0);
    echo(3).exits(0);
    echo(1).says("is used up");
    proved("reset.jsonl").exits(0).says("| No window of a limit overran. | yes | 2 windows | 1 calls: ");

    let mut hand = redis.connection().await;
    let taken: u32 =
        redis::cmd("HDEL").arg("{tickfleet:0}:counters:echoes").arg("demo:kelly").query_async(&mut hand).await.unwrap();
    assert_eq!(taken, 1);
    echo(3).exits(0);
    proved("hand.jsonl").exits(1).says("echoes@demo:kelly of shard 0: ").says(" were admitted with the same count");
}

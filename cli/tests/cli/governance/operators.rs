//! Tests operator commands: list turns, cancel many of them, and pause.

use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet, tickfleet};

const WHY: [&str; 4] = ["--reason", "agreed with Ben", "--by", "anna"];

fn submit(fleet: &DevFleet, agent: &str, id: &str, call: &str) -> CommandOutput {
    fleet.run(&["submit", "--tenant", "demo", "--agent", agent, "--turn-id", id, "--call", call])
}

#[tokio::test]
async fn turns_of_a_paused_agent_wait_until_it_is_resumed() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start_with(&["--redis-url", &redis.url()], &[("TICKFLEET_CAPS_TICK", "500ms")]);
    fleet.run(&["pauses"]).exits(0).says("No pauses.");
    fleet
        .run(&[&["pause", "demo", "kelly"], &WHY[..]].concat())
        .exits(0)
        .says("calls of agent kelly of demo are paused");
    fleet.run(&[&["pause", "demo", "kelly"], &WHY[..]].concat()).exits(0).says("was paused already");
    submit(&fleet, "kelly", "waits", "echo").exits(0);
    for n in 0..3 {
        let id = format!("other-{n}");
        fleet
            .run(&[
                "submit",
                "--tenant",
                "demo",
                "--agent",
                "fran",
                "--turn-id",
                &id,
                "--call",
                "sleep {\"ms\":300}",
                "--wait",
            ])
            .exits(0);
    }
    let story = fleet.run(&["explain", "demo:waits", "--json"]).exits(0).json();
    assert_eq!((&story["state"], &story["waits"]["rule"]), (&"throttled".into(), &"paused".into()), "{story}");
    assert_eq!(story["waits"]["pause"]["by"], "anna", "{story}");
    fleet.run(&["pauses"]).exits(0).says("kelly").says("agreed with Ben");
    fleet.run(&[&["pause", "demo"], &WHY[..]].concat()).exits(0).says("calls of tenant demo are paused");
    submit(&fleet, "fran", "waits-too", "echo").exits(0);
    fleet.run(&[&["resume", "demo", "kelly"], &WHY[..]].concat()).exits(0);
    let listed = fleet.run(&["turns", "list", "--tenant", "demo", "--state", "throttled", "--json"]).exits(0).json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(2), "{listed}");
    fleet.run(&[&["resume", "demo"], &WHY[..]].concat()).exits(0).says("run again");
    for id in ["waits", "waits-too"] {
        while fleet.run(&["explain", &format!("demo:{id}"), "--json"]).json()["state"] != "done" {}
    }
    fleet.run(&[&["resume", "demo"], &WHY[..]].concat()).exits(0).says("was not paused");
    let mut at = redis.connection().await;
    let entries: Vec<redis::Value> =
        redis::cmd("XRANGE").arg("{tickfleet:0}:audit").arg("-").arg("+").query_async(&mut at).await.unwrap();
    let log = format!("{entries:?}");
    for said in ["anna paused demo:kelly", "anna resumed demo:kelly", "anna paused demo\\", "agreed with Ben"] {
        assert!(log.contains(said.trim_end_matches('\\')), "no {said:?} in {log}");
    }
}

#[tokio::test]
async fn turns_are_listed_by_filter_and_canceled_in_bulk_after_a_dry_run() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    fleet.run(&[&["pause", "demo", "kelly"], &WHY[..]].concat()).exits(0);
    for n in 0..6 {
        submit(&fleet, "kelly", &format!("k{n}"), if n % 2 == 0 { "echo" } else { "sleep {\"ms\":1}" }).exits(0);
    }
    submit(&fleet, "fran", "long", "sleep {\"ms\":600000}").exits(0);
    let count = |args: &[&str]| {
        let listed = fleet.run(&[&["turns", "list", "--json"], args].concat()).exits(0).json();
        listed["items"].as_array().unwrap().len()
    };
    while count(&["--state", "throttled"]) < 6 || count(&["--state", "running"]) < 1 {}
    assert_eq!(count(&["--agent", "kelly", "--tool", "echo"]), 3);
    assert_eq!((count(&["--older-than", "1h"]), count(&["--tenant", "atlas-ux"])), (0, 0));
    fleet.run(&["turns", "list", "--agent", "fran"]).exits(0).says("demo:long").says("running").says("sleep");
    let mut found = 0;
    let mut from = "0:0".to_owned();
    loop {
        let page = fleet.run(&["turns", "list", "--limit", "1", "--from", &from, "--json"]).exits(0).json();
        found += page["items"].as_array().unwrap().len();
        let Some(next) = page["next"].as_str() else { break };
        from = next.to_owned();
    }
    assert!(found >= 7, "{found}");
    fleet.run(&[&["turns", "cancel"], &WHY[..]].concat()).exits(2).prints_error("expected a filter");
    let many = ["turns", "cancel", "--agent", "kelly", "--tool", "echo"];
    fleet.run(&[&many[..], &WHY[..]].concat()).exits(0).says("3 turns would be canceled: add --yes to do it");
    assert_eq!(count(&["--agent", "kelly"]), 6, "nothing was done");
    fleet.run(&[&many[..], &WHY[..], &["--yes"]].concat()).exits(0).says("3 turns found, 3 canceled");
    while count(&["--agent", "kelly"]) > 3 {}
    let story = fleet.run(&["explain", "demo:k0", "--json"]).exits(0).json();
    assert_eq!(story["results"][0]["error"]["details"]["reason"], "anna: agreed with Ben", "{story}");
    let found = fleet.run(&["audit", "search", "--text", "\"action\":\"CANCEL\"", "--json"]).exits(0).json();
    let meta: Vec<_> = found["entries"].as_array().unwrap().iter().map(|one| &one["audit"]["meta"]).collect();
    assert_eq!(meta.len(), 1, "{found}");
    assert_eq!((&meta[0]["filter"], &meta[0]["count"]), (&"agent=kelly tool=echo".into(), &"3".into()), "{found}");
    assert_eq!(meta[0]["reason"], "agreed with Ben", "{found}");
}

#[tokio::test]
async fn calls_to_a_paused_tool_wait_until_it_is_resumed() {
    let redis = RedisServer::start().await;
    let url = redis.url();
    let paused = |args: &[&str]| tickfleet(&[&["pause"], args, &WHY[..], &["--redis-url", &url]].concat());
    paused(&["--tool", "echo"]).exits(0).says("calls to echo wait");
    paused(&["--tool", "echo"]).exits(0).says("was paused already");
    paused(&["acme", "--tool", "sleep"]).exits(0);
    paused(&["demo", "kelly", "--tool", "echo"]).exits(2);
    let fleet = DevFleet::start_with(&["--redis-url", &url], &[("TICKFLEET_WORKER_LEASE", "2s")]);
    submit(&fleet, "kelly", "waits", "echo").exits(0);
    let others = ["submit", "--tenant", "demo", "--agent", "fran", "--call", "sleep {\"ms\":1}", "--wait"];
    fleet.run(&others).exits(0);
    let story = loop {
        let story = fleet.run(&["explain", "demo:waits", "--json"]).exits(0).json();
        if story["waits"]["rule"] == "breaker_open" {
            break story;
        }
    };
    assert_eq!(story["waits"]["breaker"], "echo is paused by anna: agreed with Ben", "{story}");
    fleet.run(&["pauses"]).exits(0).says("echo").says("acme").says("agreed with Ben");
    fleet.run(&[&["resume", "--tool", "echo"], &WHY[..]].concat()).exits(0).says("calls to echo run again");
    fleet.run(&[&["resume", "--tool", "echo"], &WHY[..]].concat()).exits(0).says("was not paused");
    while fleet.run(&["explain", "demo:waits", "--json"]).json()["state"] != "done" {}
    let done = fleet.run(&["explain", "demo:waits", "--json"]).json();
    assert_eq!((&done["results"][0]["success"], &done["results"][0]["attempts"]), (&true.into(), &1.into()), "{done}");
    let found = fleet.run(&["audit", "search", "--text", "_TOOL\"", "--json"]).exits(0).json().to_string();
    assert!(found.contains("anna paused echo") && found.contains("anna resumed echo"), "{found}");
}

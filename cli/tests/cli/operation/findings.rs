//! Findings are the same in the API, in `top` and in `doctor`.

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use super::gateway::Gateway;
use super::operators::{OperatorFleet, count};
use crate::support::binary::DevFleet;

fn finding(overview: &Value, kind: &str) -> Option<Value> {
    overview["findings"].as_array().unwrap().iter().find(|finding| finding["kind"] == kind).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_top_and_doctor_report_the_same_findings() {
    let served = OperatorFleet::start().await;
    let calm = served.sees("overview");
    // This Redis has no append-only file and no maxmemory, so there is a finding about the store.
    let kinds: Vec<&Value> = calm["findings"].as_array().unwrap().iter().map(|finding| &finding["kind"]).collect();
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == "store"), "{calm:#}");

    served.submit("held", r#"pay {"amount":700,"to":"kim"}"#);
    served.submit("maybe", r#"fail_once {"outcomes":["transient"]}"#);
    served.asked("held");
    let whom = json!({"tenant": "demo", "agent": "fran", "reason": "too fast"});
    assert_eq!(served.does(&served.keys.operator, "pause", &whom).status, 200);
    served.refused("lost");
    let all = ["unknown_outcomes", "approvals_wait", "tool_fails", "paused", "dead_messages"];
    let seen = served.until("overview", |seen| all.iter().all(|kind| finding(seen, kind).is_some()));
    let unknown = finding(&seen, "unknown_outcomes").unwrap();
    assert_eq!((&unknown["severity"], &unknown["count"]), (&json!("bad"), &json!(1)), "{unknown}");
    assert_eq!((&unknown["subject"], &seen["findings"][0]), (&json!("fail_once"), &unknown), "the most urgent first");
    let waits = finding(&seen, "approvals_wait").unwrap();
    let text = waits["text"].as_str().unwrap();
    assert!(text.starts_with("1 call waits for approval: pay, 700 in all; the first expires in "), "{text}");
    assert_eq!(waits["action"], "tickfleet approvals list");
    let fails = finding(&seen, "tool_fails").unwrap();
    assert_eq!((&fails["subject"], &fails["count"]), (&json!("fail_once"), &json!(1)), "{fails}");
    let paused = finding(&seen, "paused").unwrap();
    assert_eq!(paused["action"], "tickfleet resume demo fran", "{paused}");
    assert!(paused["text"].as_str().unwrap().contains("by otto"), "{paused}");

    for finding in seen["findings"].as_array().unwrap() {
        let action = finding["action"].as_str().unwrap().strip_prefix("tickfleet ").unwrap();
        let words: Vec<&str> = action.split(' ').collect();
        assert!(!served.run(&[&words[..], &["--help"]].concat()).stdout.is_empty(), "{finding}");
    }
    served.run(&["top"]).exits(0).says("! 1 call of the last hour may have taken effect");
    let doctor = served.run(&["doctor"]);
    for text in ["may have taken effect: fail_once", "1 call waits for approval", "demo:fran is paused by otto"] {
        doctor.says(text);
    }

    let drop = ["dead", "drop", "--cause", "outcome_unknown", "--reason", "looked it up", "--by", "anna", "--yes"];
    served.run(&drop).exits(0).says("1 found, 1 of them dropped");
    served.run(&["resume", "demo", "fran", "--by", "anna"]).exits(0).says("run again");
    served.run(&["cancel", "demo:held", "--by", "anna"]).exits(0);
    let gone = ["unknown_outcomes", "approvals_wait", "paused"];
    served.until("overview", |seen| gone.iter().all(|kind| finding(seen, kind).is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_rejects_an_unknown_name_and_suggests_the_nearest() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("permissions.yaml", "permissions: {echo: {everyone: true}}\napprovers: {ann: {roles: [finance]}}\n"),
        ("agents.yaml", "agents: {kelly: {}, fran: {}}\n"),
        ("tenants.yaml", "tenants: {demo: {}, acme: {}}\n"),
        ("limits.yaml", "limits: {three: {per: [agent], max: 3, every: 1d}}\n"),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let conf = folder.path().to_str().unwrap();
    let fleet = DevFleet::start(&["--config", conf, "--redis-url", &redis.url(), "--console", "0"]);
    let line = fleet.welcome.iter().find_map(|line| line.strip_prefix("Console: http://")).unwrap();
    let (address, key) = line.split_once("/console/#key=").unwrap();
    let gateway = Gateway::at(address);
    let run = |args: &[&str]| fleet.run(&[&["--config", conf], args].concat());
    let sees = |path: &str| gateway.get(key, &format!("/v1/operate/{path}")).json();
    // Until the policy of this configuration is in force, names are not checked.
    while sees("overview")["policy_generation"] == json!(0) {}
    let refused = |path: &str, near: &str| {
        let seen = gateway.get(key, &format!("/v1/operate/{path}"));
        assert_eq!(seen.status, 404, "{path}: {seen:?}");
        assert!(seen.body.contains(near), "{path}: no {near:?} in {seen:?}");
    };
    for list in ["turns", "tasks", "approvals", "dead", "dead/causes", "audit", "stats"] {
        refused(&format!("{list}?tenant=dem"), "Nearest: demo");
        refused(&format!("{list}?agent=kely"), "Nearest: kelly");
        if list != "tasks" {
            refused(&format!("{list}?tool=ecoh"), "Nearest: echo");
        }
    }
    refused("audit?outcome=denid", "Nearest: denied");
    refused("dead?cause=transent", "Nearest: transient");
    refused("dead/causes?cause=unknown_agnt", "Nearest: unknown_agent");
    refused("limits?limit=thre", "three");
    refused("limits?tenant=dem", "demo");
    refused("rules?tenant=dem", "demo");
    refused("approvals/dem:apr-1", "demo");
    for (verb, body, near) in [
        ("pause", json!({"tenant": "demo", "agent": "kely", "reason": "x"}), "kelly"),
        ("pause", json!({"tenant": "dem", "reason": "x"}), "demo"),
        ("pause", json!({"tool": "ecoh", "reason": "x"}), "echo"),
        ("resume", json!({"tenant": "dem", "reason": "x"}), "demo"),
        ("resume", json!({"tool": "ecoh", "reason": "x"}), "echo"),
        ("tools/disable", json!({"tool": "ecoh", "reason": "x"}), "echo"),
        ("tools/enable", json!({"tool": "ecoh", "reason": "x"}), "echo"),
        ("workers/drain", json!({"worker": "w-nope", "reason": "x"}), "w-"),
        ("workers/resume", json!({"worker": "w-nope", "reason": "x"}), "w-"),
        ("cancel", json!({"ids": ["dem:x"], "reason": "x"}), "demo"),
        ("cancel", json!({"ids": ["demo:x", "demo:y"], "reason": "x"}), "demo:x and 1 more"),
        ("approvals/dem:apr-1/approve", json!({}), "demo"),
        ("approvals/demo:apr-1/approve", json!({}), "demo:apr-1"),
        ("approvals/demo:apr-1/deny", json!({"reason": "x"}), "demo:apr-1"),
    ] {
        let seen = gateway.ask(key, "POST", &format!("/v1/operate/{verb}"), &body);
        assert_eq!(seen.status, 404, "{verb} {body}: {seen:?}");
        assert!(seen.body.contains(near), "{verb} {body}: no {near:?} in {seen:?}");
    }
    let kelly = json!({"tenant": "demo", "agent": "kelly"});
    let echo = json!({"tool": "echo"});
    for (verb, body, status) in
        [("pause", &kelly, 400), ("resume", &kelly, 200), ("tools/disable", &echo, 400), ("tools/enable", &echo, 200)]
    {
        let seen = gateway.ask(key, "POST", &format!("/v1/operate/{verb}"), body);
        assert_eq!(seen.status, status, "{verb} without a reason: {seen:?}");
    }

    for (command, near) in [
        ("turns list --agent kely", "kelly"),
        ("turns list --tool ecoh", "echo"),
        ("audit search --outcome denid", "denied"),
        ("dead list --cause transent", "transient"),
        ("dead list --by-cause --cause unknown_agnt", "unknown_agent"),
        ("dead drop --cause transent --reason x --by anna --yes", "transient"),
        ("cancel dem:x --by anna", "demo"),
        ("cancel demo:x --by anna", "unknown turn or task demo:x"),
        ("turns cancel --tenant dem --reason x --by anna --yes", "demo"),
        ("tasks list --tenant dem", "demo"),
        ("approvals list --tool ecoh", "echo"),
        ("approvals approve dem:apr-1 --by ann", "demo"),
        ("audit search --tenant dem", "demo"),
        ("audit search --tool ecoh", "echo"),
        ("stats --agent kely", "kelly"),
        ("dead list --tool ecoh", "echo"),
        ("dead list --by-cause --tool ecoh", "echo"),
        ("dead drop --tenant dem --reason x --by anna --yes", "demo"),
        ("rules --tenant dem", "demo"),
        ("limits --limit thre", "three"),
        ("limits --tenant dem", "demo"),
        ("usage --tenant dem", "demo"),
        ("tenant show dem", "demo"),
        ("tools disable ecoh --reason x --by anna", "echo"),
        ("tools enable ecoh --by anna", "echo"),
        ("pause dem --reason x --by anna", "demo"),
        ("pause demo kely --reason x --by anna", "kelly"),
        ("pause --tool ecoh --reason x --by anna", "echo"),
        ("resume demo kely --by anna", "kelly"),
        ("resume --tool ecoh --by anna", "echo"),
        ("workers drain w-nope --reason x --by anna", "w-"),
        ("workers resume w-nope --by anna", "w-"),
        ("cancel demo:x", "unknown turn or task demo:x"),
        ("approvals show demo:apr-1", "demo:apr-1"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        run(&words).exits(1).prints_error(near);
    }
    let log = sees("audit?limit=500");
    assert_eq!(count(&log, "entries"), 0, "what was refused is not in the log: {log}");
    assert_eq!(count(&sees("pauses"), "pauses"), 0, "nothing is paused");
    let early: Vec<String> =
        redis::cmd("KEYS").arg("*early:*").query_async(&mut redis.connection().await).await.unwrap();
    assert_eq!(early, Vec::<String>::new(), "no cancel waits");
    run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", "tool_echo {}", "--wait"]).exits(1);
    assert_eq!(count(&sees("audit?tool=tool_echo"), "entries"), 1);
    assert_eq!(count(&sees("audit?tool=echo"), "entries"), 1, "a model may write the id");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_amount_is_rejected_and_does_not_change_the_approval() {
    let served = OperatorFleet::start().await;
    served.submit("pays", r#"pay {"amount":700,"to":"kim"}"#);
    let before = served.asked("pays");
    let name = format!("demo:{}", before["id"].as_str().unwrap());
    let unchanged = |after: &str| {
        let now = served.asked("pays");
        assert_eq!(
            (&now["state"], &now["agreed"], &now["narrowed"]),
            (&json!("waiting"), &json!([]), &Value::Null),
            "{after}"
        );
    };
    let path = format!("approvals/{name}/approve");
    for (set, why) in [
        (json!({"/amount": "much"}), "may only become narrower"),
        (json!({"/amount": "600"}), "may only become narrower"),
        (json!({"/amount": "NaN"}), "may only become narrower"),
        (json!({"/amount": -5}), "may only become narrower"),
        (json!({"/amount": 705}), "may only become narrower"),
        (json!({"/amount": null}), "may only become narrower"),
        (json!({"/amount": [5]}), "may only become narrower"),
        (json!({"/to": "eve"}), "may not be changed; these may: /amount"),
        (json!({"/other": 1}), "may not be changed; these may: /amount"),
        (json!({"amount": 5}), "may not be changed; these may: /amount"),
        (json!({"/amount": 0}), "do not fit the tool"),
        (json!({"/amount": 7}), "do not fit the tool"),
        (json!({"/amount": 2.5}), "do not fit the tool"),
    ] {
        let seen = served.does(&served.keys.approver, &path, &json!({"set": set}));
        assert_eq!(seen.status, 400, "{set}: {seen:?}");
        assert!(seen.body.contains(why), "{set}: no {why:?} in {seen:?}");
        unchanged(&set.to_string());
    }
    for (set, why) in [
        ("amount=much", "may only become narrower"),
        ("amount=NaN", "may only become narrower"),
        ("amount=-5", "may only become narrower"),
        ("amount=705", "may only become narrower"),
        ("amount=1,000", "may only become narrower"),
        ("to=eve", "may not be changed; these may: /amount"),
        ("/other=1", "may not be changed; these may: /amount"),
        ("amount=0", "do not fit the tool"),
        ("amount=7", "do not fit the tool"),
    ] {
        served.run(&["approvals", "approve", &name, "--by", "ann", "--set", set]).exits(2).prints_error(why);
        unchanged(set);
    }
    for reason in ["", "  "] {
        served
            .run(&["approvals", "deny", &name, "--by", "ann", "--reason", reason])
            .exits(2)
            .prints_error("the reason must not be empty");
        unchanged(reason);
    }
    for wrong in ["amount", "=5", "amount="] {
        let said = served.run(&["approvals", "approve", &name, "--by", "ann", "--set", wrong]).exits(2);
        said.prints_error("such as amount=400");
    }
    served.run(&["approvals", "approve", &name, "--by", "ann", "--set", "amount=120"]).exits(0).says("approved");
    let story = served.until("explain?id=demo:pays", |seen| seen["story"]["state"] == "done");
    assert_eq!(story["story"]["results"][0]["approval"]["arguments"]["amount"], 120, "{story}");
    served.run(&["explain", "demo:pays"]).exits(0).says("has ended: ");
}

//! Tests lists for operators: filters, pages, failures grouped by cause, and a disabled tool.

use serde_json::{Value, json};

use super::operators::{OperatorFleet, count};

const PERMANENT: &str = r#"fail_once {"outcomes":["permanent"]}"#;

fn names(page: &Value, name: &str) -> Vec<String> {
    let of = |one: &Value| one[name].as_str().unwrap_or_default().to_owned();
    page["items"].as_array().unwrap_or_else(|| panic!("no items in {page}")).iter().map(of).collect()
}

fn pages(served: &OperatorFleet, path: &str, name: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut from = String::new();
    loop {
        let page = served.sees(&format!("{path}?limit=2{from}"));
        assert!(count(&page, "items") <= 2, "{page}");
        all.extend(names(&page, name));
        let Some(next) = page["next"].as_str() else { return all };
        from = format!("&from={next}");
    }
}

fn filtered(served: &OperatorFleet, list: &str, filters: &[(&str, usize)]) {
    for (filter, found) in filters {
        let page = served.sees(&format!("{list}?{filter}"));
        assert_eq!(count(&page, "items"), *found, "{list}?{filter}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_and_approvals_are_listed_by_filter_and_page() {
    let served = OperatorFleet::start().await;
    for id in ["job-1", "job-2", "job-3"] {
        let task = json!({"target_agent": "atlas", "task_id": id, "task_description": "rest"});
        let ended = served.gateway.ask(&served.keys.service, "POST", "/v1/tasks?wait=60", &task);
        assert_eq!(ended.status, 200, "{ended:?}");
    }
    assert_eq!(pages(&served, "tasks", "id"), ["job-3", "job-2", "job-1"]);
    let outcome = served.sees("tasks")["items"][0]["outcome"].as_str().unwrap().to_owned();
    let by = |outcome: &str| format!("tenant=demo&agent=atlas&state=ended&outcome={outcome}");
    let so = by(&outcome);
    let not_so = by("cancelled");
    filtered(&served, "tasks", &[(&so, 3), (&not_so, 0), ("state=running", 0), ("agent=kelly", 0), ("tenant=acme", 0)]);
    filtered(&served, "tasks", &[("older_than_s=3600", 0), ("older_than_s=0", 3), ("from=acme:", 3)]);
    let gone = served.sees("tasks?from=demo:job-0");
    assert_eq!(
        (count(&gone, "items"), &gone["list_restarted"]),
        (3, &json!(true)),
        "what is kept no longer is no place"
    );
    served.run(&["tasks", "list", "--limit", "2"]).exits(0).says("--from demo:job-2");
    served.run(&["tasks", "list", "--from", "demo:job-2"]).exits(0).says("job-1");
    served.run(&["tasks", "list", "--outcome", "nice"]).exits(2).prints_error("expected one of ok,");

    for id in ["one", "two", "three"] {
        served.submit(id, "fail");
        served.asked(id);
    }
    let mut paged = pages(&served, "approvals", "call");
    paged.sort();
    assert_eq!(paged, ["one/0", "three/0", "two/0"]);
    let until = served.sees("approvals")["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["until_ms"].as_i64().unwrap())
        .collect::<Vec<_>>();
    assert!(until.is_sorted(), "those first that end first: {until:?}");
    filtered(&served, "approvals", &[("tenant=demo&agent=kelly&tool=fail", 3), ("agent=fran", 0), ("tool=echo", 0)]);
    filtered(&served, "approvals", &[("older_than_s=3600", 0), ("older_than_s=0", 3), ("tenant=acme", 0)]);
    served
        .run(&["approvals", "list", "--tool", "fail", "--limit", "1"])
        .exits(0)
        .says("There may be more: continue with --from ");
    served.run(&["approvals", "list", "--agent", "fran"]).exits(0).says("No approvals waiting");
    for path in [
        "tasks?from=x",
        "tasks?outcome=nice",
        "tasks?limit=0",
        "approvals?from=x",
        "approvals?agent=:",
        "dead/causes?from=x",
    ] {
        let refused = served.gateway.get(&served.keys.operator, &format!("/v1/operate/{path}"));
        assert_eq!(refused.status, 400, "{path}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_failures_form_one_cause_and_are_dropped_together() {
    let served = OperatorFleet::start().await;
    let failed = |seen: &Value| {
        seen["causes"].as_array().unwrap().iter().map(|cause| cause["count"].as_u64().unwrap()).sum::<u64>()
    };
    served.submit("bad-1", PERMANENT);
    // A cause has the times of the first and the last failure, so these must have different milliseconds.
    served.until("dead/causes?since_s=3600", |seen| failed(seen) == 1);
    for id in ["bad-2", "bad-3"] {
        served.submit(id, PERMANENT);
    }
    served.submit("maybe", r#"fail_once {"outcomes":["transient"]}"#);
    served.refused("lost");
    let seen = served.until("dead/causes?since_s=3600", |seen| failed(seen) == 5);
    let most = &seen["causes"][0];
    assert_eq!((count(&seen, "causes"), &most["count"], &most["cause"]), (3, &json!(3), &json!("permanent")), "{seen}");
    assert_eq!((&most["tool"], &most["tenants"]), (&json!("fail_once"), &json!(["demo"])), "{seen}");
    assert!(most["newest_ms"].as_i64() > most["oldest_ms"].as_i64(), "{seen}");
    let example = served.sees(&format!("dead/{}", most["example"].as_str().unwrap()));
    assert_eq!(example["cause"], "permanent", "{example}");
    assert_eq!(count(&served.sees("dead/causes?limit=1"), "causes"), 1);
    let others = served.gateway.get(&served.keys.acme, "/v1/operate/dead/causes").json();
    assert_eq!(count(&others, "causes"), 0, "another tenant's are nobody's business: {others}");

    let reported = most["normalized_error"].as_str().unwrap();
    served.run(&["dead", "list", "--by-cause", "--since", "1h"]).exits(0).says("unknown_agent").says(&format!(
        "tickfleet dead replay --kind call --cause permanent --tool fail_once --normalized-error '{reported}'"
    ));
    let these = ["--kind", "call", "--cause", "permanent", "--tool", "fail_once", "--normalized-error", reported];
    let drop = [&["dead", "drop"], &these[..], &["--reason", "of no use", "--by", "anna"]].concat();
    served.run(&drop).exits(0).says("3 would be dropped: add --yes to do it");
    served.run(&[&drop[..], &["--yes"]].concat()).exits(0).says("3 found, 3 of them dropped");
    let left = served.sees("dead");
    assert_eq!(names(&left, "cause"), ["unknown_agent", "outcome_unknown"], "{left}");
    for before_ms in ["1", "-9223372036854775808"] {
        assert_eq!(count(&served.sees(&format!("dead?before_ms={before_ms}")), "items"), 0, "{before_ms}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_to_a_tool_disabled_over_http_are_denied_until_it_is_enabled() {
    let served = OperatorFleet::start().await;
    let key = &served.keys.operator;
    let which = json!({"tool": "echo", "reason": "it posts twice"});
    assert_eq!(served.does(key, "tools/disable", &which).json()["changed"], true);
    assert_eq!(served.does(key, "tools/disable", &which).json()["changed"], false);
    let off = json!({"disabled": [{"tool": "echo"}]});
    assert_eq!(served.sees("tools"), off);
    assert_eq!(served.gateway.get(&served.keys.acme, "/v1/operate/tools").json(), off, "it concerns all tenants");
    assert_eq!(served.does(&served.keys.acme, "tools/enable", &which).code(), "forbidden", "nor is it theirs to end");
    for wrong in [
        json!({"tool": "", "reason": "x"}),
        json!({"tool": "a b", "reason": "x"}),
        json!({"tool": "echo", "reason": " "}),
    ] {
        assert_eq!(served.does(key, "tools/disable", &wrong).status, 400, "{wrong}");
    }
    // Until workers read the change, within a quarter of a lease, calls of the tool run.
    let outcome = |id: &str| {
        served.submit(id, "echo");
        served.until(&format!("explain?id=demo:{id}"), |seen| seen["story"]["state"] == "done")
    };
    let mut ids = (0..).map(|number| format!("off-{number}"));
    let denied = ids
        .by_ref()
        .map(|id| outcome(&id))
        .find(|reported| reported["story"]["results"][0]["outcome"] == "denied")
        .unwrap();
    assert!(
        denied["lines"].to_string().contains("tickfleet tools disable stopped call /0"),
        "its story says why: {denied}"
    );
    assert_eq!(denied["story"]["results"][0]["error"]["details"]["rule"], "tickfleet tools disable", "{denied}");
    assert_eq!(served.does(key, "tools/enable", &which).json()["changed"], true);
    assert_eq!(served.does(key, "tools/enable", &which).json()["changed"], false);
    ids.map(|id| outcome(&id)).find(|reported| reported["story"]["results"][0]["success"] == true).unwrap();
    assert_eq!(served.sees("tools"), json!({"disabled": []}));
    let entries = served.sees("audit?text=it%20posts%20twice").to_string();
    assert!(entries.contains("otto disabled echo") && entries.contains("otto enabled echo"), "{entries}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_limits_are_listed_with_enforced_and_shadow_counts() {
    let served = OperatorFleet::start().await;
    let by_fran = |id: &str, call: &str| {
        served.run(&["submit", "--tenant", "demo", "--agent", "fran", "--turn-id", id, "--call", call]).exits(0);
        served.until(&format!("explain?id=demo:{id}"), |seen| seen["story"]["state"] == "done");
    };
    by_fran("one", "echo");
    by_fran("two", r#"echo {"text":"hello"}"#);
    by_fran("three", "fail");
    served.submit("held", "fail");
    let seen = served.sees("rules?days=2");
    let row = |rule: &str| {
        let mut rows = seen["rules"].as_array().unwrap().iter();
        let row = rows.find(|row| row["rule"] == rule).unwrap_or_else(|| panic!("no {rule} in {seen}"));
        (row["mode"].clone(), row["shadow"].clone(), row["denied"].clone())
    };
    assert_eq!(row("permissions.echo.rules.greets"), (json!("shadow"), json!(1), json!(0)), "without a text: {seen}");
    assert_eq!(row("permissions.fail.rules.ask"), (json!("ask"), json!(0), json!(0)), "who asks denies nobody yet");
    assert_eq!(row("limits.one"), (json!("shadow"), json!(2), json!(0)), "two beyond the first: {seen}");
    assert_eq!(row("limits.three"), (json!("enforce"), json!(0), json!(0)));
    assert_eq!(row("permissions.fail"), (Value::Null, json!(0), json!(1)), "fran may not, says the matrix: {seen}");
    assert_eq!(served.sees("rules?days=2")["rules"], seen["rules"], "nothing counts twice");
    let others = served.sees("rules?tenant=acme&days=2");
    assert!(others["rules"].as_array().unwrap().iter().all(|row| row["shadow"] == 0 && row["denied"] == 0), "{others}");
    let forbidden = served.gateway.get(&served.keys.acme, "/v1/operate/rules");
    assert_eq!(forbidden.code(), "forbidden", "rules are all tenants': {forbidden:?}");
    served.run(&["rules", "--mode", "shadow"]).exits(0).says("limits.one").says("permissions.echo.rules.greets");
    served.run(&["rules", "--mode", "loose"]).exits(2);
    assert_eq!(seen["calls"], 3, "{seen}");

    let stats = served.sees("stats?by=agent");
    let calls = stats["rows"].as_array().unwrap().iter().map(|row| row["calls"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (calls, &stats["models"]["requests"], &stats["models"]["complete"]),
        (3, &json!(0), &json!(true)),
        "{stats}"
    );
    assert_eq!(stats["rows"][0]["outcomes"], json!({"denied": 1, "ok": 2}), "{stats}");
    assert!(served.sees("stats?by=agent,tool").get("models").is_none(), "models are no tools");
}

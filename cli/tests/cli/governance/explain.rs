//! Questions such as "Why did this not run?" and "When can it run?", with the answers that `explain` gives.

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet};
use crate::support::files::write;

struct LimitedFleet {
    fleet: DevFleet,
    dir: String,
    _folder: tempfile::TempDir,
    _redis: RedisServer,
}

const AGENTS: &str = "agents:
  kelly: {}
  slow: {calls_per_tick: 1}
  daily: {max_actions_per_day: 1}
  held: {}
  calm: {}
  free: {calls_per_tick: 1000}
";
const PERMISSIONS: &str = "permissions:
  echo: {everyone: true, rules: [{name: small, require: args.value <= 500, message: '{args.value} exceeds 500'}, {name: tiny, require: args.value <= 5, message: '{args.value} is not tiny', mode: shadow}]}
  sleep: {everyone: true}
  fail: {everyone: true}
  pay: {everyone: true}
  post: {agents: [free]}
";
const LIMITS: &str = "limits:
  sleeps: {match: {tools: [fail], agents: [calm]}, per: [agent], max: 1, every: 1h}
  strict: {match: {tools: [fail], agents: [held]}, per: [agent], max: 1, every: 1h, on_reach: reject}
  one_at_once: {match: {tools: [sleep], agents: [held]}, per: [agent], concurrent: 1}
";
const SETTINGS: &str = "caps: {tick: 1h}\nloops: {warn_after: 2, deny_after: 1, deny_for: 1h}\n";

impl LimitedFleet {
    async fn start() -> Self {
        Self::with("", PERMISSIONS).await
    }

    async fn with(more_tools: &str, permissions: &str) -> Self {
        let redis = RedisServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let tool = |more: &str| {
            format!(
                "{{description: Does., {more} input_schema: {{type: object, required: [to], properties: {{to: {{type: string, description: Whom.}}}}}}}}"
            )
        };
        write(
            dir,
            "tools.yaml",
            &format!("tools:\n  pay: {}\n  post: {}\n{more_tools}", tool("effect_key: [/to],"), tool("")),
        );
        write(dir, "agents.yaml", AGENTS);
        write(dir, "tenants.yaml", "tenants: {demo: {}, small: {max_actions_per_day: 1}}\n");
        write(dir, "permissions.yaml", permissions);
        write(dir, "limits.yaml", LIMITS);
        write(dir, "tickfleet.yaml", SETTINGS);
        let dir = dir.to_str().unwrap().to_owned();
        let url = redis.url();
        let fleet = DevFleet::start(&["--config", &dir, "--redis-url", &url]);
        Self { fleet, dir, _folder: folder, _redis: redis }
    }

    fn run(&self, args: &[&str]) -> CommandOutput {
        self.fleet.run(&[&["--config", &self.dir], args].concat())
    }

    fn submit(&self, tenant: &str, agent: &str, id: &str, turn: &Value) {
        let args = ["--config", &self.dir, "submit", "--tenant", tenant, "--agent", agent, "--turn-id", id, "-"];
        self.fleet.run_with(&args, &turn.to_string()).exits(0);
    }

    fn answers(&self, id: &str, reported: &[&str]) {
        let mut said;
        loop {
            said = self.run(&["explain", id]).stdout;
            if reported.iter().all(|reported| said.contains(reported)) {
                return;
            }
            // The explanation of an ended turn no longer changes, so repetition would not help.
            assert!(!said.contains("has ended") || !said.contains("Audit:"), "{id}: no {reported:?} in\n{said}");
        }
    }
}

fn calls(calls: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> =
        calls.iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect();
    json!({"calls": calls})
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_cap_limit_or_slot_that_delays_a_call() {
    let asked = LimitedFleet::start().await;
    let echo = |value: i64| ("echo", json!({"value": value}));
    let long = ("sleep", json!({"ms": 25_000}));

    // The tick lasts an hour, so the second call waits.
    asked.submit("demo", "slow", "tick", &calls(&[echo(1), echo(1)]));
    asked.answers("demo:tick", &["It waits: the agent's tick is used up (1 of 1 calls). The next call is eligible"]);
    let story = asked.run(&["explain", "demo:tick", "--json"]).exits(0).json();
    let waits = &story["waits"];
    assert_eq!(
        (&story["state"], &waits["rule"], &waits["tick_cap"]),
        (&json!("throttled"), &json!("tick_cap"), &json!(1))
    );
    assert!(waits["until_ms"].as_i64() > story["now_ms"].as_i64(), "{story}");
    asked.run(&["explain", "demo:tick/2"]).exits(2).prints_error("there is no /2");
    asked.submit("demo", "slow", "behind", &calls(&[echo(1)]));
    asked
        .answers("demo:behind", &["It waits: the agent's tick is used up", "after 1 other turn in the throttle queue"]);
    asked.submit("demo", "daily", "day", &calls(&[echo(1)]));
    asked.answers("demo:day", &["has ended"]);
    asked.submit("demo", "daily", "day2", &calls(&[echo(1)]));
    asked.answers("demo:day2", &["the day's calls are used up (on_day_cap: reject)", "It resets at"]);
    asked.submit("small", "kelly", "first", &calls(&[echo(1)]));
    asked.answers("small:first", &["has ended"]);
    asked.submit("small", "calm", "second", &calls(&[echo(1)]));
    asked.answers("small:second", &["the day's calls are used up (on_day_cap: reject)", "It resets at"]);
    let works = ("fail", json!({"outcomes": ["ok"]}));
    asked.submit("demo", "calm", "limit", &calls(&[works.clone(), works.clone()]));
    asked.answers("demo:limit", &["the limit sleeps is used up", "1 used by demo:calm", "The next call is eligible"]);
    asked.submit("demo", "held", "strict", &calls(&[works.clone(), works.clone()]));
    asked.answers("demo:strict", &["The limit strict", "There is room again at"]);
    asked.submit("demo", "held", "place", &calls(std::slice::from_ref(&long)));
    asked.answers("demo:place", &["runs"]);
    asked.submit("demo", "held", "noplace", &calls(std::slice::from_ref(&long)));
    asked.answers("demo:noplace", &["all slots of the limit one_at_once are taken"]);
    asked.answers("demo:place", &[" runs it since", "at call /0 (sleep) or later; a try may take 30.0 s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_rule_or_error_that_stopped_a_call() {
    let asked = LimitedFleet::start().await;
    let echo = |value: i64| ("echo", json!({"value": value}));
    asked.submit("demo", "kelly", "ruled", &calls(&[echo(501), echo(50)]));
    let rules = [
        "The rule permissions.echo.rules.small stopped call /0",
        "501 exceeds 500",
        "The rule permissions.echo.rules.tiny (shadow) would have stopped call /1: 50 is not tiny",
    ];
    asked.answers("demo:ruled", &rules);
    let second = asked.run(&["explain", "demo:ruled/1"]).exits(0);
    second.says(rules[2]);
    assert!(!second.stdout.contains(rules[0]), "{}", second.stdout);
    let story = asked.run(&["explain", "demo:ruled", "--json"]).exits(0).json();
    let mut entries = story["audit"]["entries"].as_array().unwrap().iter();
    assert!(entries.any(|one| one["meta"]["shadow"][0]["rule"] == "permissions.echo.rules.tiny"), "{story}");
    asked.submit(
        "demo",
        "kelly",
        "wrong",
        &calls(&[("post", json!({"to": "kim"})), ("pay", json!({})), ("pya", json!({}))]),
    );
    let wrong = ["it is not granted to you", "'to'", "There is no tool called \"pya\". Did you mean pay?"];
    asked.answers("demo:wrong", &wrong);
    asked.run(&["tools", "disable", "post", "--reason", "it posts twice"]).exits(0);
    // Workers detect the change only at their next heartbeat, so the call is repeated.
    for number in 0.. {
        let id = format!("gone-{number}");
        // The arguments differ each time, so that the loop breaker does not deny the call.
        let post = format!("post {{\"to\":\"x{number}\"}}");
        let call = ["--turn-id", &id, "--wait", "--call", &post];
        asked.run(&[&["submit", "--tenant", "demo", "--agent", "free"], &call[..]].concat()).exits(1);
        let story = asked.run(&["explain", &format!("demo:{id}"), "--json"]).exits(0).json();
        if story["results"][0]["outcome"] == "denied" {
            assert_eq!(story["results"][0]["error"]["details"]["reason"], "tool_disabled", "{story}");
            break;
        }
    }
    asked.submit("demo", "kelly", "again", &calls(&[("fail", json!({"outcomes": ["transient", "transient", "ok"]}))]));
    asked.answers("demo:again", &["has ended", "try 1 of call /0 failed:", "Retried after"]);
    let story = asked.run(&["explain", "demo:again", "--json"]).exits(0).json();
    let tries = story["tries"].as_array().unwrap();
    let attempts: Vec<&Value> = tries.iter().map(|failed| &failed["attempt"]).collect();
    assert_eq!((attempts, &story["retries"]), (vec![&json!(1), &json!(2)], &json!(2)), "{story}");
    assert!(tries.iter().all(|failed| !failed["cause"].as_str().unwrap().is_empty()), "{story}");
    assert!(tries[0]["at_ms"].as_i64() < tries[1]["at_ms"].as_i64(), "{story}");
    asked.submit("demo", "free", "circles", &calls(&[("list_tools", json!({})), echo(3), echo(3), echo(3), echo(3)]));
    asked.answers("demo:circles", &["The loop breaker denied call /4", "It may run again at", "note to its agent"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_pause_cancel_or_deadline_that_stopped_a_turn() {
    let asked = LimitedFleet::start().await;
    let echo = ("echo", json!({"value": 1}));
    asked.run(&["pause", "demo", "calm", "--reason", "she posts too much", "--by", "anna"]).exits(0);
    asked.submit("demo", "calm", "paused", &calls(std::slice::from_ref(&echo)));
    asked.answers("demo:paused", &["paused by anna since", "she posts too much. tickfleet resume ends the pause"]);
    asked.run(&["cancel", "demo:paused", "--reason", "no longer wanted", "--by", "ben"]).exits(0);
    asked.answers("demo:paused", &["Canceled: ben: no longer wanted", "cancelled"]);
    let soon = json!({"calls": [{"name": "echo", "arguments": {"value": 1}}]});
    let args = [
        "--config",
        &asked.dir,
        "submit",
        "--tenant",
        "demo",
        "--agent",
        "calm",
        "--turn-id",
        "late",
        "--deadline",
        "1s",
        "-",
    ];
    asked.fleet.run_with(&args, &soon.to_string()).exits(0);
    asked.answers("demo:late", &["the deadline came first"]);
    let unknown = ["submit", "--tenant", "demo", "--agent", "nobody", "--turn-id", "refused", "--call", "echo"];
    asked.run(&unknown).exits(0);
    asked.answers("demo:refused", &["Rejected:"]);
}

const SLEEP_ONCE: &str = "  sleep: {description: Waits., effect: once, effect_key: [/ms], input_schema: {type: object, required: [ms], properties: {ms: {type: integer, description: How long in ms.}}}}\n";

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_equal_call_that_decides_an_outcome() {
    let asked = LimitedFleet::with(SLEEP_ONCE, PERMISSIONS).await;
    let long = [("sleep", json!({"ms": 25_000}))];
    asked.submit("demo", "kelly", "first", &calls(&long));
    asked.answers("demo:first", &[" runs it"]);
    asked.submit("demo", "free", "equal", &calls(&long));
    asked.answers("demo:equal", &["a call of first is running, and its outcome decides about this call"]);
    asked.run(&["cancel", "demo:first", "--reason", "no longer wanted", "--by", "ben"]).exits(0);
    let reported = ["Call /0 got the outcome of the equal call first/0: it did not run again", "outcome_unknown"];
    asked.answers("demo:equal", &reported);
    asked.answers("demo:first", &["Canceled: ben: no longer wanted", "outcome_unknown"]);
    // A later equal call gets the same outcome, because the first call may have taken effect.
    asked.submit("demo", "free", "planned_again", &calls(&long));
    asked.answers("demo:planned_again", &reported);
}

/// `echo` with a large value needs an approval. `fail` sets the fact `read_untrusted`, which forbids `echo`. `sleep`
/// requires that `fail` ran earlier.
const GOVERNED: &str = "permissions:
  echo:
    everyone: true
    rules: [{name: large, require: args.value <= 500, message: 'amount {args.value} exceeds 500', otherwise: ask, approval: {by: [finance], expires: 1h}}]
    facts: {forbid: [{fact: read_untrusted, message: Ask a person to look.}]}
  sleep: {everyone: true, facts: {sets: [quoted], require: [{fact: looked, message: Call fail first.}]}}
  fail: {everyone: true, facts: {sets: [{fact: read_untrusted, for: 1h}, looked]}}
approvers: {ann: {roles: [finance]}, ben: {roles: [legal]}}
";

#[tokio::test(flavor = "multi_thread")]
async fn answers_name_the_approval_or_fact_that_decides_a_call() {
    let asked = LimitedFleet::with("", GOVERNED).await;
    let echo = |value: i64| ("echo", json!({"value": value}));
    asked.submit("demo", "kelly", "large", &calls(&[echo(700)]));
    let waits = ["waits for an approval", "by permissions.echo.rules.large (amount 700 exceeds 500)"];
    asked.answers("demo:large", &[waits[0], waits[1], "Approvers: 1 of finance. Expires ", " (in 59 min"]);
    let approval = || {
        let found = asked.run(&["approvals", "list", "--json"]).exits(0).json();
        format!("demo:{}", found["items"][0]["id"].as_str().unwrap())
    };
    asked.run(&["approvals", "approve", &approval(), "--by", "ann"]).exits(0);
    asked.answers("demo:large", &["has ended", "ann approved call /0 (apr-"]);
    asked.submit("demo", "kelly", "denied", &calls(&[echo(900)]));
    asked.answers("demo:denied", &["waits for an approval"]);
    asked.run(&["approvals", "deny", &approval(), "--by", "ann", "--reason", "not this month"]).exits(0);
    asked.answers("demo:denied", &["ann denied call /0 (apr-", "denied it: not this month. It was not executed."]);
    asked.submit("demo", "free", "read", &calls(&[("fail", json!({"outcomes": ["ok"]})), echo(1)]));
    let forbidden = [
        "The condition on facts permissions.echo.facts.forbid.read_untrusted stopped call /1",
        "which read/0 set at ",
        "Ask a person to look.",
    ];
    asked.answers("demo:read", &forbidden);
    asked.submit("demo", "calm", "early", &calls(&[("sleep", json!({"ms": 1}))]));
    let missing = [
        "permissions.sleep.facts.require.looked stopped call /0",
        "which nothing in this session has set. Call fail first.",
    ];
    asked.answers("demo:early", &missing);
}

//! Tests operator commands through the gateway.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use super::gateway::{Gateway, HttpResponse, add_key};
use super::secured::make_users;
use crate::support::binary::{CommandOutput, DevFleet};
use crate::support::process::until;

const PERMISSIONS: &str = "permissions:
  echo: {everyone: true, rules: [{name: greets, require: 'has(args.text)', mode: shadow}]}
  sleep: {everyone: true}
  fail_once: {everyone: true}
  fail: {agents: [kelly], rules: [{name: ask, require: 'false', otherwise: ask}]}
  pay: {agents: [kelly]}
";
/// `pay` always fails, because no service listens at its address.
const TOOLS: &str = r#"tools:
  pay:
    description: Pays an amount.
    effect: once
    approval: {narrow: [/amount]}
    input_schema:
      type: object
      properties: {amount: {type: integer, exclusiveMinimum: 0, multipleOf: 5}, to: {type: string}}
      required: [amount, to]
      additionalProperties: false
    http: {method: POST, base_url: "http://127.0.0.1:9", path: /pay, body: {amount: "{{amount}}"}, allow_private: ["127.0.0.1"]}
"#;
const APPROVERS: &str = "approvers: {ann: {roles: [finance]}}\n";

pub(super) struct OperatorFleet {
    fleet: DevFleet,
    pub(super) gateway: Gateway,
    folder: tempfile::TempDir,
    pub(super) redis: RedisServer,
    pub(super) keys: Keys,
}

pub(super) struct Keys {
    viewer: String,
    pub(super) operator: String,
    pub(super) approver: String,
    pub(super) service: String,
    /// A key that may view and operate, but only in the tenant `acme`.
    pub(super) acme: String,
}

impl OperatorFleet {
    pub(super) async fn start() -> Self {
        let redis = RedisServer::start().await;
        make_users(std::slice::from_ref(&redis)).await;
        let folder = tempfile::tempdir().unwrap();
        let conf = folder.path().join("conf");
        std::fs::create_dir(&conf).unwrap();
        for (name, text) in [
            ("permissions.yaml", [PERMISSIONS, APPROVERS].concat().as_str()),
            ("agents.yaml", "agents: {kelly: {}, fran: {}, atlas: {task_handler: {typed: note}}}\n"),
            ("tenants.yaml", "tenants: {demo: {}, acme: {}}\n"),
            (
                "limits.yaml",
                "limits:\n  three: {per: [agent], max: 3, every: 1d, match: {agents: [fran]}}\n  one: {per: [agent], max: 1, every: 1d, match: {agents: [fran]}, mode: shadow}\n",
            ),
            ("tools.yaml", TOOLS),
        ] {
            std::fs::write(conf.join(name), text).unwrap();
        }
        let keys = folder.path().join("keys.yaml");
        let conf = conf.to_str().unwrap();
        let url = redis.url();
        let key = |args: &[&str]| add_key(&keys, args);
        let made = Keys {
            viewer: key(&["--id", "vera", "--tenant", "*", "--role", "viewer"]),
            operator: key(&["--id", "otto", "--tenant", "*", "--role", "operator"]),
            approver: key(&["--id", "ann-phone", "--tenant", "*", "--role", "approver", "--approver", "ann"]),
            service: key(&["--id", "shop", "--tenant", "demo"]),
            acme: key(&["--id", "acme", "--tenant", "acme", "--verb", "view", "--verb", "operate"]),
        };
        let fleet = DevFleet::start_with(&["--config", conf, "--redis-url", &url], &[("TICKFLEET_CAPS_TICK", "500ms")]);
        // The gateway fails if a route needs a permission that the Redis user `gateway` lacks.
        let as_gateway = format!("{url}?user=gateway&pass=gateway-secret");
        let gateway = Gateway::start_with(&as_gateway, &keys, &["--config", conf]);
        Self { fleet, gateway, folder, redis, keys: made }
    }

    fn conf(&self) -> String {
        self.folder.path().join("conf").display().to_string()
    }

    pub(super) fn run(&self, args: &[&str]) -> CommandOutput {
        self.fleet.run(&[&["--config", &self.conf()], args].concat())
    }

    pub(super) fn submit(&self, id: &str, call: &str) {
        self.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--turn-id", id, "--call", call]).exits(0);
    }

    pub(super) fn sees(&self, path: &str) -> Value {
        let seen = self.gateway.get(&self.keys.viewer, &format!("/v1/operate/{path}"));
        assert_eq!(seen.status, 200, "{path}: {seen:?}");
        seen.json()
    }

    pub(super) fn does(&self, key: &str, path: &str, body: &Value) -> HttpResponse {
        self.gateway.ask(key, "POST", &format!("/v1/operate/{path}"), body)
    }

    pub(super) fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        until(path, || self.sees(path), is_so)
    }

    /// Returns the ID of the dead letter.
    pub(super) fn refused(&self, id: &str) -> String {
        let body = json!({"agent": "nobody", "turn_id": id, "calls": [{"name": "echo"}]});
        assert_eq!(self.gateway.ask(&self.keys.service, "POST", "/v1/turns", &body).status, 202);
        let of = |seen: &Value| seen["items"].as_array()?.iter().find(|one| one["name"] == id).cloned();
        of(&self.until("dead?kind=letter", |seen| of(seen).is_some())).unwrap()["id"].as_str().unwrap().to_owned()
    }

    fn refused_again(&self, id: &str, before: &str) -> String {
        let of = |seen: &Value| {
            let mut dead = seen["items"].as_array()?.iter();
            dead.find(|one| one["name"] == id && one["id"] != before).cloned()
        };
        of(&self.until("dead?kind=letter", |seen| of(seen).is_some())).unwrap()["id"].as_str().unwrap().to_owned()
    }

    pub(super) fn asked(&self, turn: &str) -> Value {
        let call = format!("{turn}/0");
        let of = |seen: &Value| seen["items"].as_array()?.iter().find(|one| one["call"] == call.as_str()).cloned();
        of(&self.until("approvals", |seen| of(seen).is_some())).unwrap()
    }
}

pub(super) fn count(seen: &Value, name: &str) -> usize {
    seen[name].as_array().unwrap_or_else(|| panic!("no {name} in {seen}")).len()
}

const MISSING_TASK: &str = "demo:none";

/// (method, path, body, permissions of viewer, operator and approver)
pub(super) fn verbs(approval: &str, letter: &str, worker: &str) -> Vec<(&'static str, String, Value, [bool; 3])> {
    const LOOKS: [bool; 3] = [true; 3];
    let path = |path: &str| format!("/v1/operate/{path}");
    let why = || json!({"tenant": "demo", "agent": "fran", "reason": "a try"});
    let mut verbs: Vec<_> =
        "config overview turns tasks tasks/demo:none limits explain?id=demo:held approvals dead dead/causes pauses stats history rules audit tools"
            .split(' ')
            .map(|look| ("GET", path(look), Value::Null, LOOKS))
            .collect();
    verbs.push(("GET", path("workers"), Value::Null, LOOKS));
    for verb in ["tools/disable", "tools/enable"] {
        verbs.push(("POST", path(verb), json!({"tool": "sleep", "reason": "a try"}), [false, true, false]));
    }
    for verb in ["workers/drain", "workers/resume"] {
        verbs.push(("POST", path(verb), json!({"worker": worker, "reason": "a try"}), [false, true, false]));
    }
    verbs.push(("GET", path(&format!("approvals/{approval}")), Value::Null, LOOKS));
    verbs.push(("GET", path(&format!("dead/{letter}")), Value::Null, LOOKS));
    for verb in ["dead/replay", "dead/drop"] {
        verbs.push(("POST", path(verb), json!({"ids": [letter], "reason": "a try"}), [false, true, false]));
    }
    for (verb, body) in
        [("pause", why()), ("resume", why()), ("cancel", json!({"ids": ["demo:held"], "reason": "a try"}))]
    {
        verbs.push(("POST", path(verb), body, [false, true, false]));
    }
    for verb in ["approve", "deny"] {
        // `cancel` comes first and has ended the turn, so these commands return a conflict.
        verbs.push((
            "POST",
            path(&format!("approvals/{approval}/{verb}")),
            json!({"reason": "a try"}),
            [false, false, true],
        ));
    }
    verbs
}

/// Methods and paths of the OpenAPI document.
fn routes(served: &OperatorFleet) -> BTreeSet<String> {
    let document = served.gateway.get("", "/v1/openapi.json").json();
    let paths = document["paths"].as_object().unwrap().iter();
    let operated = paths.filter(|(path, _)| path.starts_with("/v1/operate/"));
    let methods = |(path, item): (&String, &Value)| -> Vec<String> {
        item.as_object().unwrap().keys().map(|method| format!("{} {path}", method.to_uppercase())).collect()
    };
    operated.flat_map(methods).collect()
}

fn stated(verbs: &[(&str, String, Value, [bool; 3])], approval: &str, letter: &str) -> BTreeSet<String> {
    let plain = |path: &str| {
        let path = path.split('?').next().unwrap().replace(MISSING_TASK, "{task}");
        path.replace(approval, "{approval}").replace(letter, "{id}")
    };
    // Every key can ask who it is. The stream of events does not end.
    let others = ["me", "events"].map(|path| format!("GET /v1/operate/{path}"));
    verbs.iter().map(|(method, path, ..)| format!("{method} {}", plain(path))).chain(others).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_verb_requires_its_role_and_a_rejected_request_changes_nothing() {
    let served = OperatorFleet::start().await;
    let Keys { viewer, operator, approver, service, acme } = &served.keys;
    served.submit("held", "fail");
    let approval = format!("demo:{}", served.asked("held")["id"].as_str().unwrap());
    let letter = served.refused("lost");
    let worker = served.sees("workers")["workers"][0]["name"].as_str().unwrap().to_owned();
    let verbs = verbs(&approval, &letter, &worker);
    assert_eq!(routes(&served), stated(&verbs, &approval, &letter), "each route of the document has a row");
    // Keys without permission come first, before any command has an effect.
    for (method, path, body, roles) in &verbs {
        let keys = [viewer, operator, approver].into_iter().zip(roles).filter(|(_, may)| !**may).map(|(key, _)| key);
        for key in keys.chain([service]) {
            let refused = served.gateway.ask(key, method, path, body);
            assert_eq!((refused.status, refused.code().as_str()), (403, "forbidden"), "{method} {path}: {refused:?}");
        }
        let unknown = served.gateway.ask("tfk_nobody", method, path, body);
        assert_eq!(unknown.status, 401, "{method} {path}");
    }
    assert_eq!(served.asked("held")["agreed"], json!([]), "nobody has agreed");
    assert_eq!(count(&served.sees("pauses"), "pauses"), 0, "nobody was paused");
    assert_eq!(served.sees(&format!("dead/{letter}"))["name"], "lost", "nothing was replayed or dropped");
    assert_eq!(served.sees("explain?id=demo:held")["story"]["state"], "retry", "the turn waits on");
    for (method, path, body, _) in &verbs {
        let there = served.gateway.ask(acme, method, path, body);
        let is_own = there.status == 200 && !there.body.contains("demo");
        assert!([403, 404].contains(&there.status) || is_own, "{method} {path}: {there:?}");
    }
    for id in ["acme:demo:held", "acme:demo:held/0"] {
        let there = served.gateway.get(acme, &format!("/v1/operate/explain?id={id}"));
        assert!([400, 404].contains(&there.status), "behind its own name another tenant is none: {there:?}");
    }
    assert_eq!(count(&served.sees("pauses"), "pauses"), 0, "nor by them");
    assert_eq!(served.sees("workers")["workers"][0]["drained"], Value::Null, "nobody was drained");
    for (method, path, body, roles) in &verbs {
        for (key, may) in [viewer, operator, approver].into_iter().zip(roles) {
            // The operator's cancel has already ended the turn, so no call waits for approval.
            let expected = match path.rsplit('/').next() {
                Some("approve" | "deny") => 409,
                Some(MISSING_TASK) => 404,
                _ => 200,
            };
            if *may {
                let done = served.gateway.ask(key, method, path, body);
                assert_eq!(done.status, expected, "{method} {path}: {done:?}");
            }
        }
    }
    let me = served.gateway.get(approver, "/v1/operate/me").json();
    assert_eq!((&me["approver"], &me["verbs"]), (&json!("ann"), &json!(["view", "approve"])), "{me}");
    let body = json!({"agent": "kelly", "calls": [{"name": "echo"}]});
    assert_eq!(served.gateway.ask(operator, "POST", "/v1/turns", &body).code(), "forbidden");
    let wrong = "dead?limit=0 dead?from=x dead?kind=x dead/x stats?by=x stats?days=0 turns?limit=0 turns?from=x \
                 turns?state=x limits?agent=kelly audit?cursor=0:x explain?id=: rules?days=0 \
                 history?step=day audit?where=amount tasks/none";
    for path in wrong.split_whitespace() {
        assert_eq!(served.gateway.get(viewer, &format!("/v1/operate/{path}")).status, 400, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_console_is_served_with_a_strict_content_security_policy() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url(), "--console", "0"]);
    let line = fleet.welcome.iter().find_map(|line| line.strip_prefix("Console: http://")).unwrap();
    let (address, key) = line.split_once("/console/#key=").unwrap();
    let gateway = Gateway::at(address);
    let page = gateway.get("", "/console/");
    assert_eq!(page.status, 200);
    let policy =
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"];
    for head in
        policy.into_iter().chain(["content-type: text/html", "nosniff", "referrer-policy: no-referrer", "no-store"])
    {
        assert!(page.head.contains(head), "no {head}: {}", page.head);
    }
    assert!(!page.head.contains("set-cookie") && !page.head.contains("unsafe"), "{}", page.head);
    assert!(page.head.contains("content-encoding: gzip"), "{}", page.head);
    for file in ["index.html", "main.js", "console.css", "icon.svg", "views/overview.js"] {
        assert_eq!(gateway.get("", &format!("/console/{file}")).status, 200, "{file}");
    }
    for file in ["nothing.js", "..%2fkeys.yaml", "%ff"] {
        assert_eq!(gateway.get("", &format!("/console/{file}")).status, 404, "{file}");
    }
    assert_eq!(gateway.get("", "/console").status, 308);
    assert_eq!(gateway.get("", "/v1/operate/overview").status, 401);
    let seen = gateway.get(key, "/v1/operate/overview");
    assert_eq!(seen.status, 200, "{seen:?}");
    assert_eq!(fleet.stop(), Some(0), "the gateway ends with the fleet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_and_a_bulk_cancel_apply_and_name_their_operator_in_the_log() {
    let served = OperatorFleet::start().await;
    let key = &served.keys.operator;
    let whom = json!({"tenant": "demo", "agent": "kelly", "reason": "she writes to the wrong people"});
    for (changed, message) in [(true, "calls of agent kelly of demo are paused"), (false, "was paused already")] {
        let done = served.does(key, "pause", &whom).json();
        assert!(done["message"].as_str().unwrap().contains(message), "{done}");
        assert_eq!(done["changed"], changed);
    }
    for id in ["waits", "ends", "ends-too"] {
        served.submit(id, "echo");
    }
    let found = served.until("turns?tenant=demo&agent=kelly&state=throttled", |seen| count(seen, "items") == 3);
    assert_eq!(found["items"][0]["tools"], json!(["echo"]), "{found}");
    let reported = served.sees("explain?id=demo:waits");
    assert_eq!(
        (&reported["story"]["waits"]["rule"], &reported["story"]["waits"]["pause"]["by"]),
        (&json!("paused"), &json!("otto"))
    );
    assert!(
        reported["lines"].as_array().unwrap().iter().any(|line| line.as_str().unwrap().contains("otto")),
        "{reported}"
    );
    assert_eq!(served.sees("explain?id=waits")["story"]["tenant"], "demo", "looked for at all tenants");
    let tool = json!({"tool": "sleep", "reason": "it is moved"});
    assert_eq!(served.does(key, "pause", &tool).json()["changed"], true);
    let theirs = served.gateway.get(&served.keys.acme, "/v1/operate/pauses").json();
    assert_eq!((count(&theirs, "pauses"), &theirs["pauses"][0]["tool"]), (1, &json!("sleep")), "{theirs}");
    assert_eq!(served.does(&served.keys.acme, "resume", &tool).json()["changed"], false, "nor theirs to end");
    assert_eq!(served.does(key, "resume", &tool).json()["changed"], true);
    let held = served.sees("pauses");
    assert_eq!(
        (&held["pauses"][0]["agent"], &held["pauses"][0]["reason"]),
        (&json!("kelly"), &whom["reason"]),
        "{held}"
    );
    assert_eq!(served.sees("overview")["paused"], 1);

    let ended =
        served.does(key, "cancel", &json!({"ids": ["demo:ends", "demo:ends-too"], "reason": "sold out"})).json();
    assert_eq!(ended, json!([{"id": "demo:ends", "result": "ok"}, {"id": "demo:ends-too", "result": "ok"}]));
    let story = served.until("explain?id=demo:ends", |seen| seen["story"]["state"] == "done");
    assert_eq!(story["story"]["results"][0]["error"]["details"]["reason"], "otto: sold out", "{story}");
    assert_eq!(served.does(key, "resume", &whom).json()["changed"], true);
    let story = served.until("explain?id=demo:waits", |seen| seen["story"]["state"] == "done");
    assert_eq!(story["story"]["results"][0]["success"], true, "{story}");
    let entries = served.until("audit?text=otto&since_s=3600", |seen| count(seen, "entries") >= 3);
    for said in [
        "otto paused demo:kelly",
        "otto canceled 2 turns of demo",
        "otto resumed demo:kelly",
        "she writes to the wrong people",
    ] {
        assert!(entries.to_string().contains(said), "no {said:?} in {entries}");
    }
    let limits = served.sees("limits?tenant=demo&top=3");
    let names: Vec<&Value> =
        ["caps", "limits"].iter().flat_map(|kind| limits[*kind].as_array().unwrap()).map(|one| &one["name"]).collect();
    assert!(names.contains(&&json!("max_actions_per_day")) && names.contains(&&json!("three")), "{limits}");
    assert_eq!(served.gateway.get(key, "/v1/operate/limits?limit=nope").status, 404);
    let fleet = served.sees("overview");
    assert!(count(&fleet, "nodes") >= 2 && count(&fleet, "backlog") >= 6, "{fleet}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_requires_current_arguments_and_a_listed_approver() {
    let served = OperatorFleet::start().await;
    let key = &served.keys.approver;
    served.submit("first", "fail");
    let approval = served.asked("first");
    let name = format!("demo:{}", approval["id"].as_str().unwrap());
    assert_eq!(served.sees(&format!("approvals/{name}"))["call"], "first/0");
    let bare = served.sees(&format!("approvals/{}", approval["id"].as_str().unwrap()));
    assert_eq!(bare["tenant"], "demo", "looked for at all tenants");
    let path = format!("approvals/{name}/approve");
    let stale = served.does(key, &path, &json!({"reason": "", "narrowed": {"/code": "x"}}));
    assert_eq!((stale.status, stale.code().as_str()), (409, "conflict"), "{stale:?}");
    assert_eq!(served.does(key, &path, &json!({"set": {"/text": "other"}})).status, 400, "nothing may be changed");
    let done = served.does(key, &path, &json!({"reason": "agreed with Ben", "narrowed": null, "set": {}}));
    assert_eq!((done.status, &done.json()["state"]), (200, &json!("approved")), "{done:?}");
    assert_eq!(served.does(key, &path, &json!({})).status, 409, "it counts once");
    let entries = served.until("audit?text=agreed%20with%20Ben", |seen| count(seen, "entries") > 0);
    assert!(entries.to_string().contains("ann"), "{entries}");

    served.submit("second", "fail");
    let name = format!("demo:{}", served.asked("second")["id"].as_str().unwrap());
    let deny = format!("approvals/{name}/deny");
    assert_eq!(served.does(key, &deny, &json!({"reason": " "})).status, 400, "a denial says why");
    let file = Path::new(&served.conf()).join("permissions.yaml");
    for (text, status) in [("permissions: [", 503), (PERMISSIONS, 403)] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(served.does(key, &deny, &json!({"reason": "no"})).status, status, "{text}");
        // While the file has a mistake, people must still see why the turn waits.
        assert_eq!(served.sees("explain?id=demo:second")["story"]["waits"]["rule"], "approval", "{text}");
    }
    std::fs::write(&file, [PERMISSIONS, APPROVERS].concat()).unwrap();
    let denied = served.does(key, &deny, &json!({"reason": "not this month"}));
    assert_eq!((denied.status, &denied.json()["state"]), (200, &json!("denied")), "{denied:?}");
    let story = served.until("explain?id=demo:second", |seen| seen["story"]["state"] == "done");
    assert!(story.to_string().contains("not this month"), "{story}");
    drop(served.redis);
}

fn counted(served: &OperatorFleet) {
    let seen = served.sees("stats?by=agent,tool&tenant=demo");
    let mut rows = seen["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["tool"].as_str().is_some_and(|tool| tool.contains("fail_once"))).unwrap();
    let outcomes = json!({"outcome_unknown": 1, "permanent": 2});
    assert_eq!((&row["agent"], &row["calls"], &row["outcomes"]), (&json!("kelly"), &json!(3), &outcomes), "{seen}");
    assert_eq!(served.sees("stats?by=agent,tool&tenant=demo")["rows"], seen["rows"], "nothing counts twice");
    served
        .run(&["stats", "--by", "agent", "--csv"])
        .exits(0)
        .says("agent,calls,ok,failed,retries,mean_ms")
        .says("kelly,");
}

fn looked_at_first(served: &OperatorFleet, bad: &str) {
    let asked = ["dead", "replay", "--cause", "permanent", "--reason", "repaired", "--by", "anna"];
    served.run(&asked).exits(0).says("1 would be replayed: add --yes to do it").prints_error(bad);
    served.run(&["dead", "list", "--kind", "call"]).exits(0).says("may have run").says("bad/0");
    served
        .run(&["dead", "show", bad, "--message"])
        .exits(0)
        .says(r#""name":"fail_once","arguments":{"outcomes":["permanent"]}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_and_calls_are_replayed_once_edited_or_dropped() {
    let served = OperatorFleet::start().await;
    let key = &served.keys.operator;
    served.submit("bad", r#"fail_once {"outcomes":["permanent"]}"#);
    served.submit("maybe", r#"fail_once {"outcomes":["transient"]}"#);
    served.submit("fine", "echo");
    let letter = served.refused("lost");
    let seen = served.until("dead?tenant=demo&since_s=3600", |seen| count(seen, "items") == 3);
    let id_of = |name: &str| {
        let mut dead = seen["items"].as_array().unwrap().iter();
        dead.find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name} in {seen}"))["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let bad = id_of("bad/0");
    let maybe = id_of("maybe/0");
    for (filter, found) in [("error=failed%20as&tool=fail_once", 2), ("cause=unknown_agent", 1)] {
        assert_eq!(count(&served.sees(&format!("dead?{filter}")), "items"), found, "{filter}");
    }
    let shown = served.sees(&format!("dead/{bad}"));
    assert_eq!((&shown["becomes"], &shown["cause"]), (&json!("bad.again-0"), &json!("permanent")), "{shown}");
    looked_at_first(&served, &bad);

    let ids = json!({"ids": [bad, maybe, letter], "reason": "the service is back"});
    let answers = served.does(key, "dead/replay", &ids).json();
    assert_eq!(
        (&answers[0]["result"], &answers[0]["replayed_as"]),
        (&json!("ok"), &json!("demo:bad.again-0")),
        "{answers}"
    );
    assert_eq!(answers[1]["result"], "may_have_run", "nothing runs twice that nobody has asked for: {answers}");
    assert_eq!((&answers[2]["result"], &answers[2]["replayed_as"]), (&json!("ok"), &json!("demo:lost")), "{answers}");
    let again = served.does(key, "dead/replay", &ids).json();
    assert_eq!((&again[0]["result"], &again[2]["result"]), (&json!("again"), &json!("not_found")), "{again}");
    served.until("explain?id=demo:bad.again-0", |seen| seen["story"]["state"] == "done");
    let letter = served.refused_again("lost", &letter);
    let message = json!({"turn_id": "lost", "tenant": "demo", "agent": "kelly", "calls": [{"name": "echo"}]});
    let edited = json!({"ids": [letter], "reason": "repaired", "message": message});
    assert_eq!(served.does(&served.keys.acme, "dead/replay", &edited).json()[0]["result"], "not_found", "not theirs");
    let foreign = json!({"ids": [letter], "reason": "repaired", "message": {"tenant": "acme", "agent": "kelly", "calls": [{"name": "echo"}]}});
    assert_eq!(served.does(key, "dead/replay", &foreign).json()[0]["result"], "invalid", "nor another tenant's");
    assert_eq!(served.does(key, "dead/replay", &edited).json()[0]["replayed_as"], "demo:lost");
    let story = served.until("explain?id=demo:lost", |seen| seen["story"]["state"] == "done");
    assert_eq!(story["story"]["results"][0]["success"], true, "{story}");
    counted(&served);
    let perhaps = json!({"ids": [maybe], "reason": "looked it up", "allow_duplicate_effects": true});
    assert_eq!(served.does(key, "dead/replay", &perhaps).json()[0]["replayed_as"], "demo:maybe.again-0");

    served.until("dead", |seen| count(seen, "items") == 2);
    let dropping = ["dead", "drop", "--tool", "fail_once", "--reason", "of no use", "--by", "anna", "--yes"];
    served.run(&dropping).exits(0).says("2 found, 2 of them dropped");
    assert_eq!(count(&served.sees("dead"), "items"), 0);
    served.run(&["dead", "drop", "--reason", "x", "--by", "anna"]).exits(2).prints_error("expected ids or filters");
    let entries = served.sees("audit?limit=500").to_string();
    for said in
        [format!("otto replayed {bad}"), "\"replayed_as\":\"demo:bad.again-0\"".into(), "anna dropped call-0-".into()]
    {
        assert!(entries.contains(&said), "no {said:?} in {entries}");
    }
}

//! Damages each kind of key. Only the agent or tenant of the key may be affected, and checks must name the key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_config::TaskHandlerDef;
use tickfleet_core::call::streak::StreakBounds;
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::{Fact, FactChange, FactCondition, FactRow, FactScope, RuleMode, TenantPolicy, ToolGrant};
use tickfleet_model::tool::CachePer;
use tickfleet_model::{AgentId, ApprovalDemand, Effect, Limit, Outcome, Policy, TenantId};
use tickfleet_store::{TurnName, TurnView};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::time::Instant;

const ODD: &str = "\u{fffd} odd {";
const RECORDS: [&str; 16] = [
    "consumer:",
    "crash:",
    "suspect:",
    "drain:",
    "done:",
    "id:",
    "cancel:",
    "ran:",
    "steps:",
    "streak:",
    "session:",
    "mailbox:",
    "tools:",
    "read:",
    "documents:",
    "passages:",
];

const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AffectedOwner {
    /// Agent `vic` of tenant `bolt`.
    Agent,
    Tenant,
}

use AffectedOwner::{Agent, Tenant};

/// Damage to keys that docs/contribute/store-layout.md lists. `*` matches the rest of a key.
enum KeyDamage {
    /// The record gets another type, then another text. Then each member changes and disappears.
    Record(&'static str, AffectedOwner, &'static [&'static str]),
    Type(&'static str, AffectedOwner, &'static [&'static str]),
    /// The field (key and field of a hash) changes and disappears.
    Field(&'static str, AffectedOwner, &'static [(&'static str, &'static str)]),
    Member(&'static str, &'static [&'static str]),
    /// Not damaged. The second text is the reason.
    Shared(&'static str, &'static str),
}

const ROWS: &[KeyDamage] = &[
    KeyDamage::Shared("meta", "the shard itself"),
    KeyDamage::Shared("policy", "whose policy decides is asked of the shard as a whole"),
    KeyDamage::Member(
        "timers",
        &["odd", "turn:bolt:none", "turn:", "throttle:_tick@bolt:none", "throttle:a@b@c", "cascade:bolt:none"],
    ),
    KeyDamage::Record("consumer:<consumer>", Agent, &["consumer:w9"]),
    KeyDamage::Member("consumers", &["odd one", "w9"]),
    KeyDamage::Member("silent", &["odd one", "w9"]),
    KeyDamage::Shared("canceled:<consumer>", "of one worker"),
    KeyDamage::Shared("reaping", "the check of all consumers"),
    KeyDamage::Record("crash:<consumer>", Agent, &["crash:w9"]),
    KeyDamage::Record("suspect:<stream>:<consumer>", Agent, &["suspect:turns:w9"]),
    KeyDamage::Member("redelivered", &["odd"]),
    KeyDamage::Record("drain:<worker>", Agent, &["drain:w9"]),
    KeyDamage::Member("drains", &["odd one", "w9"]),
    KeyDamage::Shared("turns", "the inbound stream of all"),
    KeyDamage::Shared("tasks", "the inbound stream of all"),
    KeyDamage::Shared("ready:<priority>", "a queue of all tenants"),
    KeyDamage::Shared("ready:suspect:<priority>", "a queue of all tenants"),
    KeyDamage::Type("external:<tenant>:<agent>", Agent, &["external:bolt:far"]),
    KeyDamage::Shared("local:<tenant>:<turn>", "of one turn, and the queue of an external runtime has the same form"),
    KeyDamage::Member("externals", &["odd", "external:bolt:none"]),
    KeyDamage::Record(
        "turn:<tenant>:<id>",
        Agent,
        &["turn:bolt:waits", "turn:bolt:asks", "turn:bolt:held", "turn:bolt:job"],
    ),
    KeyDamage::Field("turn:<tenant>:<id>", Agent, &[("parts:turn:bolt:waits", "c0"), ("parts:turn:bolt:asks", "c0")]),
    KeyDamage::Record("done:<tenant>:<id>", Agent, &["done:bolt:next", "done:bolt:first-vic"]),
    KeyDamage::Record("id:<tenant>:<id>", Agent, &["id:bolt:next", "id:bolt:waits"]),
    KeyDamage::Record("cancel:<tenant>:<id>", Agent, &["cancel:bolt:next", "cancel:bolt:waits"]),
    KeyDamage::Type("early:<tenant>", Tenant, &["early:bolt"]),
    KeyDamage::Shared("absent:<tenant>", "of tenants that there are not"),
    KeyDamage::Type("throttle:<limit>@<counter>", Agent, &["throttle:_tick@bolt:vic", "throttle:slow@bolt:vic"]),
    KeyDamage::Type("short:<limit>@<counter>", Agent, &["short:slow@bolt:vic"]),
    KeyDamage::Member("parked", &["odd", "bolt:none"]),
    KeyDamage::Type("under:<tenant>:<id>", Agent, &["under:bolt:job"]),
    KeyDamage::Record("ran:<tenant>:<id>", Agent, &["ran:bolt:next", "ran:bolt:waits"]),
    KeyDamage::Record("steps:<tenant>:<task>", Agent, &["steps:bolt:waits"]),
    KeyDamage::Type("tasks:<tenant>", Tenant, &["tasks:bolt"]),
    KeyDamage::Type("children:<tenant>:<task>", Agent, &["children:bolt:job"]),
    KeyDamage::Member("lists", &["odd", "tasks:none"]),
    KeyDamage::Shared("dead", "the dead letters of all"),
    KeyDamage::Shared("handled", "of operators"),
    KeyDamage::Shared("handled:<entry>", "of operators"),
    KeyDamage::Shared("handled:call:<entry>", "of operators"),
    KeyDamage::Field("_tick", Agent, &[("counters:_", "_tick:bolt:vic")]),
    KeyDamage::Field("_day", Agent, &[("counters:_", "_day:bolt:vic")]),
    KeyDamage::Field("_tenant_day", Tenant, &[("counters:_", "_tenant_day:bolt")]),
    KeyDamage::Field("_task", Agent, &[("counters:_", "_task:bolt:job")]),
    KeyDamage::Field("_unfinished", Tenant, &[("counters:_", "_unfinished:bolt")]),
    KeyDamage::Field("_bytes", Tenant, &[("counters:_", "_bytes:bolt")]),
    KeyDamage::Field("_out", Tenant, &[("counters:_", "_out:bolt")]),
    KeyDamage::Field(
        "<limit>",
        Agent,
        &[("counters:slow", "bolt:vic"), ("counters:notes", "bolt:vic"), ("counters:slots", "bolt:vic")],
    ),
    KeyDamage::Shared("_requests:<tenant>:<day>", "what models have used, for people"),
    KeyDamage::Shared("_tokens_in:…", "what models have used, for people"),
    KeyDamage::Shared("_tokens_out:…", "what models have used, for people"),
    KeyDamage::Shared("_cost:…", "what models have used, for people"),
    KeyDamage::Shared("_calls:<day>", "of operators"),
    KeyDamage::Record("effect:<tenant>:<tool>:<hash>", Agent, &["effect:bolt:*"]),
    KeyDamage::Record("approval:<tenant>:<id>", Agent, &["approval:bolt:*"]),
    KeyDamage::Member("asked", &["odd", "bolt:none"]),
    KeyDamage::Type("asked:<tenant>", Tenant, &["asked:bolt"]),
    KeyDamage::Type("asked:<tenant>:<agent>", Agent, &["asked:bolt:vic"]),
    KeyDamage::Type("approvals:<tenant>", Tenant, &["approvals:bolt"]),
    KeyDamage::Shared("notified:<name>:<tenant>", "of notifiers"),
    KeyDamage::Record("facts:<tenant>:<session>", Agent, &["facts:bolt:agent:vic"]),
    KeyDamage::Record("cache:<tenant>:<bucket>", Tenant, &["cache:bolt:*"]),
    KeyDamage::Record("streak:<tenant>:<agent>", Agent, &["streak:bolt:vic"]),
    KeyDamage::Record("streak:<tenant>:<agent>:<task>", Agent, &["streak:bolt:vic:job"]),
    KeyDamage::Record("session:<tenant>:<session>", Agent, &["session:bolt:s"]),
    KeyDamage::Record("mailbox:<tenant>:<agent>", Agent, &["mailbox:bolt:vic"]),
    KeyDamage::Record("documents:<tenant>", Tenant, &["documents:bolt"]),
    KeyDamage::Record("passages:<tenant>", Tenant, &["passages:bolt"]),
    KeyDamage::Record("memories:<tenant>:<agent>", Agent, &["memories:bolt:vic"]),
    KeyDamage::Shared("tools", "of which policy lists were made, for all"),
    KeyDamage::Record("tools:<tenant>:<agent>", Agent, &["tools:bolt:vic"]),
    KeyDamage::Record("tools:=:<digest>", Agent, &["tools:=:00"]),
    KeyDamage::Shared("tools:names", "the names of all tools"),
    KeyDamage::Shared("grant:<id>", "of one tool's token service"),
    KeyDamage::Shared("grant:<id>:renewal", "of one tool's token service"),
    KeyDamage::Type("replies:<tenant>:<inbox>", Agent, &["replies:bolt:vic"]),
    KeyDamage::Record("read:<tenant>:<inbox>", Agent, &["read:bolt:vic"]),
    KeyDamage::Type("seqs:<tenant>", Tenant, &["seqs:bolt"]),
    KeyDamage::Field("seqs:<tenant>", Agent, &[("seqs:bolt", "vic")]),
    KeyDamage::Type("inboxes:<tenant>", Tenant, &["inboxes:bolt"]),
    KeyDamage::Shared("audit", "the log of all"),
    KeyDamage::Shared("seals", "the log of all"),
    KeyDamage::Shared("anchors", "the log of all"),
    KeyDamage::Shared("sealing", "the log of all"),
    KeyDamage::Shared("follow:<name>", "of exporters"),
    KeyDamage::Shared("statistics", "of operators"),
    KeyDamage::Shared("history", "the figures of all"),
    KeyDamage::Shared("history:minutes:<hour>", "the figures of all"),
    KeyDamage::Shared("history:hours:<day>", "the figures of all"),
    // Must be last, because the tenant stays unreadable until it is set again.
    KeyDamage::Field("settings", Tenant, &[("parts:settings", "tenant:bolt")]),
];

impl KeyDamage {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Record(kind, ..) | Self::Type(kind, ..) | Self::Field(kind, ..) => kind,
            Self::Member(kind, _) | Self::Shared(kind, _) => kind,
        }
    }
}

#[test]
fn each_documented_key_kind_has_a_damage_case() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/contribute/store-layout.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, keys) = page.split_once("\n## The shard\n").unwrap();
    let cells = keys.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let kinds = cells.flat_map(|cell| cell.split('`').step_by(2)).map(str::trim).filter(|kind| !kind.is_empty());
    let documented: BTreeSet<&str> = kinds.collect();
    let known: BTreeSet<&str> = ROWS.iter().map(KeyDamage::kind).collect();
    assert_eq!(known, documented, "add a row for a new kind of key");
    for row in ROWS {
        assert!(!matches!(row, KeyDamage::Shared(_, why) if why.is_empty()), "{}: why is it not damaged?", row.kind());
    }
}

fn limit(name: &str, tool: &str, most: u64, every: LimitWindow) -> Limit {
    Limit {
        name: name.into(),
        matches: LimitMatch { tools: [tool.to_owned()].into(), ..LimitMatch::default() },
        per: [LimitKey::Agent].into(),
        bound: LimitBound::Calls(most),
        every,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1_000,
    }
}

fn policy(policy: &mut Policy) {
    policy.tenants.insert(TenantId::new("bolt").unwrap(), TenantPolicy::default());
    // A turn has more calls than a tick allows, so turns also wait for ticks.
    (policy.defaults.tick_ms, policy.defaults.calls_per_tick, policy.defaults.max_actions_per_day) =
        (100, 5, 1_000_000);
    policy.permissions.approvers = [("eve".to_owned(), ["finance".to_owned()].into())].into();
    policy.limits = Arc::new(vec![
        limit("notes", "note", 1_000, LimitWindow::Period(2_000)),
        limit("slow", "slow", 1, LimitWindow::Period(600_000)),
        limit("brief", "brief", 1, LimitWindow::Period(100)),
        limit("slots", "pay", 4, LimitWindow::Concurrency),
    ]);
    let row = |facts| ToolGrant { everyone: true, facts, ..ToolGrant::default() };
    let fact = Fact::parse("noted").unwrap();
    let sets = FactChange { fact: fact.clone(), on: [Outcome::Ok].into(), kept_ms: 3_600_000 };
    let needs = FactCondition { fact, mode: RuleMode::Enforce, message: None };
    let notes = FactRow { sets: vec![sets], of: FactScope::Agent, ..FactRow::default() };
    let pays = FactRow { require: vec![needs], of: FactScope::Agent, ..FactRow::default() };
    policy.permissions.matrix.insert("note".into(), row(notes));
    policy.permissions.matrix.insert("pay".into(), row(pays));
}

fn tool(name: &'static str, effect: Effect) -> TypedTool {
    TypedTool::new(name, "A tool.", effect, move |_, arguments: Value| async move {
        if let Some(ms) = arguments["ms"].as_u64() {
            // Holds the slice until the record is damaged.
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        Ok::<_, ToolError>(json!({"done": name}))
    })
}

fn flaky() -> TypedTool {
    TypedTool::new("flaky", "Fails once.", Effect::Idempotent, |context: CallContext, _: Value| async move {
        if context.attempt < 2 { Err(ToolError::Transient("Not yet.".into())) } else { Ok(json!({"done": true})) }
    })
}

fn plan() -> Plan {
    let bounds = StreakBounds { deny_after: 100_000, deny_ms: 60_000, keep_ms: 60_000 };
    let demand = ApprovalDemand { quorum: 1, by: ["finance".to_owned()].into(), ..ApprovalDemand::default() };
    Plan {
        schedulers: 2,
        workers: 2,
        agents: ["vic", "ann", "kelly", "far"].map(String::from).into(),
        tools: vec![
            tool("note", Effect::Read),
            tool("slow", Effect::Read),
            tool("brief", Effect::Read),
            flaky(),
            tool("look", Effect::Read).cache(Duration::from_secs(60), CachePer::Tenant),
            tool("pay", Effect::Once).effect_key(&["/to"], Duration::from_secs(600)),
            tool("ask", Effect::Once).approval(demand),
        ],
        handlers: [(AgentId::new("far").unwrap(), TaskHandlerDef::External { lease: Duration::from_secs(60) })].into(),
        loops: Some(worker::LoopOptions { warn_after: 100_000, bounds, except: Arc::default() }),
        policy,
        ..Plan::default()
    }
}

fn calls(id: &str) -> Value {
    json!([
        {"id": "c0", "name": "note", "arguments": {}},
        {"id": "c1", "name": "brief", "arguments": {}},
        {"id": "c2", "name": "look", "arguments": {"q": "same"}},
        {"id": "c3", "name": "brief", "arguments": {}},
        {"id": "c4", "name": "pay", "arguments": {"to": id}},
        {"id": "c5", "name": "flaky", "arguments": {"text": id}},
    ])
}

async fn submit(fleet: &Fleet, tenant: &str, agent: &str, id: &str, calls: Value) {
    let turn = json!({"turn_id": id, "tenant": tenant, "agent": agent, "reply_to": agent, "calls": calls});
    fleet.submit_turn(turn).await;
}

async fn ended(fleet: &Fleet, tenant: &str, id: &str) -> Result<Vec<String>, String> {
    let name = TurnName::parse(&format!("{tenant}:{id}")).unwrap();
    let began = Instant::now();
    loop {
        if let Ok(TurnView::Finished(finished)) = fleet.store.turn_view(&name).await {
            let reply: Value = serde_json::from_str(&finished.reply).unwrap_or_default();
            return Ok(outcomes(&reply).into_iter().map(ToString::to_string).collect());
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("{name} has no reply"));
        }
        // Redis does not announce the end of a turn, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Gives agent `vic` of tenant `bolt` every kind of data.
async fn busy() -> Fleet {
    let fleet = Fleet::start(plan()).await;
    fleet.say(json!({"tenant": "bolt", "target_agent": "far", "task_id": "job", "task_description": "It waits.", "budget": 50})).await;
    fleet.until("the task is there", async |fleet| fleet.ask::<u64>("EXISTS", "turn:bolt:job", &[]).await == 1).await;
    for (tenant, agent) in [("bolt", "vic"), ("bolt", "ann"), ("acme", "kelly")] {
        submit(&fleet, tenant, agent, &format!("first-{agent}"), calls(&format!("first-{agent}"))).await;
    }
    for (id, calls) in [
        ("takes", json!([{"id": "c", "name": "slow", "arguments": {}}])),
        ("asks", json!([{"id": "c", "name": "ask", "arguments": {}}])),
        ("held", json!([{"id": "c", "name": "sleep", "arguments": {"ms": 600_000}}])),
    ] {
        submit(&fleet, "bolt", "vic", id, calls).await;
    }
    ended(&fleet, "bolt", "takes").await.unwrap();
    submit(&fleet, "bolt", "vic", "waits", json!([{"id": "c", "name": "slow", "arguments": {}}])).await;
    fleet.until("it waits", async |fleet| fleet.ask::<u64>("EXISTS", "throttle:slow@bolt:vic", &[]).await == 1).await;
    fleet.until("people are asked", async |fleet| fleet.ask::<u64>("EXISTS", "asked:bolt", &[]).await == 1).await;
    for id in ["first-vic", "first-ann"] {
        assert_eq!(ended(&fleet, "bolt", id).await.unwrap(), ["ok"; 6], "{id}");
    }
    fleet
}

async fn keys(fleet: &Fleet, pattern: &str) -> Vec<String> {
    if !pattern.contains('*') {
        return vec![pattern.to_owned()];
    }
    let prefix = fleet.store.keys().key("");
    let found: Vec<String> = fleet.ask("KEYS", pattern, &[]).await;
    found.into_iter().filter_map(|key| Some(key.strip_prefix(&prefix)?.to_owned())).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Damage {
    /// A string or a missing record becomes a list. Any other key becomes a string.
    Type(String),
    Text(String),
    Content {
        key: String,
        member: String,
        is_missing: bool,
    },
    Field {
        key: String,
        field: &'static str,
        is_missing: bool,
    },
    Members(&'static str, &'static [&'static str]),
}

enum OriginalValue {
    /// As returned by Redis' `DUMP`.
    Key(String, Option<Vec<u8>>),
    Field(String, &'static str, Option<Vec<u8>>),
    /// The damage stays, because no work depends on it.
    Stays,
}

/// Returns the text before the record's JSON, and the members of the JSON.
async fn content(fleet: &Fleet, key: &str) -> Option<(String, serde_json::Map<String, Value>)> {
    let text: Option<String> = fleet.ask("GET", key, &[]).await;
    let text = text?;
    let (header, json) = text.split_at(text.find('{')?);
    Some((header.to_owned(), serde_json::from_str(json).ok()?))
}

impl Damage {
    async fn happen(&self, fleet: &Fleet) -> OriginalValue {
        match self {
            Self::Type(key) | Self::Text(key) | Self::Content { key, .. } => {
                let dump: Option<Vec<u8>> = fleet.ask("DUMP", key, &[]).await;
                self.change(fleet, key).await;
                OriginalValue::Key(key.clone(), dump)
            }
            Self::Field { key, field, is_missing } => {
                let before: Option<Vec<u8>> = fleet.ask("HGET", key, &[field]).await;
                let _: u64 = if *is_missing {
                    fleet.ask("HDEL", key, &[field]).await
                } else {
                    fleet.ask("HSET", key, &[field, ODD]).await
                };
                OriginalValue::Field(key.clone(), field, before)
            }
            Self::Members(key, members) => {
                for member in *members {
                    let _: u64 = fleet.ask("ZADD", key, &["1", member]).await;
                }
                OriginalValue::Stays
            }
        }
    }

    async fn change(&self, fleet: &Fleet, key: &str) {
        match self {
            Self::Type(_) => {
                let kind: String = fleet.ask("TYPE", key, &[]).await;
                let _: u64 = fleet.ask("DEL", key, &[]).await;
                let is_record = RECORDS.iter().any(|record| key.starts_with(record));
                if kind == "string" || kind == "none" && is_record {
                    let _: u64 = fleet.ask("RPUSH", key, &["odd"]).await;
                } else {
                    let () = fleet.ask("SET", key, &["odd"]).await;
                }
            }
            Self::Content { member, is_missing, .. } => {
                // The record of an ended turn is deleted.
                let Some((header, mut content)) = content(fleet, key).await else { return };
                if *is_missing {
                    content.remove(member);
                } else {
                    content.insert(member.clone(), json!([ODD]));
                }
                let () = fleet.ask("SET", key, &[&(header + &Value::Object(content).to_string())]).await;
            }
            _ => fleet.ask("SET", key, &[ODD]).await,
        }
    }

    fn named(&self) -> Option<&str> {
        match self {
            Self::Text(key) if key.starts_with("turn:") => Some(key),
            _ => None,
        }
    }
}

impl OriginalValue {
    async fn restore(self, fleet: &Fleet) {
        let mut redis = fleet.server.connection().await;
        let full = |key: &str| fleet.store.keys().key(key);
        let command = match self {
            Self::Key(key, Some(dump)) => {
                redis::cmd("RESTORE").arg(full(&key)).arg(0).arg(dump).arg("REPLACE").to_owned()
            }
            Self::Key(key, None) => redis::cmd("DEL").arg(full(&key)).to_owned(),
            Self::Field(key, field, Some(before)) => {
                redis::cmd("HSET").arg(full(&key)).arg(field).arg(before).to_owned()
            }
            Self::Field(key, field, None) => redis::cmd("HDEL").arg(full(&key)).arg(field).to_owned(),
            Self::Stays => return,
        };
        // Fails if the key has changed its type, or if its turn has ended.
        drop(command.query_async::<redis::Value>(&mut redis).await);
    }
}

/// Lists problems of other agents, and checks that do not name the damaged key.
async fn wrong(fleet: &Fleet, damage: &Damage, hurts: AffectedOwner, number: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    submit(fleet, "bolt", "vic", &format!("vic-{number}"), calls("vic")).await;
    submit(fleet, "bolt", "vic", "next", calls("next")).await;
    let under = json!({"turn_id": format!("far-{number}"), "tenant": "bolt", "agent": "far", "task_id": "job", "reply_to": "far", "calls": [{"id": "c", "name": "echo", "arguments": {"text": "hi"}}]});
    fleet.submit_turn(under).await;
    for timer in ["turn:bolt:waits", "turn:bolt:asks", "throttle:slow@bolt:vic", "throttle:_tick@bolt:vic"] {
        let _: u64 = fleet.ask("ZADD", "timers", &["1", timer]).await;
    }
    let others: &[_] = match hurts {
        AffectedOwner::Agent => &[("bolt", "ann"), ("acme", "kelly")],
        AffectedOwner::Tenant => &[("acme", "kelly")],
    };
    for (tenant, agent) in others {
        let id = format!("{agent}-{number}");
        submit(fleet, tenant, agent, &id, calls(&id)).await;
    }
    for (tenant, agent) in others {
        match ended(fleet, tenant, &format!("{agent}-{number}")).await {
            Ok(outcomes) if outcomes == ["ok"; 6] => {}
            Ok(outcomes) => wrong.push(format!("{damage:?}: {tenant}:{agent} got {outcomes:?}")),
            Err(error) => {
                wrong.push(format!("{damage:?}: {error}"));
                return wrong;
            }
        }
    }
    match fleet.store.check(false).await {
        Err(error) => wrong.push(format!("{damage:?}: whoever looks is told {error}")),
        Ok(report) => {
            if damage.named().is_some_and(|key| report.faults.iter().all(|fault| fault.subject != key)) {
                wrong.push(format!("{damage:?}: whoever looks is told of {:?}", report.faults));
            }
        }
    }
    wrong
}

async fn damaged(rows: Vec<&KeyDamage>) -> (usize, Vec<String>) {
    let fleet = busy().await;
    let mut found = Vec::new();
    let mut number = 0;
    for row in rows {
        let hurts = match row {
            KeyDamage::Record(_, hurts, _) | KeyDamage::Type(_, hurts, _) | KeyDamage::Field(_, hurts, _) => *hurts,
            KeyDamage::Member(..) | KeyDamage::Shared(..) => Agent,
        };
        for damage in damages(&fleet, row).await {
            number += 1;
            let before = damage.happen(&fleet).await;
            found.extend(wrong(&fleet, &damage, hurts, number).await);
            before.restore(&fleet).await;
        }
    }
    if !fleet.is_whole() {
        found.push("a scheduler or worker has ended".into());
    }
    (number, found)
}

async fn damages(fleet: &Fleet, row: &KeyDamage) -> Vec<Damage> {
    let mut all = Vec::new();
    match row {
        KeyDamage::Record(_, _, patterns) => {
            for pattern in *patterns {
                for key in keys(fleet, pattern).await.into_iter().take(1) {
                    all.extend([Damage::Type(key.clone()), Damage::Text(key.clone())]);
                    let members = content(fleet, &key).await.map(|(_, content)| content).unwrap_or_default();
                    for (member, _) in members {
                        let damage = |is_missing| {
                            let key = key.clone();
                            let member = member.clone();
                            Damage::Content { key, member, is_missing }
                        };
                        all.extend([damage(false), damage(true)]);
                    }
                }
            }
        }
        KeyDamage::Type(_, _, names) => all.extend(names.iter().map(|name| Damage::Type((*name).to_owned()))),
        KeyDamage::Field(_, _, fields) => {
            for (key, field) in *fields {
                let damage = |is_missing| Damage::Field { key: (*key).to_owned(), field, is_missing };
                all.extend([damage(false), damage(true)]);
            }
        }
        KeyDamage::Member(key, members) => all.push(Damage::Members(key, members)),
        KeyDamage::Shared(..) => {}
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_data_affects_only_its_owner() {
    // Three fleets share the rows, because a fleet mostly waits for the end of windows.
    let part = |part| damaged(ROWS.iter().enumerate().filter(|(at, _)| at % 3 == part).map(|(_, row)| row).collect());
    let parts: [(usize, Vec<String>); 3] = tokio::join!(part(0), part(1), part(2)).into();
    let number: usize = parts.iter().map(|(number, _)| number).sum();
    let found: Vec<String> = parts.into_iter().flat_map(|(_, found)| found).collect();
    assert!(number > 110 && found.is_empty(), "of {number}:\n{}", found.join("\n"));
}

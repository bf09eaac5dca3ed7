//! What is damaged costs itself alone. Each kind of key that the store keeps is damaged for one agent or tenant, while a small
//! fleet works with limits, facts, effects, approvals and tasks. All others get their replies, and whoever looks is told the key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_config::TaskHandlerDef;
use tickfleet_model::limit::{Every, LimitBound, LimitKey, LimitMatch, LimitMode, OnReach};
use tickfleet_model::policy::{Fact, FactChange, FactCondition, FactRow, FactScope, RuleMode, TenantPolicy, ToolGrant};
use tickfleet_model::tool::CachePer;
use tickfleet_model::{AgentId, ApprovalDemand, Effect, Limit, Outcome, Policy, TenantId};
use tickfleet_store::{RowBounds, Scripts, TurnName, TurnView};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::time::Instant;

/// The longest wait for a turn of somebody else; a healthy fleet takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who may be hurt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hurts {
    /// The agent `vic` of tenant `bolt`.
    Agent,
    /// Tenant `bolt`.
    Tenant,
}

use Hurts::{Agent, Tenant};

/// A kind of key as docs/contribute/store-layout.md names it, and what is damaged.
enum Row {
    /// The key gets a value of another type: a string, where it is none, else a list. Then whoever looks is told the key.
    Type(&'static str, Hurts, &'static [&'static str]),
    /// Fields of a hash that belong to one agent or tenant get what no process writes there: key and field.
    Field(&'static str, Hurts, &'static [(&'static str, &'static str)]),
    /// A string gets another text.
    Text(&'static str, &'static [&'static str]),
    /// Fields of a hash are missing: key and field.
    Missing(&'static str, &'static [(&'static str, &'static str)]),
    /// Odd members of a set that belongs to all.
    Member(&'static str, &'static [&'static str]),
    /// It belongs to the whole shard as one thing, or to people who look on: nobody's work alone depends on it. Why.
    Shared(&'static str, &'static str),
}

/// A row for each kind of key.
const ROWS: &[Row] = &[
    Row::Shared("meta", "the shard itself"),
    Row::Shared("policies", "whose policy decides is asked of the shard as a whole"),
    Row::Shared("turns", "the inbound stream of all"),
    Row::Shared("tasks", "the inbound stream of all"),
    Row::Shared("ready:urgent", "a queue of all tenants"),
    Row::Shared("ready:low", "a queue of all tenants"),
    Row::Shared("ready:suspect:urgent", "a queue of all tenants"),
    Row::Shared("ready:suspect:low", "a queue of all tenants"),
    Row::Type("external:<tenant>:<agent>", Agent, &["external:bolt:far"]),
    Row::Shared("grouped", "names of the streams of all"),
    Row::Member("externals", &["odd", "external:bolt:none"]),
    Row::Type("turn:<tenant>:<id>", Agent, &["turn:bolt:waits", "turn:bolt:held"]),
    Row::Type("done:<tenant>:<id>", Agent, &["done:bolt:next"]),
    Row::Field("queued", Agent, &[("queued", "bolt:next"), ("queued", "odd")]),
    Row::Type("id:<tenant>:<id>", Agent, &["id:bolt:next"]),
    Row::Type("lane:<tenant>:<agent>", Agent, &["lane:bolt:vic"]),
    Row::Type("lane:<limit>@<counter>", Agent, &["lane:slow@bolt:vic"]),
    Row::Type("held:<limit>@<counter>", Agent, &["held:slots@bolt:vic"]),
    Row::Field(
        "counters:<limit>",
        Agent,
        &[("counters:slow", "bolt:vic"), ("counters:notes", "bolt:vic"), ("counters:slots", "bolt:vic")],
    ),
    Row::Member("limits", &["odd", ""]),
    Row::Type("short:<limit>@<counter>", Agent, &["short:slow@bolt:vic"]),
    Row::Type("usage:<tenant>:<start of the day>", Tenant, &["usage:bolt:0"]),
    Row::Member("timers", &["odd", "t:bolt:none", "l:bolt:none", "l:slow@bolt:none", "c:bolt:none", "t:", "l:a@b@c"]),
    Row::Member("delayed", &["odd", "bolt:none"]),
    Row::Field("budgets", Agent, &[("budgets", "bolt:vic")]),
    Row::Type("tenant:<tenant>", Tenant, &["tenant:bolt"]),
    Row::Shared("tools", "for whom lists are written is noted for all"),
    Row::Type("tools:<tenant>:<agent>", Agent, &["tools:bolt:vic"]),
    Row::Type("tools:=:<digest>", Agent, &["tools:=:00"]),
    Row::Shared("tools:names", "the names of all tools are noted for the whole shard"),
    Row::Field("pauses", Agent, &[("pauses", "bolt:vic")]),
    Row::Field("drains", Agent, &[("drains", "w9")]),
    Row::Type("lifted:<worker>", Agent, &["lifted:w9"]),
    Row::Type("steps:<tenant>:<task>", Agent, &["steps:bolt:waits"]),
    Row::Type("tasks:<tenant>", Tenant, &["tasks:bolt"]),
    Row::Type("children:<tenant>:<task>", Agent, &["children:bolt:job"]),
    Row::Type("under:<tenant>:<id>", Agent, &["under:bolt:job"]),
    Row::Field("cascades", Agent, &[("cascades", "bolt:job"), ("cascades", "odd")]),
    Row::Type("session:<tenant>:<session>", Agent, &["session:bolt:s"]),
    Row::Type("messages:<tenant>:<agent>", Agent, &["messages:bolt:vic"]),
    Row::Type("heard:<tenant>:<agent>:<call>", Agent, &["heard:bolt:vic:c"]),
    Row::Type("replies:<tenant>:<inbox>", Agent, &["replies:bolt:vic"]),
    Row::Type("read:<tenant>:<inbox>", Agent, &["read:bolt:vic"]),
    Row::Type("seq:<tenant>:<inbox>", Agent, &["seq:bolt:vic"]),
    Row::Type("inboxes:<tenant>", Tenant, &["inboxes:bolt"]),
    Row::Shared("audit", "the log of all"),
    Row::Shared("seals", "the log of all"),
    Row::Shared("seal_heads", "the log of all"),
    Row::Shared("seal_keys", "the log of all"),
    Row::Shared("sealing", "the log of all"),
    Row::Shared("anchors", "the log of all"),
    Row::Shared("followed", "of exporters"),
    Row::Shared("follower:<name>", "of exporters"),
    Row::Shared("sealer", "the log of all"),
    Row::Shared("handled", "of operators"),
    Row::Shared("rolled", "of operators"),
    Row::Shared("stats:<day>", "of operators"),
    Row::Shared("dead", "the dead letters of all"),
    Row::Field("beats", Agent, &[("beats", "w9")]),
    Row::Field("nodes", Agent, &[("nodes", "w9")]),
    Row::Field("suspects", Agent, &[("suspects", "turns w9"), ("suspects", "odd")]),
    Row::Shared("absent", "of tenants that there are not"),
    Row::Type("early:<tenant>", Tenant, &["early:bolt"]),
    Row::Type("early:<tenant>:<id>", Agent, &["early:bolt:next"]),
    Row::Type("ran:<tenant>:<turn>", Agent, &["ran:bolt:next", "ran:bolt:waits"]),
    Row::Type("effect:<tenant>:<tool>:<hash>", Agent, &["effect:bolt:*"]),
    Row::Type("approval:<tenant>:<approval>", Agent, &["approval:bolt:*"]),
    Row::Type("asked:<tenant>", Tenant, &["asked:bolt"]),
    Row::Member("asked", &["odd", "bolt:none"]),
    Row::Type("approvals:<tenant>", Tenant, &["approvals:bolt"]),
    Row::Type("cached:<tenant>", Tenant, &["cached:bolt"]),
    Row::Type("cached_order:<tenant>", Tenant, &["cached_order:bolt"]),
    Row::Type("row:<tenant>:<agent>", Agent, &["row:bolt:vic"]),
    Row::Type("row:<tenant>:<agent>:<task>", Agent, &["row:bolt:vic:job"]),
    Row::Type("facts:<tenant>:<session>", Agent, &["facts:bolt:agent:vic"]),
    Row::Type("entered:<tenant>:<session>", Agent, &["entered:bolt:agent:vic"]),
    Row::Shared("grant:<id>", "of one tool's token service"),
    Row::Shared("grant:<id>:renewal", "of one tool's token service"),
    Row::Type("kb:<tenant>", Tenant, &["kb:bolt"]),
    Row::Type("kbd:<tenant>", Tenant, &["kbd:bolt"]),
    Row::Type("kbs:<tenant>", Tenant, &["kbs:bolt"]),
    Row::Type("memories:<tenant>:<agent>", Agent, &["memories:bolt:vic"]),
    Row::Type("remembered:<tenant>:<agent>", Agent, &["remembered:bolt:vic"]),
    Row::Shared("cancel:<consumer>", "of one worker"),
    Row::Field("turn:<tenant>:<id>", Agent, LIVE),
    Row::Field(
        "tenant:<tenant>",
        Tenant,
        &[("tenant:bolt", "q"), ("tenant:bolt", "out"), ("tenant:bolt", "du"), ("tenant:bolt", "de")],
    ),
    Row::Field(
        "effect:<tenant>:<tool>:<hash>",
        Agent,
        &[("effect:bolt:*", "b"), ("effect:bolt:*", "r"), ("effect:bolt:*", "e")],
    ),
    Row::Field("approval:<tenant>:<approval>", Agent, &[("approval:bolt:*", "s"), ("approval:bolt:*", "e")]),
    Row::Field("facts:<tenant>:<session>", Agent, &[("facts:bolt:agent:vic", "noted")]),
    Row::Field(
        "entered:<tenant>:<session>",
        Agent,
        &[("entered:bolt:agent:vic", "odd"), ("entered:bolt:agent:vic", "first-vic/0")],
    ),
    Row::Text("done:<tenant>:<id>", &["done:bolt:next", "done:bolt:first-vic"]),
    Row::Text("id:<tenant>:<id>", &["id:bolt:next", "id:bolt:waits"]),
    Row::Text("read:<tenant>:<inbox>", &["read:bolt:vic"]),
    Row::Text("seq:<tenant>:<inbox>", &["seq:bolt:vic"]),
    Row::Text("early:<tenant>:<id>", &["early:bolt:next"]),
    Row::Text("tools:<tenant>:<agent>", &["tools:bolt:vic"]),
    Row::Missing("turn:<tenant>:<id>", MISSING),
    Row::Missing(
        "effect:<tenant>:<tool>:<hash>",
        &[("effect:bolt:*", "b"), ("effect:bolt:*", "r"), ("effect:bolt:*", "e")],
    ),
    Row::Missing("approval:<tenant>:<approval>", &[("approval:bolt:*", "s"), ("approval:bolt:*", "e")]),
    // At last: the tenant stays unreadable until it is set again.
    Row::Field("tenants", Tenant, &[("tenants", "bolt")]),
];

/// Fields of records under way: one that waits on a lane, one that people are asked about, a task that a runtime holds.
const LIVE: &[(&str, &str)] = &[
    ("turn:bolt:waits", "n"),
    ("turn:bolt:waits", "ad"),
    ("turn:bolt:waits", "dl"),
    ("turn:bolt:waits", "q"),
    ("turn:bolt:waits", "ag"),
    ("turn:bolt:waits", "m"),
    ("turn:bolt:waits", "c0"),
    ("turn:bolt:waits", "ho"),
    ("turn:bolt:waits", "pd"),
    ("turn:bolt:waits", "ln"),
    ("turn:bolt:waits", "sq"),
    ("turn:bolt:waits", "lg"),
    ("turn:bolt:asks", "dn"),
    ("turn:bolt:asks", "av"),
    ("turn:bolt:asks", "at"),
    ("turn:bolt:asks", "dl"),
    ("turn:bolt:held", "f"),
    ("turn:bolt:job", "el"),
    ("turn:bolt:job", "bm"),
    ("turn:bolt:job", "bu"),
    ("turn:bolt:job", "hb"),
];

/// Fields that such a record cannot do without.
const MISSING: &[(&str, &str)] = &[
    ("turn:bolt:waits", "n"),
    ("turn:bolt:waits", "ad"),
    ("turn:bolt:waits", "dl"),
    ("turn:bolt:waits", "q"),
    ("turn:bolt:waits", "ag"),
    ("turn:bolt:waits", "m"),
    ("turn:bolt:waits", "c0"),
    ("turn:bolt:held", "f"),
    ("turn:bolt:job", "bm"),
    ("turn:bolt:job", "m"),
];

impl Row {
    const fn kind(&self) -> &'static str {
        match self {
            Self::Type(kind, ..) | Self::Field(kind, ..) => kind,
            Self::Text(kind, _) | Self::Missing(kind, _) | Self::Member(kind, _) | Self::Shared(kind, _) => kind,
        }
    }
}

#[test]
fn each_kind_of_key_has_a_row() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/contribute/store-layout.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, keys) = page.split_once("\n## Keys\n").unwrap();
    let keys = keys.split("\n### Fields of").next().unwrap();
    let cells = keys.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let kinds = cells.flat_map(|cell| cell.split('`').step_by(2)).map(str::trim).filter(|kind| !kind.is_empty());
    let documented: BTreeSet<&str> = kinds.collect();
    let known: BTreeSet<&str> = ROWS.iter().map(Row::kind).collect();
    assert_eq!(known, documented, "add a row for a new kind of key");
    for row in ROWS {
        assert!(!matches!(row, Row::Shared(_, why) if why.is_empty()), "{}: why is it not damaged?", row.kind());
    }
}

fn limit(name: &str, tool: &str, most: u64, every: Every) -> Limit {
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
    // Turns of everybody wait on their agents' lanes, too: less goes out in a tick than they have calls.
    (policy.defaults.tick_ms, policy.defaults.calls_per_tick, policy.defaults.max_actions_per_day) =
        (100, 5, 1_000_000);
    policy.permissions.approvers = [("eve".to_owned(), ["finance".to_owned()].into())].into();
    policy.limits = Arc::new(vec![
        limit("notes", "note", 1_000, Every::Period(2_000)),
        limit("slow", "slow", 1, Every::Period(600_000)),
        limit("brief", "brief", 1, Every::Period(100)),
        limit("slots", "pay", 4, Every::Held),
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
            // It holds the slice until the record has been damaged.
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        Ok::<_, ToolError>(json!({"done": name}))
    })
}

/// It fails once, so that its turn is parked.
fn flaky() -> TypedTool {
    TypedTool::new("flaky", "Fails once.", Effect::Idempotent, |context: CallContext, _: Value| async move {
        if context.attempt < 2 { Err(ToolError::Transient("Not yet.".into())) } else { Ok(json!({"done": true})) }
    })
}

fn plan() -> Plan {
    let minute = Duration::from_secs(60);
    let bounds = RowBounds { refused_after: 100_000, refused_for: minute, forgotten_after: minute };
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
        loops: Some(worker::LoopOptions { tell_after: 100_000, bounds, except: Arc::default() }),
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

/// Until a turn has ended; answers its outcomes.
async fn ended(fleet: &Fleet, tenant: &str, id: &str) -> Result<Vec<String>, String> {
    let (name, began) = (TurnName::parse(&format!("{tenant}:{id}")).unwrap(), Instant::now());
    loop {
        if let Ok(TurnView::Finished(finished)) = fleet.store.look(&name).await {
            let reply: Value = serde_json::from_str(&finished.reply).unwrap_or_default();
            return Ok(outcomes(&reply).into_iter().map(ToString::to_string).collect());
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("{name} has no reply"));
        }
        // Redis tells nobody: the poll is bounded above.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A fleet in which `vic` of bolt has one of everything: a turn that waits for a limit, one that people are asked about, one that is
/// parked for another try, one that a worker holds, a task that a runtime holds, and what calls leave behind.
async fn busy(scripts: Option<Scripts>) -> Fleet {
    let fleet = Fleet::start(Plan { scripts, ..plan() }).await;
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
    fleet.until("it waits", async |fleet| fleet.ask::<u64>("EXISTS", "lane:slow@bolt:vic", &[]).await == 1).await;
    fleet.until("people are asked", async |fleet| fleet.ask::<u64>("EXISTS", "asked:bolt", &[]).await == 1).await;
    for id in ["first-vic", "first-ann"] {
        assert_eq!(ended(&fleet, "bolt", id).await.unwrap(), ["ok"; 6], "{id}");
    }
    fleet
}

/// The keys of a pattern, without the prefix.
async fn keys(fleet: &Fleet, pattern: &str) -> Vec<String> {
    if !pattern.contains('*') {
        return vec![pattern.to_owned()];
    }
    let prefix = fleet.store.keys().key("");
    let found: Vec<String> = fleet.ask("KEYS", pattern, &[]).await;
    found.into_iter().filter_map(|key| Some(key.strip_prefix(&prefix)?.to_owned())).collect()
}

/// One thing that is damaged.
struct Damage {
    about: String,
    hurts: Hurts,
    /// The key that whoever looks is to be told.
    named: Option<String>,
    undo: Undo,
}

/// What was there.
enum Undo {
    Key(String, Option<Vec<u8>>),
    Text(String, Option<Vec<u8>>),
    Field(String, String, Option<Vec<u8>>),
    Missing(String, String, Option<Vec<u8>>),
    Members(&'static str, &'static [&'static str]),
}

impl Damage {
    async fn of(fleet: &Fleet, key: &str, hurts: Hurts) -> Self {
        let dump: Option<Vec<u8>> = fleet.ask("DUMP", key, &[]).await;
        let undo = Undo::Key(key.to_owned(), dump);
        Self { about: key.to_owned(), hurts, named: Some(key.to_owned()), undo }
    }

    /// Damages it.
    async fn happen(&self, fleet: &Fleet) {
        match &self.undo {
            Undo::Key(key, _) => {
                let kind: String = fleet.ask("TYPE", key, &[]).await;
                let texts = ["done:", "id:", "read:", "seq:", "lifted:", "early:bolt:", "tools:bolt", "tools:=:"];
                let is_text = kind == "string" || texts.iter().any(|of| key.starts_with(of));
                let _: u64 = fleet.ask("DEL", key, &[]).await;
                if is_text {
                    let _: u64 = fleet.ask("RPUSH", key, &["odd"]).await;
                } else {
                    let () = fleet.ask("SET", key, &["odd"]).await;
                }
            }
            Undo::Text(key, _) => fleet.ask("SET", key, &["\u{fffd} odd {"]).await,
            Undo::Missing(key, field, _) => {
                let _: u64 = fleet.ask("HDEL", key, &[field]).await;
            }
            Undo::Field(key, field, _) => {
                let _: u64 = fleet.ask("HSET", key, &[field, "\u{fffd} odd {"]).await;
            }
            Undo::Members(key, members) => {
                let is_set = ["externals", "limits"].contains(key);
                for member in *members {
                    let args: &[&str] = if is_set { &[member] } else { &["1", member] };
                    let _: u64 = fleet.ask(if is_set { "SADD" } else { "ZADD" }, key, args).await;
                }
            }
        }
    }

    /// Puts back what was there, as a hand would that mends it.
    async fn undo(&self, fleet: &Fleet) {
        let mut redis = fleet.server.connection().await;
        let full = |key: &str| fleet.store.keys().key(key);
        let command = match &self.undo {
            Undo::Key(key, Some(dump)) | Undo::Text(key, Some(dump)) => {
                redis::cmd("RESTORE").arg(full(key)).arg(0).arg(dump).arg("REPLACE").to_owned()
            }
            Undo::Key(key, None) | Undo::Text(key, None) => redis::cmd("DEL").arg(full(key)).to_owned(),
            Undo::Field(key, field, Some(before)) | Undo::Missing(key, field, Some(before)) => {
                redis::cmd("HSET").arg(full(key)).arg(field).arg(before).to_owned()
            }
            Undo::Field(key, field, None) | Undo::Missing(key, field, None) => {
                redis::cmd("HDEL").arg(full(key)).arg(field).to_owned()
            }
            // They stay, for nobody's work depends on them.
            Undo::Members(..) => return,
        };
        // The record may be of another type by now, or have ended.
        drop(command.query_async::<redis::Value>(&mut redis).await);
    }
}

/// What goes wrong for others while something is damaged, and what whoever looks is not told.
async fn wrong(fleet: &Fleet, damage: &Damage, number: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    // The damaged one is used: a turn of its agent that touches most of what there is, and one under its task.
    submit(fleet, "bolt", "vic", &format!("vic-{number}"), calls("vic")).await;
    submit(fleet, "bolt", "vic", "next", calls("next")).await;
    let under = json!({"turn_id": format!("far-{number}"), "tenant": "bolt", "agent": "far", "task_id": "job", "reply_to": "far", "calls": [{"id": "c", "name": "echo", "arguments": {"text": "hi"}}]});
    fleet.submit_turn(under).await;
    for timer in ["t:bolt:waits", "t:bolt:asks", "l:slow@bolt:vic", "l:bolt:vic"] {
        let _: u64 = fleet.ask("ZADD", "timers", &["1", timer]).await;
    }
    let others: &[_] = match damage.hurts {
        Hurts::Agent => &[("bolt", "ann"), ("acme", "kelly")],
        Hurts::Tenant => &[("acme", "kelly")],
    };
    for (tenant, agent) in others {
        let id = format!("{agent}-{number}");
        submit(fleet, tenant, agent, &id, calls(&id)).await;
    }
    for (tenant, agent) in others {
        match ended(fleet, tenant, &format!("{agent}-{number}")).await {
            Ok(outcomes) if outcomes == ["ok"; 6] => {}
            Ok(outcomes) => wrong.push(format!("{}: {tenant}:{agent} got {outcomes:?}", damage.about)),
            Err(error) => {
                wrong.push(format!("{}: {error}", damage.about));
                return wrong;
            }
        }
    }
    match fleet.store.faults(None).await {
        Err(error) => wrong.push(format!("{}: whoever looks is told {error}", damage.about)),
        Ok(found) => {
            let items: Vec<&str> = found.found.iter().map(|fault| fault.item.as_str()).collect();
            let is_named = |key: &String| items.iter().any(|item| item.starts_with(key.as_str()));
            if damage.named.as_ref().is_some_and(|key| !is_named(key)) {
                wrong.push(format!("{}: whoever looks is told of {items:?}", damage.about));
            }
        }
    }
    wrong
}

/// Damages what these rows name, one thing after the other. Answers how many, and what went wrong.
async fn damaged(scripts: Option<Scripts>, rows: Vec<&Row>) -> (usize, Vec<String>) {
    let fleet = busy(scripts).await;
    let (mut found, mut number) = (Vec::new(), 0);
    for row in rows {
        for damage in damages(&fleet, row).await {
            number += 1;
            damage.happen(&fleet).await;
            found.extend(wrong(&fleet, &damage, number).await);
            damage.undo(&fleet).await;
        }
    }
    if !fleet.is_whole() {
        found.push("a scheduler or worker has ended".into());
    }
    (number, found)
}

/// What a row damages, as it is now.
async fn damages(fleet: &Fleet, row: &Row) -> Vec<Damage> {
    let mut all = Vec::new();
    let hurts = match row {
        Row::Type(_, hurts, _) | Row::Field(_, hurts, _) => *hurts,
        _ => Hurts::Agent,
    };
    match row {
        Row::Type(_, _, patterns) | Row::Text(_, patterns) => {
            for pattern in *patterns {
                for key in keys(fleet, pattern).await.into_iter().take(1) {
                    let mut damage = Damage::of(fleet, &key, hurts).await;
                    if let (Row::Text(..), Undo::Key(key, dump)) = (row, &damage.undo) {
                        let undo = Undo::Text(key.clone(), dump.clone());
                        damage = Damage { about: format!("{key} as text"), named: None, undo, ..damage };
                    }
                    all.push(damage);
                }
            }
        }
        Row::Field(_, _, fields) | Row::Missing(_, fields) => {
            for (pattern, field) in *fields {
                for key in keys(fleet, pattern).await.into_iter().take(1) {
                    let before: Option<Vec<u8>> = fleet.ask("HGET", &key, &[field]).await;
                    let (about, field) = (format!("{key} {field}"), (*field).to_owned());
                    let undo = match row {
                        Row::Missing(..) => Undo::Missing(key, field, before),
                        _ => Undo::Field(key, field, before),
                    };
                    all.push(Damage { about, hurts, named: None, undo });
                }
            }
        }
        Row::Member(key, members) => {
            let undo = Undo::Members(key, members);
            all.push(Damage { about: (*key).to_owned(), hurts, named: None, undo });
        }
        Row::Shared(..) => {}
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_damaged_costs_itself_alone() {
    // Three fleets share the rows: what takes time are windows that have to end.
    let part =
        |part| damaged(None, ROWS.iter().enumerate().filter(|(at, _)| at % 3 == part).map(|(_, row)| row).collect());
    let parts: [(usize, Vec<String>); 3] = tokio::join!(part(0), part(1), part(2)).into();
    let number: usize = parts.iter().map(|(number, _)| number).sum();
    let found: Vec<String> = parts.into_iter().flat_map(|(_, found)| found).collect();
    assert!(number > 110 && found.is_empty(), "of {number}:\n{}", found.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_that_is_not_kept_apart_is_noticed() {
    let apart = "local found = bytes > 0 and redis.pcall('ZRANGE', P .. 'lane:' .. name, 0, bound - 1) or {}";
    let sabotage = Scripts::embedded().sabotage(apart, &apart.replace("redis.pcall", "call")).unwrap();
    let rows = ROWS.iter().filter(|row| row.kind() == "lane:<tenant>:<agent>").collect();
    let (_, found) = damaged(Some(sabotage), rows).await;
    assert!(found.iter().any(|wrong| wrong.contains("has no reply")), "{found:?}");
}

//! The configuration and the calls of the run. Computes the debits of each limit without the fleet.

use serde_json::{Value, json};

pub(super) const AGENTS: usize = 2_000;

#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) number: usize,
    pub(super) tool: &'static str,
    pub(super) customer: usize,
    /// In units of 0.25.
    pub(super) amount: u64,
}

#[derive(Debug, Clone)]
pub(super) struct PlannedTurn {
    pub(super) id: String,
    pub(super) agent: usize,
    pub(super) calls: Vec<Call>,
}

impl PlannedTurn {
    pub(super) const fn user(&self) -> usize {
        self.agent % 150
    }

    const fn session(&self) -> usize {
        self.agent % 90
    }

    pub(super) fn message(&self) -> Value {
        let arguments = |call: &Call| {
            let amount = call.amount as f64 / 4.0;
            json!({"number": call.number, "to": format!("c{}", call.customer), "amount": amount})
        };
        let calls: Vec<Value> = self
            .calls
            .iter()
            .map(|call| json!({"id": format!("n{}", call.number), "name": call.tool, "arguments": arguments(call)}))
            .collect();
        json!({
            "turn_id": self.id, "tenant": "demo", "agent": format!("a{}", self.agent), "calls": calls, "reply_to": "box",
            "user_context": {"user_id": format!("u{}", self.user())},
            "session_data": {"session_id": format!("s{}", self.session())},
        })
    }
}

pub(super) fn turns() -> Vec<PlannedTurn> {
    let mut number = 0;
    let mut call = |agent: usize| {
        number += 1;
        let tool = ["send", "pay", "look"][(agent + number) % 3];
        Call { number, tool, customer: number % 61, amount: 1 + (number as u64) % 4 }
    };
    (0..AGENTS)
        .map(|agent| PlannedTurn {
            id: format!("t{agent}"),
            agent,
            calls: (0..1 + agent % 3 / 2 + agent % 2).map(|_| call(agent)).collect(),
        })
        .collect()
}

pub(super) struct Limit {
    pub(super) name: &'static str,
    text: &'static str,
    /// In ms. `None` for a limit on concurrency.
    pub(super) window_ms: Option<i64>,
    /// In calls, permits or units of 0.25.
    pub(super) max: u64,
    pub(super) debits: fn(&PlannedTurn, &Call) -> Option<(String, u64)>,
}

fn one(counter: impl ToString) -> Option<(String, u64)> {
    Some((counter.to_string(), 1))
}

fn of(tool: &str, call: &Call, debit: Option<(String, u64)>) -> Option<(String, u64)> {
    debit.filter(|_| call.tool == tool)
}

macro_rules! limits {
    ($($name:ident: $text:literal, $window:expr, $max:expr, $debits:expr;)*) => {
        &[$(Limit { name: stringify!($name), text: $text, window_ms: $window, max: $max, debits: $debits }),*]
    };
}

const DAY: Option<i64> = Some(86_400_000);

pub(super) const LIMITS: &[Limit] = limits! {
    agent: "{per: [agent], max: 2, every: 1s}", Some(1_000), 2, |turn, _| one(turn.agent);
    user: "{per: [user], max: 5, every: 2s}", Some(2_000), 5, |turn, _| one(turn.user());
    session: "{per: [session], max: 8, every: 2s}", Some(2_000), 8, |turn, _| one(turn.session());
    tenant: "{per: [tenant], max: 220, every: 1s}", Some(1_000), 220, |_, _| one("");
    tool: "{per: [tool], max: 90, every: 1s}", Some(1_000), 90, |_, call| one(call.tool);
    category: "{per: [category], max: 160, every: 1s}", Some(1_000), 160, |_, call| one(call.tool == "look");
    fleet: "{max: 400, every: 2s}", Some(2_000), 400, |_, _| one("");
    tick: "{per: [tenant], max: 120, every: tick}", Some(500), 120, |_, _| one("");
    minute: "{per: [user], max: 90, every: 1m}", Some(60_000), 90, |turn, _| one(turn.user());
    day: "{per: [agent], max: 3, every: day}", DAY, 3, |turn, _| one(turn.agent);
    customer: "{per: [\"argument:/to\"], max: 6, every: 1s}", Some(1_000), 6, |_, call| one(call.customer);
    paid_by_customer: "{match: {tools: [pay]}, per: [\"argument:/to\"], sum: {argument: /amount, max: 1.5}, every: 1s}",
        Some(1_000), 6, |_, call| of("pay", call, Some((call.customer.to_string(), call.amount)));
    paid: "{match: {tools: [pay]}, per: [tenant], sum: {argument: /amount, max: 30}, every: 1s}",
        Some(1_000), 120, |_, call| of("pay", call, Some((String::new(), call.amount)));
    writes: "{match: {effects: [idempotent]}, per: [tenant, tool], max: 70, every: 1s}", Some(1_000), 70,
        |_, call| one(call.tool).filter(|_| call.tool != "look");
    some_agents: "{match: {agents: [a1*]}, per: [tenant], max: 150, every: 1s}", Some(1_000), 150,
        |turn, _| one("").filter(|_| turn.agent.to_string().starts_with('1'));
    shadowed: "{per: [tenant], max: 1, every: 1s, mode: shadow}", Some(1_000), u64::MAX, |_, _| one("");
    at_once: "{per: [tenant], concurrent: 40}", None, 40, |_, _| one("");
    sends_at_once: "{match: {tools: [send]}, per: [tool], concurrent: 7}", None, 7, |_, call| of("send", call, one(""));
    customer_at_once: "{per: [\"argument:/to\"], concurrent: 1}", None, 1, |_, call| one(call.customer);
    user_at_once: "{per: [user], concurrent: 2}", None, 2, |turn, _| one(turn.user());
};

pub(super) fn files(address: &str) -> Vec<(&'static str, String)> {
    let settings = "caps: {tick: 500ms, max_calls_per_tick: 1000, max_actions_per_day: 100000}\n";
    let agents: String = (0..AGENTS).map(|agent| format!("  a{agent}: {{}}\n")).collect();
    let limits: String = LIMITS.iter().map(|limit| format!("  {}: {}\n", limit.name, limit.text)).collect();
    let tool = |(name, effect, category): (&str, &str, &str)| {
        format!(
            "  {name}:\n    id: tool_{name}\n    description: Does it.\n    effect: {effect}\n    category: {category}\n    \
             input_schema:\n      type: object\n      properties: {{number: {{type: integer}}, to: {{type: string}}, \
             amount: {{type: number}}}}\n    http: {{method: POST, base_url: 'http://{address}', path: /{name}, body: \
             {{number: '{{{{number}}}}'}}, allow_private: [127.0.0.1]}}\n"
        )
    };
    let tools = [("send", "idempotent", "doing"), ("pay", "idempotent", "doing"), ("look", "read", "looking")];
    let tools: String = tools.into_iter().map(tool).collect();
    let everyone = ["send", "pay", "look"].map(|tool| format!("  {tool}: {{everyone: true}}\n")).concat();
    vec![
        ("tickfleet.yaml", settings.to_owned()),
        ("agents.yaml", format!("agents:\n{agents}")),
        ("tenants.yaml", "tenants: {demo: {plan: pro}}\n".to_owned()),
        ("limits.yaml", format!("limits:\n{limits}")),
        ("tools.yaml", format!("tools:\n{tools}")),
        ("permissions.yaml", format!("permissions:\n{everyone}")),
    ]
}

//! The third act: an agent pays, controlled by facts, rules, approvals, idempotency and the loop breaker. At the end,
//! the act shows what the audit log proves, and what another policy would have decided.

mod bank;
mod records;
mod story;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tickfleet_client::{ApprovalVerdict, Client, Replies, Reply, private_inbox};
use tickfleet_config::Environment;
use tickfleet_model::{CallResult, InboxName, Outcome, Redactor, TenantId, Turn};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_proof::seal::secret_text;
use tickfleet_protocol::parse_turn;

use super::day::{TENANT, tenant};
use super::watched::DemoConsole;
use super::words::{counted, whole_sentences};
use crate::failure::Failure;
use crate::fleet::extensions::Extensions;
use crate::fleet::{self, ProbeAddress, Roles};
use crate::global::Global;
use crate::output::results::outcome_color;
use crate::output::{Output, StatusColor};
use crate::setup::{self, Setup};
use bank::Bank;
use records::{Commands, Records};
use story::{APPROVER, PAID, STEPS, Step};

/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum characters of a remark about a call.
const TOLD_CHARS: usize = 96;

const FILES: [(&str, &str); 5] = [
    ("tickfleet.yaml", include_str!("conf/tickfleet.yaml")),
    ("agents.yaml", include_str!("conf/agents.yaml")),
    ("tenants.yaml", include_str!("conf/tenants.yaml")),
    ("tools.yaml", include_str!("conf/tools.yaml")),
    ("permissions.yaml", include_str!("conf/permissions.yaml")),
];

#[derive(Debug, Serialize)]
pub(super) struct Desk {
    pub(super) turns: Vec<DeskTurn>,
    /// The recipients and amounts of payments in the bank's ledger.
    paid: Vec<(String, u64)>,
    /// Number of price requests that reached the bank. Cached results reduce this number.
    quotes_asked: usize,
    records: Records,
}

#[derive(Debug, Serialize)]
pub(super) struct DeskTurn {
    agent: &'static str,
    story: &'static str,
    outcomes: Vec<Outcome>,
    /// Remarks about the calls of the turn.
    told: Vec<String>,
}

impl Desk {
    pub(super) fn broken(&self) -> Vec<String> {
        let mut broken = self.records.broken();
        for (turn, step) in self.turns.iter().zip(&STEPS) {
            let outcomes: Vec<&str> = turn.outcomes.iter().map(|outcome| outcome.as_str()).collect();
            if outcomes != step.expected {
                broken.push(format!("{} {}: {}", step.agent, step.story, outcomes.join(", ")));
            }
        }
        let paid: Vec<(&str, u64)> = self.paid.iter().map(|(to, amount)| (to.as_str(), *amount)).collect();
        if paid != PAID {
            broken.push(format!("the bank has paid {paid:?}, and not {PAID:?}"));
        }
        if self.quotes_asked != 1 {
            broken.push(format!("a price whose answer is kept was asked for {} times", self.quotes_asked));
        }
        broken
    }
}

/// Plays the act on a fleet with its own configuration, which is written to the folder `dir`.
///
/// # Errors
/// The fleet cannot be started, or a reply does not arrive.
pub(super) async fn play(url: &str, dir: &Path, watched: &mut DemoConsole, output: &Output) -> Result<Desk, Failure> {
    let bank = Bank::start().await?;
    let setup = configured(url, dir, &bank)?;
    watched.go_on(&setup, output).await;
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let probes = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let fleet = fleet::start(&setup, Roles::BOTH, ProbeAddress::On(probes), shutdown.clone()).await?;
    if !output.json {
        output.print(&opening(output))?;
    }
    let mut running = std::pin::pin!(fleet.wait());
    let played = tokio::select! {
        played = story(&setup, dir, &bank, output) => played,
        ended = &mut running => {
            ended?;
            return Err(Failure::failed(anyhow!("stopped before the desk had closed")));
        }
    };
    shutdown.drain();
    running.await?;
    played
}

fn configured(url: &str, dir: &Path, bank: &Bank) -> Result<Setup, Failure> {
    let mut chance = [0; 32];
    let given = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut chance));
    given.context("/dev/urandom").map_err(Failure::failed)?;
    let pairs = [
        ("REDIS_URL", url.to_owned()),
        ("DESK_URL", bank.base_url.clone()),
        ("DESK_SEAL_KEY", secret_text(&chance)),
        ("TICKFLEET_WORKER_LEASE", "3s".to_owned()),
    ];
    let environment: Environment = pairs.map(|(name, value)| (name.to_owned(), value)).into();
    write_all(dir).with_context(|| format!("{} cannot be written", dir.display()))?;
    let global =
        Global { config: Some(dir.to_owned()), redis_url: None, json: false, extensions: Extensions::default() };
    Setup::of(&setup::sources_in(environment, &global)?, &global.extensions, None)
}

fn write_all(dir: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    FILES.iter().try_for_each(|(name, text)| std::fs::write(dir.join(name), text))
}

/// Plays the turns one after the other. Then reads the records.
async fn story(setup: &Setup, dir: &Path, bank: &Bank, output: &Output) -> Result<Desk, Failure> {
    let client = setup.client().await?;
    let inbox = private_inbox("desk");
    let mut replies = client.replies(&tenant()?, &inbox);
    let mut turns = Vec::with_capacity(STEPS.len());
    for (number, step) in STEPS.iter().enumerate() {
        let reply = replied(&client, &mut replies, turn(number, step, &inbox)?, step).await?;
        let outcomes = reply.results.iter().map(|result| result.outcome).collect();
        let told = reply.results.iter().filter_map(told).collect();
        let turn = DeskTurn { agent: step.agent, story: step.story, outcomes, told };
        if !output.json {
            output.print(&shown(&turn, output))?;
        }
        turns.push(turn);
    }
    replies.forget().await?;
    let commands = Commands { environment: &setup.sources().environment, conf: dir };
    let desk =
        Desk { turns, paid: bank.paid(), quotes_asked: bank.quotes_asked(), records: Records::read(&commands).await? };
    if !output.json {
        output.print(&account(&desk))?;
    }
    Ok(desk)
}

fn turn(number: usize, step: &Step, inbox: &InboxName) -> anyhow::Result<Turn> {
    let call = |(tool, arguments): &(&str, &str)| {
        let arguments: &RawValue = serde_json::from_str(arguments)?;
        anyhow::Ok(json!({"name": tool, "arguments": arguments}))
    };
    let calls = step.calls.iter().map(call).collect::<anyhow::Result<Vec<_>>>()?;
    let message = json!({
        "tenant": TENANT, "agent": step.agent, "turn_id": format!("desk-{}", number + 1), "reply_to": inbox.as_str(),
        "session_id": "desk",
        "calls": calls, "pending_approval": step.agrees_to.is_some(),
    });
    parse_turn(message.to_string().as_bytes()).map_err(|refusal| anyhow!(refusal.message))
}

/// Submits a turn and waits for its end. If the turn waits for an approval, `ann` approves a smaller amount.
async fn replied(client: &Client, replies: &mut Replies, turn: Turn, step: &Step) -> Result<Reply, Failure> {
    client.submit(turn).await?;
    loop {
        let Some(reply) = replies.next(PATIENCE).await? else {
            let waited = PATIENCE.as_secs();
            return Err(Failure::failed(anyhow!("{} {}: no reply within {waited} s", step.agent, step.story)));
        };
        match (&reply.approval, step.agrees_to) {
            (Some(asked), Some(amount)) => agree(client, &tenant()?, &asked.id, amount).await?,
            _ => return Ok(reply),
        }
    }
}

async fn agree(client: &Client, tenant: &TenantId, id: &str, amount: u64) -> Result<(), Failure> {
    let value = RawValue::from_string(amount.to_string()).map_err(Failure::failed)?;
    let roles = BTreeSet::from(["finance".to_owned()]);
    let redactor = Redactor::default();
    let narrow = BTreeMap::from([("/amount".to_owned(), value)]);
    let reason = "the rest next month";
    let verdict =
        ApprovalVerdict { by: APPROVER, roles: &roles, agrees: true, reason, narrow, seen: None, redactor: &redactor };
    client.decide_approval(tenant, id, &verdict).await.map_err(Failure::failed)?;
    Ok(())
}

/// A remark about a call: why it did not run, or where its result came from.
fn told(result: &CallResult) -> Option<String> {
    let what = if let Some(error) = &result.error {
        error.message.clone()
    } else if let Some(other) = &result.repeats {
        format!("the same payment as {other}, with its outcome: no second payment")
    } else if let Some(cached) = &result.cached {
        format!("the cached answer of {}: the tool is not called again", cached.call)
    } else if let Some(approved) = &result.approval {
        let with = approved.arguments.as_ref().map_or_else(String::new, |with| format!(", with {with}"));
        format!("{} agreed{with}", approved.by.join(" and "))
    } else if result.reconciled {
        "the outcome was unknown; find_payment found the payment".to_owned()
    } else {
        return None;
    };
    Some(format!("{}: {}", result.tool, whole_sentences(&what, TOLD_CHARS)))
}

fn opening(output: &Output) -> String {
    let title = "Third act: an agent pays, under facts, rules and a person";
    format!(
        "\n{}\n\n\
         Another configuration, and a bank on a port of this machine, with a ledger of its own. Turns, one after the other:\n",
        output.paint(StatusColor::Strong, title)
    )
}

fn shown(turn: &DeskTurn, output: &Output) -> String {
    let outcomes = turn.outcomes.iter().map(|outcome| (outcome.as_str().to_owned(), outcome_color(*outcome)));
    let mut text =
        format!("  {} {}: {}\n", output.paint(StatusColor::Strong, turn.agent), turn.story, counted(outcomes, output));
    for told in &turn.told {
        text.push_str(&format!("       {told}\n"));
    }
    text
}

fn account(desk: &Desk) -> String {
    let paid: Vec<String> = desk.paid.iter().map(|(to, amount)| format!("{amount} to {to}")).collect();
    let Records { entries, sealed, shadowed, by_the_same, by_a_stricter, by, intact, holds } = &desk.records;
    let proves = if *intact && *holds {
        "nothing was\nchanged, no cap was exceeded, no call has two results, no effect ran twice."
    } else {
        "NOT\nwhat it should."
    };
    let times = if desk.quotes_asked == 1 { "once".to_owned() } else { format!("{} times", desk.quotes_asked) };
    format!(
        "\nThe bank's ledger: {}. The price was requested {times}.\nA rule in shadow mode (at most 100) stopped \
         nothing; it would have stopped {shadowed} calls.\ntickfleet prove, from an export of {entries} audit \
         entries, {sealed} of them sealed: {proves}\ntickfleet whatif, with 250 instead of 500 without approval: \
         {by_a_stricter} decisions change, by {}.\nWith the same policy: {by_the_same}.\n",
        paid.join(", "),
        by.join(", "),
    )
}

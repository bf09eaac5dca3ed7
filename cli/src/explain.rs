//! `tickfleet explain`: the whole story of a turn, call or task. Here it is gathered; [`words`] tells it.

mod record;
mod words;

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use shared::client::{Client, Reply};
use shared::force::short_digest;
use shared::model::{CallResult, TenantId, TurnId};
use shared::store::{DeadLetter, Inbound, Pool, Remembered, Store, TurnName, TurnView};

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;
pub(crate) use record::Admission;

/// Dead letters that are searched for an entry.
const DEAD_SEARCHED: usize = 500;
/// Time around a turn in which its audit entries are looked for: Redis' own clock numbers them, ms.
const AUDIT_SLACK_MS: i64 = 1_000;

/// Tell the whole story of a turn, call or task.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet explain demo:t1700000000000-0
  tickfleet explain demo:t1700000000000-0/2          one call of it
  tickfleet explain t1700000000000-0 --tenant demo
  tickfleet explain t1700000000000-0                 looks for it at every tenant

It tells when calls were admitted and which counters decided, where the rest waits and when it is
eligible, retries, crashes, how each call ended, and the audit entries. Finished turns are known for
retention.records.")]
pub(crate) struct Explain {
    /// tenant:turn, tenant:turn/position, or the id alone; a task's id works the same.
    #[arg(value_name = "ID")]
    id: String,
    /// Whose, where the id does not say it.
    #[arg(long)]
    tenant: Option<TenantId>,
}

/// Where a turn or task is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// No scheduler has decided about it.
    Inbound,
    /// It was refused.
    Rejected,
    /// On its agent's lane.
    Lane,
    /// On a ready stream, or an external runtime's.
    Ready,
    /// A worker or runtime holds it.
    Running,
    /// A call failed and is tried again later.
    Retry,
    /// Its calls are being ended without having run.
    Ending,
    /// It has ended.
    Done,
    /// It has ended, and only its id is still known.
    Forgotten,
}

/// Everything known of a turn or task.
#[derive(Debug, Serialize)]
struct Story {
    tenant: TenantId,
    id: TurnId,
    state: State,
    is_task: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    now_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_ms: Option<i64>,
    calls: usize,
    calls_admitted: usize,
    calls_done: usize,
    /// Each admission, with the counters that decided.
    admissions: Vec<Admission>,
    /// What the wait is about, where it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<record::Wait>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    retries: u64,
    crashes: u64,
    /// Why the rest was ended without having run.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_because: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_asked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    results: Vec<CallResult>,
    /// The policy that decides now; none before a scheduler has announced one.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyInForce>,
    /// Audit entries; none where the log is too long to be searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<Vec<Box<RawValue>>>,
}

/// What names a policy.
#[derive(Debug, Serialize)]
struct PolicyInForce {
    generation: u64,
    digest: String,
}

/// What is asked about.
struct Asked {
    /// None looks at all of them.
    tenant: Option<TenantId>,
    turn: TurnId,
    position: Option<usize>,
}

/// Looks and tells.
///
/// # Errors
/// Nothing of that name is known.
pub(crate) async fn run(setup: &Setup, args: &Explain, output: &Output) -> Result<(), Failure> {
    let asked = asked(args)?;
    let client = setup.client().await?;
    let pool = setup.pool()?;
    let mut found = None;
    for tenant in tenants(&asked, setup, &client).await? {
        let name = TurnName { tenant, turn: asked.turn.clone() };
        if let Some(story) = story(setup, &client, &pool, &name).await? {
            found = Some((name, story));
            break;
        }
    }
    let Some((name, mut story)) = found else {
        return Err(Failure::failed(anyhow::anyhow!(
            "{} is not known{}: never submitted, or it ended longer ago than retention.records",
            asked.turn,
            asked.tenant.map_or_else(|| " for any tenant".into(), |tenant| format!(" for tenant {tenant}"))
        )));
    };
    story.position = asked.position;
    if let Some(position) = asked.position.filter(|position| *position >= story.calls && story.calls > 0) {
        return Err(Failure::usage(format!(
            "{name} has {} calls, from /0 on; /{position} is none of them",
            story.calls
        )));
    }
    story.policy = policy_in_force(client.store(&name.tenant)).await?;
    story.audit = audit(&client, &pool, &name, &story).await?;
    output.show(&story, |story| words::tell(story, output))
}

async fn policy_in_force(store: &Store) -> Result<Option<PolicyInForce>, Failure> {
    let Some(digest) = store.policy_in_force().await? else { return Ok(None) };
    let generation = store.generation_of(&digest).await?;
    Ok(generation.map(|generation| PolicyInForce { generation, digest: short_digest(&digest).to_owned() }))
}

/// Whom and what the arguments name.
fn asked(args: &Explain) -> Result<Asked, Failure> {
    let (tenant, rest) = match args.id.split_once(':') {
        Some((tenant, rest)) => (Some(TenantId::new(tenant)?), rest),
        None => (args.tenant.clone(), args.id.as_str()),
    };
    let (turn, position) = match rest.split_once('/') {
        Some((turn, position)) => {
            let position =
                position.parse().map_err(|_| Failure::usage("after / the number of a call is expected, from 0"))?;
            (turn, Some(position))
        }
        None => (rest, None),
    };
    Ok(Asked { tenant, turn: TurnId::new(turn)?, position })
}

/// Whose it may be.
async fn tenants(asked: &Asked, setup: &Setup, client: &Client) -> Result<BTreeSet<TenantId>, Failure> {
    if let Some(tenant) = &asked.tenant {
        return Ok([tenant.clone()].into());
    }
    let mut tenants: BTreeSet<TenantId> = setup.configuration.policy.tenants.keys().cloned().collect();
    for store in client.stores() {
        tenants.extend(store.at_run_time().await?.declared.into_keys());
    }
    Ok(tenants)
}

/// What is known under this name; none where nothing is.
async fn story(setup: &Setup, client: &Client, pool: &Pool, name: &TurnName) -> Result<Option<Story>, Failure> {
    let store = client.store(&name.tenant);
    let now_ms = store.now_ms().await?;
    match store.look(name).await? {
        TurnView::Live(live) => {
            let agent = live.fields.get("ag").cloned().unwrap_or_default();
            let budget = pool.budget(store.keys(), &agent, name).await?;
            let force = setup.force();
            force.refresh(store).await?;
            let caps = record::caps(&force.load().policy, &name.tenant, &agent);
            Ok(Some(record::live(name, &live, budget, caps, now_ms)))
        }
        TurnView::Finished(finished) => {
            let reply: Option<Reply> = serde_json::from_str(&finished.reply).ok();
            Ok(Some(record::finished(name, &finished.trace, reply, now_ms)))
        }
        TurnView::Unknown => not_admitted(client, pool, name, now_ms).await,
    }
}

/// A turn without a record: it waits for a scheduler, was refused, or has ended too long ago. An id that was minted
/// tells its entry, one that was given is remembered.
async fn not_admitted(client: &Client, pool: &Pool, name: &TurnName, now_ms: i64) -> Result<Option<Story>, Failure> {
    let keys = client.store(&name.tenant).keys();
    let minted = [(Inbound::Turns, 't'), (Inbound::Tasks, 'k')]
        .into_iter()
        .find_map(|(from, prefix)| Some((from, name.turn.as_str().strip_prefix(prefix)?)));
    if let Some((from, entry)) = minted
        && pool.is_inbound(keys, from, entry).await?
    {
        return Ok(Some(record::unadmitted(name, State::Inbound, None, now_ms)));
    }
    let remembered = pool.remembered(keys, name).await?;
    if remembered == Some(Remembered::Queued) {
        return Ok(Some(record::unadmitted(name, State::Inbound, None, now_ms)));
    }
    let is_it = |letter: &&DeadLetter| {
        let by_id = ["turn_id", "task_id"].iter().any(|field| says(&letter.raw, field, name.turn.as_str()));
        // A message that asked for no reply was buried without its tenant.
        let tenant = name.tenant.as_str();
        let of_tenant = letter.tenant == tenant || letter.tenant.is_empty() && says(&letter.raw, "tenant", tenant);
        of_tenant && (by_id || minted.is_some_and(|(_, entry)| letter.entry == entry))
    };
    if let Some(letter) = pool.dead_letters(keys, DEAD_SEARCHED).await?.iter().find(is_it) {
        let story = record::unadmitted(name, State::Rejected, Some(letter.reason.clone()), now_ms);
        return Ok(Some(Story { ended_ms: Some(letter.at_ms), ..story }));
    }
    Ok(remembered.map(|_| record::unadmitted(name, State::Forgotten, None, now_ms)))
}

/// Whether a message, of which only the beginning may be left, has a member with this id. Ids need no escaping.
fn says(raw: &str, member: &str, id: &str) -> bool {
    ["", " "].iter().any(|blank| raw.contains(&format!("\"{member}\":{blank}\"{id}\"")))
}

/// The audit entries of the turn, or of the one call.
async fn audit(
    client: &Client,
    pool: &Pool,
    name: &TurnName,
    story: &Story,
) -> Result<Option<Vec<Box<RawValue>>>, Failure> {
    let Some(accepted) = story.accepted_ms else { return Ok(Some(Vec::new())) };
    let until = story.ended_ms.unwrap_or(story.now_ms) + AUDIT_SLACK_MS;
    let keys = client.store(&name.tenant).keys();
    let found = pool.audit_of(keys, name, accepted - AUDIT_SLACK_MS, until).await?;
    let call = story.position.map(|position| format!("\"call\":\"{}/{position}\"", name.turn));
    let wanted = |entry: &String| call.as_ref().is_none_or(|call| entry.contains(call));
    let raw = |entries: Vec<String>| {
        entries.into_iter().filter(wanted).filter_map(|entry| RawValue::from_string(entry).ok()).collect()
    };
    Ok(found.map(raw))
}

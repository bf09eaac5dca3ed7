//! `tickfleet explain`: the whole story of a turn, call or task. Here it is gathered; [`story`] tells it.

mod attendance;
mod audit;
mod record;
mod story;

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_client::Client;
use tickfleet_client::inner::{InnerCall, inner_calls};
use tickfleet_client::tasks::TaskStory;
use tickfleet_core::turn::state::EndReason;
use tickfleet_engine::active_policy::short_digest;
use tickfleet_model::{CallResult, TenantId, TurnId};
use tickfleet_store::{AdmissionNote, FailedTry, Remembered, RestNote, Store, TurnName, TurnView};

use self::attendance::Attendance;
use self::audit::Audit;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::letters;
use crate::output::time_format::Past;
use crate::setup::Setup;

/// Explain a turn, call or task: decisions, waits, attempts and outcome.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet explain demo:t1700000000000-0
  tickfleet explain demo:t1700000000000-0/2          one call
  tickfleet explain t1700000000000-0 --tenant demo
  tickfleet explain t1700000000000-0                 search all tenants
  tickfleet explain demo:order-17 --since 2026-11-22T10:00:00Z --until 2026-11-22T11:00:00Z

The output covers admission with its counters, waits with their causes and ends, failed attempts, crashes,
outcomes, calls of other tools and audit entries. Records of finished turns are kept for retention.records, audit entries for
retention.audit. Without a record, the command searches the audit log: an id made by the fleet contains the
time to search, an id of your own needs --since.")]
pub(crate) struct Explain {
    /// tenant:turn, tenant:turn/position, or the id alone. The id of a task works too.
    #[arg(value_name = "ID")]
    id: String,
    /// Tenant, if the id does not name it.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Search the audit log since this time: RFC 3339, or 2h (ago).
    #[arg(long, value_name = "WHEN", value_parser = Past::parse)]
    since: Option<Past>,
    /// Search the audit log until this time. Default: the end of the turn, or a day after --since.
    #[arg(long, value_name = "WHEN", value_parser = Past::parse)]
    until: Option<Past>,
}

/// The stage of a turn or task in its life.
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
    admissions: Vec<AdmissionNote>,
    /// Each try that failed and was made again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tries: Vec<FailedTry>,
    /// Each row of times that a call was not sent, for its tool rested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rests: Vec<RestNote>,
    /// Of a task: the agent that gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    delegator: Option<String>,
    /// Of a task: what is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The processes that could take it, if nobody has.
    #[serde(skip_serializing_if = "Option::is_none")]
    attendance: Option<Attendance>,
    /// The reason of the wait, if it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<record::Wait>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    /// The call that its holder carries out.
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<record::Running>,
    retries: u64,
    crashes: u64,
    /// Why the rest was ended without having run.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "story::as_word")]
    ended_because: Option<EndReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_asked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    results: Vec<CallResult>,
    /// The calls that its calls made of other tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inner_calls: Vec<InnerCall>,
    /// Of a task that a model carries out: its steps, what it waits for, the tasks below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskStory>,
    /// The policy that decides now; none before a scheduler has announced one.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyInForce>,
    /// Audit entries, and whether these are all.
    audit: Audit,
}

/// The name of a policy.
#[derive(Debug, Serialize)]
struct PolicyInForce {
    generation: u64,
    digest: String,
}

/// The turn or task that is asked about.
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
    // What is asked wrongly is told without Redis.
    let asked = asked(args)?;
    let story = gather(setup, &setup.client().await?, &asked, args).await?;
    output.show(&story, |story| story::tell(story, output))
}

/// A story as data, and line by line in words.
#[derive(Debug, Serialize)]
pub(crate) struct ToldStory {
    story: Box<RawValue>,
    pub(crate) lines: Vec<String>,
}

/// The same for whoever asks from elsewhere.
///
/// # Errors
/// Nothing of that name is known.
pub(crate) async fn told(
    setup: &Setup,
    client: &Client,
    tenant: Option<&TenantId>,
    id: &str,
) -> Result<ToldStory, Failure> {
    // Whose it is stands before the first colon: were it left out, one within `id` would name somebody else's.
    let id = tenant.map_or_else(|| id.to_owned(), |tenant| format!("{tenant}:{id}"));
    let args = Explain { id, tenant: None, since: None, until: None };
    let story = gather(setup, client, &asked(&args)?, &args).await?;
    let lines = story::told(&story);
    Ok(ToldStory { story: to_raw_value(&story).map_err(Failure::failed)?, lines })
}

/// Everything known of what is asked about.
async fn gather(setup: &Setup, client: &Client, asked: &Asked, args: &Explain) -> Result<Story, Failure> {
    let mut found = None;
    for tenant in tenants(asked, setup, client).await? {
        let name = TurnName { tenant, turn: asked.turn.clone() };
        if let Some(story) = story(setup, client, &name).await? {
            found = Some((name, story));
            break;
        }
    }
    if found.is_none() {
        found = remembered_by_audit(client, asked, args).await?;
    }
    let Some((name, mut story)) = found else { return Err(unknown(asked, args)) };
    story.position = asked.position;
    if let Some(position) = asked.position.filter(|position| *position >= story.calls && story.calls > 0) {
        return Err(Failure::usage(format!(
            "{name} has {} calls, starting at /0; there is no /{position}",
            story.calls
        )));
    }
    story.policy = policy_in_force(client.store(&name.tenant)).await?;
    if story.audit.read == 0 {
        story.audit = audit::of_story(client.store(&name.tenant), &name, &story, args).await?;
    }
    record::describe_by_audit(&mut story);
    if let Some(agent) = &story.agent {
        let positions = asked.position.map_or(0..story.calls, |position| position..position + 1);
        story.inner_calls = inner_calls(client.store(&name.tenant), &name, agent, positions).await?;
    }
    if story.is_task {
        let told = client.task(&name).await?;
        story.task = told.filter(|task| !task.rounds.is_empty() || !task.children.is_empty() || task.waits.is_some());
    }
    Ok(story)
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
                position.parse().map_err(|_| Failure::usage("expected the number of a call after /, starting at 0"))?;
            (turn, Some(position))
        }
        None => (rest, None),
    };
    Ok(Asked { tenant, turn: TurnId::new(turn)?, position })
}

/// Whose it may be.
async fn tenants(asked: &Asked, setup: &Setup, client: &Client) -> Result<BTreeSet<TenantId>, Failure> {
    match &asked.tenant {
        Some(tenant) => Ok([tenant.clone()].into()),
        None => super::operate::known::tenants(setup, client).await,
    }
}

/// Returns what is known under this name; none if nothing is.
async fn story(setup: &Setup, client: &Client, name: &TurnName) -> Result<Option<Story>, Failure> {
    let store = client.store(&name.tenant);
    let now_ms = store.now_ms().await?;
    match store.look(name).await? {
        TurnView::Live(live) => {
            let agent = live.turn.head.agent.to_string();
            let counter = record::counter(&live);
            let budget = store.budget(&agent, name, counter).await?;
            let active = setup.active();
            active.refresh(store).await?;
            let active = active.load();
            let caps = record::caps(&active.policy, &name.tenant, &agent);
            let mut story = record::live(name, &live, budget, caps, now_ms);
            if let (Some(wait), Some(counter)) =
                (&mut story.waits, counter.filter(|counter| record::is_configured(counter)))
            {
                wait.limit = record::limit(&active.policy, &name.tenant, counter, &budget, now_ms);
                // The timer of its throttle queue may be due before there is room.
                wait.until_ms = budget.counter.map(|counter| counter.ends_ms).filter(|ends_ms| *ends_ms > now_ms);
            }
            if let (State::Retry, Some(id)) = (story.state, &live.turn.approval) {
                let asked = client.approval(&name.tenant, id).await?;
                let open = asked.filter(|asked| asked.state == "waiting" || asked.state == "approved");
                // A gateway shows it to keys that only look.
                let open = open.map(|open| open.for_onlookers(&setup.report().redactor));
                story.waits = story.waits.map(|wait| wait.or_for_approval(open));
            }
            if let Some(wait) = &mut story.waits {
                record::complete(wait, name, &agent, &active.policy);
            }
            story.running = record::running(&live, |tool| timeout_ms(setup, tool));
            if let (State::Ready, Some(queue)) = (story.state, &story.queue) {
                story.attendance = Some(Attendance::of_queue(store, queue, now_ms).await?);
            }
            Ok(Some(story))
        }
        TurnView::Finished(finished) => Ok(Some(record::finished(name, *finished, now_ms))),
        TurnView::Unknown => not_admitted(client.store(&name.tenant), name, now_ms).await,
    }
}

/// Limit of one try of a tool, as this configuration says, ms. A typed tool may have another of its own.
fn timeout_ms(setup: &Setup, tool: &str) -> u64 {
    let declared = setup.configuration.tools.tools.get(tool).and_then(|def| def.timeout_ms);
    let default = setup.settings().worker.tool_timeout.as_millis();
    declared.unwrap_or_else(|| u64::try_from(default).unwrap_or(u64::MAX))
}

/// A turn without a record: it waits for a scheduler, was refused, or has ended too long ago. An id that was minted
/// tells its entry, one that was given is remembered.
async fn not_admitted(store: &Store, name: &TurnName, now_ms: i64) -> Result<Option<Story>, Failure> {
    if let Some((from, entry)) = letters::minted(name)
        && store.is_inbound(from, entry).await?
    {
        return inbound(store, name, now_ms).await.map(Some);
    }
    let remembered = store.remembered(name).await?;
    if remembered == Some(Remembered::Queued) {
        return inbound(store, name, now_ms).await.map(Some);
    }
    if let Some(letter) = letters::about(store, name).await? {
        let story = record::unadmitted(name, State::Rejected, Some(letter.reason), now_ms);
        return Ok(Some(Story { ended_ms: Some(letter.at_ms), ..story }));
    }
    Ok(remembered.map(|_| record::unadmitted(name, State::Forgotten, None, now_ms)))
}

/// A message that no scheduler has decided about, and who could.
async fn inbound(store: &Store, name: &TurnName, now_ms: i64) -> Result<Story, Failure> {
    let attendance = Some(Attendance::of_inbound(store, now_ms).await?);
    Ok(Story { attendance, ..record::unadmitted(name, State::Inbound, None, now_ms) })
}

/// A turn of which no record is left, as far as the audit log has it. Where no tenant was named, there are too many
/// logs to look into.
async fn remembered_by_audit(
    client: &Client,
    asked: &Asked,
    args: &Explain,
) -> Result<Option<(TurnName, Story)>, Failure> {
    let Some(tenant) = asked.tenant.clone() else { return Ok(None) };
    let name = TurnName { tenant, turn: asked.turn.clone() };
    let store = client.store(&name.tenant);
    let now_ms = store.now_ms().await?;
    let audit = audit::unrecorded(store, &name, now_ms, args).await?;
    let story = Story { audit, ..record::unadmitted(&name, State::Forgotten, None, now_ms) };
    Ok((!story.audit.entries.is_empty()).then_some((name, story)))
}

/// Nothing is known, and where else it could be.
fn unknown(asked: &Asked, args: &Explain) -> Failure {
    let (id, tenant) = (&asked.turn, &asked.tenant);
    let whose = tenant.as_ref().map_or_else(|| " for any tenant".into(), |tenant| format!(" for tenant {tenant}"));
    let more = match tenant {
        None => " Audit entries are kept longer: add --tenant to search them.",
        Some(_) if args.since.is_none() && audit::minted_ms(id.as_str()).is_none() => {
            " Audit entries are kept longer: search them with --since."
        }
        Some(_) => "",
    };
    Failure::failed(anyhow::anyhow!(
        "{id} is unknown{whose}: never submitted, or its record expired (retention.records).{more}"
    ))
}

//! `tickfleet explain`: shows the whole history of a turn, call or task.

mod audit;
mod queue_readers;
mod record;
mod text;

use std::collections::BTreeSet;

use clap::Args;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_client::Client;
use tickfleet_client::inner::{InnerCall, inner_calls};
use tickfleet_client::tasks::TaskDetails;
use tickfleet_core::turn::end::GivenState;
use tickfleet_core::turn::state::EndReason;
use tickfleet_engine::active_policy::short_digest;
use tickfleet_model::{CallResult, TenantId, TurnId};
use tickfleet_store::{AdmissionNote, BreakerWait, FailedAttempt, Store, TurnName, TurnView};

use self::audit::Audit;
use self::queue_readers::QueueReaders;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::dead_letters;
use crate::output::time_format::TimeArg;
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
    #[arg(long, value_name = "WHEN", value_parser = TimeArg::parse)]
    since: Option<TimeArg>,
    /// Search the audit log until this time. Default: the end of the turn, or a day after --since.
    #[arg(long, value_name = "WHEN", value_parser = TimeArg::parse)]
    until: Option<TimeArg>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
enum ExplainedState {
    /// No scheduler has read the message yet.
    #[default]
    Inbound,
    Rejected,
    Throttled,
    /// Waits in a ready stream, or in the stream of an external runtime.
    Ready,
    Running,
    Retry,
    /// The remaining calls end without running.
    Ending,
    Done,
    /// Only the ID is still stored.
    RecordExpired,
}

#[derive(Debug, Default, Serialize)]
struct Explanation {
    tenant: String,
    id: String,
    state: ExplainedState,
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
    admissions: Vec<AdmissionNote>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tries: Vec<FailedAttempt>,
    /// A call waited in these periods because its tool accepted no calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    breaker_waits: Vec<BreakerWait>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delegator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// These processes could take the turn or task; `None` if a process has taken it.
    #[serde(skip_serializing_if = "Option::is_none")]
    available_readers: Option<QueueReaders>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<record::TurnWait>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running: Option<record::RunningCall>,
    retries: u64,
    crashes: u64,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "text::as_word")]
    end_reason: Option<EndReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_asked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    results: Vec<CallResult>,
    /// Calls that a call of this turn made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inner_calls: Vec<InnerCall>,
    /// Present if a model runs the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<TaskDetails>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyInForce>,
    audit: Audit,
}

#[derive(Debug, Serialize)]
struct PolicyInForce {
    generation: u64,
    digest: String,
}

struct ExplainTarget {
    tenant: Option<TenantId>,
    turn: TurnId,
    position: Option<usize>,
}

pub(crate) async fn run(setup: &Setup, args: &Explain, output: &Output) -> Result<(), Failure> {
    let target = parse_target(args)?;
    let explanation = gather(setup, &setup.client().await?, &target, args).await?;
    output.show(&explanation, |explanation| text::text(explanation, output))
}

#[derive(Debug, Serialize)]
pub(crate) struct RenderedExplanation {
    #[serde(rename = "story")]
    explanation: Box<RawValue>,
    pub(crate) lines: Vec<String>,
}

pub(crate) async fn render(
    setup: &Setup,
    client: &Client,
    tenant: Option<&TenantId>,
    id: &str,
) -> Result<RenderedExplanation, Failure> {
    // Without the prefix, a colon in `id` could select another tenant.
    let id = tenant.map_or_else(|| id.to_owned(), |tenant| format!("{tenant}:{id}"));
    let args = Explain { id, tenant: None, since: None, until: None };
    let explanation = gather(setup, client, &parse_target(&args)?, &args).await?;
    let lines = text::explanation_lines(&explanation);
    Ok(RenderedExplanation { explanation: to_raw_value(&explanation).map_err(Failure::failed)?, lines })
}

async fn gather(
    setup: &Setup,
    client: &Client,
    target: &ExplainTarget,
    args: &Explain,
) -> Result<Explanation, Failure> {
    let mut found = None;
    for tenant in tenants(target, setup, client).await? {
        let name = TurnName { tenant, turn: target.turn.clone() };
        if let Some(explanation) = explain_turn(setup, client, &name).await? {
            found = Some((name, explanation));
            break;
        }
    }
    if found.is_none() {
        found = remembered_by_audit(client, target, args).await?;
    }
    let Some((name, mut explanation)) = found else { return Err(unknown(target, args)) };
    explanation.position = target.position;
    if let Some(position) = target.position.filter(|position| *position >= explanation.calls && explanation.calls > 0) {
        return Err(Failure::usage(format!(
            "{name} has {} calls, starting at /0; there is no /{position}",
            explanation.calls
        )));
    }
    explanation.policy = policy_in_force(client.store(&name.tenant)).await?;
    if explanation.audit.read == 0 {
        explanation.audit = audit::of_explanation(client.store(&name.tenant), &name, &explanation, args).await?;
    }
    record::describe_by_audit(&mut explanation);
    if let Some(agent) = &explanation.agent {
        let positions = target.position.map_or(0..explanation.calls, |position| position..position + 1);
        explanation.inner_calls = inner_calls(client.store(&name.tenant), &name, agent, positions).await?;
    }
    if explanation.is_task {
        let task_status = client.task(&name).await?;
        explanation.task =
            task_status.filter(|task| !task.rounds.is_empty() || !task.children.is_empty() || task.waits.is_some());
    }
    Ok(explanation)
}

async fn policy_in_force(store: &Store) -> Result<Option<PolicyInForce>, Failure> {
    let Some(digest) = store.policy_in_force().await? else { return Ok(None) };
    let generation = store.generation_of(&digest).await?;
    Ok(generation.map(|generation| PolicyInForce { generation, digest: short_digest(&digest).to_owned() }))
}

fn parse_target(args: &Explain) -> Result<ExplainTarget, Failure> {
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
    Ok(ExplainTarget { tenant, turn: TurnId::new(turn)?, position })
}

async fn tenants(target: &ExplainTarget, setup: &Setup, client: &Client) -> Result<BTreeSet<TenantId>, Failure> {
    match &target.tenant {
        Some(tenant) => Ok([tenant.clone()].into()),
        None => Ok(setup.names().tenants(client).await?),
    }
}

async fn explain_turn(setup: &Setup, client: &Client, name: &TurnName) -> Result<Option<Explanation>, Failure> {
    let store = client.store(&name.tenant);
    let now_ms = store.now_ms().await?;
    match store.turn_view(name).await? {
        TurnView::Live(live) => {
            let agent = live.turn.head.agent.to_string();
            let counter = record::counter(&live);
            let budget = store.budget(&agent, name, counter).await?;
            let active = setup.active();
            active.refresh(store).await?;
            let active = active.load();
            let caps = record::caps(&active.policy, &name.tenant, &agent);
            let mut explanation = record::live(name, &live, budget, caps, now_ms);
            if let (Some(wait), Some(counter)) =
                (&mut explanation.waits, counter.filter(|counter| record::is_configured(counter)))
            {
                wait.limit = record::limit(&active.policy, &name.tenant, counter, &budget, now_ms);
                // Show the end of the counter's period: the timer of the throttle queue may be due earlier.
                wait.until_ms = budget.counter.map(|counter| counter.ends_ms).filter(|ends_ms| *ends_ms > now_ms);
            }
            if let (ExplainedState::Retry, Some(id)) = (explanation.state, &live.turn.approval) {
                let approval = client.approval(&name.tenant, id).await?;
                let open = approval.filter(|approval| approval.state == "waiting" || approval.state == "approved");
                // The gateway shows the approval even to keys with only the `view` permission, so remove secrets.
                let open = open.map(|open| open.without_secrets(&setup.report().redactor));
                explanation.waits = explanation.waits.map(|wait| wait.or_for_approval(open));
            }
            if let Some(wait) = &mut explanation.waits {
                record::complete(wait, name, &agent, &active.policy);
            }
            explanation.running = record::running(&live, |tool| timeout_ms(setup, tool));
            if let (ExplainedState::Ready, Some(queue)) = (explanation.state, &explanation.queue) {
                explanation.available_readers = Some(QueueReaders::of_queue(store, queue, now_ms).await?);
            }
            Ok(Some(explanation))
        }
        TurnView::Finished(finished) => Ok(Some(record::finished(name, *finished, now_ms))),
        TurnView::Unknown => not_admitted(client.store(&name.tenant), name, now_ms).await,
    }
}

/// In ms. The real limit of a typed tool may differ.
fn timeout_ms(setup: &Setup, tool: &str) -> u64 {
    let declared = setup.configuration.tools.tools.get(tool).and_then(|def| def.timeout_ms);
    let default = setup.settings().worker.tool_timeout.as_millis();
    declared.unwrap_or_else(|| u64::try_from(default).unwrap_or(u64::MAX))
}

/// A generated ID contains the ID of the inbound entry, so that entry is checked first. `None` if the turn has left no
/// trace in the fleet.
async fn not_admitted(store: &Store, name: &TurnName, now_ms: i64) -> Result<Option<Explanation>, Failure> {
    if let Some((from, entry)) = dead_letters::minted(name)
        && store.is_inbound(from, entry).await?
    {
        return inbound(store, name, now_ms).await.map(Some);
    }
    let remembered = store.remembered(name).await?;
    if remembered == Some(GivenState::Queued) {
        return inbound(store, name, now_ms).await.map(Some);
    }
    if let Some(letter) = dead_letters::about(store, name).await? {
        let explanation = record::unadmitted(name, ExplainedState::Rejected, Some(letter.reason), now_ms);
        return Ok(Some(Explanation { ended_ms: Some(letter.at_ms), ..explanation }));
    }
    Ok(remembered.map(|_| record::unadmitted(name, ExplainedState::RecordExpired, None, now_ms)))
}

async fn inbound(store: &Store, name: &TurnName, now_ms: i64) -> Result<Explanation, Failure> {
    let available_readers = Some(QueueReaders::of_inbound(store, now_ms).await?);
    Ok(Explanation { available_readers, ..record::unadmitted(name, ExplainedState::Inbound, None, now_ms) })
}

/// `None` without a tenant, because there are too many logs to search.
async fn remembered_by_audit(
    client: &Client,
    target: &ExplainTarget,
    args: &Explain,
) -> Result<Option<(TurnName, Explanation)>, Failure> {
    let Some(tenant) = target.tenant.clone() else { return Ok(None) };
    let name = TurnName { tenant, turn: target.turn.clone() };
    let store = client.store(&name.tenant);
    let now_ms = store.now_ms().await?;
    let audit = audit::unrecorded(store, &name, now_ms, args).await?;
    let explanation = Explanation { audit, ..record::unadmitted(&name, ExplainedState::RecordExpired, None, now_ms) };
    Ok((!explanation.audit.entries.is_empty()).then_some((name, explanation)))
}

fn unknown(target: &ExplainTarget, args: &Explain) -> Failure {
    let id = &target.turn;
    let tenant = &target.tenant;
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

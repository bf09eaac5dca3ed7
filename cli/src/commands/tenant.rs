//! `tickfleet tenant`: shows tenants, and sets or resets one at run time.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Args, Subcommand};
use serde::Serialize;
use tickfleet_client::operate::{self, Operator};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, Limit, TenantId, TenantUser, suggest};
use tickfleet_store::RunTimeSettings;

use crate::caller::no_tenant;
use crate::commands::operate::audit_note::AuditNote;
use crate::failure::Failure;
use crate::output::{Output, lines, table};
use crate::setup::Setup;

/// Show tenants, or change one while the fleet runs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet tenant list
  tickfleet tenant set acme --plan business --feature messaging --time-zone Europe/Berlin
  tickfleet tenant set acme --max-actions-per-day 5000
  tickfleet tenant unset acme

A tenant that is set overrides the one in tenants.yaml until it is unset. When the command returns, new
admissions use the new values. Features and agents reach workers with their next heartbeat, within a
quarter of worker.lease.")]
pub(crate) struct Tenant {
    #[command(subcommand)]
    command: TenantCommand,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// List all tenants with their sources.
    List,
    /// Show one tenant.
    Show {
        /// Tenant to show.
        tenant: TenantId,
    },
    /// Create or change a tenant. Omitted options keep their values.
    Set(SetArgs),
    /// Remove the runtime settings of a tenant, so that tenants.yaml applies again.
    Unset {
        /// Tenant to reset.
        tenant: TenantId,
        #[command(flatten)]
        note: AuditNote,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Tenant to set.
    tenant: TenantId,
    /// Name of the plan.
    #[arg(long)]
    plan: Option<String>,
    /// Feature of the plan. Repeatable; replaces all current features.
    #[arg(long, value_name = "FEATURE")]
    feature: Vec<String>,
    /// IANA time zone of the tenant's days, or `default`.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// Calls of all agents of the tenant per day, or `none`.
    #[arg(long, value_name = "CALLS", value_parser = parse_cap)]
    max_actions_per_day: Option<DayCap>,
    /// Agent of the tenant. Repeatable; replaces all current agents. If none is set, every agent.
    #[arg(long, value_name = "AGENT")]
    agent: Vec<AgentId>,
    /// Value for a limit of limits.yaml, or `default`. Repeatable; other limits stay.
    #[arg(long, value_name = "LIMIT=NUMBER", value_parser = parse_limit)]
    limit: Vec<(String, String)>,
    /// Person behind the tenant. Repeatable; replaces all current users.
    #[arg(long, value_name = "NAME")]
    user: Vec<String>,
    #[command(flatten)]
    note: AuditNote,
}

#[derive(Debug, Clone, Copy)]
struct DayCap(Option<u32>);

fn parse_cap(text: &str) -> Result<DayCap, String> {
    if text == "none" {
        return Ok(DayCap(None));
    }
    text.parse().map(|calls| DayCap(Some(calls))).map_err(|_| "expected a number of calls, or none".into())
}

fn parse_limit(text: &str) -> Result<(String, String), String> {
    let (name, max) = text.split_once('=').ok_or("expected a limit and its number, such as mails=50")?;
    Ok((name.to_owned(), max.to_owned()))
}

#[derive(Serialize)]
struct TenantRow<'a> {
    tenant: &'a TenantId,
    source: &'static str,
    #[serde(flatten)]
    policy: &'a TenantPolicy,
}

pub(crate) async fn run(setup: &Setup, args: &Tenant, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let configured = &setup.configuration.policy.tenants;
    match &args.command {
        TenantCommand::List => {
            let mut set = BTreeMap::new();
            for store in client.stores() {
                let found = store.run_time_config().await?;
                unreadable(&found).iter().for_each(|(tenant, why)| output.note(&format!("{tenant}: {why}")));
                set.extend(found.tenants);
            }
            let mut rows: Vec<TenantRow<'_>> = set.iter().map(|(tenant, policy)| row(tenant, policy, true)).collect();
            let others = configured.iter().filter(|(tenant, _)| !set.contains_key(*tenant));
            rows.extend(others.map(|(tenant, policy)| row(tenant, policy, false)));
            rows.sort_by(|a, b| a.tenant.cmp(b.tenant));
            output.show(&rows, |rows| shown(rows))
        }
        TenantCommand::Show { tenant } => {
            let set = client.store(tenant).run_time_config().await?;
            if let Some((tenant, why)) = unreadable(&set).into_iter().find(|(of, _)| of == tenant) {
                return Err(Failure::failed(anyhow::anyhow!(
                    "{tenant}: {why}; run tickfleet tenant set or tickfleet tenant unset"
                )));
            }
            let found = set.tenants.get(tenant).map(|policy| row(tenant, policy, true));
            let found = found.or_else(|| configured.get(tenant).map(|policy| row(tenant, policy, false)));
            let known = configured.keys().chain(set.tenants.keys());
            let unknown = || no_tenant(tenant, known.clone());
            output.show(&found.ok_or_else(unknown)?, |row| shown(std::slice::from_ref(row)))
        }
        TenantCommand::Set(change) => {
            let store = client.store(&change.tenant);
            let before = store.run_time_config().await?.tenants.remove(&change.tenant);
            let before = before.or_else(|| configured.get(&change.tenant).cloned()).unwrap_or_default();
            let policy = changed(before, change, setup)?;
            let by = change.note.by();
            let report = setup.report();
            let operator = Operator { by: &by, reason: change.note.reason(), redactor: &report.redactor };
            operate::set_tenant(store, &change.tenant, &policy, operator).await?;
            output.show(&row(&change.tenant, &policy, true), |row| shown(std::slice::from_ref(row)))
        }
        TenantCommand::Unset { tenant, note } => {
            let by = note.by();
            let report = setup.report();
            let operator = Operator { by: &by, reason: note.reason(), redactor: &report.redactor };
            if !operate::unset_tenant(client.store(tenant), tenant, operator).await? {
                return Err(Failure::failed(anyhow::anyhow!("tenant {:?} has no run-time settings", tenant.as_str())));
            }
            match configured.get(tenant) {
                Some(policy) => output.show(&row(tenant, policy, false), |row| shown(std::slice::from_ref(row))),
                None => output.print(&format!("tenant {:?} no longer exists", tenant.as_str())),
            }
        }
    }
}

/// Returns each tenant with unreadable run-time settings, and the problem. The fleet rejects the turns of these
/// tenants.
pub(crate) fn unreadable(set: &RunTimeSettings) -> Vec<(TenantId, String)> {
    let words = |problem: &String| format!("unreadable run-time settings ({problem})");
    set.unreadable.iter().map(|(tenant, problem)| (tenant.clone(), words(problem))).collect()
}

const fn row<'a>(tenant: &'a TenantId, policy: &'a TenantPolicy, at_run_time: bool) -> TenantRow<'a> {
    TenantRow { tenant, source: if at_run_time { "run time" } else { "configuration" }, policy }
}

fn changed(before: TenantPolicy, change: &SetArgs, setup: &Setup) -> Result<TenantPolicy, Failure> {
    let known = &setup.configuration.policy.agents;
    if let Some(agent) = change.agent.iter().find(|agent| !known.contains_key(*agent)) {
        return Err(Failure::failed(anyhow::anyhow!("agents.yaml declares no agent {agent:?}")));
    }
    let zone = match change.time_zone.as_deref() {
        None => before.time_zone,
        Some("default") => None,
        Some(zone) => {
            tickfleet_model::day::zone(zone).map_err(|error| Failure::usage(format!("--time-zone: {error}")))?;
            Some(zone.to_owned())
        }
    };
    Ok(TenantPolicy {
        limits: own_limits(before.limits, &change.limit, &setup.configuration.policy.limits)?,
        plan: change.plan.clone().unwrap_or(before.plan),
        features: replaced(before.features, &change.feature),
        time_zone: zone,
        max_actions_per_day: change.max_actions_per_day.map_or(before.max_actions_per_day, |cap| cap.0),
        agents: replaced(before.agents, &change.agent),
        users: users(before.users, &change.user),
    })
}

fn own_limits(
    mut own: BTreeMap<String, String>,
    given: &[(String, String)],
    limits: &[Limit],
) -> Result<BTreeMap<String, String>, Failure> {
    for (name, text) in given {
        let found = limits.iter().find(|limit| limit.name == *name && limit.is_of_tenants());
        if text == "default" {
            // A limit that is no longer configured can also be reset.
            own.remove(name);
            continue;
        }
        let Some(limit) = found else {
            let names = || limits.iter().filter(|limit| limit.is_of_tenants()).map(|limit| limit.name.as_str());
            let message = format!("--limit: limits.yaml has no limit {name:?} with counters of tenants");
            return Err(Failure::usage(format!("{message}: {}", suggest::list(names()))));
        };
        if limit.bound.parse_max(text).is_none() {
            return Err(Failure::usage(format!("--limit {name}: expected {}", limit.bound.max_words())));
        }
        own.insert(name.clone(), text.clone());
    }
    Ok(own)
}

fn users(before: BTreeSet<TenantUser>, given: &[String]) -> BTreeSet<TenantUser> {
    if given.is_empty() {
        return before;
    }
    let known = |name: &String| before.iter().find(|user| user.name == *name).cloned();
    given.iter().map(|name| known(name).unwrap_or_else(|| TenantUser::named(name))).collect()
}

fn replaced<T: Ord + Clone>(before: BTreeSet<T>, given: &[T]) -> BTreeSet<T> {
    if given.is_empty() { before } else { given.iter().cloned().collect() }
}

fn shown(rows: &[TenantRow<'_>]) -> String {
    let mut table = table(&["TENANT", "PLAN", "FEATURES", "TIME ZONE", "A DAY", "LIMITS", "AGENTS", "FROM"]);
    for row in rows {
        let policy = row.policy;
        let features: Vec<&str> = policy.features.iter().map(String::as_str).collect();
        let limits: Vec<String> = policy.limits.iter().map(|(name, max)| format!("{name} {max}")).collect();
        let agents: Vec<&str> = policy.agents.iter().map(AgentId::as_str).collect();
        table.add_row([
            row.tenant.to_string(),
            policy.plan.clone(),
            features.join(", "),
            policy.time_zone.clone().unwrap_or_else(|| "default".into()),
            policy.max_actions_per_day.map_or_else(|| "no cap".into(), |cap| cap.to_string()),
            limits.join(", "),
            if agents.is_empty() { "all".into() } else { agents.join(", ") },
            row.source.into(),
        ]);
    }
    lines(table)
}

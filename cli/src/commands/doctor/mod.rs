//! `tickfleet doctor`: this file collects the data. [`crate::checks`], [`cluster`], [`queues`] and [`seals`] check the
//! data, and [`repair`] repairs it.

pub(crate) mod acl;
mod cluster;
mod queues;
mod repair;
mod seals;
mod unreachable;

use std::path::Path;

use clap::Args;
use serde::Serialize;
use tickfleet_model::{Durability, TenantId};
use tickfleet_store::{Keys, Pool, Refusal, ShardFacts, Store, StoreError};

use self::unreachable::UnreachableShards;
use crate::checks::{CheckResult, Level, durable, server};
use crate::commands::top::{FindingKind, Poller};
use crate::failure::{Failure, is_unreachable};
use crate::output::{Output, StatusColor};
use crate::setup::{Setup, now_ms};

/// Check Redis and the health of the queues, with advice for each finding. Exit code 1 if a finding is FAIL.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet doctor
  tickfleet doctor --strict --json        for a pipeline: warnings fail too
  tickfleet doctor --repair --by anna     repair inconsistencies of a running fleet")]
pub(crate) struct Doctor {
    /// Exit with 1 on warnings too.
    #[arg(long)]
    strict: bool,
    /// Repair inconsistencies that are safe to repair, and report each repair.
    #[arg(long)]
    repair: bool,
    /// Your name for the audit log of repairs. If missing, the variable USER.
    #[arg(long, value_name = "NAME", requires = "repair", value_parser = crate::commands::operate::audit_note::who)]
    by: Option<String>,
}

#[derive(Serialize)]
struct Report {
    redis: String,
    level: Level,
    findings: Vec<CheckResult>,
}

/// Returns [`Failure::Reported`] if a finding is severe enough to fail.
pub(crate) async fn run(setup: &Setup, args: &Doctor, output: &Output) -> Result<(), Failure> {
    let by = match (args.repair, &args.by) {
        (false, _) => None,
        (true, Some(by)) => Some(by.clone()),
        (true, None) => Some(crate::commands::operate::audit_note::by_environment()?),
    };
    let stores = setup.stores()?;
    let (mut findings, unreachable) = store_findings(setup, &stores, by.as_deref()).await?;
    if unreachable.is_none() {
        findings.extend(fleet_findings(setup).await);
    }
    findings.extend(mcp_findings(setup).await);
    findings.extend(sandbox_finding(setup));
    findings.extend(policy_findings(setup, &stores).await);
    let level = findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    let report = Report { redis: setup.shown_url(), level, findings };
    output.show(&report, |report| text(report, output))?;
    if let Some(failure) = unreachable {
        return Err(failure);
    }
    let bound = if args.strict { Level::Warn } else { Level::Fail };
    if level >= bound { Err(Failure::Reported) } else { Ok(()) }
}

/// The failure is `Some` if a primary of a cluster was unreachable.
async fn store_findings(
    setup: &Setup,
    stores: &[Store],
    by: Option<&str>,
) -> Result<(Vec<CheckResult>, Option<Failure>), Failure> {
    let (mut findings, mut unreachable, is_cluster) = match setup.is_in_memory() {
        true => (vec![in_memory()], UnreachableShards::default(), false),
        false => servers_findings(setup, &setup.pool()?, stores).await?,
    };
    for (number, store) in (0_u32..).zip(stores) {
        let shard = number as usize;
        if unreachable.has(shard) {
            continue;
        }
        let found = shard_findings(setup, store, shard, by).await;
        findings.extend(if is_cluster { unreachable.or_finding(&[number], found)? } else { found? });
    }
    Ok((findings, unreachable.first))
}

/// Findings of these kinds are left out: other checks of `doctor` describe the same problems in more detail.
const CHECKED_KINDS: [FindingKind; 3] = [FindingKind::ProcessDead, FindingKind::Store, FindingKind::Other];

async fn fleet_findings(setup: &Setup) -> Vec<CheckResult> {
    let polled = match Poller::new(setup) {
        Ok(mut poller) => poller.poll(setup).await,
        Err(failure) => Err(failure),
    };
    let frame = match polled {
        Ok(frame) => frame,
        Err(failure) => {
            let says = format!("the fleet's state could not be read: {}", failure.message().unwrap_or_default());
            return vec![CheckResult::warn("fleet", says, "check the rights of the Redis user: tickfleet acl")];
        }
    };
    let findings = frame.findings.into_iter().filter(|finding| !CHECKED_KINDS.contains(&finding.kind));
    findings.map(|finding| CheckResult::warn(finding.kind.as_str(), finding.text, finding.action)).collect()
}

fn in_memory() -> CheckResult {
    CheckResult::ok("store", "in the memory of one process; a fleet of several machines needs Redis")
}

/// The flag is true for a cluster. There, each primary is checked over the connection of its first shard.
async fn servers_findings(
    setup: &Setup,
    pool: &Pool,
    stores: &[Store],
) -> Result<(Vec<CheckResult>, UnreachableShards, bool), Failure> {
    let mut unreachable = UnreachableShards::default();
    let wanted = durable::durability_needs(setup);
    let keys: Vec<Keys> = stores.iter().map(|store| store.keys().clone()).collect();
    let Some(view) = pool.cluster(&keys).await.filter(|view| !view.holders.is_empty()) else {
        let found = server_findings(pool, &wanted, false).await?;
        return Ok((found, unreachable, false));
    };
    let mut findings = cluster::check(&view);
    for holder in &view.holders {
        let Some(first) = holder.shards.first().and_then(|first| keys.get(*first as usize)) else { continue };
        let found = server_findings(&pool.at(first)?, &wanted, true).await;
        findings.extend(unreachable.or_finding(&holder.shards, found)?);
    }
    Ok((findings, unreachable, true))
}

async fn server_findings(
    pool: &Pool,
    wanted: &[(String, Durability)],
    is_cluster: bool,
) -> Result<Vec<CheckResult>, Failure> {
    let mut facts = pool.server().await?;
    facts.default_user = pool.default_user().await?;
    let mut findings = server::check(&facts);
    if !is_cluster {
        findings.extend(server::cluster_by_one_node(&facts));
    }
    findings.extend(durable::check(&facts, wanted));
    findings.extend(server::sentinels(&pool.sentinels().await));
    let before = now_ms();
    let theirs = pool.time_ms().await;
    let after = now_ms();
    findings.extend(or_refused("clock", theirs.map(|theirs| vec![server::clock(theirs, before, after)]))?);
    let loaded = pool.load_function().await;
    findings.extend(or_refused(
        "function",
        loaded.map(|()| vec![CheckResult::ok("function", "the commit function can be loaded".to_owned())]),
    )?);
    Ok(findings)
}

/// If Redis rejected the query, the other checks continue. Fails if Redis is unreachable or the login failed.
fn or_refused(what: &'static str, found: Result<Vec<CheckResult>, StoreError>) -> Result<Vec<CheckResult>, Failure> {
    const UNEXPECTED: &str = "unexpected reply: check the Redis server's log and version";
    match found {
        Ok(found) => Ok(found),
        Err(error) if error.refusal() == Some(Refusal::Login) => Err(error.into()),
        Err(error @ (StoreError::Verb { .. } | StoreError::StateLost(_) | StoreError::Reply { .. }))
            if !is_unreachable(&error) =>
        {
            let advice = error.remedy().unwrap_or(UNEXPECTED);
            Ok(vec![CheckResult::fail(what, format!("check failed: {error}"), advice)])
        }
        Err(error) => Err(error.into()),
    }
}

async fn mcp_findings(setup: &Setup) -> Vec<CheckResult> {
    let finding = |(name, verdict): (String, Result<String, String>)| match verdict {
        Ok(says) => CheckResult::ok("mcp", format!("{name}: {says}")),
        Err(why) => {
            let advice = "changed tools are quarantined, or all of them while the server is unreachable; run tickfleet mcp check";
            CheckResult::warn("mcp", format!("{name}: {why}"), advice)
        }
    };
    let looked = crate::commands::mcp::check_all_servers(&setup.configuration.mcp, &setup.tool_environment()).await;
    looked.into_iter().map(finding).collect()
}

fn sandbox_finding(setup: &Setup) -> Option<CheckResult> {
    let unheld = setup.sandboxed()?;
    let found = setup.shell.support().to_string();
    Some(match unheld.first() {
        None => CheckResult::ok("sandbox", found),
        Some(first) => {
            let advice = match setup.starts_without_sandbox() {
                true => "a worker here rejects its calls; docs/reference/sandbox-levels.md#requirements",
                false => "a worker here refuses to start with this tool; docs/reference/sandbox-levels.md#requirements",
            };
            CheckResult::warn("sandbox", format!("{first}; {found}"), advice)
        }
    })
}

/// Reports the built-in sample policy, and a policy that admits no turn.
async fn policy_findings(setup: &Setup, stores: &[Store]) -> Vec<CheckResult> {
    const WHAT: &str = "configuration";
    let configuration = &setup.configuration;
    let dir = setup.folder();
    if !setup.has_full_policy() {
        let says = format!("invalid; no process can start with it: {}", in_one_line(setup.trouble().unwrap_or("")));
        let folder = dir.map(|dir| format!(" --config {}", dir.display())).unwrap_or_default();
        return vec![CheckResult::fail(
            WHAT,
            says,
            format!("fix it; tickfleet config check{folder} lists all problems"),
        )];
    }
    let mut findings = Vec::new();
    if configuration.policy.agents.is_empty() {
        let says = format!("no agents configured; every turn is rejected: {}", lacking(dir, "agents.yaml"));
        findings.push(CheckResult::fail(WHAT, says, "write agents.yaml and permissions.yaml; with Helm: config.files"));
    }
    if configuration.policy.tenants.is_empty() && !any_tenant_is_set(stores).await {
        let says = format!("no tenants configured; every turn is rejected: {}", lacking(dir, "tenants.yaml"));
        let advice = "write tenants.yaml (with Helm: config.files), or set one with tickfleet tenant set";
        findings.push(CheckResult::fail(WHAT, says, advice));
    }
    let Some(dir) = dir.map(Path::display).filter(|_| findings.is_empty()) else { return findings };
    let samples = configuration.samples();
    if samples.is_empty() {
        let says = format!("agents: {}; all files from {dir}", configuration.policy.agents.len());
        return vec![CheckResult::ok(WHAT, says)];
    }
    let says = format!("{} come from the built-in sample business", samples.join(", "));
    let advice = format!("put your own files into {dir}, or set permission.samples to false");
    vec![CheckResult::warn(WHAT, says, advice)]
}

fn lacking(dir: Option<&Path>, file: &str) -> String {
    match dir.map(|dir| dir.join(file)) {
        Some(path) if path.exists() => format!("{} names none", path.display()),
        Some(path) => format!("{} is missing", path.display()),
        None => format!("no folder with {file} found (--config)"),
    }
}

/// Ignores a shard that does not respond, because another finding reports it.
async fn any_tenant_is_set(stores: &[Store]) -> bool {
    for store in stores {
        if store.run_time_config().await.is_ok_and(|set| !set.tenants.is_empty()) {
            return true;
        }
    }
    false
}

fn in_one_line(message: &str) -> String {
    const LINES_MAX: usize = 5;
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.take(LINES_MAX).collect::<Vec<_>>().join(" | ")
}

async fn shard_findings(
    setup: &Setup,
    store: &Store,
    shard: usize,
    by: Option<&str>,
) -> Result<Vec<CheckResult>, Failure> {
    let mut facts = match store.facts().await {
        Ok(facts) => facts,
        Err(error) => return or_refused("shard", Err(error)),
    };
    let mut agrees = Vec::new();
    if facts.used {
        agrees = or_refused("repair", repair::shard(setup, store, by).await)?;
    }
    if by.is_some() {
        facts = store.facts().await?;
    }
    let shards = setup.settings().redis.shards;
    // A broken configuration has no policy. The policy in force is then compared with itself and never differs.
    let digest = if setup.has_full_policy() { &setup.configuration.digest } else { &facts.policy_digest };
    let mut findings = queues::shard(shard, &facts, shards, digest);
    findings.extend(agrees);
    findings.extend(or_refused(
        "writes",
        store.probe().await.map(|()| vec![CheckResult::ok("writes", "the store accepts writes")]),
    )?);
    findings.extend(or_refused("tenants", tenants(store).await)?);
    findings.extend(or_refused("tool lists", tool_lists(store).await)?);
    findings.extend(or_refused("seals", seals::shard(setup, store).await)?);
    if !facts.is_new() {
        findings.extend(or_refused("backlog", waiting(setup, store, &facts).await)?);
    }
    Ok(findings)
}

/// Warns about agents without a tool list, because their clients cannot fetch the list.
async fn tool_lists(store: &Store) -> Result<Vec<CheckResult>, StoreError> {
    let left_out = store.tool_lists_mark().await?.map_or(0, |mark| mark.left_out);
    let says = format!("{left_out} agents have no tool list: the distinct lists exceed 64 MiB");
    let advice = "grant by role instead of by agent, so that more agents share a list, or shorten descriptions";
    Ok((left_out > 0).then(|| CheckResult::warn("tool lists", says, advice)).into_iter().collect())
}

async fn waiting(setup: &Setup, store: &Store, facts: &ShardFacts) -> Result<Vec<CheckResult>, StoreError> {
    let backlog = store.backlog(&[], &[]).await?;
    let mut findings = queues::backlog(&backlog, setup.settings());
    findings.extend(queues::consumers(facts));
    Ok(findings)
}

async fn tenants(store: &Store) -> Result<Vec<CheckResult>, StoreError> {
    let finding = |(tenant, why): (TenantId, String)| {
        let advice = format!("tickfleet tenant set {tenant} …, or tickfleet tenant unset {tenant}");
        CheckResult::fail("tenants", format!("{tenant}: {why}; its turns are rejected"), advice)
    };
    let set = store.run_time_config().await?;
    Ok(crate::commands::tenant::unreadable(&set).into_iter().map(finding).collect())
}

fn text(report: &Report, output: &Output) -> String {
    let mut text = format!("Store at {}\n", report.redis);
    for finding in &report.findings {
        let (color, word) = match finding.level {
            Level::Ok => (StatusColor::Good, "OK  "),
            Level::Warn => (StatusColor::Doubtful, "WARN"),
            Level::Fail => (StatusColor::Bad, "FAIL"),
        };
        text.push_str(&format!("{}  {:11}  {}\n", output.paint(color, word), finding.what, finding.says));
        if let Some(advice) = &finding.advice {
            text.push_str(&format!("                   → {advice}\n"));
        }
    }
    let count = |level| report.findings.iter().filter(|finding| finding.level == level).count();
    text.push_str(&format!("{} to fix, {} to check\n", count(Level::Fail), count(Level::Warn)));
    text
}

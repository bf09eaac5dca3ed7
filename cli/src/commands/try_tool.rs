//! `tickfleet tools try`: runs one call through every guard and shows each step.

use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_model::suggest::list;
use tickfleet_model::{AgentId, Context, Effect, Outcome, TenantId, TurnId};
use tickfleet_tools::{Toolbox, start_all, stop_all};
use worker::calls::trial::{Trial, TrialResult, TrialStep};

use crate::caller::{unknown_caller, with_run_time, with_tenant};
use crate::failure::Failure;
use crate::output::{Output, StatusColor, lines, table};
use crate::setup::{self, Setup};

/// Run one call through all checks of a worker and print the result of each.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet tools try search_x --agent kelly '{\"query\": \"ux\"}'
  tickfleet tools try post_to_x --agent kelly --dry-run '{\"content\": \"hi\"}'

The call runs in this process with the checks of a worker: known tool, permission, arguments, the tool's
own validation, rules, approval, one attempt under its timeout, output schema. It needs no running fleet and
skips caps, queues, retries, records and audit. Exit code 0 only if the call succeeds.")]
pub(crate) struct Try {
    /// Tool, by the name that the model uses.
    tool: String,
    /// Arguments, as a JSON object.
    #[arg(default_value = "{}")]
    arguments: String,
    /// Agent that calls.
    #[arg(long)]
    agent: AgentId,
    /// Tenant of the agent. If missing, the first tenant that has the agent.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// User context of the turn, as JSON, for rules.
    #[arg(long, value_name = "JSON")]
    user_context: Option<String>,
    /// Stop before the tool runs.
    #[arg(long)]
    dry_run: bool,
    /// Run a tool whose effect cannot be undone.
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
}

#[derive(Serialize)]
struct TrialOutput<'a> {
    tenant: &'a TenantId,
    agent: &'a AgentId,
    #[serde(flatten)]
    tried: TrialResult,
}

pub(crate) async fn run(setup: &Setup, args: &Try, output: &Output) -> Result<(), Failure> {
    let trial = trial(setup, args).await?;
    if trial.effect() == Some(Effect::Once) && !args.yes && !args.dry_run {
        return Err(Failure::usage(format!(
            "{} has an irreversible effect: pass --yes to run it, or --dry-run to only check",
            args.tool
        )));
    }
    let traces = setup.start_log()?;
    // Each trial has its own ID. Otherwise, a service with idempotency keys would treat two trials as one.
    let now_ms = setup::now_ms();
    let id = TurnId::new(format!("try{now_ms}"))?;
    let dry = Trial { dry: true, ..trial.clone() }.run(id.clone(), now_ms).await;
    let tried = if args.dry_run || dry.result.is_some() {
        dry
    } else {
        let mut extensions = setup.extensions.tools.clone();
        extensions.retain(|tool| Some(tool.spec().name.as_str()) == trial.name().as_deref());
        let started = start_all(&extensions, &setup.tool_environment()).await;
        started.map_err(|errors| errors.into_iter().next().map_or(Failure::Reported, Failure::failed))?;
        let tried = trial.run(id, now_ms).await;
        tokio::join!(setup.mcp.stop(), setup.stop_modules(), stop_all(&extensions));
        tried
    };
    if let Some(traces) = traces {
        traces.flush().await;
    }
    let good = tried.result.as_ref().map_or(args.dry_run, |result| result.outcome == Outcome::Ok);
    let trial_output = TrialOutput { tenant: &trial.tenant, agent: &trial.agent, tried };
    output.show(&trial_output, |trial_output| trial_text(trial_output, args, output))?;
    if good { Ok(()) } else { Err(Failure::Reported) }
}

async fn trial(setup: &Setup, args: &Try) -> Result<Trial, Failure> {
    let parsed = args.user_context.clone().map(RawValue::from_string).transpose();
    let user_context = parsed.map_err(|error| Failure::usage(format!("--user-context: {error}")))?;
    let active = setup.active();
    let stores = setup.stores()?;
    with_run_time(&active, &stores).await;
    if let Some(tenant) = &args.tenant {
        with_tenant(setup, &active, tenant).await?;
    }
    let in_force = active.load();
    let tenant = match &args.tenant {
        Some(tenant) => tenant.clone(),
        None => {
            let mut tenants = in_force.policy.tenants.keys();
            let has = |tenant: &&TenantId| in_force.policy.look_up(tenant, &args.agent).is_ok();
            let found = tenants.find(has).cloned();
            let agents = || list(in_force.policy.agents.keys().map(AgentId::as_str));
            found.ok_or_else(|| {
                let agent = args.agent.as_str();
                let agents = agents();
                Failure::failed(anyhow::anyhow!("no tenant has an agent {agent:?}; configured: {agents}"))
            })?
        }
    };
    in_force
        .policy
        .look_up(&tenant, &args.agent)
        .map_err(|unknown| unknown_caller(unknown, &in_force.policy, &tenant, &args.agent))?;
    // Only tools that read or change the fleet itself use this store.
    let home = stores.iter().find(|store| store.is_home_of(&tenant));
    let store = home.ok_or_else(|| Failure::failed(anyhow::anyhow!("no shard is configured")))?;
    let registry = Arc::new(setup.registry(store, &active, crate::setup::Runs::Here)?);
    Ok(Trial {
        tenant,
        agent: args.agent.clone(),
        tool: args.tool.clone(),
        arguments: args.arguments.clone(),
        context: Context { user_context, ..Context::default() },
        tools: Toolbox::new(in_force, registry, None, None),
        retry_delays: setup.settings().worker.retry_delays.clone(),
        dry: args.dry_run,
    })
}

fn trial_text(trial_output: &TrialOutput<'_>, args: &Try, output: &Output) -> String {
    let TrialResult { steps, result, next } = &trial_output.tried;
    let mut text = format!("{} of {} calls {}\n\n", trial_output.agent, trial_output.tenant, args.tool);
    let mut table = table(&["GUARD", "", "DETAIL"]);
    for TrialStep { step, passed, detail } in steps {
        let word =
            if *passed { output.cell(StatusColor::Good, "passed") } else { output.cell(StatusColor::Bad, "ended") };
        table.add_row([(*step).into(), word, detail.as_str().into()]);
    }
    text.push_str(&lines(table));
    text.push_str(&match (next, result) {
        (Some(next), Some(_)) => format!("\n\n{next}. Without a retry, the agent receives:"),
        (Some(next), None) => format!("\n\n{next}."),
        (None, Some(_)) => "\n\nThe agent receives:".to_owned(),
        (None, None) => "\n\nThe tool was not run.".to_owned(),
    });
    if let Some(result) = result {
        // A result consists of text, numbers and JSON, so it can be serialized.
        let json = serde_json::to_string_pretty(result).unwrap_or_default();
        text.push_str(&format!("\n{json}"));
    }
    text.push('\n');
    text
}

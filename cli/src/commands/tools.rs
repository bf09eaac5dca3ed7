//! `tickfleet tools`: shows tools, their permissions, and their definitions for a model.

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde::Serialize;
use tickfleet_client::verbs::{DisableToolRequest, EnableToolRequest};
use tickfleet_config::units::format_duration;
use tickfleet_model::policy::{Caller, Denial, META_TOOLS, Policy, ToolGrant};
use tickfleet_model::{AgentId, Dialect, Effect, TenantId, ToolSpec};
use tickfleet_protocol::{Prompts, define, define_strict, dialect_info};
use tickfleet_tools::{RegisteredTool, Registry};

use crate::caller::{unknown_caller, with_run_time, with_tenant};
use crate::commands::import::Import;
use crate::commands::operate::verb::{self, VerbArgs};
use crate::commands::try_tool::Try;
use crate::failure::Failure;
use crate::output::format::Format;
use crate::output::{Output, StatusColor, lines, table};
use crate::setup::Setup;

/// List all tools with their permissions. With --agent, list the tools of that agent or print their definitions.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  tickfleet tools
  tickfleet tools --tenant atlas-ux --agent kelly
  tickfleet tools --tenant atlas-ux --agent kelly --format openai > tools.json
  tickfleet tools --tenant atlas-ux --agent kelly --format openai-responses --strict
  tickfleet tools --tenant atlas-ux --agent kelly --format text > prompt.txt
  tickfleet tools try search_x --agent kelly '{\"query\": \"ux\"}'
  tickfleet tools disable post_to_x --reason 'it posts twice'"
)]
pub(crate) struct Tools {
    #[command(subcommand)]
    pub(crate) command: Option<ToolsCommand>,
    /// Agent that calls the tools.
    #[arg(long, requires = "tenant")]
    agent: Option<AgentId>,
    /// Tenant of the agent. Its plan matters too.
    #[arg(long, requires = "agent")]
    tenant: Option<TenantId>,
    /// Print the tool definitions of the agent in this dialect.
    #[arg(long, value_enum, requires = "agent")]
    format: Option<Format>,
    /// Strict definitions, for openai and openai-responses. Tools that cannot be strict are printed as they are and
    /// named on stderr. Submit such turns with "strict": true.
    #[arg(long, requires = "format")]
    strict: bool,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum ToolsCommand {
    /// Convert an OpenAPI document into a section of tools.yaml.
    Import(Import),
    /// Run one call through all checks of a worker and print the result of each.
    Try(Try),
    Disable(VerbArgs<DisableToolRequest>),
    Enable(VerbArgs<EnableToolRequest>),
}

#[derive(Serialize)]
struct ListedTool<'a> {
    name: &'a str,
    id: &'a str,
    effect: Effect,
    timeout_ms: u64,
    configured: bool,
    category: &'a str,
    who: String,
}

#[derive(Serialize)]
struct Decision<'a> {
    name: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    description: &'a str,
}

pub(crate) async fn run(setup: &Setup, args: &Tools, output: &Output) -> Result<(), Failure> {
    match &args.command {
        Some(ToolsCommand::Disable(args)) => return verb::run(setup, args, output).await,
        Some(ToolsCommand::Enable(args)) => return verb::run(setup, args, output).await,
        Some(ToolsCommand::Try(_) | ToolsCommand::Import(_)) | None => {}
    }
    let active = setup.active();
    let stores = setup.stores()?;
    with_run_time(&active, &stores).await;
    let store = stores.first().ok_or_else(|| Failure::failed(anyhow::anyhow!("no shard is configured")))?;
    let registry = setup.registry(store, &active, crate::setup::Runs::Elsewhere)?;
    if let Some(tenant) = &args.tenant {
        with_tenant(setup, &active, tenant).await?;
    }
    let policy = &active.load().policy;
    if let Some(hint) = setup.built_in_hint().filter(|_| args.format.is_none() && !output.json) {
        output.note(hint);
    }
    let (Some(tenant), Some(agent)) = (&args.tenant, &args.agent) else {
        let rows: Vec<ListedTool<'_>> = registry.iter().map(|tool| row(&tool.spec, policy)).collect();
        return output.show(&rows, |rows| listed(rows, output));
    };
    let decisions = decide(&registry, policy, tenant, agent)?;
    let Some(format) = args.format else {
        let shown: Vec<Decision<'_>> = decisions.iter().map(decision).collect();
        return output.show(&shown, |shown| decided(shown, output));
    };
    let allowed: Vec<&ToolSpec> =
        decisions.iter().filter(|(_, denial)| denial.is_none()).map(|(spec, _)| *spec).collect();
    emit(format, args.strict, &allowed, &setup.configuration.prompts, output)
}

fn emit(format: Format, strict: bool, tools: &[&ToolSpec], prompts: &Prompts, output: &Output) -> Result<(), Failure> {
    let dialect = format.0;
    let about = dialect_info(format.0);
    if strict && !about.has_strict {
        return Err(Failure::usage(format!("--strict requires --format {}", strict_formats())));
    }
    if about.in_words {
        return output.print(&prompts.describe(tools));
    }
    if !strict {
        return output.data(&define(dialect, tools));
    }
    let definitions = define_strict(dialect, tools);
    for (tool, why) in &definitions.not_strict {
        output.note(&format!("{tool} cannot be strict: {why}"));
    }
    output.data(&definitions.tools)
}

fn strict_formats() -> String {
    let strict = Dialect::ALL.into_iter().map(dialect_info).filter(|about| about.has_strict);
    strict.map(|about| about.option).collect::<Vec<_>>().join(" and ")
}

fn decide<'a>(
    registry: &'a Registry,
    policy: &Policy,
    tenant: &TenantId,
    agent: &AgentId,
) -> Result<Vec<(&'a ToolSpec, Option<String>)>, Failure> {
    let (owner, declared) =
        policy.look_up(tenant, agent).map_err(|unknown| unknown_caller(unknown, policy, tenant, agent))?;
    let caller = Caller { agent, policy: declared, tenant: owner, granted: None };
    let decide = |tool: &'a Arc<RegisteredTool>| {
        let selector = declared.tool_versions.get(&tool.spec.name).map(String::as_str);
        let (spec, denial) = match registry.select(tool, selector) {
            Some(version) => (&version.spec, policy.permissions.decide(caller, &version.spec).err()),
            None => (&tool.spec, Some(Denial::NoVersion(selector.unwrap_or_default().to_owned()))),
        };
        (spec, denial.map(|denial| denial_text(&denial)))
    };
    Ok(registry.iter().map(decide).collect())
}

fn denial_text(denial: &Denial) -> String {
    match denial {
        Denial::MissingCapability(name) => format!("lacks the capability {name}"),
        Denial::MissingFeature(name) => format!("the plan lacks the feature {name}"),
        Denial::NoVersion(selector) => format!("no version of it matches {selector}"),
        Denial::Narrowed => "its turn or task was narrowed to other tools".into(),
        Denial::Disabled => "disabled for everybody".into(),
        Denial::DeniedByRule => "denied by its row in permissions.yaml".into(),
        Denial::NotGranted => "no row in permissions.yaml allows it".into(),
    }
}

fn decision<'a>((spec, denial): &(&'a ToolSpec, Option<String>)) -> Decision<'a> {
    Decision { name: &spec.name, allowed: denial.is_none(), reason: denial.clone(), description: &spec.description }
}

fn row<'a>(spec: &'a ToolSpec, policy: &Policy) -> ListedTool<'a> {
    ListedTool {
        name: &spec.name,
        id: &spec.id,
        effect: spec.effect,
        timeout_ms: u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
        configured: spec.configured,
        category: &spec.category,
        who: who(spec, policy),
    }
}

fn who(spec: &ToolSpec, policy: &Policy) -> String {
    let permissions = &policy.permissions;
    if permissions.is_disabled(spec) {
        return "none: disabled".into();
    }
    let Some(ToolGrant { agents, roles, deny_agents, deny_roles, everyone, rules, facts }) =
        permissions.matrix.get(&spec.name)
    else {
        let meta = META_TOOLS.contains(&spec.name.as_str());
        return if meta { "everyone, because no row restricts it" } else { "none: no permission row" }.into();
    };
    let names = |agents: &std::collections::BTreeSet<AgentId>, roles: &std::collections::BTreeSet<String>| {
        let agents = agents.iter().map(ToString::to_string);
        agents.chain(roles.iter().map(|role| format!("role {role}"))).collect::<Vec<_>>().join(", ")
    };
    let allowed = names(agents, roles);
    let denied = names(deny_agents, deny_roles);
    let allowed = if *everyone { "everyone".to_owned() } else { allowed };
    let mut text = if denied.is_empty() { allowed } else { format!("{allowed}; never {denied}") };
    match rules.len() {
        0 => {}
        1 => text.push_str("; with a rule"),
        several => text.push_str(&format!("; with {several} rules")),
    }
    if !facts.require.is_empty() || !facts.forbid.is_empty() {
        text.push_str("; by facts");
    }
    for (command, needed) in [("features", &spec.required_features), ("capabilities", &spec.required_capabilities)] {
        if !needed.is_empty() {
            text.push_str(&format!("; needs {command} {}", needed.join(", ")));
        }
    }
    text
}

fn listed(rows: &[ListedTool<'_>], output: &Output) -> String {
    let mut table = table(&["TOOL", "EFFECT", "TIMEOUT", "RUNS", "WHO MAY CALL"]);
    for row in rows {
        let runs = if row.configured {
            output.cell(StatusColor::Good, "yes")
        } else {
            output.cell(StatusColor::Doubtful, "not configured")
        };
        let timeout = format_duration(std::time::Duration::from_millis(row.timeout_ms));
        table.add_row([row.name.into(), row.effect.as_str().into(), timeout.into(), runs, row.who.as_str().into()]);
    }
    lines(table)
}

fn decided(decisions: &[Decision<'_>], output: &Output) -> String {
    let mut table = table(&["TOOL", "MAY CALL", "WHY NOT"]);
    for decision in decisions {
        let word =
            if decision.allowed { output.cell(StatusColor::Good, "yes") } else { output.cell(StatusColor::Bad, "no") };
        table.add_row([decision.name.into(), word, decision.reason.clone().unwrap_or_default().into()]);
    }
    lines(table)
}

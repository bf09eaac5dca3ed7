//! `tickfleet tools`: which tools there are, who may call them, and their definitions for a model.

use clap::{Args, ValueEnum};
use serde::Serialize;
use shared::config::units::format_duration;
use shared::formats::define;
use shared::model::policy::{Caller, Policy, ToolGrant, Unknown};
use shared::model::{AgentId, Dialect, Effect, TenantId, ToolSpec};
use worker::tools::Registry;

use crate::failure::Failure;
use crate::output::{Mood, Output, lines, table};
use crate::setup::Setup;

/// List all tools with who may call them; with an agent, what it may call, or its definitions for a model.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet tools
  tickfleet tools --tenant atlas-ux --agent kelly
  tickfleet tools --tenant atlas-ux --agent kelly --format openai > tools.json")]
pub(crate) struct Tools {
    /// The agent that calls.
    #[arg(long, requires = "tenant")]
    agent: Option<AgentId>,
    /// The tenant whose agent it is: its plan decides too.
    #[arg(long, requires = "agent")]
    tenant: Option<TenantId>,
    /// Print the definitions of what the agent may call, for a request to a model.
    #[arg(long, value_enum, requires = "agent")]
    format: Option<Format>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// For OpenAI's Chat Completions: the field `tools`.
    Openai,
    /// For Anthropic's Messages: the field `tools`.
    Anthropic,
    /// Everything that a program wants to know.
    Raw,
    /// Plain text, for a model without function calling.
    Text,
}

/// A tool and who may call it.
#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    id: &'a str,
    effect: Effect,
    timeout_ms: u64,
    configured: bool,
    category: &'a str,
    who: String,
}

/// A tool and whether an agent may call it.
#[derive(Serialize)]
struct Decision<'a> {
    name: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    description: &'a str,
}

/// Lists or defines.
///
/// # Errors
/// An unknown tenant or agent; tools that cannot be used.
pub(crate) async fn run(setup: &Setup, args: &Tools, output: &Output) -> Result<(), Failure> {
    let force = setup.force();
    // Nothing connects: tools are only described here.
    let stores = setup.stores()?;
    let store = stores.first().ok_or_else(|| Failure::failed(anyhow::anyhow!("no shard is configured")))?;
    let registry = setup.registry(store, &force)?;
    // Only a tenant that was set at run time has to be asked for.
    if let Some(tenant) = args.tenant.as_ref().filter(|tenant| !force.load().policy.tenants.contains_key(*tenant)) {
        force.set_tenants(setup.client().await?.store(tenant).tenants().await?);
    }
    let policy = &force.load().policy;
    let (Some(tenant), Some(agent)) = (&args.tenant, &args.agent) else {
        let rows: Vec<Row<'_>> = registry.iter().map(|tool| row(&tool.spec, policy)).collect();
        return output.show(&rows, |rows| listed(rows, output));
    };
    let decisions = decide(&registry, policy, tenant, agent)?;
    let Some(format) = args.format else {
        let shown: Vec<Decision<'_>> = decisions.iter().map(decision).collect();
        return output.show(&shown, |shown| decided(shown, output));
    };
    let allowed: Vec<&ToolSpec> =
        decisions.iter().filter(|(_, denial)| denial.is_none()).map(|(spec, _)| *spec).collect();
    match format {
        Format::Openai => output.data(&define(Dialect::OpenaiChat, &allowed)),
        Format::Anthropic => output.data(&define(Dialect::Anthropic, &allowed)),
        Format::Raw => output.data(&define(Dialect::Raw, &allowed)),
        Format::Text => output.print(&plain(&allowed)),
    }
}

/// Every tool, and why the agent may not call it where it may not.
fn decide<'a>(
    registry: &'a Registry,
    policy: &Policy,
    tenant: &TenantId,
    agent: &AgentId,
) -> Result<Vec<(&'a ToolSpec, Option<String>)>, Failure> {
    let (owner, declared) = policy.look_up(tenant, agent).map_err(|unknown| {
        Failure::failed(match unknown {
            Unknown::Tenant => anyhow::anyhow!("there is no tenant {:?}; see tickfleet tenant list", tenant.as_str()),
            Unknown::Agent => anyhow::anyhow!("tenant {:?} has no agent {:?}", tenant.as_str(), agent.as_str()),
        })
    })?;
    let caller = Caller { agent, policy: declared, tenant: owner, granted: None };
    let decide = |spec: &'a ToolSpec| {
        let denial = policy.permissions.decide(caller, spec).err();
        (spec, denial.map(|denial| denial_text(&denial)))
    };
    Ok(registry.iter().map(|tool| decide(&tool.spec)).collect())
}

fn denial_text(denial: &shared::model::policy::Denial) -> String {
    use shared::model::policy::Denial;
    match denial {
        Denial::MissingCapability(name) => format!("lacks the capability {name}"),
        Denial::MissingFeature(name) => format!("the plan lacks the feature {name}"),
        Denial::Disabled => "disabled for everybody".into(),
        Denial::DeniedByRule => "denied by its row in permissions.yaml".into(),
        Denial::NotGranted => "no row in permissions.yaml allows it".into(),
    }
}

fn decision<'a>((spec, denial): &(&'a ToolSpec, Option<String>)) -> Decision<'a> {
    Decision { name: &spec.name, allowed: denial.is_none(), reason: denial.clone(), description: &spec.description }
}

fn row<'a>(spec: &'a ToolSpec, policy: &Policy) -> Row<'a> {
    Row {
        name: &spec.name,
        id: &spec.id,
        effect: spec.effect,
        timeout_ms: u64::try_from(spec.timeout.as_millis()).unwrap_or(u64::MAX),
        configured: spec.configured,
        category: &spec.category,
        who: who(spec, policy),
    }
}

/// Who may call a tool, as its row says it.
fn who(spec: &ToolSpec, policy: &Policy) -> String {
    let permissions = &policy.permissions;
    if permissions.disabled_tools.contains(&spec.name) || permissions.disabled_tools.contains(&spec.id) {
        return "nobody: disabled".into();
    }
    let Some(ToolGrant { agents, roles, deny_agents, deny_roles, everyone }) = permissions.matrix.get(&spec.name)
    else {
        return "nobody: no row".into();
    };
    let names = |agents: &std::collections::BTreeSet<AgentId>, roles: &std::collections::BTreeSet<String>| {
        let agents = agents.iter().map(ToString::to_string);
        agents.chain(roles.iter().map(|role| format!("role {role}"))).collect::<Vec<_>>().join(", ")
    };
    let (allowed, denied) = (names(agents, roles), names(deny_agents, deny_roles));
    let allowed = if *everyone { "everyone".to_owned() } else { allowed };
    let mut text = if denied.is_empty() { allowed } else { format!("{allowed}; never {denied}") };
    for (what, needed) in [("features", &spec.required_features), ("capabilities", &spec.required_capabilities)] {
        if !needed.is_empty() {
            text.push_str(&format!("; needs {what} {}", needed.join(", ")));
        }
    }
    text
}

const fn effect(effect: Effect) -> &'static str {
    match effect {
        Effect::Read => "read",
        Effect::Idempotent => "idempotent",
        Effect::Once => "once",
    }
}

fn listed(rows: &[Row<'_>], output: &Output) -> String {
    let mut table = table(&["TOOL", "EFFECT", "TIMEOUT", "RUNS", "WHO MAY CALL"]);
    for row in rows {
        let runs =
            if row.configured { output.cell(Mood::Good, "yes") } else { output.cell(Mood::Doubtful, "not configured") };
        let timeout = format_duration(std::time::Duration::from_millis(row.timeout_ms));
        table.add_row([row.name.into(), effect(row.effect).into(), timeout.into(), runs, row.who.as_str().into()]);
    }
    lines(table)
}

fn decided(decisions: &[Decision<'_>], output: &Output) -> String {
    let mut table = table(&["TOOL", "MAY CALL", "WHY NOT"]);
    for decision in decisions {
        let word = if decision.allowed { output.cell(Mood::Good, "yes") } else { output.cell(Mood::Bad, "no") };
        table.add_row([decision.name.into(), word, decision.reason.clone().unwrap_or_default().into()]);
    }
    lines(table)
}

/// The definitions in words, with the schema of each tool's arguments.
fn plain(tools: &[&ToolSpec]) -> String {
    let one = |spec: &&ToolSpec| {
        let schema = serde_json::to_string(&spec.input_schema).unwrap_or_default();
        format!("{}: {}\nArguments (JSON Schema): {schema}\n", spec.name, spec.description.trim())
    };
    let head = "To call tools, answer with JSON alone: {\"calls\":[{\"name\":\"<tool>\",\"arguments\":{…}}]}\n\n";
    format!("{head}{}", tools.iter().map(one).collect::<Vec<_>>().join("\n"))
}

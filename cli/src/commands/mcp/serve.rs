//! `tickfleet mcp serve`: serves the tools of an agent to an MCP client that starts its servers itself.

use clap::Args;
use tickfleet_gateway::serve_stdio;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_ops::shutdown::Shutdown;

use crate::failure::Failure;
use crate::setup::Setup;

/// Serve the tools of one agent on standard input and output.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Agent whose tools are served. No key is required: the process acts for the agent.
    #[arg(long)]
    agent: AgentId,
    /// Tenant of the agent.
    #[arg(long, default_value = "demo")]
    tenant: TenantId,
}

pub(crate) async fn run(setup: &Setup, args: &Serve) -> Result<(), Failure> {
    let traces = setup.start_log()?;
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let client = setup.client().await?;
    let served = serve_stdio(client, (args.tenant.clone(), args.agent.clone()), None, shutdown.draining.clone()).await;
    if let Some(traces) = traces {
        traces.flush().await;
    }
    served.map_err(|error| {
        Failure::failed(anyhow::anyhow!("no MCP client connected, or it disconnected at once: {error}"))
    })
}

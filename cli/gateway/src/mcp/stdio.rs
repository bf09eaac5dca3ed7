//! MCP over standard input and output: for a client on the same machine that starts its servers itself.

use rmcp::ServiceExt;
use rmcp::transport::io::stdio;
use tickfleet_client::Client;
use tickfleet_model::{AgentId, TenantId};
use tokio_util::sync::CancellationToken;

use super::{McpServer, Principal};
use crate::waiting::Waiting;

/// Serves the tools of one agent until the client has gone, or until `draining`. Whoever started the process speaks for
/// the agent: no key is asked for.
///
/// # Errors
/// The client does not speak MCP, or went before it had said so.
pub async fn serve_stdio(
    client: Client,
    (tenant, agent): (TenantId, AgentId),
    draining: CancellationToken,
) -> std::io::Result<()> {
    // Ended last, so that whoever waits is answered before the inbox goes.
    let readers = CancellationToken::new();
    let waiting = Waiting::new(client.clone(), readers.clone());
    let only = Some(Principal { tenant, agent, caller: None });
    let server =
        McpServer { client, waiting: waiting.clone(), metrics: None, draining: draining.clone(), only, public: None };
    let served = match server.serve_with_ct(stdio(), draining).await {
        Ok(running) => running.waiting().await.map(drop).map_err(std::io::Error::other),
        Err(error) => Err(std::io::Error::other(error)),
    };
    readers.cancel();
    waiting.ended().await;
    served
}

//! MCP over standard input and output. The client runs on the same machine.

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::ServiceExt;
use tickfleet_client::Client;
use tickfleet_model::{AgentId, TenantId, limits};
use tickfleet_store::TurnName;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio_util::sync::CancellationToken;

use super::approval::{LocalApprovals, LocalApprover};
use super::{McpServer, Principal, digits};
use crate::BODY_SLACK_BYTES;
use crate::waiting::ReplyWaiters;

/// A longer line passes unchanged. A request of this length is rejected later.
const LINE_BYTES_MAX: usize = limits::TURN_BYTES_MAX + BODY_SLACK_BYTES;
const PIPE_BYTES: usize = 64 * 1024;

/// No key is required. If `approver` is given, calls that still wait for approval at the end are canceled.
pub async fn serve_stdio(
    client: Client,
    (tenant, agent): (TenantId, AgentId),
    approver: Option<LocalApprover>,
    draining: CancellationToken,
) -> std::io::Result<()> {
    // Canceled last, so that waiting calls get a response before the inbox is removed.
    let readers = CancellationToken::new();
    let waiting = ReplyWaiters::new(client.clone(), readers.clone());
    let only = Some(Principal { tenant: tenant.clone(), agent, caller: None });
    let local = approver.map(|approver| Arc::new(LocalApprovals::new(approver)));
    let server = McpServer {
        client: client.clone(),
        waiting: waiting.clone(),
        metrics: None,
        draining: draining.clone(),
        only,
        public: local.as_ref().map(|local| local.console()),
        local: local.clone(),
    };
    let (library, (from_library, to_library)) = {
        let (library, ours) = tokio::io::duplex(PIPE_BYTES);
        (library, tokio::io::split(ours))
    };
    let read = tokio::spawn(lines(tokio::io::stdin(), to_library, digits::guarded));
    let written = tokio::spawn(lines(from_library, tokio::io::stdout(), digits::restored));
    let served = match server.serve_with_ct(library, draining).await {
        Ok(running) => running.waiting().await.map(drop).map_err(std::io::Error::other),
        Err(error) => Err(std::io::Error::other(error)),
    };
    read.abort();
    // The library has closed its end of the pipe, so this task ends when all responses are written.
    drop(written.await);
    // No client can receive the results of held calls any more, so cancel these calls.
    for turn in local.map(|local| local.held_turns()).unwrap_or_default() {
        let name = TurnName { tenant: tenant.clone(), turn };
        if let Err(error) = client.cancel(&name, "the MCP client disconnected").await {
            tracing::warn!(turn = %name, %error, "failed to cancel a call that waits for approval");
        }
    }
    readers.cancel();
    waiting.ended().await;
    served
}

async fn lines(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    change: fn(&str) -> Cow<'_, str>,
) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    let mut passes = false;
    loop {
        let available = from.fill_buf().await?;
        let is_end = available.is_empty();
        let end = available.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
        let taken = end.unwrap_or(available.len());
        line.extend_from_slice(&available[..taken]);
        from.consume(taken);
        if end.is_some() || is_end || passes || line.len() > LINE_BYTES_MAX {
            match std::str::from_utf8(&line).map(change) {
                Ok(Cow::Owned(changed)) if end.is_some() && !passes => to.write_all(changed.as_bytes()).await?,
                _ => to.write_all(&line).await?,
            }
            to.flush().await?;
            line.clear();
            passes = end.is_none();
        }
        if is_end {
            return to.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[tokio::test]
    async fn each_line_is_converted_and_an_overlong_line_passes_unchanged() {
        let big = "1180591620717411303424";
        let long = format!("[\"{}\",{big}]", "x".repeat(LINE_BYTES_MAX + PIPE_BYTES));
        let text = format!("{{\"a\":{big}}}\n{long}\n[{big}]\n");
        let mut guarded = Vec::new();
        let mut back = Vec::new();
        lines(text.as_bytes(), &mut guarded, digits::guarded).await.unwrap();
        let seen = String::from_utf8(guarded.clone()).unwrap();
        assert_eq!(seen.matches(big).count(), 3);
        assert_eq!(seen.matches(&format!("{big}\"")).count(), 2, "the long line is as it was");
        lines(&guarded[..], &mut back, digits::restored).await.unwrap();
        assert_eq!(String::from_utf8(back).unwrap(), text);
    }
}

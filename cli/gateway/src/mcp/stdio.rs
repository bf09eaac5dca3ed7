//! MCP over standard input and output: for a client on the same machine that starts its servers itself.

use std::borrow::Cow;

use rmcp::ServiceExt;
use tickfleet_client::Client;
use tickfleet_model::{AgentId, TenantId, limits};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio_util::sync::CancellationToken;

use super::{McpServer, Principal, digits};
use crate::BODY_SLACK_BYTES;
use crate::waiting::Waiting;

/// Bytes of a line that is looked through; a longer one passes as it is, and is refused.
const LINE_BYTES_MAX: usize = limits::TURN_BYTES_MAX + BODY_SLACK_BYTES;
/// Bytes that are on their way between a stream and the protocol library.
const PIPE_BYTES: usize = 64 * 1024;

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
    // Its end of the pipe is closed: what was answered leaves.
    drop(written.await);
    readers.cancel();
    waiting.ended().await;
    served
}

/// Passes lines on, each changed as `change` says.
async fn lines(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    change: fn(&str) -> Cow<'_, str>,
) -> std::io::Result<()> {
    let (mut from, mut line, mut passes) = (BufReader::new(from), Vec::new(), false);
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
    async fn lines_are_changed_one_by_one_and_a_longer_one_passes_as_it_is() {
        let big = "1180591620717411303424";
        let long = format!("[\"{}\",{big}]", "x".repeat(LINE_BYTES_MAX + PIPE_BYTES));
        let text = format!("{{\"a\":{big}}}\n{long}\n[{big}]\n");
        let (mut guarded, mut back) = (Vec::new(), Vec::new());
        lines(text.as_bytes(), &mut guarded, digits::guarded).await.unwrap();
        let seen = String::from_utf8(guarded.clone()).unwrap();
        assert_eq!(seen.matches(big).count(), 3);
        assert_eq!(seen.matches(&format!("{big}\"")).count(), 2, "the long line is as it was");
        lines(&guarded[..], &mut back, digits::restored).await.unwrap();
        assert_eq!(String::from_utf8(back).unwrap(), text);
    }
}

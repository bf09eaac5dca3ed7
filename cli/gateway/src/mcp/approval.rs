//! How a client sees a call that waits for approval. The caller can never approve its own call. A client that can
//! show its user a page is asked to show the page where approvers decide with their own keys. The client's response
//! decides nothing.

use chrono::{DateTime, SecondsFormat};
use rmcp::model::{ElicitRequest, ElicitRequestParams, InputRequest, InputRequests};
use rmcp::service::{RequestContext, RoleServer};
use tickfleet_client::Approval;
use tickfleet_client::operate::{TurnState, turn_state};
use tickfleet_store::{LiveTurn, TurnName};

use super::McpServer;
use crate::serving::public::PublicUrl;

impl McpServer {
    /// The approval that the next call of a turn waits for. `None` if the call waits for something else, or on a read
    /// error.
    pub(super) async fn pending_approval(&self, name: &TurnName, live: &LiveTurn) -> Option<Approval> {
        let id = live.turn.approval.as_deref().filter(|_| turn_state(live) == TurnState::Parked)?;
        match self.client.approval(&name.tenant, id).await {
            Ok(found) => found.filter(|approval| approval.state == "waiting"),
            Err(error) => {
                tracing::warn!(%error, turn = %name, "failed to read the approval of a call");
                None
            }
        }
    }

    /// Describes the wait: who must approve, until when, and where.
    pub(super) fn describe_approval(&self, approval: &Approval) -> String {
        let name = format!("{}:{}", approval.tenant, approval.id);
        let until = DateTime::from_timestamp_millis(approval.until_ms).unwrap_or_default();
        let until = until.to_rfc3339_opts(SecondsFormat::Secs, true);
        let page = self.public.as_ref().map(|public| format!("at {} or ", public.approvals())).unwrap_or_default();
        format!(
            "waits for an approval of {} ({}): {} until {until}, {page}by tickfleet approvals approve {name}. The caller cannot approve it",
            approval.tool,
            approval.call,
            approval.needed()
        )
    }

    /// The page to show. `None` if the gateway has no configured URL, or if the client cannot show pages.
    pub(super) fn page(&self, context: &RequestContext<RoleServer>) -> Option<&PublicUrl> {
        let shows = context.client_capabilities().and_then(|can| can.elicitation).is_some_and(|can| can.url.is_some());
        self.public.as_ref().filter(|_| shows)
    }
}

/// A request to the client: show the user the page for approvals.
pub(super) fn approval_prompt(approval: &Approval, words: &str, page: &PublicUrl) -> InputRequests {
    let params = ElicitRequestParams::UrlElicitationParams {
        meta: None,
        message: format!("The call {words}. The page asks for the approver's key."),
        url: page.approvals(),
        elicitation_id: approval.id.clone(),
    };
    [(format!("approval-{}", approval.id), InputRequest::Elicitation(ElicitRequest::new(params)))].into()
}

//! A call that waits for people's consent, as a client is told of it. Whoever calls never gives it: a client that can show its
//! user a page is asked to show the one where people with a key of their own decide, and what it answers to that decides
//! nothing.

use chrono::{DateTime, SecondsFormat};
use rmcp::model::{ElicitRequest, ElicitRequestParams, InputRequest, InputRequests};
use rmcp::service::{RequestContext, RoleServer};
use tickfleet_client::Approval;
use tickfleet_client::operate::{TurnState, turn_state};
use tickfleet_store::{LiveTurn, TurnName};

use super::McpServer;
use crate::serving::public::PublicUrl;

impl McpServer {
    /// What people are asked about the next call of a turn; none where nobody is, or that cannot be read.
    pub(super) async fn asked(&self, name: &TurnName, live: &LiveTurn) -> Option<Approval> {
        let id = live.turn.approval.as_deref().filter(|_| turn_state(live) == TurnState::Parked)?;
        match self.client.approval(&name.tenant, id).await {
            Ok(found) => found.filter(|asked| asked.state == "waiting"),
            Err(error) => {
                tracing::warn!(%error, turn = %name, "failed to read the approval of a call");
                None
            }
        }
    }

    /// That a call waits for people: for whom, until when, and where they decide.
    pub(super) fn asked_in_words(&self, asked: &Approval) -> String {
        let name = format!("{}:{}", asked.tenant, asked.id);
        let until = DateTime::from_timestamp_millis(asked.until_ms).unwrap_or_default();
        let until = until.to_rfc3339_opts(SecondsFormat::Secs, true);
        let page = self.public.as_ref().map(|public| format!("at {} or ", public.approvals())).unwrap_or_default();
        format!(
            "waits for an approval of {} ({}): {} until {until}, {page}by tickfleet approvals approve {name}. The caller cannot approve it",
            asked.tool,
            asked.call,
            asked.needed()
        )
    }

    /// The page that a client is asked to show, where there is one and it can.
    pub(super) fn page(&self, context: &RequestContext<RoleServer>) -> Option<&PublicUrl> {
        let shows = context.client_capabilities().and_then(|can| can.elicitation).is_some_and(|can| can.url.is_some());
        self.public.as_ref().filter(|_| shows)
    }
}

/// Asks a client to show its user the page where people decide.
pub(super) fn question(asked: &Approval, words: &str, page: &PublicUrl) -> InputRequests {
    let params = ElicitRequestParams::UrlElicitationParams {
        meta: None,
        message: format!("The call {words}. The page asks for the approver's key."),
        url: page.approvals(),
        elicitation_id: asked.id.clone(),
    };
    [(format!("approval-{}", asked.id), InputRequest::Elicitation(ElicitRequest::new(params)))].into()
}

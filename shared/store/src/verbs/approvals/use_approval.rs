//! What people have said about a call; a consent is taken by the call that it is for.

use tickfleet_model::AgentId;

use super::ask_approval::{ApprovalsFull, bounds};
use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// A call that needs people's consent, and is about to begin.
#[derive(Debug, Clone)]
pub struct UseApproval {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// Position of the call.
    pub position: usize,
    /// The approval's id.
    pub id: String,
    /// The hash of all that it is about.
    pub binding: String,
    /// True if a consent is taken; false if it is only looked at, for something else may still stop the call.
    pub takes: bool,
    /// The agent that calls.
    pub agent: AgentId,
}

/// What people have said about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consent {
    /// They agree; where it was to be taken, the consent is this call's now.
    Given {
        /// What was changed of the arguments, JSON: pointer to value; none where nothing was.
        narrowed: Option<String>,
        /// Who has agreed.
        by: Vec<String>,
    },
    /// One of them does not.
    Denied {
        /// Who.
        by: String,
        /// Why.
        why: String,
    },
    /// They have not decided in time, or what they said counts no more: since when, ms of shard time.
    Expired(i64),
    /// They have not decided so far.
    Waits,
    /// Nobody was asked about this very call. With the approval that was asked for before, when the call was another one,
    /// and its state.
    None(Option<(String, String)>),
    /// Nobody can be asked: too many approvals wait.
    Full(ApprovalsFull),
    /// Another call has this id.
    Others,
    /// Somebody else holds the turn now.
    Stale,
}

impl Store {
    /// Asks what people have said about calls that are about to begin, and takes what consents there are, where it is to.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be asked again.
    pub async fn use_approval(&self, calls: &[UseApproval]) -> Result<Vec<Consent>, StoreError> {
        let mut args = self.args();
        bounds(&mut args);
        args.show(calls.len());
        for call in calls {
            args.show(&call.name.tenant).show(&call.name.turn).text(call.fence.as_str()).show(call.position);
            args.text(call.id.as_str()).text(call.binding.as_str()).flag(call.takes);
            args.show(&call.agent);
        }
        let mut reply = self.ask(Verb::UseApproval, args).await?;
        reply.rest().iter().map(consent).collect()
    }
}

fn consent(value: &redis::Value) -> Result<Consent, StoreError> {
    let texts: Vec<String> = match value {
        redis::Value::Array(values) => values.iter().map(|value| text_of(value).unwrap_or_default()).collect(),
        word => text_of(word).into_iter().collect(),
    };
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    Ok(match texts[..] {
        ["GIVEN", narrowed, by] => Consent::Given {
            narrowed: Some(narrowed.to_owned()).filter(|narrowed| !narrowed.is_empty()),
            by: by.split_whitespace().map(str::to_owned).collect(),
        },
        ["DENIED", by, why] => Consent::Denied { by: by.to_owned(), why: why.to_owned() },
        ["EXPIRED", since] => Consent::Expired(since.parse().unwrap_or(0)),
        ["WAITS"] => Consent::Waits,
        ["NONE", "", _] => Consent::None(None),
        ["NONE", before, state] => Consent::None(Some((before.to_owned(), state.to_owned()))),
        ["FULL", "tenant"] => Consent::Full(ApprovalsFull::Tenant),
        ["FULL", "agent"] => Consent::Full(ApprovalsFull::Agent),
        ["OTHERS"] => Consent::Others,
        ["STALE"] => Consent::Stale,
        _ => return Err(unexpected(Verb::UseApproval.as_str(), value)),
    })
}

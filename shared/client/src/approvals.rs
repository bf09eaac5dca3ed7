//! Approvals: what people are asked about agents' calls, and what they say. The operators' verbs for all their faces; who
//! somebody is, and which roles that one has, is for the face to know.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_model::approval::{Narrowed, NotNarrowed, narrow};
use tickfleet_model::{Redactor, TenantId, limits};
use tickfleet_protocol::{ApprovalSaid, approval_entry};
use tickfleet_store::{ApprovalFacts, Decided, Decision, Store, StoreError, TurnName};

/// Approvals of one tenant that are listed at most.
pub const APPROVALS_LISTED_MAX: usize = 500;

/// What people are, or were, asked about a call.
#[derive(Debug, Clone, Serialize)]
pub struct Approval {
    /// Whose call it is.
    pub tenant: TenantId,
    /// Its id.
    pub id: String,
    /// `waiting`, `approved` (the call has not begun yet), `used` (its call has it), `denied`, `expired`, or `void` (its
    /// call has ended otherwise, or is another one by now).
    pub state: String,
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The agent that makes it.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// Its version.
    pub version: String,
    /// The arguments, without secrets, and cut where they are very long.
    pub arguments: Box<RawValue>,
    /// What asks.
    pub asked_by: Vec<AskedFor>,
    /// Who has to agree: all of it has to be met.
    pub needs: Vec<Needed>,
    /// The arguments that may be changed, by their JSON pointers.
    pub may_narrow: Vec<String>,
    /// What was changed of them: pointer to value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<Box<RawValue>>,
    /// When it was asked for, ms of shard time.
    pub asked_ms: i64,
    /// Until when it may be decided, and once it was given, until when it counts, ms of shard time.
    pub until_ms: i64,
    /// When it ended, ms of shard time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<i64>,
    /// Who has agreed.
    pub agreed: Vec<Said>,
    /// Who has denied it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<Said>,
}

/// Something that asks.
#[derive(Debug, Clone, Serialize, serde::Deserialize)]
pub struct AskedFor {
    /// Where the configuration has it.
    pub place: String,
    /// The same in words.
    pub why: String,
}

/// People who have to agree.
#[derive(Debug, Clone, Serialize)]
pub struct Needed {
    /// So many.
    pub approvers: u32,
    /// Each with one of these roles; none: of any role.
    pub roles: Vec<String>,
}

/// What a person has said.
#[derive(Debug, Clone, Serialize)]
pub struct Said {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When, ms of shard time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<i64>,
}

/// What a person says about a call.
#[derive(Debug)]
pub struct Verdict<'a> {
    /// Who.
    pub by: &'a str,
    /// That one's roles, as the configuration in force has them.
    pub roles: &'a BTreeSet<String>,
    /// True to agree, false to deny.
    pub agrees: bool,
    /// Why.
    pub reason: &'a str,
    /// What is to be changed of the arguments, on top of what was changed before.
    pub narrow: Narrowed,
    /// What had been changed of them when that one looked ([`Approval::narrowed`]); none where nothing had.
    pub seen: Option<&'a RawValue>,
    /// Takes secrets out of what is said.
    pub redactor: &'a Redactor,
}

/// Why a verdict was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// Never asked for, or it ended longer ago than approvals are kept.
    #[error("no such approval is known: never asked for, or it ended more than seven days ago")]
    Unknown,
    /// It was asked about a call of this very agent.
    #[error("an agent never approves its own call")]
    Own,
    /// Somebody else has to decide.
    #[error("none of {0}'s roles may decide about this call")]
    Role(String),
    /// It was decided before, has expired, or its call has it.
    #[error("it has ended: {0}")]
    Ended(String),
    /// Its call is over, or another one by now.
    #[error("its call is over, or another one by now")]
    Gone,
    /// The arguments are others than that one has looked at.
    #[error("somebody has changed the arguments meanwhile")]
    Changed,
    /// That one has agreed already.
    #[error("{0} has agreed already, and counts once")]
    Again(String),
    /// The arguments cannot be changed so.
    #[error(transparent)]
    Narrow(#[from] NotNarrowed),
    /// What is changed has too many bytes.
    #[error("the changed arguments have {0} bytes; at most {max} are allowed", max = limits::APPROVAL_NARROWED_BYTES_MAX)]
    TooLong(usize),
    /// Redis did not do what it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The outcome of a verdict that counts.
#[derive(Debug, Clone, Serialize)]
pub struct Counted {
    /// `approved`, `denied`, or `waiting` for more people.
    pub state: String,
    /// So many more have to agree.
    pub missing: u32,
}

pub(crate) async fn list(store: &Store, tenant: &TenantId, count: usize) -> Result<Vec<Approval>, StoreError> {
    let found = store.approvals(tenant, count.min(APPROVALS_LISTED_MAX)).await?;
    Ok(found.into_iter().map(|facts| Approval::of(tenant, facts)).collect())
}

pub(crate) async fn find(store: &Store, tenant: &TenantId, id: &str) -> Result<Option<Approval>, StoreError> {
    Ok(store.approval(tenant, id).await?.map(|facts| Approval::of(tenant, facts)))
}

pub(crate) async fn find_any(store: &Store, tenants: &[&TenantId], id: &str) -> Result<Option<Approval>, StoreError> {
    Ok(store.approval_of_any(tenants, id).await?.map(|(tenant, facts)| Approval::of(tenant, facts)))
}

pub(crate) async fn decide(
    store: &Store,
    tenant: &TenantId,
    id: &str,
    verdict: &Verdict<'_>,
) -> Result<Counted, ApprovalError> {
    let facts = store.approval(tenant, id).await?.ok_or(ApprovalError::Unknown)?;
    let narrowed = narrowed(store, tenant, &facts, verdict).await?;
    let reason = verdict.redactor.text(verdict.reason);
    let entry = approval_entry(&ApprovalSaid {
        timestamp_ms: store.now_ms().await?,
        tenant,
        by: verdict.by,
        agrees: verdict.agrees,
        reason: &reason,
        approval: id,
        call: &facts.call,
        agent: &facts.agent,
        tool: &facts.tool,
        narrowed: &narrowed,
        redactor: verdict.redactor,
    });
    let decision = Decision {
        tenant,
        id,
        by: verdict.by,
        roles: verdict.roles,
        agrees: verdict.agrees,
        reason: &reason,
        narrowed: &narrowed,
        seen: verdict.seen.map_or("", RawValue::get),
        entry: &entry,
    };
    Ok(match store.decide_approval(&decision).await? {
        Decided::Counts { state, missing } => Counted { state, missing },
        Decided::Unknown => return Err(ApprovalError::Unknown),
        Decided::Own => return Err(ApprovalError::Own),
        Decided::Role => return Err(ApprovalError::Role(verdict.by.to_owned())),
        Decided::Ended(state) => return Err(ApprovalError::Ended(state)),
        Decided::Gone => return Err(ApprovalError::Gone),
        Decided::Changed => return Err(ApprovalError::Changed),
        Decided::Again => return Err(ApprovalError::Again(verdict.by.to_owned())),
    })
}

/// What is changed of the arguments with this verdict, as records have it; empty where nothing is.
async fn narrowed(
    store: &Store,
    tenant: &TenantId,
    facts: &ApprovalFacts,
    verdict: &Verdict<'_>,
) -> Result<String, ApprovalError> {
    if verdict.narrow.is_empty() {
        return Ok(String::new());
    }
    let seen = verdict.seen.map_or("", RawValue::get);
    let mut values: Narrowed = serde_json::from_str(seen).unwrap_or_default();
    values.extend(verdict.narrow.iter().map(|(pointer, value)| (pointer.clone(), value.clone())));
    let may: BTreeSet<String> = serde_json::from_str(&facts.may_narrow).unwrap_or_default();
    if let Some((turn, position)) = facts.place(tenant) {
        let arguments = store.arguments_of(&turn, position).await?.ok_or(ApprovalError::Gone)?;
        narrow(&arguments, &may, &values)?;
    }
    // Values are JSON already.
    let text = serde_json::to_string(&values).unwrap_or_default();
    if text.len() > limits::APPROVAL_NARROWED_BYTES_MAX {
        return Err(ApprovalError::TooLong(text.len()));
    }
    Ok(text)
}

impl Approval {
    fn of(tenant: &TenantId, facts: ApprovalFacts) -> Self {
        let raw = |text: String| RawValue::from_string(text).ok();
        let needed = |(approvers, roles)| Needed { approvers, roles };
        let said =
            |vote: tickfleet_store::ApprovalVote| Said { by: vote.by, reason: vote.reason, at_ms: Some(vote.at_ms) };
        Self {
            tenant: tenant.clone(),
            arguments: raw(facts.arguments).unwrap_or_else(|| RawValue::NULL.to_owned()),
            asked_by: serde_json::from_str(&facts.why).unwrap_or_default(),
            needs: facts.demands.into_iter().map(needed).collect(),
            may_narrow: serde_json::from_str(&facts.may_narrow).unwrap_or_default(),
            narrowed: raw(facts.narrowed),
            denied: facts.denied.map(|(by, reason)| Said { by, reason, at_ms: facts.ended_ms }),
            agreed: facts.votes.into_iter().map(said).collect(),
            id: facts.id,
            state: facts.state,
            call: facts.call,
            agent: facts.agent,
            tool: facts.tool,
            version: facts.version,
            asked_ms: facts.asked_ms,
            until_ms: facts.until_ms,
            ended_ms: facts.ended_ms,
        }
    }

    /// The turn of its call; none where a foreign writer has left something else.
    #[must_use]
    pub fn turn(&self) -> Option<TurnName> {
        TurnName::parse(&format!("{}:{}", self.tenant, self.call.rsplit_once('/')?.0))
    }
}

impl Needed {
    /// The same in words (`2 of finance, legal`).
    #[must_use]
    pub fn in_words(&self) -> String {
        match (self.approvers, self.roles.as_slice()) {
            (1, []) => "any approver".to_owned(),
            (approvers, []) => format!("{approvers} approvers"),
            (approvers, roles) => format!("{approvers} of {}", roles.join(", ")),
        }
    }
}

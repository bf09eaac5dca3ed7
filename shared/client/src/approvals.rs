//! Approvals of agents' calls, and the verdicts about them. The caller must authenticate people and look up their
//! roles.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures::future::try_join_all;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_core::call::approval::{self as core, ApprovalState, DecideApproval, DecideResult};
use tickfleet_core::{Query, Value as Stored};
use tickfleet_model::approval::{NarrowError, NarrowedValues, narrow};
use tickfleet_model::suggest::nearest;
use tickfleet_model::{AgentId, Redactor, TenantId, limits};
use tickfleet_protocol::{AuditAction, AuditValue, Operator, OperatorAct};
use tickfleet_store::{ApprovalView, Store, StoreError, TurnName};

use crate::{Client, Cursor, Page, VerbError};

const TENANTS_TOGETHER: usize = 64;
/// Maximum number of approvals of one tenant in a list.
pub const APPROVALS_LISTED_MAX: usize = 500;

/// A request that asks people to approve a call.
#[derive(Debug, Clone, Serialize)]
pub struct Approval {
    /// The tenant of the call.
    pub tenant: TenantId,
    /// The approval's ID.
    pub id: String,
    /// `waiting`, `approved` (the call has not begun yet), `used` (the call has begun), `denied`, `expired`, or `void`:
    /// the call ended without using the approval, or has changed.
    pub state: String,
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The agent that makes the call.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// The tool's version.
    pub version: String,
    /// The arguments of the call: exact if [`Self::arguments_exact`] is true, and otherwise a short form without
    /// secrets.
    pub arguments: Box<RawValue>,
    /// True if the call runs with exactly these `arguments`.
    pub arguments_exact: bool,
    /// Bytes of the arguments with which the call runs.
    pub arguments_bytes: u64,
    /// The short form of exact `arguments`. `None` if both are equal.
    #[serde(skip)]
    short: Option<Box<RawValue>>,
    /// The configuration entries that require the approval.
    pub asked_by: Vec<ApprovalTrigger>,
    /// The requirements on approvers. All of them must be met.
    pub needs: Vec<RequiredApprovers>,
    /// The arguments that approvers may change, as JSON pointers.
    pub may_narrow: Vec<String>,
    /// The changed arguments: an object with JSON pointers as keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub narrowed: Option<Box<RawValue>>,
    /// Time of the request (ms of shard time).
    pub requested_ms: i64,
    /// Deadline of a waiting approval, expiry of a granted approval, or end of the approval (ms of shard time).
    pub until_ms: i64,
    /// Time when the approval ended (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<i64>,
    /// The decisions of the people in favor of the call.
    pub agreed: Vec<RecordedVerdict>,
    /// The decision that denied the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denied: Option<RecordedVerdict>,
}

/// A configuration entry that makes an approval of the call necessary.
#[derive(Debug, Clone, Serialize, serde::Deserialize)]
pub struct ApprovalTrigger {
    /// The entry's path in the configuration.
    pub place: String,
    /// Why the entry requires an approval, as text.
    pub why: String,
}

/// A requirement on approvers.
#[derive(Debug, Clone, Serialize)]
pub struct RequiredApprovers {
    /// The number of approvers.
    pub approvers: u32,
    /// Each approver must have one of these roles. If empty, any role is accepted.
    pub roles: Vec<String>,
}

/// A person's recorded decision.
#[derive(Debug, Clone, Serialize)]
pub struct RecordedVerdict {
    /// The person.
    pub by: String,
    /// The reason.
    pub reason: String,
    /// Time of the decision (ms of shard time).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<i64>,
}

/// A verdict about a call, as a person submits it.
#[derive(Debug)]
pub struct ApprovalVerdict<'a> {
    /// The person.
    pub by: &'a str,
    /// The person's roles in the active configuration.
    pub roles: &'a BTreeSet<String>,
    /// True to approve, false to deny.
    pub agrees: bool,
    /// The reason.
    pub reason: &'a str,
    /// Changes of the arguments, in addition to earlier changes.
    pub narrow: NarrowedValues,
    /// The changes that were shown to the person ([`Approval::narrowed`]); `None` if the arguments were not changed.
    pub seen: Option<&'a RawValue>,
    /// Removes secrets from the reason and the changes.
    pub redactor: &'a Redactor,
}

/// Why a verdict was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// The approval was never requested, or ended longer ago than approvals are kept.
    #[error("unknown approval: never requested, or ended more than seven days ago")]
    Unknown,
    /// The verdict comes from the agent that makes the call.
    #[error("an agent never approves its own call")]
    Own,
    /// The person has none of the required roles.
    #[error("{0} may not approve this call")]
    Role(String),
    /// The approval was already decided, has expired, or was used by its call.
    #[error("it has ended: {0}")]
    Ended(String),
    /// The approval's call has ended or has changed.
    #[error("its call has ended or changed")]
    Gone,
    /// The arguments have changed since they were shown to the person.
    #[error("another approver has changed the arguments")]
    Changed,
    /// The person has already agreed.
    #[error("{0} has already agreed; each approver counts once")]
    Again(String),
    /// The arguments cannot be changed as requested.
    #[error(transparent)]
    Narrow(#[from] NarrowError),
    /// The changed arguments do not fit the schema of the tool.
    #[error("the changed arguments do not fit the tool: {0} The approval waits as before")]
    Schema(String),
    /// The changed arguments have too many bytes.
    #[error("the changed arguments have {0} bytes; at most {max} are allowed", max = limits::APPROVAL_NARROWED_BYTES_MAX)]
    TooLong(usize),
    /// The request to Redis failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The effect of an accepted verdict.
#[derive(Debug, Clone, Serialize)]
pub struct VerdictResult {
    /// `approved`, `denied`, or `waiting` for more approvers.
    pub state: String,
    /// The number of approvers that are still missing.
    pub missing: u32,
}

/// A call as approvers have changed it.
#[derive(Debug, Clone)]
pub struct NarrowedCall {
    /// The arguments, as JSON.
    pub arguments: String,
    /// The input schema of the tool. `None` if no worker has published it.
    pub schema: Option<Value>,
}

/// Returns the approval's call with the earlier changes and `changes`.
pub async fn narrowed_call(
    client: &Client,
    approval: &Approval,
    changes: &NarrowedValues,
) -> Result<NarrowedCall, ApprovalError> {
    let earlier = approval.narrowed.as_ref().map_or("", |narrowed| narrowed.get());
    let mut values: NarrowedValues = serde_json::from_str(earlier).unwrap_or_default();
    values.extend(changes.iter().map(|(pointer, value)| (pointer.clone(), value.clone())));
    let may: BTreeSet<String> = approval.may_narrow.iter().cloned().collect();
    let arguments = narrow(approval.arguments.get(), &may, &values)?;
    Ok(NarrowedCall { arguments, schema: published_schema(client, approval).await? })
}

/// In the version of the tool that the call uses. `None` if no schema is published.
async fn published_schema(client: &Client, approval: &Approval) -> Result<Option<Value>, StoreError> {
    let Ok(agent) = AgentId::new(&approval.agent) else { return Ok(None) };
    let Some(list) = client.store(&approval.tenant).tool_list(&approval.tenant, &agent).await? else { return Ok(None) };
    let list: Value = serde_json::from_str(&list).unwrap_or_default();
    let mut tools = list.get("tools").and_then(Value::as_array).into_iter().flatten();
    let is_it = |tool: &&Value| {
        tool.get("name").and_then(Value::as_str) == Some(&approval.tool)
            && tool.get("version").and_then(Value::as_str).is_none_or(|version| version == approval.version)
    };
    Ok(tools.find(is_it).and_then(|tool| tool.get("input_schema")).cloned())
}

/// A filter of approvals. An unset field matches all.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    /// Only approvals of calls of this agent.
    pub agent: Option<AgentId>,
    /// Only approvals of calls of this tool.
    pub tool: Option<String>,
    /// Only approvals that were requested at least this long ago.
    pub older_than: Option<Duration>,
    /// Maximum number of approvals.
    pub limit: usize,
}

/// The next page starts after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ApprovalPosition {
    until_ms: i64,
    tenant: TenantId,
    id: String,
}

impl ApprovalPosition {
    fn of(approval: &Approval) -> Self {
        Self { until_ms: approval.until_ms, tenant: approval.tenant.clone(), id: approval.id.clone() }
    }
}

impl fmt::Display for ApprovalPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.until_ms, self.tenant, self.id)
    }
}

impl FromStr for ApprovalPosition {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (until, name) = text.split_once(':').ok_or(())?;
        let (tenant, id) = name.split_once(':').ok_or(())?;
        let until_ms = until.parse().map_err(drop)?;
        Ok(Self { until_ms, tenant: TenantId::new(tenant).map_err(drop)?, id: id.to_owned() })
    }
}

/// Lists the waiting approvals of `tenants`, the earliest deadline first. The page size bounds the memory use.
pub async fn approval_page(
    client: &Client,
    tenants: &[TenantId],
    filter: &ApprovalFilter,
    from: Option<&Cursor>,
) -> Result<Page<Approval>, VerbError> {
    let from: Option<ApprovalPosition> = Cursor::read(from)?;
    let mut page = Page::new(client.now_ms().await?);
    let mut next = None;
    for some in tenants.chunks(TENANTS_TOGETHER) {
        let read = some.iter().map(|tenant| of_tenant(client, tenant, filter, from.as_ref()));
        for (found, end) in try_join_all(read).await? {
            page.items.extend(found);
            next = [next.take(), end].into_iter().flatten().min();
        }
        page.items.sort_by_cached_key(ApprovalPosition::of);
        // Reading stopped for a tenant at this position, so later approvals belong to the next page.
        if let Some(end) = &next {
            page.items.retain(|approval| ApprovalPosition::of(approval) <= *end);
        }
        if page.items.len() > filter.limit {
            page.items.truncate(filter.limit);
            next = page.items.last().map(ApprovalPosition::of);
        }
    }
    page.next = next.as_ref().map(Cursor::of);
    Ok(page)
}

/// The position is `None` if all approvals were read.
async fn of_tenant(
    client: &Client,
    tenant: &TenantId,
    filter: &ApprovalFilter,
    from: Option<&ApprovalPosition>,
) -> Result<(Vec<Approval>, Option<ApprovalPosition>), StoreError> {
    let store = client.store(tenant);
    let mut before_ms = i64::MAX;
    if let Some(least) = filter.older_than {
        before_ms = store.now_ms().await?.saturating_sub(i64::try_from(least.as_millis()).unwrap_or(i64::MAX));
    }
    let takes = |approval: &Approval| {
        filter.agent.as_ref().is_none_or(|agent| approval.agent == agent.as_str())
            && filter.tool.as_ref().is_none_or(|tool| approval.tool == *tool)
            && approval.requested_ms <= before_ms
    };
    let from_ms = from.map_or(0, |from| from.until_ms);
    let mut skip = 0;
    let mut found = Vec::new();
    loop {
        let (looked_at, found_now) = store.approvals_from(tenant, from_ms, skip, APPROVALS_LISTED_MAX).await?;
        skip += APPROVALS_LISTED_MAX;
        let mut end = None;
        for approval in found_now.into_iter().map(|view| Approval::of(tenant, view)) {
            let at = ApprovalPosition::of(&approval);
            if from.is_none_or(|from| at > *from) && takes(&approval) {
                found.push(approval);
            }
            end = Some(at);
        }
        if looked_at < APPROVALS_LISTED_MAX {
            return Ok((found, None));
        }
        // `end` is `None` if all approvals of this batch have ended since their IDs were read. The next batch is then
        // read. The loop ends, because a tenant's approvals are limited in number.
        if found.len() > filter.limit && end.is_some() {
            return Ok((found, end));
        }
    }
}

/// The waiting approvals of all tenants of a shard.
#[derive(Debug, Clone, Default)]
pub struct WaitingApprovals {
    /// The number of waiting approvals.
    pub count: u64,
    /// The approvals that were requested first.
    pub oldest: Vec<Approval>,
}

/// Counts the waiting approvals of a shard, and reads the `most` oldest ones.
pub async fn waiting_approvals(store: &Store, most: usize) -> Result<WaitingApprovals, StoreError> {
    let Stored::Size(count @ 1..) = store.query(Query::Size(core::waiting())).await? else {
        return Ok(WaitingApprovals::default());
    };
    let first = Query::First { set: core::waiting(), upto: None, count: most };
    let Stored::Members(members) = store.query(first).await? else { return Ok(WaitingApprovals::default()) };
    let names = members.iter().filter_map(|(name, _)| {
        let (tenant, id) = name.split_once(':')?;
        Some((TenantId::new(tenant).ok()?, id))
    });
    let names: Vec<(TenantId, &str)> = names.collect();
    let views = try_join_all(names.iter().map(|(tenant, id)| store.approval(tenant, id))).await?;
    let found = names.iter().zip(views).filter_map(|((tenant, _), view)| Some(Approval::of(tenant, view?)));
    // Approvals may have been decided or expired since the query.
    let oldest: Vec<Approval> = found.filter(|approval| approval.state == "waiting").collect();
    let gone = u64::try_from(names.len() - oldest.len()).unwrap_or_default();
    Ok(WaitingApprovals { count: count.saturating_sub(gone), oldest })
}

/// Returns the IDs of waiting approvals that are most similar to `id`. Compares only the [`APPROVALS_LISTED_MAX`]
/// approvals with the earliest deadlines.
pub async fn nearest_approvals(client: &Client, tenants: &[TenantId], id: &str) -> Result<Vec<String>, VerbError> {
    let filter = ApprovalFilter { limit: APPROVALS_LISTED_MAX, ..ApprovalFilter::default() };
    let waiting = approval_page(client, tenants, &filter, None).await?.items;
    Ok(nearest(id, waiting.iter().map(|approval| approval.id.as_str())).into_iter().map(str::to_owned).collect())
}

pub(crate) async fn list(store: &Store, tenant: &TenantId, count: usize) -> Result<Vec<Approval>, StoreError> {
    let found = store.approvals(tenant, count.min(APPROVALS_LISTED_MAX)).await?;
    Ok(found.into_iter().map(|view| Approval::of(tenant, view)).collect())
}

pub(crate) async fn find(store: &Store, tenant: &TenantId, id: &str) -> Result<Option<Approval>, StoreError> {
    Ok(store.approval(tenant, id).await?.map(|view| Approval::of(tenant, view)))
}

pub(crate) async fn find_any(store: &Store, tenants: &[&TenantId], id: &str) -> Result<Option<Approval>, StoreError> {
    Ok(store.approval_of_any(tenants, id).await?.map(|(tenant, view)| Approval::of(tenant, view)))
}

pub(crate) async fn decide(
    store: &Store,
    tenant: &TenantId,
    id: &str,
    verdict: &ApprovalVerdict<'_>,
) -> Result<VerdictResult, ApprovalError> {
    let view = store.approval(tenant, id).await?.ok_or(ApprovalError::Unknown)?;
    let narrowed = narrowed(&view, verdict)?;
    let reason = verdict.redactor.text(verdict.reason);
    let shown = verdict.redactor.json(&narrowed);
    let (word, verb) = if verdict.agrees { ("approve", "approved") } else { ("deny", "denied") };
    let call = view.record.call.to_string();
    let (agent, tool) = (view.record.agent.as_str(), view.record.shown.tool.as_str());
    let mut details = vec![
        ("approval", AuditValue::Name(id)),
        ("about", AuditValue::Name(&call)),
        ("agent", AuditValue::Name(agent)),
        ("tool", AuditValue::Name(tool)),
        ("verdict", AuditValue::Name(word)),
    ];
    if !narrowed.is_empty() {
        details.push(("narrowed", AuditValue::Name(&shown)));
    }
    let act = OperatorAct {
        action: AuditAction::Approval,
        entity_type: "approval",
        entity_id: id,
        did: &format!("{verb} {tool} of {agent}"),
        tenant: Some(tenant),
        details: &details,
    };
    let operator = Operator { by: verdict.by, reason: verdict.reason, redactor: verdict.redactor };
    let entry = store.audit_append(&act, operator, store.now_ms().await?);
    let core_verdict = if verdict.agrees {
        let seen = verdict.seen.map(RawValue::get);
        let narrowed = Some(&*narrowed).filter(|text| !text.is_empty());
        core::Verdict::Approve { seen, narrowed, shown: &shown }
    } else {
        core::Verdict::Deny
    };
    let decision = DecideApproval {
        tenant,
        id,
        by: verdict.by,
        roles: verdict.roles,
        reason: &reason,
        verdict: core_verdict,
        audit: &entry,
    };
    Ok(match store.decide(decision).await.map_err(StoreError::from)?.result {
        DecideResult::Counts { state, missing } => VerdictResult { state: state.to_owned(), missing },
        DecideResult::Unknown => return Err(ApprovalError::Unknown),
        DecideResult::Own => return Err(ApprovalError::Own),
        DecideResult::Role => return Err(ApprovalError::Role(verdict.by.to_owned())),
        DecideResult::Ended(state) => return Err(ApprovalError::Ended(state.to_owned())),
        DecideResult::Gone => return Err(ApprovalError::Gone),
        DecideResult::Changed => return Err(ApprovalError::Changed),
        DecideResult::Again => return Err(ApprovalError::Again(verdict.by.to_owned())),
    })
}

/// Returns the changes as JSON, in the form of the approval's record. The text is empty if nothing is changed.
fn narrowed(view: &ApprovalView, verdict: &ApprovalVerdict<'_>) -> Result<String, ApprovalError> {
    if verdict.narrow.is_empty() {
        return Ok(String::new());
    }
    let seen = verdict.seen.map_or("", RawValue::get);
    let mut values: NarrowedValues = serde_json::from_str(seen).unwrap_or_default();
    values.extend(verdict.narrow.iter().map(|(pointer, value)| (pointer.clone(), value.clone())));
    // An ended approval has no exact arguments, so the changes cannot be checked. `decide` then rejects the verdict.
    if let Some(arguments) = &view.exact {
        narrow(arguments, &view.record.shown.may_narrow, &values)?;
    }
    // The values are JSON, so serialization cannot fail.
    let text = serde_json::to_string(&values).unwrap_or_default();
    if text.len() > limits::APPROVAL_NARROWED_BYTES_MAX {
        return Err(ApprovalError::TooLong(text.len()));
    }
    Ok(text)
}

impl Approval {
    fn of(tenant: &TenantId, view: ApprovalView) -> Self {
        let ApprovalView { id, record, exact } = view;
        let core::ApprovalPreview { tool, version, arguments, abridged, bytes, why, may_narrow } = record.shown;
        let raw = |text: String| RawValue::from_string(text).ok();
        let value = |text: String| raw(text).unwrap_or_else(|| RawValue::NULL.to_owned());
        let arguments_exact = exact.is_some();
        let short = value(arguments);
        let (arguments, short) = match exact {
            Some(exact) if abridged => (value(exact), Some(short)),
            _ => (short, None),
        };
        let needed = |demand: core::Demand| RequiredApprovers {
            approvers: demand.quorum,
            roles: demand.roles.into_iter().collect(),
        };
        let until_ms = record.state.until_ms();
        let (ended_ms, denied) = match &record.state {
            ApprovalState::Waiting { .. } | ApprovalState::Approved { .. } => (None, None),
            ApprovalState::Used { at_ms }
            | ApprovalState::Void { at_ms }
            | ApprovalState::Expired { since_ms: at_ms } => (Some(*at_ms), None),
            ApprovalState::Denied { at_ms, by, reason } => {
                let recorded = RecordedVerdict { by: by.clone(), reason: reason.clone(), at_ms: Some(*at_ms) };
                (Some(*at_ms), Some(recorded))
            }
        };
        let recorded =
            |(by, vote): (String, core::Vote)| RecordedVerdict { by, reason: vote.reason, at_ms: Some(vote.at_ms) };
        let mut agreed: Vec<RecordedVerdict> = record.votes.into_iter().map(recorded).collect();
        agreed.sort_by_key(|recorded| recorded.at_ms);
        Self {
            tenant: tenant.clone(),
            id,
            state: record.state.word().to_owned(),
            call: record.call.to_string(),
            agent: record.agent.to_string(),
            tool,
            version,
            arguments,
            arguments_exact,
            arguments_bytes: bytes as u64,
            short,
            asked_by: serde_json::from_str(&why).unwrap_or_default(),
            needs: record.demands.into_iter().map(needed).collect(),
            may_narrow: may_narrow.into_iter().collect(),
            narrowed: record.narrowed.and_then(raw),
            requested_ms: record.requested_ms,
            until_ms: until_ms.or(ended_ms).unwrap_or_default(),
            ended_ms,
            agreed,
            denied,
        }
    }

    /// Returns the form for lists and logs. Secrets are removed, and long arguments are truncated.
    #[must_use]
    pub fn without_secrets(self, redactor: &Redactor) -> Self {
        let clean = |json: Box<RawValue>| RawValue::from_string(redactor.json(json.get()).into_owned()).ok();
        Self {
            arguments_exact: self.arguments_exact && self.short.is_none(),
            arguments: self.short.unwrap_or(self.arguments),
            short: None,
            narrowed: self.narrowed.and_then(clean),
            ..self
        }
    }

    /// Returns true if the person `by` may decide this approval with these roles.
    #[must_use]
    pub fn may_be_decided_by(&self, by: &str, roles: &BTreeSet<String>) -> bool {
        let has_role = |needed: &RequiredApprovers| {
            needed.roles.is_empty() || needed.roles.iter().any(|role| roles.contains(role))
        };
        by != self.agent && self.needs.iter().any(has_role)
    }

    /// Returns the requirements on approvers as text (`2 of finance, legal`).
    #[must_use]
    pub fn needed(&self) -> String {
        self.needs.iter().map(RequiredApprovers::in_words).collect::<Vec<_>>().join(", and ")
    }

    /// Returns the turn of the approval's call. `None` if the record is damaged.
    #[must_use]
    pub fn turn(&self) -> Option<TurnName> {
        TurnName::parse(&format!("{}:{}", self.tenant, self.call.rsplit_once('/')?.0))
    }
}

impl RequiredApprovers {
    /// Returns the requirement as text (`2 of finance, legal`).
    #[must_use]
    pub fn in_words(&self) -> String {
        match (self.approvers, self.roles.as_slice()) {
            (1, []) => "any approver".to_owned(),
            (approvers, []) => format!("{approvers} approvers"),
            (approvers, roles) => format!("{approvers} of {}", roles.join(", ")),
        }
    }
}

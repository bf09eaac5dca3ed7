//! Approvals: what people are asked about agents' calls, and what they say. The operators' verbs for all their faces; who
//! somebody is, and which roles that one has, is for the face to know.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use futures::future::try_join_all;
use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_core::call::approval::{self as core, ApprovalState, DecideApproval, DecideResult};
use tickfleet_model::approval::{NarrowError, NarrowedValues, narrow};
use tickfleet_model::{AgentId, Redactor, TenantId, limits};
use tickfleet_protocol::{ApprovalSaid, approval_entry};
use tickfleet_store::{ApprovalView, Store, StoreError, TurnName};

use crate::Client;

/// Tenants that are asked about at the same time.
const TENANTS_TOGETHER: usize = 64;
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
    /// The arguments that the call runs with, where [`Self::arguments_exact`] says so; else their short form, without secrets
    /// and cut where they are long.
    pub arguments: Box<RawValue>,
    /// True if `arguments` are those that the call runs with, to the last character.
    pub arguments_exact: bool,
    /// Bytes of the arguments that the call runs with.
    pub arguments_bytes: u64,
    /// The short form of exact arguments, where it differs.
    #[serde(skip)]
    short: Option<Box<RawValue>>,
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
    pub narrow: NarrowedValues,
    /// What had been changed of them when that one looked ([`Approval::narrowed`]); none where nothing had.
    pub seen: Option<&'a RawValue>,
    /// Takes secrets out of what is said.
    pub redactor: &'a Redactor,
}

/// Why a verdict was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// Never asked for, or it ended longer ago than approvals are kept.
    #[error("unknown approval: never requested, or ended more than seven days ago")]
    Unknown,
    /// It was asked about a call of this very agent.
    #[error("an agent never approves its own call")]
    Own,
    /// Somebody else has to decide.
    #[error("none of {0}'s roles may approve this call")]
    Role(String),
    /// It was decided before, has expired, or its call has it.
    #[error("it has ended: {0}")]
    Ended(String),
    /// Its call is over, or another one by now.
    #[error("its call has ended or changed")]
    Gone,
    /// The arguments are others than that one has looked at.
    #[error("another approver has changed the arguments")]
    Changed,
    /// That one has agreed already.
    #[error("{0} has already agreed; each approver counts once")]
    Again(String),
    /// The arguments cannot be changed so.
    #[error(transparent)]
    Narrow(#[from] NarrowError),
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

/// Which approvals are wanted. What is not said takes all.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFilter {
    /// Those of calls of this agent.
    pub agent: Option<AgentId>,
    /// Those of calls of this tool.
    pub tool: Option<String>,
    /// Those that were asked for at least so long ago.
    pub older_than: Option<Duration>,
    /// So many at most.
    pub limit: usize,
}

/// Where a list goes on: behind an approval, by the time until which it may be decided.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApprovalsAt {
    until_ms: i64,
    tenant: TenantId,
    id: String,
}

impl ApprovalsAt {
    fn of(approval: &Approval) -> Self {
        Self { until_ms: approval.until_ms, tenant: approval.tenant.clone(), id: approval.id.clone() }
    }
}

impl fmt::Display for ApprovalsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.until_ms, self.tenant, self.id)
    }
}

impl FromStr for ApprovalsAt {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let mut parts = text.splitn(3, ':');
            let (until, tenant, id) = (parts.next()?, parts.next()?, parts.next()?);
            Some(Self { until_ms: until.parse().ok()?, tenant: TenantId::new(tenant).ok()?, id: id.to_owned() })
        };
        read().ok_or_else(|| "expected a position printed by a list, such as 1764130000000:demo:apr-3f2a".to_owned())
    }
}

/// A page of approvals.
#[derive(Debug, Clone, Default)]
pub struct ApprovalPage {
    /// Of all tenants that were asked about, those first that end first.
    pub approvals: Vec<Approval>,
    /// Where the list goes on; none at its end.
    pub next: Option<ApprovalsAt>,
}

/// A page of the approvals of these tenants that wait for people and pass the filter, those first that end first. However
/// many tenants there are, no more than a page and some are held in memory.
///
/// # Errors
/// [`StoreError`].
pub async fn approval_page(
    client: &Client,
    tenants: &[TenantId],
    filter: &ApprovalFilter,
    from: Option<&ApprovalsAt>,
) -> Result<ApprovalPage, StoreError> {
    let mut page = ApprovalPage::default();
    for some in tenants.chunks(TENANTS_TOGETHER) {
        for (found, end) in try_join_all(some.iter().map(|tenant| of_tenant(client, tenant, filter, from))).await? {
            page.approvals.extend(found);
            page.next = [page.next.take(), end].into_iter().flatten().min();
        }
        page.approvals.sort_by_cached_key(ApprovalsAt::of);
        // Behind where one tenant was not looked at any more, others' are for the next page.
        if let Some(end) = &page.next {
            page.approvals.retain(|approval| ApprovalsAt::of(approval) <= *end);
        }
        if page.approvals.len() > filter.limit {
            page.approvals.truncate(filter.limit);
            page.next = page.approvals.last().map(ApprovalsAt::of);
        }
    }
    Ok(page)
}

/// Those of a tenant, and up to where it was looked at; none where that is all of it.
async fn of_tenant(
    client: &Client,
    tenant: &TenantId,
    filter: &ApprovalFilter,
    from: Option<&ApprovalsAt>,
) -> Result<(Vec<Approval>, Option<ApprovalsAt>), StoreError> {
    let store = client.store(tenant);
    let mut before_ms = i64::MAX;
    if let Some(least) = filter.older_than {
        before_ms = store.now_ms().await?.saturating_sub(i64::try_from(least.as_millis()).unwrap_or(i64::MAX));
    }
    let takes = |approval: &Approval| {
        filter.agent.as_ref().is_none_or(|agent| approval.agent == agent.as_str())
            && filter.tool.as_ref().is_none_or(|tool| approval.tool == *tool)
            && approval.asked_ms <= before_ms
    };
    let (from_ms, mut skip, mut found) = (from.map_or(0, |from| from.until_ms), 0, Vec::new());
    loop {
        let (looked_at, found_now) = store.approvals_from(tenant, from_ms, (skip, APPROVALS_LISTED_MAX)).await?;
        skip += APPROVALS_LISTED_MAX;
        let mut end = None;
        for approval in found_now.into_iter().map(|view| Approval::of(tenant, view)) {
            let at = ApprovalsAt::of(&approval);
            if from.is_none_or(|from| at > *from) && takes(&approval) {
                found.push(approval);
            }
            end = Some(at);
        }
        if looked_at < APPROVALS_LISTED_MAX {
            return Ok((found, None));
        }
        // Where none of these waits any more, nothing says where they end: it looks on, as far as a tenant may ask.
        if found.len() > filter.limit && end.is_some() {
            return Ok((found, end));
        }
    }
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
    verdict: &Verdict<'_>,
) -> Result<Counted, ApprovalError> {
    let view = store.approval(tenant, id).await?.ok_or(ApprovalError::Unknown)?;
    let narrowed = narrowed(&view, verdict)?;
    let reason = verdict.redactor.text(verdict.reason);
    let shown = verdict.redactor.json(&narrowed);
    let entry = approval_entry(&ApprovalSaid {
        timestamp_ms: store.now_ms().await?,
        tenant,
        by: verdict.by,
        agrees: verdict.agrees,
        reason: &reason,
        approval: id,
        call: &view.record.call.to_string(),
        agent: view.record.agent.as_str(),
        tool: &view.record.shown.tool,
        narrowed: &narrowed,
        redactor: verdict.redactor,
    });
    let core_verdict = if verdict.agrees {
        let (seen, narrowed) = (verdict.seen.map(RawValue::get), Some(&*narrowed).filter(|text| !text.is_empty()));
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
        audit: &serde_json::from_str(&entry).unwrap_or_default(),
        bounds: &store.bounds(),
    };
    Ok(match store.decide(decision).await.map_err(StoreError::from)?.result {
        DecideResult::Counts { state, missing } => Counted { state: state.to_owned(), missing },
        DecideResult::Unknown => return Err(ApprovalError::Unknown),
        DecideResult::Own => return Err(ApprovalError::Own),
        DecideResult::Role => return Err(ApprovalError::Role(verdict.by.to_owned())),
        DecideResult::Ended(state) => return Err(ApprovalError::Ended(state.to_owned())),
        DecideResult::Gone => return Err(ApprovalError::Gone),
        DecideResult::Changed => return Err(ApprovalError::Changed),
        DecideResult::Again => return Err(ApprovalError::Again(verdict.by.to_owned())),
    })
}

/// What is changed of the arguments with this verdict, as records have it; empty where nothing is.
fn narrowed(view: &ApprovalView, verdict: &Verdict<'_>) -> Result<String, ApprovalError> {
    if verdict.narrow.is_empty() {
        return Ok(String::new());
    }
    let seen = verdict.seen.map_or("", RawValue::get);
    let mut values: NarrowedValues = serde_json::from_str(seen).unwrap_or_default();
    values.extend(verdict.narrow.iter().map(|(pointer, value)| (pointer.clone(), value.clone())));
    // One that has ended has no arguments any more, and is refused where it is decided.
    if let Some(arguments) = &view.exact {
        narrow(arguments, &view.record.shown.may_narrow, &values)?;
    }
    // Values are JSON already.
    let text = serde_json::to_string(&values).unwrap_or_default();
    if text.len() > limits::APPROVAL_NARROWED_BYTES_MAX {
        return Err(ApprovalError::TooLong(text.len()));
    }
    Ok(text)
}

impl Approval {
    fn of(tenant: &TenantId, view: ApprovalView) -> Self {
        let ApprovalView { id, record, exact } = view;
        let core::Shown { tool, version, arguments, abridged, bytes, why, may_narrow } = record.shown;
        let raw = |text: String| RawValue::from_string(text).ok();
        let value = |text: String| raw(text).unwrap_or_else(|| RawValue::NULL.to_owned());
        let (arguments_exact, short) = (exact.is_some(), value(arguments));
        let (arguments, short) = match exact {
            Some(exact) if abridged => (value(exact), Some(short)),
            _ => (short, None),
        };
        let needed =
            |demand: core::Demand| Needed { approvers: demand.quorum, roles: demand.roles.into_iter().collect() };
        let until_ms = record.state.until_ms();
        let (ended_ms, denied) = match &record.state {
            ApprovalState::Waiting { .. } | ApprovalState::Approved { .. } => (None, None),
            ApprovalState::Used { at_ms }
            | ApprovalState::Void { at_ms }
            | ApprovalState::Expired { since_ms: at_ms } => (Some(*at_ms), None),
            ApprovalState::Denied { at_ms, by, reason } => {
                let said = Said { by: by.clone(), reason: reason.clone(), at_ms: Some(*at_ms) };
                (Some(*at_ms), Some(said))
            }
        };
        let said = |(by, vote): (String, core::Vote)| Said { by, reason: vote.reason, at_ms: Some(vote.at_ms) };
        let mut agreed: Vec<Said> = record.votes.into_iter().map(said).collect();
        agreed.sort_by_key(|said| said.at_ms);
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
            asked_ms: record.asked_ms,
            until_ms: until_ms.or(ended_ms).unwrap_or_default(),
            ended_ms,
            agreed,
            denied,
        }
    }

    /// The same for lists, logs and whoever may not decide: without secrets, and cut where it is long.
    #[must_use]
    pub fn for_onlookers(self, redactor: &Redactor) -> Self {
        let clean = |json: Box<RawValue>| RawValue::from_string(redactor.json(json.get()).into_owned()).ok();
        Self {
            arguments_exact: self.arguments_exact && self.short.is_none(),
            arguments: self.short.unwrap_or(self.arguments),
            short: None,
            narrowed: self.narrowed.and_then(clean),
            ..self
        }
    }

    /// Returns true if an approver with these roles may decide about it.
    #[must_use]
    pub fn may_be_decided_by(&self, by: &str, roles: &BTreeSet<String>) -> bool {
        let has_role =
            |needed: &Needed| needed.roles.is_empty() || needed.roles.iter().any(|role| roles.contains(role));
        by != self.agent && self.needs.iter().any(has_role)
    }

    /// Who has to agree, in words (`2 of finance, legal`).
    #[must_use]
    pub fn needed(&self) -> String {
        self.needs.iter().map(Needed::in_words).collect::<Vec<_>>().join(", and ")
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

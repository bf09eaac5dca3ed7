//! Looking at approvals without touching them.

use std::collections::HashMap;

use crate::connection::question::Question;
use crate::keys::TurnName;
use crate::records::schema::{approval, turn};
use crate::records::turn::whole;
use crate::{Store, StoreError};
use tickfleet_model::TenantId;

/// A person's consent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalVote {
    /// Who.
    pub by: String,
    /// When, ms of shard time.
    pub at_ms: i64,
    /// Why.
    pub reason: String,
}

/// What the record of an approval says.
#[derive(Debug, Clone, Default)]
pub struct ApprovalFacts {
    /// Its id.
    pub id: String,
    /// `waiting`, `approved`, `used`, `denied`, `expired` or `void`.
    pub state: String,
    /// The call, `<turn>/<position>`.
    pub call: String,
    /// The agent that makes it.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// Its version.
    pub version: String,
    /// The arguments for lists and whoever may not decide, JSON: without secrets, within a bound.
    pub short: String,
    /// True if these are not the arguments of the call: secrets were taken out, or they were cut.
    pub is_abridged: bool,
    /// The arguments that the call runs with, JSON; none in lists, and of an approval that has ended, if `short` differs.
    pub exact: Option<String>,
    /// Bytes of the arguments that the call runs with.
    pub bytes: u64,
    /// What asks, JSON: a list of `place` and `why`.
    pub why: String,
    /// Who has to agree: for each thing that asks, how many, and of which roles; no role stands for any.
    pub demands: Vec<(u32, Vec<String>)>,
    /// The arguments that may be changed, JSON: a list of pointers.
    pub may_narrow: String,
    /// What was changed of them, JSON: pointer to value; empty where nothing was.
    pub narrowed: String,
    /// When it was asked for, ms of shard time.
    pub asked_ms: i64,
    /// Until when it may be decided, and once it was given, until when it counts, ms of shard time.
    pub until_ms: i64,
    /// When it ended, ms of shard time.
    pub ended_ms: Option<i64>,
    /// Who denied it, and why.
    pub denied: Option<(String, String)>,
    /// Who has agreed.
    pub votes: Vec<ApprovalVote>,
}

impl ApprovalFacts {
    fn read(id: &str, mut fields: HashMap<String, String>) -> Option<Self> {
        let named = |prefix: &str, field: &str| field.strip_prefix(prefix).map(str::to_owned);
        let mut votes: Vec<ApprovalVote> = fields
            .iter()
            .filter_map(|(field, said)| {
                let by = named(approval::VOTE, field)?;
                let at_ms = said.split(' ').next().and_then(whole)?;
                let reason = fields.get(&format!("{}{by}", approval::REASON)).cloned().unwrap_or_default();
                Some(ApprovalVote { by, at_ms, reason })
            })
            .collect();
        votes.sort_by(|one, other| (one.at_ms, &one.by).cmp(&(other.at_ms, &other.by)));
        let mut text = |field: &str| fields.remove(field);
        let (state, demands) = (text(approval::STATE)?, text(approval::DEMANDS).unwrap_or_default());
        let denied = text(approval::ENDED_BY).zip(text(approval::ENDED_WHY));
        let mut number = |field: &str| text(field).as_deref().and_then(whole);
        let (asked_ms, until_ms) = (number(approval::ASKED_MS), number(approval::UNTIL_MS));
        let (ended_ms, bytes) = (number(approval::ENDED_MS), number(approval::BYTES));
        let (is_abridged, exact) = (fields.contains_key(approval::ABRIDGED), fields.remove(approval::EXACT));
        let mut text = |field: &str| fields.remove(field).unwrap_or_default();
        let short = text(approval::ARGUMENTS);
        Some(Self {
            id: id.to_owned(),
            state,
            call: text(approval::CALL),
            agent: text(approval::AGENT),
            tool: text(approval::TOOL),
            version: text(approval::VERSION),
            exact: exact.or_else(|| (!is_abridged).then(|| short.clone())),
            short,
            is_abridged,
            bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default(),
            why: text(approval::WHY),
            demands: demands.split(';').filter_map(demand).collect(),
            may_narrow: text(approval::MAY_NARROW),
            narrowed: text(approval::NARROWED),
            asked_ms: asked_ms.unwrap_or_default(),
            until_ms: until_ms.unwrap_or_default(),
            ended_ms,
            denied,
            votes,
        })
    }
}

/// A consent that a call has taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedConsent {
    /// The call's position in its turn.
    pub position: usize,
    /// The approval.
    pub id: String,
    /// Who has agreed.
    pub by: Vec<String>,
    /// What was changed of the arguments, JSON: pointer to value; empty if nothing was.
    pub narrowed: String,
}

/// What lists show of a record, beside what people have said. The exact arguments are left out: they may be long.
const LISTED: [&str; 17] = [
    approval::STATE,
    approval::CALL,
    approval::AGENT,
    approval::TOOL,
    approval::VERSION,
    approval::ARGUMENTS,
    approval::ABRIDGED,
    approval::BYTES,
    approval::WHY,
    approval::DEMANDS,
    approval::MAY_NARROW,
    approval::NARROWED,
    approval::ASKED_MS,
    approval::UNTIL_MS,
    approval::ENDED_MS,
    approval::ENDED_BY,
    approval::ENDED_WHY,
];
/// The names of the fields with what people have said: no other field has a colon.
const WORDS: &str = "?:*";
/// Fields of a record that one look for people's words goes through: all that it may have.
const FIELDS_MAX: usize = 1_000;

/// Tenants that are asked for one approval in one round trip.
const TENANTS_TOGETHER: usize = 1_000;

fn demand(text: &str) -> Option<(u32, Vec<String>)> {
    let (quorum, roles) = text.split_once(':')?;
    let roles = roles.split(',').filter(|role| !role.is_empty()).map(str::to_owned).collect();
    Some((quorum.parse().ok()?, roles))
}

impl Store {
    /// One approval; none where it was never asked for, or ended longer ago than they are kept.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn approval(&self, tenant: &TenantId, id: &str) -> Result<Option<ApprovalFacts>, StoreError> {
        let command = redis::cmd("HGETALL").arg(self.keys.key(format_args!("approval:{tenant}:{id}"))).to_owned();
        let fields: HashMap<String, String> = self.connection.query(Question::Approvals, &command).await?;
        Ok(ApprovalFacts::read(id, fields))
    }

    /// The consent that the last call of a turn that people were asked about has taken; none if it has taken none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn used_consent(&self, turn: &TurnName) -> Result<Option<UsedConsent>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.turn(turn)).arg(turn::APPROVAL).to_owned();
        let id: Option<String> = self.connection.query(Question::Approvals, &command).await?;
        let Some(id) = id else { return Ok(None) };
        let found = self.approval(&turn.tenant, &id).await?.filter(|found| found.state == "used");
        Ok(found.and_then(|found| {
            let (of, position) = found.call.rsplit_once('/')?;
            let position = position.parse().ok().filter(|_| of == turn.turn.as_str())?;
            let by = found.votes.into_iter().map(|vote| vote.by).collect();
            Some(UsedConsent { position, id, by, narrowed: found.narrowed })
        }))
    }

    /// The approval of this id, whichever of these tenants it is of; none where no one of them has it. It is looked for at
    /// a thousand of them in one round trip.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn approval_of_any<'a>(
        &self,
        tenants: &[&'a TenantId],
        id: &str,
    ) -> Result<Option<(&'a TenantId, ApprovalFacts)>, StoreError> {
        for some in tenants.chunks(TENANTS_TOGETHER) {
            let mut pipe = redis::pipe();
            for tenant in some {
                pipe.cmd("HGETALL").arg(self.keys.key(format_args!("approval:{tenant}:{id}")));
            }
            let found: Vec<HashMap<String, String>> = self.connection.pipeline(Question::Approvals, &pipe).await?;
            let mut found = some.iter().zip(found);
            if let Some(found) = found.find_map(|(tenant, fields)| Some((*tenant, ApprovalFacts::read(id, fields)?))) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The approvals of a tenant that wait for people, `count` at most, those first that end first. One whose call has gone
    /// is left out.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn approvals(&self, tenant: &TenantId, count: usize) -> Result<Vec<ApprovalFacts>, StoreError> {
        Ok(self.approvals_from(tenant, 0, (0, count)).await?.1)
    }

    /// As [`Self::approvals`], of those that end at `from_ms` or later: `count` behind the first `skip` of them. Answers
    /// how many it has looked at, too: fewer than `count` at the end.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn approvals_from(
        &self,
        tenant: &TenantId,
        from_ms: i64,
        (skip, count): (usize, usize),
    ) -> Result<(usize, Vec<ApprovalFacts>), StoreError> {
        let mut command = redis::cmd("ZRANGEBYSCORE");
        command.arg(self.keys.key(format_args!("asked:{tenant}"))).arg(from_ms).arg("+inf");
        command.arg("LIMIT").arg(skip).arg(count);
        let ids: Vec<String> = self.connection.query(Question::Approvals, &command).await?;
        Ok((ids.len(), self.those_that_wait(tenant, &ids).await?))
    }

    async fn those_that_wait(&self, tenant: &TenantId, ids: &[String]) -> Result<Vec<ApprovalFacts>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let key = |id: &String| self.keys.key(format_args!("approval:{tenant}:{id}"));
        let (mut fields, mut said) = (redis::pipe(), redis::pipe());
        for id in ids {
            fields.cmd("HMGET").arg(key(id)).arg(&LISTED);
            said.cmd("HSCAN").arg(key(id)).arg(0).arg("MATCH").arg(WORDS).arg("COUNT").arg(FIELDS_MAX);
        }
        let fields: Vec<Vec<Option<String>>> = self.connection.pipeline(Question::Approvals, &fields).await?;
        let said: Vec<(String, HashMap<String, String>)> = self.connection.pipeline(Question::Approvals, &said).await?;
        let read = ids.iter().zip(fields).zip(said).filter_map(|((id, fields), (_, said))| {
            let known = LISTED.iter().zip(fields).filter_map(|(field, text)| Some(((*field).to_owned(), text?)));
            ApprovalFacts::read(id, known.chain(said).collect())
        });
        let waiting: Vec<ApprovalFacts> = read.filter(|facts| facts.state == "waiting").collect();
        let mut pipe = redis::pipe();
        for facts in &waiting {
            let turn = facts.call.rsplit_once('/').map_or("", |(turn, _)| turn);
            pipe.cmd("HGET").arg(self.keys.key(format_args!("turn:{tenant}:{turn}"))).arg(turn::APPROVAL);
        }
        if waiting.is_empty() {
            return Ok(waiting);
        }
        let asked: Vec<Option<String>> = self.connection.pipeline(Question::Approvals, &pipe).await?;
        let waits = waiting.into_iter().zip(asked).filter(|(facts, asked)| asked.as_ref() == Some(&facts.id));
        Ok(waits.map(|(facts, _)| facts).collect())
    }
}

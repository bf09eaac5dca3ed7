//! Looking at approvals without touching them.

use std::collections::HashMap;

use crate::connection::question::Question;
use crate::keys::TurnName;
use crate::records::schema::{approval, turn};
use crate::records::turn::whole;
use crate::{Store, StoreError};
use tickfleet_model::{TenantId, TurnId};

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
    /// The arguments without secrets, JSON.
    pub arguments: String,
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
        let ended_ms = number(approval::ENDED_MS);
        let mut text = |field: &str| fields.remove(field).unwrap_or_default();
        Some(Self {
            id: id.to_owned(),
            state,
            call: text(approval::CALL),
            agent: text(approval::AGENT),
            tool: text(approval::TOOL),
            version: text(approval::VERSION),
            arguments: text(approval::ARGUMENTS),
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

    /// The turn of its call, and its position there; none where a foreign writer has left something else.
    #[must_use]
    pub fn place(&self, tenant: &TenantId) -> Option<(TurnName, usize)> {
        let (turn, position) = self.call.rsplit_once('/')?;
        let turn = TurnId::new(turn).ok()?;
        Some((TurnName { tenant: tenant.clone(), turn }, position.parse().ok()?))
    }
}

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
        let mut pipe = redis::pipe();
        for id in ids {
            pipe.cmd("HGETALL").arg(self.keys.key(format_args!("approval:{tenant}:{id}")));
        }
        let found: Vec<HashMap<String, String>> = self.connection.pipeline(Question::Approvals, &pipe).await?;
        let read = ids.iter().zip(found).filter_map(|(id, fields)| ApprovalFacts::read(id, fields));
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

    /// The arguments of a call as its turn has them, while that is under way.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn arguments_of(&self, turn: &TurnName, position: usize) -> Result<Option<String>, StoreError> {
        let mut command = redis::cmd("HGET");
        command.arg(self.keys.turn(turn)).arg(format!("{}{position}", turn::CALL));
        let call: Option<String> = self.connection.query(Question::Approvals, &command).await?;
        let call = call.and_then(|call| serde_json::from_str::<tickfleet_model::Call>(&call).ok());
        Ok(call.map(|call| call.arguments))
    }
}

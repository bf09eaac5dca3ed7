//! Sessions of a user with an agent, in exchanges.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::{AgentId, SessionName, TenantId, limits};

use crate::decision::{Context, Decision, Step};
use crate::record::Record;
use crate::transaction::{RecordKey, Write};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    #[serde(rename = "ag")]
    pub agent: AgentId,
    #[serde(rename = "f")]
    pub first: u64,
    #[serde(rename = "x")]
    pub exchanges: Vec<Exchange>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    #[serde(rename = "u")]
    pub user_bytes: usize,
    #[serde(rename = "a")]
    pub answer: Answer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Awaited,
    /// The size of the answer in bytes.
    Given(usize),
}

impl Record for Session {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    User,
    Agent,
}

#[must_use]
pub fn session_key(tenant: &TenantId, session: &SessionName) -> RecordKey {
    RecordKey::new(format!("session:{tenant}:{session}"))
}

#[must_use]
pub fn message_part(side: Side, number: u64) -> Arc<str> {
    match side {
        Side::User => format!("u{number}"),
        Side::Agent => format!("a{number}"),
    }
    .into()
}

impl Session {
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.first + self.exchanges.len() as u64
    }

    fn exchange(&mut self, number: u64) -> Option<&mut Exchange> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.exchanges.get_mut(index)
    }

    fn bytes(&self) -> usize {
        let bytes = |exchange: &Exchange| {
            exchange.user_bytes
                + match exchange.answer {
                    Answer::Awaited => 0,
                    Answer::Given(bytes) => bytes,
                }
        };
        self.exchanges.iter().map(bytes).sum()
    }

    /// Never removes the last exchange. Returns the parts of the removed exchanges.
    fn trim(&mut self) -> Vec<Arc<str>> {
        let mut gone = Vec::new();
        while self.exchanges.len() > 1
            && (self.exchanges.len() as u64 > limits::SESSION_EXCHANGES_MAX || self.bytes() > limits::SESSION_BYTES_MAX)
        {
            gone.extend([message_part(Side::User, self.first), message_part(Side::Agent, self.first)]);
            self.exchanges.remove(0);
            self.first += 1;
        }
        gone
    }
}

/// Each side of an exchange has at most one message.
#[derive(Debug, Clone)]
pub struct AddMessage {
    pub tenant: TenantId,
    pub session: SessionName,
    pub agent: AgentId,
    /// From 1.
    pub number: u64,
    pub side: Side,
    pub text: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageResult {
    Done,
    Already,
    /// The exchange has another message from this side.
    Conflict,
    /// A user's message is not for the next exchange, or an answer is for a missing exchange.
    Gap,
    OtherAgent,
}

impl AddMessage {
    fn part(&self) -> Arc<str> {
        message_part(self.side, self.number)
    }

    fn reserve_exchange(&self, session: &mut Session) -> bool {
        let is_next = self.number == session.next();
        match (self.side, session.exchange(self.number)) {
            (Side::User, _) if is_next => {
                let user_bytes = self.text.len();
                session.exchanges.push(Exchange { user_bytes, answer: Answer::Awaited });
                true
            }
            (Side::Agent, Some(exchange)) => {
                exchange.answer = Answer::Given(self.text.len());
                true
            }
            _ => false,
        }
    }
}

impl Decision for AddMessage {
    type Output = MessageResult;

    fn reads(&self) -> Vec<Query> {
        let key = session_key(&self.tenant, &self.session);
        vec![Query::Record(key.clone()), Query::Parts(key, vec![self.part()])]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<MessageResult>, Undecided> {
        let key = session_key(&self.tenant, &self.session);
        let (mut transaction, stored) = context.update::<Session>(view, &key)?;
        transaction.dedupe_record = Some(key.clone());
        let new = || Session { agent: self.agent.clone(), first: 1, exchanges: Vec::new() };
        let mut session = stored.unwrap_or_else(new);
        if session.agent != self.agent {
            return Ok(Step::Return(MessageResult::OtherAgent));
        }
        if let Some(Some(text)) = view.parts(&key, vec![self.part()])?.first() {
            let is_same = *text == self.text;
            return Ok(Step::Return(if is_same { MessageResult::Already } else { MessageResult::Conflict }));
        }
        if !self.reserve_exchange(&mut session) {
            return Ok(Step::Return(MessageResult::Gap));
        }
        let gone = session.trim();
        if !gone.is_empty() {
            transaction.write(Write::DeleteParts(key.clone(), gone));
        }
        // `trim` may have removed the exchange of an answer.
        if self.number >= session.first {
            transaction.write(Write::PutPart(key.clone(), self.part(), self.text.clone()));
        }
        transaction.put_for(&key, &session, limits::SESSION_KEPT_MS);
        Ok(Step::Commit(transaction, MessageResult::Done))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trial::Trial;

    fn add(side: Side, number: u64, text: impl Into<Bytes>) -> AddMessage {
        AddMessage {
            tenant: TenantId::new("acme").unwrap(),
            session: SessionName::new("s").unwrap(),
            agent: AgentId::new("kelly").unwrap(),
            number,
            side,
            text: text.into(),
        }
    }

    fn key() -> RecordKey {
        session_key(&TenantId::new("acme").unwrap(), &SessionName::new("s").unwrap())
    }

    #[test]
    fn an_exchange_must_follow_the_previous_one() {
        let mut shard = Trial::at(1_000);
        for (message, result) in [
            (add(Side::Agent, 1, "hi"), MessageResult::Gap),
            (add(Side::User, 2, "hi"), MessageResult::Gap),
            (add(Side::User, 1, "hi"), MessageResult::Done),
            (add(Side::User, 1, "hi"), MessageResult::Already),
            (add(Side::User, 1, "ho"), MessageResult::Conflict),
            (add(Side::User, 2, "and"), MessageResult::Done),
            (add(Side::Agent, 1, "hello"), MessageResult::Done),
            (add(Side::Agent, 1, "hello"), MessageResult::Already),
            (add(Side::Agent, 1, "bye"), MessageResult::Conflict),
            (add(Side::Agent, 3, "x"), MessageResult::Gap),
            (AddMessage { agent: AgentId::new("finn").unwrap(), ..add(Side::User, 3, "x") }, MessageResult::OtherAgent),
        ] {
            assert_eq!(shard.run(&message), result, "{message:?}");
        }
        shard.pass(limits::SESSION_KEPT_MS);
        assert_eq!(shard.record::<Session>(&key()), None);
        assert_eq!(shard.run(&add(Side::User, 1, "ho")), MessageResult::Done);
    }

    #[test]
    fn two_user_messages_cannot_share_an_exchange_number() {
        let mut shard = Trial::at(1_000);
        let first = add(Side::User, 1, "a");
        let second = add(Side::User, 1, "b");
        let decided = shard.step(&second);
        assert_eq!(shard.run(&first), MessageResult::Done);
        assert_eq!(shard.finish(&second, decided).result, MessageResult::Conflict);
    }

    #[test]
    fn an_answer_that_evicts_its_own_exchange_is_dropped() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&add(Side::User, 1, "a"));
        shard.receipt(&add(Side::User, 2, vec![b'x'; limits::SESSION_BYTES_MAX - 10]));
        assert_eq!(shard.run(&add(Side::Agent, 1, vec![b'y'; 20])), MessageResult::Done);
        let session: Session = shard.record(&key()).unwrap();
        assert_eq!((session.first, session.exchanges.len()), (2, 1));
        assert_eq!(shard.parts[&key()].len(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_session_is_bounded(steps in prop::collection::vec((any::<bool>(), 0..3u64, 0..60_000usize), 1..150)) {
            let mut shard = Trial::at(1_000);
            for (user, back, bytes) in steps {
                let next = shard.record::<Session>(&key()).map_or(1, |session| session.next());
                let (side, number) = if user { (Side::User, next) } else { (Side::Agent, next.saturating_sub(1 + back)) };
                shard.receipt(&add(side, number, vec![b'x'; bytes]));
            }
            let Some(session) = shard.record::<Session>(&key()) else { return Ok(()) };
            let parts = &shard.parts[&key()];
            prop_assert_eq!(parts.values().map(Bytes::len).sum::<usize>(), session.bytes());
            prop_assert!(session.exchanges.len() as u64 <= limits::SESSION_EXCHANGES_MAX);
            prop_assert!(session.bytes() <= limits::SESSION_BYTES_MAX || session.exchanges.len() == 1);
            for (number, exchange) in (session.first..).zip(&session.exchanges) {
                let bytes = |side| parts.get(&message_part(side, number)).map(Bytes::len);
                prop_assert_eq!(bytes(Side::User), Some(exchange.user_bytes));
                let answer = bytes(Side::Agent).map_or(Answer::Awaited, Answer::Given);
                prop_assert_eq!(answer, exchange.answer);
            }
        }
    }
}

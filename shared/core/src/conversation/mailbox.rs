//! Messages between agents. Each message is received once.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::{AgentId, TenantId, limits};

use crate::decision::{Context, Decision, Step};
use crate::record::Record;
use crate::transaction::{RecordKey, Transaction, Write};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mailbox {
    #[serde(rename = "m")]
    pub messages: Vec<Mail>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mail {
    /// Also the name of the part.
    #[serde(rename = "i")]
    pub id: Arc<str>,
    #[serde(rename = "t")]
    pub at_ms: i64,
    #[serde(rename = "s")]
    pub state: MailState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MailState {
    Unread,
    /// The entry of a read message is kept, so that the message is not delivered a second time.
    Read {
        /// The call that read the message. If this call is repeated, it receives the same messages.
        by: String,
        at_ms: i64,
    },
}

impl Record for Mailbox {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn mailbox_key(tenant: &TenantId, agent: &AgentId) -> RecordKey {
    RecordKey::new(format!("mailbox:{tenant}:{agent}"))
}

impl Mailbox {
    fn unread(&self) -> usize {
        self.messages.iter().filter(|mail| mail.state == MailState::Unread).count()
    }

    fn trim(&mut self, now_ms: i64) -> Vec<Arc<str>> {
        let mut beyond = (self.messages.len() - self.unread()).saturating_sub(limits::MESSAGES_READ_MAX);
        let mut gone = Vec::new();
        self.messages.retain(|mail| {
            let is_read = mail.state != MailState::Unread;
            let goes = mail.at_ms <= now_ms - limits::MESSAGES_KEPT_MS || is_read && beyond > 0;
            if goes {
                beyond = beyond.saturating_sub(usize::from(is_read));
                gone.push(mail.id.clone());
            }
            !goes
        });
        gone
    }
}

#[derive(Debug, Clone)]
pub struct SendMessage {
    pub tenant: TenantId,
    pub to: AgentId,
    /// The same for all attempts of the sending call.
    pub id: Arc<str>,
    pub text: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendResult {
    Done,
    Already,
    Full,
}

impl Decision for SendMessage {
    type Output = SendResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(mailbox_key(&self.tenant, &self.to))]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<SendResult>, Undecided> {
        let key = mailbox_key(&self.tenant, &self.to);
        let (mut transaction, stored) = context.update::<Mailbox>(view, &key)?;
        transaction.dedupe_record = Some(key.clone());
        let mut mailbox = stored.unwrap_or_default();
        let gone = mailbox.trim(context.now_ms);
        if mailbox.messages.iter().any(|mail| mail.id == self.id) {
            return Ok(Step::Return(SendResult::Already));
        }
        if mailbox.unread() >= limits::MESSAGES_UNREAD_MAX {
            return Ok(Step::Return(SendResult::Full));
        }
        if !gone.is_empty() {
            transaction.write(Write::DeleteParts(key.clone(), gone));
        }
        mailbox.messages.push(Mail { id: self.id.clone(), at_ms: context.now_ms, state: MailState::Unread });
        transaction.write(Write::PutPart(key.clone(), self.id.clone(), self.text.clone())).put_for(
            &key,
            &mailbox,
            limits::MESSAGES_KEPT_MS,
        );
        Ok(Step::Commit(transaction, SendResult::Done))
    }
}

/// A repeated decision with the same `name` returns the same messages, because the first response may have been lost.
#[derive(Debug, Clone)]
pub struct ReceiveMessages {
    pub tenant: TenantId,
    pub agent: AgentId,
    pub name: String,
    pub count: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMessage {
    pub at_ms: i64,
    pub text: Bytes,
}

impl ReceiveMessages {
    fn has_received(&self, mail: &Mail, now_ms: i64) -> bool {
        let from_ms = now_ms - limits::MESSAGES_HEARD_MS;
        matches!(&mail.state, MailState::Read { by, at_ms } if *by == self.name && *at_ms > from_ms)
    }

    fn texts(key: &RecordKey, messages: &[&Mail], view: &View) -> Result<Vec<ReceivedMessage>, Undecided> {
        let ids = messages.iter().map(|mail| mail.id.clone()).collect();
        let texts = view.parts(key, ids)?;
        let received = messages.iter().zip(texts);
        Ok(received
            .filter_map(|(mail, text)| Some(ReceivedMessage { at_ms: mail.at_ms, text: text.clone()? }))
            .collect())
    }
}

impl Decision for ReceiveMessages {
    type Output = Vec<ReceivedMessage>;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(mailbox_key(&self.tenant, &self.agent))]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Vec<ReceivedMessage>>, Undecided> {
        let key = mailbox_key(&self.tenant, &self.agent);
        let now_ms = context.now_ms;
        let Some(stored) = view.record::<Mailbox>(&key)? else { return Ok(Step::Return(Vec::new())) };
        let mut mailbox = stored.value;
        let again: Vec<&Mail> = mailbox.messages.iter().filter(|mail| self.has_received(mail, now_ms)).collect();
        if !again.is_empty() {
            return Ok(Step::Return(Self::texts(&key, &again, view)?));
        }
        let oldest_ms = now_ms - limits::MESSAGES_KEPT_MS;
        let is_new = |mail: &&Mail| mail.state == MailState::Unread && mail.at_ms > oldest_ms;
        let new: Vec<&Mail> = mailbox.messages.iter().filter(is_new).take(self.count).collect();
        if new.is_empty() {
            return Ok(Step::Return(Vec::new()));
        }
        let received = Self::texts(&key, &new, view)?;
        let ids: Vec<Arc<str>> = new.iter().map(|mail| mail.id.clone()).collect();
        for mail in mailbox.messages.iter_mut().filter(|mail| ids.contains(&mail.id)) {
            mail.state = MailState::Read { by: self.name.clone(), at_ms: now_ms };
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(crate::Guard::Version(key.clone(), stored.version));
        transaction.dedupe_record = Some(key.clone());
        transaction.put_for(&key, &mailbox, limits::MESSAGES_KEPT_MS);
        Ok(Step::Commit(transaction, received))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::trial::Trial;

    fn owner() -> (TenantId, AgentId) {
        (TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap())
    }

    fn send(id: &str) -> SendMessage {
        let (tenant, to) = owner();
        SendMessage { tenant, to, id: id.into(), text: id.to_owned().into() }
    }

    fn receive(name: &str, count: usize) -> ReceiveMessages {
        let (tenant, agent) = owner();
        ReceiveMessages { tenant, agent, name: name.into(), count }
    }

    fn texts(received: &[ReceivedMessage]) -> Vec<String> {
        received.iter().map(|message| String::from_utf8_lossy(&message.text).into_owned()).collect()
    }

    fn mailbox(shard: &Trial) -> Mailbox {
        shard.record(&mailbox_key(&owner().0, &owner().1)).unwrap_or_default()
    }

    #[test]
    fn a_message_is_received_once() {
        let mut shard = Trial::at(1_000);
        assert!(shard.run(&receive("r0", 9)).is_empty());
        for id in ["a", "b", "c"] {
            assert_eq!(shard.run(&send(id)), SendResult::Done);
        }
        assert_eq!(texts(&shard.run(&receive("r1", 2))), ["a", "b"]);
        assert_eq!(texts(&shard.run(&receive("r1", 2))), ["a", "b"], "the answer may have been lost");
        assert_eq!(shard.run(&send("a")), SendResult::Already);
        assert_eq!(texts(&shard.run(&receive("r2", 2))), ["c"]);
        assert!(shard.run(&receive("r3", 2)).is_empty());
        shard.pass(limits::MESSAGES_HEARD_MS);
        assert!(shard.run(&receive("r1", 2)).is_empty());
    }

    #[test]
    fn two_concurrent_messages_both_arrive() {
        let mut shard = Trial::at(1_000);
        let decided = shard.step(&send("a"));
        shard.receipt(&send("b"));
        assert_eq!(shard.finish(&send("a"), decided).result, SendResult::Done);
        assert_eq!(texts(&shard.run(&receive("r1", 9))), ["b", "a"]);
    }

    #[test]
    fn unread_and_read_messages_are_bounded_and_expire() {
        let mut shard = Trial::at(1_000);
        for number in 0..limits::MESSAGES_UNREAD_MAX {
            shard.receipt(&send(&format!("a{number}")));
        }
        assert_eq!(shard.run(&send("b")), SendResult::Full);
        shard.receipt(&receive("r1", limits::MESSAGES_UNREAD_MAX));
        for number in 0..limits::MESSAGES_UNREAD_MAX {
            shard.receipt(&send(&format!("c{number}")));
        }
        shard.receipt(&receive("r2", 1));
        shard.receipt(&send("d"));
        assert!(!mailbox(&shard).messages.iter().any(|mail| &*mail.id == "a0"), "the oldest one that was read");
        assert_eq!(mailbox(&shard).messages.len(), limits::MESSAGES_UNREAD_MAX + limits::MESSAGES_READ_MAX);
        shard.pass(limits::MESSAGES_KEPT_MS - 1);
        shard.receipt(&receive("r3", 1));
        shard.pass(1);
        assert_eq!(shard.run(&send("e")), SendResult::Done);
        assert_eq!(mailbox(&shard).messages.len(), 1);
        assert_eq!(shard.parts[&mailbox_key(&owner().0, &owner().1)].len(), 1);
    }

    proptest! {
        #[test]
        fn each_message_has_one_receiver(steps in prop::collection::vec((any::<bool>(), any::<bool>(), 1..4usize), 1..60)) {
            let mut shard = Trial::at(1_000);
            let mut decided = None;
            let mut seen = BTreeSet::new();
            for (number, (sends, keep_it, count)) in steps.into_iter().enumerate() {
                if sends {
                    shard.receipt(&send(&number.to_string()));
                    continue;
                }
                let next = receive(&number.to_string(), count);
                if keep_it {
                    decided = Some((shard.step(&next), next));
                    continue;
                }
                let mut received = shard.run(&next);
                if let Some((old, step)) = decided.take() {
                    received.extend(shard.finish(&step, old).result);
                }
                for text in texts(&received) {
                    prop_assert!(seen.insert(text));
                }
            }
            let parts = shard.parts.get(&mailbox_key(&owner().0, &owner().1)).map_or(0, std::collections::BTreeMap::len);
            prop_assert_eq!(parts, mailbox(&shard).messages.len());
        }
    }
}

//! The inbound streams: messages that no scheduler has decided yet.

use tickfleet_core::recovery::inbound::fields;
use tickfleet_core::turn::end::{GivenId, GivenState};
use tickfleet_core::turn::submit::Inbound;
use tickfleet_core::view::Fields;
use tickfleet_core::{EntryId, Query, Stored, Value};

use crate::{Store, StoreError, TurnName};

/// The maximum number of lookups. If a scheduler crashes, its message moves to another entry, so one lookup can miss
/// the message.
const LOOKUPS_MAX: usize = 4;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndecidedMessage {
    pub from: Inbound,
    /// JSON.
    pub message: String,
    /// True if the turn's name is derived from the ID of the entry.
    pub is_minted: bool,
}

impl Store {
    /// A decision removes the entry and writes the record in one transaction. So a caller that finds nothing here, and
    /// then reads the record, misses no turn.
    ///
    /// After a crash of the scheduler, a message with an ID from its entry is not found. A task that was added without
    /// [`Self::enqueue_task`] is not found either.
    pub async fn undecided(&self, name: &TurnName) -> Result<Option<UndecidedMessage>, StoreError> {
        if let Some((from, minted)) = minted(name)
            && let Some(fields) = self.inbound_entry(from, minted).await?
            && let Some(message) = text(&fields, from.field())
        {
            return Ok(Some(UndecidedMessage { from, message, is_minted: true }));
        }
        let mut known: Option<EntryId> = None;
        for _ in 0..LOOKUPS_MAX {
            let found = self.queued(name).await?.and_then(|given| given.entry);
            let Some(entry) = found.filter(|entry| known.as_ref() != Some(entry)) else { break };
            for from in [Inbound::Turns, Inbound::Tasks] {
                let Some(fields) = self.inbound_entry(from, entry.clone()).await? else { continue };
                // Compare the name, because the other stream may have an entry with the same ID.
                if text(&fields, fields::GIVEN).as_deref() == Some(name.to_string().as_str())
                    && let Some(message) = text(&fields, from.field())
                {
                    return Ok(Some(UndecidedMessage { from, message, is_minted: false }));
                }
            }
            known = Some(entry);
        }
        Ok(None)
    }

    pub async fn waits_for_admission(&self, name: &TurnName) -> Result<bool, StoreError> {
        Ok(self.queued(name).await?.is_some())
    }

    pub async fn content_of(&self, name: &TurnName) -> Result<Option<String>, StoreError> {
        Ok(self.record_of::<GivenId>(&name.given()).await?.map(|given| given.value.digest))
    }

    async fn queued(&self, name: &TurnName) -> Result<Option<Stored<GivenId>>, StoreError> {
        let given = self.record_of::<GivenId>(&name.given()).await?;
        Ok(given.filter(|given| given.value.state == GivenState::Queued))
    }

    async fn inbound_entry(&self, from: Inbound, entry: EntryId) -> Result<Option<Fields>, StoreError> {
        match self.query(Query::Entry(from.stream(), entry)).await? {
            Value::Entry(fields) => Ok(fields),
            _ => Ok(None),
        }
    }
}

fn text(fields: &Fields, name: &str) -> Option<String> {
    let (_, value) = fields.iter().find(|(field, _)| &**field == name)?;
    Some(String::from_utf8_lossy(value).into_owned())
}

fn minted(name: &TurnName) -> Option<(Inbound, EntryId)> {
    let id = name.turn.as_str();
    let (from, entry) = match id.split_at_checked(1)? {
        ("t", entry) => (Inbound::Turns, entry),
        ("k", entry) => (Inbound::Tasks, entry),
        _ => return None,
    };
    let (ms, seq) = entry.split_once('-')?;
    let is_number = |half: &str| half.parse::<u64>().is_ok() && half.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(ms) && is_number(seq)).then(|| (from, EntryId::new(entry)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use tickfleet_model::{TenantId, TurnId};

    use super::*;
    use crate::seam::memory::MemoryStore;
    use crate::{StoreOptions, Submission, Submitted};

    #[tokio::test]
    async fn an_undecided_message_is_found_by_its_id() {
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
        let tenant = TenantId::new("acme").unwrap();
        let submission = |turn: Option<&str>, payload: &'static str| Submission {
            tenant: tenant.clone(),
            turn: turn.map(|turn| TurnId::new(turn).unwrap()),
            digest: "d".into(),
            reply_to: None,
            payload: payload.into(),
        };
        let name = |turn: &str| TurnName { tenant: tenant.clone(), turn: TurnId::new(turn).unwrap() };
        let all = store.submit(&[submission(Some("mine"), "{}"), submission(None, "[]")]).await.unwrap();
        let Ok(Submitted::Accepted { entry }) = &all[1] else { unreachable!() };
        let waits =
            |message: &str, is_minted| UndecidedMessage { from: Inbound::Turns, message: message.into(), is_minted };
        assert_eq!(store.undecided(&name("mine")).await.unwrap(), Some(waits("{}", false)));
        assert_eq!(store.undecided(&name(&format!("t{entry}"))).await.unwrap(), Some(waits("[]", true)));
        assert_eq!(store.undecided(&name("other")).await.unwrap(), None);
        let task = store.enqueue_task(&submission(Some("job"), "1")).await.unwrap();
        assert!(matches!(task, Submitted::Accepted { .. }));
        let found = store.undecided(&name("job")).await.unwrap().unwrap();
        assert_eq!((found.from, found.message.as_str()), (Inbound::Tasks, "1"));
        assert_eq!(store.content_of(&name("job")).await.unwrap().as_deref(), Some("d"));
        assert!(store.waits_for_admission(&name("job")).await.unwrap());
        assert_eq!(store.enqueue_task(&submission(Some("job"), "1")).await.unwrap(), Submitted::Duplicate);
        let other = Submission { digest: "e".into(), ..submission(Some("job"), "2") };
        let sent = store.enqueue_task(&other).await.unwrap();
        assert!(matches!(sent, Submitted::Accepted { .. }), "the scheduler replies that there is a conflict");
        assert_eq!(store.content_of(&name("job")).await.unwrap().as_deref(), Some("d"));
    }
}

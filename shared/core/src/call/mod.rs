//! Decisions about one call: approval, facts, idempotency claim, streak and cache.
//!
//! Each subject has a record, pure functions that change it, and sections. A section adds its guards and writes to the
//! transaction of another decision. So a call with all these checks needs one read, one [`begin`] and one settle.

pub mod above;
pub mod approval;
pub mod begin;
pub mod cache;
pub mod claim;
pub mod facts;
pub mod progress;
pub mod streak;

#[cfg(test)]
pub(crate) mod testing;

use std::fmt;

use serde::{Deserialize, Serialize};
use tickfleet_model::{CallId, TenantId, TurnId};

use crate::decision::Context;
use crate::keys::TurnName;
use crate::section::Section;
use crate::transaction::{Conflict, RecordKey, TimerRule, Transaction};
use crate::turn::{EndSection, Turn};
use crate::view::{Undecided, View};

/// As text: `<turn>/<position>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CallName {
    pub turn: TurnId,
    pub position: usize,
}

impl fmt::Display for CallName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.turn, self.position)
    }
}

impl CallName {
    #[must_use]
    pub const fn new(turn: TurnId, position: usize) -> Self {
        Self { turn, position }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (turn, position) = text.rsplit_once('/')?;
        Some(Self { turn: TurnId::new(turn).ok()?, position: position.parse().ok()? })
    }
}

impl From<CallId> for CallName {
    fn from(call: CallId) -> Self {
        Self { turn: call.turn, position: call.position }
    }
}

impl TryFrom<String> for CallName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("expected `<turn>/<position>`, found `{text}`"))
    }
}

impl From<CallName> for String {
    fn from(call: CallName) -> Self {
        call.to_string()
    }
}

/// Ends a call without a known result. Any possible fact change of the call may have happened. The call's claim stays:
/// the next equal call looks up the result.
pub fn end_unreported(
    name: &TurnName,
    turn: &Turn,
    transaction: &mut Transaction,
    view: &View,
    context: &Context,
) -> Result<(), Undecided> {
    if let Some(id) = &turn.approval {
        approval::VoidApproval { tenant: &name.tenant, id }.add_to(transaction, view, context)?;
    }
    facts::EndCalls::unreported(&name.tenant, &name.turn, turn)
        .map_or(Ok(()), |unreported| unreported.add_to(transaction, view, context))
}

#[derive(Debug, Clone, Copy)]
pub struct EndUnreported;

impl EndSection for EndUnreported {
    fn add_to(
        &self,
        name: &TurnName,
        turn: &Turn,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<(), Undecided> {
        end_unreported(name, turn, transaction, view, context)
    }
}

/// If the turn does not wait, the timer fires without effect.
fn wake(transaction: &mut Transaction, tenant: &TenantId, turn: &TurnId, now_ms: i64) {
    let name = TurnName { tenant: tenant.clone(), turn: turn.clone() };
    transaction.timer(name.timer(), now_ms, TimerRule::Wake);
}

fn due_at_once(transaction: &mut Transaction, tenant: &TenantId, turn: &TurnId, now_ms: i64) {
    let name = TurnName { tenant: tenant.clone(), turn: turn.clone() };
    transaction.timer(name.timer(), now_ms, TimerRule::Earlier);
}

/// An advisory section is skipped after this number of conflicts. No guarantee depends on such a section.
const ADVISORY_CONFLICTS_MAX: usize = 3;

fn is_contended(key: &RecordKey, context: &Context) -> bool {
    let of_record = |conflict: &&Conflict| matches!(conflict, Conflict::Record { key: of, .. } if of == key);
    context.conflicts.iter().filter(of_record).count() >= ADVISORY_CONFLICTS_MAX
}

#[cfg(test)]
mod tests {
    use super::testing::{MiniStore, call, name, turn};
    use super::*;
    use crate::transaction::Write;
    use crate::view::Query;
    use crate::{Record, Version};

    #[test]
    fn a_call_name_round_trips_as_a_map_key() {
        let map: std::collections::BTreeMap<CallName, u8> = [(call("t.0.call-1", 3), 1)].into();
        let text = serde_json::to_string(&map).unwrap();
        assert_eq!(text, r#"{"t.0.call-1/3":1}"#);
        assert_eq!(serde_json::from_str::<std::collections::BTreeMap<CallName, u8>>(&text).unwrap(), map);
        assert_eq!(CallName::parse("t"), None);
        assert_eq!(CallName::parse("t/x"), None);
    }

    #[test]
    fn ending_a_turn_without_approval_or_session_writes_nothing() {
        let mut store = MiniStore::default();
        store
            .section(|transaction, view, context| {
                end_unreported(&name("t"), &turn(), transaction, view, context)?;
                assert_eq!(*transaction, Transaction::new(context.version.clone()));
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn a_view_reflects_a_committed_transaction() {
        let key = name("t").record();
        let gone = name("u").record();
        let mut view = View::default();
        let parts = Query::Parts(key.clone(), vec!["c0".into()]);
        view.insert(parts.clone(), crate::Value::Parts(vec![None]));
        let mut transaction = Transaction::new(Version::new("v1"));
        transaction.put(&key, &turn()).write(Write::Delete(gone.clone()));
        view.apply_transaction(&transaction);
        let stored = view.record::<Turn>(&key).unwrap().unwrap();
        assert_eq!((stored.version, stored.value), (Version::new("v1"), turn()));
        assert_eq!(view.record::<Turn>(&gone), Ok(None));
        assert!(view.get(&parts).is_err());
        transaction.stamped = true;
        view.apply_transaction(&transaction);
        assert!(view.record::<Turn>(&key).is_err(), "the store writes its counters with it");
        assert_eq!(Turn::decode(&turn().encode()), Ok(turn()));
    }
}

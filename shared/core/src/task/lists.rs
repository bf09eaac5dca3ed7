//! Lists of task IDs for users: the newest tasks of a tenant or a parent.

use tickfleet_model::limits::{TASKS_LISTED_MAX, TASKS_LISTED_MS};

use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::transaction::{Conflict, Guard, SetKey, Transaction};
use crate::view::{Query, Undecided, Value, View};

/// Each addition removes at most this many members. With two or more, a list shrinks again after concurrent additions.
const UNLISTED_MAX: usize = 2;

const EXPIRED_MAX: usize = 256;

/// The score of a list is the time (ms) when its last member expires.
#[must_use]
pub fn lists() -> SetKey {
    SetKey::new("lists")
}

#[derive(Debug, Clone, Copy)]
pub struct ExpireList;

impl Decision for ExpireList {
    /// True if the caller must repeat the decision.
    type Output = bool;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        if context.failed(|conflict| *conflict == Conflict::Full) {
            return Ok(Step::Return(true));
        }
        let now = u64::try_from(context.now_ms).unwrap_or(0);
        let Some((name, _)) = view.first(&lists(), Some(now), 1)?.first() else { return Ok(Step::Return(false)) };
        let list = SetKey::new(name);
        let members = view.first(&list, None, EXPIRED_MAX)?;
        let mut transaction = Transaction::new(context.version.clone());
        if members.len() < EXPIRED_MAX {
            // The guard fails if a task was added in the meantime. No member has an empty name, so only the size
            // counts.
            let max = members.len() as u64 + 1;
            transaction.guard(Guard::Fits { set: list.clone(), member: "".into(), max });
            transaction.leave(lists(), name.clone());
        }
        for (member, _) in members {
            transaction.leave(list.clone(), member.clone());
        }
        Ok(Step::Commit(transaction, true))
    }
}

pub fn add_to_list(
    transaction: &mut Transaction,
    view: &View,
    list: SetKey,
    name: &TurnName,
    now_ms: i64,
) -> Result<(), Undecided> {
    let size = match view.get(&Query::Size(list.clone()))? {
        Value::Size(size) => *size,
        _ => 0,
    };
    let oldest = u64::try_from(now_ms - TASKS_LISTED_MS).unwrap_or(0);
    for (member, score) in view.first(&list, None, UNLISTED_MAX)? {
        if size >= TASKS_LISTED_MAX || *score < oldest {
            transaction.leave(list.clone(), member.clone());
        }
    }
    transaction.join(lists(), list.as_str(), now_ms + TASKS_LISTED_MS).join(list, name.turn.as_str(), now_ms);
    Ok(())
}

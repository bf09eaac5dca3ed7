//! Parks a call that waits for facts.

use super::super::{CallName, due_at_once, wake};
use super::check::{CheckFacts, Precondition};
use super::put_session;
use crate::decision::Context;
use crate::section::Section;
use crate::transaction::Transaction;
use crate::turn::Turn;
use crate::view::{Undecided, View};

/// No call wakes further turns. They check again when their own timers fire.
const WAITING_MAX: usize = 256;

/// Section of [`crate::turn::Park`]. Checks the facts again: if two turns begin to wait for each other, the later
/// transaction detects the deadlock. A turn that need not wait is due at once.
#[derive(Debug, Clone, Copy)]
pub struct WaitForFacts<'a> {
    pub asks: &'a CheckFacts,
    pub call: &'a CallName,
    pub own: &'a Turn,
}

impl Section for WaitForFacts<'_> {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let Self { asks, call, own } = *self;
        let tenant = &asks.session.tenant;
        let now_ms = context.now_ms;
        let (before, checked) = asks.checked(transaction, view, call, own, now_ms)?;
        let Precondition::Waits { turn } = checked.precondition else {
            due_at_once(transaction, tenant, &call.turn, now_ms);
            return Ok(());
        };
        let mut session = checked.session;
        if turn != call.turn && session.waiting.len() < WAITING_MAX {
            session.waiting.insert(call.turn.clone(), turn);
        }
        if session != before {
            put_session(transaction, &asks.session.key(), &session, now_ms);
        }
        checked.woken.iter().for_each(|turn| wake(transaction, tenant, turn, now_ms));
        Ok(())
    }
}

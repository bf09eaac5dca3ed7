//! Ending a task with all that it has begun: the turn that is out, and the tasks below it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tickfleet_model::TurnId;
use tickfleet_store::{Cancelled, Store, StoreError, TurnName, TurnView};
use tokio::time::Instant;

use super::history::Step;
use super::turn_of;

/// How long a worker that holds the task is waited for: until it has heard of the cancel, it may begin something.
const HEARD_WITHIN: Duration = Duration::from_secs(5);
/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// An entry that no history has: its steps are not asked for.
const NO_STEPS: usize = 1 << 40;
/// Tasks that one cancel ends at most.
const TASKS_MAX: usize = 200;

/// What a cancel came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// It ends now.
    Ok,
    /// It ends as soon as whoever holds it has heard of it.
    Flagged,
    /// It had ended.
    Ended,
    /// Nothing of that name has come; when it comes, it ends.
    Waiting,
    /// As `waiting`, but too many cancels wait already: this one was not kept.
    Full,
    /// Nothing of that name is there, or its record is lost.
    Unknown,
}

impl From<Cancelled> for Word {
    fn from(cancelled: Cancelled) -> Self {
        match cancelled {
            Cancelled::Ok => Self::Ok,
            Cancelled::Flagged => Self::Flagged,
            Cancelled::Ended => Self::Ended,
            Cancelled::Waiting => Self::Waiting,
            Cancelled::Full => Self::Full,
            Cancelled::Unknown => Self::Unknown,
        }
    }
}

/// What was done to a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CancelledTask {
    /// The task.
    pub task: TurnId,
    /// What its cancel came to.
    pub answer: Word,
    /// Its turns that were out.
    pub turns: Vec<CancelledTurn>,
    /// The tasks below it.
    pub children: Vec<CancelledTask>,
}

/// What was done to a turn of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CancelledTurn {
    /// The turn.
    pub turn: TurnId,
    /// What its cancel came to.
    pub answer: Word,
}

/// Ends a task, the turn of it that is out, and the tasks below it, in this order: what it has begun cannot grow behind.
///
/// # Errors
/// [`StoreError`]; what was reached until then is ending, and the same cancel may be repeated.
pub async fn cancel_task(store: &Store, name: &TurnName, reason: &str) -> Result<CancelledTask, StoreError> {
    let mut seen = BTreeSet::new();
    one(store, name, reason, &mut seen).await
}

async fn one(
    store: &Store,
    name: &TurnName,
    reason: &str,
    seen: &mut BTreeSet<TurnId>,
) -> Result<CancelledTask, StoreError> {
    seen.insert(name.turn.clone());
    let awaits = store.pulse(name, NO_STEPS).await?.live.and_then(|record| record.awaits);
    let answer = Word::from(store.cancel(name, reason).await?);
    let (mut turns, mut children) = (Vec::new(), Vec::new());
    let below = format!("its task was cancelled: {reason}");
    let awaited = awaits.and_then(|turn| TurnId::new(turn).ok());
    if let Some(turn) = awaited {
        end_turn(store, TurnName { tenant: name.tenant.clone(), turn }, &below, seen, &mut turns).await?;
    }
    if answer == Word::Flagged {
        heard(store, name).await?;
    }
    if answer != Word::Waiting {
        if let Some(turn) = last_turn(store, name).await? {
            end_turn(store, turn, &below, seen, &mut turns).await?;
        }
        for child in store.children(name, TASKS_MAX).await? {
            let child = TurnName::task(&name.tenant, &child);
            let is_live = matches!(store.look(&child).await?, TurnView::Live(_));
            if is_live && seen.len() < TASKS_MAX && !seen.contains(&child.turn) {
                children.push(Box::pin(one(store, &child, &below, seen)).await?);
            }
        }
    }
    Ok(CancelledTask { task: name.turn.clone(), answer, turns, children })
}

/// Waits until a worker has let go of a task that is to end, within bounds.
async fn heard(store: &Store, name: &TurnName) -> Result<(), StoreError> {
    let until = Instant::now() + HEARD_WITHIN;
    while Instant::now() < until {
        let pulse = store.pulse(name, NO_STEPS).await?;
        if pulse.live.is_none_or(|record| record.fence.is_none() || record.is_ending()) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// The turn of its last plan.
async fn last_turn(store: &Store, name: &TurnName) -> Result<Option<TurnName>, StoreError> {
    let steps = store.steps(name, 0).await?;
    let plans = steps.iter().filter(|entry| matches!(Step::read(entry), Step::Plan(_))).count();
    Ok(if plans == 0 { None } else { turn_of(name, plans) })
}

/// Ends a turn that is under way, or waits for its admission; of one that is neither, nothing is to be ended.
async fn end_turn(
    store: &Store,
    turn: TurnName,
    reason: &str,
    seen: &mut BTreeSet<TurnId>,
    turns: &mut Vec<CancelledTurn>,
) -> Result<(), StoreError> {
    if seen.contains(&turn.turn) {
        return Ok(());
    }
    let is_there = matches!(store.look(&turn).await?, TurnView::Live(_)) || store.waits_for_admission(&turn).await?;
    if is_there {
        let answer = Word::from(store.cancel(&turn, reason).await?);
        seen.insert(turn.turn.clone());
        turns.push(CancelledTurn { turn: turn.turn, answer });
    }
    Ok(())
}

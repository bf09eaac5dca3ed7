//! Ending a task with what it has begun, and reporting that: the turn that it waits for, and the tasks below it.

use std::collections::BTreeSet;

use serde::Serialize;
use tickfleet_model::TurnId;
use tickfleet_store::{CancelResult, Store, StoreError, TurnName, TurnView};

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

impl From<CancelResult> for Word {
    fn from(cancelled: CancelResult) -> Self {
        match cancelled {
            CancelResult::Ok => Self::Ok,
            CancelResult::Flagged => Self::Flagged,
            CancelResult::Ended => Self::Ended,
            CancelResult::Waiting => Self::Waiting,
            CancelResult::Full => Self::Full,
            CancelResult::Unknown => Self::Unknown,
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

/// Ends a task, the turn that it waits for, and the tasks below it. The report names what was under way below it; what else is there
/// ends with it, too (see [`Store::cancel`]).
///
/// # Errors
/// [`StoreError`]; what was reached until then is ending, and the same cancel may be repeated.
pub async fn cancel_task(store: &Store, name: &TurnName, reason: &str) -> Result<CancelledTask, StoreError> {
    // Looked at first: once the task is cancelled, schedulers end what is below it, too.
    let branch = look_below(store, name, &mut BTreeSet::new()).await?;
    end(store, branch, reason, &format!("its parent was cancelled: {reason}")).await
}

/// A task, and what is under way below it.
struct Branch {
    name: TurnName,
    /// The turn that it waits for.
    awaits: Option<TurnName>,
    children: Vec<Branch>,
}

async fn look_below(store: &Store, name: &TurnName, seen: &mut BTreeSet<TurnId>) -> Result<Branch, StoreError> {
    seen.insert(name.turn.clone());
    let mut branch = Branch { name: name.clone(), awaits: None, children: Vec::new() };
    let awaits = store.task_progress(name, NO_STEPS).await?.live.and_then(|turn| turn.state.awaits().cloned());
    let awaits = awaits.filter(|turn| seen.insert(turn.clone()));
    if let Some(turn) = awaits {
        let turn = TurnName { tenant: name.tenant.clone(), turn };
        // One that has not come so far waits for its admission.
        let is_there = is_live(store, &turn).await? || store.waits_for_admission(&turn).await?;
        branch.awaits = is_there.then_some(turn);
    }
    for child in store.children(name, TASKS_MAX).await? {
        let child = TurnName::task(&name.tenant, &child);
        if seen.len() < TASKS_MAX && !seen.contains(&child.turn) && is_live(store, &child).await? {
            branch.children.push(Box::pin(look_below(store, &child, seen)).await?);
        }
    }
    Ok(branch)
}

async fn is_live(store: &Store, name: &TurnName) -> Result<bool, StoreError> {
    Ok(matches!(store.turn_view(name).await?, TurnView::Live(_)))
}

async fn end(store: &Store, branch: Branch, reason: &str, below: &str) -> Result<CancelledTask, StoreError> {
    let answer = Word::from(store.cancel(&branch.name, reason).await?);
    let (mut turns, mut children) = (Vec::new(), Vec::new());
    if let Some(turn) = branch.awaits {
        let answer = Word::from(store.cancel(&turn, below).await?);
        turns.push(CancelledTurn { turn: turn.turn, answer });
    }
    for child in branch.children {
        children.push(Box::pin(end(store, child, below, below)).await?);
    }
    Ok(CancelledTask { task: branch.name.turn, answer, turns, children })
}

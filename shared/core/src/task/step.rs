//! The history of a task that a model runs. After a takeover, the new holder continues from the history.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::limits::TASK_HISTORY_BYTES_MAX;

use super::spend::{Fenced, ReportedModelUse, held};
use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::{self, TurnName};
use crate::mutant;
use crate::record::{Record, Stored};
use crate::transaction::{EntryId, Guard, Transaction, Write};
use crate::turn::Turn;
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    #[serde(rename = "n")]
    pub entries: u64,
}

impl Record for History {
    const SCHEMA: u32 = 1;
}

/// Equal lengths keep the names in the order of the entries.
#[must_use]
pub fn part(number: u64) -> Arc<str> {
    format!("s{number:06}").into()
}

#[derive(Debug, Clone)]
pub struct AddSteps<'a> {
    pub name: TurnName,
    pub entry: EntryId,
    pub known: u64,
    /// Empty if only usage is counted.
    pub entries: Vec<Bytes>,
    pub spent: Option<ReportedModelUse>,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stepped {
    Ok(Box<Fenced>),
    Already(Box<Fenced>),
    /// The history would be too large. No entry is added, but the usage is counted.
    Full(Box<Fenced>),
    /// The caller no longer holds the task, or has not read all entries of the history.
    Stale,
}

impl Decision for AddSteps<'_> {
    type Output = Stepped;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(self.name.record())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Stepped>, Undecided> {
        let Some(stored) = held(view, &self.name, &self.entry)? else { return Ok(Step::Return(Stepped::Stale)) };
        let Some(task) = stored.value.task.as_ref() else { return Ok(Step::Return(Stepped::Stale)) };
        if !self.entries.is_empty() && self.is_in(view, task.steps)? {
            let fenced = Fenced { version: stored.version, turn: stored.value };
            return Ok(Step::Return(Stepped::Already(Box::new(fenced))));
        }
        if task.steps != self.known && !mutant!("steps_are_in_order") {
            return Ok(Step::Return(Stepped::Stale));
        }
        let bytes = task.steps_bytes + self.entries.iter().map(|entry| entry.len() as u64).sum::<u64>();
        let is_full = bytes > TASK_HISTORY_BYTES_MAX as u64 && !mutant!("a_history_is_bounded");
        let (transaction, fenced) = self.add(view, context, &stored, !is_full)?;
        let fenced = Box::new(fenced);
        Ok(Step::Commit(transaction, if is_full { Stepped::Full(fenced) } else { Stepped::Ok(fenced) }))
    }
}

impl AddSteps<'_> {
    fn is_in(&self, view: &View, steps: u64) -> Result<bool, Undecided> {
        if steps != self.known + self.entries.len() as u64 {
            return Ok(false);
        }
        let found = view.parts(&keys::steps(&self.name), vec![part(self.known)])?;
        Ok(found.first().and_then(Option::as_ref) == self.entries.first())
    }

    fn add(
        &self,
        view: &View,
        context: &Context,
        stored: &Stored<Turn>,
        with_entries: bool,
    ) -> Result<(Transaction, Fenced), Undecided> {
        let mut turn = stored.value.clone();
        let mut transaction = Transaction::new(context.version.clone());
        transaction.dedupe_record = Some(self.name.record());
        if !mutant!("step_guards_the_version") {
            transaction.guard(Guard::Version(self.name.record(), stored.version.clone()));
        }
        if let Some(spent) = &self.spent {
            spent.add_to(&mut transaction, view, &self.name, stored, &mut turn, context)?;
        }
        turn.entry = Some(self.entry.clone());
        let key = keys::steps(&self.name);
        if with_entries && let Some(task) = &mut turn.task {
            for entry in &self.entries {
                transaction.write(Write::PutPart(key.clone(), part(task.steps), entry.clone()));
                task.steps += 1;
                task.steps_bytes += entry.len() as u64;
            }
            // The task may run until its deadline, and its history stays for one retention time longer.
            let ttl_ms = (turn.head.deadline_ms - context.now_ms).max(0) + self.bounds.retain_ms;
            transaction.put_for(&key, &History { entries: task.steps }, ttl_ms);
        }
        transaction.put(&self.name.record(), &turn);
        Ok((transaction, Fenced { version: context.version.clone(), turn }))
    }
}

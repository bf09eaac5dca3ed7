//! The history of a task that is carried out in steps: a list that grows under the fence of the task's slice.

use crate::connection::question::Question;
use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// Entries of a history that one command reads.
const PAGE: isize = 32;

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// It is in the history.
    Ok,
    /// It was there already.
    Already,
    /// Another holds the task now, or has come further.
    Stale,
    /// The history has as many bytes as it may.
    Full,
}

impl Store {
    /// Adds entries to the history of a task, which has `known` of them.
    ///
    /// # Errors
    /// [`StoreError`]; the same step may be repeated.
    pub async fn step(
        &self,
        task: &TurnName,
        fence: &str,
        known: usize,
        entries: &[String],
    ) -> Result<Stepped, StoreError> {
        let mut args = self.args();
        args.show(task).text(fence).show(known).show(limits::TASK_HISTORY_BYTES_MAX).show(self.options.retain_ms);
        for entry in entries {
            args.text(entry.as_str());
        }
        let value = self.run(Verb::Step, args).await?;
        Ok(match text_of(&value).as_deref() {
            Some("OK") => Stepped::Ok,
            Some("ALREADY") => Stepped::Already,
            Some("STALE") => Stepped::Stale,
            Some("FULL") => Stepped::Full,
            _ => return Err(unexpected(Verb::Step.as_str(), &value)),
        })
    }

    /// The history of a task from entry `from` on, oldest first; empty where it has none, or ended longer ago than
    /// histories are kept. Read in pages, so that no answer of Redis is large.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn steps(&self, task: &TurnName, from: usize) -> Result<Vec<String>, StoreError> {
        let key = self.keys.steps(task);
        let mut all = Vec::new();
        let mut at = isize::try_from(from).unwrap_or(isize::MAX - PAGE);
        loop {
            let mut command = redis::cmd("LRANGE");
            command.arg(&key).arg(at).arg(at + PAGE - 1);
            let page: Vec<String> = self.connection.query(Question::Look, &command).await?;
            let full = page.len() >= PAGE.unsigned_abs();
            all.extend(page);
            if !full {
                return Ok(all);
            }
            at += PAGE;
        }
    }
}

//! The history of a task that is carried out in steps: a list that grows under the fence of the task's slice.

use crate::connection::question::Question;
use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, limits};

/// Entries of a history that one command reads.
const PAGE: isize = 32;

/// What one answer of a model has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent {
    /// The number of the request in its task, as it was reserved for.
    pub number: String,
    /// The agent.
    pub agent: AgentId,
    /// Tokens of the request.
    pub input: u64,
    /// Tokens of the answer.
    pub output: u64,
    /// What they cost, in millionths.
    pub cost: u64,
    /// The tenant's day, start and end, ms of shard time.
    pub day_ms: (i64, i64),
}

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
    /// Adds entries to the history of a task, which has `known` of them, and counts what the answer behind them has used. With
    /// no entries, it is counted alone.
    ///
    /// # Errors
    /// [`StoreError`]; the same step may be repeated.
    pub async fn step(
        &self,
        task: &TurnName,
        fence: &str,
        known: usize,
        entries: &[String],
        spent: Option<&Spent>,
    ) -> Result<Stepped, StoreError> {
        let mut args = self.args();
        args.show(task).text(fence).show(known).show(limits::TASK_HISTORY_BYTES_MAX).show(self.options.retain_ms);
        match spent {
            None => {
                for _ in 0..9 {
                    args.text("");
                }
            }
            Some(spent) => {
                args.text(spent.number.as_str()).show(&spent.agent).show(spent.input.min(limits::ANSWER_TOKENS_MAX));
                args.show(spent.output.min(limits::ANSWER_TOKENS_MAX)).show(spent.cost.min(limits::ANSWER_COST_MAX));
                args.show(spent.day_ms.0).show(spent.day_ms.1);
                args.show(limits::USAGE_DAYS_MAX * 86_400_000).show(limits::USAGE_AGENTS_MAX);
            }
        }
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

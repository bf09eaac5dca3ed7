//! Budgets of tokens and money: a request to a model debits its upper bound before it is sent.

use redis::Value;
use tickfleet_model::limit::LimitBound;

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::turns::limit::{CounterDebits, Counters, LimitRow};
use crate::{Store, StoreError};

/// The request whose upper bound is to be debited.
#[derive(Debug, Clone, Copy)]
pub struct Reservation<'a> {
    /// The task.
    pub task: &'a TurnName,
    /// The fence of its slice.
    pub fence: &'a str,
    /// The number of the request in its task: the same when it is repeated, another for another request.
    pub number: &'a str,
}

/// A budget that a request debits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetDebit {
    /// The counter, with the one amount.
    pub counter: CounterDebits,
    /// True for tokens, false for money.
    pub is_tokens: bool,
}

impl BudgetDebit {
    /// What `counter` counts, by its limit's bound.
    #[must_use]
    pub const fn new(counter: CounterDebits, bound: &LimitBound) -> Self {
        Self { counter, is_tokens: matches!(bound, LimitBound::Tokens(_)) }
    }
}

/// A budget that has no room for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortBudget {
    /// What becomes of the task.
    pub reach: ShortReach,
    /// The limit.
    pub limit: String,
    /// What it allows, in words.
    pub allows: String,
    /// What is used of it.
    pub used: u64,
    /// What the request may use.
    pub amount: u64,
    /// When its window ends, ms of shard time.
    pub ends_ms: i64,
    /// When whoever waits looks again, should nobody wake it before, ms of shard time.
    pub look_ms: i64,
    /// True if the task did not wait for this one before.
    pub is_news: bool,
}

/// What becomes of a task whose budget is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShortReach {
    /// It waits.
    Wait,
    /// It ends.
    Reject,
    /// It ends: one request may use more than the limit allows.
    Never,
}

/// The outcome of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reserved {
    /// It is debited. With the limits in whose shadow it is.
    Ok(Vec<String>),
    /// A budget has no room; nothing is debited.
    Short(ShortBudget),
    /// Another holds the task now.
    Stale,
    /// A day of the limits does not hold this time, ms.
    DayStale(i64),
}

impl Store {
    /// Debits budgets for one request of a task, all or none. `rows` are the limits that `debits` name.
    ///
    /// # Errors
    /// [`StoreError`]; the same reservation may be repeated.
    pub async fn reserve(
        &self,
        of: Reservation<'_>,
        rows: &[LimitRow],
        debits: &[BudgetDebit],
    ) -> Result<Reserved, StoreError> {
        let mut args = self.args();
        args.show(of.task).text(of.fence).text(of.number).flag(false).show(self.options.lease_ms);
        let of_request: Vec<CounterDebits> = debits.iter().map(|debit| debit.counter.clone()).collect();
        Counters::add(&mut args, rows, false, of_request.iter()).add_debits(&mut args, &of_request);
        for debit in debits {
            args.text(if debit.is_tokens { "t" } else { "m" });
        }
        args.run_id_last();
        let mut reply = self.ask(Verb::Reserve, args).await?;
        let word = reply.text()?;
        let now_ms = reply.number()?;
        match word.as_str() {
            "OK" => {
                let mut told = Vec::new();
                while let Some(limit) = reply.next_value() {
                    told.extend(text_of(&limit));
                }
                Ok(Reserved::Ok(told))
            }
            "STALE" => Ok(Reserved::Stale),
            "DAY_STALE" => Ok(Reserved::DayStale(now_ms)),
            "SHORT" => {
                let reach = match reply.text()?.as_str() {
                    "wait" => ShortReach::Wait,
                    "never" => ShortReach::Never,
                    _ => ShortReach::Reject,
                };
                let (limit, allows) = (reply.text()?, reply.text()?);
                let mut amount = || reply.number().map(|n| n.max(0));
                let (used, amount, ends_ms, look_ms) = (amount()?, amount()?, amount()?, amount()?);
                let (used, amount) = (used.unsigned_abs(), amount.unsigned_abs());
                let is_news = reply.text()? == "1";
                Ok(Reserved::Short(ShortBudget { reach, limit, allows, used, amount, ends_ms, look_ms, is_news }))
            }
            _ => Err(unexpected(Verb::Reserve.as_str(), &Value::SimpleString(word))),
        }
    }

    /// Gives back what a request has debited: it was certainly not carried out.
    ///
    /// # Errors
    /// [`StoreError`]; may be repeated.
    pub async fn give_back(&self, of: Reservation<'_>) -> Result<(), StoreError> {
        let mut args = self.args();
        args.show(of.task).text(of.fence).text(of.number).flag(true).show(self.options.lease_ms);
        self.ask(Verb::Reserve, args).await.map(drop)
    }
}

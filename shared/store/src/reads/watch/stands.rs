//! Where many turns stand, for those who follow them: two round trips for all of a look.

use redis::{RedisResult, Value};

use crate::connection::question::Question;
use crate::keys::{GROUP, Queue, TurnName};
use crate::reads::tasks::{STANDS, record};
use crate::records::budgets::AgentBudget;
use crate::records::schema::turn;
use crate::records::turn::TurnRecord;
use crate::{Store, StoreError};
use tickfleet_model::policy::Pause;

/// Results of one turn that one look reads.
const RESULTS_READ: usize = 16;

/// Where a turn stands that has not ended.
#[derive(Debug, Clone, Default)]
pub struct Stand {
    /// Its record without content and results.
    pub record: TurnRecord,
    /// Its results from the one on that was asked for, 16 at most, JSON each.
    pub results: Vec<String>,
    /// When its own timer fires, ms of shard time.
    pub timer_ms: Option<i64>,
    /// When its lane is looked at next, ms of shard time, where it waits on one.
    pub due_ms: Option<i64>,
    /// The counters of its agent, where it waits on a lane.
    pub budget: AgentBudget,
    /// Why its agent or its tenant is paused, where it waits on a lane. A note that cannot be read is none: the pause holds
    /// all the same.
    pub pause: Option<Pause>,
    /// True if somebody holds its slice.
    pub is_held: bool,
}

/// What one look found of a turn: none where it has ended, or nothing is known of it; an error where what is kept of it
/// cannot be read, which costs that turn alone (rule 18).
type Found = Result<Option<Stand>, StoreError>;

impl Store {
    /// Where these turns stand, each with its results from that one on. A few hundred at once, for Redis answers nobody else
    /// meanwhile.
    ///
    /// # Errors
    /// [`StoreError`]; of one turn, where what is kept of it cannot be read.
    pub async fn stands(&self, turns: &[(TurnName, usize)]) -> Result<Vec<Found>, StoreError> {
        let mut pipe = redis::pipe();
        for (name, from) in turns {
            let results = (*from..from.saturating_add(RESULTS_READ)).map(|at| format!("{}{at}", turn::RESULT));
            pipe.cmd("HMGET").arg(self.keys.turn(name)).arg(&STANDS).arg(results.collect::<Vec<_>>());
            pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("t:{name}"));
        }
        let mut found = self.connection.answers(Question::Look, &pipe).await?.into_iter();
        let mut stands: Vec<Found> = Vec::with_capacity(turns.len());
        for (_, from) in turns {
            let (fields, timer) = (found.next(), found.next());
            stands.push(fields.map_or(Ok(None), |fields| stand(fields, timer, *from)));
        }
        self.look_further(turns, &mut stands).await?;
        Ok(stands)
    }

    /// Finds out who is on a lane until when, and whose slice somebody holds.
    async fn look_further(&self, turns: &[(TurnName, usize)], stands: &mut [Found]) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        let mut asked = Vec::new();
        for ((name, _), found) in turns.iter().zip(stands) {
            let Some(stand) = found.as_mut().ok().and_then(Option::as_mut).filter(|stand| !stand.record.is_ending())
            else {
                continue;
            };
            if self.ask_further(&mut pipe, name, &stand.record) {
                asked.push(found);
            }
        }
        if asked.is_empty() {
            return Ok(());
        }
        let mut answers = self.connection.answers(Question::Look, &pipe).await?.into_iter();
        for found in asked {
            let [one, two, three] = [(); 3].map(|()| answers.next().unwrap_or(Ok(Value::Nil)));
            let Ok(Some(stand)) = found else { continue };
            let looked = if stand.record.fence.is_some() {
                held(one).and_then(|is_held| Ok(is_held | held(two)?)).map(|is_held| stand.is_held = is_held)
            } else {
                waits(stand, one, two, three)
            };
            if let Err(error) = looked {
                *found = Err(of_one(error));
            }
        }
        Ok(())
    }

    /// Asks three questions about a turn; false where there is nothing to ask.
    fn ask_further(&self, pipe: &mut redis::Pipeline, name: &TurnName, record: &TurnRecord) -> bool {
        if let Some(fence) = &record.fence {
            let Some(queue) = record.queue.as_deref().and_then(Queue::parse) else { return false };
            // A slice whose holder has died is on the queue of suspects.
            let suspect = match &queue {
                Queue::Ready(priority) => Queue::Suspect(*priority),
                other => other.clone(),
            };
            for queue in [queue, suspect] {
                pipe.cmd("XPENDING").arg(self.keys.key(queue)).arg(GROUP).arg(fence).arg(fence).arg(1);
            }
            // As many as the other kind has.
            pipe.cmd("EXISTS").arg(self.keys.turn(name));
            return true;
        }
        let agent = format!("{}:{}", name.tenant, record.agent.as_deref().unwrap_or_default());
        let lane = record.lane.as_ref().map_or_else(|| agent.clone(), ToString::to_string);
        pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("l:{lane}"));
        pipe.cmd("HGET").arg(self.keys.key("budgets")).arg(&agent);
        pipe.cmd("HMGET").arg(self.keys.key("pauses")).arg(&agent).arg(format!("{}:", name.tenant));
        true
    }
}

/// A turn by its fields and its timer.
fn stand(fields: RedisResult<Value>, timer: Option<RedisResult<Value>>, from: usize) -> Found {
    let fields = fields.map_err(of_one)?;
    let unread = |error| StoreError::Reply { verb: Question::Look.as_str(), found: format!("{error}") };
    let mut fields: Vec<Option<String>> = redis::from_redis_value(fields).map_err(unread)?;
    let results = fields.split_off(STANDS.len().min(fields.len()));
    let Some(record) = record(fields) else { return Ok(None) };
    let results = results.into_iter().take(record.done.saturating_sub(from)).map_while(|result| result).collect();
    let timer_ms = timer.and_then(Result::ok).and_then(score);
    Ok(Some(Stand { record, results, timer_ms, ..Stand::default() }))
}

/// Why one turn could not be looked at by a server that answers for others: for what is kept of it.
fn of_one(error: redis::RedisError) -> StoreError {
    match error.code() {
        Some("ERR" | "WRONGTYPE") => StoreError::Reply { verb: Question::Look.as_str(), found: error.to_string() },
        _ => StoreError::verb(Question::Look.as_str(), error),
    }
}

/// Whether somebody holds the entry that was asked about. On a queue that nobody reads, nobody does.
fn held(pending: RedisResult<Value>) -> RedisResult<bool> {
    match pending {
        Ok(pending) => Ok(matches!(pending, Value::Array(held) if !held.is_empty())),
        Err(error) if error.code() == Some("NOGROUP") => Ok(false),
        Err(error) => Err(error),
    }
}

/// What a turn on a lane waits for.
fn waits(
    stand: &mut Stand,
    due: RedisResult<Value>,
    budget: RedisResult<Value>,
    pauses: RedisResult<Value>,
) -> RedisResult<()> {
    stand.due_ms = score(due?);
    let budget: Option<Vec<u8>> = redis::from_redis_value(budget?).unwrap_or_default();
    stand.budget = AgentBudget::unpack(&budget.unwrap_or_default());
    let pauses: Vec<Option<String>> = redis::from_redis_value(pauses?).unwrap_or_default();
    let pause = pauses.into_iter().flatten().next();
    stand.pause = pause.map(|note| serde_json::from_str(&note).unwrap_or_default());
    Ok(())
}

fn score(value: Value) -> Option<i64> {
    let score: Option<f64> = redis::from_redis_value(value).ok()?;
    score.map(|ms| ms as i64)
}

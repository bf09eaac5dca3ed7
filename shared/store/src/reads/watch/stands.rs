//! Where many turns stand, for those who follow them: two round trips for all of a look.

use redis::Value;

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

impl Store {
    /// Where these turns stand, each with its results from that one on; none for each that has ended, or that nothing is
    /// known of. A few hundred at once, for Redis answers nobody else meanwhile.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn stands(&self, turns: &[(TurnName, usize)]) -> Result<Vec<Option<Stand>>, StoreError> {
        let mut pipe = redis::pipe();
        for (name, from) in turns {
            let results = (*from..from.saturating_add(RESULTS_READ)).map(|at| format!("{}{at}", turn::RESULT));
            pipe.cmd("HMGET").arg(self.keys.turn(name)).arg(&STANDS).arg(results.collect::<Vec<_>>());
            pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("t:{name}"));
        }
        let found: Vec<Value> = self.connection.pipeline(Question::Look, &pipe).await?;
        let stands = turns.iter().zip(found.chunks(2)).map(|((_, from), found)| stand(found, *from));
        let mut stands: Vec<Option<Stand>> = stands.collect();
        self.look_further(turns, &mut stands).await?;
        Ok(stands)
    }

    /// Finds out who is on a lane until when, and whose slice somebody holds.
    async fn look_further(&self, turns: &[(TurnName, usize)], stands: &mut [Option<Stand>]) -> Result<(), StoreError> {
        let mut pipe = redis::pipe();
        let mut asked = Vec::new();
        for ((name, _), stand) in turns.iter().zip(stands) {
            let Some(stand) = stand.as_mut().filter(|stand| !stand.record.is_ending()) else { continue };
            match stand.record.fence.clone() {
                Some(fence) => {
                    let Some(queue) = stand.record.queue.as_deref().and_then(Queue::parse) else { continue };
                    // A slice whose holder has died is on the queue of suspects.
                    let suspect = match &queue {
                        Queue::Ready(priority) => Queue::Suspect(*priority),
                        other => other.clone(),
                    };
                    for queue in [queue, suspect] {
                        pipe.cmd("XPENDING").arg(self.keys.key(queue)).arg(GROUP).arg(&fence).arg(&fence).arg(1);
                    }
                    // As many as the other kind has.
                    pipe.cmd("EXISTS").arg(self.keys.turn(name));
                }
                None => {
                    let agent = format!("{}:{}", name.tenant, stand.record.agent.as_deref().unwrap_or_default());
                    let lane = stand.record.lane.as_ref().map_or_else(|| agent.clone(), ToString::to_string);
                    pipe.cmd("ZSCORE").arg(self.keys.key("timers")).arg(format!("l:{lane}"));
                    pipe.cmd("HGET").arg(self.keys.key("budgets")).arg(&agent);
                    pipe.cmd("HMGET").arg(self.keys.key("pauses")).arg(&agent).arg(format!("{}:", name.tenant));
                }
            }
            asked.push(stand);
        }
        if asked.is_empty() {
            return Ok(());
        }
        let found: Vec<Value> = self.connection.pipeline(Question::Look, &pipe).await?;
        for (stand, found) in asked.into_iter().zip(found.chunks(3)) {
            let [one, two, three] = found else { continue };
            if stand.record.fence.is_some() {
                stand.is_held =
                    [one, two].into_iter().any(|held| matches!(held, Value::Array(held) if !held.is_empty()));
            } else {
                stand.due_ms = score(one);
                let budget: Option<Vec<u8>> = redis::from_redis_value(two.clone()).unwrap_or_default();
                stand.budget = AgentBudget::unpack(&budget.unwrap_or_default());
                let pauses: Vec<Option<String>> = redis::from_redis_value(three.clone()).unwrap_or_default();
                let pause = pauses.into_iter().flatten().next();
                stand.pause = pause.map(|note| serde_json::from_str(&note).unwrap_or_default());
            }
        }
        Ok(())
    }
}

/// A turn by its fields and its timer.
fn stand(found: &[Value], from: usize) -> Option<Stand> {
    let [fields, timer] = found else { return None };
    let mut fields: Vec<Option<String>> = redis::from_redis_value(fields.clone()).ok()?;
    let results = fields.split_off(STANDS.len().min(fields.len()));
    let record = record(fields)?;
    let results = results.into_iter().take(record.done.saturating_sub(from)).map_while(|result| result).collect();
    Some(Stand { record, results, timer_ms: score(timer), ..Stand::default() })
}

fn score(value: &Value) -> Option<i64> {
    let score: Option<f64> = redis::from_redis_value(value.clone()).ok()?;
    score.map(|ms| ms as i64)
}

//! A witness that believes no counter: it sees entries appear on the queues, and adds up what they carry.

use std::collections::{BTreeMap, HashMap};

use tickfleet_store::Queue;
use tickfleet_tests::referee::State;
use tickfleet_tests::referee::limits::Reach;

use crate::interleavings::game::Violation;
use crate::interleavings::worlds::spec::{LIMITS, Rows, number_of};
use crate::interleavings::worlds::world::{Name, World, tenant_of};

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Witness {
    last: HashMap<Queue, String>,
    /// Turn → calls of it that were ever on a queue.
    high: BTreeMap<Name, usize>,
    /// Agent or tenant, kind of window and its end → calls.
    used: BTreeMap<(Name, &'static str, i64), u32>,
}

impl Witness {
    /// The newest entry seen of a queue.
    pub fn seen(&self, queue: &Queue) -> &str {
        self.last.get(queue).map_or("0", String::as_str)
    }

    /// A name that may come again after its record was forgotten.
    pub fn forget(&mut self, name: &str) {
        self.high.remove(name);
    }

    /// An entry that has just appeared.
    ///
    /// # Errors
    /// A cap is exceeded, or a window was opened before the one before it had ended.
    pub fn entry(
        &mut self,
        world: &World,
        rows: &Rows,
        queue: &Queue,
        id: String,
        fields: &[String],
        now_ms: i64,
    ) -> Result<(), Violation> {
        self.last.insert(queue.clone(), id);
        let value = |name: &str| fields.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
        let name = value("t").unwrap_or_default();
        let first: usize = value("p").and_then(|p| p.parse().ok()).unwrap_or(0);
        let upto = first + fields.chunks(2).filter(|pair| pair[0] == "c").count();
        let high = self.high.entry(name.clone()).or_default();
        // Calls between the two were never out: a limit refused them.
        let fresh = u32::try_from(upto.saturating_sub(first.max(*high))).unwrap_or(u32::MAX);
        *high = upto.max(*high);
        let Some(turn) = world.turns.get(&name) else {
            return Err(format!("{name} is on a queue, but was never admitted"));
        };
        if fresh == 0 || turn.task.is_some() {
            return Ok(());
        }
        let caps = rows[number_of(tenant_of(&name))].caps;
        let lane = turn.lane.clone();
        let agent = world.agents.get(&lane).copied().unwrap_or_default();
        self.count(&lane, "tick", agent.tick.end_ms, fresh, Some(caps.calls_per_tick), now_ms)?;
        self.count(&lane, "day", agent.day.end_ms, fresh, Some(caps.calls_per_day), now_ms)?;
        let spec = &world.specs[turn.spec];
        let from = upto - fresh as usize;
        for (number, key, _) in rows.debits(spec, from) {
            let Some(limit) = rows.limits[number].filter(|limit| limit.reach != Reach::Shadow) else { continue };
            let amount: u64 = spec.amounts[number][from..upto].iter().flatten().sum();
            let counter = format!("{}@{key}", LIMITS[number]);
            if limit.is_held {
                // Where nothing is taken, a bound that was lowered may be exceeded already.
                if amount > 0 {
                    crowded(world, number, &key, limit.max)?;
                }
                continue;
            }
            let end_ms = world.counters.get(&counter).map_or(0, |counter| counter.end_ms);
            let (amount, max) = (u32::try_from(amount).unwrap_or(u32::MAX), u32::try_from(limit.max).ok());
            if amount > 0 {
                self.count(&counter, LIMITS[number], end_ms, amount, max, now_ms)?;
            }
        }
        let day_end_ms = world.tenants.get(tenant_of(&name)).map_or(0, |t| t.day.end_ms);
        self.count(tenant_of(&name), "tenant day", day_end_ms, fresh, caps.tenant_calls_per_day, now_ms)
    }

    fn count(
        &mut self,
        who: &str,
        kind: &'static str,
        end_ms: i64,
        fresh: u32,
        cap: Option<u32>,
        now_ms: i64,
    ) -> Result<(), Violation> {
        if now_ms >= end_ms {
            return Err(format!("{who}: calls were admitted in a {kind} that had ended"));
        }
        let running =
            |(name, k, end): &&(Name, &'static str, i64)| name == who && *k == kind && *end > now_ms && *end != end_ms;
        if let Some((_, _, other)) = self.used.keys().find(running) {
            return Err(format!("{who}: a {kind} until {end_ms} was opened while the one until {other} ran"));
        }
        let used = self.used.entry((who.to_owned(), kind, end_ms)).or_default();
        *used += fresh;
        match cap {
            Some(cap) if *used > cap => {
                Err(format!("{who}: {used} calls were admitted in one {kind} under a cap of {cap}"))
            }
            _ => Ok(()),
        }
    }
}

/// What is out at the same time of a limit that has `max` places for each tenant, or for all: counted by the calls that are
/// out or wait for their next try, and not by how many are said to be held. What went out before there was such a limit
/// holds nothing.
fn crowded(world: &World, number: usize, key: &str, max: u64) -> Result<(), Violation> {
    let counter = format!("{}@{key}", LIMITS[number]);
    let holds = |name: &Name| world.holds.get(name).is_some_and(|held| held.contains_key(&counter));
    let out = world.turns.iter().filter_map(|(name, turn)| match &turn.state {
        State::Out(live, _) | State::Parked { live, .. } if holds(name) => {
            let amounts = world.specs[turn.spec].amounts[number].get(live.results.len()..live.admitted)?;
            Some(amounts.iter().flatten().sum::<u64>())
        }
        _ => None,
    });
    match out.sum::<u64>() {
        out if out > max => Err(format!("{out} are out of the {max} places of {counter}")),
        _ => Ok(()),
    }
}

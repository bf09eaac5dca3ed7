//! What holds of records at any time: complete, on a timer, on a lane or out.

use std::collections::BTreeMap;

use tickfleet_sim_redis::{Redis, Reply};
use tickfleet_store::fields::{tenant, turn};

use super::look::Look;
use super::{Rules, number};

/// What a tenant has by its records.
#[derive(Default)]
struct Tally {
    turns: u64,
    out: u64,
    /// Of those that are out, turns that were never parked: parked ones come back beyond the bound, and tasks are
    /// bounded by their turns alone.
    fresh: u64,
    inboxes: u64,
    bytes: u64,
}

/// The fields that are looked at.
const FIELDS: [&str; 11] = [
    turn::AGENT,
    turn::CALLS,
    turn::ADMITTED,
    turn::DONE,
    turn::FENCE,
    turn::QUEUE,
    turn::PARKED_FENCE,
    turn::DEADLINE_MS,
    turn::KIND,
    turn::PAID,
    turn::BYTES,
];

impl Rules {
    /// Looks at all records.
    pub(crate) fn look_at_records(&self, redis: &mut Redis) {
        let keys: Vec<String> = redis.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        for shard in 0..self.options.shards {
            let prefix = format!("{{{}:{shard}}}:", self.options.namespace);
            let mut look = Look { redis, prefix: &prefix };
            let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
            for key in keys.iter().filter_map(|key| key.strip_prefix(&prefix)) {
                let Some((family, name)) = key.split_once(':') else { continue };
                let of = name.split(':').next().unwrap_or_default();
                match family {
                    "turn" if look.ask(&["TYPE", key]) == Reply::Status("hash".into()) => {
                        let tally = tallies.entry(of.to_owned()).or_default();
                        self.record(&mut look, name, tally);
                    }
                    "replies" => tallies.entry(of.to_owned()).or_default().inboxes += 1,
                    "lane" => self.lane(&mut look, name),
                    "id" => self.id(&mut look, name),
                    _ => {}
                }
            }
            tallies.iter().for_each(|(of, tally)| self.tenant(&mut look, of, tally));
        }
    }

    fn record(&self, look: &mut Look<'_>, name: &str, tally: &mut Tally) {
        let mut found = look.fields(&format!("turn:{name}"), &FIELDS).into_iter();
        let mut next = || found.next().flatten();
        let (agent, calls, admitted, done, fence, queue) = (next(), next(), next(), next(), next(), next());
        let (parked, deadline, kind, paid, bytes) = (next(), next(), next(), next(), next());
        let whole = |value: Option<String>| value.and_then(|value| value.parse::<i64>().ok());
        tally.turns += 1;
        tally.bytes += whole(bytes).unwrap_or(0).unsigned_abs();
        let (Some(agent), Some(calls), Some(admitted)) = (agent, whole(calls), whole(admitted)) else {
            return self.wrong(11, &format!("the record of {name} is not whole"));
        };
        let done = whole(done).unwrap_or(0);
        for position in done..calls {
            let call = format!("{}{position}", turn::CALL);
            if look.fields(&format!("turn:{name}"), &[&call]).remove(0).is_none() {
                return self.wrong(21, &format!("the record of {name} lacks call {position}"));
            }
        }
        let slice = fence.as_deref().filter(|fence| !fence.starts_with("s:"));
        if slice.is_some() {
            tally.out += 1;
            tally.fresh += u64::from(parked.is_none() && kind.is_none());
        }
        if self.is_robbed {
            return;
        }
        let timer = |look: &mut Look<'_>, of: &str| number(Some(&look.ask(&["ZSCORE", "timers", of])));
        if timer(look, &format!("t:{name}")).is_none() {
            self.wrong(15, &format!("{name} waits, and has no timer (deadline {deadline:?})"));
        }
        if let (Some(slice), Some(queue)) = (slice, queue) {
            let mut queues = Look::queues(&queue).into_iter();
            if !queues.any(|queue| look.is_on(&queue, slice) || look.is_held(&queue, slice)) {
                self.wrong(5, &format!("{name} is out under {slice}, and that is on no queue"));
            }
        }
        if fence.is_none() && done >= admitted {
            let (of, id) = name.split_once(':').unwrap_or_default();
            // Where a limit stopped it, it waits for that; where it gave its places back, it may wait for something else.
            let limit = look.fields(&format!("turn:{name}"), &[turn::LANE]).remove(0);
            let gave =
                paid.and_then(|paid| paid.split(' ').next()?.parse::<i64>().ok()).is_some_and(|upto| upto > done);
            if gave && limit.is_none() {
                return;
            }
            let (lane, member) = match &limit {
                Some(lane) => (format!("lane:{lane}"), name),
                None => (format!("lane:{of}:{agent}"), id),
            };
            if look.ask(&["ZSCORE", &lane, member]) == Reply::Nil {
                self.wrong(3, &format!("{name} has calls left, and is not on its lane"));
            }
        }
    }

    fn lane(&self, look: &mut Look<'_>, name: &str) {
        if !self.is_robbed && look.ask(&["ZSCORE", "timers", &format!("l:{name}")]) == Reply::Nil {
            self.wrong(3, &format!("turns wait on the lane {name}, which has no timer"));
        }
    }

    fn id(&self, look: &mut Look<'_>, name: &str) {
        if !look.get(&format!("id:{name}")).is_some_and(|id| id.starts_with('q')) {
            return;
        }
        let Some(entry) = look.fields("queued", &[name]).remove(0) else { return };
        if look.ask(&["PTTL", &format!("id:{name}")]) != Reply::Int(-1) {
            self.wrong(9, &format!("{name} waits, and its id will be forgotten"));
        }
        if !self.is_robbed && !look.is_on("turns", &entry) && !look.is_held("turns", &entry) {
            self.wrong(21, &format!("{name} waits in entry {entry}, which is on no stream"));
        }
    }

    fn tenant(&self, look: &mut Look<'_>, of: &str, tally: &Tally) {
        let counts = look.fields(&format!("tenant:{of}"), &[tenant::UNFINISHED, tenant::OUT, tenant::BYTES]);
        let mut counts = counts.into_iter().map(|count| count.and_then(|count| count.parse::<i64>().ok()).unwrap_or(0));
        let (unfinished, out) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
        let bytes = counts.next().unwrap_or(0).unsigned_abs();
        if bytes != tally.bytes {
            self.wrong(16, &format!("{of} counts {bytes} bytes, and its records {}", tally.bytes));
        }
        if unfinished.unsigned_abs() != tally.turns || out.unsigned_abs() != tally.out {
            let Tally { turns, out: slices, .. } = tally;
            self.wrong(16, &format!("{of} counts {unfinished} turns and {out} slices, and has {turns} and {slices}"));
        }
        if tally.turns > self.options.tenant_turns_max {
            self.wrong(16, &format!("{of} has {} turns, of {}", tally.turns, self.options.tenant_turns_max));
        }
        if tally.fresh > self.options.tenant_ready_max {
            self.wrong(16, &format!("{of} has {} slices out, of {}", tally.fresh, self.options.tenant_ready_max));
        }
        if tally.inboxes > self.options.inboxes_max {
            self.wrong(14, &format!("{of} has {} inboxes, of {}", tally.inboxes, self.options.inboxes_max));
        }
    }
}

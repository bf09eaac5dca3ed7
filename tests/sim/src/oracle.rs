//! The oracle: what must hold, by what it has seen itself. It believes no counter of the product.

mod governed;
mod limits;
mod reconciled;
mod run_time;
mod sealed;
mod tasks;
mod told;

use std::collections::{BTreeMap, BTreeSet};

use scheduler::policy::stagger_ms;
use tickfleet_client::ReplyStatus;
use tickfleet_model::day::{day_bounds, zone};
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{AgentId, CallResult, DayCapAction, Effect, Outcome, TenantId};

use told::{out_of_order, unknown_without_reason};

use tickfleet_sim_redis::{Answer, Appended, Redis, Reply};

use crate::server::place;
use crate::settings::{Settings, TASK_TOOL, TOOLS};
use crate::world::{End, Facts, Name, Run, Told, World};

/// Whose window it is, of which kind, its number, and how often Redis had lost writes when it began: where its clock has
/// stepped back, too, the same shard time comes once more.
type Window = (String, &'static str, i64, usize);

/// What the oracle has seen.
pub(crate) struct Oracle {
    settings: Settings,
    world: World,
    /// Turn → calls of it that were ever on a queue.
    admitted: BTreeMap<Name, usize>,
    /// Who, kind of window, its number → calls, each with the true time, µs.
    used: BTreeMap<Window, Vec<(i64, u32)>>,
    /// By shard, its time when it was seen last, ms, and how often Redis had lost writes by then.
    shard_ms: BTreeMap<u32, (i64, usize)>,
    /// By inbox, the number of its last reply, and how often Redis had lost writes by then.
    numbers: BTreeMap<String, (u64, usize)>,
    /// What has come of calls that are governed.
    governed: governed::Seen,
    /// What was written into the audit log, where it is sealed.
    log: sealed::Seen,
    /// Calls that were found not to have taken effect, and when that was told, µs.
    not_made: Vec<(Name, usize, i64)>,
    /// What was set at run time.
    run_time: run_time::RunTime,
    /// Whether Redis' clock has stepped so far ahead that what is remembered for a while is forgotten.
    pub(crate) has_forgotten: bool,
}

/// The first field of this name.
fn field(entry: &Appended, name: &str) -> Option<String> {
    let found = entry.fields.iter().find(|(n, _)| n == name.as_bytes());
    found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
}

impl Oracle {
    pub(crate) fn new(settings: &Settings, world: &World) -> Self {
        Self {
            settings: settings.clone(),
            world: world.clone(),
            admitted: BTreeMap::new(),
            used: BTreeMap::new(),
            shard_ms: BTreeMap::new(),
            numbers: BTreeMap::new(),
            governed: governed::Seen::default(),
            log: sealed::Seen::default(),
            not_made: Vec::new(),
            run_time: run_time::RunTime::default(),
            has_forgotten: false,
        }
    }

    /// How long after something went wrong it may still be felt, µs.
    fn grace_us(&self) -> i64 {
        3 * self.settings.store.lease_ms * 1_000
    }

    /// An entry has appeared. `epoch_ms` tells of a shard when Redis restarted last, by the shard's time.
    pub(crate) fn saw(&mut self, appended: &Appended, redis: &mut Redis, epoch_ms: &dyn Fn(u32) -> i64) {
        let key = String::from_utf8_lossy(&appended.key).into_owned();
        let Some((shard, rest)) = place(&key) else { return };
        let meta = format!("{{sim:{shard}}}:meta");
        let Answer::Now(Reply::Bulk(now)) = redis.execute(&[b"HGET".into(), meta.into(), b"last_ms".into()]) else {
            return;
        };
        let now_ms = String::from_utf8_lossy(&now).parse().unwrap_or(0);
        self.shard_time(shard, now_ms);
        if rest.starts_with("ready:") {
            self.dispatched(appended, now_ms, epoch_ms(shard), redis);
        } else if let Some(inbox) = rest.strip_prefix("replies:") {
            self.replied(inbox, appended);
        } else if rest == "dead" {
            self.refused(appended);
        } else if self.settings.sealed.is_some() {
            match rest {
                "audit" => self.logged(appended),
                "seals" => self.was_sealed(appended),
                _ => {}
            }
        }
    }

    /// The time of a shard, as its scripts have it: it never steps back, unless Redis has lost that it went on.
    fn shard_time(&mut self, shard: u32, now_ms: i64) {
        let losses = self.world.facts().lost.len();
        let (last_ms, then) = self.shard_ms.insert(shard, (now_ms, losses)).unwrap_or((now_ms, losses));
        if now_ms < last_ms && then == losses {
            self.world.wrong(format!("the time of shard {shard} stepped back by {} ms", last_ms - now_ms));
        }
    }

    /// The latest beginning of a day before a time, of whatever configuration, ms.
    pub(crate) fn day_of(&self, now_ms: i64) -> i64 {
        let begun = |caps: &DefaultCaps| zone(&caps.time_zone).map_or(0, |zone| day_bounds(now_ms, zone).0);
        self.settings.caps.iter().map(begun).max().unwrap_or(0)
    }

    /// The times of the shards, as they were seen last, ms.
    pub(crate) fn shard_times(&self) -> impl Iterator<Item = i64> {
        self.shard_ms.values().map(|(ms, _)| *ms)
    }

    fn dispatched(&mut self, slice: &Appended, now_ms: i64, epoch_ms: i64, redis: &mut Redis) {
        let name = field(slice, "t").unwrap_or_default();
        let mut facts = self.world.facts();
        let at_us = facts.now_us;
        facts.dispatches.entry(name.clone()).or_default().push(at_us);
        drop(facts);
        let first: usize = field(slice, "p").and_then(|p| p.parse().ok()).unwrap_or(0);
        let upto = first + slice.fields.iter().filter(|(n, _)| n == b"c").count();
        let high = self.admitted.entry(name.clone()).or_default();
        // Calls between the two were never out: a limit refused them.
        let fresh = upto.saturating_sub(first.max(*high));
        *high = upto.max(*high);
        let Some(made) = self.world.facts().turns.get(&name).cloned() else {
            return self.appeared(name);
        };
        if made.is_task {
            // A task costs its target nothing: the turns under it do.
            return;
        }
        let tenant = name.split(':').next().unwrap_or_default().to_owned();
        let (Ok(tenant_id), Ok(agent)) = (TenantId::new(&tenant), AgentId::new(&made.agent)) else { return };
        self.crowded(&name, redis);
        for tool in made.tools.get(upto - fresh..upto).into_iter().flatten() {
            self.limited(&tenant_id, &agent, tool, now_ms, epoch_ms);
        }
        let fresh = u32::try_from(fresh).unwrap_or(u32::MAX);
        // The laxest configuration that any process may have.
        let most = |cap: fn(&DefaultCaps) -> u32| self.settings.caps.iter().map(cap).max().unwrap_or(0);
        let (tick, day) = (most(|caps| caps.calls_per_tick), most(|caps| caps.max_actions_per_day));
        // Windows of several configurations end at bounds of either: between two bounds there is one window at most.
        let begun = |caps: &DefaultCaps| {
            now_ms - (now_ms - stagger_ms(&tenant_id, &agent, caps.tick_ms)).rem_euclid(caps.tick_ms)
        };
        let window = self.settings.caps.iter().map(begun).max().unwrap_or(0);
        let today = self.day_of(now_ms);
        let who = format!("{tenant}:{agent}");
        if fresh > 0 && window < epoch_ms {
            self.world.wrong(format!("{who}: {fresh} calls were admitted in a tick that began before Redis restarted"));
        }
        if fresh > 0 && self.world.facts().spoiled.get(&who) == Some(&today) {
            self.world.wrong(format!("{who}: {fresh} calls were admitted, and nobody knows its budgets"));
        }
        if let Some((task, budget)) = &made.under {
            self.count(task, "task", 0, fresh, *budget);
        }
        self.count(&who, "tick", window, fresh, tick);
        self.count(&who, "day", today, fresh, day);
        let cap = self.tenant_cap(redis, &tenant_id).unwrap_or(u32::MAX);
        self.count(&tenant, "tenant day", today, fresh, cap);
    }

    /// The replies of an inbox are numbered without a gap.
    fn numbered(&mut self, inbox: &str, entry: &Appended) {
        let number: u64 = field(entry, "seq").and_then(|seq| seq.parse().ok()).unwrap_or(0);
        let losses = self.world.facts().lost.len();
        let (last, then) = self.numbers.insert(inbox.to_owned(), (number, losses)).unwrap_or((0, losses));
        if number != last + 1 && then == losses {
            self.world.wrong(format!("reply {number} of the inbox {inbox} follows reply {last}"));
        }
    }

    fn replied(&mut self, inbox: &str, entry: &Appended) {
        self.numbered(inbox, entry);
        let text = field(entry, "reply").unwrap_or_default();
        let reply: tickfleet_client::Reply = match serde_json::from_str(&text) {
            Ok(reply) => reply,
            Err(error) => return self.world.wrong(format!("a reply in {inbox} cannot be read: {error}: {text}")),
        };
        let tenant = inbox.split(':').next().unwrap_or_default();
        let Some(id) = reply.id().map(ToString::to_string) else { return };
        let name = format!("{tenant}:{id}");
        if inbox.ends_with(":odd") {
            return;
        }
        self.judge(&name, &reply);
        self.heard(&name, &reply);
        let mut facts = self.world.facts();
        let at_us = facts.now_us;
        let is_refusal = reply.status == ReplyStatus::Rejected;
        facts.replies.entry(name).or_default().push(Told { at_us, is_refusal });
    }

    /// Whether a reply is complete, and true in its words.
    fn judge(&self, name: &str, reply: &tickfleet_client::Reply) {
        let facts = self.world.facts();
        let Some(made) = facts.turns.get(name).filter(|made| !made.is_odd) else { return };
        let grace_us = self.grace_us();
        let defers = self.settings.calendar.on_day_cap == DayCapAction::Defer;
        let mut wrong = Vec::new();
        let code = reply.error.as_ref().map_or("", |error| error.code.as_str());
        if reply.status == ReplyStatus::Rejected && self.may_be_refused(&facts, made, code) {
            // Nothing of it may have happened.
            let is_known = |run: &Run| !is_excused(&facts, run, grace_us) && !was_lost(&facts, run);
            if facts.runs.iter().any(|run| run.turn == name && is_known(run)) {
                wrong.push(format!("{name} is refused ({code}), and it ran"));
            }
        } else if reply.status != ReplyStatus::Done {
            wrong.push(format!("{name} was accepted, and its reply says {:?}: {:?}", reply.status, reply.error));
        } else if reply.results.len() != made.tools.len() {
            wrong.push(format!("{name} has {} calls and {} results", made.tools.len(), reply.results.len()));
        }
        let first = facts.replies.get(name).and_then(|told| told.iter().find(|told| !told.is_refusal));
        if let Some(first) = first.filter(|_| !self.has_forgotten)
            && !facts.lost.iter().any(|(from, to)| (*from..=*to).contains(&first.at_us))
        {
            wrong.push(format!("{name} is answered a second time"));
        }
        for (position, (result, tool)) in reply.results.iter().zip(&made.tools).enumerate() {
            if result.tool != *tool {
                wrong.push(format!("{name}/{position} is a call of {tool}, and its result one of {}", result.tool));
            }
            // What Redis had lost of a call, and workers told it again, is not kept for ever. Nor is it told of a turn
            // that is sent again after its answer what its first life did.
            let is_past = first.is_some() || facts.runs_of(name, position).any(|(_, run)| was_lost(&facts, run));
            if self.has_forgotten && is_past {
                continue;
            }
            if let Some(said) = reconciled::untrue(&facts, name, position, result) {
                wrong.extend(said);
            } else if let Some(said) = governed::answered_by_another(&facts, name, position, result) {
                wrong.extend(said);
            } else if made.is_task || *tool != TASK_TOOL {
                wrong.extend(untrue(&facts, name, position, result, grace_us, defers));
            } else {
                wrong.extend(tasks::never_delegated(&facts, name.split(':').next().unwrap_or_default(), result));
            }
            if self.denied_without_reason(name.split(':').next().unwrap_or_default(), result) {
                wrong.push(format!("{name}/{position} is told as denied, and its agent may call {tool}"));
            }
        }
        drop(facts);
        wrong.into_iter().for_each(|what| self.world.wrong(what));
    }

    /// What can be said of the world at any time.
    pub(crate) fn look_at_world(&self) {
        let facts = self.world.facts();
        let mut wrong = self.paid_twice(&facts);
        let mut effects: BTreeMap<(&str, usize), Vec<&Run>> = BTreeMap::new();
        for run in facts.runs.iter().filter(|run| run.effect == Effect::Once && run.effect_us.is_some()) {
            effects.entry((&run.turn, run.position)).or_default().push(run);
        }
        for ((turn, position), runs) in effects.iter().filter(|(_, runs)| runs.len() > 1) {
            if !self.has_forgotten && !runs.iter().any(|run| is_excused(&facts, run, self.grace_us())) {
                wrong.push(format!("{turn}/{position} must not run twice, and has taken effect {} times", runs.len()));
            }
        }
        drop(facts);
        wrong.into_iter().for_each(|what| self.world.wrong(what));
    }

    /// What must hold when everything has ended.
    pub(crate) fn look_at_end(&self) {
        self.look_at_world();
        let mut wrong = [self.runs_while_off(), self.ungoverned()].concat();
        let facts = self.world.facts();
        wrong.extend(self.settings.sealed.iter().flat_map(|sealed| self.unreconciled(&facts, sealed)));
        for (name, made) in &facts.turns {
            if made.accepted_us.is_some() && !facts.replies.contains_key(name) {
                wrong.push(format!("{name} was accepted and never answered"));
            }
            wrong.extend(out_of_order(&facts, name, made.parallel_reads, made.tools.len()));
        }
        let forbidden: BTreeSet<(&str, usize)> = facts
            .turns
            .iter()
            .flat_map(|(name, made)| made.tools.iter().enumerate().map(move |(at, tool)| (name.as_str(), at, tool)))
            .filter(|(_, _, tool)| *tool == TOOLS[3])
            .map(|(name, at, _)| (name, at))
            .collect();
        for run in facts.runs.iter().filter(|run| forbidden.contains(&(run.turn.as_str(), run.position))) {
            wrong.push(format!("{}/{} was not allowed, and ran", run.turn, run.position));
        }
        drop(facts);
        wrong.into_iter().for_each(|what| self.world.wrong(what));
    }
}

/// Whether Redis has lost that the run was begun.
fn was_lost(facts: &Facts, run: &Run) -> bool {
    facts.lost.iter().any(|(from, to)| run.began_us >= from - 50_000 && run.began_us <= *to)
}

/// Redis has lost that the run was begun, and whoever could have said so was not there: nobody can know of it. That is
/// the price of a Redis that confirms what it has not yet written, and the guide for operators names it.
fn is_excused(facts: &Facts, run: &Run, grace_us: i64) -> bool {
    // Nobody asks Redis before a call that may be repeated: it also begins after Redis has forgotten that it was due.
    let due_us = facts.dispatches.get(&run.turn).and_then(|at| at.iter().rfind(|at| **at <= run.began_us));
    facts.lost.iter().any(|(from, to)| {
        let is_in = |at: i64| (from - 50_000..=*to).contains(&at);
        // Workers remember `once` calls alone: others are carried out again.
        let is_repeated = run.effect != Effect::Once;
        let was_lost = is_in(run.began_us) || is_repeated && due_us.is_some_and(|at| is_in(*at));
        let upto_us = facts.forgets_until(*to, grace_us) + grace_us;
        let died = |(who, at): &(String, i64)| *who == run.worker && (run.began_us..upto_us).contains(at);
        was_lost && (is_repeated || facts.deaths.iter().any(died))
    })
}

/// What a result says that is not so.
fn untrue(
    facts: &Facts,
    name: &str,
    position: usize,
    result: &CallResult,
    grace_us: i64,
    defers: bool,
) -> Option<String> {
    let mut runs = facts.runs_of(name, position);
    let told = format!("{name}/{position} is told as {}", result.outcome.as_str());
    let message = result.error.as_ref().map_or("", |error| error.message.as_str());
    match result.outcome {
        Outcome::Ok => {
            let output: serde_json::Value =
                result.output.as_ref().and_then(|output| serde_json::to_value(output).ok()).unwrap_or_default();
            let run = output["run"].as_u64().and_then(|run| usize::try_from(run).ok());
            let is_true = runs.any(|(number, made)| Some(number) == run && made.end == End::Returned);
            (!is_true).then(|| format!("{told} by run {run:?}, which did not return that"))
        }
        Outcome::OutcomeUnknown => {
            unknown_without_reason(facts, runs, grace_us).map(|why| format!("{told}, though {why}"))
        }
        _ if message.contains("not executed") => {
            // A run that failed before its effect, and said so, has executed nothing.
            runs.find(|(_, made)| made.effect_us.is_some() || made.end != End::Failed)
                .filter(|(_, made)| !is_excused(facts, made, grace_us))
                .map(|(run, _)| format!("{told}: {message:?}; but run {run} had begun"))
        }
        Outcome::UnknownTool | Outcome::Denied | Outcome::InvalidArguments => {
            // A try that took no effect may come before a refusal: the tool was switched off meanwhile.
            let began =
                |made: &Run| made.effect == Effect::Once && (made.effect_us.is_some() || made.end != End::Failed);
            let (run, _) = runs.find(|(_, made)| began(made) && !is_excused(facts, made, grace_us))?;
            Some(format!("{told}, but run {run} had begun"))
        }
        Outcome::DailyCapReached if defers => Some(format!("{told}, and turns wait for the next day")),
        Outcome::Transient | Outcome::Permanent if runs.next().is_none() => Some(format!("{told}, but it never ran")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use serde_json::json;

    use super::*;
    use crate::world::Made;

    /// A world with one accepted turn of two `once` calls.
    fn world() -> (World, Oracle) {
        let (world, settings) = (World::default(), Settings::draw(&mut StdRng::seed_from_u64(1)));
        let made = Made { tools: vec!["pay".into(), "pay".into()], accepted_us: Some(1), ..Made::default() };
        world.facts().turns.insert("t:p0-0".into(), made);
        let oracle = Oracle::new(&settings, &world);
        (world, oracle)
    }

    fn runs(world: &World, position: usize, at_us: i64) {
        world.facts().now_us = at_us;
        let run = world.begin("t:p0-0".into(), position, Effect::Once, "w0");
        let mut facts = world.facts();
        (facts.runs[run].effect_us, facts.runs[run].end) = (Some(at_us), End::Returned);
    }

    fn result(position: usize, outcome: &str, message: Option<&str>, run: Option<usize>) -> serde_json::Value {
        let error = message.map(|message| json!({"code": outcome, "message": message}));
        json!({"tool_call_id": null, "call": format!("p0-0/{position}"), "tool": "pay", "success": run.is_some(),
            "outcome": outcome, "output": run.map(|run| json!({"run": run})), "error": error,
            "content_type": "application/json", "duration_ms": 1, "attempts": 1})
    }

    fn told(oracle: &mut Oracle, seq: u64, results: &[serde_json::Value]) {
        let reply = json!({"turn_id": "p0-0", "tenant": "t", "agent": "a", "status": "done", "dialect": "raw",
            "results": results});
        let fields = vec![("seq".into(), seq.to_string().into()), ("reply".into(), reply.to_string().into())];
        oracle.replied("t:box", &Appended { key: b"{sim:0}:replies:t:box".to_vec(), fields });
    }

    /// What the oracle says at the end of a world, by the beginning of each complaint's words.
    fn verdict(world: &World, oracle: &Oracle) -> String {
        oracle.look_at_end();
        world.facts().violations.join("\n")
    }

    #[test]
    fn a_true_reply_is_well_and_a_missing_one_is_not() {
        let (world, mut oracle) = world();
        runs(&world, 0, 10);
        runs(&world, 1, 20);
        assert!(verdict(&world, &oracle).contains("never answered"));
        world.facts().violations.clear();
        told(&mut oracle, 1, &[result(0, "ok", None, Some(0)), result(1, "ok", None, Some(1))]);
        assert_eq!(verdict(&world, &oracle), "");
        told(&mut oracle, 3, &[result(0, "ok", None, Some(0)), result(1, "ok", None, Some(1))]);
        let said = verdict(&world, &oracle);
        assert!(said.contains("answered a second time") && said.contains("reply 3 of the inbox"), "{said}");
    }

    #[test]
    fn what_is_not_so_is_noticed() {
        let (world, mut oracle) = world();
        runs(&world, 0, 10);
        runs(&world, 1, 20);
        let lie = "It was not executed.";
        told(&mut oracle, 1, &[result(0, "expired", Some(lie), None), result(1, "ok", None, Some(0))]);
        let said = verdict(&world, &oracle);
        assert!(said.contains("but run 0 had begun") && said.contains("which did not return that"), "{said}");
    }

    #[test]
    fn a_second_effect_is_noticed_unless_redis_forgot_and_the_worker_died() {
        let (world, mut oracle) = world();
        runs(&world, 0, 1_000_000);
        runs(&world, 0, 2_000_000);
        runs(&world, 1, 3_000_000);
        told(&mut oracle, 1, &[result(0, "ok", None, Some(1)), result(1, "ok", None, Some(2))]);
        assert!(verdict(&world, &oracle).contains("has taken effect 2 times"));
        world.facts().violations.clear();
        world.facts().lost.push((900_000, 1_500_000));
        assert!(verdict(&world, &oracle).contains("has taken effect 2 times"), "the worker lived");
        world.facts().violations.clear();
        world.facts().deaths.push(("w0".into(), 1_400_000));
        assert_eq!(verdict(&world, &oracle), "");
    }

    #[test]
    fn calls_out_of_their_order_and_unknown_without_reason_are_noticed() {
        let (world, mut oracle) = world();
        runs(&world, 1, 10);
        runs(&world, 0, 20);
        told(&mut oracle, 1, &[result(0, "outcome_unknown", Some("?"), None), result(1, "ok", None, Some(0))]);
        let said = verdict(&world, &oracle);
        assert!(said.contains("began before call") && said.contains("lived and was reached"), "{said}");
    }
}

//! Redis' world as one look, compared with the referee's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;
use tickfleet_store::fields::{tenant, turn};
use tickfleet_tests::referee::State;

use crate::interleavings::game::{Game, Violation, same};
use crate::interleavings::worlds::spec::{ODD_AGENT, ODD_TASK, QUEUES};
use crate::interleavings::worlds::world::{Name, Turn};

/// Everything of the shard in one reply.
const LOOK: &str = r"
local P, found = KEYS[1], {}
for _, key in ipairs(redis.call('KEYS', P .. '*')) do
  local kind, data = redis.call('TYPE', key)['ok'], nil
  if key == P .. 'budgets' then
    data = redis.call('HGETALL', key)
    for i = 2, #data, 2 do
      if #data[i] == 40 then data[i] = string.format('%.0f %.0f %.0f %.0f', struct.unpack('dddd', data[i])) end
    end
  elseif string.find(key, P .. 'counters:', 1, true) == 1 then
    data = redis.call('HGETALL', key)
    for i = 2, #data, 2 do data[i] = string.format('%.0f %.0f %.0f', struct.unpack('<ddd', data[i])) end
  elseif kind == 'hash' then data = redis.call('HGETALL', key)
  elseif kind == 'zset' then data = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'string' then data = { redis.call('GET', key) }
  elseif kind == 'stream' then
    data = { tostring(redis.call('XLEN', key)) }
    local groups = redis.call('XINFO', 'GROUPS', key)
    if groups[1] then data[2] = tostring(redis.call('XPENDING', key, 'workers')[1]) end
  elseif kind == 'set' then data = redis.call('SMEMBERS', key)
  end
  found[#found + 1] = { string.sub(key, #P + 1), kind, redis.call('PTTL', key), data }
end
return cjson.encode(found)
";

#[derive(Debug, Deserialize)]
struct Key(String, #[allow(dead_code, reason = "for the message of a failure")] String, i64, Value);

impl Key {
    fn list(&self) -> Vec<String> {
        let items = self.3.as_array().cloned().unwrap_or_default();
        items.iter().map(|v| v.as_str().unwrap_or_default().to_owned()).collect()
    }

    fn map(&self) -> BTreeMap<String, String> {
        self.list().chunks(2).filter(|p| p.len() == 2).map(|p| (p[0].clone(), p[1].clone())).collect()
    }
}

/// Keys that may live for ever, and why.
const NO_TTL: [(&str, &str); 18] = [
    ("meta", "the shard's clock, epoch and policy"),
    ("timers", "unfinished work"),
    ("delayed", "unfinished work"),
    ("turns", "an inbound stream, bounded and trimmed"),
    ("tasks", "an inbound stream, bounded and trimmed"),
    ("ready:", "a queue, bounded and trimmed"),
    ("queued", "one field per id that waits for its decision"),
    ("budgets", "one field per agent; pruned a day after its day"),
    ("counters:", "one field per counter of a limit; pruned after its window"),
    ("limits", "the limits that have counters"),
    ("policies", "the last 64 policies, and the one that each living scheduler decides by"),
    ("beats", "heartbeats; reap forgets the old ones"),
    ("nodes", "what a consumer says of itself with its heartbeat; for lookers-on"),
    ("suspects", "one field per living scheduler"),
    ("tenants", "set at run time"),
    ("tenant:", "one small hash per configured tenant"),
    ("dead", "bounded by entries"),
    ("audit", "bounded by entries and age"),
];

/// Looks at Redis and compares everything with the referee's world.
pub async fn compare(game: &mut Game<'_>) -> Result<(), Violation> {
    let script = redis::Script::new(LOOK);
    let prefix = game.table.store.keys().prefix().to_owned();
    let text: String = script.key(prefix).invoke_async(&mut game.table.redis).await.map_err(|e| e.to_string())?;
    let keys: Vec<Key> =
        if text == "{}" { Vec::new() } else { serde_json::from_str(&text).map_err(|e| e.to_string())? };
    let by_name: BTreeMap<&str, &Key> = keys.iter().map(|k| (k.0.as_str(), k)).collect();
    records(game, &by_name)?;
    counters(game, &by_name)?;
    places(game, &by_name)?;
    waiting(game, &by_name)?;
    streams(game, &by_name)?;
    lifetimes(game, &keys)
}

fn records(game: &mut Game<'_>, keys: &BTreeMap<&str, &Key>) -> Result<(), Violation> {
    let live: BTreeSet<Name> =
        game.world.turns.iter().filter(|(_, t)| t.state.live().is_some()).map(|(n, _)| n.clone()).collect();
    let odd = |name: &&str| !name.ends_with(ODD_TASK);
    let found = keys.keys().filter_map(|k| k.strip_prefix("turn:")).filter(odd).map(str::to_owned).collect();
    same("live records", &live, &found)?;
    for name in live {
        let fields = keys[format!("turn:{name}").as_str()].map();
        let turn = &game.world.turns[&name];
        record(&name, turn, &fields)?;
        let real = turn.state.fence().and_then(|f| game.world.fences.get(&(name.clone(), f)));
        if let Some(real) = real {
            same(&format!("fence of {name}"), &Some(real), &fields.get(turn::FENCE))?;
        }
    }
    let done: BTreeSet<Name> =
        game.world.turns.iter().filter(|(_, t)| t.state.live().is_none()).map(|(n, _)| n.clone()).collect();
    let found = keys.keys().filter_map(|k| k.strip_prefix("done:")).map(str::to_owned).collect();
    same("finished records", &done, &found)?;
    let ids: BTreeMap<Name, String> =
        game.world.ids.iter().map(|(n, (state, digest))| (n.clone(), format!("{state}{digest}"))).collect();
    let found = keys.iter().filter_map(|(k, v)| Some((k.strip_prefix("id:")?.to_owned(), v.list().concat()))).collect();
    same("ids", &ids, &found)?;
    let early = keys.keys().filter_map(|k| k.strip_prefix("early:")).filter(|name| name.contains(':'));
    same("cancels that wait", &game.world.early, &early.map(str::to_owned).collect())
}

/// Whether a field of a record counts as bytes of its tenant.
fn is_counted(field: &str) -> bool {
    let kinds = [turn::CALL, turn::RESULT, turn::MESSAGE, turn::AUDIT];
    let position = |kind: &&str| field.strip_prefix(*kind).is_some_and(|at| at.parse::<usize>().is_ok());
    field == turn::META || kinds.iter().any(position)
}

fn record(name: &str, referee: &Turn, fields: &BTreeMap<String, String>) -> Result<(), Violation> {
    let Some(live) = referee.state.live() else { return Ok(()) };
    let number = |field: &str| fields.get(field).and_then(|v| v.parse::<i64>().ok()).unwrap_or(0);
    let what = |field: &str| format!("{name}: {field}");
    same(&what("calls"), &(live.calls as i64), &number(turn::CALLS))?;
    let kept = fields.iter().filter(|(field, _)| is_counted(field)).map(|(_, text)| text.len() as i64);
    same(&what("bytes"), &kept.sum(), &number(turn::BYTES))?;
    // Calls that a limit refused have their results without having been admitted.
    same(&what("admitted"), &(live.admitted as i64), &number(turn::ADMITTED).max(live.results.len() as i64))?;
    let paid = fields.get(turn::PAID).and_then(|paid| paid.split(' ').next()?.parse().ok());
    let is_left = live.paid > live.admitted.max(live.results.len());
    same(&what("debited before"), &is_left.then_some(live.paid), &paid)?;
    if matches!(referee.state, State::Queued(_)) {
        same(&what("lane"), &referee.waits.as_ref(), &fields.get(turn::LANE))?;
    }
    same(&what("deadline"), &live.deadline_ms, &number(turn::DEADLINE_MS))?;
    same(&what("cancelled"), &live.cancelled, &fields.contains_key(turn::CANCELLED))?;
    same(&what("fence is set"), &referee.state.fence().is_some(), &fields.contains_key(turn::FENCE))?;
    let results: Vec<String> = (0..number(turn::DONE))
        .map(|i| fields.get(&format!("{}{i}", turn::RESULT)).cloned().unwrap_or_default())
        .collect();
    same(&what("results"), &live.results, &results)?;
    if let Some(task) = referee.task {
        same(
            &what("budget"),
            &(i64::from(task.max), i64::from(task.used)),
            &(number(turn::BUDGET), number(turn::BUDGET_USED)),
        )?;
    }
    let begun = fields.get(turn::BEGUN).cloned();
    match &referee.state {
        State::Out(_, slice) => {
            let expected = slice.begun.map(|(position, nonce)| format!("{position}:{nonce}"));
            same(&what("begun"), &expected, &begun)?;
            let started = fields.contains_key(turn::FENCE) && fields.get(turn::STARTED) == fields.get(turn::FENCE);
            same(&what("started"), &slice.started, &started)?;
            same(&what("crashes"), &i64::from(slice.crashes), &number(turn::CRASHES))
        }
        State::Ending(_, ending) => {
            let expected = (ending.reason.as_str().to_owned(), ending.upto as i64, ending.info);
            same(
                &what("ending"),
                &expected,
                &(
                    fields.get(turn::END_REASON).cloned().unwrap_or_default(),
                    number(turn::END_UPTO),
                    // Of a limit, more stands behind it.
                    fields
                        .get(turn::END_INFO)
                        .and_then(|info| info.split(' ').next()?.parse::<f64>().ok())
                        .unwrap_or(0.0) as i64,
                ),
            )
        }
        State::Queued(_) | State::Parked { .. } => same(&what("begun"), &None, &begun),
        State::Ended { .. } => Ok(()),
    }
}

fn counters(game: &Game<'_>, keys: &BTreeMap<&str, &Key>) -> Result<(), Violation> {
    let number =
        |map: &BTreeMap<String, String>, field: &str| map.get(field).and_then(|v| v.parse::<i64>().ok()).unwrap_or(0);
    let budgets = keys.get("budgets").map(|k| k.map()).unwrap_or_default();
    for (name, agent) in &game.world.agents {
        let text = budgets.get(name.as_str()).map_or("0 0 0 0", String::as_str);
        let expected = [i64::from(agent.tick.used), agent.tick.end_ms, i64::from(agent.day.used), agent.day.end_ms];
        let found: Vec<i64> = text.split(' ').filter_map(|n| n.parse().ok()).collect();
        same(&format!("budgets of {name}"), &expected.to_vec(), &found)?;
    }
    let found = keys.iter().filter_map(|(key, of)| Some((key.strip_prefix("counters:")?, of.map())));
    let found = found.flat_map(|(limit, of)| of.into_iter().map(move |(key, text)| (format!("{limit}@{key}"), text)));
    let counters = game.world.counters.iter();
    let expected = counters.map(|(name, c)| (name.clone(), format!("{} {} {}", c.used, c.end_ms, c.began_ms)));
    same("counters of limits", &expected.collect::<BTreeMap<_, _>>(), &found.collect())?;
    for (name, tenant) in &game.world.tenants {
        let fields = keys.get(format!("tenant:{name}").as_str()).map(|k| k.map()).unwrap_or_default();
        let expected = [tenant.unfinished, tenant.out, i64::from(tenant.day.used), tenant.day.end_ms];
        let found = [tenant::UNFINISHED, tenant::OUT, tenant::DAY_USED, tenant::DAY_END].map(|f| number(&fields, f));
        same(&format!("counters of {name}"), &expected, &found)?;
        let here = |t: &&Turn| game.world.specs[t.spec].tenant == name;
        let live = game.world.turns.values().filter(here).filter(|t| t.state.live().is_some()).count();
        let out = game.world.turns.values().filter(here).filter(|t| matches!(t.state, State::Out(..))).count();
        same(&format!("what {name} has"), &(live as i64, out as i64), &(found[0], found[1]))?;
        let records =
            keys.iter().filter(|(key, _)| key.starts_with(&format!("turn:{name}:")) && !key.ends_with(ODD_TASK));
        let bytes = records.map(|(_, record)| number(&record.map(), turn::BYTES)).sum();
        same(&format!("bytes of {name}"), &bytes, &number(&fields, tenant::BYTES))?;
    }
    Ok(())
}

/// The places of limits: as many as calls hold that are out or wait for their next try, and no others.
fn places(game: &Game<'_>, keys: &BTreeMap<&str, &Key>) -> Result<(), Violation> {
    let mut expected: BTreeMap<Name, u64> = BTreeMap::new();
    for (counter, held) in game.world.holds.values().flatten() {
        *expected.entry(counter.clone()).or_default() += held;
    }
    let found = keys.iter().filter_map(|(k, v)| Some((k.strip_prefix("held:")?.to_owned(), v.map().len() as u64)));
    same("places of limits", &expected, &found.collect())
}

fn waiting(game: &Game<'_>, keys: &BTreeMap<&str, &Key>) -> Result<(), Violation> {
    let mut expected: BTreeMap<String, i64> =
        game.world.lane_timers.iter().map(|(n, at)| (format!("l:{n}"), *at)).collect();
    expected.extend(game.world.turns.iter().filter_map(|(n, t)| Some((format!("t:{n}"), t.timer_ms?))));
    let found = keys.get("timers").map(|k| k.map()).unwrap_or_default();
    // No actor of a game ends what was begun below a task.
    let found = found.into_iter().filter(|(n, _)| !n.starts_with("c:"));
    let found = found.map(|(n, at)| (n, at.parse::<f64>().unwrap_or(0.0) as i64)).collect();
    same("timers", &expected, &found)?;
    let parked = |turn: &Turn| matches!(turn.state, State::Parked { .. });
    let delayed: Vec<&str> = game.world.turns.iter().filter(|(_, t)| parked(t)).map(|(n, _)| n.as_str()).collect();
    let members = keys.get("delayed").map(|k| k.map()).unwrap_or_default();
    same("parked for a try", &delayed, &members.keys().map(String::as_str).collect())?;
    let lanes: BTreeMap<Name, Vec<Name>> = game
        .world
        .lanes
        .iter()
        .filter(|(_, l)| !l.is_empty())
        .map(|(n, l)| {
            (
                n.clone(),
                l.values()
                    .map(|t| match t.split_once(':') {
                        Some((_, turn)) if !n.contains('@') => turn.to_owned(),
                        _ => t.clone(),
                    })
                    .collect(),
            )
        })
        .collect();
    let found = keys.iter().filter_map(|(k, v)| {
        Some((k.strip_prefix("lane:")?.to_owned(), v.list().chunks(2).map(|p| p[0].clone()).collect()))
    });
    same("lanes", &lanes, &found.collect())?;
    // Rule 3, of Redis' world alone: what has calls left and nothing out has a timer.
    for name in keys.keys().filter_map(|k| k.strip_prefix("turn:")).filter(|name| !name.ends_with(ODD_TASK)) {
        if !expected.contains_key(&format!("t:{name}")) {
            return Err(format!("{name} waits without a timer"));
        }
    }
    for lane in lanes.keys() {
        if !expected.contains_key(&format!("l:{lane}")) {
            return Err(format!("the lane {lane} waits without a timer"));
        }
    }
    Ok(())
}

fn streams(game: &Game<'_>, keys: &BTreeMap<&str, &Key>) -> Result<(), Violation> {
    let numbers = |key: &str| {
        let list = keys.get(key).map(|k| k.list()).unwrap_or_default();
        let number = |at: usize| list.get(at).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0) as usize;
        (number(0), number(1))
    };
    let pending = game.world.inbound.iter().filter(|e| e.holder.is_some()).count();
    same("inbound entries, pending", &(game.world.inbound.len(), pending), &numbers("turns"))?;
    for queue in QUEUES {
        let here = |t: &&Turn| t.holder.is_some() && game.world.is_on(t, queue);
        let held = game.world.turns.values().filter(here).count();
        let (entries, pending) = numbers(&queue.to_string());
        same("slices held", &held, &pending)?;
        let least = held + game.world.waiting(queue).len();
        if entries < least {
            return Err(format!("{least} slices are on a queue of {entries} entries"));
        }
    }
    same("dead entries", &game.world.dead, &numbers("dead").0)?;
    for (inbox, replies) in &game.world.inboxes {
        same("replies", &replies.len(), &numbers(&format!("replies:{inbox}")).0)?;
    }
    Ok(())
}

/// Rule 9: what is unfinished has no TTL, everything else has one, but for what is bounded in another way.
fn lifetimes(game: &Game<'_>, keys: &[Key]) -> Result<(), Violation> {
    for Key(name, _, ttl_ms, _) in keys {
        let fading = |tt: &str, state: char| state == 'q' && game.world.fading.contains(tt);
        let open = |tt: &str| game.world.ids.get(tt).is_some_and(|(state, _)| *state != 'e' && !fading(tt, *state));
        let unfinished = ["turn:", "lane:", "held:"].iter().any(|kind| name.starts_with(kind))
            || name.strip_prefix("id:").is_some_and(open);
        let for_ever = NO_TTL.iter().any(|(prefix, _)| name.starts_with(prefix)) || name.ends_with(ODD_AGENT);
        if unfinished && *ttl_ms != -1 {
            return Err(format!("{name} is unfinished and vanishes in {ttl_ms} ms"));
        }
        if !unfinished && !for_ever && *ttl_ms < 0 {
            return Err(format!("{name} lives for ever"));
        }
    }
    Ok(())
}

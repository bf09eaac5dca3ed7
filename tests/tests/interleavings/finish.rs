//! The end of an interleaving: healthy actors work until nothing is left, and then the promises are checked.

use std::collections::BTreeMap;

use super::game::{Game, Violation, same};
use crate::interleavings::actors::scheduler::Scheduler;
use crate::interleavings::actors::worker::Worker;
use crate::interleavings::worlds::snapshot::compare;
use crate::interleavings::worlds::spec::{LEASE_MS, QUEUES};
use crate::interleavings::worlds::world::Name;

/// Rounds of healthy work in which everything must end.
const ROUNDS_MAX: usize = 400;

/// Works until nothing is left, then checks every promise.
pub async fn finish(game: &mut Game<'_>) -> Result<(), Violation> {
    game.note(|| "everybody is replaced by healthy actors".into());
    (game.schedulers, game.workers) = (Vec::new(), Vec::new());
    let (mut scheduler, mut worker) = (Scheduler::new(game), Worker::new(game));
    for round in 0.. {
        let busy = scheduler.round(game).await? | worker.round(game).await?;
        game.haunt().await?;
        if is_quiet(game) {
            break;
        }
        if round > ROUNDS_MAX {
            return Err(format!("after {ROUNDS_MAX} rounds of healthy work something is left: {}", left(game)));
        }
        pass_time(game, busy)?;
    }
    compare(game).await?;
    promises(game).await
}

fn is_quiet(game: &Game<'_>) -> bool {
    game.world.inbound.is_empty() && game.world.turns.values().all(|t| t.state.live().is_none())
}

fn left(game: &Game<'_>) -> String {
    let turns = game.world.turns.iter().filter(|(_, t)| t.state.live().is_some()).map(|(n, _)| n.as_str());
    format!("{} inbound entries, {:?}", game.world.inbound.len(), turns.collect::<Vec<_>>())
}

/// A little while there is work or a dead consumer to be reaped; else to the next timer.
fn pass_time(game: &mut Game<'_>, busy: bool) -> Result<(), Violation> {
    let held = game.world.turns.values().any(|t| t.holder.is_some()) || !game.world.inbound.is_empty();
    if busy || held {
        game.advance(LEASE_MS / 3);
        return Ok(());
    }
    match game.world.next_timer_ms() {
        Some(at_ms) => {
            let wait_ms = (at_ms - game.now_ms()).max(1);
            game.advance(wait_ms);
            Ok(())
        }
        None => Err(format!("something waits without a timer: {}", left(game))),
    }
}

async fn promises(game: &mut Game<'_>) -> Result<(), Violation> {
    each_call_has_its_result(game)?;
    each_turn_has_one_reply(game).await?;
    nothing_is_left(game).await
}

fn each_call_has_its_result(game: &Game<'_>) -> Result<(), Violation> {
    for (name, spec, results) in &game.world.ended {
        same(&format!("results of {name}"), &game.world.specs[*spec].calls(), &results.len())?;
        for (position, result) in results.iter().enumerate() {
            if !result.starts_with(&format!(r#"{{"p":{position},"#)) {
                return Err(format!("{name}: the result of call {position} is {result}"));
            }
        }
    }
    for ((name, position), times) in &game.world.executed {
        let Some((_, _, results)) = game.world.ended.iter().rfind(|(n, ..)| n == name) else { continue };
        let told = results.get(*position).is_some_and(|r| r.contains(r#""ok""#) || r.contains(r#""unknown""#));
        if *times > 0 && !told {
            return Err(format!("{name}/{position} took effect, and its agent is told {:?}", results.get(*position)));
        }
    }
    Ok(())
}

/// From Redis alone: the replies of each inbox, numbered without gap, one for each turn.
async fn each_turn_has_one_reply(game: &mut Game<'_>) -> Result<(), Violation> {
    let mut replies: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let inboxes: Vec<Name> = game.world.inboxes.keys().cloned().collect();
    for inbox in &inboxes {
        let key = game.table.store.keys().key(format!("replies:{inbox}"));
        let found: Vec<(String, BTreeMap<String, String>)> = redis::cmd("XRANGE")
            .arg(key)
            .arg("-")
            .arg("+")
            .query_async(&mut game.table.redis)
            .await
            .map_err(|e| e.to_string())?;
        for (at, (_, fields)) in found.iter().enumerate() {
            same(&format!("number of a reply in {inbox}"), &Some((at + 1).to_string()), &fields.get("seq").cloned())?;
        }
        replies.insert(inbox.clone(), found.into_iter().filter_map(|(_, mut f)| f.remove("reply")).collect());
    }
    // An id that was forgotten may have come again, and have ended as it did before.
    let mut expected: BTreeMap<(String, String, &Name), usize> = BTreeMap::new();
    for (name, spec, results) in &game.world.ended {
        let Some(inbox) = game.world.specs[*spec].inbox else { continue };
        let inbox = format!("{}:{inbox}", game.world.specs[*spec].tenant);
        let id = game.world.specs[*spec].id_word();
        let text = format!(r#"{{"{id}":"{name}","results":[{}]}}"#, results.join(","));
        *expected.entry((inbox, text, name)).or_default() += 1;
    }
    for ((inbox, text, name), times) in expected {
        let found = replies.get(&inbox).map_or(0, |r| r.iter().filter(|r| **r == text).count());
        same(&format!("replies of {name}"), &times, &found)?;
    }
    let total: usize = replies.values().map(Vec::len).sum();
    let expected: usize = game.world.inboxes.values().map(Vec::len).sum();
    same("replies in all", &expected, &total)
}

async fn nothing_is_left(game: &mut Game<'_>) -> Result<(), Violation> {
    let mut pipe = redis::pipe();
    pipe.cmd("XLEN").arg(game.table.store.keys().key("turns"));
    for queue in QUEUES {
        pipe.cmd("XLEN").arg(game.table.store.keys().key(queue));
    }
    let left: Vec<usize> = pipe.query_async(&mut game.table.redis).await.map_err(|e| e.to_string())?;
    same("entries left on streams", &vec![0; left.len()], &left)
}

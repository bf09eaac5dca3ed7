//! Endings, and settling in both worlds.

use tickfleet_model::InboxName;
use tickfleet_store::{Ending, Queue, ReplyFrame, SettledCall, Settlement, TurnName};
use tickfleet_tests::referee::{Answer, Event, Fence, State};

use crate::interleavings::game::{Game, Violation, same};

/// Pairs an ending that Redis gave out with the referee's.
pub fn take_ending(game: &mut Game<'_>, name: &str, ending: Ending) -> Result<(Ending, Fence), Violation> {
    let Some(turn) = game.world.turns.get(name) else { return Err(format!("an ending of {name}, which is not known")) };
    let State::Ending(live, expected) = &turn.state else {
        return Err(format!("an ending of {name}, which the referee sees as {:?}", turn.state));
    };
    let calls: Vec<String> = (live.results.len()..expected.upto).map(|i| format!("c{i}")).collect();
    let left = (name, expected.reason.as_str(), live.results.len(), expected.upto, expected.info, expected.begun);
    let right = (
        &*ending.name.to_string(),
        ending.reason.as_str(),
        ending.first,
        ending.upto,
        ending.info,
        ending.begun.map(|b| b.position),
    );
    same("ending", &left, &right)?;
    same("calls of an ending", &calls, &ending.calls)?;
    same("meta of an ending", &format!("m{}", turn.spec), &ending.meta)?;
    let fence = expected.fence;
    game.world.fences.insert((name.to_owned(), fence), ending.fence.clone());
    Ok((ending, fence))
}

/// Settles in both worlds.
pub async fn settle(
    game: &mut Game<'_>,
    name: &str,
    (fence, expected_fence): (&str, Fence),
    queue: Option<Queue>,
    first: usize,
    results: &[String],
) -> Result<Answer, Violation> {
    let now_ms = game.world.clock(game.raw_now_ms);
    let spec = game.world.turns.get(name).map(|t| t.spec);
    let inbox = spec.and_then(|s| game.world.specs[s].inbox);
    let calls = spec.map(|s| game.world.specs[s].calls());
    let id = spec.map_or("turn", |s| game.world.specs[s].id_word());
    let event = Event::Settle { fence: expected_fence, first, results: results.to_vec() };
    let expected = game.world.apply(name, event, now_ms)?;
    let settlement = Settlement {
        name: TurnName::parse(name).unwrap(),
        fence: fence.to_owned(),
        queue,
        first,
        reply_to: inbox.map(|inbox| InboxName::new(inbox).unwrap()),
        frame: ReplyFrame { head: format!(r#"{{"{id}":"{name}","results":["#), calls, ..ReplyFrame::default() },
        calls: results
            .iter()
            .map(|r| SettledCall { result: r.clone(), audit: r.clone(), ..SettledCall::default() })
            .collect(),
    };
    let found = game.table.store.settle(&[settlement]).await.map_err(|e| e.to_string())?.remove(0);
    same(&format!("settle {name}"), &format!("{expected:?}"), &format!("{found:?}"))?;
    Ok(expected)
}

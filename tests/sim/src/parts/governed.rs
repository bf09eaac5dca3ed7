//! Calls that are governed, and the people who decide about some.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tickfleet_client::model::{Call, Turn};
use tickfleet_client::{Approval, ApprovalError, Client, Verdict};
use tickfleet_model::{Context, Redactor, SessionName};

use super::{Site, work};
use crate::process::Main;
use crate::settings::sealed::REMIT;
use crate::tools::How;
use crate::tools::governed::Arguments;
use crate::world::{Made, Vote, World};

/// How often each tool is called; the two reads that repeat, and what others wait for, most.
const CALLED: [&str; 16] = [
    "fetch", "fetch", "fetch", "poll", "poll", "poll", "mail", "post", "open", "open", "walk", "walk", "spend", "wire",
    "wire", "transfer",
];

/// Where remittances are made, how often beside those.
const REMITTED: usize = 5;
/// How they go.
const REMITS: [How; 7] =
    [How::Works, How::Hangs, How::FailsOnce, How::Fails, How::PanicsLate, How::Panics, How::RefusesOnce];

/// A turn that was drawn, with calls that are governed in the place of its own.
pub(super) fn of((wait_ms, turn, made): (u64, Turn, Made), is_sealed: bool, chance: &mut StdRng) -> (u64, Turn, Made) {
    let session = format!("s{}", chance.random_range(0..4));
    let drawn: Vec<(Call, Arguments)> = (0..chance.random_range(1..=4)).map(|_| call(is_sealed, chance)).collect();
    let (keys, takes_ms) = drawn.iter().map(|(_, args)| (args.key, args.ms)).unzip();
    let calls: Vec<Call> = drawn.into_iter().map(|(call, _)| call).collect();
    let tools = calls.iter().map(|call| call.tool.clone()).collect();
    let context = Context { session_id: SessionName::new(&session).ok(), ..Context::default() };
    (wait_ms, Turn { calls, context, ..turn }, Made { tools, keys, takes_ms, session, ..made })
}

fn call(is_sealed: bool, chance: &mut StdRng) -> (Call, Arguments) {
    let number = chance.random_range(0..CALLED.len() + if is_sealed { REMITTED } else { 0 });
    let tool = CALLED.get(number).copied().unwrap_or(REMIT);
    let work = work(chance);
    let key = chance.random_range(0..if tool == "transfer" { 6 } else { 3 });
    let args = match tool {
        "poll" => Arguments { how: How::Works, ms: 0, key },
        // Equal questions are equal in everything.
        "fetch" => Arguments { how: How::Works, ms: 700 * u64::from(key), key },
        // Most answers get lost, and some requests.
        REMIT => Arguments { how: REMITS[chance.random_range(0..REMITS.len())], ms: work.ms, key },
        _ => Arguments { how: work.how, ms: work.ms, key },
    };
    let arguments = serde_json::to_string(&args).unwrap_or_default();
    (Call { provider_id: None, tool: tool.into(), arguments }, args)
}

impl Site {
    /// Somebody who looks again and again at what waits for people, and decides about some of it.
    pub(crate) fn approver(&self, process: usize, who: &'static str, seed: u64) -> Main {
        let (client, world) = (Client::over(self.stores(process)), self.world.clone());
        let tenants = self.settings.tenants.clone();
        let mut chance = StdRng::seed_from_u64(seed);
        Box::pin(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(chance.random_range(100..1_200))).await;
                for tenant in &tenants {
                    // Redis may be away.
                    for asked in client.approvals(tenant, 10).await.unwrap_or_default() {
                        match chance.random_range(0..10) {
                            0..3 => {}
                            3 => says(&client, &world, &asked, who, false).await,
                            _ => says(&client, &world, &asked, who, true).await,
                        }
                    }
                }
            }
        })
    }
}

async fn says(client: &Client, world: &World, asked: &Approval, who: &'static str, agrees: bool) {
    let (turn, position) = asked.call.rsplit_once('/').unwrap_or_default();
    let vote = {
        let mut facts = world.facts();
        let vote = Vote {
            who,
            approval: format!("{}:{}", asked.tenant, asked.id),
            turn: format!("{}:{turn}", asked.tenant),
            position: position.parse().unwrap_or(usize::MAX),
            agrees,
            at_us: facts.now_us,
            counts_us: None,
            is_refused: false,
        };
        facts.votes.push(vote);
        facts.votes.len() - 1
    };
    let (roles, redactor, narrow) = (BTreeSet::new(), Redactor::default(), BTreeMap::new());
    let verdict = Verdict { by: who, roles: &roles, agrees, reason: "", narrow, seen: None, redactor: &redactor };
    let answer = client.decide_approval(&asked.tenant, &asked.id, &verdict).await;
    world.tell(|| format!("{who} agrees to {} ({}): {agrees}: {answer:?}", asked.id, asked.call));
    let mut facts = world.facts();
    let now_us = facts.now_us;
    match answer {
        // What was said before counts, whoever has heard it.
        Ok(_) | Err(ApprovalError::Again(_)) => facts.votes[vote].counts_us = Some(now_us),
        Err(ApprovalError::Store(_)) => {}
        Err(_) => facts.votes[vote].is_refused = true,
    }
}

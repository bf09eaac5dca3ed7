//! Collects replies. Turns without a reply are sent again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tickfleet_client::Client;
use tokio::time::{Instant, sleep};

use super::target::{ChaosTarget, ShardTenant};
use super::verdict::Evidence;
use super::{ChaosFleet, PATIENCE, submit};

/// Probes rotate through all tenants, so that they reach every shard.
pub fn tenant_of<'a>(homes: &'a [ShardTenant], agent: &str, turn: u64) -> &'a str {
    let number = if agent == "probe" { turn } else { agent.trim_start_matches('a').parse().unwrap_or(0) };
    &homes[usize::try_from(number).unwrap() % homes.len()].tenant
}

async fn replies(target: &mut ChaosTarget) -> Vec<String> {
    let mut found = Vec::new();
    for home in 0..target.homes.len() {
        target.aim = home;
        replies_of(target, &mut found).await;
    }
    found
}

async fn replies_of(target: &mut ChaosTarget, found: &mut Vec<String>) {
    type Entries = Vec<(String, BTreeMap<String, String>)>;
    let key = target.key(&format!("replies:{}:box", target.homes[target.aim].tenant));
    let mut from = "-".to_owned();
    loop {
        let words = ["XRANGE", &key, &from, "+", "COUNT", "1000"];
        let Some(value) = target.ask(&words).await else { return };
        let entries: Entries = redis::from_redis_value(value).unwrap();
        let Some((last, _)) = entries.last() else { return };
        from = format!("({last}");
        let id = |fields: &BTreeMap<String, String>| -> String {
            let reply: Value = serde_json::from_str(&fields["reply"]).unwrap();
            reply["turn_id"].as_str().unwrap().to_owned()
        };
        found.extend(entries.iter().map(|(_, fields)| id(fields)));
    }
}

/// A failover can lose writes that the replica lacked, so turns without a reply are sent again. The fleet accepts an ID
/// only once.
async fn send_again(client: &Client, homes: &[ShardTenant], missing: &[String]) {
    for id in missing {
        let (agent, turn) = id.rsplit_once('-').unwrap();
        let calls = if agent == "daily" || agent == "probe" { 1 } else { 3 };
        let turn = turn.parse().unwrap();
        submit(client, tenant_of(homes, agent, turn), agent, turn, calls).await;
    }
}

pub async fn all_replies(world: &mut ChaosFleet, evidence: &mut Evidence) -> usize {
    let mut sent_again = 0;
    let mut again = Instant::now() + PATIENCE / 4;
    let patience = Instant::now() + PATIENCE;
    loop {
        evidence.replies = replies(&mut world.target).await;
        let answered: BTreeSet<&String> = evidence.replies.iter().collect();
        let missing: Vec<String> = evidence.accepted.iter().filter(|id| !answered.contains(id)).cloned().collect();
        if missing.is_empty() || Instant::now() > patience {
            return sent_again;
        }
        if world.target.forgets() && Instant::now() > again {
            send_again(&world.client, &world.target.homes, &missing).await;
            (sent_again, again) = (sent_again + missing.len(), Instant::now() + PATIENCE / 4);
        }
        // Each pass reads whole inboxes. `patience` bounds the loop.
        sleep(Duration::from_millis(300)).await;
    }
}

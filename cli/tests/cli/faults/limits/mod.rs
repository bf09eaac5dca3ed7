//! Twenty limits at once, too many calls for all limits, and kills of processes. The evidence is times in Redis'
//! monitor and at the service. Because of the limit `paid`, the run takes at least 28 s.

mod course;
mod witness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use serde_json::Value;
use tickfleet_testkit::RedisServer;
use tokio::time::Instant;

use crate::support::process::Process;
use course::{AGENTS, LIMITS, PlannedTurn, turns};
use witness::{Service, Witness};

const NODES: usize = 4;
const BETWEEN: Duration = Duration::from_millis(900);
const KILLS: usize = 16;
/// No reply for several leases means that the run has failed.
const SILENCE_MS: usize = 60_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_while_processes_are_killed() {
    let server = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start().await;
    for (name, text) in course::files(&service.address) {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let witness = Witness::of(&server).await;
    let variables = &[("TICKFLEET_WORKER_DRAIN", "1s"), ("TICKFLEET_LOG_LEVEL", "warn,tickfleet=info")];
    let url = server.url();
    let start = |role: &str| Process::start_with(role, folder.path(), &url, variables);
    let roles: Vec<&str> = ["scheduler", "worker"].into_iter().flat_map(|role| [role; NODES]).collect();
    let mut nodes: Vec<Process> = roles.iter().map(|role| start(role)).collect();
    let made = turns();
    let began = Instant::now();
    submit(&server, &made).await;
    for kill in 0..KILLS {
        // The fleet works between two kills.
        tokio::time::sleep(BETWEEN).await;
        let victim = kill % 2 * NODES + kill / 2 % NODES;
        tokio::task::block_in_place(|| nodes[victim] = start(roles[victim]));
    }
    let replies = replies(&server, made.len()).await;
    eprintln!("{} turns in {:.1?}, {KILLS} processes killed", made.len(), began.elapsed());
    drop(nodes);
    every_call_ran(&made, &replies);
    witness.judge(&made).await;
    service.judge(&made);
    nothing_is_held(&server).await;
}

async fn submit(server: &RedisServer, made: &[PlannedTurn]) {
    let mut connection = server.connection().await;
    for chunk in made.chunks(500) {
        let mut pipe = redis::pipe();
        for turn in chunk {
            pipe.cmd("XADD").arg("{tickfleet:0}:turns").arg("*").arg("turn").arg(turn.message().to_string()).ignore();
        }
        let () = pipe.query_async(&mut connection).await.unwrap();
    }
}

async fn replies(server: &RedisServer, count: usize) -> BTreeMap<String, Value> {
    let mut connection = server.connection().await;
    let mut found = BTreeMap::new();
    let mut last = "0".to_owned();
    while found.len() < count {
        let mut read = redis::cmd("XREAD");
        read.arg("COUNT").arg(500).arg("BLOCK").arg(SILENCE_MS).arg("STREAMS").arg("{tickfleet:0}:replies:demo:box");
        type Entries = Vec<(String, BTreeMap<String, String>)>;
        let next: Option<Vec<(String, Entries)>> = read.arg(&last).query_async(&mut connection).await.unwrap();
        let next: Entries = next.into_iter().flatten().flat_map(|(_, entries)| entries).collect();
        assert!(!next.is_empty(), "nothing came for {SILENCE_MS} ms; {} of {count} turns are answered", found.len());
        for (id, fields) in next {
            last = id;
            let reply: Value = serde_json::from_str(&fields["reply"]).unwrap();
            let turn = reply["turn_id"].as_str().unwrap().to_owned();
            assert!(found.insert(turn, reply).is_none(), "a second reply: {fields:?}");
        }
    }
    found
}

fn every_call_ran(made: &[PlannedTurn], replies: &BTreeMap<String, Value>) {
    for turn in made {
        let results = replies[&turn.id]["results"].as_array().unwrap();
        assert_eq!(results.len(), turn.calls.len(), "{}", turn.id);
        for (call, result) in turn.calls.iter().zip(results) {
            assert_eq!(result["output"]["number"], call.number, "{}: {result}", turn.id);
        }
    }
    let agents: BTreeSet<usize> = made.iter().map(|turn| turn.agent).collect();
    assert_eq!((agents.len(), LIMITS.len()), (AGENTS, 20));
}

async fn nothing_is_held(server: &RedisServer) {
    let mut connection = server.connection().await;
    for pattern in ["{tickfleet:0}:throttle:*", "{tickfleet:0}:turn:*"] {
        let left: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
        assert_eq!(left, Vec::<String>::new());
    }
    for limit in LIMITS.iter().filter(|limit| limit.window_ms.is_none()) {
        let mut read = redis::cmd("HGETALL");
        read.arg(format!("{{tickfleet:0}}:counters:{}", limit.name));
        let counters: BTreeMap<String, Vec<u8>> = read.query_async(&mut connection).await.unwrap();
        // A stored counter begins with its amount, a double.
        let held = |counter: &Vec<u8>| f64::from_le_bytes(counter[..8].try_into().unwrap());
        assert!(counters.values().all(|counter| held(counter) == 0.0), "{}: {counters:?}", limit.name);
    }
}

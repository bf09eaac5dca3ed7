//! A producer with a rate that steps up and down. Checks that every turn gets exactly one reply.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

const REPLIES_MAX: usize = 2_000;

pub struct Producer {
    redis: MultiplexedConnection,
    sent: HashSet<String>,
    last_reply: String,
    owed: f64,
    random: u64,
    submitted: u64,
}

impl Producer {
    pub fn new(redis: MultiplexedConnection) -> Self {
        Self {
            redis,
            sent: HashSet::new(),
            last_reply: "0".into(),
            owed: 0.0,
            // With a fixed odd number, the turns are the same in every run.
            random: 0x9E37_79B9_7F4A_7C15,
            submitted: 0,
        }
    }

    pub async fn submit(&mut self, turns_per_s: f64, passed: Duration) {
        self.owed += turns_per_s * passed.as_secs_f64();
        let due = self.owed.floor();
        self.owed -= due;
        let mut pipe = redis::pipe();
        for _ in 0..due as u64 {
            let ms = self.next_ms();
            self.add(&mut pipe, "crowd", 1, ms);
        }
        self.send(&pipe).await;
    }

    pub async fn submit_capped(&mut self, turns: u64, calls: usize) {
        let mut pipe = redis::pipe();
        for _ in 0..turns {
            self.add(&mut pipe, "capped", calls, 50);
        }
        self.send(&pipe).await;
    }

    fn next_ms(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        100 + (self.random >> 33) % 201
    }

    fn add(&mut self, pipe: &mut redis::Pipeline, agent: &str, calls: usize, ms: u64) {
        self.submitted += 1;
        let id = format!("{agent}-{}", self.submitted);
        let calls: Vec<_> = (0..calls).map(|_| serde_json::json!({"name": "sleep", "arguments": {"ms": ms}})).collect();
        let turn =
            serde_json::json!({"tenant": "demo", "agent": agent, "turn_id": id, "reply_to": "box", "calls": calls});
        pipe.cmd("XADD").arg("{tickfleet:0}:turns").arg("*").arg("turn").arg(turn.to_string()).ignore();
        self.sent.insert(id);
    }

    async fn send(&mut self, pipe: &redis::Pipeline) {
        if !pipe.is_empty() {
            let () = pipe.query_async(&mut self.redis).await.unwrap();
        }
    }

    pub fn open(&self) -> usize {
        self.sent.len()
    }

    /// Each reply must be the only reply to a submitted turn, and its outcome must be `ok`.
    pub async fn listen(&mut self) {
        let mut command = redis::cmd("XRANGE");
        command.arg("{tickfleet:0}:replies:demo:box").arg(format!("({}", self.last_reply)).arg("+");
        command.arg("COUNT").arg(REPLIES_MAX);
        let found: Vec<(String, HashMap<String, String>)> = command.query_async(&mut self.redis).await.unwrap();
        for (entry, fields) in found {
            let reply: serde_json::Value = serde_json::from_str(&fields["reply"]).unwrap();
            let id = reply["turn_id"].as_str().unwrap();
            assert!(self.sent.remove(id), "a second reply, or one to a turn that nobody submitted: {reply}");
            let outcomes = reply["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str());
            assert!(outcomes.clone().all(|outcome| outcome == Some("ok")), "{reply}");
            self.last_reply = entry;
        }
    }
}

//! Schedulers and workers as separate processes, which tests stop, kill and disconnect.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;
use tickfleet_config::TaskHandlerDef;
use tickfleet_model::AgentId;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_store::StoreOptions;

use crate::fleet::{Fleet, Plan};
use crate::node::{Node, Role};

/// The processes and the test share this plan. The agent archy is an external runtime.
#[must_use]
pub fn plan() -> Plan {
    Plan {
        schedulers: 0,
        workers: 0,
        slots: 4,
        agents: ["kelly", "archy"].map(String::from).into(),
        handlers: [(AgentId::new("archy").unwrap(), TaskHandlerDef::External { lease: Duration::from_secs(2) })].into(),
        caps: DefaultCaps {
            tick_ms: 200,
            calls_per_tick: 1_000,
            max_actions_per_day: 100_000,
            ..DefaultCaps::default()
        },
        store: StoreOptions { lease_ms: 1_500, ..StoreOptions::default() },
        ..Plan::default()
    }
}

impl Fleet {
    #[must_use]
    pub fn node(&self, binary: &str, role: Role, number: usize) -> Node {
        Node::start(binary, role, number, &self.server.url())
    }

    /// Consumer → number of its pending entries.
    pub async fn consumers(&self, stream: &str) -> BTreeMap<String, u64> {
        let mut connection = self.server.connection().await;
        let mut info = redis::cmd("XINFO");
        info.arg("CONSUMERS").arg(self.store.keys().key(stream)).arg("workers");
        // The command fails until the first process has created its groups.
        let found: Vec<BTreeMap<String, Value>> = info.query_async(&mut connection).await.unwrap_or_default();
        let read = |consumer: BTreeMap<String, Value>| {
            let held: u64 = redis::from_redis_value(consumer["pending"].clone()).unwrap();
            (redis::from_redis_value(consumer["name"].clone()).unwrap(), held)
        };
        found.into_iter().map(read).collect()
    }

    pub async fn reader_of(&self, stream: &str) -> String {
        self.until("somebody reads", async |fleet| !fleet.consumers(stream).await.is_empty()).await;
        self.consumers(stream).await.into_keys().next().unwrap()
    }

    /// Reads entries under the name of a consumer, as if the responses to the consumer were lost.
    pub async fn read_as(&self, stream: &str, consumer: &str) {
        let mut connection = self.server.connection().await;
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("workers").arg(consumer).arg("COUNT").arg(10_000);
        read.arg("STREAMS").arg(self.store.keys().key(stream)).arg(">");
        let _: Value = read.query_async(&mut connection).await.unwrap();
    }

    pub async fn foreign(&self, stream: &str, fields: &[(&str, &str)]) {
        let mut command = redis::cmd("XADD");
        command.arg(self.store.keys().key(stream)).arg("*");
        for (name, value) in fields {
            command.arg(name).arg(value);
        }
        let _: String = command.query_async(&mut self.server.connection().await).await.unwrap();
    }
}

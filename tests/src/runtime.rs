//! An external runtime leases an agent's tasks from their stream and reports their progress.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fleet::{Fleet, PATIENCE};
use crate::inspect::StreamEntry;

#[derive(Debug, Clone)]
pub struct LeasedTask {
    pub task: Value,
    pub lease: String,
}

impl LeasedTask {
    #[must_use]
    pub fn id(&self) -> &str {
        self.task["task_id"].as_str().unwrap()
    }

    #[must_use]
    pub fn message(&self, op: &str, more: Value) -> Value {
        let mut message = json!({"op": op, "task_id": self.id(), "lease": self.lease});
        let Value::Object(more) = more else { panic!("members, not {more}") };
        message.as_object_mut().unwrap().extend(more);
        message
    }
}

impl Fleet {
    pub async fn lease_task(&self, agent: &str, name: &str) -> LeasedTask {
        let stream = self.store.keys().key(format!("external:acme:{agent}"));
        let mut connection = self.server.connection().await;
        // An error means that the group already exists.
        let create = ["CREATE", &stream, "workers", "0", "MKSTREAM"];
        let _ = redis::cmd("XGROUP").arg(&create).query_async::<()>(&mut connection).await;
        let mut command = redis::cmd("XREADGROUP");
        command
            .arg("GROUP")
            .arg("workers")
            .arg(name)
            .arg("COUNT")
            .arg(1)
            .arg("BLOCK")
            .arg(u64::try_from(PATIENCE.as_millis()).unwrap());
        command.arg("STREAMS").arg(stream).arg(">");
        let found: Option<Vec<(String, Vec<StreamEntry>)>> = command.query_async(&mut connection).await.unwrap();
        let (lease, fields): (String, BTreeMap<String, String>) =
            found.expect("a task comes in time").remove(0).1.remove(0);
        LeasedTask { task: serde_json::from_str(&fields["task"]).unwrap(), lease }
    }
}

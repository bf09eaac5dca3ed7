//! Redis users for schedulers and workers, with exactly the rights of their roles.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use redis::aio::MultiplexedConnection;
use tickfleet_store::Role;
use tickfleet_testkit::RedisServer;

const VARIABLE: &str = "TICKFLEET_TEST_USERS";

#[allow(clippy::disallowed_methods, reason = "a switch for whoever runs the tests")]
pub fn are_wanted() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| !value.is_empty())
}

pub async fn make(server: &RedisServer, namespace: &str) {
    let mut connection = server.connection().await;
    for (name, role) in Role::WORDS {
        let rules = role.rules(namespace);
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(name).arg(&["reset", "on"]).arg(format!(">{name}-secret")).arg(rules);
        let () = command.query_async(&mut connection).await.unwrap();
    }
    let () = redis::cmd("ACL").arg("LOG").arg("RESET").query_async(&mut connection).await.unwrap();
}

pub fn url_in(url: &str, role: &str) -> String {
    match url.split_once("://").unwrap() {
        ("unix", path) => format!("unix://{path}?user={role}&pass={role}-secret"),
        (scheme, place) => format!("{scheme}://{role}:{role}-secret@{place}"),
    }
}

pub async fn assert_nobody_was_refused(connection: &mut MultiplexedConnection) {
    let log: Vec<BTreeMap<String, redis::Value>> =
        redis::cmd("ACL").arg("LOG").arg(128).query_async(connection).await.unwrap();
    let reported = |entry: &BTreeMap<String, redis::Value>| {
        let text = |field: &str| redis::from_redis_value::<String>(entry[field].clone()).unwrap_or_default();
        let who = text("username");
        let what = text("object");
        // The client library works even if Redis rejects `CLIENT SETINFO`, so this rejection is permitted.
        (what != "client|setinfo")
            .then(|| format!("{who} may not use {what} ({}, {})", text("reason"), text("context")))
    };
    let refused: Vec<String> = log.iter().filter_map(reported).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

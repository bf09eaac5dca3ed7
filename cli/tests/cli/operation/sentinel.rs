//! Tests processes and `doctor` with a Redis behind Sentinels.

use tickfleet_testkit::SentinelSetup;

use crate::support::binary::{tickfleet, until_printed};
use crate::support::process::{Process, until};

fn until_ready_says(process: &Process, status: &str, says: &str) {
    let is_so = |answer: &String| answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(says);
    until(says, || process.answer("/readyz"), is_so);
}

/// The connections of a process detect a failover one by one, so the metric changes late.
fn until_metric(process: &Process, name: &str, is: impl Fn(f64) -> bool) {
    let value = |metrics: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    until(name, || process.metrics(), |metrics| value(metrics).is_some_and(&is));
}

fn address(trio: &SentinelSetup, server: usize) -> String {
    let url = trio.servers[server].url();
    format!("127.0.0.1:{}", url.trim_end_matches('/').rsplit(':').next().unwrap())
}

#[tokio::test]
async fn readiness_and_doctor_report_the_primary_or_why_it_is_missing() {
    let mut trio = SentinelSetup::start(1).await;
    let dir = tempfile::tempdir().unwrap();
    let url = trio.url();
    let scheduler = Process::start("scheduler", dir.path(), &url);
    until_ready_says(&scheduler, "200", &format!("primary {}", address(&trio, 0)));
    let doctor = ["doctor", "--redis-url", &url];
    // No worker runs, so `doctor` exits with 1. On a busy machine, a Sentinel can take longer than the second that
    // `doctor` waits.
    let agree = format!("{}, according to 3 of 3 sentinels", address(&trio, 0));
    assert!((0..100).any(|_| tickfleet(&doctor).stdout.contains(&agree)), "the sentinels do not agree");

    trio.replicated(0, 1).await;
    trio.servers[0].kill9();
    until_ready_says(&scheduler, "200", &format!("primary {}", address(&trio, 1)));
    until_metric(&scheduler, "tickfleet_redis_primary_moves_total", |moves| moves >= 1.0);
    until_metric(&scheduler, "tickfleet_redis_primary_missing_seconds", |missing| missing == 0.0);

    // The Sentinels still name the dead primary, because they have no replica to promote.
    trio.servers[1].kill9();
    until_ready_says(&scheduler, "503", "cannot find the primary fleet");
    until_metric(&scheduler, "tickfleet_redis_primary_missing_seconds", |missing| missing > 0.0);
    let reported = tickfleet(&doctor).exits(3);
    reported.prints_error("cannot find the primary fleet").prints_error(&format!("names {}", address(&trio, 1)));
}

#[tokio::test]
async fn sentinels_have_their_own_user_and_a_missing_permission_is_reported() {
    let trio = SentinelSetup::start(0).await;
    let url = trio.url();
    let (hosts, _) = url.split_once("://").unwrap().1.split_once('/').unwrap();
    for host in hosts.split(',') {
        let mut sentinel = tickfleet_testkit::connect(&format!("redis://{host}")).await.unwrap();
        for user in [&["watcher", "on", ">watcher-secret", "+@all"][..], &["default", "off"]] {
            let () = redis::cmd("ACL").arg("SETUSER").arg(user).query_async(&mut sentinel).await.unwrap();
        }
    }
    let mut primary = trio.servers[0].connection().await;
    for (name, rights) in [("fleet", "+@all"), ("untold", "-role")] {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(name).arg("on").arg(format!(">{name}-secret")).arg(&["~*", "+@all", rights]);
        let () = command.query_async(&mut primary).await.unwrap();
    }
    let as_users = |login: &str, query: &str| {
        let said = tickfleet(&["doctor", "--redis-url", &format!("redis+sentinel://{login}@{hosts}/fleet{query}")]);
        assert!(!said.stdout.contains("-secret") && !said.stderr.contains("-secret"), "{}{}", said.stdout, said.stderr);
        said
    };
    let watcher = "?sentinel_username=watcher&sentinel_password=watcher-secret";
    until_printed("according to 3 of 3 sentinels", || as_users("fleet:fleet-secret", watcher));
    as_users("untold:untold-secret", watcher).exits(3).prints_error("the user needs the command ROLE");
    as_users("fleet:fleet-secret", "").exits(3).prints_error("cannot find the primary fleet");
    as_users("fleet:wrong-secret", watcher).exits(3).prints_error("cannot find the primary fleet");
}

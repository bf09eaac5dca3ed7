//! Checks a Redis server from the facts that it reports about itself. This module does no I/O.

use tickfleet_store::{DEFAULT_USER, DefaultUser, Refusal, SentinelReport, ServerFacts};

use super::CheckResult;

/// The oldest release with all features that the fleet's scripts need.
const RELEASE_MIN: (u32, u32) = (7, 0);
/// With a larger difference, times from different machines confuse people.
const CLOCK_DIFFERENCE_MS_MAX: i64 = 1_000;
/// New work is rejected from this percentage of `maxmemory` on.
const MEMORY_PERCENT_FULL: u64 = 80;
const MEMORY_PERCENT_WARN: u64 = 60;

pub(crate) fn check(facts: &ServerFacts) -> Vec<CheckResult> {
    let mut findings = vec![version(facts), role(facts), eviction(facts), durability(facts), memory(facts)];
    findings.extend(default_user(facts));
    findings.extend(facts.refused.iter().map(|refused| {
        let advice = "grant the user the rules printed by `tickfleet acl --role operator`; a managed service may not offer the command";
        CheckResult::warn("rights", format!("refused: {refused}"), advice)
    }));
    findings
}

/// Rejects a `redis://` URL of a cluster: the URL names one node, but the keys of the fleet are on several nodes.
pub(crate) fn cluster_by_one_node(facts: &ServerFacts) -> Option<CheckResult> {
    let says = "redis:// names one node of a cluster, which serves only some shards";
    (facts.mode == "cluster").then(|| CheckResult::fail("cluster", says, Refusal::Cluster.remedy()))
}

/// Redis loads its append-only file as the user `default`. If this user lacks permissions, Redis starts without the
/// data that the denied commands wrote. Valkey does not check the permissions.
fn default_user(facts: &ServerFacts) -> Option<CheckResult> {
    let advice = || {
        format!(
            "ACL SETUSER default {DEFAULT_USER}, and the same line in the aclfile (ACL SAVE): no client logs in as this user"
        )
    };
    match &facts.default_user {
        DefaultUser::Refuses(why) if facts.product == "Redis" && facts.aof != Some(false) => {
            let says = format!(
                "a restart loses everything that scripts wrote: {why}, so Redis rejects its own append-only file"
            );
            Some(CheckResult::fail("default user", says, advice()))
        }
        DefaultUser::Refuses(why) => {
            let says = format!("with an append-only file, Redis would reject the file when it starts: {why}");
            Some(CheckResult::warn("default user", says, advice()))
        }
        DefaultUser::NotAllowed => {
            let says = "cannot check whether the user default may load the append-only file: ACL DRYRUN is denied";
            Some(CheckResult::warn("default user", says, Refusal::Rights.remedy()))
        }
        DefaultUser::Loads => Some(CheckResult::ok("default user", "Redis can load its append-only file")),
        DefaultUser::Unknown => None,
    }
}

fn version(facts: &ServerFacts) -> CheckResult {
    let says = format!("{} {}, {}", facts.product, facts.version, facts.mode);
    if !["Redis", "Valkey"].contains(&facts.product.as_str()) {
        let advice = "unsupported server: use Redis 7.0 or later, or Valkey";
        return CheckResult::fail("version", says, advice);
    }
    if facts.version.is_empty() {
        let advice = "make sure that it is Redis 7.0 or later, or Valkey";
        return CheckResult::warn("version", "the server does not report its version", advice);
    }
    if facts.release() < RELEASE_MIN {
        return CheckResult::fail("version", says, "use Redis 7.0 or later, or Valkey");
    }
    match facts.mode.as_str() {
        "sentinel" => CheckResult::fail("version", says, "this is a sentinel: name the server that it monitors"),
        _ => CheckResult::ok("version", says),
    }
}

fn role(facts: &ServerFacts) -> CheckResult {
    match facts.role.as_str() {
        "slave" => CheckResult::fail("role", "a read-only replica", "name the primary"),
        "" => CheckResult::warn("role", "the server does not report its role", "make sure that it is a primary"),
        _ => CheckResult::ok("role", "a primary"),
    }
}

pub(crate) fn sentinels(says: &[SentinelReport]) -> Option<CheckResult> {
    const ADVICE: &str = "start or repair it, or remove it from the URL: a failover needs a majority of sentinels";
    let named: Vec<&String> = says.iter().filter_map(|view| view.primary.as_ref().ok()).collect();
    // The Sentinels are queried one after the other, so their answers can differ during a failover. The most frequent
    // answer counts.
    let primary = named.iter().max_by_key(|name| named.iter().filter(|other| other == name).count())?;
    let agree = named.iter().filter(|name| name == &primary).count();
    let text = format!("{primary}, according to {agree} of {} sentinels", says.len());
    let odd = says.iter().find_map(|view| match &view.primary {
        Ok(other) if other == *primary => None,
        Ok(other) => Some(format!("{} reports {other}", view.sentinel)),
        Err(why) => Some(format!("{}: {why}", view.sentinel)),
    });
    Some(match odd {
        None => CheckResult::ok("primary", text),
        Some(odd) => CheckResult::warn("primary", format!("{text}; {odd}"), ADVICE),
    })
}

fn eviction(facts: &ServerFacts) -> CheckResult {
    match facts.maxmemory_policy.as_str() {
        "noeviction" => CheckResult::ok("eviction", "maxmemory-policy is noeviction"),
        "" => CheckResult::warn(
            "eviction",
            "the server does not report its maxmemory-policy",
            "make sure that it is noeviction",
        ),
        other => CheckResult::fail(
            "eviction",
            format!("maxmemory-policy is {other}: a full server would evict accepted calls and counters"),
            "CONFIG SET maxmemory-policy noeviction",
        ),
    }
}

/// Only a crash of the Redis server can lose data. Restarts of workers or schedulers never lose data.
fn durability(facts: &ServerFacts) -> CheckResult {
    const ADVICE: &str = "CONFIG SET appendonly yes, and appendfsync everysec";
    let Some(aof) = facts.aof else {
        let advice = "ask your provider what a failover and a restart lose";
        return CheckResult::warn(
            "durability",
            "the server does not report whether it has an append-only file",
            advice,
        );
    };
    if !aof {
        let kept = match facts.save.as_deref() {
            Some("") => "a restart of the server loses all data",
            Some(_) => "snapshots only: a crash loses minutes of accepted calls, counters and replies",
            None => "no append-only file: a crash loses all writes since the last snapshot",
        };
        return CheckResult::warn("durability", kept, ADVICE);
    }
    if !facts.aof_write_ok {
        return CheckResult::fail(
            "durability",
            "the last write of the append-only file failed",
            "look at the server's disk",
        );
    }
    match facts.fsync.as_deref() {
        Some("always") => {
            CheckResult::ok("durability", "append-only file, fsync always: a crash loses no acknowledged write")
        }
        Some("everysec") => CheckResult::ok(
            "durability",
            "append-only file, fsync everysec: a crash of the machine loses up to about two seconds, a crash of the process nothing",
        ),
        Some(_) => CheckResult::warn(
            "durability",
            "append-only file without fsync: a crash of the machine loses up to about 30 s",
            ADVICE,
        ),
        None => CheckResult::ok("durability", "append-only file; the server does not report its fsync policy"),
    }
}

fn memory(facts: &ServerFacts) -> CheckResult {
    let used = rounded(facts.used_memory);
    if facts.used_memory == 0 {
        return CheckResult::warn("memory", "the server does not report its memory", "make sure that maxmemory is set");
    }
    if facts.maxmemory == 0 {
        let advice = "set maxmemory: new work is then rejected at 80 % of it, so that accepted work can finish";
        return CheckResult::warn("memory", format!("{used} used, no maxmemory"), advice);
    }
    let percent = facts.used_memory.saturating_mul(100) / facts.maxmemory;
    let says = format!("{used} of {} used ({percent} %)", rounded(facts.maxmemory));
    match percent {
        MEMORY_PERCENT_FULL.. => CheckResult::fail(
            "memory",
            format!("{says}: new work is rejected"),
            "raise maxmemory, or shorten retention.*",
        ),
        MEMORY_PERCENT_WARN.. => {
            CheckResult::warn("memory", says, "at 80 % new work is rejected: raise maxmemory, or shorten retention.*")
        }
        _ => CheckResult::ok("memory", says),
    }
}

fn rounded(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    match bytes / MIB {
        0 => format!("{} KiB", bytes / 1_024),
        whole @ 1..100 => format!("{whole}.{} MiB", bytes % MIB * 10 / MIB),
        whole => format!("{whole} MiB"),
    }
}

/// All times are in ms. `before` and `after` are this machine's time around the query.
pub(crate) fn clock(theirs: i64, before: i64, after: i64) -> CheckResult {
    let ours = before + (after - before) / 2;
    let round = after - before;
    let difference = theirs - ours;
    let says = format!("Redis' clock differs from this machine's by {difference:+} ms (round trip {round} ms)");
    if difference.abs() > CLOCK_DIFFERENCE_MS_MAX + round {
        let advice = "caps follow Redis' clock and hold; producers' deadlines are off by this difference. Check NTP on both machines";
        return CheckResult::warn("clock", says, advice);
    }
    CheckResult::ok("clock", says)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::Level;
    use super::*;

    fn good() -> ServerFacts {
        ServerFacts {
            product: "Redis".into(),
            version: "7.0.15".into(),
            mode: "standalone".into(),
            role: "master".into(),
            maxmemory_policy: "noeviction".into(),
            used_memory: 10 << 20,
            maxmemory: 100 << 20,
            aof: Some(true),
            fsync: Some("everysec".into()),
            aof_write_ok: true,
            ..ServerFacts::default()
        }
    }

    fn worst(facts: &ServerFacts) -> Option<Level> {
        check(facts).into_iter().map(|finding| finding.level).max()
    }

    fn says(sentinel: &str, primary: Result<&str, &str>) -> SentinelReport {
        let primary = primary.map(str::to_owned).map_err(str::to_owned);
        SentinelReport { sentinel: sentinel.into(), primary }
    }

    #[test]
    fn the_primary_is_reported_with_each_disagreeing_sentinel() {
        let one = says("a", Ok("x:1"));
        let two = says("b", Ok("y:1"));
        let silent = says("c", Err("no answer"));
        assert_eq!(sentinels(&[]), None);
        assert_eq!(
            sentinels(&[one.clone(), one.clone()]),
            Some(CheckResult::ok("primary", "x:1, according to 2 of 2 sentinels"))
        );
        for (odd, expected) in [(two, "x:1, according to 2 of 3 sentinels; b reports y:1"), (silent, "c: no answer")] {
            let finding = sentinels(&[odd, one.clone(), one.clone()]).unwrap();
            assert_eq!(finding.level, Level::Warn);
            assert!(finding.says.ends_with(expected), "{finding:?}");
        }
    }

    #[test]
    fn a_healthy_server_passes_and_each_fault_fails_or_warns() {
        assert_eq!(worst(&good()), Some(Level::Ok));
        for bad in [
            ServerFacts { version: "6.2.9".into(), ..good() },
            ServerFacts { product: "Dragonfly".into(), version: "df-v1.30.0".into(), ..good() },
            ServerFacts { role: "slave".into(), ..good() },
            ServerFacts { maxmemory_policy: "allkeys-lru".into(), ..good() },
            ServerFacts { aof_write_ok: false, ..good() },
            ServerFacts { used_memory: 80 << 20, ..good() },
            ServerFacts { default_user: DefaultUser::Refuses("User default has no permissions".into()), ..good() },
        ] {
            assert_eq!(worst(&bad), Some(Level::Fail), "{bad:?}");
        }
        for doubtful in [
            ServerFacts { aof: Some(false), save: Some("3600 1".into()), ..good() },
            ServerFacts { fsync: Some("no".into()), ..good() },
            ServerFacts { maxmemory: 0, ..good() },
            // A managed service can hide its version and role.
            ServerFacts { version: String::new(), role: String::new(), aof: None, ..good() },
            ServerFacts { used_memory: 70 << 20, ..good() },
            ServerFacts { used_memory: 0, maxmemory: 0, ..good() },
            ServerFacts { refused: vec!["INFO: NOPERM".into()], ..good() },
            ServerFacts { default_user: DefaultUser::NotAllowed, ..good() },
            ServerFacts { product: "Valkey".into(), default_user: DefaultUser::Refuses("no".into()), ..good() },
        ] {
            assert_eq!(worst(&doubtful), Some(Level::Warn), "{doubtful:?}");
        }
    }

    #[test]
    fn a_cluster_node_given_as_a_single_server_fails_with_advice() {
        assert_eq!(cluster_by_one_node(&good()), None);
        let found = cluster_by_one_node(&ServerFacts { mode: "cluster".into(), ..good() }).unwrap();
        assert_eq!(found.level, Level::Fail);
        assert!(found.advice.unwrap().contains("redis+cluster://"));
    }

    #[test]
    fn a_slow_response_is_not_reported_as_a_wrong_clock() {
        assert_eq!(clock(10_500, 10_000, 11_000).level, Level::Ok);
        assert_eq!(clock(14_000, 10_000, 10_010).level, Level::Warn);
    }
}

//! Checks a shard. This module does no I/O.

use std::collections::BTreeMap;

use tickfleet_config::Settings;
use tickfleet_engine::active_policy::short_digest;
use tickfleet_model::suggest::list;
use tickfleet_store::{ShardBacklog, ShardFacts};

use crate::checks::CheckResult;
use crate::output::short;
use crate::output::time_format::span;

/// In ms. If a timer is overdue for longer than this, no scheduler checks the timers.
const LATE_MS_MAX: i64 = 2_000;
const NAMED_MAX: usize = 5;

pub(super) fn shard(number: usize, facts: &ShardFacts, shards: u32, digest: &str) -> Vec<CheckResult> {
    if facts.is_new() {
        let advice = "start a scheduler and a worker: tickfleet dev, or tickfleet scheduler and tickfleet worker";
        return vec![CheckResult::warn("shard", format!("shard {number} has never been used"), advice)];
    }
    let mut findings = Vec::new();
    findings.push(match facts.shards {
        Some(stored) if stored != shards => CheckResult::fail(
            "shards",
            format!("this configuration has {shards} shards; the data was written with {stored}"),
            format!("set redis.shards to {stored}: a tenant's shard depends on the number of shards"),
        ),
        _ => CheckResult::ok("shards", format!("{shards} in use, this is number {number}")),
    });
    findings.push(policy(facts, digest));
    findings.extend(others(facts));
    if !facts.tools_off.is_empty() {
        let says = format!("disabled at run time for all agents: {}", facts.tools_off.join(", "));
        findings.push(CheckResult::warn("tools", says, "tickfleet tools enable <tool> enables one again"));
    }
    findings.push(match facts.steps {
        (0, _) => CheckResult::ok("shard time", "the store's clock has never stepped back"),
        (count, step) => CheckResult::warn(
            "shard time",
            format!(
                "the store's clock stepped back {count} times, last by {step} ms; shard time is {} ms ahead of it",
                facts.offset_ms
            ),
            "windows were not affected; let NTP slew the server's clock instead of stepping it",
        ),
    });
    findings
}

fn policy(facts: &ShardFacts, digest: &str) -> CheckResult {
    let generation = facts.policy_generation;
    let short_of = |digest: &str| short(digest, 12);
    if facts.policy_digest == digest {
        return CheckResult::ok(
            "policy",
            format!("generation {generation} is in force and matches this configuration"),
        );
    }
    let says = format!(
        "generation {generation} ({}) is in force; this configuration is {}",
        short_of(&facts.policy_digest),
        short_of(digest)
    );
    CheckResult::warn(
        "policy",
        says,
        "compare `tickfleet config print` on both sides, or restart the schedulers with this configuration",
    )
}

/// Warns about live processes with a policy other than the policy in force. A heartbeat names the policy of a process.
fn others(facts: &ShardFacts) -> Option<CheckResult> {
    let in_force = short_digest(&facts.policy_digest);
    let lives = |name: &str| facts.beats.get(name).is_some_and(|until| *until > facts.now_ms);
    let mut by_policy: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, policy) in facts.policies.iter().filter(|(name, policy)| lives(name) && *policy != in_force) {
        by_policy.entry(policy).or_default().push(name);
    }
    let named = by_policy.iter_mut().map(|(policy, names)| {
        names.sort_unstable();
        let more = names.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{policy} decides in {}{more}", names[..names.len().min(NAMED_MAX)].join(", "))
    });
    let named: Vec<String> = named.collect();
    let says = format!("{in_force} is in force, but {}", named.join("; "));
    let advice = "normal for seconds after a change; if it lasts, a process rejected the change and logged the reason. Until then: tickfleet tools disable <tool>";
    (!named.is_empty()).then(|| CheckResult::warn("policies", says, advice))
}

/// If memory is low, the other findings name it as their cause.
fn memory(b: &ShardBacklog) -> Option<CheckResult> {
    let says = format!(
        "{} MiB of {} MiB used: new work is rejected; accepted work continues in small batches",
        b.memory.used >> 20,
        b.memory.max >> 20
    );
    let advice = "raise maxmemory, read the inboxes, or shorten retention.*; accepted work is not lost";
    (b.pressure || b.memory.is_nearly_full()).then(|| CheckResult::fail("pressure", says, advice))
}

pub(super) fn backlog(backlog: &ShardBacklog, settings: &Settings) -> Vec<CheckResult> {
    let b = backlog;
    let memory = memory(b);
    let short = memory.is_some();
    let because = |advice: &'static str| if short { "caused by low Redis memory" } else { advice };
    let suspects = if b.suspect > 0 { format!("{} suspect, ", b.suspect) } else { String::new() };
    let counts = format!(
        "{} inbound, {} tasks, {} ready, {suspects}{} running, {} timers",
        b.inbound, b.tasks, b.ready, b.running, b.timers
    );
    let mut findings: Vec<CheckResult> = memory.into_iter().collect();
    findings.push(if b.inbound >= settings.queues.turns_max {
        CheckResult::fail(
            "backlog",
            format!("{counts}: new turns are rejected (queue_full)"),
            because("add schedulers, or find out why admission stalls"),
        )
    } else {
        CheckResult::ok("backlog", counts)
    });
    findings.push(if b.late_ms > LATE_MS_MAX {
        CheckResult::fail(
            "timers",
            format!("the oldest due timer is {} late", span(b.late_ms)),
            because("no scheduler fires timers: start one"),
        )
    } else {
        CheckResult::ok("timers", "none is late")
    });
    findings
}

/// Checks live processes, lost processes, and work that lost processes still hold.
pub(super) fn consumers(facts: &ShardFacts) -> Vec<CheckResult> {
    let alive = |kind: &str| {
        facts.beats.iter().filter(|(name, until)| name.starts_with(kind) && **until > facts.now_ms).count()
    };
    let mut findings = Vec::new();
    for (kind, what, does) in [("s-", "schedulers", "nothing is admitted"), ("w-", "workers", "no calls run")] {
        findings.push(match alive(kind) {
            0 => CheckResult::fail(
                what,
                format!("none alive: {does}"),
                format!("start one: tickfleet {}", what.trim_end_matches('s')),
            ),
            count => CheckResult::ok(what, format!("{count} alive")),
        });
    }
    let mut lost: Vec<&str> =
        facts.beats.iter().filter(|(_, until)| **until <= facts.now_ms).map(|(name, _)| name.as_str()).collect();
    if !lost.is_empty() {
        lost.sort_unstable();
        let says = format!("stopped without deregistering, or hanging: {}", list(lost));
        findings.push(CheckResult::warn(
            "lost",
            says,
            "check their logs and the orchestrator's; other processes take over",
        ));
    }
    let gone: Vec<_> = facts
        .consumers
        .iter()
        .filter(|c| c.pending > 0 && facts.beats.get(&c.name).is_none_or(|until| *until <= facts.now_ms))
        .collect();
    if !gone.is_empty() {
        let named = gone
            .iter()
            .take(NAMED_MAX)
            .map(|c| format!("{} ({} on {}, idle {})", c.name, c.pending, c.stream, span(c.idle_ms)));
        let says = format!("without a heartbeat but holding entries: {}", named.collect::<Vec<_>>().join("; "));
        findings.push(CheckResult::warn(
            "the gone",
            says,
            "a scheduler recovers them within about one lease; if they remain, no scheduler runs",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use tickfleet_store::{ConsumerFacts, MemoryUsage};

    use super::*;
    use crate::checks::Level;

    fn facts() -> ShardFacts {
        ShardFacts {
            now_ms: 100_000,
            used: true,
            policy_generation: 3,
            policy_digest: "abc".into(),
            shards: Some(1),
            beats: [("s-a".to_owned(), 105_000), ("w-a".to_owned(), 105_000), ("w-b".to_owned(), 90_000)].into(),
            ..ShardFacts::default()
        }
    }

    fn worst(findings: &[CheckResult]) -> Level {
        findings.iter().map(|finding| finding.level).max().unwrap()
    }

    #[test]
    fn a_healthy_shard_is_ok_and_a_wrong_shard_count_fails() {
        assert_eq!(worst(&shard(0, &facts(), 1, "abc")), Level::Ok);
        assert_eq!(worst(&shard(0, &facts(), 2, "abc")), Level::Fail);
        assert_eq!(worst(&shard(0, &facts(), 1, "other")), Level::Warn);
        assert_eq!(worst(&shard(0, &ShardFacts::default(), 1, "abc")), Level::Warn);
    }

    #[test]
    fn a_live_process_with_a_different_policy_is_reported() {
        let policies = |of: &[(&str, &str)]| of.iter().map(|(n, p)| ((*n).to_owned(), (*p).to_owned())).collect();
        let same = ShardFacts { policies: policies(&[("s-a", "abc"), ("w-a", "abc"), ("w-b", "old")]), ..facts() };
        assert_eq!(others(&same), None);
        let split = ShardFacts { policies: policies(&[("s-a", "abc"), ("w-a", "old")]), ..facts() };
        let said = others(&split).unwrap();
        assert_eq!((said.level, said.says.as_str()), (Level::Warn, "abc is in force, but old decides in w-a"));
    }

    #[test]
    fn a_dead_consumer_that_holds_entries_is_named() {
        let holds =
            |name: &str| ConsumerFacts { stream: "ready:normal".into(), name: name.into(), pending: 2, idle_ms: 9 };
        let facts = ShardFacts { consumers: vec![holds("w-a"), holds("w-b")], ..facts() };
        let findings = consumers(&facts);
        assert_eq!(worst(&findings), Level::Warn);
        let lost = findings.iter().find(|finding| finding.what == "lost").unwrap();
        assert!(lost.says.ends_with(": w-b"), "{}", lost.says);
        let said = &findings.last().unwrap().says;
        assert!(said.contains("w-b (2 on ready:normal") && !said.contains("w-a"), "{said}");
    }

    #[test]
    fn late_timers_fail_and_full_memory_is_reported_as_their_cause() {
        let settings = tickfleet_config::load(&tickfleet_config::Sources {
            // The permissions of the sample business name these tools.
            built_in_tools: ["delegate_task", "cancel_task", "read_messages", "send_mcp_message"]
                .map(String::from)
                .into(),
            built_in_handlers: ["note".to_owned()].into(),
            ..Default::default()
        });
        let settings = settings.unwrap().settings;
        assert_eq!(worst(&backlog(&ShardBacklog::default(), &settings)), Level::Ok);
        assert_eq!(
            worst(&backlog(&ShardBacklog { late_ms: 5_000, ..ShardBacklog::default() }, &settings)),
            Level::Fail
        );
        // Full memory is the only reported cause, even if the pressure flag for scripts is not set.
        let memory = MemoryUsage { used: 90 << 20, max: 100 << 20 };
        let full = ShardBacklog { late_ms: 5_000, memory, ..ShardBacklog::default() };
        let found = backlog(&full, &settings);
        assert_eq!((found[0].what, found[0].level), ("pressure", Level::Fail));
        let advice: Vec<_> = found[1..].iter().filter_map(|finding| finding.advice.as_deref()).collect();
        assert_eq!(advice, ["caused by low Redis memory"]);
    }
}

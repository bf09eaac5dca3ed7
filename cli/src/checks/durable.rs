//! Checks whether a server can confirm the required durability.

use tickfleet_model::Durability;
use tickfleet_store::ServerFacts;

use super::CheckResult;
use crate::setup::Setup;

/// Valkey continued Redis' version numbers, so one number applies to both.
const WAITAOF_SINCE: (u32, u32) = (7, 2);

/// Returns the general setting, and the setting of each tool that has its own. Leaves out settings without durability.
pub(crate) fn durability_needs(setup: &Setup) -> Vec<(String, Durability)> {
    let setting = ("worker.durable".to_owned(), setup.settings().worker.durable);
    let tools = &setup.configuration.tools.tools;
    let of_tools = tools.iter().filter_map(|(name, def)| Some((format!("the tool {name}"), def.durable?)));
    std::iter::once(setting).chain(of_tools).filter(|(_, durability)| *durability != Durability::None).collect()
}

pub(crate) fn check(facts: &ServerFacts, durability_needs: &[(String, Durability)]) -> Vec<CheckResult> {
    [Durability::Disk, Durability::Replica]
        .into_iter()
        .filter_map(|kind| of_kind(facts, kind, durability_needs))
        .collect()
}

fn of_kind(facts: &ServerFacts, kind: Durability, durability_needs: &[(String, Durability)]) -> Option<CheckResult> {
    let mut who = durability_needs.iter().filter(|(_, durable)| *durable == kind).map(|(who, _)| who.as_str());
    let first = who.next()?;
    let more = who.count();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let says = |what: &str| format!("{first}{more}: {}: {what}", kind.as_str());
    let not_run = |what: &str| says(&format!("{what}: such calls do not run"));
    Some(match (kind, facts.replicas) {
        (Durability::Disk, _) if !facts.version.is_empty() && facts.release() < WAITAOF_SINCE => CheckResult::fail(
            "durable",
            not_run(&format!("{} {} has no WAITAOF", facts.product, facts.version)),
            "use Redis 7.2 or later, or Valkey; or `durable: replica`; or `none` with appendfsync always",
        ),
        (Durability::Disk, _) if facts.aof == Some(false) => {
            CheckResult::fail("durable", not_run("no append-only file"), "CONFIG SET appendonly yes")
        }
        (Durability::Replica, Some(0)) => {
            CheckResult::fail("durable", not_run("no replica connected"), "add a replica")
        }
        (Durability::Replica, Some(1)) => CheckResult::warn(
            "durable",
            says("one replica connected: if it disconnects, such calls do not run"),
            "add another replica",
        ),
        _ => CheckResult::ok("durable", says("can be confirmed")),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn unsupported_durability_is_reported_with_the_settings_that_need_it() {
        let facts = |version: &str, aof, replicas| ServerFacts {
            product: "Redis".into(),
            version: version.into(),
            aof: Some(aof),
            replicas,
            ..ServerFacts::default()
        };
        let needs = |durable| vec![("worker.durable".to_owned(), durable), ("the tool pay".to_owned(), durable)];
        for (version, aof, replicas, durable, level, expected) in [
            ("7.0.15", true, Some(0), Durability::Disk, Level::Fail, "Redis 7.0.15 has no WAITAOF"),
            ("7.2.0", false, Some(0), Durability::Disk, Level::Fail, "no append-only file"),
            ("7.2.0", true, Some(0), Durability::Disk, Level::Ok, "can be confirmed"),
            ("7.0.15", true, Some(0), Durability::Replica, Level::Fail, "no replica connected"),
            ("7.0.15", true, Some(1), Durability::Replica, Level::Warn, "one replica connected"),
            ("7.0.15", true, Some(2), Durability::Replica, Level::Ok, "can be confirmed"),
            ("7.0.15", true, None, Durability::Replica, Level::Ok, "can be confirmed"),
        ] {
            let found = check(&facts(version, aof, replicas), &needs(durable));
            let [finding] = &found[..] else { unreachable!("{found:?}") };
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(
                finding.says.starts_with("worker.durable and 1 more: ") && finding.says.contains(expected),
                "{finding:?}"
            );
        }
        assert_eq!(check(&facts("7.0.15", false, Some(0)), &[]), []);
    }
}

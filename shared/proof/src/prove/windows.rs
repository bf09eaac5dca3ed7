//! Checks that no tick or day exceeded its cap, from the admission of each call. A counter only grows within its
//! window, so two admissions with the same number are a violation.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tickfleet_model::AdmissionNote;
use tickfleet_model::day::{Tz, day_bounds, zone};

use super::entry::CallEntry;
use super::{Claim, NameHash, name_hash};
use crate::lines::Header;

const WHY_UNCHECKED: &str = "their admission is not in the log: they were never admitted, or audit.admissions was off";

#[derive(Clone)]
struct AdmittedSlice {
    turn: Box<str>,
    note: AdmissionNote,
    ended: u64,
}

#[derive(Default)]
pub(super) struct Windows {
    /// By `(tenant, agent)`, and then by the hash of turn and admission.
    agents: BTreeMap<(String, String), HashMap<NameHash, AdmittedSlice>>,
    unknown: u64,
}

impl Windows {
    pub(super) fn add(&mut self, call: &CallEntry<'_>) {
        let Some(note) = &call.admission else {
            self.unknown += 1;
            return;
        };
        let agent = self.agents.entry((call.tenant().to_owned(), call.entry.agent().to_owned())).or_default();
        let made = || AdmittedSlice { turn: call.turn().into(), note: note.clone(), ended: 0 };
        agent.entry(name_hash(&[call.turn(), call.admission_text()])).or_insert_with(made).ended += 1;
    }

    pub(super) fn tenants(&self) -> BTreeSet<&str> {
        self.agents.keys().map(|(tenant, _)| tenant.as_str()).collect()
    }

    pub(super) fn claims(self, header: &Header) -> Vec<Claim> {
        let mut ticks = Claim::new("No tick of an agent overran its cap.", "windows", WHY_UNCHECKED);
        let mut days = Claim::new("No day of an agent overran its cap.", "windows", WHY_UNCHECKED);
        let mut tenants = Claim::new("No day of a tenant overran its cap.", "windows", WHY_UNCHECKED);
        ticks.unchecked = self.unknown;
        days.unchecked = self.unknown;
        let mut of_tenant: BTreeMap<(String, i64), u64> = BTreeMap::new();
        for ((tenant, agent), admissions) in self.agents {
            let name = format!("{tenant}:{agent}");
            let mut admissions: Vec<AdmittedSlice> = admissions.into_values().collect();
            admissions.sort_by_key(|a| (a.note.at_ms, a.note.day_used, a.note.tick_used));
            let zone = zone_of(header, &tenant);
            check_ticks(&name, &admissions, &mut ticks);
            check_days(&name, &admissions, zone, &mut days);
            for admitted in &admissions {
                *of_tenant.entry((tenant.clone(), day_bounds(admitted.note.at_ms, zone).0)).or_default() +=
                    admitted.ended;
            }
        }
        for ((tenant, day_ms), calls) in of_tenant {
            let Some(cap) = header.tenants.get(&tenant).and_then(|facts| facts.day_cap) else { continue };
            tenants.checked += 1;
            if calls > cap {
                let day = chrono::DateTime::from_timestamp_millis(day_ms).unwrap_or_default();
                tenants.violated(format!(
                    "{tenant} had {calls} calls admitted in the day from {day}; {cap} are allowed now"
                ));
            }
        }
        vec![ticks, days, tenants]
    }
}

fn zone_of(header: &Header, tenant: &str) -> Tz {
    header.tenants.get(tenant).and_then(|facts| zone(&facts.time_zone).ok()).unwrap_or(Tz::UTC)
}

fn check_ticks(name: &str, admissions: &[AdmittedSlice], claim: &mut Claim) {
    let mut windows: BTreeMap<i64, Vec<&AdmittedSlice>> = BTreeMap::new();
    for admitted in admissions {
        let note = &admitted.note;
        windows.entry(note.tick_ends_ms).or_default().push(admitted);
        if admitted.ended > u64::from(note.calls) {
            let what = format!("{} calls of {} ended; {} were admitted", admitted.ended, admitted.turn, note.calls);
            claim.violated(format!("{name}: {what}"));
        }
        if note.tick_used > note.tick_cap {
            claim.violated(format!(
                "{name}: {} was admitted as call {} of {}",
                admitted.turn, note.tick_used, note.tick_cap
            ));
        }
        if note.at_ms >= note.tick_ends_ms {
            claim.violated(format!("{name}: {} was admitted in a window that had ended", admitted.turn));
        }
    }
    let mut last_end = None;
    for (end, inside) in windows {
        claim.checked += 1;
        let begins = inside.iter().map(|a| a.note.at_ms).min().unwrap_or(end);
        if last_end.is_some_and(|last| begins < last) {
            claim.violated(format!("{name}: the window that ends at {end} began before the previous window had ended"));
        }
        last_end = Some(end);
        overlaps(name, "tick", inside.iter().map(|a| (*a, a.note.tick_used)), claim);
        let (calls, cap) = sum(&inside, |note| note.tick_cap);
        if calls > cap {
            claim.violated(format!("{name}: the window that ends at {end} had {calls} calls of {cap}"));
        }
    }
}

fn check_days(name: &str, admissions: &[AdmittedSlice], zone: Tz, claim: &mut Claim) {
    let mut days: BTreeMap<i64, Vec<&AdmittedSlice>> = BTreeMap::new();
    for admitted in admissions {
        days.entry(day_bounds(admitted.note.at_ms, zone).0).or_default().push(admitted);
        let note = &admitted.note;
        if note.day_used > note.day_cap {
            claim.violated(format!(
                "{name}: {} was admitted as call {} of {}",
                admitted.turn, note.day_used, note.day_cap
            ));
        }
    }
    for (_, inside) in days {
        claim.checked += 1;
        overlaps(name, "day", inside.iter().map(|a| (*a, a.note.day_used)), claim);
        let (calls, cap) = sum(&inside, |note| note.day_cap);
        if calls > cap {
            claim.violated(format!("{name}: a day had {calls} calls of {cap}"));
        }
    }
}

fn sum(inside: &[&AdmittedSlice], cap: impl Fn(&AdmissionNote) -> u32) -> (u64, u64) {
    let calls = inside.iter().map(|a| a.ended).sum();
    (calls, inside.iter().map(|a| u64::from(cap(&a.note))).max().unwrap_or_default())
}

/// An admission's range begins at the count before the admission and ends at the count after it.
fn overlaps<'a>(name: &str, what: &str, inside: impl Iterator<Item = (&'a AdmittedSlice, u32)>, claim: &mut Claim) {
    let mut spans: Vec<(u32, u32, &str)> =
        inside.map(|(a, used)| (used.saturating_sub(a.note.calls), used, &*a.turn)).collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            let one = pair[0].2;
            let two = pair[1].2;
            claim.violated(format!("{name}: {one} and {two} were admitted with the same count in their {what}"));
        }
    }
}

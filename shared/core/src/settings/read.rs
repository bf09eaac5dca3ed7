//! All run-time settings, as of one generation.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tickfleet_model::policy::{Pause, Paused, PausedTool, TenantPolicy};
use tickfleet_model::{TenantId, day};

use super::run_time::{Setting, Settings, key};
use crate::decision::{Context, Decision, Step};
use crate::record::Stored;
use crate::transaction::Transaction;
use crate::view::{Query, Undecided, Value, View};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunTimeSettings {
    pub generation: u64,
    pub tenants: BTreeMap<TenantId, TenantPolicy>,
    /// Tenant → reason.
    pub unreadable: BTreeMap<TenantId, String>,
    /// A pause with an unreadable note still applies, with an empty note.
    pub pauses: BTreeMap<Paused, Pause>,
    pub tool_pauses: BTreeMap<PausedTool, Pause>,
    /// By name or ID.
    pub tools_off: BTreeSet<String>,
}

impl RunTimeSettings {
    fn add(&mut self, part: &str, content: &Bytes) {
        let note = || serde_json::from_slice(content).unwrap_or_default();
        match Setting::parse(part) {
            Some(Setting::Tenant(tenant)) => match read_tenant(content) {
                Ok(policy) => drop(self.tenants.insert(tenant, policy)),
                Err(problem) => drop(self.unreadable.insert(tenant, problem)),
            },
            Some(Setting::Pause(paused)) => drop(self.pauses.insert(paused, note())),
            Some(Setting::ToolPause(paused)) => drop(self.tool_pauses.insert(paused, note())),
            Some(Setting::ToolOff(tool)) => drop(self.tools_off.insert(tool)),
            None => {}
        }
    }
}

/// Rejects an unknown time zone. Otherwise the tenant's days would be counted in another zone.
pub fn read_tenant(declaration: &[u8]) -> Result<TenantPolicy, String> {
    let policy: TenantPolicy = serde_json::from_slice(declaration).map_err(|error| error.to_string())?;
    if let Some(zone) = &policy.time_zone {
        day::zone(zone).map_err(|error| error.to_string())?;
    }
    Ok(policy)
}

/// Writes nothing. A guard detects a change between the two reads.
#[derive(Debug, Clone, Copy)]
pub struct ReadSettings;

impl Decision for ReadSettings {
    type Output = RunTimeSettings;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key()), Query::AllParts(key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<RunTimeSettings>, Undecided> {
        let stored: Option<Stored<Settings>> = view.record(&key())?;
        let mut settings = RunTimeSettings::default();
        if let Some(stored) = &stored {
            settings.generation = stored.value.generation;
            if let Value::AllParts(parts) = view.get(&Query::AllParts(key()))? {
                parts.iter().for_each(|(part, content)| settings.add(part, content));
            }
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard_read(&key(), stored.as_ref());
        Ok(Step::Commit(transaction, settings))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ChangeSetting, Origin};
    use super::*;
    use crate::trial::Trial;

    #[test]
    fn settings_are_read_from_one_generation() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&ChangeSetting::switch_off("a".into(), Origin::Restored));
        let decided = shard.step(&ReadSettings);
        shard.receipt(&ChangeSetting::switch_off("b".into(), Origin::Restored));
        let settings = shard.finish(&ReadSettings, decided).result;
        assert_eq!((settings.generation, settings.tools_off.len()), (1_001, 2));
        let none = Trial::at(1_000).run(&ReadSettings);
        assert_eq!(none, RunTimeSettings::default());
    }
}

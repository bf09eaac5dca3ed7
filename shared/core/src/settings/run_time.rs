//! Changes of settings: tenants declared at run time, pauses, and tools that are switched off.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::policy::{Pause, Paused, PausedTool, TenantPolicy};
use tickfleet_model::{AgentId, TenantId, limits};

use super::next_generation;
use crate::audit::AuditAppend;
use crate::decision::{Context, Decision, Step};
use crate::keys::{limits as counters, throttle_timer};
use crate::record::Record;
use crate::transaction::{CounterKey, RecordKey, TimerRule, Transaction, Write};
use crate::view::{Query, Undecided, View};

const TENANTS_MAX: u64 = 10_000;
const TOOLS_OFF_MAX: u64 = 10_000;

/// The record of the settings. Each setting is a part of this record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Increases with every change.
    #[serde(rename = "g")]
    pub generation: u64,
    #[serde(rename = "t", default)]
    pub tenants: u64,
    #[serde(rename = "p", default)]
    pub pauses: u64,
    #[serde(rename = "o", default)]
    pub tools_off: u64,
}

impl Record for Settings {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key() -> RecordKey {
    RecordKey::new("settings")
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Setting {
    Tenant(TenantId),
    Pause(Paused),
    ToolPause(PausedTool),
    /// By name or ID.
    ToolOff(String),
}

impl Setting {
    /// `tenant:acme`, `pause:acme:kelly`, `pause:acme:` for a whole tenant, `tool_pause:acme:send`, `tool_pause::send`
    /// for all tenants, `tool_off:send`.
    #[must_use]
    pub fn part(&self) -> Arc<str> {
        match self {
            Self::Tenant(tenant) => format!("tenant:{tenant}"),
            Self::Pause(Paused { tenant, agent }) => {
                format!("pause:{tenant}:{}", agent.as_ref().map_or("", AgentId::as_str))
            }
            Self::ToolPause(PausedTool { tenant, tool }) => {
                format!("tool_pause:{}:{tool}", tenant.as_ref().map_or("", TenantId::as_str))
            }
            Self::ToolOff(tool) => format!("tool_off:{tool}"),
        }
        .into()
    }

    #[must_use]
    pub fn parse(part: &str) -> Option<Self> {
        let (kind, subject) = part.split_once(':')?;
        match kind {
            "tenant" => Some(Self::Tenant(TenantId::new(subject).ok()?)),
            "pause" => {
                let (tenant, agent) = subject.split_once(':')?;
                let agent = if agent.is_empty() { None } else { Some(AgentId::new(agent).ok()?) };
                Some(Self::Pause(Paused { tenant: TenantId::new(tenant).ok()?, agent }))
            }
            "tool_pause" => {
                let (tenant, tool) = subject.split_once(':')?;
                let tenant = if tenant.is_empty() { None } else { Some(TenantId::new(tenant).ok()?) };
                Some(Self::ToolPause(PausedTool { tenant, tool: tool.to_owned() }))
            }
            "tool_off" => Some(Self::ToolOff(subject.to_owned())),
            _ => None,
        }
    }

    fn count<'a>(&self, settings: &'a mut Settings) -> (&'a mut u64, u64) {
        match self {
            Self::Tenant(_) => (&mut settings.tenants, TENANTS_MAX),
            Self::Pause(_) | Self::ToolPause(_) => (&mut settings.pauses, limits::PAUSES_MAX as u64),
            Self::ToolOff(_) => (&mut settings.tools_off, TOOLS_OFF_MAX),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Operator(AuditAppend),
    Restored,
}

#[derive(Debug, Clone)]
pub struct ChangeSetting {
    setting: Setting,
    /// `None` removes the setting.
    content: Option<Bytes>,
    origin: Origin,
}

impl ChangeSetting {
    fn json(setting: Setting, value: &impl Serialize, origin: Origin) -> Self {
        Self { setting, content: Some(serde_json::to_vec(value).unwrap_or_default().into()), origin }
    }

    #[must_use]
    pub fn set_tenant(tenant: TenantId, policy: &TenantPolicy, origin: Origin) -> Self {
        Self::json(Setting::Tenant(tenant), policy, origin)
    }

    #[must_use]
    pub fn pause(paused: Paused, note: &Pause, origin: Origin) -> Self {
        Self::json(Setting::Pause(paused), note, origin)
    }

    #[must_use]
    pub fn pause_tool(paused: PausedTool, note: &Pause, origin: Origin) -> Self {
        Self::json(Setting::ToolPause(paused), note, origin)
    }

    #[must_use]
    pub fn switch_off(tool: String, origin: Origin) -> Self {
        Self { setting: Setting::ToolOff(tool), content: Some(Bytes::new()), origin }
    }

    #[must_use]
    pub fn remove(setting: Setting, entry: AuditAppend) -> Self {
        Self { setting, content: None, origin: Origin::Operator(entry) }
    }

    /// Makes the tick queue of a paused agent due at once. If a whole tenant is paused, each agent's turns are checked
    /// at the agent's next tick.
    fn wake(&self, now_ms: i64, transaction: &mut Transaction) {
        if let Setting::Pause(Paused { tenant, agent: Some(agent) }) = &self.setting {
            let counter = CounterKey::new(counters::TICK, format!("{tenant}:{agent}"));
            transaction.timer(throttle_timer(&counter), now_ms, TimerRule::Wake);
        }
    }

    fn is_made(&self, present: bool) -> bool {
        match (&self.content, &self.setting, &self.origin) {
            (None, _, _) => !present,
            (Some(_), Setting::Tenant(_), Origin::Operator(_)) => false,
            (Some(_), _, _) => present,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingResult {
    Done { generation: u64 },
    Unchanged { generation: u64 },
    Full,
}

impl Decision for ChangeSetting {
    type Output = SettingResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key()), Query::Parts(key(), vec![self.setting.part()])]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<SettingResult>, Undecided> {
        let part = self.setting.part();
        let present = view.parts(&key(), vec![part.clone()])?.first().is_some_and(Option::is_some);
        let (mut transaction, stored) = context.update::<Settings>(view, &key())?;
        let mut settings = stored.unwrap_or_default();
        if self.is_made(present) {
            return Ok(Step::Return(SettingResult::Unchanged { generation: settings.generation }));
        }
        let (count, max) = self.setting.count(&mut settings);
        match &self.content {
            Some(_) if !present && *count >= max => return Ok(Step::Return(SettingResult::Full)),
            Some(content) => {
                *count += u64::from(!present);
                transaction.write(Write::PutPart(key(), part, content.clone()));
            }
            None => {
                *count = count.saturating_sub(1);
                transaction.write(Write::DeleteParts(key(), vec![part]));
                self.wake(context.now_ms, &mut transaction);
            }
        }
        settings.generation = next_generation(settings.generation, context);
        transaction.write(Write::SettingsGeneration(settings.generation)).put(&key(), &settings);
        if let Origin::Operator(entry) = &self.origin {
            entry.append_to(&mut transaction);
        }
        transaction.dedupe_record = Some(key());
        Ok(Step::Commit(transaction, SettingResult::Done { generation: settings.generation }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::collections::{BTreeMap, BTreeSet};

    use super::super::ReadSettings;
    use super::*;
    use crate::keys;
    use crate::trial::Trial;

    fn entry() -> AuditAppend {
        AuditAppend { text: Bytes::from_static(b"{}"), entries_max: 1_000 }
    }

    fn operator() -> Origin {
        Origin::Operator(entry())
    }

    fn kelly() -> Paused {
        Paused { tenant: TenantId::new("acme").unwrap(), agent: Some(AgentId::new("kelly").unwrap()) }
    }

    fn note(reason: &str) -> Pause {
        Pause { by: "op".into(), reason: reason.into(), since_ms: 5 }
    }

    #[test]
    fn settings_round_trip_through_their_part_names() {
        let tenant = TenantId::new("acme").unwrap();
        let whole = Paused { tenant: tenant.clone(), agent: None };
        let tool = |tenant| PausedTool { tenant, tool: "send:mail".into() };
        for setting in [
            Setting::Tenant(tenant.clone()),
            Setting::Pause(kelly()),
            Setting::Pause(whole),
            Setting::ToolPause(tool(None)),
            Setting::ToolPause(tool(Some(tenant))),
            Setting::ToolOff("send".into()),
        ] {
            assert_eq!(Setting::parse(&setting.part()), Some(setting));
        }
    }

    #[test]
    fn a_change_raises_the_generation_and_writes_an_audit_entry() {
        let mut shard = Trial::at(1_000);
        let pause = ChangeSetting::pause(kelly(), &note("x"), operator());
        assert_eq!(shard.run(&pause), SettingResult::Done { generation: 1_000 });
        assert_eq!((shard.settings, shard.log(&keys::audit()).len()), (1_000, 1));
        assert_eq!(shard.run(&pause), SettingResult::Unchanged { generation: 1_000 });
        let off = ChangeSetting::switch_off("send".into(), operator());
        assert_eq!(shard.run(&off), SettingResult::Done { generation: 1_001 });
        let settings = shard.run(&ReadSettings);
        assert_eq!((settings.generation, shard.settings), (1_001, 1_001));
        assert_eq!(settings.pauses, BTreeMap::from([(kelly(), note("x"))]));
        assert_eq!(settings.tools_off, BTreeSet::from(["send".to_owned()]));
        assert_eq!(shard.log(&keys::audit()).len(), 2);
    }

    #[test]
    fn resuming_an_agent_wakes_its_throttle_queue() {
        let mut shard = Trial::at(1_000);
        let timer: Arc<str> = throttle_timer(&CounterKey::new(counters::TICK, "acme:kelly")).into();
        let resume = ChangeSetting::remove(Setting::Pause(kelly()), entry());
        assert_eq!(shard.run(&resume), SettingResult::Unchanged { generation: 0 });
        shard.receipt(&ChangeSetting::pause(kelly(), &note("x"), operator()));
        shard.receipt(&resume);
        assert!(shard.timers.is_empty(), "nobody waits");
        shard.receipt(&ChangeSetting::pause(kelly(), &note("x"), operator()));
        shard.timers.insert(timer.clone(), 9_000);
        shard.receipt(&resume);
        assert_eq!(shard.timers[&timer], 1_000);
        assert_eq!(shard.record::<Settings>(&key()).unwrap().pauses, 0);
    }

    #[test]
    fn only_an_operator_replaces_an_existing_tenant() {
        let mut shard = Trial::at(1_000);
        let tenant = TenantId::new("acme").unwrap();
        let plan = |plan: &str| TenantPolicy { plan: plan.into(), ..TenantPolicy::default() };
        let set = |name: &str, origin| ChangeSetting::set_tenant(tenant.clone(), &plan(name), origin);
        assert!(matches!(shard.run(&set("a", Origin::Restored)), SettingResult::Done { .. }));
        assert!(shard.log(&keys::audit()).is_empty());
        assert!(matches!(shard.run(&set("b", operator())), SettingResult::Done { .. }));
        assert!(matches!(shard.run(&set("a", Origin::Restored)), SettingResult::Unchanged { .. }));
        assert_eq!(shard.run(&ReadSettings).tenants[&tenant].plan, "b");
        let zone = TenantPolicy { time_zone: Some("Mars/Olympus".into()), ..TenantPolicy::default() };
        shard.receipt(&ChangeSetting::set_tenant(tenant.clone(), &zone, operator()));
        let settings = shard.run(&ReadSettings);
        assert!(settings.unreadable.contains_key(&tenant) && settings.tenants.is_empty());
    }

    #[test]
    fn pauses_are_bounded() {
        let mut shard = Trial::at(1_000);
        let settings = Settings { generation: 1, pauses: limits::PAUSES_MAX as u64, ..Settings::default() };
        let mut transaction = Transaction::new(shard.context().version);
        shard.commit(transaction.put(&key(), &settings)).unwrap();
        assert_eq!(shard.run(&ChangeSetting::pause(kelly(), &note("x"), operator())), SettingResult::Full);
    }

    fn agent(number: u8) -> Paused {
        Paused { agent: Some(AgentId::new(format!("a{number}")).unwrap()), ..kelly() }
    }

    proptest! {
        #[test]
        fn generations_never_repeat(steps in prop::collection::vec((0..4u8, any::<bool>(), any::<bool>(), 0..2i64), 1..40)) {
            let mut shard = Trial::at(1_000);
            let mut decided: Option<(Step<SettingResult>, ChangeSetting)> = None;
            let mut seen = BTreeSet::new();
            for (number, put, keep, ms) in steps {
                shard.pass(ms);
                let change = if put {
                    ChangeSetting::pause(agent(number), &note("x"), operator())
                } else {
                    ChangeSetting::remove(Setting::Pause(agent(number)), entry())
                };
                if keep {
                    decided = Some((shard.step(&change), change));
                    continue;
                }
                let mut results = vec![shard.run(&change)];
                if let Some((old, change)) = decided.take() {
                    results.push(shard.finish(&change, old).result);
                }
                for result in results {
                    if let SettingResult::Done { generation } = result {
                        prop_assert!(seen.insert(generation));
                    }
                }
            }
            let settings = shard.run(&ReadSettings);
            prop_assert_eq!(shard.log(&keys::audit()).len(), seen.len());
            prop_assert_eq!(settings.generation, shard.settings);
            let stored: Settings = shard.record(&key()).unwrap_or_default();
            prop_assert_eq!(stored.pauses, settings.pauses.len() as u64);
        }
    }
}

//! The settings that were made at run time, beside the configuration: tenants, and tools that were switched off.

use std::collections::{BTreeMap, BTreeSet};

use crate::connection::question::Question;
use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::verbs::run_time::pause::{paused, paused_tool};
use crate::{Store, StoreError};
use tickfleet_model::policy::{Pause, Paused, PausedTool, TenantPolicy};
use tickfleet_model::{TenantId, day};

/// The settings that were made at run time in a shard. Of tenants only those at home there: what a shard says of
/// others' counts for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AtRunTime {
    /// Grows with every change. Who decides by an older one is told so.
    pub generation: u64,
    /// The declarations.
    pub declared: BTreeMap<TenantId, TenantPolicy>,
    /// Those that cannot be read, with the reason.
    pub unreadable: BTreeMap<TenantId, String>,
    /// Those that were set and never taken back, and whose declaration is gone.
    pub missing: BTreeSet<TenantId>,
    /// Tools that nobody may call, by name or id.
    pub tools_off: BTreeSet<String>,
    /// Who is paused, and why. A note that cannot be read is none: the pause holds all the same.
    pub pauses: BTreeMap<Paused, Pause>,
    /// Tools that are paused, and why; likewise.
    pub tool_pauses: BTreeMap<PausedTool, Pause>,
}

impl Store {
    /// All that was set at run time in this shard, as of one moment.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn at_run_time(&self) -> Result<AtRunTime, StoreError> {
        let mut reply = self.ask(Verb::AtRunTime, self.args()).await?;
        let (generation, names, tools) = (reply.number()?.unsigned_abs(), reply.text()?, reply.text()?);
        let mut set = AtRunTime { generation, ..AtRunTime::default() };
        let ours = |name: &str| TenantId::new(name).ok().filter(|tenant| self.is_home_of(tenant));
        let mut declared = reply.rest().into_iter();
        while let (Some(name), Some(declaration)) = (declared.next(), declared.next()) {
            let name = text_of(&name).unwrap_or_default();
            if let Some(who) = paused(&name).filter(|who| self.is_home_of(&who.tenant)) {
                let note = serde_json::from_str(&text_of(&declaration).unwrap_or_default());
                set.pauses.insert(who, note.unwrap_or_default());
            }
            let is_ours = |who: &PausedTool| who.tenant.as_ref().is_none_or(|tenant| self.is_home_of(tenant));
            if let Some(who) = paused_tool(&name).filter(is_ours) {
                let note = serde_json::from_str(&text_of(&declaration).unwrap_or_default());
                set.tool_pauses.insert(who, note.unwrap_or_default());
            }
            // What is no tenant's name declares none.
            let Some(tenant) = ours(&name) else { continue };
            match read_tenant(text_of(&declaration).unwrap_or_default().as_bytes()) {
                Ok(policy) => drop(set.declared.insert(tenant, policy)),
                Err(problem) => drop(set.unreadable.insert(tenant, problem)),
            }
        }
        let there = |tenant: &TenantId| set.declared.contains_key(tenant) || set.unreadable.contains_key(tenant);
        set.missing = names.split_whitespace().filter_map(ours).filter(|tenant| !there(tenant)).collect();
        set.tools_off = tools.split_whitespace().map(String::from).collect();
        Ok(set)
    }

    /// The generation of the tenants that were set at run time: whether [`Self::at_run_time`] has news.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tenants_generation(&self) -> Result<u64, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.key("meta")).arg("tenants_gen").to_owned();
        self.connection.query::<Option<u64>>(Question::Tenants, &command).await.map(Option::unwrap_or_default)
    }
}

/// A declaration that nothing in it makes laxer than it was meant: an unknown time zone would count days in another.
pub(crate) fn read_tenant(declaration: &[u8]) -> Result<TenantPolicy, String> {
    let policy: TenantPolicy = serde_json::from_slice(declaration).map_err(|error| error.to_string())?;
    if let Some(zone) = &policy.time_zone {
        day::zone(zone).map_err(|error| error.to_string())?;
    }
    Ok(policy)
}

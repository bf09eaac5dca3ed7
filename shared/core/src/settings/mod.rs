//! Run-time settings of a shard, in addition to the configuration.
//!
//! | Key | Holds |
//! |---|---|
//! | record `settings` | generation and number of the settings; one part for each setting, see [`Setting::part`] |
//! | record `policy` | the policy in force, earlier policies, and the policy of each scheduler, see [`policy`] |
//! | record `drain:<worker>`, set `drains` | workers that take no new work, see [`drain`] |
//!
//! Every change of a setting raises the generation in the same transaction. Drain flags have no generation, because no
//! decision depends on them.

pub mod drain;
pub mod policy;
mod read;
pub mod reset;
mod run_time;

pub use read::{ReadSettings, RunTimeSettings, read_tenant};
pub use run_time::{ChangeSetting, Origin, Setting, SettingResult, Settings, key};

use crate::decision::Context;

/// At least the shard time in milliseconds, so that a generation that a restart lost is never assigned again.
#[must_use]
pub fn next_generation(last: u64, context: &Context) -> u64 {
    (last + 1).max(context.now_ms.max(0).unsigned_abs())
}

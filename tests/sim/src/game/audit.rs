//! The game is over, and its audit log is sealed to the end, exported, and looked at.

use tickfleet_sim_redis::Reply;

use super::{Game, Role};
use crate::process::Process;

/// What is left is sealed and kept outside within this time: another sealer may have to wait for the lease of one that is
/// gone, µs.
const SEALED_WITHIN_US: i64 = 60_000_000;
/// Within this time the log is exported, µs.
const EXPORTED_WITHIN_US: i64 = 60_000_000;

impl Game {
    /// Has the log of a game that seals it sealed and exported, and says what is wrong with it.
    pub(super) fn audit(&mut self) -> anyhow::Result<()> {
        let Some(sealed) = self.site.settings.sealed.clone() else { return Ok(()) };
        if !self.goes_on_until(SEALED_WITHIN_US, "the log is not sealed to its end", Self::is_sealed)? {
            return Ok(());
        }
        // Heads are kept outside at the latest in the round that follows.
        let kept_us = self.now_us + 2 * sealed.every.as_micros() as i64 + 500_000;
        self.goes_on_until(SEALED_WITHIN_US, "time stands still", move |game| game.now_us > kept_us)?;
        let (place, site) = (self.places.len(), &self.site);
        let process = Process::start(self.now_us, 0, self.seed ^ place as u64, |_| site.auditor(place))?;
        self.seat(Role::Auditor, "a0".into(), process, None);
        let is_exported = |game: &mut Self| game.site.world.facts().export.is_some();
        if self.goes_on_until(EXPORTED_WITHIN_US, "the log is not exported", is_exported)? {
            let lines = self.site.world.facts().export.take().unwrap_or_default();
            self.oracle.look_at_log(&lines, &self.site, self.seed)?;
        }
        Ok(())
    }

    /// Plays until something is so. Answers whether it is; that it is not in time is told.
    fn goes_on_until(
        &mut self,
        within_us: i64,
        otherwise: &str,
        is_so: impl Fn(&mut Self) -> bool,
    ) -> anyhow::Result<bool> {
        let until_us = self.now_us + within_us;
        while !self.is_decided() {
            if is_so(self) {
                return Ok(true);
            }
            if self.now_us > until_us {
                self.site.world.wrong(format!("everything has ended, and {otherwise}"));
            }
            self.step()?;
        }
        Ok(false)
    }

    /// Whether each shard's log is sealed to its last entry.
    fn is_sealed(&mut self) -> bool {
        (0..self.site.settings.store.shards).all(|shard| {
            let last = self.server.ask(&["XREVRANGE", &format!("{{sim:{shard}}}:audit"), "+", "-", "COUNT", "1"]);
            let state = self.server.ask(&["HGET", &format!("{{sim:{shard}}}:sealing"), "state"]);
            let Reply::Array(last) = last else { return true };
            let Some(Reply::Array(entry)) = last.first() else { return true };
            let (Some(Reply::Bulk(id)), Reply::Bulk(state)) = (entry.first(), state) else { return false };
            state.split(|byte| *byte == b' ').next() == Some(id.as_slice())
        })
    }
}

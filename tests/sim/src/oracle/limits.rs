//! What caps and limits of a game allow, counted by what really goes out.

use tickfleet_model::{AgentId, TenantId};

use super::Oracle;

impl Oracle {
    /// A call of a tool went out at this time of its shard; `epoch_ms` says when Redis restarted last.
    pub(super) fn limited(&mut self, tenant: &TenantId, agent: &AgentId, tool: &str, now_ms: i64, epoch_ms: i64) {
        for counted in self.settings.counted(tenant, agent, tool, now_ms) {
            if counted.window_ms < epoch_ms {
                let name = &counted.name;
                self.world.wrong(format!("{name}: a call was admitted in a window that began before Redis restarted"));
            }
            self.count(&counted.name, "limit", counted.window_ms, 1, counted.max);
        }
    }

    /// So many calls more in a window of a cap.
    pub(super) fn count(&mut self, who: &str, kind: &'static str, window: i64, fresh: u32, cap: u32) {
        let facts = self.world.facts();
        let is_short = matches!(kind, "tick" | "limit");
        let losses = if is_short { facts.lost.len() } else { 0 };
        let known = self.used.entry((who.to_owned(), kind, window, losses)).or_default();
        known.push((facts.now_us, fresh));
        // Of a day, what Redis has lost is forgotten: `docs/operating.md` says so. A tick that began before is not used.
        let is_lost = |at: i64| !is_short && facts.lost.iter().any(|(from, to)| (*from..=*to).contains(&at));
        let used: u32 = known.iter().filter(|(at, _)| !is_lost(*at)).map(|(_, calls)| calls).sum();
        drop(facts);
        if used > cap && fresh > 0 {
            self.world.wrong(format!("{who}: {used} calls were admitted in {kind} {window} under a cap of {cap}"));
        }
    }
}

//! Memory that is full: producers are refused, and all that is in drains as ever.

use rand::Rng;

use crate::interleavings::game::{Game, Violation};

const FILLER_BYTES: usize = 8 << 20;

impl Game<'_> {
    /// Memory is full from here on, or has room again.
    pub(crate) async fn memory_turns(&mut self) -> Result<(), Violation> {
        let error = |error: redis::RedisError| error.to_string();
        let mut max = 0;
        if !self.full {
            // What is asked from here on is little beside it: neither room nor the bound of the drain comes near.
            let filler = redis::cmd("SETRANGE").arg("filler").arg(FILLER_BYTES).arg("x").to_owned();
            let _: u64 = filler.query_async(&mut self.table.redis).await.map_err(error)?;
            let info: String =
                redis::cmd("INFO").arg("memory").query_async(&mut self.table.redis).await.map_err(error)?;
            let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse::<u64>().ok());
            // A little less than it uses.
            max = used.ok_or("no used_memory")? / 100 * 98;
        }
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxmemory").arg(max);
        let () = command.query_async(&mut self.table.redis).await.map_err(error)?;
        self.full = max > 0;
        self.note(|| format!("memory: {}", if max > 0 { "full" } else { "room" }));
        // Nobody may have looked yet.
        if !self.full || self.rng.random_bool(0.7) {
            self.world.clock(self.raw_now_ms);
            self.table.store.weigh().await.map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

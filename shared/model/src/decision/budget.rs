//! Budgets: counters that know their end (rule 1), and when windows end.

/// What was used of a cap until `end_ms`. The cap itself is not part of it: a new cap, tick length or time zone
/// must not reopen what is running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Calls used.
    pub used: u32,
    /// When the counter resets, ms. 0: it was never opened.
    pub end_ms: i64,
}

impl Budget {
    /// Resets the counter if its end has come, and only then; `next_end_ms` is the end of the new window.
    /// Answers whether it did.
    pub fn roll(&mut self, now_ms: i64, next_end_ms: i64) -> bool {
        let over = now_ms >= self.end_ms;
        if over {
            *self = Self { used: 0, end_ms: next_end_ms };
        }
        over
    }

    /// Calls that `cap` still allows.
    #[must_use]
    pub const fn left(&self, cap: u32) -> u32 {
        cap.saturating_sub(self.used)
    }
}

impl Budget {
    /// As [`Self::roll`], into the day from `start_ms` to `end_ms`. If the last day ended within this one, the time zone has
    /// changed: it goes on to the end of this one, for what is left of a day is no day of its own.
    pub fn roll_day(&mut self, now_ms: i64, (start_ms, end_ms): (i64, i64)) {
        if now_ms >= self.end_ms && start_ms < self.end_ms && self.end_ms < end_ms {
            self.end_ms = end_ms;
        } else {
            self.roll(now_ms, end_ms);
        }
    }
}

/// The budgets of one agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentBudgets {
    /// Calls of the running tick.
    pub tick: Budget,
    /// When the running tick began, ms (rule 8 looks at it).
    pub tick_began_ms: i64,
    /// Calls of the running day.
    pub day: Budget,
}

impl AgentBudgets {
    /// Opens the windows that have ended; `day_ms` are the start and the end of the present day.
    pub fn roll(&mut self, now_ms: i64, stagger_ms: i64, tick_ms: i64, day_ms: (i64, i64)) {
        let end_ms = next_window_end(now_ms, stagger_ms, tick_ms, self.tick.end_ms);
        if self.tick.roll(now_ms, end_ms) {
            self.tick_began_ms = now_ms.min(end_ms - tick_ms);
        }
        self.day.roll_day(now_ms, day_ms);
    }
}

/// The actions that a task may take, over its whole life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TaskBudget {
    /// What was granted.
    pub max: u32,
    /// What turns under it have used, and what was carved off for its own sub-tasks.
    pub used: u32,
}

impl TaskBudget {
    /// Calls that are left.
    #[must_use]
    pub const fn left(&self) -> u32 {
        self.max.saturating_sub(self.used)
    }
}

/// When the window that holds `now_ms` ends, ms. Windows of length `tick_ms` begin `stagger_ms` after each multiple
/// of it, so that agents do not all wake in one instant.
#[must_use]
pub const fn window_end(now_ms: i64, stagger_ms: i64, tick_ms: i64) -> i64 {
    now_ms - (now_ms - stagger_ms).rem_euclid(tick_ms) + tick_ms
}

/// When a window that opens at `now_ms` ends, ms, where the one before ended at `last_ms` (0: there was none). If that was no
/// boundary of windows of this length, the length has changed, and what is left up to the next boundary is no window of its own:
/// the first one of a new length is a whole one, and more. Otherwise a counter would open three times in one window's time.
#[must_use]
pub const fn next_window_end(now_ms: i64, stagger_ms: i64, length_ms: i64, last_ms: i64) -> i64 {
    let end_ms = window_end(now_ms, stagger_ms, length_ms);
    let is_boundary = last_ms <= 0 || (last_ms - stagger_ms).rem_euclid(length_ms) == 0;
    if is_boundary || now_ms - last_ms >= length_ms || end_ms - now_ms == length_ms {
        end_ms
    } else {
        end_ms + length_ms
    }
}

//! The bound on what an evaluation may do, and what ends it early.

use tickfleet_model::limits::RULE_WORK_MAX;

/// Bytes of text or JSON that are looked at in one step of work.
const BYTES_PER_STEP: usize = 32;

/// Why a condition says neither true nor false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// It cannot be said, for this reason. As in CEL, `false && …` and `true || …` hold all the same.
    Cannot(String),
    /// It would take too much work: nothing outweighs that.
    TooMuch,
}

/// The work that is left.
#[derive(Debug)]
pub(crate) struct Work {
    left: usize,
}

impl Work {
    pub(crate) const fn full() -> Self {
        Self { left: RULE_WORK_MAX }
    }

    pub(crate) fn spend(&mut self, steps: usize) -> Result<(), Problem> {
        self.left = self.left.checked_sub(steps).ok_or(Problem::TooMuch)?;
        Ok(())
    }

    pub(crate) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Problem> {
        self.spend(1 + bytes / BYTES_PER_STEP)
    }

    /// Steps that were done.
    #[cfg(test)]
    pub(crate) const fn done(&self) -> usize {
        RULE_WORK_MAX - self.left
    }
}

//! The bound on the work of an evaluation, and the problems that stop an evaluation.

use tickfleet_model::limits::RULE_WORK_MAX;

const BYTES_PER_STEP: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Problem {
    /// As in CEL, an error on one side of `&&` or `||` does not matter if the other side decides.
    Cannot(String),
    /// Ends the evaluation, even if the other side of `&&` or `||` would decide.
    TooMuch,
}

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

    #[cfg(test)]
    pub(crate) const fn done(&self) -> usize {
        RULE_WORK_MAX - self.left
    }
}

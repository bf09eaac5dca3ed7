//! The attempt number of a parked slice encodes the progress of the lookups for an unknown outcome.

/// Added to the attempt number when the slice is parked for the grace period. The first lookup that finds no effect
/// starts this period, and the period is over when the slice is taken again.
const GRACE_OVER: u32 = 1_000;
/// Added to the attempt number for each lookup.
const QUESTION: u32 = 10_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReconcileProgress {
    /// The number of the call's own attempt that ended with an unknown outcome.
    pub(super) own: u32,
    pub(super) lookups: u32,
    pub(super) is_grace_over: bool,
}

impl ReconcileProgress {
    /// When a parked slice is taken again, its attempt number is one higher than the encoded number.
    pub(super) const fn decode(attempt: u32) -> Self {
        let lookups = attempt / QUESTION;
        let is_grace_over = attempt % QUESTION >= GRACE_OVER;
        let own = attempt % GRACE_OVER;
        let own = if lookups > 0 || is_grace_over { own.saturating_sub(1) } else { own };
        Self { own, lookups, is_grace_over }
    }

    pub(super) const fn encode(self) -> u32 {
        let grace = if self.is_grace_over { GRACE_OVER } else { 0 };
        self.own.saturating_add(grace).saturating_add(self.lookups.saturating_mul(QUESTION))
    }
}

pub(super) const fn own_attempt(attempt: u32) -> u32 {
    ReconcileProgress::decode(attempt).own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_and_call_attempts_are_counted_separately() {
        let first = ReconcileProgress::decode(3);
        assert_eq!(first, ReconcileProgress { own: 3, lookups: 0, is_grace_over: false });
        let second = ReconcileProgress::decode(ReconcileProgress { lookups: 1, ..first }.encode() + 1);
        assert_eq!(second, ReconcileProgress { own: 3, lookups: 1, is_grace_over: false });
        let over =
            ReconcileProgress::decode(ReconcileProgress { lookups: 0, is_grace_over: true, ..second }.encode() + 1);
        assert_eq!(over, ReconcileProgress { own: 3, lookups: 0, is_grace_over: true });
        assert_eq!(own_attempt(ReconcileProgress { lookups: 7, ..over }.encode() + 1), 3);
    }
}

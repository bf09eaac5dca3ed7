//! How far the questions about a call of unknown outcome are: the number of its try carries it while its slice is parked.

/// What is added to the number of the try once it has been said, and waited for, that a call did not take effect.
const GRACE_OVER: u32 = 1_000;
/// What is added to it for each question that was asked.
const QUESTION: u32 = 10_000;

/// How far the questions about one call are, as the number of its try carries it while its slice is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Questions {
    /// The try of the call itself that nobody knows the end of.
    pub(super) own: u32,
    /// Questions that were asked.
    pub(super) asked: u32,
    pub(super) is_grace_over: bool,
}

impl Questions {
    /// Reads the number of a try: one more than what was parked.
    pub(super) const fn of(attempt: u32) -> Self {
        let (asked, is_grace_over) = (attempt / QUESTION, attempt % QUESTION >= GRACE_OVER);
        let own = attempt % GRACE_OVER;
        let own = if asked > 0 || is_grace_over { own.saturating_sub(1) } else { own };
        Self { own, asked, is_grace_over }
    }

    /// What is parked.
    pub(super) const fn parked(self) -> u32 {
        let grace = if self.is_grace_over { GRACE_OVER } else { 0 };
        self.own.saturating_add(grace).saturating_add(self.asked.saturating_mul(QUESTION))
    }
}

/// The number of the try of a call, whatever was asked about it since.
pub(super) const fn own_try(attempt: u32) -> u32 {
    Questions::of(attempt).own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_counted_beside_the_tries_of_the_call() {
        // The third try of the call ended as unknown: this is the first question.
        let first = Questions::of(3);
        assert_eq!(first, Questions { own: 3, asked: 0, is_grace_over: false });
        // A parked slice comes back with one try more.
        let second = Questions::of(Questions { asked: 1, ..first }.parked() + 1);
        assert_eq!(second, Questions { own: 3, asked: 1, is_grace_over: false });
        let over = Questions::of(Questions { asked: 0, is_grace_over: true, ..second }.parked() + 1);
        assert_eq!(over, Questions { own: 3, asked: 0, is_grace_over: true });
        assert_eq!(own_try(Questions { asked: 7, ..over }.parked() + 1), 3);
    }
}

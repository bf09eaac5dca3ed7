//! How far a shard's audit log is sealed.

use std::fmt;

/// A position in the log, as it stands in Redis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// The last entry that was looked at; empty before the first.
    last: String,
    /// Entries up to it, of all that were ever added: those that are sealed, and those that were gone.
    pub(super) counted: u64,
    /// How often the log was made anew.
    pub(super) breaks: u64,
    /// Entries that were gone before they were sealed.
    pub(super) lost: u64,
    /// What tells this position from another with the same numbers: the last head that was made.
    tag: String,
}

impl Position {
    pub(super) const fn new(last: String, counted: u64, breaks: u64, lost: u64, tag: String) -> Self {
        Self { last, counted, breaks, lost, tag }
    }

    /// Reads one. One that a hand has changed is the beginning: all that is there is sealed anew, which verifying finds.
    pub(super) fn read(text: &str) -> Self {
        let parts: Vec<&str> = text.split(' ').collect();
        let [last, counted, breaks, lost, tag] = parts[..] else { return Self::default() };
        let number = |text: &str| text.parse().ok();
        match (number(counted), number(breaks), number(lost)) {
            (Some(counted), Some(breaks), Some(lost)) => Self::new(last.into(), counted, breaks, lost, tag.into()),
            _ => Self::default(),
        }
    }

    /// Returns true before anything was sealed.
    pub(super) const fn is_new(&self) -> bool {
        self.last.is_empty()
    }

    /// The entry behind which to go on.
    pub(super) fn after(&self) -> &str {
        if self.last.is_empty() { "0-0" } else { &self.last }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_new() {
            return Ok(());
        }
        write!(f, "{} {} {} {} {}", self.last, self.counted, self.breaks, self.lost, self.tag)
    }
}

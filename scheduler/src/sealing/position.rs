//! The position up to which a shard's audit log is sealed.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// ID of the last sealed entry. Empty before the first read.
    last: String,
    /// Entries ever added up to `last`, including lost entries.
    pub(super) counted: u64,
    /// How often the log was recreated.
    pub(super) breaks: u64,
    /// Entries that were trimmed before they were sealed.
    pub(super) lost: u64,
    /// Part of the hash of the last leaf, to distinguish positions with the same numbers.
    tag: String,
}

impl Position {
    pub(super) const fn new(last: String, counted: u64, breaks: u64, lost: u64, tag: String) -> Self {
        Self { last, counted, breaks, lost, tag }
    }

    /// A damaged text counts as the beginning of the log. The whole log is then sealed again, and verification reports
    /// this.
    pub(super) fn read(text: &str) -> Self {
        let parts: Vec<&str> = text.split(' ').collect();
        let [last, counted, breaks, lost, tag] = parts[..] else { return Self::default() };
        let number = |text: &str| text.parse().ok();
        match (number(counted), number(breaks), number(lost)) {
            (Some(counted), Some(breaks), Some(lost)) => Self::new(last.into(), counted, breaks, lost, tag.into()),
            _ => Self::default(),
        }
    }

    pub(super) const fn is_new(&self) -> bool {
        self.last.is_empty()
    }

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

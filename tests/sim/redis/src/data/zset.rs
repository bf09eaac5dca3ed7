//! Sorted sets.

use std::collections::BTreeSet;

use super::{ELEMENT_BYTES, Map, kind};

/// Members, and bytes of one, up to which Redis keeps a sorted set as a list.
const SMALL_MEMBERS: usize = 128;
const SMALL_BYTES: usize = 64;

/// A score that sorts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Score(pub(crate) f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // No score is NaN; -0 is 0.
        self.0.partial_cmp(&other.0).unwrap_or(std::cmp::Ordering::Equal)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Zset {
    scores: Map<f64>,
    order: BTreeSet<(Score, Vec<u8>)>,
    is_large: bool,
    bytes: usize,
}

kind!(Zset, Zset, |zset| zset.bytes, |zset| zset.scores.is_empty());

impl Zset {
    pub(crate) fn len(&self) -> usize {
        self.scores.len()
    }

    /// Whether a scan tells it all at once.
    pub(crate) const fn is_small(&self) -> bool {
        !self.is_large
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        self.scores.get(member).copied()
    }

    /// By score, then by name.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (f64, &[u8])> {
        self.order.iter().map(|(score, member)| (score.0, member.as_slice()))
    }

    /// From the first with at least this score on.
    pub(crate) fn from(&self, score: f64) -> impl DoubleEndedIterator<Item = (f64, &[u8])> {
        self.order.range((Score(score), Vec::new())..).map(|(score, member)| (score.0, member.as_slice()))
    }

    pub(crate) fn set(&mut self, member: &[u8], score: f64) {
        if let Some(held) = self.scores.get_mut(member) {
            let before = std::mem::replace(held, score);
            self.order.remove(&(Score(before), member.to_vec()));
        } else {
            self.is_large |= member.len() > SMALL_BYTES || self.scores.len() >= SMALL_MEMBERS;
            self.scores.insert(member.to_vec(), score);
            self.bytes += 2 * member.len() + 2 * ELEMENT_BYTES;
        }
        self.order.insert((Score(score), member.to_vec()));
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.swap_remove(member) else { return false };
        self.order.remove(&(Score(score), member.to_vec()));
        self.bytes -= 2 * member.len() + 2 * ELEMENT_BYTES;
        true
    }
}

//! Streams.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::group::Group;
use super::nodes::Nodes;
use super::{ELEMENT_BYTES, kind};
use crate::reply::Reply;

/// An entry's id: milliseconds, and a number among those of that millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Id(pub(crate) u64, pub(crate) u64);

pub(crate) const MAX: Id = Id(u64::MAX, u64::MAX);

impl Id {
    /// The id after this one; none after the last.
    pub(crate) fn next(self) -> Option<Self> {
        self.1.checked_add(1).map(|seq| Self(self.0, seq)).or_else(|| self.0.checked_add(1).map(|ms| Self(ms, 0)))
    }

    /// The id before this one; none before the first.
    pub(crate) fn previous(self) -> Option<Self> {
        self.1
            .checked_sub(1)
            .map(|seq| Self(self.0, seq))
            .or_else(|| self.0.checked_sub(1).map(|ms| Self(ms, u64::MAX)))
    }

    pub(crate) fn reply(self) -> Reply {
        Reply::Bulk(self.to_string().into_bytes())
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// What trims a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trim {
    /// Down to so many entries.
    Length(u64),
    /// Everything before.
    Before(Id),
}

/// A stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    entries: BTreeMap<Id, Vec<Vec<u8>>>,
    nodes: Nodes,
    /// As Redis keeps it: it is not always the first entry's.
    pub(crate) first: Id,
    pub(crate) last: Id,
    pub(crate) max_deleted: Id,
    pub(crate) added: u64,
    pub(crate) groups: BTreeMap<Vec<u8>, Group>,
    bytes: usize,
}

kind!(Stream, Stream, Stream::held, |_| false);

fn entry_bytes(fields: &[Vec<u8>]) -> usize {
    ELEMENT_BYTES + fields.iter().map(|text| text.len() + 2).sum::<usize>()
}

impl Stream {
    fn held(&self) -> usize {
        128 + self.bytes + self.groups.iter().map(|(name, group)| name.len() + group.bytes()).sum::<usize>()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn get(&self, id: Id) -> Option<&[Vec<u8>]> {
        self.entries.get(&id).map(Vec::as_slice)
    }

    pub(crate) fn range(&self, range: RangeInclusive<Id>) -> impl DoubleEndedIterator<Item = (Id, &[Vec<u8>])> {
        let range = if range.is_empty() { MAX..=MAX } else { range };
        let none = range.start() == &MAX && !self.entries.contains_key(&MAX);
        self.entries.range(range).filter(move |_| !none).map(|(id, fields)| (*id, fields.as_slice()))
    }

    /// The id of the last entry that is there.
    pub(crate) fn newest(&self) -> Option<Id> {
        self.entries.last_key_value().map(|(id, _)| *id)
    }

    fn oldest(&self) -> Option<Id> {
        self.entries.first_key_value().map(|(id, _)| *id)
    }

    /// Adds an entry, whose id comes after the last.
    pub(crate) fn add(&mut self, id: Id, fields: Vec<Vec<u8>>) {
        self.bytes += entry_bytes(&fields);
        self.nodes.add(id, &fields);
        self.entries.insert(id, fields);
        self.added += 1;
        self.last = id;
        if self.entries.len() == 1 {
            self.first = id;
        }
    }

    fn take(&mut self, id: Id) -> bool {
        let Some(fields) = self.entries.remove(&id) else { return false };
        self.bytes -= entry_bytes(&fields);
        self.nodes.delete(id);
        true
    }

    /// Deletes entries. Answers how many were there.
    pub(crate) fn delete(&mut self, ids: &[Id]) -> usize {
        let (mut deleted, mut first_went) = (0, false);
        for id in ids {
            if self.take(*id) {
                self.nodes.drop_empty(*id);
                first_went |= *id == self.first;
                self.max_deleted = self.max_deleted.max(*id);
                deleted += 1;
            }
        }
        if self.entries.is_empty() {
            if deleted > 0 {
                self.first = Id::default();
            }
        } else if first_went {
            self.first = self.oldest().unwrap_or_default();
        }
        deleted
    }

    /// Trims from the front; with `limit`, whole nodes only, and at most so many entries (0: any number). Answers how
    /// many went.
    pub(crate) fn trim(&mut self, trim: Trim, limit: Option<u64>) -> u64 {
        let mut trimmed = 0;
        while let Some(node) = self.nodes.first() {
            let (length, of_node) = (self.entries.len() as u64, u64::from(node.live));
            if matches!(trim, Trim::Length(most) if length <= most) {
                break;
            }
            if limit.is_some_and(|limit| limit > 0 && trimmed + of_node > limit) {
                break;
            }
            let whole = match trim {
                Trim::Length(most) => length - of_node >= most,
                Trim::Before(floor) => node.last < floor,
            };
            if !whole && limit.is_some() {
                break;
            }
            let going = |(id, gone): &(Id, u64)| match trim {
                _ if whole => true,
                Trim::Length(most) => length - gone > most,
                Trim::Before(floor) => *id < floor,
            };
            let ids = self.entries.keys().copied().take(node.live as usize).zip(0..);
            let going: Vec<(Id, u64)> = ids.take_while(going).collect();
            for (id, _) in &going {
                self.take(*id);
            }
            trimmed += going.len() as u64;
            if !whole {
                break;
            }
            self.nodes.drop_first();
        }
        if self.entries.is_empty() {
            self.first = Id::default();
        } else if trimmed > 0 {
            self.first = self.oldest().unwrap_or_default();
        }
        trimmed
    }

    /// Whether something was deleted at or behind `from`.
    pub(crate) fn has_tombstones(&self, from: Id) -> bool {
        let counts = !self.entries.is_empty() && self.max_deleted != Id::default() && self.first <= self.max_deleted;
        counts && from <= self.max_deleted
    }

    /// How many entries were ever added up to `id`; none where Redis cannot tell.
    pub(crate) fn reads_up_to(&self, id: Id) -> Option<u64> {
        let length = self.entries.len() as u64;
        if self.added == 0 {
            return Some(0);
        }
        if (length == 0 && id <= self.last) || id == self.last {
            return Some(self.added);
        }
        if id > self.last {
            return None;
        }
        if self.max_deleted == Id::default() || self.max_deleted < self.first {
            if id < self.first {
                return Some(self.added.wrapping_sub(length));
            }
            if id == self.first {
                return Some(self.added.wrapping_sub(length) + 1);
            }
        }
        None
    }

    /// How many entries a group has not read; none where Redis cannot tell.
    pub(crate) fn lag(&self, group: &Group) -> Option<i64> {
        if self.added == 0 {
            return Some(0);
        }
        let read = group.entries_read.filter(|_| !self.has_tombstones(group.last));
        read.or_else(|| self.reads_up_to(group.last)).map(|read| self.added.wrapping_sub(read) as i64)
    }
}

//! Sets.

use indexmap::IndexSet;

use super::{ELEMENT_BYTES, Hasher, kind};
use crate::number::whole;

/// Numbers up to which Redis keeps a set of numbers sorted; beyond, and where something is no number, its order means
/// nothing.
const SMALL_MEMBERS: usize = 512;

#[derive(Debug, Clone, Default)]
pub(crate) struct Set {
    members: IndexSet<Vec<u8>, Hasher>,
    is_large: bool,
    bytes: usize,
}

kind!(Set, Set, |set| set.bytes, |set| set.members.is_empty());

impl Set {
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether a scan tells it all at once.
    pub(crate) const fn is_small(&self) -> bool {
        !self.is_large
    }

    pub(crate) fn contains(&self, member: &[u8]) -> bool {
        self.members.contains(member)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut members: Vec<&[u8]> = self.members.iter().map(Vec::as_slice).collect();
        if !self.is_large {
            members.sort_by_key(|member| whole(member));
        }
        members.into_iter()
    }

    pub(crate) fn add(&mut self, member: &[u8]) -> bool {
        self.is_large |= whole(member).is_none();
        if self.members.contains(member) {
            return false;
        }
        self.members.insert(member.to_vec());
        self.is_large |= self.members.len() > SMALL_MEMBERS;
        self.bytes += member.len() + ELEMENT_BYTES;
        true
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        if !self.members.swap_remove(member) {
            return false;
        }
        self.bytes -= member.len() + ELEMENT_BYTES;
        true
    }
}

//! The nodes of a stream: Redis keeps a stream as lists of up to 100 entries or 4 KiB, and `~` trims whole ones.

use std::collections::BTreeMap;

use super::stream::Id;
use crate::number::whole;

const ENTRIES_MAX: u32 = 100;
const BYTES_MAX: usize = 4096;

/// A node, by the id of its first entry.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Entries that are there.
    pub(crate) live: u32,
    /// The id that was added last, also where its entry was deleted.
    pub(crate) last: Id,
    /// Entries that were deleted: they count, too.
    deleted: u32,
    bytes: usize,
    /// The names of the first entry's fields, which others need not repeat.
    fields: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Nodes {
    nodes: BTreeMap<Id, Node>,
}

/// Bytes of a number in a list.
const fn number_bytes(n: i64) -> usize {
    match n {
        0..=127 => 2,
        -4096..=4095 => 3,
        -32_768..=32_767 => 4,
        -8_388_608..=8_388_607 => 5,
        -2_147_483_648..=2_147_483_647 => 6,
        _ => 10,
    }
}

/// Bytes of a text in a list: one that is a number is kept as such.
fn text_bytes(text: &[u8]) -> usize {
    if text.len() <= 20
        && let Some(number) = whole(text)
    {
        return number_bytes(number);
    }
    let head = match text.len() {
        0..64 => 1,
        64..4096 => 2,
        _ => 5,
    };
    let encoded = head + text.len();
    let back = match encoded {
        0..128 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        _ => 4,
    };
    encoded + back
}

impl Nodes {
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The first node.
    pub(crate) fn first(&self) -> Option<&Node> {
        self.nodes.first_key_value().map(|(_, node)| node)
    }

    /// Removes the first node, whose entries are gone.
    pub(crate) fn drop_first(&mut self) {
        self.nodes.pop_first();
    }

    /// Notes an entry that was added.
    pub(crate) fn add(&mut self, id: Id, fields: &[Vec<u8>]) {
        let payload: usize = fields.iter().map(Vec::len).sum();
        let fits = |node: &Node| node.bytes + payload < BYTES_MAX && node.live + node.deleted < ENTRIES_MAX;
        let names = || fields.iter().step_by(2);
        if !self.nodes.last_key_value().is_some_and(|(_, node)| fits(node)) {
            // Header, count, deleted, number of fields, the names, the end.
            let bytes = 7 + 2 + 2 + number_bytes((fields.len() / 2) as i64) + 2;
            let bytes = bytes + names().map(|name| text_bytes(name)).sum::<usize>();
            self.nodes.insert(id, Node { live: 0, last: id, deleted: 0, bytes, fields: names().cloned().collect() });
        }
        let Some(mut last) = self.nodes.last_entry() else { return };
        let first = *last.key();
        let node = last.get_mut();
        let same = node.fields.iter().eq(names());
        let mut bytes = 2
            + number_bytes(id.0.wrapping_sub(first.0) as i64)
            + number_bytes(id.1.wrapping_sub(first.1) as i64)
            + fields.iter().skip(1).step_by(2).map(|value| text_bytes(value)).sum::<usize>();
        let count = fields.len() as i64 / 2;
        if same {
            bytes += number_bytes(count + 3);
        } else {
            bytes += number_bytes(count) + names().map(|name| text_bytes(name)).sum::<usize>();
            bytes += number_bytes(2 * count + 4);
        }
        node.bytes += bytes;
        node.live += 1;
        node.last = id;
    }

    /// Notes an entry that was deleted.
    pub(crate) fn delete(&mut self, id: Id) {
        if let Some((_, node)) = self.nodes.range_mut(..=id).next_back() {
            node.live -= 1;
            node.deleted += 1;
        }
    }

    /// Removes the node of this entry where it was the last one there.
    pub(crate) fn drop_empty(&mut self, id: Id) {
        if let Some((first, _)) = self.nodes.range(..=id).next_back().filter(|(_, node)| node.live == 0) {
            let first = *first;
            self.nodes.remove(&first);
        }
    }
}

//! Hashes.

use super::{ELEMENT_BYTES, Map, kind};

/// Fields up to which Redis keeps a hash as a list, in the order of writing; beyond, its order means nothing.
const SMALL_FIELDS: usize = 512;
/// Bytes up to which a field or value lets a hash be small.
const SMALL_BYTES: usize = 64;

#[derive(Debug, Clone, Default)]
pub(crate) struct Hash {
    fields: Map<Vec<u8>>,
    is_large: bool,
    bytes: usize,
}

kind!(Hash, Hash, |hash| hash.bytes, |hash| hash.fields.is_empty());

impl Hash {
    pub(crate) fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether a scan tells it all at once.
    pub(crate) const fn is_small(&self) -> bool {
        !self.is_large
    }

    pub(crate) fn get(&self, field: &[u8]) -> Option<&[u8]> {
        self.fields.get(field).map(Vec::as_slice)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(field, value)| (field.as_slice(), value.as_slice()))
    }

    /// Sets a field. Answers whether it is new.
    pub(crate) fn set(&mut self, field: &[u8], value: &[u8]) -> bool {
        self.is_large |= field.len() > SMALL_BYTES || value.len() > SMALL_BYTES;
        if let Some(held) = self.fields.get_mut(field) {
            self.bytes = self.bytes + value.len() - held.len();
            value.clone_into(held);
            return false;
        }
        self.bytes += field.len() + value.len() + ELEMENT_BYTES;
        self.fields.insert(field.to_vec(), value.to_vec());
        self.is_large |= self.fields.len() > SMALL_FIELDS;
        true
    }

    /// Removes a field. Answers whether it was there.
    pub(crate) fn remove(&mut self, field: &[u8]) -> bool {
        let removed = if self.is_large { self.fields.swap_remove(field) } else { self.fields.shift_remove(field) };
        let Some(value) = removed else { return false };
        self.bytes -= field.len() + value.len() + ELEMENT_BYTES;
        true
    }
}

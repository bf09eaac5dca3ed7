//! The data set: keys, what they hold, when they end, and about how many bytes that takes.

pub(crate) mod group;
pub(crate) mod hash;
pub(crate) mod nodes;
pub(crate) mod set;
pub(crate) mod stream;
pub(crate) mod zset;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;

use indexmap::IndexMap;
use rustc_hash::FxHasher;

use crate::reply::Reply;
use hash::Hash;
use set::Set;
use stream::Stream;
use zset::Zset;

/// Hashes alike in every run.
pub(crate) type Hasher = BuildHasherDefault<FxHasher>;
pub(crate) type Map<V> = IndexMap<Vec<u8>, V, Hasher>;

/// What a key costs beside its own bytes and its value's.
const KEY_BYTES: usize = 72;
/// What an element of a hash, set or list costs beside its bytes.
pub(crate) const ELEMENT_BYTES: usize = 32;

/// What a key holds.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Text(Vec<u8>),
    Hash(Hash),
    Set(Set),
    Zset(Zset),
    Stream(Stream),
}

impl Value {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::Set(_) => "set",
            Self::Zset(_) => "zset",
            Self::Stream(_) => "stream",
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.bytes(),
            Self::Hash(hash) => hash.bytes(),
            Self::Set(set) => set.bytes(),
            Self::Zset(zset) => zset.bytes(),
            Self::Stream(stream) => stream.bytes(),
        }
    }
}

/// One type of value.
pub(crate) trait Kind: Default {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn wrap(self) -> Value;
    /// Bytes that it takes.
    fn bytes(&self) -> usize;
    /// Whether its key goes with its last element.
    fn is_gone(&self) -> bool;
}

/// Says how `Value::$variant` is the kind `$kind`.
macro_rules! kind {
    ($kind:ty, $variant:ident, $bytes:expr, $gone:expr) => {
        impl $crate::data::Kind for $kind {
            fn of(value: &$crate::data::Value) -> Option<&Self> {
                if let $crate::data::Value::$variant(held) = value { Some(held) } else { None }
            }
            fn of_mut(value: &mut $crate::data::Value) -> Option<&mut Self> {
                if let $crate::data::Value::$variant(held) = value { Some(held) } else { None }
            }
            fn wrap(self) -> $crate::data::Value {
                $crate::data::Value::$variant(self)
            }
            fn bytes(&self) -> usize {
                let of: fn(&Self) -> usize = $bytes;
                of(self)
            }
            fn is_gone(&self) -> bool {
                let of: fn(&Self) -> bool = $gone;
                of(self)
            }
        }
    };
}
pub(crate) use kind;

kind!(Vec<u8>, Text, |text| text.len() + 16, |_| false);

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) value: Arc<Value>,
    pub(crate) expires_ms: Option<i64>,
}

/// All keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Data {
    keys: Map<Entry>,
    expiring: BTreeSet<(i64, Vec<u8>)>,
    used: usize,
}

fn wrong_type() -> Reply {
    Reply::error("WRONGTYPE Operation against a key holding the wrong kind of value")
}

/// Where a name stands in a scan: scans go by it, so that what is there all the while is found once.
pub(crate) fn place(name: &[u8]) -> u64 {
    // FxHasher leaves much to its lowest bits; 0 is where a scan begins.
    (Hasher::default().hash_one(name) >> 1) + 1
}

/// One step of a scan over `names` that are not before `cursor`: the next cursor and what was found.
pub(crate) fn scan<'n>(names: impl Iterator<Item = &'n [u8]>, cursor: u64, count: usize) -> (u64, Vec<&'n [u8]>) {
    let mut found: Vec<(u64, &[u8])> = names.map(|name| (place(name), name)).filter(|(at, _)| *at >= cursor).collect();
    found.sort_unstable();
    let mut upto = count.max(1).min(found.len());
    // Those that share a place come together.
    while upto > 0 && upto < found.len() && found[upto].0 == found[upto - 1].0 {
        upto += 1;
    }
    let next = found.get(upto).map_or(0, |(at, _)| *at);
    found.truncate(upto);
    (next, found.into_iter().map(|(_, name)| name).collect())
}

impl Data {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn expiring(&self) -> usize {
        self.expiring.len()
    }

    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.keys().map(Vec::as_slice)
    }

    pub(crate) fn entry(&self, key: &[u8]) -> Option<&Entry> {
        self.keys.get(key)
    }

    pub(crate) fn value(&self, key: &[u8]) -> Option<&Value> {
        self.entry(key).map(|entry| &*entry.value)
    }

    /// What `key` holds; an error where it is of another kind.
    pub(crate) fn get<K: Kind>(&self, key: &[u8]) -> Result<Option<&K>, Reply> {
        self.value(key).map(|value| K::of(value).ok_or_else(wrong_type)).transpose()
    }

    /// Changes what `key` holds, where it holds something.
    pub(crate) fn edit<K: Kind, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut K) -> R,
    ) -> Result<Option<R>, Reply> {
        let Some(entry) = self.keys.get_mut(key) else { return Ok(None) };
        K::of(&entry.value).ok_or_else(wrong_type)?;
        let held = K::of_mut(Arc::make_mut(&mut entry.value)).ok_or_else(wrong_type)?;
        let before = held.bytes();
        let answer = change(held);
        let (after, gone) = (held.bytes(), held.is_gone());
        self.used = (self.used + after).saturating_sub(before);
        if gone {
            self.remove(key);
        }
        Ok(Some(answer))
    }

    /// Changes what `key` holds, which is made where it is missing.
    pub(crate) fn make<K: Kind, R>(&mut self, key: &[u8], change: impl FnOnce(&mut K) -> R) -> Result<R, Reply> {
        if !self.keys.contains_key(key) {
            self.put(key, K::default().wrap());
        }
        self.edit(key, change)?.ok_or_else(wrong_type)
    }

    /// Sets what `key` holds, whatever it was; it ends no more.
    pub(crate) fn put(&mut self, key: &[u8], value: Value) {
        self.put_shared(key, Arc::new(value));
    }

    pub(crate) fn put_shared(&mut self, key: &[u8], value: Arc<Value>) {
        self.expire(key, None);
        let bytes = value.bytes();
        if let Some(entry) = self.keys.get_mut(key) {
            self.used = (self.used + bytes).saturating_sub(entry.value.bytes());
            entry.value = value;
        } else {
            self.used += bytes + key.len() + KEY_BYTES;
            self.keys.insert(key.to_vec(), Entry { value, expires_ms: None });
        }
    }

    /// Removes a key. Answers whether it was there.
    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.expire(key, None);
        let Some(entry) = self.keys.swap_remove(key) else { return false };
        self.used = self.used.saturating_sub(entry.value.bytes() + key.len() + KEY_BYTES);
        true
    }

    /// Sets when a key ends, ms; none: never.
    pub(crate) fn expire(&mut self, key: &[u8], at_ms: Option<i64>) {
        let Some(entry) = self.keys.get_mut(key) else { return };
        if entry.expires_ms == at_ms {
            return;
        }
        if let Some(before) = entry.expires_ms {
            self.expiring.remove(&(before, key.to_vec()));
            self.used = self.used.saturating_sub(ELEMENT_BYTES + key.len());
        }
        if let Some(at) = at_ms {
            self.expiring.insert((at, key.to_vec()));
            self.used += ELEMENT_BYTES + key.len();
        }
        entry.expires_ms = at_ms;
    }

    /// Removes what has ended. Answers how many keys that were.
    pub(crate) fn purge(&mut self, now_ms: i64) -> usize {
        let mut purged = 0;
        while let Some((_, key)) = self.expiring.first().filter(|(at, _)| *at <= now_ms).cloned() {
            self.remove(&key);
            purged += 1;
        }
        purged
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

//! Maps tool names to the names that dialects permit, and back.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};
use tickfleet_model::hex;

/// The permitted characters are letters, digits, `_`, and the bytes in `also`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NameRules {
    pub(super) also: &'static [u8],
    pub(super) first_is_letter: bool,
    pub(super) bytes_max: usize,
}

impl NameRules {
    /// OpenAI and Anthropic permit `[A-Za-z0-9_-]{1,64}`.
    pub(super) const STRICTEST: Self = Self { also: b"-", first_is_letter: false, bytes_max: 64 };

    fn allow(&self, at: usize, byte: u8) -> bool {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => true,
            _ if at == 0 && self.first_is_letter => false,
            b'0'..=b'9' => true,
            _ => self.also.contains(&byte),
        }
    }
}

const DIGEST_DIGITS: usize = 16;

/// Replaces every byte that OpenAI or Anthropic does not permit with `_xHH_` (`math.add` → `math_x2E_add`). A `_` that
/// looks like the start of such an escape is escaped too, so different names stay different.
#[must_use]
pub fn mangle(name: &str) -> Cow<'_, str> {
    mangle_by(NameRules::STRICTEST, name)
}

fn mangle_by(rules: NameRules, name: &str) -> Cow<'_, str> {
    let bytes = name.as_bytes();
    let stays = |at: usize, byte: u8| rules.allow(at, byte) && (byte != b'_' || escape_digits(bytes, at).is_none());
    if bytes.iter().enumerate().all(|(at, byte)| stays(at, *byte)) {
        return Cow::Borrowed(name);
    }
    let mut wire = String::with_capacity(name.len() + 16);
    for (at, byte) in bytes.iter().enumerate() {
        if stays(at, *byte) {
            wire.push(char::from(*byte));
        } else {
            wire.push_str(&format!("_x{byte:02X}_"));
        }
    }
    Cow::Owned(wire)
}

/// The parts of `wire` that are not valid escapes stay unchanged.
#[must_use]
pub fn demangle(wire: &str) -> Cow<'_, str> {
    let bytes = wire.as_bytes();
    let mut name: Vec<u8> = Vec::new();
    let mut at = 0;
    let mut copied = 0;
    while at < bytes.len() {
        let escape = escape_digits(bytes, at).filter(|_| bytes.get(at + 4) == Some(&b'_'));
        if let Some(byte) = escape {
            name.extend_from_slice(bytes.get(copied..at).unwrap_or_default());
            name.push(byte);
            at += 5;
            copied = at;
        } else {
            at += 1;
        }
    }
    if copied == 0 {
        return Cow::Borrowed(wire);
    }
    name.extend_from_slice(bytes.get(copied..).unwrap_or_default());
    String::from_utf8(name).map_or(Cow::Borrowed(wire), Cow::Owned)
}

fn escape_digits(bytes: &[u8], at: usize) -> Option<u8> {
    let [b'_', b'x', high, low] = bytes.get(at..at + 4)? else { return None };
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    Some(digit(*high)? * 16 + digit(*low)?)
}

/// Wire names are the names that models see. The map does not depend on the order of the tools.
#[derive(Debug, Clone, Default)]
pub struct NameMap {
    to_wire: BTreeMap<String, String>,
    from_wire: BTreeMap<String, String>,
}

impl NameMap {
    pub(super) fn within<N: AsRef<str>>(rules: Option<NameRules>, names: impl IntoIterator<Item = N>) -> Self {
        let mut map = Self::default();
        let Some(rules) = rules else {
            names.into_iter().for_each(|name| map.add(name.as_ref(), name.as_ref().to_owned()));
            return map;
        };
        let mut long = Vec::new();
        for name in names {
            let name = name.as_ref();
            let wire = mangle_by(rules, name);
            if wire.len() <= rules.bytes_max {
                map.add(name, wire.into_owned());
            } else {
                long.push(name.to_owned());
            }
        }
        // Add the long names last, so that no shortened name equals a name that fits. Sort them, so that the result
        // does not depend on the order of the caller.
        long.sort_unstable();
        long.dedup();
        for name in long {
            let shorter = |salt| shortened(&name, &mangle_by(rules, &name), rules.bytes_max, salt);
            let wire = (0u32..).map(shorter).find(|wire| !map.from_wire.contains_key(wire));
            map.add(&name, wire.unwrap_or_default());
        }
        map
    }

    fn add(&mut self, name: &str, wire: String) {
        self.from_wire.insert(wire.clone(), name.to_owned());
        self.to_wire.insert(name.to_owned(), wire);
    }

    /// Wire names that this map already has stay unchanged.
    pub(super) fn add_aliases(&mut self, other: &Self) {
        for (wire, name) in &other.from_wire {
            self.from_wire.entry(wire.clone()).or_insert_with(|| name.clone());
        }
    }

    #[must_use]
    pub fn wire<'a>(&'a self, name: &'a str) -> Cow<'a, str> {
        self.to_wire.get(name).map_or_else(|| mangle(name), |wire| Cow::Borrowed(wire.as_str()))
    }

    /// `None` for a text such as `_x6C_ist`, which unmangles to a tool's name but is not a wire name.
    #[must_use]
    pub fn shown_as(&self, wire: &str) -> Option<&str> {
        self.from_wire.get(wire).map(String::as_str)
    }

    pub fn differing(&self) -> impl Iterator<Item = (&str, &str)> {
        self.from_wire.iter().map(|(wire, name)| (wire.as_str(), name.as_str())).filter(|(wire, name)| wire != name)
    }

    /// A text that is neither a tool's name nor a wire name is unmangled.
    #[must_use]
    pub fn tool<'a>(&'a self, wire: &'a str) -> Cow<'a, str> {
        if self.to_wire.contains_key(wire) {
            return Cow::Borrowed(wire);
        }
        self.from_wire.get(wire).map_or_else(|| demangle(wire), |name| Cow::Borrowed(name.as_str()))
    }
}

fn shortened(name: &str, wire: &str, bytes_max: usize, salt: u32) -> String {
    let mut hash = Sha256::new();
    hash.update(name.as_bytes());
    hash.update(salt.to_be_bytes());
    let digest = hex(&hash.finalize()[..DIGEST_DIGITS / 2]);
    let start = super::json::prefix(wire, bytes_max - DIGEST_DIGITS - 1);
    format!("{start}-{digest}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;
    use tickfleet_model::Dialect;

    #[test]
    fn names_are_escaped_only_where_needed_and_read_back() {
        for (name, wire) in [
            ("send_telegram", "send_telegram"),
            ("math.add", "math_x2E_add"),
            ("a b", "a_x20_b"),
            ("_x2E_", "_x5F_x2E_"),
            ("_x2E.", "_x5F_x2E_x2E_"),
            ("_xyz", "_xyz"),
            ("é", "_xC3__xA9_"),
        ] {
            assert_eq!(mangle(name), wire);
            assert_eq!(demangle(wire), name);
        }
        assert_eq!(demangle("_xFF_"), "_xFF_");
    }

    #[test]
    fn a_long_name_gets_a_digest_independent_of_other_names() {
        let one = "n".repeat(70) + "1";
        let two = "n".repeat(70) + "2";
        let map = NameMap::new([&one, &two]);
        assert_ne!(map.wire(&one), map.wire(&two));
        for name in [&one, &two] {
            let wire = map.wire(name);
            assert_eq!(wire.len(), NameRules::STRICTEST.bytes_max);
            assert_eq!(map.tool(&wire), *name);
            assert_eq!(NameMap::new([name]).wire(name), wire);
        }
        // A tool keeps its own name, even if the name equals the shortened name of another tool.
        let squatter = NameMap::new([&one]).wire(&one).into_owned();
        let map = NameMap::new([&one, &squatter]);
        assert_eq!(map.wire(&squatter), squatter);
        assert_eq!(map.tool(&squatter), squatter);
        assert_eq!(map.tool(&map.wire(&one)), one);
    }

    #[test]
    fn a_dialect_changes_only_names_it_does_not_allow() {
        let names = ["math.add", "a b", &"n".repeat(100), &"m".repeat(200), &"d.".repeat(100)];
        let shown = |dialect| {
            let map = NameMap::of(dialect, names);
            names.map(|name| {
                let wire = map.wire(name).into_owned();
                assert_eq!(map.tool(&wire), name);
                wire
            })
        };
        assert_eq!(shown(Dialect::Text), names);
        assert_eq!(shown(Dialect::Raw), names);
        let mcp = shown(Dialect::Mcp);
        assert_eq!((mcp[0].as_str(), mcp[1].as_str(), mcp[2].as_str()), ("math.add", "a_x20_b", names[2]));
        assert_eq!(mcp[3].len(), 128);
        let strictest = NameMap::new(names);
        for (dialect, name) in Dialect::ALL.into_iter().flat_map(|dialect| names.map(|name| (dialect, name))) {
            let wire = NameMap::of(dialect, names).wire(name).into_owned();
            assert_eq!(strictest.tool(&wire), name, "the strictest map knows what {dialect:?} shows");
        }
        assert!(shown(Dialect::OpenaiResponses).iter().all(|wire| wire.len() <= 64 && !wire.contains('.')));
    }

    proptest! {
        #[test]
        fn mangled_names_are_legal_and_reversible(name in prop_oneof![any::<String>(), "[_x2EF.]{0,12}"]) {
            let wire = mangle(&name).into_owned();
            prop_assert!(wire.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
            prop_assert_eq!(demangle(&wire), name);
        }

        #[test]
        fn a_map_pairs_names_one_to_one(names in proptest::collection::btree_set("[a-z_.x2E]{1,80}", 1..8)) {
            let map = NameMap::new(&names);
            let reversed = NameMap::new(names.iter().rev());
            for name in &names {
                let wire = map.wire(name).into_owned();
                prop_assert!((1..=NameRules::STRICTEST.bytes_max).contains(&wire.len()));
                prop_assert_eq!(reversed.wire(name), wire.as_str());
                if !names.contains(&wire) {
                    prop_assert_eq!(map.tool(&wire), name.as_str());
                }
            }
        }
    }
}

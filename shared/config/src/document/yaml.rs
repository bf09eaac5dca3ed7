//! Parses YAML into a tree with locations.

use std::cell::Cell;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy};
use serde_saphyr::{Location, Spanned};

use crate::document::errors::{ConfigLocation, Errors};
use crate::document::tree::{Entry, Node, Value, join};

const DEPTH_MAX: usize = 64;
/// [`DEPTH_MAX`] levels of up to 40 KiB each, measured without compiler optimization, and a margin.
const STACK_BYTES: usize = 8 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Origin<'a> {
    BuiltIn(&'a str),
    File(&'a str),
}

/// An empty file is an empty mapping.
pub(crate) fn parse(text: &str, origin: Origin<'_>, errors: &Errors) -> Option<Node> {
    let places = Places::new(origin);
    match with_room(&|| read(text)) {
        Ok(Some(raw)) => Some(places.node(raw, "", errors)),
        Ok(None) => Some(Node { value: Value::Mapping(vec![]), place: places.at_line(1, 1) }),
        Err(error) => {
            let place = error.location().map_or_else(|| places.at_line(1, 1), |at| places.at(at));
            errors.push(&place, "", syntax_message(&error), "valid YAML");
            None
        }
    }
}

fn read(text: &str) -> Result<Option<Raw>, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_events: 8_000_000, max_nodes: 4_000_000, max_depth: DEPTH_MAX },
        // Accept duplicate keys here: the error that is noted later shows both locations.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
    };
    serde_saphyr::from_str_with_options(text, options)
}

thread_local! {
    static HAS_ROOM: Cell<bool> = const { Cell::new(false) };
}

/// Lets `parse` use the current stack. Call this function on the main thread, while most of its stack is free.
#[cfg(feature = "fuzzing")]
pub(crate) fn parse_here() {
    HAS_ROOM.set(true);
}

/// The parser recurses for each level, and a stack overflow would end the process. So `parse` runs on a large stack.
fn with_room<T: Send>(parse: &(dyn Fn() -> T + Sync)) -> T {
    if HAS_ROOM.get() {
        return parse();
    }
    thread::scope(|scope| match thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, parse) {
        Ok(parsing) => parsing.join().unwrap_or_else(|panic| resume_unwind(panic)),
        // If no thread can start, use the current stack. This stack is enough for most files.
        Err(_) => parse(),
    })
}

fn syntax_message(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    match error {
        serde_saphyr::Error::MultipleDocuments { .. } => return "a second document".into(),
        serde_saphyr::Error::MergeKeyNotAllowed { .. } => return "a merge key (`<<`)".into(),
        _ => {}
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).split(" at line ").next().unwrap_or_default().to_owned()
}

struct Places {
    file: Arc<str>,
    built_in: bool,
}

impl Places {
    fn new(origin: Origin<'_>) -> Self {
        match origin {
            Origin::BuiltIn(file) => Self { file: file.into(), built_in: true },
            Origin::File(file) => Self { file: file.into(), built_in: false },
        }
    }

    fn at(&self, location: Location) -> ConfigLocation {
        self.at_line(location.line().max(1), location.column().max(1))
    }

    fn at_line(&self, line: u64, column: u64) -> ConfigLocation {
        let file = Arc::clone(&self.file);
        if self.built_in {
            ConfigLocation::BuiltIn { file, line, column }
        } else {
            ConfigLocation::File { file, line, column }
        }
    }

    fn node(&self, raw: Raw, path: &str, errors: &Errors) -> Node {
        let place = self.at(raw.0.referenced);
        let value = match raw.0.value {
            RawValue::Scalar(value) => value,
            RawValue::List(items) => {
                let named = items.into_iter().enumerate();
                Value::List(named.map(|(i, item)| self.node(item, &format!("{path}[{i}]"), errors)).collect())
            }
            RawValue::Mapping(members) => Value::Mapping(self.members(members, path, errors)),
        };
        Node { value, place }
    }

    fn members(&self, members: Vec<(Spanned<String>, Raw)>, path: &str, errors: &Errors) -> Vec<Entry> {
        let mut seen = std::collections::HashMap::new();
        let mut entries = Vec::with_capacity(members.len());
        for (key, raw) in members {
            let path = join(path, &key.value);
            let key_place = self.at(key.referenced);
            let node = self.node(raw, &path, errors);
            match seen.entry(key.value.clone()) {
                std::collections::hash_map::Entry::Occupied(first) => {
                    errors.push(&key_place, &path, format!("a second `{}`", key.value), first.get());
                }
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(format!("each key once (the first is on line {})", key.referenced.line().max(1)));
                    entries.push(Entry { key: key.value, key_place, node });
                }
            }
        }
        entries
    }
}

struct Raw(Spanned<RawValue>);

enum RawValue {
    Scalar(Value),
    List(Vec<Raw>),
    Mapping(Vec<(Spanned<String>, Raw)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Spanned::deserialize(from).map(Self)
    }
}

impl<'de> Deserialize<'de> for RawValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = RawValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E: Error>(self) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(Value::Null))
    }

    fn visit_none<E: Error>(self) -> Result<RawValue, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<RawValue, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(Value::Boolean(value)))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<RawValue, E> {
        self.visit_i128(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<RawValue, E> {
        self.visit_i128(value.into())
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(Value::Integer(value)))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<RawValue, E> {
        self.visit_i128(i128::try_from(value).unwrap_or(i128::MAX))
    }

    fn visit_f64<E>(self, value: f64) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(Value::Float(value)))
    }

    fn visit_str<E>(self, text: &str) -> Result<RawValue, E> {
        Ok(RawValue::Scalar(Value::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(RawValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<RawValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(member) = members.next_entry()? {
            entries.push(member);
        }
        Ok(RawValue::Mapping(entries))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;

    fn tree(text: &str) -> Node {
        let errors = Errors::default();
        let tree = parse(text, Origin::File("a.yaml"), &errors).unwrap();
        assert_eq!(errors.len(), 0, "{errors:?}");
        tree
    }

    fn place(line: u64, column: u64) -> ConfigLocation {
        ConfigLocation::File { file: "a.yaml".into(), line, column }
    }

    #[test]
    fn every_key_and_value_has_its_source_location() {
        let tree = tree("# a comment\nworker:\n  lease: 5s\n  ladder: [1s,\n    3s]\n");
        let worker = tree.get("worker").unwrap();
        assert_eq!(worker.get("lease").unwrap().place, place(3, 10));
        assert_eq!(worker.entries()[0].key_place, place(3, 3));
        let Value::List(rungs) = &worker.get("ladder").unwrap().value else { panic!("a list") };
        assert_eq!(rungs[1].place, place(5, 5));
    }

    #[test]
    fn scalars_keep_their_types() {
        let tree = tree("{a: 1, b: 1.5, c: true, d: no, e: ~, f: \"1\", g: 5s, 200: x, h: 18446744073709551615}");
        let found: Vec<_> = tree.entries().iter().map(|e| format!("{}={}", e.key, e.node.describe())).collect();
        let expected = "a=1 b=1.5 c=true d=\"no\" e=nothing f=\"1\" g=\"5s\" 200=\"x\" h=18446744073709551615";
        assert_eq!(found.join(" "), expected);
    }

    #[test]
    fn empty_files_are_empty_mappings() {
        for text in ["", "# nothing\n", "---\n", "~\n"] {
            assert_eq!(tree(text).to_json().to_string(), "{}", "{text:?}");
        }
    }

    #[test]
    fn an_alias_has_the_location_of_its_use() {
        let tree = tree("a: &x [1]\nb: *x\n");
        assert_eq!(tree.to_json().to_string(), r#"{"a":[1],"b":[1]}"#);
        assert_eq!(tree.get("b").unwrap().place, place(2, 4));
    }

    #[test]
    fn an_invalid_document_returns_exactly_one_error() {
        for text in [
            "a: [",
            "a: 1\n---\nb: 2\n",
            "? [a, b]\n: 1\n",
            "a: *nobody\n",
            "a:\n\t- b\n",
            "a: 1\na b\n",
            "<<: {a: 1}\n",
        ] {
            let errors = Errors::default();
            assert!(parse(text, Origin::File("a.yaml"), &errors).is_none(), "{text:?}");
            let shown = errors.unless_any(None::<()>).unwrap_err();
            assert_eq!(shown.as_slice().len(), 1);
        }
    }

    #[test]
    fn excessive_nesting_returns_an_error() {
        for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
            for depth in [DEPTH_MAX - 1, DEPTH_MAX, DEPTH_MAX + 1, 5_000] {
                let text = format!("{}1{}\n", open.repeat(depth), close.repeat(depth));
                let errors = Errors::default();
                let tree = parse(&text, Origin::File("a.yaml"), &errors);
                assert_eq!((tree.is_some(), errors.len()), if depth <= DEPTH_MAX { (true, 0) } else { (false, 1) });
            }
        }
    }

    #[test]
    fn nested_aliases_count_toward_the_depth_limit() {
        let mut text = String::from("a0: &a0 [x]\n");
        (1..200).for_each(|i| text.push_str(&format!("a{i}: &a{i} [*a{}]\n", i - 1)));
        let errors = Errors::default();
        assert!(parse(&text, Origin::File("a.yaml"), &errors).is_none());
        assert_eq!(errors.len(), 1);
    }

    #[test]
    fn an_alias_bomb_returns_an_error() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for i in 1..12 {
            let below = format!("*a{}", i - 1);
            bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![below; 10].join(", ")));
        }
        let errors = Errors::default();
        assert!(parse(&bomb, Origin::File("a.yaml"), &errors).is_none());
        assert_eq!(errors.len(), 1);
    }
}

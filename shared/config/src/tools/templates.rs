//! Checks that every placeholder in a template names a known argument or secret.

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_model::suggest;

use crate::document::reader::Cursor;
use crate::document::tree::{Node, Value};
use crate::tools::SecretRef;

#[derive(Debug)]
pub(crate) struct Arguments {
    what: &'static str,
    known: BTreeSet<String>,
    always: BTreeSet<String>,
    /// True if the arguments are unknown. Every name is then accepted.
    any: bool,
}

impl Arguments {
    pub(crate) const fn unknown() -> Self {
        Self { what: "an argument", known: BTreeSet::new(), always: BTreeSet::new(), any: true }
    }

    pub(crate) fn of_schema(schema: &serde_json::Value) -> Self {
        let required = schema.get("required").and_then(|r| r.as_array()).into_iter().flatten();
        Self {
            what: "an argument of input_schema.properties",
            known: schema
                .get("properties")
                .and_then(|p| p.as_object())
                .into_iter()
                .flatten()
                .map(|p| p.0.clone())
                .collect(),
            always: required.filter_map(|name| name.as_str().map(str::to_owned)).collect(),
            any: false,
        }
    }

    pub(crate) fn of_task(known: &[&str], always: &[&str]) -> Self {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self { what: "a field of the task", known: own(known), always: own(always), any: false }
    }
}

const SECRET: &str = "a secret declared under `secrets`";

pub(crate) type NameCheck = fn(&str) -> Result<(), &'static str>;

pub(crate) fn variable(name: &str) -> Result<(), &'static str> {
    let sound = !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b'=');
    if sound { Ok(()) } else { Err("the name of an environment variable") }
}

pub(crate) fn over_secrets(
    cursor: &Cursor<'_>,
    secrets: &BTreeMap<String, SecretRef>,
    check: NameCheck,
) -> BTreeMap<String, String> {
    let mut read = BTreeMap::new();
    for (name, place, value) in cursor.members() {
        if let Err(expected) = check(name) {
            value.errors.push(place, &value.path, format!("the name {name:?}"), expected);
        }
        let Some(text) = value.text() else { continue };
        match placeholders(text, "${", "}") {
            None => value.refuse("a `}` after every `${`"),
            Some(named) => named.into_iter().filter(|secret| !secrets.contains_key(*secret)).for_each(|secret| {
                let names = || secrets.keys().map(String::as_str);
                let expected = match secrets.len() {
                    0 => format!("{SECRET}; none found"),
                    _ => format!("{SECRET}: {}", suggest::list(names())),
                };
                let found = format!("${{{secret}}}");
                let meant = suggest::closest(secret, names());
                value.errors.suggest(&value.node.place, &value.path, found, expected, meant);
            }),
        }
        read.insert(name.to_owned(), text.to_owned());
    }
    read
}

pub(crate) struct Templates<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) secrets: BTreeSet<&'a str>,
}

impl Templates<'_> {
    pub(crate) fn of_secrets(&self, cursor: &Cursor<'_>) -> Option<(String, bool)> {
        let text = cursor.some_text()?;
        if text.contains("{{") {
            cursor.refuse("no {{argument}}: a call must not choose its sign-in account");
        }
        self.check_kind(cursor, &text, ("${", "}"), &self.secrets, SECRET);
        let names_one = text.contains("${");
        Some((text, names_one))
    }

    pub(crate) fn path(&self, cursor: &Cursor<'_>) -> Option<String> {
        let text = cursor.text()?;
        if !text.starts_with('/') {
            cursor.refuse_with("a path that begins with /", Some(format!("/{text}")));
        }
        if text.contains(['?', '#', '\\']) || text.split('/').any(|segment| matches!(segment, "." | "..")) {
            cursor.refuse("a path without ?, #, \\ and the segments . and ..; parameters belong to `query`");
        }
        self.check(cursor, text);
        let optional = |name: &&str| self.arguments.known.contains(*name) && !self.arguments.always.contains(*name);
        for name in placeholders(text, "{{", "}}").into_iter().flatten().filter(optional) {
            cursor.refuse(format!("only required arguments in a path; `{name}` may be absent"));
        }
        Some(text.to_owned())
    }

    pub(crate) fn pairs(&self, cursor: &Cursor<'_>) -> BTreeMap<String, String> {
        let mut pairs = BTreeMap::new();
        for (name, _, value) in cursor.members() {
            let Some(text) = value.text() else { continue };
            self.check(&value, text);
            pairs.insert(name.to_owned(), text.to_owned());
        }
        pairs
    }

    pub(crate) fn defaults(&self, cursor: &Cursor<'_>) -> BTreeMap<String, String> {
        let mut defaults = BTreeMap::new();
        let known = || self.arguments.known.iter().map(String::as_str);
        for (name, place, value) in cursor.members() {
            if !self.arguments.any && !self.arguments.known.contains(name) {
                let expected = format!("{}: {}", self.arguments.what, suggest::list(known()));
                let meant = suggest::closest(name, known());
                value.errors.suggest(place, &value.path, format!("the unknown argument `{name}`"), expected, meant);
            } else if self.arguments.always.contains(name) {
                value.errors.push(place, &value.path, "a default", "none for an argument that every call has");
            }
            let text = value.text().filter(|text| !text.contains("${"));
            defaults.extend(text.map(|text| (name.to_owned(), text.to_owned())));
        }
        defaults
    }

    pub(crate) fn headers(&self, cursor: &Cursor<'_>) -> BTreeMap<String, String> {
        for (name, place, value) in cursor.members() {
            if let Err(expected) = header_name(name) {
                value.errors.push(place, &value.path, format!("the header {name:?}"), expected);
            }
        }
        self.pairs(cursor)
    }

    pub(crate) fn body(&self, cursor: &Cursor<'_>) -> serde_json::Value {
        self.walk(cursor.node, cursor);
        cursor.node.to_json()
    }

    fn walk(&self, node: &Node, at: &Cursor<'_>) {
        let below = |node, path| Cursor { node, path, errors: at.errors };
        match &node.value {
            Value::Text(text) => self.check(at, text),
            Value::List(items) => {
                items.iter().enumerate().for_each(|(i, n)| self.walk(n, &below(n, format!("{}[{i}]", at.path))));
            }
            Value::Mapping(entries) => {
                entries.iter().for_each(|e| self.walk(&e.node, &below(&e.node, format!("{}.{}", at.path, e.key))));
            }
            Value::Null | Value::Boolean(_) | Value::Integer(_) | Value::Float(_) => {}
        }
    }

    pub(crate) fn check(&self, cursor: &Cursor<'_>, text: &str) {
        let named = || placeholders(text, "{{", "}}").into_iter().flatten();
        let arguments: BTreeSet<&str> = if self.arguments.any {
            named().collect()
        } else {
            self.arguments.known.iter().map(String::as_str).collect()
        };
        self.check_kind(cursor, text, ("{{", "}}"), &arguments, self.arguments.what);
        self.check_kind(cursor, text, ("${", "}"), &self.secrets, SECRET);
    }

    fn check_kind(&self, at: &Cursor<'_>, text: &str, marks: (&str, &str), known: &BTreeSet<&str>, what: &str) {
        let Some(names) = placeholders(text, marks.0, marks.1) else {
            return at.refuse(format!("a `{}` after every `{}`", marks.1, marks.0));
        };
        for name in names.into_iter().filter(|name| !known.contains(name)) {
            let found = format!("{}{name}{}", marks.0, marks.1);
            let expected = match known.len() {
                0 => format!("{what}; none found"),
                _ => format!("{what}: {}", suggest::list(known.iter().copied())),
            };
            let meant = suggest::closest(name.trim(), known.iter().copied());
            at.errors.suggest(&at.node.place, &at.path, found, expected, meant);
        }
    }
}

/// Returns `None` if a placeholder is not closed.
pub(crate) fn placeholders<'t>(text: &'t str, open: &str, close: &str) -> Option<Vec<&'t str>> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(open) {
        let (name, after) = after.split_once(close)?;
        names.push(name);
        rest = after;
    }
    Some(names)
}

pub(crate) fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

/// With these headers, a template could smuggle in a second request or remove a limit on the response.
const CONNECTION_HEADERS: [&str; 8] =
    ["host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "accept-encoding", "expect"];

pub(crate) fn header_name(name: &str) -> Result<(), &'static str> {
    let lower = name.to_ascii_lowercase();
    if CONNECTION_HEADERS.contains(&lower.as_str()) || lower.starts_with("proxy-") {
        return Err("a header that does not belong to the connection");
    }
    if is_header_name(name) { Ok(()) } else { Err("a name such as X-Request-Id") }
}

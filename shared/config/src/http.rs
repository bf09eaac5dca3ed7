//! Reads how an HTTP tool or task handler is called, and checks that its templates name what exists: a
//! misspelt argument is found when the configuration is loaded, not when a model first calls the tool.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::Cursor;
use super::tools::{HttpDef, SecretRef, TENANT};
use super::tree::{Node, Value};
use super::{http_answers, http_sign_in};
use tickfleet_model::suggest;

const METHODS: [(&str, ()); 5] = [("GET", ()), ("POST", ()), ("PUT", ()), ("PATCH", ()), ("DELETE", ())];
/// Most bytes of a response that a definition may ask for.
const RESPONSE_BYTES_MAX: i128 = 64 << 20;
/// Most redirects that a definition may follow.
const REDIRECTS_MAX: i128 = 10;

/// The arguments that templates may name.
#[derive(Debug)]
pub(super) struct Arguments {
    /// What they are, for errors.
    what: &'static str,
    known: BTreeSet<String>,
    /// Those that every call has.
    always: BTreeSet<String>,
}

impl Arguments {
    /// The arguments of a tool with this input schema.
    pub(super) fn of_schema(schema: &serde_json::Value) -> Self {
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
        }
    }

    /// What a task offers: what every task has, and what some have.
    pub(super) fn of_task(known: &[&str], always: &[&str]) -> Self {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self { what: "something that a task has", known: own(known), always: own(always) }
    }
}

/// Reads an `http:` definition. `once` says that a second request would be a second effect.
pub(super) fn read(cursor: &Cursor<'_>, arguments: &Arguments, once: bool) -> Option<HttpDef> {
    let mut s = cursor.section();
    let secrets = s.optional("secrets").map(|c| secrets(&c)).unwrap_or_default();
    let templates = Templates { arguments, secrets: secrets.keys().map(String::as_str).collect() };
    let method = s.required("method").and_then(|c| c.choice(&METHODS).and(c.text()).map(str::to_owned));
    let body = s.optional("body");
    if let (Some(body), Some("GET")) = (&body, method.as_deref()) {
        body.refuse("no body with GET");
    }
    let headers = s.optional("headers");
    let oauth2 = s.optional("oauth2");
    if let (Some(headers), Some(_)) = (&headers, &oauth2) {
        let own = |name: &str| name.eq_ignore_ascii_case("authorization");
        for (_, _, header) in headers.members().into_iter().filter(|(name, ..)| own(name)) {
            header.refuse("no Authorization beside oauth2, which sets it");
        }
    }
    let def = HttpDef {
        method: method.unwrap_or_default(),
        base_url: s.required("base_url").and_then(|c| base_url(&c)).unwrap_or_default(),
        path: s.required("path").and_then(|c| templates.path(&c)).unwrap_or_default(),
        query: s.optional("query").map(|c| templates.pairs(&c)).unwrap_or_default(),
        headers: headers.map(|c| templates.headers(&c)).unwrap_or_default(),
        defaults: s.optional("defaults").map(|c| templates.defaults(&c)).unwrap_or_default(),
        body: body.map(|c| templates.body(&c)),
        not_executed: s.optional("not_executed").map(|c| statuses(&c)).unwrap_or_default(),
        outcomes: s.optional("outcomes").map(|c| http_answers::read(&c)).unwrap_or_default(),
        oauth2: oauth2.and_then(|c| http_sign_in::read(&c, &templates)),
        result: s.optional("result").and_then(|c| pointer(&c)),
        idempotency_header: s.optional("idempotency_header").and_then(|c| header_name(&c)),
        response_bytes_max: s.optional("response_bytes_max").and_then(|c| c.integer(1, RESPONSE_BYTES_MAX)),
        allow_private: s.optional("allow_private").map(|c| hosts(&c)).unwrap_or_default(),
        redirects_max: s.optional("redirects_max").and_then(|c| redirects(&c, once)).unwrap_or_default(),
        secrets,
    };
    s.close();
    matches!(cursor.node.value, Value::Mapping(_)).then_some(def)
}

/// Scheme, host and an optional path prefix. The environment is in it already.
fn base_url(cursor: &Cursor<'_>) -> Option<String> {
    service_url(cursor).map(|text| text.trim_end_matches('/').to_owned())
}

/// An address without query, template or password.
pub(super) fn service_url<'a>(cursor: &Cursor<'a>) -> Option<&'a str> {
    let text = cursor.text()?;
    if text.contains("${") {
        return None; // It was noted that the environment lacks this.
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '{' | '}' | '\\');
    if host.is_empty() || text.contains(odd) || host.contains('@') {
        cursor.refuse("http:// or https://, a host, and no query, template or password");
        return None;
    }
    Some(text)
}

/// Secrets by reference: name → where its value comes from.
pub(super) fn secrets(cursor: &Cursor<'_>) -> BTreeMap<String, SecretRef> {
    let mut secrets = BTreeMap::new();
    for (name, _, secret) in cursor.members() {
        let mut s = secret.section();
        let env = s.optional("env").and_then(|c| reference(&c)).map(SecretRef::Env);
        let file = s.optional("file").and_then(|c| reference(&c)).map(SecretRef::File);
        s.close();
        if secret.node.entries().len() != 1 && matches!(secret.node.value, Value::Mapping(_)) {
            secret.refuse("exactly one of env, file: where the secret comes from");
        }
        secrets.extend(env.or(file).map(|secret| (name.to_owned(), secret)));
    }
    secrets
}

/// A variable or a path, perhaps with the tenant in it.
fn reference(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.some_text()?;
    if text.replace(TENANT, "").contains(['{', '}']) {
        cursor.refuse(format!("no braces but {TENANT}, which stands for the calling tenant"));
    }
    Some(text)
}

fn statuses(cursor: &Cursor<'_>) -> BTreeSet<u16> {
    cursor.items().iter().filter_map(|item| item.integer(400, 599)).collect()
}

pub(super) fn pointer(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    let sound = text.is_empty() || text.starts_with('/');
    if !sound {
        cursor.refuse_with("a JSON pointer such as /result", Some(format!("/{text}")));
    }
    sound.then(|| text.to_owned())
}

fn header_name(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    if !is_header_name(text) {
        cursor.refuse("a header name such as Idempotency-Key");
    }
    Some(text.to_owned())
}

/// Whether HTTP takes it for the name of a header.
pub(super) fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c))
}

/// Hosts, `host:port` or CIDR blocks. The environment is in them already, empty ones are gone.
pub(super) fn hosts(cursor: &Cursor<'_>) -> BTreeSet<String> {
    let mut hosts = BTreeSet::new();
    for item in cursor.items() {
        let Some(host) = item.some_text() else { continue };
        if host.contains("://") || host.contains(char::is_whitespace) {
            item.refuse("a host, host:port or a block such as 10.0.0.0/8");
        }
        hosts.insert(host);
    }
    hosts
}

fn redirects(cursor: &Cursor<'_>, once: bool) -> Option<u8> {
    let redirects = cursor.integer(0, REDIRECTS_MAX)?;
    if once && redirects > 0 {
        cursor.refuse("0: what has an effect `once` follows no redirect");
    }
    Some(redirects)
}

/// What stands between `${` and `}`.
const SECRET: &str = "a secret declared under `secrets`";

/// What templates may name.
pub(super) struct Templates<'a> {
    arguments: &'a Arguments,
    secrets: BTreeSet<&'a str>,
}

impl Templates<'_> {
    /// A template that may name secrets and no arguments; whether it names any secret.
    pub(super) fn of_secrets(&self, cursor: &Cursor<'_>) -> Option<(String, bool)> {
        let text = cursor.some_text()?;
        if text.contains("{{") {
            cursor.refuse("no {{argument}}: a call does not choose who it signs in as");
        }
        self.check_kind(cursor, &text, ("${", "}"), &self.secrets, SECRET);
        let names_one = text.contains("${");
        Some((text, names_one))
    }

    fn path(&self, cursor: &Cursor<'_>) -> Option<String> {
        let text = cursor.text()?;
        if !text.starts_with('/') {
            cursor.refuse_with("a path that begins with /", Some(format!("/{text}")));
        }
        if text.contains(['?', '#']) {
            cursor.refuse("a path without ? and #; parameters belong to `query`");
        }
        self.check(cursor, text);
        let optional = |name: &&str| self.arguments.known.contains(*name) && !self.arguments.always.contains(*name);
        for name in placeholders(text, "{{", "}}").into_iter().flatten().filter(optional) {
            cursor.refuse(format!("only required arguments in a path; `{name}` may be absent"));
        }
        Some(text.to_owned())
    }

    fn pairs(&self, cursor: &Cursor<'_>) -> BTreeMap<String, String> {
        let mut pairs = BTreeMap::new();
        for (name, _, value) in cursor.members() {
            let Some(text) = value.text() else { continue };
            self.check(&value, text);
            pairs.insert(name.to_owned(), text.to_owned());
        }
        pairs
    }

    /// What optional arguments are where a call leaves them out. The environment is in it already.
    fn defaults(&self, cursor: &Cursor<'_>) -> BTreeMap<String, String> {
        let mut defaults = BTreeMap::new();
        let known = || self.arguments.known.iter().map(String::as_str);
        for (name, place, value) in cursor.members() {
            if !self.arguments.known.contains(name) {
                let expected = format!("{}: {}", self.arguments.what, suggest::list(known()));
                let meant = suggest::closest(name, known());
                value.errors.suggest(place, &value.path, format!("the unknown argument `{name}`"), expected, meant);
            } else if self.arguments.always.contains(name) {
                value.errors.push(place, &value.path, "a default", "none for an argument that every call has");
            }
            // That the environment lacks something was noted.
            let text = value.text().filter(|text| !text.contains("${"));
            defaults.extend(text.map(|text| (name.to_owned(), text.to_owned())));
        }
        defaults
    }

    fn headers(&self, cursor: &Cursor<'_>) -> BTreeMap<String, String> {
        for (name, place, value) in cursor.members().into_iter().filter(|(name, ..)| !is_header_name(name)) {
            value.errors.push(place, &value.path, format!("the header {name:?}"), "a name such as X-Request-Id");
        }
        self.pairs(cursor)
    }

    fn body(&self, cursor: &Cursor<'_>) -> serde_json::Value {
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

    /// Notes every placeholder of a template that names nothing.
    fn check(&self, cursor: &Cursor<'_>, text: &str) {
        let arguments = self.arguments.known.iter().map(String::as_str).collect();
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
                0 => format!("{what}; there are none"),
                _ => format!("{what}: {}", suggest::list(known.iter().copied())),
            };
            let meant = suggest::closest(name.trim(), known.iter().copied());
            at.errors.suggest(&at.node.place, &at.path, found, expected, meant);
        }
    }
}

/// The names between the marks; none where one is not closed.
pub(super) fn placeholders<'t>(text: &'t str, open: &str, close: &str) -> Option<Vec<&'t str>> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(open) {
        let (name, after) = after.split_once(close)?;
        names.push(name);
        rest = after;
    }
    Some(names)
}

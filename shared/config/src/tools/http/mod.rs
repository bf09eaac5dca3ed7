//! The request of an HTTP tool or task handler.

mod oauth2;
mod outcomes;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use crate::document::reader::Cursor;
use crate::document::tree::Value;
use crate::tools::templates::{self, Arguments, Templates};
use crate::tools::{HttpDef, SecretRef, TENANT};
pub use values::{SERVICE_URL, is_service_url};
use values::{pointer, service_url};

const METHODS: [(&str, ()); 5] = [("GET", ()), ("POST", ()), ("PUT", ()), ("PATCH", ()), ("DELETE", ())];
/// All slots of a worker can hold a response at the same time, so the size is limited.
const RESPONSE_BYTES_MAX: i128 = 16 << 20;
const REDIRECTS_MAX: i128 = 10;

/// `once` is true if a repeated request would have a second effect.
pub(crate) fn read(cursor: &Cursor<'_>, arguments: &Arguments, once: bool) -> Option<HttpDef> {
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
        outcomes: s.optional("outcomes").map(|c| outcomes::read(&c)).unwrap_or_default(),
        oauth2: oauth2.and_then(|c| oauth2::read(&c, &templates)),
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

fn base_url(cursor: &Cursor<'_>) -> Option<String> {
    service_url(cursor).map(|text| text.trim_end_matches('/').to_owned())
}

pub(crate) fn secrets(cursor: &Cursor<'_>) -> BTreeMap<String, SecretRef> {
    cursor.members().iter().filter_map(|(name, _, c)| Some(((*name).to_owned(), secret(c)?))).collect()
}

pub(crate) fn secret(cursor: &Cursor<'_>) -> Option<SecretRef> {
    let mut s = cursor.section();
    let env = s.optional("env").and_then(|c| reference(&c)).map(SecretRef::Env);
    let file = s.optional("file").and_then(|c| reference(&c)).map(SecretRef::File);
    s.close();
    if cursor.node.entries().len() != 1 && matches!(cursor.node.value, Value::Mapping(_)) {
        cursor.refuse("exactly one of env, file: where the secret comes from");
    }
    env.or(file)
}

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

fn header_name(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    if let Err(expected) = templates::header_name(text) {
        cursor.refuse(expected);
    }
    Some(text.to_owned())
}

pub(crate) fn hosts(cursor: &Cursor<'_>) -> BTreeSet<String> {
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
        cursor.refuse("0: a tool with effect `once` follows no redirects");
    }
    Some(redirects)
}

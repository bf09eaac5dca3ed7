//! Writes JSON objects member by member, straight into one string.

use std::collections::BTreeSet;

use serde_json::value::RawValue;

use super::json::push_quoted;
use tickfleet_model::Context;

pub(super) struct Object {
    text: String,
}

impl Object {
    pub(super) fn new(capacity: usize) -> Self {
        let mut text = String::with_capacity(capacity);
        text.push('{');
        Self { text }
    }

    fn key(&mut self, name: &'static str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        // Member names are constants, so they need no escaping.
        self.text.push('"');
        self.text.push_str(name);
        self.text.push_str("\":");
    }

    pub(super) fn text(&mut self, name: &'static str, value: &str) {
        self.key(name);
        push_quoted(&mut self.text, value);
    }

    pub(super) fn optional(&mut self, name: &'static str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(name, value);
        }
    }

    pub(super) fn raw(&mut self, name: &'static str, json: &str) {
        self.key(name);
        self.text.push_str(json);
    }

    pub(super) fn names(&mut self, name: &'static str, names: Option<&BTreeSet<String>>) {
        if let Some(names) = names {
            self.texts(name, names.iter().map(String::as_str));
        }
    }

    pub(super) fn texts<'t>(&mut self, name: &'static str, texts: impl Iterator<Item = &'t str>) {
        self.key(name);
        self.text.push('[');
        for (at, text) in texts.enumerate() {
            if at > 0 {
                self.text.push(',');
            }
            push_quoted(&mut self.text, text);
        }
        self.text.push(']');
    }

    pub(super) fn context(&mut self, context: &Context) {
        let members = [("user_context", &context.user_context), ("session_data", &context.session_data)];
        for (name, value) in members {
            if let Some(json) = value.as_deref().map(RawValue::get) {
                self.raw(name, json);
            }
        }
        self.optional("session_id", context.session_id.as_ref().map(tickfleet_model::SessionName::as_str));
        self.optional("correlation_id", context.correlation_id.as_deref());
        self.optional("traceparent", context.traceparent.as_deref());
        self.optional("tracestate", context.tracestate.as_deref());
    }

    pub(super) fn end(mut self) -> String {
        self.text.push('}');
        self.text
    }
}

/// RFC 3339 has only the years 0 to 9999. Another time becomes the nearest possible time.
pub(super) fn time(ms: i64) -> String {
    const FIRST_MS: i64 = -62_167_219_200_000;
    const LAST_MS: i64 = 253_402_300_799_999;
    let time = chrono::DateTime::from_timestamp_millis(ms.clamp(FIRST_MS, LAST_MS)).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

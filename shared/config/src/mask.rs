//! Masks secrets wherever a configuration is shown.
//!
//! Texts that a tool sends to a service or passes to a program can be secrets, so only references in them are shown.
//! Addresses are shown without user, query values and random-looking segments. Other text is masked if it looks like a
//! secret or has the name of a secret.

use tickfleet_model::Redactor;
use tickfleet_model::redaction::REDACTED;

use crate::settings::redis_url::mask_url;

pub(crate) const MASK: &str = "***";
const PLAIN_HEADERS: [&str; 8] = [
    "accept",
    "accept-language",
    "cache-control",
    "content-language",
    "content-type",
    "origin",
    "referer",
    "user-agent",
];
const SCHEMES: [&str; 6] = ["apikey", "basic", "bearer", "bot", "digest", "token"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Sent to a service or a program: only references are shown.
    Sent,
    Address,
    Program,
    Reference,
    Other,
}

fn kind(path: &str) -> Kind {
    const SENT: [&str; 6] =
        [".http.headers.", ".http.query.", ".http.body", ".http.defaults.", ".oauth2.params.", ".shell.environment."];
    const SIGN_IN: [&str; 3] = [".oauth2.client_secret", ".oauth2.refresh_token", ".oauth2.scope"];
    const ADDRESSES: [&str; 6] = ["redis.url", ".base_url", ".token_url", ".url", ".otlp_endpoint", ".http.path"];
    let (path, index) = item(path);
    let of_server = ["servers.", "python.", "node."].iter().any(|section| path.starts_with(section));
    let sent = SENT.iter().any(|part| path.contains(part)) || of_server && has_any(path, &[".headers.", ".env."]);
    let is_sign_in = SIGN_IN.iter().any(|end| path.ends_with(end));
    let is_argument = path.ends_with(".shell.stdin")
        || path.ends_with(".shell.command") && index != Some("0")
        || of_server && path.ends_with(".args");
    let plain_header =
        path.contains(".headers.") && PLAIN_HEADERS.contains(&last_name(path).to_ascii_lowercase().as_str());
    if path.contains(".secrets.") || path.contains(".key.") || path.starts_with("seal.") {
        Kind::Reference
    } else if is_sign_in || is_argument || sent && !plain_header {
        Kind::Sent
    } else if ADDRESSES.iter().any(|end| path.ends_with(end)) {
        Kind::Address
    } else if path.ends_with(".command") {
        Kind::Program
    } else {
        Kind::Other
    }
}

/// `servers.a.args[1]` gives `servers.a.args` and `1`.
fn item(path: &str) -> (&str, Option<&str>) {
    let parted = path.strip_suffix(']').and_then(|path| path.rsplit_once('['));
    parted.map_or((path, None), |(list, index)| (list, Some(index)))
}

fn last_name(path: &str) -> &str {
    item(path).0.rsplit('.').next().unwrap_or_default()
}

pub(crate) fn found(text: &str, path: &str) -> Option<String> {
    (kind(path) == Kind::Sent).then(|| references_only(text))
}

fn has_any(text: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| text.contains(part))
}

pub(crate) fn masked(text: &str, path: &str, redactor: &Redactor) -> String {
    let name = last_name(path);
    match kind(path) {
        Kind::Reference => text.to_owned(),
        Kind::Sent => references_only(text),
        Kind::Address => address(text, redactor),
        Kind::Program => described(text, redactor).split(' ').map(without_random).collect::<Vec<_>>().join(" "),
        Kind::Other if redactor.is_secret_key(name) && is_sent_by_name(path) => references_only(text),
        Kind::Other => described(text, redactor),
    }
}

pub(crate) fn hides_number(path: &str, redactor: &Redactor) -> bool {
    kind(path) == Kind::Sent && redactor.is_secret_key(last_name(path))
}

/// False in policy files and schemas. Names there are names of tools, roles, facts and arguments, so a name like
/// `token` is harmless.
fn is_sent_by_name(path: &str) -> bool {
    !["permissions.", "approvers.", "limits.", "agents.", "tenants.", "seal."].iter().any(|file| path.starts_with(file))
        && !path.contains(".input_schema.")
        && !path.contains(".output_schema.")
}

fn references_only(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = [rest.find("{{"), rest.find("${")].into_iter().flatten().min() {
        let (before, from) = rest.split_at(at);
        let close = if from.starts_with("{{") { "}}" } else { "}" };
        let Some(end) = from.find(close).map(|end| end + close.len()) else { break };
        shown.push_str(&literal(before));
        shown.push_str(&reference(&from[..end]));
        rest = &from[end..];
    }
    shown + &literal(rest)
}

fn reference(text: &str) -> String {
    match text.split_once(":-") {
        Some((name, default)) if default.len() > 1 => format!("{name}:-{MASK}}}"),
        _ => text.to_owned(),
    }
}

fn literal(text: &str) -> String {
    let word = text.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_ascii_lowercase();
    let plain = !text.chars().any(char::is_alphanumeric) || SCHEMES.contains(&word.as_str());
    if plain { text.to_owned() } else { MASK.to_owned() }
}

fn redacted(text: &str, redactor: &Redactor) -> String {
    redactor.text(text).replace(REDACTED, MASK)
}

fn described(text: &str, redactor: &Redactor) -> String {
    let clean = redacted(text, redactor);
    let is_address = |word: &str| word.contains("://") && (word.contains('@') || word.contains('?'));
    if !clean.contains("://") {
        return clean;
    }
    clean
        .split(' ')
        .map(|word| if is_address(word) { address(word, redactor) } else { word.to_owned() })
        .collect::<Vec<_>>()
        .join(" ")
}

fn address(text: &str, redactor: &Redactor) -> String {
    if let Some((name, default)) = text.strip_prefix("${").and_then(|rest| rest.split_once(":-"))
        && let Some((default, after)) = default.split_once('}')
    {
        return format!("${{{name}:-{}}}{}", address(default, redactor), address(after, redactor));
    }
    let url = if has_any(text, &["@", "?"]) { mask_url(text) } else { text.to_owned() };
    // The user part of a URL may be a token.
    let url = match url.split_once("://") {
        Some((scheme, rest)) if scheme.starts_with("http") => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://{MASK}@{host}"),
            None => url,
        },
        _ => url,
    };
    let url = match url.split_once('#') {
        Some((before, _)) => format!("{before}#{MASK}"),
        None => url,
    };
    let clean = redacted(&url, redactor);
    let (clean, query) = clean.split_once('?').map_or((clean.as_str(), None), |(before, query)| (before, Some(query)));
    let path = clean.split('/').map(without_random).collect::<Vec<_>>().join("/");
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

/// Masks a word that looks random, because the word may be the key in the address of a webhook.
fn without_random(word: &str) -> &str {
    let digits = |text: &str| text.bytes().filter(u8::is_ascii_digit).count();
    let letters = |text: &str| text.bytes().filter(u8::is_ascii_alphabetic).count();
    let is_word = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_=+.~:".contains(&byte));
    let runs = word.split(|c: char| !c.is_ascii_alphanumeric());
    let random = runs.into_iter().any(|run| run.len() >= 16 && digits(run) >= 2 && letters(run) >= 2)
        || word.len() >= 32 && digits(word) >= 4;
    if is_word && random { MASK } else { word }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::Value;

    use super::*;

    /// Texts of tools that are shown unless they look like a secret.
    const SHOWN: [&str; 14] = [
        "http.oauth2.client_id",
        "http.outcomes[0].at",
        "http.outcomes[0].equals",
        "http.outcomes[0].message",
        "http.outcomes[0].retry_after",
        "http.result",
        "http.idempotency_header",
        "http.allow_private[0]",
        "shell.image",
        "shell.paths[0].path",
        "shell.limits.memory_bytes",
        "shell.limits.file_bytes",
        "shell.limits.workspace_bytes",
        "shell.limits.output_bytes",
    ];

    #[test]
    fn each_text_of_a_kind_of_tool_is_masked_or_listed_as_shown() {
        let schema: Value = serde_json::from_str(include_str!("../../../config/schema/tools.json")).unwrap();
        let tool = &schema["properties"]["tools"]["additionalProperties"]["properties"];
        let mut texts = Vec::new();
        for (runner, _) in crate::tools::read::RUNNERS {
            add_texts(&tool[runner], runner, &mut texts);
        }
        texts.retain(|path| kind(&format!("tools.a.{path}")) == Kind::Other);
        let shown: std::collections::BTreeSet<_> = texts.iter().map(String::as_str).collect();
        assert_eq!(shown, SHOWN.into_iter().collect());
    }

    fn add_texts(schema: &Value, path: &str, texts: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            add_texts(field, &format!("{path}.{name}"), texts);
        }
        for (below, at) in [("additionalProperties", ".name"), ("items", "[0]")] {
            if schema[below].is_object() {
                add_texts(&schema[below], &format!("{path}{at}"), texts);
            }
        }
        let is_free = schema.get("type").is_none() && schema.get("enum").is_none();
        if schema["type"] == "string" || is_free {
            texts.push(path.to_owned());
        }
    }

    #[test]
    fn a_literal_secret_is_masked_in_every_field() {
        let redactor = Redactor::default();
        for (path, text, shown) in [
            ("tools.a.http.headers.X-Api-Key", "hunter2", "***"),
            ("tools.a.http.headers.X-Custom", "hunter2", "***"),
            ("tools.a.http.headers.Authorization", "Bearer hunter2", "***"),
            ("tools.a.http.headers.Authorization", "Bearer ${TOKEN}", "Bearer ${TOKEN}"),
            ("tools.a.http.headers.Authorization", "Bearer hunter2 ${TOKEN}", "***${TOKEN}"),
            ("tools.a.http.headers.Accept", "application/json", "application/json"),
            ("tools.a.http.query.sig", "hunter2", "***"),
            ("tools.a.http.query.email", "{{email}}", "{{email}}"),
            ("tools.a.http.query.k", "${KEY:-hunter2}", "${KEY:-***}"),
            ("tools.a.http.defaults.chat_id", "${CHAT:-}", "${CHAT:-}"),
            ("tools.a.http.body.password", "hunter2", "***"),
            ("tools.a.http.body", "hunter2", "***"),
            ("tools.a.http.defaults.pin", "hunter2", "***"),
            ("tools.a.http.oauth2.client_secret", "hunter2", "***"),
            ("tools.a.http.oauth2.client_secret", "${SECRET}", "${SECRET}"),
            ("agents.a.task_handler.http.oauth2.refresh_token", "hunter2", "***"),
            ("tools.a.http.oauth2.params.assertion", "hunter2", "***"),
            ("tools.a.http.base_url", "https://hunter2@api.test/v1", "https://***@api.test/v1"),
            ("tools.a.http.base_url", "${URL:-https://me:hunter2@api.test}/v1", "${URL:-https://***@api.test}/v1"),
            ("tools.a.http.base_url", "https://api.test/v1?k=hunter2", "https://api.test/v1?k=***"),
            ("tools.a.http.path", "/services/T0/B0/8cVJp2Qw7Lk3mN5xZr1tYb4d", "/services/T0/B0/***"),
            ("tools.a.http.path", "/bot123456:AAbbccddeeff00112233/send", "/bot***/send"),
            ("tools.a.http.path", "/v1/get_conversation_history_2", "/v1/get_conversation_history_2"),
            ("tools.a.shell.environment.WHATEVER", "hunter2", "***"),
            ("servers.a.env.WHATEVER", "hunter2", "***"),
            ("servers.a.headers.X-Custom", "hunter2", "***"),
            ("servers.a.url", "https://mcp.test/sse?api_key=hunter2", "https://mcp.test/sse?api_key=***"),
            ("servers.a.command", "npx", "npx"),
            ("servers.a.args[0]", "--api-key=hunter2", "***"),
            ("servers.a.args[1]", "hunter2", "***"),
            ("servers.a.args[2]", "${TOKEN:-hunter2}", "${TOKEN:-***}"),
            ("tools.a.shell.command[0]", "/usr/bin/mysql", "/usr/bin/mysql"),
            ("tools.a.shell.command[1]", "-phunter2", "***"),
            ("tools.a.shell.command[2]", "{{query}}", "{{query}}"),
            ("tools.a.shell.command", "mysql -phunter2", "***"),
            ("tools.a.shell.stdin", "hunter2 {{text}}", "***{{text}}"),
            ("tools.a.http.oauth2.scope", "hunter2", "***"),
            ("tools.a.http.oauth2.scope", "${SCOPE}", "${SCOPE}"),
            ("python.a.env.WHATEVER", "hunter2", "***"),
            ("node.a.env.WHATEVER", "hunter2", "***"),
            ("redis.url", "redis://:hunter2@redis/0", "redis://:***@redis/0"),
            ("tracing.otlp_endpoint", "https://c.test/v1?key=hunter2", "https://c.test/v1?key=***"),
            ("tools.a.description", "Call it with password=hunter2 once.", "Call it with password=*** once."),
            ("tools.a.http.secrets.KEY.env", "CRM_KEY_OF_PRODUCTION_2026", "CRM_KEY_OF_PRODUCTION_2026"),
            ("seal.key", "env:SEAL_KEY", "env:SEAL_KEY"),
            ("tools.a.http.headers.X-Custom", "env:hunter2", "***"),
            ("permissions.a.facts.sets", "token", "token"),
        ] {
            let masked = masked(text, path, &redactor);
            assert_eq!(masked, shown, "{path}: {text}");
        }
    }
}

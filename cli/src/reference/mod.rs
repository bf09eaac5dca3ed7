//! Generates pages of `docs/reference/` from the program itself, and tests that the pages are current.
//!
//! To rewrite the pages: `TICKFLEET_WRITE_DOCS=1 cargo test -p tickfleet --lib reference`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod commands;
mod http;
mod redis_users;

use std::path::Path;

const REWRITE: &str = "TICKFLEET_WRITE_DOCS=1 cargo test -p tickfleet --lib reference";

#[allow(clippy::disallowed_methods, reason = "a knob of these tests, not of the product")]
fn keep_current(name: &str, title: &str, body: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    let page = format!("<!-- Generated; to regenerate: {REWRITE} -->\n# {title}\n\n{}\n", body.trim());
    if std::env::var_os("TICKFLEET_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/reference/{name} is out of date; rewrite it with\n  {REWRITE}");
}

fn cell(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    escaped(&sentence(&text)).replace('|', "\\|")
}

/// Escapes angle brackets outside inline code, because Markdown would treat them as HTML.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 0 { part.replace('<', "\\<") } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("`")
}

/// Adds the final period, because clap removes it.
fn sentence(text: &str) -> String {
    let ended = text.is_empty() || text.ends_with(['.', '!', '?', ':']);
    if ended { text.to_owned() } else { format!("{text}.") }
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

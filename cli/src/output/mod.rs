//! The output of a command: results to stdout, everything else to stderr.

pub(crate) mod dead_letters;
pub(crate) mod format;
pub(crate) mod invoked;
pub(crate) mod results;
pub(crate) mod time_format;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use tickfleet_client::verbs::Remarks;
use tickfleet_model::hidden::visible;
use tickfleet_model::numbers::number_across;
use tickfleet_model::redaction::string_end;
use tickfleet_ops::telemetry::emit_json;

use crate::failure::Failure;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
    colour: bool,
    json_log: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusColor {
    Good,
    Bad,
    Doubtful,
    Strong,
}

impl Output {
    pub(crate) const fn json(&self) -> bool {
        self.json
    }

    /// No colors if `NO_COLOR` is set (<https://no-color.org>).
    pub(crate) fn new(json: bool) -> Self {
        let wanted = crate::global::environment().get("NO_COLOR").is_none_or(String::is_empty);
        Self { json, colour: !json && wanted && std::io::stdout().is_terminal(), json_log: false }
    }

    pub(crate) const fn with_json_log(self, json_log: bool) -> Self {
        Self { json_log, ..self }
    }

    /// Escapes invisible and reordering characters. A reader that closes the pipe early (`| head`) is not an error.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let text = if self.colour { visible_in_colours(text) } else { visible(text).into_owned() };
        match write!(stdout, "{text}{end}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|error| Failure::failed(anyhow::anyhow!("cannot write to stdout: {error}"))),
        }
    }

    pub(crate) fn data(&self, data: &impl Serialize) -> Result<(), Failure> {
        self.print(&serde_json::to_string_pretty(data).map_err(Failure::failed)?)
    }

    pub(crate) fn show<T: Serialize>(&self, data: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.json { self.data(data) } else { self.print(&text(data)) }
    }

    pub(crate) fn paint(&self, color: StatusColor, word: &str) -> String {
        let code = match color {
            StatusColor::Good => 32,
            StatusColor::Bad => 31,
            StatusColor::Doubtful => 33,
            StatusColor::Strong => 1,
        };
        if self.colour { format!("\u{1b}[{code}m{word}\u{1b}[0m") } else { word.to_owned() }
    }

    pub(crate) fn cell(&self, color: StatusColor, word: &str) -> Cell {
        let colour = match color {
            StatusColor::Good => Color::Green,
            StatusColor::Bad => Color::Red,
            StatusColor::Doubtful => Color::Yellow,
            StatusColor::Strong => Color::White,
        };
        if self.colour { Cell::new(word).fg(colour) } else { Cell::new(word) }
    }

    pub(crate) fn fail(&self, failure: &Failure) -> ExitCode {
        if let Some(message) = failure.message() {
            let message = visible(&message);
            if self.json_log {
                emit_json(|| tracing::error!(error = %message.trim(), "the process cannot run"));
            } else {
                // If even this write fails, the error cannot be reported.
                let _ = writeln!(std::io::stderr(), "tickfleet: {message}");
            }
        }
        ExitCode::from(failure.code())
    }

    pub(crate) fn note(&self, text: &str) {
        if self.json_log {
            return emit_json(|| tracing::warn!("{}", visible(text)));
        }
        let _ = writeln!(std::io::stderr(), "{}", visible(text));
    }

    pub(crate) fn spinner(&self, what: String) -> ProgressBar {
        let spinner = ProgressBar::new_spinner().with_message(what);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(std::time::Duration::from_millis(120));
        spinner
    }

    pub(crate) fn completions(&self, shell: clap_complete::Shell, command: &mut clap::Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(shell, command, "tickfleet", &mut script);
        self.print(&String::from_utf8_lossy(&script))
    }
}

impl Remarks for Output {
    fn remark(&self, text: &str) {
        self.note(text);
    }
}

pub(crate) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(head);
    table
}

pub(crate) fn lines(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Same as [`visible`], but keeps the colors of [`Output::paint`] and of tables.
fn visible_in_colours(text: &str) -> String {
    const COLOURS: [&str; 12] =
        ["0", "1", "22", "31", "32", "33", "39", "38;5;9", "38;5;10", "38;5;11", "38;5;15", "49"];
    let mut parts = text.split("\u{1b}[");
    let mut shown = visible(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        match part.split_once('m').filter(|(code, _)| COLOURS.contains(code)) {
            Some((code, rest)) => shown.push_str(&format!("\u{1b}[{code}m{}", visible(rest))),
            None => shown.push_str(&visible(&format!("\u{1b}[{part}"))),
        }
    }
    shown
}

/// A number is shown whole or left out.
pub(crate) fn short(text: &str, chars_max: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..number_boundary(&line, end)]),
        None => line,
    }
}

/// Cuts before a number that spans `end`, but after a number that begins the text.
fn number_boundary(text: &str, end: usize) -> usize {
    match number_across(text, end) {
        Some((0, behind)) => behind,
        Some((before, _)) => before,
        None => end,
    }
}

pub(crate) fn plural(count: usize, what: &str) -> String {
    match (count, what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        _ => format!("{count} {what}s"),
    }
}

/// For serde's `skip_serializing_if`.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

const LINE_CHARS: usize = 80;

/// Cuts nothing. JSON that is too long for one line gets one line per value.
pub(crate) fn readable_json(json: &str, margin: &str) -> String {
    let line = written(json, None);
    if line.chars().count() <= LINE_CHARS { line } else { format!("\n{margin}{}", written(json, Some(margin))) }
}

fn written(json: &str, margin: Option<&str>) -> String {
    let mut shown = String::with_capacity(json.len());
    let mut depth = 0_usize;
    let mut rest = json.trim_start();
    while let Some(character) = rest.chars().next() {
        let is_empty = rest[character.len_utf8()..].trim_start().starts_with(['}', ']']);
        let breaks =
            |depth: usize| margin.map(|margin| format!("\n{margin}{}", "  ".repeat(depth))).unwrap_or_default();
        let mut taken = character.len_utf8();
        match character {
            '"' => {
                taken = string_end(rest.as_bytes(), 0);
                let text = serde_json::from_str::<String>(&rest[..taken])
                    .map(|text| serde_json::Value::from(text).to_string());
                shown.push_str(text.as_deref().unwrap_or(&rest[..taken]));
            }
            '{' | '[' => {
                depth += 1;
                shown.push(character);
                shown.push_str(&if is_empty { String::new() } else { breaks(depth) });
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                let was_empty = shown.ends_with(['{', '[']);
                shown.push_str(&if was_empty { String::new() } else { breaks(depth) });
                shown.push(character);
            }
            ',' => {
                shown.push(character);
                shown.push_str(&breaks(depth));
            }
            ':' => shown.push_str(if margin.is_some() { ": " } else { ":" }),
            _ => shown.push(character),
        }
        rest = rest[taken..].trim_start();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_every_digit_and_drops_needless_escapes() {
        let json = r#" {"to": "\u006b\u0069m \"x\" \\u202e", "amount":12345678901234567890.10,"no":[],"of": {}} "#;
        let line = r#"{"to":"kim \"x\" \\u202e","amount":12345678901234567890.10,"no":[],"of":{}}"#;
        assert_eq!(readable_json(json, "    "), line);
        let long = format!(r#"{{"note":"{}","of":[1e400,{{"a":null}}],"last":"\u202e"}}"#, "x".repeat(5_000));
        let shown = readable_json(&long, "  ");
        let expected = format!(
            "\n  {{\n    \"note\": \"{}\",\n    \"of\": [\n      1e400,\n      {{\n        \"a\": null\n      }}\n    ],\n    \
             \"last\": \"\u{202e}\"\n  }}",
            "x".repeat(5_000)
        );
        assert_eq!(shown, expected);
        assert!(visible(&shown).contains(r#""last": "\u202e""#), "what is hidden shows where it is printed");
        for odd in ["", "{", "}]", "\"a", "\"\\", "null"] {
            assert_eq!(readable_json(odd, ""), odd);
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(short("a\nb", 5), "a b");
        assert_eq!(short("äöüäöü", 3), "äöü…");
        assert_eq!(short("äöü", 3), "äöü");
    }

    #[test]
    fn a_number_is_never_cut() {
        assert_eq!(short(r#"{"amount":1000000}"#, 12), r#"{"amount":…"#);
        assert_eq!(short("pays 1,250.75 to kim", 8), "pays …");
        assert_eq!(short("1000000 to kim", 3), "1000000…");
        assert_eq!(short("pays 12.", 7), "pays 12…", "a full stop is no part of it");
        assert_eq!(short("f9e8d54345f4c0", 12), "f9e8d54345f4…", "a digest is no number");
    }

    #[test]
    fn colors_are_kept_and_hidden_sequences_become_visible() {
        let text = "\u{1b}[32mok\u{1b}[0m \u{1b}[8mhidden\u{1b}]0;title\u{7} \u{202e}001";
        let shown = visible_in_colours(text);
        assert_eq!(shown, "\u{1b}[32mok\u{1b}[0m \\u001b[8mhidden\\u001b]0;title\\u0007 \\u202e001");
    }
}

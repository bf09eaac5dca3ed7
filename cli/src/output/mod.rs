//! The output of a command: results to stdout, everything else to stderr.

pub(crate) mod format;
pub(crate) mod invoked;
pub(crate) mod letters;
pub(crate) mod results;
pub(crate) mod time_format;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::failure::Failure;

/// The way in which a command prints.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    /// For programs rather than people.
    pub(crate) json: bool,
    colour: bool,
}

/// The meaning of a word to the reader, as a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Good,
    Bad,
    Doubtful,
    Strong,
}

impl Output {
    /// Whether data is printed as JSON.
    pub(crate) const fn json(&self) -> bool {
        self.json
    }

    /// Colours only on a terminal, and not where NO_COLOR says no (<https://no-color.org>).
    pub(crate) fn new(json: bool) -> Self {
        let wanted = crate::global::environment().get("NO_COLOR").is_none_or(String::is_empty);
        Self { json, colour: !json && wanted && std::io::stdout().is_terminal() }
    }

    /// Returns true if colours are wanted.
    pub(crate) const fn colours(&self) -> bool {
        self.colour
    }

    /// Prints text, with a line break after it.
    ///
    /// # Errors
    /// Stdout cannot be written. A reader that has seen enough (`| head`) is no error.
    pub(crate) fn print(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        match write!(stdout, "{text}{end}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            other => other.map_err(|error| Failure::failed(anyhow::anyhow!("stdout cannot be written: {error}"))),
        }
    }

    /// Prints data as JSON.
    pub(crate) fn data(&self, data: &impl Serialize) -> Result<(), Failure> {
        self.print(&serde_json::to_string_pretty(data).map_err(Failure::failed)?)
    }

    /// Prints data as JSON where that was asked for, else as `text` makes of it.
    pub(crate) fn show<T: Serialize>(&self, data: &T, text: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.json { self.data(data) } else { self.print(&text(data)) }
    }

    /// A word in the colour of its meaning, where colours are wanted.
    pub(crate) fn paint(&self, mood: Mood, word: &str) -> String {
        let code = match mood {
            Mood::Good => 32,
            Mood::Bad => 31,
            Mood::Doubtful => 33,
            Mood::Strong => 1,
        };
        if self.colour { format!("\u{1b}[{code}m{word}\u{1b}[0m") } else { word.to_owned() }
    }

    /// A table's cell in the colour of its meaning, where colours are wanted.
    pub(crate) fn cell(&self, mood: Mood, word: &str) -> Cell {
        let colour = match mood {
            Mood::Good => Color::Green,
            Mood::Bad => Color::Red,
            Mood::Doubtful => Color::Yellow,
            Mood::Strong => Color::White,
        };
        if self.colour { Cell::new(word).fg(colour) } else { Cell::new(word) }
    }

    /// Tells why a command failed; answers its exit code.
    pub(crate) fn fail(&self, failure: &Failure) -> ExitCode {
        if let Some(message) = failure.message() {
            // Nothing is left to tell where even this cannot be written.
            let _ = writeln!(std::io::stderr(), "tickfleet: {message}");
        }
        ExitCode::from(failure.code())
    }

    /// Says something to people beside the result.
    pub(crate) fn note(&self, text: &str) {
        // A note that cannot be written changes no result.
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// A sign of life on stderr while something takes its time; invisible where stderr is no terminal.
    pub(crate) fn spinner(&self, what: String) -> ProgressBar {
        let spinner = ProgressBar::new_spinner().with_message(what);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(std::time::Duration::from_millis(120));
        spinner
    }

    /// Prints a shell's completion script.
    pub(crate) fn completions(&self, shell: clap_complete::Shell, command: &mut clap::Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(shell, command, "tickfleet", &mut script);
        self.print(&String::from_utf8_lossy(&script))
    }
}

/// A table for people, as wide as the terminal.
pub(crate) fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(head);
    table
}

/// A table as text, its columns two blanks apart.
pub(crate) fn lines(mut table: Table) -> String {
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Text of at most `chars_max` characters on one line.
pub(crate) fn short(text: &str, chars_max: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(chars_max + 1).collect();
    match line.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_stay_and_long_ones_are_cut_between_characters() {
        assert_eq!(short("a\nb", 5), "a b");
        assert_eq!(short("äöüäöü", 3), "äöü…");
        assert_eq!(short("äöü", 3), "äöü");
    }
}

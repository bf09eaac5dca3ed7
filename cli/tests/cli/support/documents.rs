//! Runs the commands in the documentation. Each command must print the output that the documentation shows.

use std::path::Path;
use std::process::Command;

pub const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[derive(Debug, PartialEq, Eq)]
pub struct DocumentedCommand {
    pub line: usize,
    pub command: String,
    pub output: Vec<String>,
}

/// (number of the block's first line, lines)
pub fn blocks<'a>(text: &'a str, language: &str) -> Vec<(usize, Vec<&'a str>)> {
    let mut found: Vec<(usize, Vec<&str>)> = Vec::new();
    let mut fenced = false;
    let mut wanted = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(info) = line.strip_prefix("```") {
            fenced = !fenced;
            wanted = fenced && info == language;
            if wanted {
                found.push((index + 2, Vec::new()));
            }
        } else if let (true, Some((_, lines))) = (wanted, found.last_mut()) {
            lines.push(line);
        }
    }
    found
}

pub fn shown(text: &str) -> Vec<DocumentedCommand> {
    let mut found: Vec<DocumentedCommand> = Vec::new();
    for (first, lines) in blocks(text, "console") {
        for (offset, line) in lines.into_iter().enumerate() {
            match (line.strip_prefix("$ "), found.last_mut()) {
                (Some(command), _) => {
                    found.push(DocumentedCommand {
                        line: first + offset,
                        command: command.to_owned(),
                        output: Vec::new(),
                    });
                }
                (None, Some(shown)) => shown.output.push(line.to_owned()),
                (None, None) => panic!("line {}: output of no command", first + offset),
            }
        }
    }
    found
}

/// Numbers and digests differ from run to run. The width of padding differs too, so each run of spaces becomes one
/// space.
fn masked(line: &str) -> String {
    let word = |word: &str| {
        // The name of a consumer consists of its kind, its host's name, and a unique suffix.
        if let Some((kind @ ("s" | "w"), host)) = word.split_once('-')
            && let Some((host, _)) = host.split_once('-')
        {
            return format!("{kind}-{host}-#");
        }
        // A digest may be in brackets or followed by a comma.
        let digest = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        if digest.len() >= 12 && digest.chars().all(|c| c.is_ascii_hexdigit()) {
            return word.replace(digest, "#");
        }
        let mut out = String::new();
        for c in word.chars() {
            let number = c.is_ascii_digit() || (c == '.' && out.ends_with('#'));
            match number {
                true if out.ends_with('#') => {}
                true => out.push('#'),
                false => out.push(c),
            }
        }
        out
    };
    // Random IDs and hashes are hexadecimal digits after a prefix.
    let mut plain = line.to_owned();
    for prefix in ["py-", "apr-"] {
        let mut parts = plain.split(prefix);
        let mut without = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            without.push_str(&format!("{prefix}#"));
            without.push_str(part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
        }
        plain = without;
    }
    plain.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// The number of equal lines varies, for example with the number of windows that begin.
fn comparable<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> = lines.map(masked).collect();
    lines.dedup();
    lines
}

/// A documented line `…` matches any number of lines.
pub fn agrees(shown: &[String], printed: &str) -> bool {
    let printed = comparable(printed.lines());
    let mut rest = printed.as_slice();
    let mut anything = false;
    for wanted in comparable(shown.iter().map(String::as_str)) {
        if wanted == "…" {
            anything = true;
            continue;
        }
        let at = rest.iter().position(|line| *line == wanted);
        match at {
            Some(0) => rest = &rest[1..],
            Some(at) if anything => rest = &rest[at + 1..],
            _ => return false,
        }
        anything = false;
    }
    anything || rest.iter().all(String::is_empty)
}

pub fn with_binary(command: &mut Command) -> &mut Command {
    let binary = Path::new(env!("CARGO_BIN_EXE_tickfleet")).parent().unwrap();
    #[allow(clippy::disallowed_methods, reason = "the reader's PATH, with the binary in front")]
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path)
}

#[test]
fn commands_are_found_in_a_document() {
    let text = "a\n```console\n$ one 1\nout\n$ two\n```\n```sh\n$ not\n```\n";
    let commands = shown(text);
    assert_eq!(commands.iter().map(|c| (c.line, c.command.as_str())).collect::<Vec<_>>(), [(3, "one 1"), (5, "two")]);
    assert_eq!(commands[0].output, ["out"]);
}

#[test]
fn output_may_differ_from_the_page_only_in_numbers() {
    let shown = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(agrees(&shown(&["t17-0  echo  ok", "in 4.8 s"]), "t1899-12 echo ok\nin 12 s\n"));
    assert!(!agrees(&shown(&["t17-0 echo ok"]), "t17-0 echo denied"));
    assert!(!agrees(&shown(&["a"]), "a\nb"));
    assert!(agrees(&shown(&["a", "…", "c", "…"]), "a\nb\nc\nd"));
    assert!(!agrees(&shown(&["a", "…", "c"]), "a\nb"));
    assert!(agrees(&shown(&["at 1", "b"]), "at 7\nat 8\nb"));
    assert!(agrees(&shown(&["held by w-local-1a-66f-0"]), "held by w-local-b7-012-3"));
    assert!(!agrees(&shown(&["held by w-local-1a-66f-0"]), "held by s-local-1a-66f-0"));
}

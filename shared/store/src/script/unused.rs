//! Leaves out of a script the functions that it does not use: Redis makes each of them anew whenever the script runs,
//! which took a twentieth of what a turn costs that comes alone.

use std::collections::BTreeSet;
use std::ops::Range;

/// A function of a script's outermost block.
struct Function<'a> {
    name: &'a str,
    lines: Range<usize>,
}

/// The text with the lines of unused functions emptied: every other line stays where it is.
pub(crate) fn without_unused(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let functions = functions(&lines);
    let mut kept: Vec<bool> = vec![true; lines.len()];
    for function in &functions {
        kept[function.lines.clone()].fill(false);
    }
    let mut needed: Vec<&str> =
        lines.iter().zip(&kept).filter(|(_, kept)| **kept).flat_map(|(line, _)| words(line)).collect();
    let mut seen = BTreeSet::new();
    while let Some(word) = needed.pop() {
        if !seen.insert(word) {
            continue;
        }
        for function in functions.iter().filter(|function| function.name == word) {
            kept[function.lines.clone()].fill(true);
            needed.extend(lines[function.lines.clone()].iter().flat_map(|line| words(line)));
        }
    }
    let lines: Vec<&str> = lines.iter().zip(kept).map(|(line, kept)| if kept { *line } else { "" }).collect();
    lines.join("\n")
}

/// The functions of the outermost block, as the house writes them: they begin and end at the beginning of a line, or
/// stand on one.
fn functions<'a>(lines: &[&'a str]) -> Vec<Function<'a>> {
    let begins = |(at, line): (usize, &&'a str)| {
        let (name, _) = line.strip_prefix("local function ")?.split_once('(')?;
        let length = if line.ends_with(" end") { 1 } else { 1 + lines[at..].iter().position(|line| *line == "end")? };
        Some(Function { name, lines: at..at + length })
    };
    lines.iter().enumerate().filter_map(begins).collect()
}

/// The words of a line that is no comment.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let code = if line.trim_start().starts_with("--") { "" } else { line };
    code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_with_what_that_uses_and_every_line_stays_in_its_place() {
        let text = "local function a() return b() end\n-- Calls unused().\nlocal function b()\n  return 1\nend\n\
                    local function unused()\n  return a()\nend\nlocal x = a()\nreturn x";
        let lean = "local function a() return b() end\n-- Calls unused().\nlocal function b()\n  return 1\nend\n\
                    \n\n\nlocal x = a()\nreturn x";
        assert_eq!(without_unused(text), lean);
    }
}

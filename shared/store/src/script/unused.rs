//! Leaves out of a script the functions that it does not use: Redis makes each of them anew whenever the script runs,
//! which took a twentieth of what a turn costs that comes alone.

use std::collections::BTreeSet;
use std::ops::Range;

/// Stands behind what is made late (see `rarely.rs`).
pub(crate) const END: &str = " end)() return ";

/// A function of a script's outermost block.
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    pub(super) lines: Range<usize>,
}

/// The text with the lines of unused functions emptied: every other line stays where it is.
pub(crate) fn without_unused(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').collect();
    let kept = kept(&lines, &functions(&lines), None);
    let lines: Vec<&str> = lines.iter().zip(kept).map(|(line, kept)| if kept { *line } else { "" }).collect();
    lines.join("\n")
}

/// Which lines stay: all outside of functions, and the functions that these use, and so on. What `without` alone uses, and
/// itself, does not.
pub(super) fn kept(lines: &[&str], functions: &[Function<'_>], without: Option<&str>) -> Vec<bool> {
    let mut kept: Vec<bool> = vec![true; lines.len()];
    for function in functions {
        kept[function.lines.clone()].fill(false);
    }
    let mut needed: Vec<&str> =
        lines.iter().zip(&kept).filter(|(_, kept)| **kept).flat_map(|(line, _)| words(line)).collect();
    let mut seen: BTreeSet<&str> = without.into_iter().collect();
    while let Some(word) = needed.pop() {
        if !seen.insert(word) {
            continue;
        }
        for function in functions.iter().filter(|function| function.name == word) {
            kept[function.lines.clone()].fill(true);
            needed.extend(lines[function.lines.clone()].iter().flat_map(|line| words(line)));
        }
    }
    kept
}

/// The functions of the outermost block, as the house writes them: they begin and end at the beginning of a line, or
/// stand on one.
pub(super) fn functions<'a>(lines: &[&'a str]) -> Vec<Function<'a>> {
    let begins = |(at, line): (usize, &&'a str)| {
        let (name, _) = line.strip_prefix("local function ")?.split_once('(')?;
        let length = if line.ends_with(" end") { 1 } else { 1 + lines[at..].iter().position(|line| is_end(line))? };
        Some(Function { name, lines: at..at + length })
    };
    lines.iter().enumerate().filter_map(begins).collect()
}

/// Whether a function ends with this line: also one that what is made late ends with.
fn is_end(line: &str) -> bool {
    line.strip_prefix("end").is_some_and(|rest| rest.is_empty() || rest.contains(END))
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

//! Files and functions that fit a head. The ratchet lets a long one stay that reads well, but none grows unnoticed.

use super::source::{Source, Tree, closing, find_words, line_of};

/// Lines of a file of code.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 100;
/// What counts as code.
const CODE: [&str; 6] = ["rs", "lua", "py", "sh", "tpl", "ts"];

/// What may be longer: what it is, how long it may be, and why.
pub const RATCHET: &[(&str, usize, &str)] = &[];

/// Something over its bound: what, and how many lines.
pub type Long = (String, usize);

pub fn long_files(tree: &Tree) -> Vec<Long> {
    let files = CODE.iter().flat_map(|extension| tree.with_extension(extension));
    let lengths = files.map(|(path, text)| (path.to_owned(), text.lines().count()));
    lengths.filter(|(_, lines)| *lines > FILE_LINES_MAX).collect()
}

pub fn long_functions(source: &Source) -> Vec<Long> {
    let code = &source.code;
    let mut found = Vec::new();
    for at in find_words(code, "fn") {
        let name: String =
            code[at + 2..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let Some(open) = body(code, at).filter(|_| !name.is_empty()) else { continue };
        let lines = line_of(code, closing(code, open)) - line_of(code, at) + 1;
        if lines > FUNCTION_LINES_MAX {
            found.push((format!("{}: fn {name}", source.path), lines));
        }
    }
    found
}

/// The `{` of the function's body; none where it has none.
fn body(code: &str, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let here = at + code[at..].find(['{', ';', '(', '['])?;
        match code.as_bytes()[here] {
            b'{' => return Some(here),
            b';' => return None,
            _ => at = closing(code, here),
        }
    }
}

/// What is longer than both its bound and the ratchet, and entries of the ratchet that are not needed any more.
pub fn against_the_ratchet(found: Vec<Long>, ratchet: &[(&str, usize, &str)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (what, lines) in &found {
        match ratchet.iter().find(|(name, ..)| name == what) {
            None => complaints.push(format!("{what} has {lines} lines: split it where the subject changes")),
            Some((_, most, _)) if lines > most => {
                complaints.push(format!("{what} grew from {most} to {lines} lines: split it"));
            }
            Some(_) => {}
        }
    }
    for (name, _, reason) in ratchet {
        if !found.iter().any(|(what, _)| what == name) {
            complaints.push(format!("{name} is short enough now: take it off the ratchet"));
        }
        if reason.trim().is_empty() {
            complaints.push(format!("{name} is on the ratchet without a reason"));
        }
    }
    complaints
}

#[test]
fn long_functions_are_found_and_the_ratchet_only_tightens() {
    let long = format!("fn short() {{}}\nfn long(x: [u8; 3]) -> u8 {{\n{}}}\n", "    f();\n".repeat(100));
    let found = long_functions(&Source::new("x.rs", &long));
    assert_eq!(found, [("x.rs: fn long".to_owned(), 102)]);

    assert_eq!(against_the_ratchet(found.clone(), &[]).len(), 1);
    assert!(against_the_ratchet(found.clone(), &[("x.rs: fn long", 102, "a table")]).is_empty());
    assert_eq!(against_the_ratchet(found, &[("x.rs: fn long", 101, "a table")]).len(), 1);
    assert_eq!(against_the_ratchet(Vec::new(), &[("x.rs: fn long", 102, "a table")]).len(), 1);
}

//! Files, functions and folders that fit a head. The ratchet lets a long one stay that reads well, but none grows
//! unnoticed.

use std::collections::BTreeMap;

use super::source::{Source, Tree, closing, find_words, line_of};

/// Lines of code of a file: no blank ones, no comments, no tests beside the code.
const FILE_LINES_MAX: usize = 400;
/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 60;
/// Files of a folder.
const FOLDER_FILES_MAX: usize = 15;
/// The extensions of code that is not Rust, each with the beginning of its comments.
const OTHER_CODE: [(&str, &str); 5] = [("lua", "--"), ("py", "#"), ("sh", "#"), ("tpl", "{{/*"), ("ts", "//")];

/// What may be longer: what it is, how long it may be, and why.
pub const RATCHET: &[(&str, usize, &str)] = &[
    ("docs", 32, "pages: readers, and links from elsewhere, find them in one list"),
    ("docs/adr", 20, "records are added and never taken away, and their numbers are one series"),
];

/// Something over its bound: what, and its lines or files.
pub type Long = (String, usize);

pub fn long_files(tree: &Tree) -> Vec<Long> {
    let rust = tree.rust().map(|source| (source.path.clone(), lines_of(source)));
    let other = OTHER_CODE.iter().flat_map(|(extension, comment)| {
        let counted =
            move |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with(comment)).count();
        tree.with_extension(extension).map(move |(path, text)| (path.to_owned(), counted(text)))
    });
    rust.chain(other).filter(|(_, lines)| *lines > FILE_LINES_MAX).collect()
}

/// The lines of code of a file; a file of tests counts as a whole.
fn lines_of(source: &Source) -> usize {
    let of_tests = source.production.trim().is_empty();
    let text = if of_tests { &source.code } else { &source.production };
    text.lines().filter(|line| !line.trim().is_empty()).count()
}

pub fn full_folders(tree: &Tree) -> Vec<Long> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for (path, _) in tree.texts() {
        *folders.entry(path.rsplit_once('/').map_or("", |(folder, _)| folder)).or_default() += 1;
    }
    folders.retain(|_, files| *files > FOLDER_FILES_MAX);
    folders.into_iter().map(|(folder, files)| (folder.to_owned(), files)).collect()
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
            None => complaints.push(format!("{what} has {lines} lines or files: split it where the subject changes")),
            Some((_, most, _)) if lines > most => {
                complaints.push(format!("{what} grew from {most} to {lines}: split it"));
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

    let counted = "//! Why.\n\nfn f() {\n    // Not this.\n    g();\n}\n#[cfg(test)]\nmod tests {\n    fn h() {}\n}\n";
    assert_eq!(lines_of(&Source::new("x.rs", counted)), 3);

    assert_eq!(against_the_ratchet(found.clone(), &[]).len(), 1);
    assert!(against_the_ratchet(found.clone(), &[("x.rs: fn long", 102, "a table")]).is_empty());
    assert_eq!(against_the_ratchet(found, &[("x.rs: fn long", 101, "a table")]).len(), 1);
    assert_eq!(against_the_ratchet(Vec::new(), &[("x.rs: fn long", 102, "a table")]).len(), 1);
}

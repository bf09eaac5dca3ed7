//! Reads the files of the project. Comments, literals and tests in Rust text are blanked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SKIPPED: [&str; 7] = [".git", "target", ".demo", ".tickfleet", ".cache", "node_modules", "dist"];

pub struct Tree {
    pub root: PathBuf,
    texts: BTreeMap<String, String>,
    sources: Vec<Source>,
}

impl Tree {
    pub fn load() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned();
        let mut texts = BTreeMap::new();
        read_folder(&root, &root, &mut texts);
        assert!(texts.contains_key("Cargo.toml"), "{} is not the workspace", root.display());
        let rust = texts.iter().filter(|(path, _)| path.ends_with(".rs"));
        let sources = rust.map(|(path, text)| Source::new(path, text)).collect();
        Self { root, texts, sources }
    }

    pub fn rust(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter()
    }

    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub fn with_extension(&self, extension: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter(move |(path, _)| path.rsplit_once('.').is_some_and(|(_, found)| found == extension))
    }

    pub fn manifests(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts().filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)))
    }
}

fn read_folder(root: &Path, folder: &Path, texts: &mut BTreeMap<String, String>) {
    for entry in folder.read_dir().expect("a folder of the project") {
        let path = entry.expect("an entry of the project").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_symlink() || SKIPPED.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            read_folder(root, &path, texts);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            let relative = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
            texts.insert(relative, text);
        }
    }
}

pub struct Source {
    pub path: String,
    pub text: String,
    /// [`Self::text`] with blanks in place of comments and literals. Line numbers stay the same.
    pub code: String,
    /// [`Self::code`] without items under `#[cfg(test)]`. Blank for a file of tests.
    pub production: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let code = blank(text);
        let of_tests = path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs");
        let production = if of_tests { blank_all(&code) } else { without_tests(&code) };
        Self { path: path.to_owned(), text: text.to_owned(), code, production }
    }

    /// Lines are numbered from 1.
    pub fn lines_naming(&self, word: &str) -> Vec<usize> {
        find_words(&self.production, word).map(|at| line_of(&self.production, at)).collect()
    }
}

pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Skips longer identifiers that contain `word`.
pub fn find_words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = &text[..*at];
        let after = &text[at + word.len()..];
        let continues = word.ends_with(part) && after.starts_with(part);
        !(before.ends_with(part) || continues)
    })
}

/// Returns the end of the text if the bracket is never closed.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code[open..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return open + at + 1;
        }
    }
    code.len()
}

fn blank_all(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { c } else { ' ' }).collect()
}

fn without_tests(code: &str) -> String {
    const GUARD: &str = "#[cfg(test)]";
    let mut left = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(GUARD) {
        let item = at + GUARD.len();
        let end = item_end(rest, item);
        left.push_str(&rest[..at]);
        left.push_str(&blank_all(&rest[at..end]));
        rest = &rest[end..];
    }
    left + rest
}

/// An item ends at its `;` or at the closing brace of its block, whichever comes first.
fn item_end(code: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(found) = code[at..].find(['{', ';', '(', '[']) {
        let here = at + found;
        match code.as_bytes()[here] {
            b'{' => return closing(code, here),
            b';' => return here + 1,
            _ => at = closing(code, here),
        }
    }
    code.len()
}

/// Replaces comments and literals with blanks. Every newline stays.
pub fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let opaque = opaque_len(rest, out.chars().next_back());
        let len = opaque.unwrap_or(c.len_utf8());
        if opaque.is_some() {
            out.push_str(&blank_all(&rest[..len]))
        } else {
            out.push(c)
        }
        rest = &rest[len..];
    }
    out
}

fn opaque_len(rest: &str, before: Option<char>) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment_len(rest));
    }
    if rest.starts_with('"') {
        return Some(quoted_len(rest, '"'));
    }
    if rest.starts_with('r') && !before.is_some_and(|c| c.is_alphanumeric() && c != 'b' || c == '_') {
        return raw_string_len(rest);
    }
    // `'a'` and `'\n'` are characters; `'a` is a lifetime.
    let mut chars = rest.strip_prefix('\'')?.chars();
    let first = chars.next()?;
    let second = chars.next();
    (first == '\\' || second == Some('\'')).then(|| quoted_len(rest, '\''))
}

fn block_comment_len(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_len(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn raw_string_len(rest: &str) -> Option<usize> {
    let hashes = rest[1..].chars().take_while(|c| *c == '#').count();
    let body = 1 + hashes + 1;
    if rest.as_bytes().get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    Some(rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len()))
}

#[test]
fn comments_and_literals_are_blanked_and_code_stays() {
    let text = "let a = \"redis::x \\\" y\"; // redis::y\nlet b = 'x'; /* redis::z /* nested */ */ fn f<'a>(c: &'a str) {}\n\
                let d = r#\"redis::\"q\"#; let e = b\"redis::\"; let f = '\\''; redis::real();";
    let code = blank(text);
    assert_eq!(find_words(&code, "redis::").count(), 1, "{code}");
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(code.contains("fn f<'a>(c: &'a str) {}"), "{code}");
}

#[test]
fn test_modules_are_not_production_code() {
    let text = "fn a() {}\n#[cfg(test)]\n#[allow(x, reason = \"y\")]\nmod tests { fn b() { c(); } }\n#[cfg(test)]\nmod more;\nfn d() {}";
    let source = Source::new("shared/src/x.rs", text);
    assert!(source.production.contains("fn a") && source.production.contains("fn d"));
    assert!(!source.production.contains("fn b") && !source.production.contains("more"));
    assert_eq!(source.lines_naming("d"), [7]);
}

//! Bounds how much a file knows, and how much it offers.

use std::collections::BTreeSet;

use super::circles::paths;
use super::source::{Source, find_words};

/// A file that imports more modules and crates does several things.
const IMPORTS_MAX: usize = 36;
/// A module that offers more items hides nothing.
const PUBLIC_ITEMS_MAX: usize = 30;
/// Lists by design: the bounds of the product.
const LISTS: [&str; 1] = ["shared/model/src/limits.rs"];

/// Counts modules and crates, not the items in them.
fn imports(source: &Source) -> usize {
    let mut found = BTreeSet::new();
    for path in paths(&source.production) {
        found.insert(module_of(&path));
    }
    for at in find_words(&source.production, "use") {
        let path = source.production[at + "use".len()..].trim_start();
        let root: String = path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if !matches!(root.as_str(), "" | "crate" | "super" | "self" | "std" | "core") {
            found.insert(root);
        }
    }
    found.len()
}

/// Drops the item at the end of a path. Items begin with a capital letter, or are the last name.
fn module_of(path: &str) -> String {
    let names: Vec<&str> = path.split("::").collect();
    let item = names.iter().position(|name| name.starts_with(char::is_uppercase));
    names[..item.unwrap_or_else(|| names.len().saturating_sub(1).max(2)).min(names.len())].join("::")
}

fn public_items(source: &Source) -> usize {
    let is_item =
        |line: &&str| line.starts_with("pub ") && !["pub mod ", "pub use "].iter().any(|p| line.starts_with(p));
    source.production.lines().filter(is_item).count()
}

pub fn complaints(source: &Source) -> Vec<String> {
    let (imports, items) = (imports(source), public_items(source));
    let mut complaints = Vec::new();
    if imports > IMPORTS_MAX {
        complaints.push(format!("{}: it imports {imports} modules and crates", source.path));
    }
    if items > PUBLIC_ITEMS_MAX && !LISTS.contains(&source.path.as_str()) {
        complaints.push(format!("{}: it has {items} public items", source.path));
    }
    complaints
}

#[test]
fn a_file_with_too_many_imports_or_items_is_found() {
    let sample = |count: usize, line: fn(usize) -> String| {
        let text: String = (0..count).map(line).collect();
        complaints(&Source::new("a/src/x.rs", &text)).len()
    };
    let import = |n: usize| format!("use crate::m{n}::{{A, B}};\n");
    let item = |n: usize| format!("pub fn f{n}() {{}}\n");
    assert_eq!([sample(IMPORTS_MAX, import), sample(IMPORTS_MAX + 1, import)], [0, 1]);
    assert_eq!([sample(PUBLIC_ITEMS_MAX, item), sample(PUBLIC_ITEMS_MAX + 1, item)], [0, 1]);
}

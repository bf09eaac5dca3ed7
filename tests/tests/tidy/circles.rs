//! Finds files that import each other in a loop. A module and its submodules count as one.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, closing, find_words};

/// Empty for the crate's root.
type Module = Vec<String>;

fn place(path: &str) -> Option<(&str, Module)> {
    let (root, inside) = path.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    let module = if matches!(inside, "lib" | "main" | "mod") { Vec::new() } else { split(inside, '/') };
    Some((root, module))
}

fn split(text: &str, at: char) -> Module {
    text.split(at).map(str::to_owned).collect()
}

pub(super) fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for root in ["crate::", "super::", "self::"] {
        for at in find_words(code, root) {
            // Finds `super::super::x` only once, at its beginning.
            if !code[..at].ends_with("::") {
                expand("", &code[at..end_of_path(code, at)], &mut found);
            }
        }
    }
    found
}

/// The path may end in a group of names, such as `a::{b, c}`.
fn end_of_path(code: &str, from: usize) -> usize {
    let length = code[from..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(0);
    let at = from + length;
    if code[at..].starts_with('{') && code[..at].ends_with("::") { closing(code, at) } else { at }
}

fn expand(prefix: &str, path: &str, found: &mut Vec<String>) {
    let Some((head, group)) = path.split_once('{') else {
        found.push(format!("{prefix}{}", path.split_whitespace().next().unwrap_or_default()));
        return;
    };
    let group = group.strip_suffix('}').unwrap_or(group);
    let mut depth = 0_usize;
    let mut from = 0;
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                let item = group[from..at].trim();
                from = at + 1;
                if !item.is_empty() {
                    expand(&format!("{prefix}{}", head.trim()), item, found);
                }
            }
            _ => {}
        }
    }
}

/// The result may end in the name of a function or type, which the caller removes.
fn absolute(here: &Module, path: &str) -> Module {
    let mut module = here.clone();
    for (at, name) in path.split("::").enumerate() {
        match name {
            "crate" if at == 0 => module.clear(),
            "self" => {}
            "super" => drop(module.pop()),
            name => module.push(name.to_owned()),
        }
    }
    module
}

pub fn circles(sources: &[&Source]) -> Vec<Vec<String>> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, &Source>> = BTreeMap::new();
    for source in sources {
        if let Some((root, module)) = place(&source.path) {
            crates.entry(root).or_default().insert(module, source);
        }
    }
    crates.values().flat_map(circles_of_crate).collect()
}

fn circles_of_crate(files: &BTreeMap<Module, &Source>) -> Vec<Vec<String>> {
    let known = |mut path: Module| {
        while !path.is_empty() && !files.contains_key(&path) {
            path.pop();
        }
        path
    };
    let mut arrows: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, source) in files {
        let targets = paths(&source.production).into_iter().map(|path| known(absolute(module, &path)));
        let apart = |to: &Module| !to.starts_with(module) && !module.starts_with(to);
        arrows.insert(module, targets.filter(apart).collect());
    }
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = files.keys().map(|from| (from, reach(from, &arrows))).collect();
    let mut found = BTreeSet::new();
    for (module, all) in &reached {
        let circle: Vec<String> =
            (files.iter().filter(|(other, _)| all.contains(other) && reached[other].contains(module)))
                .map(|(_, source)| source.path.clone())
                .collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

fn reach<'a>(from: &Module, arrows: &'a BTreeMap<&'a Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&Module> = arrows[from].iter().collect();
    while let Some(module) = left.pop() {
        if reached.insert(module) {
            left.extend(arrows.get(module).into_iter().flatten());
        }
    }
    reached
}

pub fn complaints(sources: &[&Source]) -> Vec<String> {
    circles(sources).iter().map(|circle| format!("import each other in a loop: {}", circle.join(", "))).collect()
}

#[test]
fn an_import_loop_is_found_but_module_reexports_are_not() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let looped = [
        file("a/src/lib.rs", "mod x; mod y; mod z; use x::X;"),
        file("a/src/x.rs", "use crate::{y::{Y, self}, z};"),
        file("a/src/y.rs", "use super::z::Z;"),
        file("a/src/z.rs", "fn f() { crate::x::g(); }\n#[cfg(test)]\nmod tests { use super::*; }"),
        file("a/src/w/mod.rs", "mod v; use v::V; use crate::x::X;"),
        file("a/src/w/v.rs", "use super::W;"),
    ];
    let found = circles(&looped.iter().collect::<Vec<_>>());
    assert_eq!(found, [["a/src/x.rs", "a/src/y.rs", "a/src/z.rs"]]);
}

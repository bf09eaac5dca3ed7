//! Finds dead links in the documentation.

use std::path::Path;

use super::source::Tree;

pub fn dead_links(tree: &Tree, path: &str, text: &str) -> Vec<String> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let mut complaints = Vec::new();
    for (line, target) in links(text) {
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let file = if file.is_empty() { tree.root.join(path) } else { tree.root.join(folder).join(file) };
        if !file.exists() {
            complaints.push(format!("{path}:{line}: no file for the link `{target}`"));
        } else if !heading.is_empty() && file.extension().is_some_and(|e| e == "md") {
            let aimed = std::fs::read_to_string(&file).unwrap_or_default();
            if !anchors(&aimed).iter().any(|anchor| anchor == heading) {
                complaints.push(format!("{path}:{line}: no heading for the link `{target}`"));
            }
        }
    }
    complaints
}

/// Links in the program's output must also name a heading, because pages are long.
pub fn dead_pointers(tree: &Tree, path: &str, text: &str) -> Vec<String> {
    let is_rust = path.ends_with(".rs");
    let of_tests = path.starts_with("tests/") || path.contains("/tests/");
    if of_tests || path.ends_with(".md") {
        return Vec::new();
    }
    let tests = ["#[cfg(test)]\nmod ", "#[test]\n"].iter().filter_map(|guard| text.find(guard)).min();
    let text = if is_rust { &text[..tests.unwrap_or(text.len())] } else { text };
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let is_comment = line.trim_start().starts_with("//") || line.contains("assert!");
        for (page, heading) in pointers(line) {
            let number = index + 1;
            let aimed = std::fs::read_to_string(tree.root.join(page));
            match (aimed, heading) {
                (Err(_), _) => complaints.push(format!("{path}:{number}: there is no page {page}")),
                (Ok(_), "") if is_rust && !is_comment => {
                    complaints.push(format!("{path}:{number}: {page} is named without a heading (#...)"));
                }
                (Ok(aimed), heading) if !heading.is_empty() && !anchors(&aimed).iter().any(|a| a == heading) => {
                    complaints.push(format!("{path}:{number}: {page} has no heading #{heading}"));
                }
                (Ok(_), _) => {}
            }
        }
    }
    complaints
}

/// Finds each `docs/page.md` and its heading, which may be empty.
fn pointers(line: &str) -> Vec<(&str, &str)> {
    let of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
    let of_heading = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let found = line.match_indices("docs/").filter(|(at, _)| !line[..*at].ends_with(of_path));
    let found = found.filter_map(|(at, _)| {
        let rest = &line[at..];
        let page = &rest[..rest.find(".md").map(|end| end + 3).filter(|end| rest[..*end].chars().all(of_path))?];
        let heading = rest[page.len()..].strip_prefix('#').unwrap_or_default();
        Some((page, &heading[..heading.find(|c: char| !of_heading(c)).unwrap_or(heading.len())]))
    });
    found.collect()
}

/// Lines are numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Every second part between backticks is code.
        for part in line.split('`').step_by(2) {
            found.extend(part.split("](").skip(1).filter_map(|rest| Some((number, rest.split([')', ' ']).next()?))));
        }
        // If a link's text is code, the part with the target begins with `](`.
        if let Some((_, target)) = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            found.push((number, target.split(' ').next().unwrap_or_default()));
        }
    }
    let inside = |target: &str| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:");
    found.retain(|(_, target)| inside(target));
    found
}

/// Builds anchors as common forges do.
fn anchors(text: &str) -> Vec<String> {
    let headings =
        prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| line.trim_start_matches('#').trim());
    let mut anchors: Vec<String> = Vec::new();
    for heading in headings {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let same = anchors.iter().filter(|known| **known == anchor).count();
        anchors.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
    }
    anchors
}

/// Files of the chart, files of the site and snippets are not pages. Decision records have their own index.
fn is_a_page(path: &str) -> bool {
    let record = path.strip_prefix("docs/adr/").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_digit()));
    !record
        && !["helm/", "docs/site/", "docs/snippets/", "cli/", ".github/"].iter().any(|folder| path.starts_with(folder))
}

pub fn unlisted(contents: &str, path: &str) -> Option<String> {
    let link = path.strip_prefix("docs/").map_or_else(|| format!("(../../{path})"), |page| format!("(../{page})"));
    (is_a_page(path) && !contents.contains(&link)).then(|| format!("docs/site/SUMMARY.md does not have {path}"))
}

/// Finds a name in code, such as `LIVE`, that the source file linked behind it in the same sentence does not contain.
pub fn stale_names(tree: &Tree, path: &str, text: &str) -> Vec<String> {
    let folder = Path::new(path).parent().unwrap_or(Path::new(""));
    let mut complaints = Vec::new();
    for (number, line) in prose(text) {
        let mut parts = line.split("](");
        let mut before = parts.next().unwrap_or_default();
        for part in parts {
            let (target, after) = part.split_once(')').unwrap_or((part, ""));
            let begin = [". ", "; ", ": "].iter().filter_map(|end| before.rfind(end)).max();
            let sentence = &before[begin.unwrap_or(0)..];
            let file = tree.root.join(folder).join(target);
            if file.extension().is_some_and(|extension| extension != "md") {
                let source = std::fs::read_to_string(&file).unwrap_or_default();
                let names = sentence.split('`').skip(1).step_by(2).filter(|name| is_a_name(name));
                let stale = names.filter(|name| !name.split("::").all(|word| source.contains(word)));
                complaints.extend(stale.map(|name| format!("{path}:{number}: {target} does not contain `{name}`")));
            }
            before = after;
        }
    }
    complaints
}

fn is_a_name(code: &str) -> bool {
    code.replace("::", "").chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '!'))
}

/// Finds filters that match no test, because nextest accepts such filters.
pub fn dead_filters(tree: &Tree, list: &str) -> Vec<String> {
    let mut dead = Vec::new();
    for line in list.lines().filter(|line| !line.starts_with('#')) {
        let (filter, paths) = line.split_once(' ').unwrap_or((line, ""));
        dead.extend(paths.split_whitespace().filter(|path| !tree.root.join(path).exists()).map(String::from));
        let names = filter.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let is_known =
            |name: &str| tree.texts().any(|(path, text)| path.ends_with(".rs") && text.contains(&format!(" {name}")));
        dead.extend(names.filter(|name| !name.is_empty() && !is_known(name)).map(String::from));
    }
    dead
}

#[test]
fn a_filter_that_names_no_test_is_found() {
    let tree = Tree::load();
    assert_eq!(dead_filters(&tree, concat!("test(clients::", "no_such", "::) python nowhere")), ["nowhere", "no_such"]);
}

#[test]
fn links_are_found_outside_code_and_anchors_follow_headings() {
    let text = "# A b: `c`!\n[x](y.md) `[no](z.md)` [`q`](r.md#s) [w](https://example.org)\n```\n[no](z.md)\n```\n[d]: e.md\n# A b: `c`!";
    assert_eq!(links(text), [(2, "y.md"), (2, "r.md#s"), (6, "e.md")]);
    assert_eq!(anchors(text), ["a-b-c", "a-b-c-1"]);
}

#[test]
fn a_dead_link_is_found() {
    let tree = Tree::load();
    assert_eq!(dead_links(&tree, "README.md", "[a](tests/tests/tidy.rs) [b](tests/no-such-file)").len(), 1);
}

#[test]
fn a_name_that_its_file_does_not_contain_is_found() {
    let text =
        "Add it to `Tree::load` of [source](source.rs). Its `Nothing` is in `Tree` and `gone` of [it](source.rs).";
    let complaints = stale_names(&Tree::load(), "tests/tests/tidy/page.md", text);
    assert_eq!(complaints.len(), 2, "{complaints:?}");
    assert!(complaints[0].ends_with("`Nothing`") && complaints[1].ends_with("`gone`"), "{complaints:?}");
}

#[test]
fn a_pointer_to_a_missing_page_or_heading_is_found() {
    assert_eq!(
        pointers("see docs/a.md#b-c, and docs/d.md; not ../../docs/e.md"),
        [("docs/a.md", "b-c"), ("docs/d.md", "")]
    );
    let tree = Tree::load();
    let found = |path: &str, text: &str| dead_pointers(&tree, path, text).len();
    assert_eq!(
        found("cli/src/a.rs", "let a = \"docs/reference/sandbox-levels.md#requirements\"; // docs/no-such-page.md"),
        1
    );
    let unnamed =
        "let a = \"docs/reference/sandbox-levels.md says more\";\n// docs/reference/sandbox-levels.md says more";
    assert_eq!(found("cli/src/a.rs", unnamed), 1);
    assert_eq!(
        found("a.yaml", "runbook_url: docs/operate/runbooks.md#tickfleetnosuchalert\nmore: docs/operate/runbooks.md"),
        1
    );
}

#[test]
fn an_unlisted_page_is_found() {
    let contents = "- [A](../a.md)\n- [B](../../b/README.md)";
    for listed in ["docs/a.md", "b/README.md", "docs/adr/0001-x.md", "helm/tickfleet/README.md"] {
        assert_eq!(unlisted(contents, listed), None);
    }
    assert!(unlisted(contents, "docs/c.md").is_some());
    assert!(unlisted(contents, "docs/adr/README.md").is_some());
}

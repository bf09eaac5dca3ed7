//! Rules that no compiler checks. Each rule is a function over text. A bad sample next to it detects a rule that no
//! longer finds anything.

mod circles;
mod docs;
mod layers;
mod source;
mod wording;

use source::{Source, Tree};

/// Fails with all complaints at once, so that one run shows everything.
fn assert_tidy(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} complaints:\n  {}", complaints.len(), complaints.join("\n  "));
}

fn in_rust(rule: impl Fn(&Source) -> Vec<String>) -> Vec<String> {
    Tree::load().rust().flat_map(rule).collect()
}

#[test]
fn crates_depend_downwards_only() {
    assert_tidy(Tree::load().manifests().flat_map(|(name, text)| layers::manifest(name, text)).collect());
}

#[test]
fn no_files_import_each_other_in_a_loop() {
    let tree = Tree::load();
    assert_tidy(circles::complaints(&tree.rust().collect::<Vec<_>>()));
}

#[test]
fn the_pure_crates_know_no_redis_no_runtime_no_clock_and_no_chance() {
    assert_tidy(in_rust(layers::purity));
}

#[test]
fn redis_and_backoff_are_named_only_where_they_belong() {
    assert_tidy(in_rust(layers::confined));
    let retriers: Vec<_> = Tree::load().rust().filter(|s| layers::names_backoff(s)).map(|s| s.path.clone()).collect();
    assert!(retriers.len() <= 2, "`backoff` is for two files, but {retriers:?} name it");
}

#[test]
fn every_metric_is_changed_by_some_code() {
    let tree = Tree::load();
    assert_tidy(layers::uncalled_metrics(&tree.rust().collect::<Vec<_>>()));
}

#[test]
fn one_script_is_all_there_is() {
    let scripts: Vec<String> = Tree::load().with_extension("lua").map(|(path, _)| path.to_owned()).collect();
    assert_eq!(scripts, ["shared/store/src/seam/redis/commit.lua"]);
}

#[test]
fn no_text_names_a_machine_or_a_registry() {
    assert_tidy(Tree::load().texts().flat_map(|(path, text)| wording::machines(path, text)).collect());
}

#[test]
fn every_lint_exception_carries_its_reason() {
    assert_tidy(in_rust(wording::unreasoned_exceptions));
}

#[test]
fn every_sleep_in_a_test_has_a_reason() {
    assert_tidy(in_rust(wording::unreasoned_sleeps));
}

#[test]
fn every_relative_link_of_the_documentation_leads_somewhere() {
    let tree = Tree::load();
    assert_tidy(tree.with_extension("md").flat_map(|(path, text)| docs::dead_links(&tree, path, text)).collect());
}

#[test]
fn the_reference_pages_are_current() {
    let script = Tree::load().root.join("docs/reference/generate.py");
    let done = std::process::Command::new("python3").arg("-B").arg(script).arg("--check").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn every_page_that_the_program_or_the_chart_names_exists() {
    let tree = Tree::load();
    assert_tidy(tree.texts().flat_map(|(path, text)| docs::dead_pointers(&tree, path, text)).collect());
}

#[test]
fn every_long_test_and_every_path_that_it_judges_exists() {
    let tree = Tree::load();
    let list = std::fs::read_to_string(tree.root.join(".ci/long-tests")).unwrap();
    let complaints = docs::dead_filters(&tree, &list);
    assert_tidy(complaints);
}

#[test]
fn every_decision_is_in_the_index() {
    let tree = Tree::load();
    let index = std::fs::read_to_string(tree.root.join("docs/adr/README.md")).unwrap_or_default();
    let records = tree.with_extension("md").filter_map(|(path, _)| path.strip_prefix("docs/adr/"));
    assert_tidy(
        records.filter(|r| *r != "README.md" && !index.contains(&format!("({r})"))).map(String::from).collect(),
    );
}

#[test]
fn every_page_is_in_the_contents_of_the_site() {
    let tree = Tree::load();
    let contents = std::fs::read_to_string(tree.root.join("docs/site/SUMMARY.md")).unwrap_or_default();
    assert_tidy(tree.with_extension("md").filter_map(|(path, _)| docs::unlisted(&contents, path)).collect());
}

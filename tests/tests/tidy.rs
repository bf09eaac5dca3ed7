//! Rules that no compiler checks. Each rule has a test with a bad sample.

mod circles;
mod docs;
mod fan_out;
mod layers;
mod lists;
mod source;
mod wording;

use source::{Source, Tree};

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
fn no_file_imports_or_offers_too_much() {
    assert_tidy(in_rust(fan_out::complaints));
}

#[test]
fn pure_crates_use_no_redis_runtime_clock_or_randomness() {
    assert_tidy(in_rust(layers::purity));
}

#[test]
fn only_permitted_files_name_redis_and_backoff() {
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
fn every_decision_is_used_and_tested() {
    let tree = Tree::load();
    assert_tidy(layers::unused_decisions(&tree.rust().collect::<Vec<_>>()));
}

#[test]
fn the_architecture_links_to_every_crate() {
    let tree = Tree::load();
    let (_, text) = tree.texts().find(|(path, _)| *path == "ARCHITECTURE.md").expect("the page");
    assert_tidy(layers::undescribed_crates(text));
}

#[test]
fn the_commit_script_is_the_only_lua_script() {
    let scripts: Vec<String> = Tree::load().with_extension("lua").map(|(path, _)| path.to_owned()).collect();
    assert_eq!(scripts, ["shared/store/src/seam/redis/commit.lua"]);
}

#[test]
fn no_text_contains_machine_paths_or_registry_hosts() {
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
fn every_relative_documentation_link_resolves() {
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
fn every_documentation_page_named_in_the_project_exists() {
    let tree = Tree::load();
    assert_tidy(tree.texts().flat_map(|(path, text)| docs::dead_pointers(&tree, path, text)).collect());
}

#[test]
fn every_filter_and_path_in_the_long_test_list_exists() {
    let tree = Tree::load();
    let list = std::fs::read_to_string(tree.root.join(".ci/long-tests")).unwrap();
    let complaints = docs::dead_filters(&tree, &list);
    assert_tidy(complaints);
}

#[test]
fn every_recipe_names_what_its_files_contain() {
    let tree = Tree::load();
    let recipes = tree.with_extension("md").filter(|(path, _)| path.starts_with("docs/contribute/"));
    assert_tidy(recipes.flat_map(|(path, text)| docs::stale_names(&tree, path, text)).collect());
}

#[test]
fn every_decision_record_is_in_the_index() {
    let tree = Tree::load();
    let index = std::fs::read_to_string(tree.root.join("docs/adr/README.md")).unwrap_or_default();
    let records = tree.with_extension("md").filter_map(|(path, _)| path.strip_prefix("docs/adr/"));
    assert_tidy(
        records.filter(|r| *r != "README.md" && !index.contains(&format!("({r})"))).map(String::from).collect(),
    );
}

#[test]
fn every_page_is_listed_in_the_site_contents() {
    let tree = Tree::load();
    let contents = std::fs::read_to_string(tree.root.join("docs/site/SUMMARY.md")).unwrap_or_default();
    assert_tidy(tree.with_extension("md").filter_map(|(path, _)| docs::unlisted(&contents, path)).collect());
}

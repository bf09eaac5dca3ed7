//! Runs the JSON-Schema-Test-Suite, drafts 7 and 2020-12, through the code that validates arguments of tools.

mod remainder;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_tests::fetched::FetchedData;
use tickfleet_tools::{ArgumentCheck, ValueCheck};

use remainder::{OTHER_VERDICT, REFUSED};

const SUITE: FetchedData = FetchedData {
    script: "schema_suite.py",
    folder: "schema-suite-4.23.0",
    what: "the source package of PyPI's jsonschema 4.23.0 (0.3 MB)",
    skip_variable: "TICKFLEET_SKIP_SCHEMA_SUITE",
};

const DRAFTS: [(&str, &str); 2] = [
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

#[derive(Deserialize)]
struct Group {
    description: String,
    schema: Value,
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    description: String,
    data: Box<RawValue>,
    valid: bool,
}

/// Names in the results are `draft/file: group` and `draft/file: group: test`.
#[derive(Default)]
struct Tally {
    groups: usize,
    tests: usize,
    agreed: usize,
    refused: BTreeMap<String, (usize, String)>,
    other_verdict: BTreeSet<String>,
}

#[test]
fn every_suite_test_agrees_except_the_listed_exceptions() {
    let Some(dir) = SUITE.unless_skipped().unwrap() else { return };
    let mut all = Tally::default();
    for (draft, uri) in DRAFTS {
        let mut tally = Tally::default();
        for file in files(&dir.join(draft)) {
            let name = file.strip_prefix(&dir).unwrap().with_extension("").display().to_string();
            let groups: Vec<Group> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            groups.into_iter().for_each(|group| judge(&mut tally, &name, uri, group));
        }
        let refused: usize = tally.refused.values().map(|(tests, _)| tests).sum();
        eprintln!(
            "{draft}: {} groups, {} tests; {} agree, {refused} in {} groups are refused at registration, {} differ",
            tally.groups,
            tally.tests,
            tally.agreed,
            tally.refused.len(),
            tally.other_verdict.len()
        );
        assert_eq!(tally.agreed + refused + tally.other_verdict.len(), tally.tests);
        all.refused.extend(tally.refused);
        all.other_verdict.extend(tally.other_verdict);
    }
    for (group, (_, why)) in &all.refused {
        eprintln!("refused: {group}: {why}");
    }
    for test in &all.other_verdict {
        eprintln!("other verdict: {test}");
    }
    let refused: Vec<&str> = all.refused.keys().map(String::as_str).collect();
    assert_eq!(against(&refused, REFUSED), Vec::<String>::new(), "refused schemas");
    let differ: Vec<&str> = all.other_verdict.iter().map(String::as_str).collect();
    assert_eq!(against(&differ, OTHER_VERDICT), Vec::<String>::new(), "other verdicts");
}

fn judge(tally: &mut Tally, file: &str, uri: &str, mut group: Group) {
    // The suite names the draft by the folder, but a tool names it in the schema. So this adds the draft to the schema.
    if let Some(members) = group.schema.as_object_mut() {
        members.entry("$schema").or_insert_with(|| uri.into());
    }
    let name = format!("{file}: {}", group.description);
    tally.groups += 1;
    tally.tests += group.tests.len();
    let check = match ValueCheck::compile(&group.schema) {
        Ok(check) => check,
        Err(error) => {
            let before = tally.refused.insert(name, (group.tests.len(), error.to_string()));
            assert!(before.is_none(), "two groups of one name");
            return;
        }
    };
    let arguments = ArgumentCheck::compile(&group.schema).ok();
    for test in &group.tests {
        let text = test.data.get();
        let valid = check.check(text).is_ok();
        if valid == test.valid {
            tally.agreed += 1;
        } else {
            tally.other_verdict.insert(format!("{name}: {}", test.description));
        }
        if let Some(arguments) = arguments.as_ref().filter(|_| text.trim_start().starts_with('{')) {
            assert_eq!(arguments.check(text).is_ok(), valid, "{name}: {}: as arguments", test.description);
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "json") {
            found.push(path);
        }
    }
    found
}

/// A row covers all names that begin with the row.
fn against(found: &[&str], list: &[(&str, &str)]) -> Vec<String> {
    let unlisted = found.iter().filter(|name| !list.iter().any(|(row, _)| name.starts_with(row)));
    let unneeded = list.iter().filter(|(row, _)| !found.iter().any(|name| name.starts_with(row)));
    let unlisted = unlisted.map(|name| format!("not listed: {name}"));
    unlisted.chain(unneeded.map(|(row, _)| format!("listed, and not needed: {row}"))).collect()
}

#[test]
fn unlisted_and_unneeded_exceptions_are_reported() {
    let list = [("a: b", "a reason"), ("c", "another")];
    assert!(against(&["a: b: one", "a: b: two", "c"], &list).is_empty());
    assert_eq!(against(&["a: b", "d"], &list), ["not listed: d", "listed, and not needed: c"]);
    let schema = json!({"$schema": DRAFTS[0].1, "items": [{"type": "string"}]});
    assert!(ValueCheck::compile(&schema).unwrap().check("[1]").is_err(), "draft 7 is honoured");
}

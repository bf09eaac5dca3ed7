//! Lists of words in other languages and in pages, which no compiler compares with the enums of the fleet.

use std::path::Path;

use tickfleet_model::limit::LimitKey;
use tickfleet_model::outcome::{CallStage, Outcome, OutcomeSeverity};
use tickfleet_model::rejection::{RejectionCause, RejectionCode};

use super::source::Tree;

const REWRITE: &str = "TICKFLEET_WRITE_DOCS=1 cargo nextest run --workspace -E 'test(tidy::lists)'";

/// A list of words in a file: the text between two others.
struct WordList {
    path: &'static str,
    before: &'static str,
    after: &'static str,
    between: &'static str,
    words: Vec<&'static str>,
}

impl WordList {
    /// Returns a complaint if the list differs. Rewrites the list if the environment says so.
    #[allow(clippy::disallowed_methods, reason = "a knob of this test, not of the product")]
    fn check(&self, root: &Path) -> Option<String> {
        let path = root.join(self.path);
        let text = std::fs::read_to_string(&path).expect("a file with a list");
        let (start, rest) = text.split_once(self.before).unwrap_or_else(|| panic!("{}: no {}", self.path, self.before));
        let (list, end) = rest.split_once(self.after).expect("the end of the list");
        let expected = self.words.join(self.between);
        if list == expected {
            return None;
        }
        if std::env::var_os("TICKFLEET_WRITE_DOCS").is_some() {
            std::fs::write(&path, [start, self.before, &expected, self.after, end].concat()).expect("a file to write");
            return None;
        }
        Some(format!("{}: {}{expected}{} is expected; run {REWRITE}", self.path, self.before, self.after))
    }
}

fn outcomes(is_listed: impl Fn(Outcome) -> bool) -> Vec<&'static str> {
    Outcome::ALL.into_iter().filter(|outcome| is_listed(*outcome)).map(Outcome::as_str).collect()
}

fn assert_current<const N: usize>(lists: [WordList; N]) {
    let root = Tree::load().root;
    super::assert_tidy(lists.iter().filter_map(|list| list.check(&root)).collect());
}

#[test]
fn each_list_of_outcomes_is_current() {
    let never_ran = || outcomes(|outcome| outcome.stage() != CallStage::Run);
    let failed = || outcomes(Outcome::has_failed_running);
    // A permanent failure is usually the agent's mistake, so it does not count against the tool.
    let of_tool = || outcomes(|outcome| outcome.has_failed_running() && outcome != Outcome::Permanent);
    let dashboards =
        |before, words| WordList { path: "helm/dashboards/outcomes.py", before, after: "\"\n", between: "|", words };
    let rules = |path| WordList { path, before: "{outcome=~\"", after: "\"}", between: "|", words: of_tool() };
    assert_current([
        WordList {
            path: "python/src/tickfleet/client/_governed.py",
            before: "_NEVER_RAN = frozenset(\n    \"",
            after: "\".split()",
            between: " ",
            words: never_ran(),
        },
        WordList {
            path: "typescript/src/governed.ts",
            before: "NEVER_RAN = new Set([\n  \"",
            after: "\",\n]);",
            between: "\",\n  \"",
            words: never_ran(),
        },
        WordList {
            path: "cli/gateway/src/console/format.js",
            before: "FAILED = [\"",
            after: "\"];",
            between: "\", \"",
            words: outcomes(|outcome| outcome.has_failed_running() && outcome.severity() == OutcomeSeverity::Bad),
        },
        dashboards("REFUSED = \"", outcomes(|outcome| outcome.stage() == CallStage::Guards)),
        dashboards("NOT_REACHED = \"", outcomes(|outcome| outcome.stage() == CallStage::Admission)),
        dashboards("\nFAILED = \"", failed()),
        dashboards("TOOL_FAILED = \"", of_tool()),
        rules("helm/tickfleet/rules/recording.yaml"),
        rules("helm/tickfleet/rules/alerts.yaml"),
    ]);
}

#[test]
fn rules_and_dashboards_have_no_other_lists_of_outcomes() {
    let tree = Tree::load();
    let texts = tree.texts().filter(|(path, _)| path.starts_with("helm/") && !path.ends_with(".json"));
    let lists = texts.flat_map(|(path, text)| text.matches("outcome=~").map(move |_| path));
    let expected = ["fleet.py", "governance.py", "governance.py", "governance.py", "reliability.py", "reliability.py"];
    let expected = expected.map(|name| format!("helm/dashboards/{name}"));
    let rules = ["alerts.yaml", "recording.yaml"].map(|name| format!("helm/tickfleet/rules/{name}"));
    assert_eq!(lists.collect::<Vec<_>>(), expected.iter().chain(&rules).collect::<Vec<_>>());
}

#[test]
fn each_list_of_passing_rejection_codes_is_current() {
    let codes = RejectionCode::ALL.into_iter().filter(|code| code.cause() == RejectionCause::Load);
    // Clients give this code to a message that Redis had no memory for.
    let words: Vec<&str> = codes.map(RejectionCode::as_str).chain(["refused"]).collect();
    let list = |path, before, after| WordList { path, before, after, between: "\", \"", words: words.clone() };
    assert_current([
        list("python/src/tickfleet/client/_errors.py", "_PASSING = frozenset({\"", "\"})"),
        list("typescript/src/errors.ts", "PASSING = new Set([\"", "\"]);"),
    ]);
}

#[test]
fn each_outcome_has_a_run_that_ends_with_it() {
    let root = Tree::load().root;
    let runs = ["calls/outcomes.rs", "faults/bad_input.rs"].map(|path| root.join("tests/tests").join(path));
    let runs: String = runs.iter().map(|path| std::fs::read_to_string(path).expect("the runs")).collect();
    let is_check = |statement: &&str| statement.contains("agree(") || statement.contains("[\"outcome\"]");
    let expected: String = runs.split(';').filter(is_check).collect();
    let has_run = |outcome: &Outcome| expected.contains(&format!("\"{}\"", outcome.as_str()));
    let missing = Outcome::ALL.into_iter().filter(|outcome| !has_run(outcome));
    super::assert_tidy(missing.map(|outcome| format!("no run ends as {}", outcome.as_str())).collect());
}

#[test]
fn the_page_of_the_http_api_names_every_reason_to_wait() {
    let root = Tree::load().root;
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect("a file with a list");
    let source = read("shared/client/src/turn_status.rs");
    let variants = source.split("pub enum TurnWaitReason {\n").nth(1).and_then(|rest| rest.split("\n}").next());
    let words: Vec<String> = variants.expect("the enum").lines().filter_map(variant).collect();
    assert_eq!(words, in_backticks(&read("docs/build/http.md"), "the next call waits; `for` is ", ", `until_ms`"));
}

/// Returns the word of a variant, if the line declares a variant.
fn variant(line: &str) -> Option<String> {
    let name: String = line.strip_prefix("    ")?.chars().take_while(char::is_ascii_alphanumeric).collect();
    let mut word = String::new();
    for letter in name.chars() {
        let separator = if letter.is_ascii_uppercase() && !word.is_empty() { "_" } else { "" };
        word.extend(separator.chars().chain([letter.to_ascii_lowercase()]));
    }
    name.starts_with(|letter: char| letter.is_ascii_uppercase()).then_some(word)
}

fn in_backticks(text: &str, before: &str, after: &str) -> Vec<String> {
    let list = text.split(before).nth(1).and_then(|rest| rest.split(after).next()).expect("a list");
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_pages_of_limits_and_budgets_name_their_keys() {
    let tree = Tree::load();
    let read = |page: &str| std::fs::read_to_string(tree.root.join("docs/govern").join(page)).expect("a page");
    let words = |is_listed: fn(&LimitKey) -> bool, format: fn(&str) -> String| -> Vec<String> {
        LimitKey::NAMED.iter().filter(|(_, key)| is_listed(key)).map(|(word, _)| format(word)).collect()
    };
    let of_models = in_backticks(&read("model-budgets.md"), "`per` takes ", ". ");
    assert_eq!(of_models, words(|key| !key.is_of_calls(), str::to_owned));
    let of_fleet = in_backticks(&read("limits.md"), "Without `per`, and with ", ", a counter");
    assert_eq!(of_fleet, words(|key| !key.is_of_tenant(), |word| format!("per: [{word}]")));
}

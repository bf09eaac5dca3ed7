//! `facts` in a row of `permissions.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tickfleet_model::policy::{
    FACT_KEPT_MS_DEFAULT, FACT_KEPT_MS_MAX, Fact, FactChange, FactCondition, FactRow, FactScope, RuleMode, ToolGrant,
};
use tickfleet_model::{Outcome, limits, suggest};

use crate::document::errors::Errors;
use crate::document::reader::Cursor;
use crate::document::tree::Node;

const SCOPES: [(&str, FactScope); 3] =
    [("session", FactScope::Session), ("task", FactScope::Task), ("agent", FactScope::Agent)];
pub(super) fn row(cursor: &Cursor<'_>) -> FactRow {
    let mut s = cursor.section();
    let row = FactRow {
        sets: s.optional("sets").map(|c| list(&c, change)).unwrap_or_default(),
        clears: s.optional("clears").map(|c| list(&c, change)).unwrap_or_default(),
        require: s.optional("require").map(|c| list(&c, condition)).unwrap_or_default(),
        forbid: s.optional("forbid").map(|c| list(&c, condition)).unwrap_or_default(),
        of: s.optional("of").and_then(|c| c.choice(&SCOPES)).unwrap_or_default(),
    };
    s.close();
    row
}

fn list<T>(cursor: &Cursor<'_>, read: fn(&Cursor<'_>) -> Option<T>) -> Vec<T> {
    let items = cursor.items();
    if items.is_empty() || items.len() > limits::FACTS_PER_TOOL_MAX {
        cursor.refuse(format!("1 to {} facts", limits::FACTS_PER_TOOL_MAX));
    }
    items.iter().filter_map(read).collect()
}

fn is_section(cursor: &Cursor<'_>) -> bool {
    matches!(cursor.node.to_json(), serde_json::Value::Object(_))
}

fn fact(cursor: &Cursor<'_>) -> Option<Fact> {
    let fact = Fact::parse(cursor.text()?);
    if fact.is_none() {
        cursor.refuse(Fact::EXPECTED);
    }
    fact
}

fn change(cursor: &Cursor<'_>) -> Option<FactChange> {
    let of = |fact, on, kept_ms| FactChange { fact, on, kept_ms };
    if !is_section(cursor) {
        return Some(of(fact(cursor)?, [Outcome::Ok].into(), FACT_KEPT_MS_DEFAULT));
    }
    let mut s = cursor.section();
    let named = s.required("fact").and_then(|c| fact(&c));
    let on = s.optional("on").map_or_else(|| [Outcome::Ok].into(), |c| outcomes(&c));
    let most = Duration::from_millis(FACT_KEPT_MS_MAX.unsigned_abs());
    let kept = s.optional("for").and_then(|c| c.duration(Duration::from_secs(1), most));
    s.close();
    let kept_ms = kept.and_then(|kept| i64::try_from(kept.as_millis()).ok()).unwrap_or(FACT_KEPT_MS_DEFAULT);
    Some(of(named?, on, kept_ms))
}

fn outcomes(cursor: &Cursor<'_>) -> BTreeSet<Outcome> {
    let words = Outcome::ALL.into_iter().filter(|outcome| outcome.changes_facts());
    let words: Vec<_> = words.map(|outcome| (outcome.as_str(), outcome)).collect();
    let items = cursor.items();
    if items.is_empty() {
        cursor.refuse("at least one outcome");
    }
    items.iter().filter_map(|item| item.choice(&words)).collect()
}

fn condition(cursor: &Cursor<'_>) -> Option<FactCondition> {
    if !is_section(cursor) {
        return Some(FactCondition { fact: fact(cursor)?, mode: RuleMode::Enforce, message: None });
    }
    let mut s = cursor.section();
    let named = s.required("fact").and_then(|c| fact(&c));
    let mode = s.optional("mode");
    let mode = mode.and_then(|c| c.choice(&[("enforce", RuleMode::Enforce), ("shadow", RuleMode::Shadow)]));
    let message = s.optional("message").and_then(|c| c.some_text());
    if message.as_ref().is_some_and(|message| message.len() > limits::ERROR_BYTES_MAX / 2) {
        cursor.refuse(format!("a message of {} bytes at most", limits::ERROR_BYTES_MAX / 2));
    }
    s.close();
    Some(FactCondition { fact: named?, mode: mode.unwrap_or_default(), message })
}

/// A fact that no row sets is an error. Otherwise, a misspelled requirement would stop every call, and a misspelled
/// prohibition would stop none.
pub(super) fn check(tree: &Node, matrix: &BTreeMap<String, ToolGrant>, errors: &Errors) {
    let shape = |fact: &Fact| (fact.name.clone(), fact.arguments.len());
    let set: BTreeSet<_> = matrix.values().flat_map(|row| &row.facts.sets).map(|set| shape(&set.fact)).collect();
    let names = || set.iter().map(|(name, _)| name.as_str());
    for (tool, row) in matrix {
        let cleared = row.facts.clears.iter().map(|change| ("clears", &change.fact));
        let asked = |which, list: &'static str| conditions(row, which).map(move |fact| (list, fact));
        for (list, fact) in asked(true, "require").chain(asked(false, "forbid")).chain(cleared) {
            if set.contains(&shape(fact)) {
                continue;
            }
            let path = format!("permissions.{tool}.facts.{list}");
            let at = tree.get("permissions").and_then(|rows| rows.get(tool)).unwrap_or(tree);
            let expected =
                format!("a fact that calls of some tool set, with as many arguments: {}", suggest::list(names()));
            let meant = suggest::closest(&fact.name, names()).filter(|meant| *meant != fact.name);
            errors.suggest(&at.place, &path, format!("the fact {fact}, which no row sets"), expected, meant);
        }
    }
}

fn conditions(row: &ToolGrant, required: bool) -> impl Iterator<Item = &Fact> {
    let list = if required { &row.facts.require } else { &row.facts.forbid };
    list.iter().map(|condition| &condition.fact)
}

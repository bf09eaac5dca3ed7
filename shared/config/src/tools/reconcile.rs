//! `reconcile` of a tool: another tool finds out whether a call with unknown outcome took effect.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tickfleet_model::tool::{
    RECONCILE_GRACE_MS_DEFAULT, RECONCILE_GRACE_MS_MAX, RECONCILE_TRIES_DEFAULT, RECONCILE_TRIES_MAX, Reconcile,
    ReconcileArgument,
};
use tickfleet_model::{Effect, suggest};

use crate::document::errors::Errors;
use crate::document::reader::Cursor;
use crate::document::tree::Node;
use crate::tools::{ToolDef, ToolsFile};

pub(crate) fn read(cursor: &Cursor<'_>, effect: Option<Effect>) -> Option<Reconcile> {
    if effect.is_some_and(|effect| effect != Effect::Once) {
        cursor.refuse("no reconcile, or `effect: once`: other tools have no unknown outcomes");
    }
    let mut s = cursor.section();
    let tool = s.required("tool").and_then(|c| c.some_text());
    let arguments = s.optional("arguments").map(|c| arguments(&c)).unwrap_or_default();
    let happened = s.required("happened").and_then(|c| pointer(&c));
    let output = s.optional("output").and_then(|c| pointer(&c));
    let tries = s.optional("tries").and_then(|c| c.integer(1, RECONCILE_TRIES_MAX.into()));
    let most = Duration::from_millis(RECONCILE_GRACE_MS_MAX.unsigned_abs());
    let grace = s.optional("grace").and_then(|c| c.duration(Duration::from_secs(1), most));
    s.close();
    let grace_ms = grace.and_then(|grace| i64::try_from(grace.as_millis()).ok()).unwrap_or(RECONCILE_GRACE_MS_DEFAULT);
    let tries = tries.unwrap_or(RECONCILE_TRIES_DEFAULT);
    Some(Reconcile { tool: tool?, arguments, happened: happened?, output, tries, grace_ms })
}

fn pointer(cursor: &Cursor<'_>) -> Option<String> {
    let pointer = cursor.some_text()?;
    if !pointer.starts_with('/') {
        cursor.refuse("a JSON pointer into what the tool returns, such as /found");
        return None;
    }
    Some(pointer)
}

fn arguments(cursor: &Cursor<'_>) -> BTreeMap<String, ReconcileArgument> {
    let one = |(name, _, value): (&str, _, Cursor<'_>)| {
        let argument = ReconcileArgument::declared(value.node.to_json());
        if argument.is_none() {
            value.refuse("$idempotency_key, $call, a JSON pointer to an argument of the call, or a value");
        }
        Some((name.to_owned(), argument?))
    };
    cursor.members().into_iter().filter_map(one).collect()
}

/// The default effect counts only if the declaration defines how the tool runs.
fn has_effect(tool: &ToolDef) -> bool {
    tool.effect.map_or(tool.runner.is_some(), |effect| effect != Effect::Read)
}

/// `known` is `None` if further tools may exist.
pub(crate) fn check(file: Option<&ToolsFile>, known: Option<&BTreeSet<String>>, tree: Option<&Node>, errors: &Errors) {
    let Some((file, tree)) = file.zip(tree) else { return };
    for (name, def) in &file.tools {
        let Some(by) = def.reconcile.as_ref().map(|reconcile| &reconcile.tool) else { continue };
        let at = tree.get("tools").and_then(|all| all.get(name)).and_then(|tool| tool.get("reconcile")).unwrap_or(tree);
        let path = format!("tools.{name}.reconcile.tool");
        if let Some(known) = known.filter(|known| !known.contains(by)) {
            let names = || known.iter().map(String::as_str);
            let expected = format!("a tool of tools.yaml or mcp.yaml, or a built-in one: {}", suggest::list(names()));
            let found = format!("the unknown tool `{by}`");
            errors.suggest(&at.place, &path, found, expected, suggest::closest(by, names()));
        } else if by == name || file.tools.get(by).is_some_and(has_effect) {
            errors.push(&at.place, &path, format!("`{by}`"), "another tool, with `effect: read`");
        }
    }
}

//! `limits.yaml`: further limits on calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::document::errors::Errors;
use crate::document::reader::{Cursor, Section};
use crate::document::tree::Node;
use crate::document::units::parse_duration;
use crate::mcp::McpFile;
use crate::policy::{KnownNames, names};
use crate::settings::Settings;
use crate::tools::ToolsFile;
use crate::tools::read::EFFECTS;
use tickfleet_model::limit::{
    Limit, LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach, amount, fits, parse_percent,
};
use tickfleet_model::policy::Permissions;
use tickfleet_model::tool::{KnownTools, ToolTraits};
use tickfleet_model::{Effect, limits, suggest};
use tickfleet_protocol::NameMap;

const KEYS_MAX_DEFAULT: u64 = 100_000;

pub(super) fn read(tree: &Node, known: &KnownNames, settings: Option<&Settings>, errors: &Errors) -> Vec<Limit> {
    let shards = settings.map(|settings| settings.redis.shards);
    let mut root = Section::open(tree, "", errors);
    let members = root.required("limits").map(|c| c.members()).unwrap_or_default();
    if let Some((_, place, cursor)) = members.get(limits::LIMITS_MAX) {
        let found = format!("{} limits", members.len());
        errors.push(place, &cursor.path, found, format!("{} limits at most", limits::LIMITS_MAX));
    }
    let read = members.into_iter().filter_map(|(name, place, cursor)| {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !name.chars().all(plain) || name.len() > limits::NAME_BYTES_MAX {
            let found = format!("the limit name {name:?}");
            errors.push(place, &cursor.path, found, "a name of a-z, 0-9 and `_`, of 64 at most");
        }
        let limit = limit(name, &cursor, known)?;
        if shards.is_some_and(|shards| limit.share(shards - 1, shards) == 0 && limit.bound.fixed_max() > Some(0)) {
            let found = format!("a limit of the whole fleet that allows {limit}");
            errors.push(place, &cursor.path, found, "at least one for each shard, which share it (redis.shards)");
        }
        Some(limit)
    });
    let read = read.collect();
    root.close();
    read
}

const FAIR_SHARE: &str = "fair_share";
const TOOL_SLOTS: &str = "tool_slots";

/// Only one limit can share slots among tenants, so `concurrent: share` in the file replaces [`FAIR_SHARE`].
pub(super) fn with_built_in(mut limits: Vec<Limit>, settings: Option<&Settings>) -> Vec<Limit> {
    let Some(fairness) = settings.map(|settings| &settings.fairness) else { return limits };
    let is_share = |limit: &Limit| limit.name == FAIR_SHARE || matches!(limit.bound, LimitBound::Share(_));
    if fairness.tenants && !limits.iter().any(is_share) {
        limits.push(of_slots(FAIR_SHARE, LimitKey::Tenant, LimitBound::Share(1)));
    }
    let percent = fairness.tool_slots_percent;
    if percent < 100 && !limits.iter().any(|limit| limit.name == TOOL_SLOTS) {
        limits.push(of_slots(TOOL_SLOTS, LimitKey::Tool, LimitBound::Part(percent)));
    }
    limits
}

fn of_slots(name: &str, per: LimitKey, bound: LimitBound) -> Limit {
    Limit {
        name: name.to_owned(),
        matches: LimitMatch::default(),
        per: BTreeSet::from([per]),
        bound,
        every: LimitWindow::Concurrency,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: KEYS_MAX_DEFAULT,
    }
}

fn limit(name: &str, cursor: &Cursor<'_>, known: &KnownNames) -> Option<Limit> {
    let mut s = cursor.section();
    let matches = s.optional("match").map(|c| matches(&c, known)).unwrap_or_default();
    let per = s.optional("per").map(|c| per(&c)).unwrap_or_default();
    let bound = bound(&mut s, cursor);
    if bound.as_ref().is_some_and(LimitBound::is_of_models) {
        of_models(&mut s, &per);
    }
    let is_held = s.optional("concurrent").is_some();
    // A concurrency limit never has more counters than there are running calls, so it needs no `keys_max`.
    let every = if is_held {
        for word in ["every", "keys_max", "window"] {
            if let Some(c) = s.optional(word) {
                c.refuse("nothing: a limit of `concurrent` calls has no windows; it counts running calls");
            }
        }
        Some(LimitWindow::Concurrency)
    } else {
        s.required("every").and_then(|c| every(&c))
    };
    let every = every.map(|every| windows(&mut s, every, bound.as_ref()));
    let on_reach_place = s.optional("on_reach");
    let on_reach =
        on_reach_place.as_ref().and_then(|c| c.choice(&[("wait", OnReach::Wait), ("reject", OnReach::Reject)]));
    let mode = s.optional("mode");
    let mode = mode.and_then(|c| c.choice(&[("enforce", LimitMode::Enforce), ("shadow", LimitMode::Shadow)]));
    let keys_max = s.optional("keys_max").and_then(|c| c.integer(1, i128::from(limits::LIMIT_KEYS_MAX)));
    s.close();
    let on_reach = on_reach.unwrap_or_default();
    let mode = mode.unwrap_or_default();
    if matches!(bound, Some(LimitBound::Share(_))) {
        if per != BTreeSet::from([LimitKey::Tenant]) {
            cursor.refuse("`per: [tenant]`, because tenants share the slots");
        }
        if let Some(place) = on_reach_place.filter(|_| on_reach == OnReach::Reject) {
            place.refuse("wait: a share without a free slot has one a moment later");
        }
    }
    let bound = bound?;
    let every = every?;
    let name = name.to_owned();
    let mut per = per;
    if every == LimitWindow::Task {
        per.insert(LimitKey::Task);
    }
    Some(Limit { name, matches, per, bound, every, on_reach, mode, keys_max: keys_max.unwrap_or(KEYS_MAX_DEFAULT) })
}

fn windows(s: &mut Section<'_>, every: LimitWindow, bound: Option<&LimitBound>) -> LimitWindow {
    let Some(place) = s.optional("window") else { return every };
    match (place.choice(&[("fixed", false), ("rolling", true)]), every, bound) {
        (Some(true), LimitWindow::Period(ms), Some(LimitBound::Calls(_) | LimitBound::Sum { .. }) | None) => {
            LimitWindow::Rolling(ms)
        }
        (Some(true), _, _) => {
            place.refuse("fixed: only `max` and `sum` with a length of time, such as `every: 1h`, can be rolling");
            every
        }
        _ => every,
    }
}

fn bound(s: &mut Section<'_>, cursor: &Cursor<'_>) -> Option<LimitBound> {
    let given = ["max", "concurrent", "sum", "tokens", "money"].map(|word| (word, s.optional(word)));
    let mut found = given.iter().filter_map(|(word, c)| Some((*word, c.as_ref()?)));
    let (Some((word, c)), None) = (found.next(), found.next()) else {
        cursor.refuse("one of `max`, `concurrent`, `sum`, `tokens` and `money`");
        return None;
    };
    match word {
        "max" => c.integer(0, i128::from(u32::MAX)).map(LimitBound::Calls),
        "concurrent" => places(c),
        "sum" => sum_of(c),
        "tokens" => c.integer(0, i128::from(amount::AMOUNT_MAX)).map(LimitBound::Tokens),
        _ => amount_of(c).map(LimitBound::Money),
    }
}

/// Rejects keys and filters about calls: a request to a model has no tool, no arguments and no tick.
fn of_models(s: &mut Section<'_>, per: &BTreeSet<LimitKey>) {
    if let (Some(place), Some(key)) = (s.optional("per"), per.iter().find(|key| key.is_of_calls())) {
        place.refuse(format!("no {key}: a limit of tokens or money counts requests to models, not calls"));
    }
    let Some(place) = s.optional("match") else { return };
    let mut wanted = place.section();
    for word in ["tools", "effects", "categories"] {
        if let Some(c) = wanted.optional(word) {
            c.refuse("nothing: a limit of tokens or money counts requests to models, not calls");
        }
    }
}

/// `2`, `25%` or `share`.
fn places(cursor: &Cursor<'_>) -> Option<LimitBound> {
    let json = cursor.node.to_json();
    let Some(text) = json.as_str() else {
        return cursor.integer(1, i128::from(u32::MAX)).map(LimitBound::Concurrent);
    };
    let of_slots = parse_percent(text).map(LimitBound::Part).or((text == "share").then_some(LimitBound::Share(1)));
    if of_slots.is_none() {
        cursor.refuse("a whole number from 1, a part of the slots from 1% to 100%, or share");
    }
    of_slots
}

fn matches(cursor: &Cursor<'_>, known: &KnownNames) -> LimitMatch {
    let mut s = cursor.section();
    let read = LimitMatch {
        tools: s.optional("tools").map(|c| patterns(&c, known.tools.as_ref(), "a tool")).unwrap_or_default(),
        effects: s.optional("effects").map(|c| effects(&c)).unwrap_or_default(),
        categories: s.optional("categories").map(|c| words(&c)).unwrap_or_default(),
        agents: s.optional("agents").map(|c| patterns(&c, known.agents.as_ref(), "an agent")).unwrap_or_default(),
        roles: s
            .optional("roles")
            .map(|c| names(&c, known.roles.as_ref(), "a role that an agent of agents.yaml has").into_iter().collect())
            .unwrap_or_default(),
        plans: s.optional("plans").map(|c| words(&c)).unwrap_or_default(),
    };
    s.close();
    read
}

fn words(cursor: &Cursor<'_>) -> Vec<String> {
    some(cursor, cursor.words().into_iter().collect())
}

/// An empty list is an error, because it would match everything.
fn some<T>(cursor: &Cursor<'_>, list: Vec<T>) -> Vec<T> {
    if cursor.items().is_empty() {
        cursor.refuse("at least one; omit the list to match all");
    }
    list
}

fn patterns(cursor: &Cursor<'_>, known: Option<&BTreeSet<String>>, what: &str) -> Vec<String> {
    let mut read = Vec::new();
    for item in cursor.items() {
        let Some(pattern) = item.some_text() else { continue };
        if let Some(known) = known.filter(|known| !known.iter().any(|name| fits(&pattern, name))) {
            let names = || known.iter().map(String::as_str);
            let expected =
                format!("the name of {what}, or a pattern with `*` that fits one: {}", suggest::list(names()));
            item.refuse_with(expected, suggest::closest(&pattern, names()));
        }
        read.push(pattern);
    }
    some(cursor, read)
}

fn effects(cursor: &Cursor<'_>) -> Vec<Effect> {
    some(cursor, cursor.items().iter().filter_map(|item| item.choice(&EFFECTS)).collect())
}

fn per(cursor: &Cursor<'_>) -> BTreeSet<LimitKey> {
    let mut read = BTreeSet::new();
    for item in cursor.items() {
        let Some(text) = item.some_text() else { continue };
        let argument = text.strip_prefix("argument:").filter(|pointer| pointer.starts_with('/'));
        let named = LimitKey::NAMED.iter().find(|(word, _)| *word == text).map(|(_, key)| key.clone());
        let Some(key) = argument.map(|pointer| LimitKey::Argument(pointer.to_owned())).or(named) else {
            let words = || LimitKey::NAMED.iter().map(|(word, _)| *word);
            let expected = format!("one of {}, or an argument such as argument:/customer/id", suggest::list(words()));
            item.refuse_with(expected, suggest::closest(&text, words()));
            continue;
        };
        if !read.insert(key) {
            item.refuse("each key once");
        }
    }
    read
}

/// `{argument: /amount, max: 500}`
fn sum_of(cursor: &Cursor<'_>) -> Option<LimitBound> {
    let mut s = cursor.section();
    let argument = s.required("argument").and_then(|c| {
        let text = c.some_text()?;
        if !text.starts_with('/') {
            c.refuse("a JSON pointer such as /amount");
        }
        Some(text)
    });
    let max = s.required("max").and_then(|c| amount_of(&c));
    s.close();
    Some(LimitBound::Sum { argument: argument?, max: max? })
}

/// In millionths.
fn amount_of(cursor: &Cursor<'_>) -> Option<u64> {
    let read = amount::of(&cursor.node.to_json());
    if read.is_none() {
        let most = amount::show(amount::AMOUNT_MAX);
        cursor.refuse(format!("a number up to {most}, with at most six digits behind the point"));
    }
    read
}

fn every(cursor: &Cursor<'_>) -> Option<LimitWindow> {
    match cursor.text()? {
        "tick" => return Some(LimitWindow::Tick),
        "day" => return Some(LimitWindow::Day),
        "task" => return Some(LimitWindow::Task),
        text => {
            let bounds = Duration::from_secs(1)..=Duration::from_secs(31 * 86_400);
            if let Some(period) = parse_duration(text).filter(|period| bounds.contains(period)) {
                return Some(LimitWindow::Period(i64::try_from(period.as_millis()).unwrap_or(i64::MAX)));
            }
        }
    }
    cursor.refuse("tick, day, task, or a length of time from 1s to 31d");
    None
}

/// Returns the declared and imported tools, and the other spellings of all tools with a permission row. Tools without a
/// row cannot be called.
#[must_use]
pub fn known_tools(tools: &ToolsFile, mcp: &McpFile, permissions: &Permissions) -> KnownTools {
    let declared = tools.tools.iter().map(|(name, tool)| {
        // This process may not know the effect and category of a tool of a binary or Python module.
        let (effect, category) =
            if tool.runner.is_some() { (Some(Effect::default()), "general".to_owned()) } else { (None, String::new()) };
        let category = tool.category.clone().unwrap_or(category);
        (name.clone(), ToolTraits { effect: tool.effect.or(effect), category })
    });
    let imported = mcp.servers.values().flat_map(|server| {
        let category = server.category.clone().unwrap_or_else(|| "mcp".to_owned());
        let traits = move |tool| ToolTraits { effect: Some(server.effect(tool)), category: category.clone() };
        server.tools.iter().map(move |tool| (server.tool_name(&tool.name), traits(tool)))
    });
    let traits: BTreeMap<String, ToolTraits> = declared.chain(imported).collect();
    let shown = NameMap::new(traits.keys().chain(permissions.matrix.keys()));
    let spellings = shown.differing().map(|(written, name)| (written.to_owned(), name.to_owned()));
    KnownTools::new(traits, spellings.collect())
}

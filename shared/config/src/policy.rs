//! `permissions.yaml` and `tenants.yaml`. All agents, roles and tools in these files must exist, because a row for a
//! misspelled tool would protect nothing.

mod facts;

use std::collections::{BTreeMap, BTreeSet};

use crate::approval::{self, ApprovalDemands};
use crate::document::errors::{ConfigLocation, Errors};
use crate::document::reader::{Cursor, Section};
use crate::document::tree::Node;
use crate::settings::read::time_zone;
use crate::tools::read::Tools;
use tickfleet_model::policy::{Rule, RuleMode, TenantPolicy, ToolGrant};
use tickfleet_model::{AgentId, ApprovalDemand, Limit, TenantId, TenantUser, limits, suggest};
use tickfleet_rules::{RuleError, check_condition, check_message};

const USERS_MAX: usize = 1_000;
/// Short, because models receive these texts.
const USER_TEXT_BYTES_MAX: usize = 254;

/// A set is `None` if its file could not be read.
#[derive(Debug, Default)]
pub(super) struct KnownNames {
    pub(super) agents: Option<BTreeSet<String>>,
    pub(super) roles: Option<BTreeSet<String>>,
    pub(super) tools: Option<BTreeSet<String>>,
    pub(super) tools_and_ids: Option<BTreeSet<String>>,
}

#[derive(Debug, Clone)]
pub(super) struct RuleText {
    tool: String,
    place: ConfigLocation,
    path: String,
    text: String,
    is_message: bool,
}

impl RuleText {
    pub(super) fn tool(&self) -> &str {
        &self.tool
    }

    pub(super) fn check(&self, schemas: &[&serde_json::Value], errors: &Errors) {
        let Self { tool, place, path, text, is_message } = self;
        let look =
            if *is_message { tickfleet_rules::unknown_in_message } else { tickfleet_rules::unknown_in_condition };
        for unknown in look(text, schemas) {
            let name = &unknown.name;
            let meant = unknown.meant();
            let there = suggest::list(unknown.there.iter().map(String::as_str));
            if unknown.closed {
                let found = format!("{text:?}, which names the unknown `{name}`");
                errors.suggest(place, path, found, format!("a field of calls of {tool}: {there}"), meant);
                continue;
            }
            let meant = meant.map(|meant| format!(" (did you mean `{meant}`?)")).unwrap_or_default();
            errors.warn(
                place,
                path,
                format!("{tool} does not declare `{name}`{meant}, though calls may have it; it declares {there}"),
            );
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct PermissionsFile {
    pub(super) matrix: BTreeMap<String, ToolGrant>,
    pub(super) texts: Vec<RuleText>,
    /// Name → roles.
    pub(super) approvers: BTreeMap<String, BTreeSet<String>>,
    pub(super) demands: ApprovalDemands,
}

pub(super) fn permissions(tree: &Node, known: &KnownNames, tools: Option<&Tools>, errors: &Errors) -> PermissionsFile {
    let mut permitted = PermissionsFile::default();
    let mut root = Section::open(tree, "", errors);
    for (tool, place, cursor) in root.required("permissions").map(|c| c.members()).unwrap_or_default() {
        if let Some(tools) = known.tools.as_ref().filter(|tools| !tools.contains(tool)) {
            let names = || tools.iter().map(String::as_str);
            let expected = format!("a tool of tools.yaml or a built-in one: {}", suggest::list(names()));
            let found = format!("the unknown tool `{tool}`");
            errors.suggest(place, &cursor.path, found, expected, suggest::closest(tool, names()));
        }
        let grant = grant(&cursor, tool, known, &mut permitted);
        permitted.matrix.insert(tool.to_owned(), grant);
    }
    let people = root.optional("approvers").map(|c| approval::approvers(&c, known.agents.as_ref()));
    permitted.approvers = people.unwrap_or_default();
    for demands in tools.map(|tools| &tools.demands).into_iter().chain([&permitted.demands]) {
        approval::check(demands, &permitted.approvers, errors);
    }
    root.close();
    facts::check(tree, &permitted.matrix, errors);
    permitted
}

fn grant(cursor: &Cursor<'_>, tool: &str, known: &KnownNames, permitted: &mut PermissionsFile) -> ToolGrant {
    let mut s = cursor.section();
    let grant = ToolGrant {
        agents: s.optional("agents").map(|c| agents(&c, known)).unwrap_or_default(),
        roles: s.optional("roles").map(|c| roles(&c, known)).unwrap_or_default(),
        deny_agents: s.optional("deny_agents").map(|c| agents(&c, known)).unwrap_or_default(),
        deny_roles: s.optional("deny_roles").map(|c| roles(&c, known)).unwrap_or_default(),
        everyone: s.optional("everyone").and_then(|c| c.boolean()).unwrap_or_default(),
        rules: s.optional("rules").map(|c| rules(&c, tool, permitted)).unwrap_or_default(),
        facts: s.optional("facts").map(|c| facts::row(&c)).unwrap_or_default(),
    };
    s.close();
    grant
}

/// Checks that the rules compile, and keeps their text. Workers compile the rules again, because a policy contains them
/// as text.
fn rules(cursor: &Cursor<'_>, tool: &str, permitted: &mut PermissionsFile) -> Vec<Rule> {
    let items = cursor.items();
    if items.len() > limits::RULES_PER_TOOL_MAX {
        cursor.refuse(format!("at most {} rules", limits::RULES_PER_TOOL_MAX));
    }
    let mut rules: Vec<Rule> = Vec::new();
    for item in items {
        let mut s = item.section();
        let name = s.optional("name").and_then(|c| rule_name(&c, &rules));
        let mut checked = |c: Cursor<'_>, is_message| {
            let text = checked(&c, if is_message { check_message } else { check_condition })?;
            let tool = tool.to_owned();
            let place = c.node.place.clone();
            let path = c.path.clone();
            permitted.texts.push(RuleText { tool, place, path, text: text.clone(), is_message });
            Some(text)
        };
        let when = s.optional("when").and_then(|c| checked(c, false));
        let require = s.required("require").and_then(|c| checked(c, false));
        let message = s.optional("message").and_then(|c| checked(c, true));
        let mode = s.optional("mode");
        let mode = mode.and_then(|c| c.choice(&[("enforce", RuleMode::Enforce), ("shadow", RuleMode::Shadow)]));
        let mode = mode.unwrap_or_default();
        let otherwise_ask = otherwise(&mut s, &mut permitted.demands);
        s.close();
        rules.extend(require.map(|require| Rule { name, when, require, message, mode, otherwise_ask }));
    }
    rules
}

/// `None` means that the call is denied.
fn otherwise(s: &mut Section<'_>, demands: &mut ApprovalDemands) -> Option<ApprovalDemand> {
    let otherwise = s.optional("otherwise");
    let approval = s.optional("approval");
    let asks = otherwise.and_then(|c| c.choice(&[("deny", false), ("ask", true)])).unwrap_or_default();
    let demand = approval.as_ref().map(|c| approval::demand(c, demands));
    if let (false, Some(approval)) = (asks, &approval) {
        approval.refuse("`otherwise: ask` beside it: without it, the rule denies calls that do not meet it");
    }
    asks.then(|| demand.unwrap_or_default())
}

fn rule_name(cursor: &Cursor<'_>, others: &[Rule]) -> Option<String> {
    let name = cursor.some_text()?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if !name.chars().all(plain) || name.len() > limits::NAME_BYTES_MAX {
        cursor.refuse(format!("a name of a-z, 0-9 and `_`, of {} at most", limits::NAME_BYTES_MAX));
    } else if others.iter().any(|other| other.name.as_ref() == Some(&name)) {
        cursor.refuse("each name once in a row");
    }
    Some(name)
}

fn checked(cursor: &Cursor<'_>, check: fn(&str) -> Result<(), RuleError>) -> Option<String> {
    let text = cursor.some_text()?;
    if let Err(refused) = check(&text) {
        let found = format!("{}, which {}", cursor.node.describe(), refused.found);
        cursor.errors.push(&cursor.node.place, &cursor.path, found, refused.expected);
    }
    Some(text)
}

pub(super) fn tenants(
    tree: &Node,
    known: &KnownNames,
    limits: Option<&[Limit]>,
    errors: &Errors,
) -> BTreeMap<TenantId, TenantPolicy> {
    let mut tenants = BTreeMap::new();
    let mut root = Section::open(tree, "", errors);
    for (name, place, cursor) in root.required("tenants").map(|c| c.members()).unwrap_or_default() {
        let tenant = tenant(&cursor, known, limits);
        match TenantId::new(name) {
            Ok(id) => {
                tenants.insert(id, tenant);
            }
            Err(error) => {
                errors.push(place, &cursor.path, format!("the tenant name {name:?}"), format!("a name: {error}"));
            }
        }
    }
    root.close();
    tenants
}

fn tenant(cursor: &Cursor<'_>, known: &KnownNames, limits: Option<&[Limit]>) -> TenantPolicy {
    let mut s = cursor.section();
    let tenant = TenantPolicy {
        plan: s.optional("plan").and_then(|c| c.some_text()).unwrap_or_default(),
        features: s.optional("features").map(|c| c.words()).unwrap_or_default(),
        time_zone: s.optional("time_zone").and_then(|c| time_zone(&c)),
        max_actions_per_day: s.optional("max_actions_per_day").and_then(|c| c.integer(0, u32::MAX.into())),
        agents: s.optional("agents").map(|c| agents(&c, known)).unwrap_or_default(),
        users: s.optional("users").map(|c| users(&c)).unwrap_or_default(),
        limits: s.optional("limits").map(|c| own_limits(&c, limits)).unwrap_or_default(),
    };
    s.close();
    tenant
}

fn users(cursor: &Cursor<'_>) -> BTreeSet<TenantUser> {
    let mut users: BTreeSet<TenantUser> = BTreeSet::new();
    for item in cursor.items() {
        let user = match item.node.to_json() {
            serde_json::Value::Object(_) => user(&item),
            _ => item.some_text().map(TenantUser::named),
        };
        let Some(user) = user else { continue };
        if users.iter().any(|other| other.name == user.name) {
            item.refuse("each name once");
        } else if user.name.len() > USER_TEXT_BYTES_MAX {
            item.refuse(format!("a name of at most {USER_TEXT_BYTES_MAX} bytes"));
        } else {
            users.insert(user);
        }
    }
    if users.len() > USERS_MAX {
        cursor.refuse(format!("at most {USERS_MAX} users"));
    }
    users
}

fn user(cursor: &Cursor<'_>) -> Option<TenantUser> {
    let mut s = cursor.section();
    let short = |c: &Cursor<'_>| {
        let text = c.some_text()?;
        if text.len() > USER_TEXT_BYTES_MAX {
            c.refuse(format!("a text of at most {USER_TEXT_BYTES_MAX} bytes"));
        }
        Some(text)
    };
    let name = s.required("name").and_then(|c| short(&c));
    let user = TenantUser {
        name: name.clone().unwrap_or_default(),
        roles: s.optional("roles").map(|c| c.words()).unwrap_or_default(),
        email: s.optional("email").and_then(|c| short(&c)),
        status: s.optional("status").and_then(|c| short(&c)),
    };
    s.close();
    name.map(|_| user)
}

fn own_limits(cursor: &Cursor<'_>, limits: Option<&[Limit]>) -> BTreeMap<String, String> {
    let mut own = BTreeMap::new();
    for (name, _, value) in cursor.members() {
        let Some(limits) = limits else { continue };
        let of_tenants = || limits.iter().filter(|limit| limit.is_of_tenants());
        let Some(limit) = of_tenants().find(|limit| limit.name == name) else {
            let names = || of_tenants().map(|limit| limit.name.as_str());
            let expected = format!("a limit of limits.yaml with counters of tenants: {}", suggest::list(names()));
            value.refuse_with(expected, suggest::closest(name, names()));
            continue;
        };
        let text = match value.node.to_json() {
            serde_json::Value::String(text) => text,
            other => other.to_string(),
        };
        match limit.bound.parse_max(&text) {
            Some(_) => drop(own.insert(name.to_owned(), text)),
            None => value.refuse(limit.bound.max_words()),
        }
    }
    own
}

fn agents(cursor: &Cursor<'_>, known: &KnownNames) -> BTreeSet<AgentId> {
    let names = names(cursor, known.agents.as_ref(), "an agent of agents.yaml");
    names.iter().filter_map(|name| AgentId::new(name).ok()).collect()
}

fn roles(cursor: &Cursor<'_>, known: &KnownNames) -> BTreeSet<String> {
    names(cursor, known.roles.as_ref(), "a role that an agent of agents.yaml has")
}

pub(super) fn names(cursor: &Cursor<'_>, known: Option<&BTreeSet<String>>, what: &str) -> BTreeSet<String> {
    let mut read = BTreeSet::new();
    for item in cursor.items() {
        let Some(name) = item.some_text() else { continue };
        if let Some(known) = known.filter(|known| !known.contains(&name)) {
            let names = || known.iter().map(String::as_str);
            let expected = format!("{what}: {}", suggest::list(names()));
            item.refuse_with(expected, suggest::closest(&name, names()));
        } else if !read.insert(name) {
            item.refuse("each name once");
        }
    }
    read
}

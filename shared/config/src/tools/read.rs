//! Reads `tools.yaml`.

use std::collections::{BTreeMap, BTreeSet};

use crate::Sources;
use crate::approval::{self, ApprovalDemands};
use crate::document::errors::{ConfigLocation, Errors};
use crate::document::reader::{Cursor, Section};
use crate::document::tree::{Node, Value, join};
use crate::tools::cache;
use crate::tools::effect_key;
use crate::tools::http;
use crate::tools::modules;
use crate::tools::reconcile;
use crate::tools::schema::{SchemaCheck, SchemaUse};
use crate::tools::shell;
use crate::tools::templates::Arguments;
use crate::tools::{LOCAL_LEASE_MS_DEFAULT, LocalDef, ToolDef, ToolRunner, ToolRuntime, ToolsFile};
use tickfleet_model::version::{parse, split};
use tickfleet_model::{Durability, Effect, limits};

pub(crate) type ReadRunner = fn(&Cursor<'_>, &Arguments, Option<Effect>) -> Option<ToolRunner>;
pub(crate) const RUNNERS: [(&str, ReadRunner); 3] = [
    ("http", |c, arguments, effect| http::read(c, arguments, effect == Some(Effect::Once)).map(ToolRunner::Http)),
    ("shell", |c, arguments, _| shell::read(c, arguments).map(ToolRunner::Shell)),
    ("local", |c, _, _| Some(ToolRunner::Local(local(c)))),
];
/// Longer work should be a task.
pub(crate) const TIMEOUT_MS_MAX: i128 = 3_600_000;
pub(crate) const EFFECTS: [(&str, Effect); 3] =
    [("read", Effect::Read), ("idempotent", Effect::Idempotent), ("once", Effect::Once)];

#[derive(Debug, Default)]
pub(crate) struct Tools {
    pub(crate) file: ToolsFile,
    /// Includes tools with errors, so that other files may name these tools.
    pub(crate) names: BTreeSet<String>,
    pub(crate) names_and_ids: BTreeSet<String>,
    pub(crate) has_all_names: bool,
    pub(crate) demands: ApprovalDemands,
}

#[must_use]
pub fn default_id(name: &str) -> String {
    format!("tool_{name}")
}

pub(crate) fn read(tree: &Node, sources: &Sources, errors: &Errors) -> Tools {
    let mut tools = Tools { names: sources.built_in_tools.clone(), ..Tools::default() };
    let mut ids: BTreeMap<String, ConfigLocation> = BTreeMap::new();
    let before = errors.len();
    let mut root = Section::open(tree, "", errors);
    let modules = ToolRuntime::ALL.map(|runtime| (runtime, root.optional(runtime.section())));
    // A fleet can have only tools of modules, so with modules, `tools` is optional.
    let has_modules = modules.iter().any(|(_, section)| section.is_some());
    let declared = if has_modules { root.optional("tools") } else { root.required("tools") };
    let members = declared.map(|c| c.members()).unwrap_or_default();
    root.close();
    tools.has_all_names = errors.len() == before;
    for (runtime, section) in &modules {
        tools.file.modules.extend(section.iter().flat_map(|c| modules::read(c, *runtime)));
    }
    let modules_may_have_it = sources.allow_unknown_names || !tools.file.modules.is_empty() && !sources.knows_modules;
    for (name, place, cursor) in members {
        tool_name(name, place, &cursor);
        let others = sources.built_in_tools.contains(name) || modules_may_have_it;
        let def = tool(&cursor, others, sources.schema_check, &mut tools.demands);
        let id = def.id.clone().unwrap_or_else(|| default_id(name));
        if let Some(first) = ids.get(&id) {
            errors.push(place, &cursor.path, format!("the id `{id}` again"), format!("a unique id (see {first})"));
        }
        if def.runner.is_some() && sources.built_in_tools.contains(name) {
            errors.push(place, &cursor.path, "the name of a built-in tool", "another name for a fully declared tool");
        }
        ids.insert(id, place.clone());
        tools.names.insert(split(name).0.to_owned());
        tools.file.tools.insert(name.to_owned(), def);
    }
    let declared = tools.file.tools.keys();
    let built_in = sources.built_in_tools.iter().filter(|name| !tools.file.tools.contains_key(*name));
    tools.names_and_ids = ids.into_keys().chain(built_in.map(|name| default_id(name))).collect();
    tools.names_and_ids.extend(declared.chain(&sources.built_in_tools).cloned());
    tools
}

fn tool_name(name: &str, place: &ConfigLocation, cursor: &Cursor<'_>) {
    let max = limits::NAME_BYTES_MAX;
    let (name, label) = split(name);
    if let Some(label) = label.filter(|label| parse(label).is_none()) {
        let expected = "a version after the @, as in search@2 or search@2.1.0";
        cursor.errors.push(place, &cursor.path, format!("the version {label:?}"), expected);
    }
    if name.is_empty() || name.len() > max || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        let expected = format!("1 to {max} bytes without spaces");
        cursor.errors.push(place, &cursor.path, format!("the tool name {name:?}"), expected);
    }
}

/// If `overrides` is true, another tool of this name may have the missing fields. The registry then checks them.
fn tool(cursor: &Cursor<'_>, overrides: bool, check: SchemaCheck, demands: &mut ApprovalDemands) -> ToolDef {
    let errors = cursor.errors;
    let mut s = cursor.section();
    let overrides = overrides && RUNNERS.iter().all(|(kind, _)| cursor.node.get(kind).is_none());
    let mut own = |field| if overrides { s.optional(field) } else { s.required(field) };
    let description = own("description").and_then(|c| c.some_text());
    let described = errors.len();
    let input_schema = own("input_schema").map(|c| object_schema(&c, check));
    let schema = input_schema.as_ref().filter(|_| errors.len() == described);
    let own_effect = s.optional("effect").and_then(|c| c.choice(&EFFECTS));
    let effect = own_effect.or_else(|| (!overrides).then(Effect::default));
    let arguments = schema.map_or_else(Arguments::unknown, Arguments::of_schema);
    let mut def = ToolDef {
        id: s.optional("id").and_then(|c| c.some_text()),
        display_name: s.optional("display_name").and_then(|c| c.some_text()),
        description,
        output_schema: s.optional("output_schema").map(|c| check.read(&c, SchemaUse::Output)),
        category: s.optional("category").and_then(|c| c.some_text()),
        version: s.optional("version").and_then(|c| version(&c)),
        effect: own_effect,
        effect_key: effect_key::read(&mut s, schema, effect),
        cache: s.optional("cache").and_then(|c| cache::read(&c, effect)),
        reconcile: s.optional("reconcile").and_then(|c| reconcile::read(&c, effect)),
        durable: s.optional("durable").and_then(|c| c.choice(&Durability::WORDS)),
        timeout_ms: s.optional("timeout_ms").and_then(|c| c.integer(1, TIMEOUT_MS_MAX)),
        required_capabilities: s.optional("required_capabilities").map(|c| c.words()).unwrap_or_default(),
        required_features: s.optional("required_features").map(|c| c.words()).unwrap_or_default(),
        requires_approval: s.optional("requires_approval").and_then(|c| c.boolean()).unwrap_or_default(),
        approval: s.optional("approval").map(|c| approval::demand(&c, demands)),
        runner: None,
        input_schema,
    };
    let runners = RUNNERS.map(|(kind, read)| s.optional(kind).map(|c| read(&c, &arguments, effect)));
    let runners: Vec<_> = runners.into_iter().flatten().collect();
    s.close();
    if runners.len() > 1 {
        cursor.refuse(format!("one of {}: what runs the tool", RUNNERS.map(|(kind, _)| kind).join(", ")));
    }
    def.runner = runners.into_iter().flatten().next_back();
    let is_local = matches!(def.runner, Some(ToolRunner::Local(_)));
    if is_local && (def.cache.is_some() || def.durable.is_some() || def.timeout_ms.is_some()) {
        cursor.refuse("no cache, durable or timeout_ms beside local: the caller's process runs the function");
    }
    def
}

fn local(cursor: &Cursor<'_>) -> LocalDef {
    let mut s = cursor.section();
    let lease_ms = s.optional("lease_ms").and_then(|c| c.integer(limits::LEASE_MS_MIN.into(), 3_600_000));
    s.close();
    LocalDef { lease_ms: lease_ms.unwrap_or(LOCAL_LEASE_MS_DEFAULT) }
}

fn object_schema(cursor: &Cursor<'_>, check: SchemaCheck) -> serde_json::Value {
    let node = cursor.node;
    let kind = node.get("type");
    let is_object = kind.is_some_and(|kind| matches!(&kind.value, Value::Text(kind) if kind == "object"));
    // An invalid type is reported below, with a better message.
    let check = if is_object { check } else { SchemaCheck::default() };
    let schema = check.read(cursor, SchemaUse::Arguments);
    if !is_object && matches!(node.value, Value::Mapping(_)) {
        let (at, found) = kind.map_or((node, "nothing".to_owned()), |kind| (kind, kind.describe()));
        let path = format!("{}.type", cursor.path);
        cursor.errors.push(&at.place, &path, found, "object: arguments are a JSON object");
    }
    if let Some(properties) = node.get("properties") {
        let path = format!("{}.properties", cursor.path);
        for (_, place, property) in (Cursor { node: properties, path, errors: cursor.errors }).members() {
            if !matches!(property.node.value, Value::Mapping(_) | Value::Boolean(_)) {
                property.refuse("a schema: a mapping such as {type: string}");
            }
            warn_undescribed(place, &property);
        }
    }
    schema
}

fn warn_undescribed(place: &ConfigLocation, parameter: &Cursor<'_>) {
    let node = parameter.node;
    let says = |key: &str| node.get(key).is_some();
    if matches!(node.value, Value::Mapping(_)) && !says("description") && !says("$ref") && !says("const") {
        parameter.errors.warn(place, &parameter.path, "it has no description: models see only its name and type");
    }
    for (inner, path) in [(Some(node), parameter.path.clone()), (node.get("items"), join(&parameter.path, "items"))] {
        let Some(properties) = inner.and_then(|inner| inner.get("properties")) else { continue };
        if !matches!(properties.value, Value::Mapping(_)) {
            continue;
        }
        let members = Cursor { node: properties, path: join(&path, "properties"), errors: parameter.errors };
        members.members().iter().for_each(|(_, place, member)| warn_undescribed(place, member));
    }
}

fn version(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    let core = text.split(['-', '+']).next().unwrap_or_default();
    let numbers: Vec<&str> = core.split('.').collect();
    let sound = numbers.len() == 3 && numbers.iter().all(|n| n.parse::<u32>().is_ok());
    if !sound {
        cursor.refuse("a semantic version such as 1.0.0");
    }
    sound.then(|| text.to_owned())
}

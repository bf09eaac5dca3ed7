//! The built-in files, the operator's folder, and their merge.

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use super::{Part, Sources};
use crate::document::canonical::{write_name, write_tree};
use crate::document::environment::{self, Environment};
use crate::document::errors::{ConfigLocation, Errors};
use crate::document::reader::Cursor;
use crate::document::tree::{Entry, Node, Value, join};
use crate::document::yaml::{Origin, parse};
use crate::mcp::lock::MCP_LOCK_FILE;
use crate::tools::ToolRuntime;
use tickfleet_model::suggest;

const SETTINGS: &str = "tickfleet.yaml";
const AGENTS: &str = "agents.yaml";
const TOOLS: &str = "tools.yaml";
const PERMISSIONS: &str = "permissions.yaml";
const TENANTS: &str = "tenants.yaml";
const LIMITS: &str = "limits.yaml";
const MODELS: &str = "models.yaml";
const MCP: &str = "mcp.yaml";

const BUILT_IN: [(&str, &str); 9] = [
    (SETTINGS, include_str!("../../../config/tickfleet.yaml")),
    (AGENTS, include_str!("../../../config/agents.yaml")),
    (TOOLS, include_str!("../../../config/tools.yaml")),
    (PERMISSIONS, include_str!("../../../config/permissions.yaml")),
    (TENANTS, include_str!("../../../config/tenants.yaml")),
    (LIMITS, include_str!("../../../config/limits.yaml")),
    (MODELS, include_str!("../../../config/models.yaml")),
    (MCP, include_str!("../../../config/mcp.yaml")),
    (MCP_LOCK_FILE, include_str!("../../../config/mcp.lock.yaml")),
];

/// The built-in files with samples, each with its section. If samples are off and the file is missing, the section is
/// empty.
const SAMPLES: [(&str, &str); 4] =
    [(AGENTS, "agents"), (TOOLS, "tools"), (PERMISSIONS, "permissions"), (TENANTS, "tenants")];

pub(super) const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Default)]
pub(super) struct Trees {
    pub(super) settings: Option<Node>,
    pub(super) agents: Option<Node>,
    pub(super) tools: Option<Node>,
    pub(super) permissions: Option<Node>,
    pub(super) tenants: Option<Node>,
    pub(super) limits: Option<Node>,
    pub(super) models: Option<Node>,
    pub(super) mcp: Option<Node>,
    pub(super) mcp_lock: Option<Node>,
}

impl fmt::Debug for Trees {
    /// Shows no content, because the trees contain passwords.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trees")
    }
}

impl Trees {
    pub(super) fn samples(&self) -> Vec<&'static str> {
        let files =
            [(AGENTS, &self.agents), (TOOLS, &self.tools), (PERMISSIONS, &self.permissions), (TENANTS, &self.tenants)];
        let built_in = |tree: &Option<Node>| tree.as_ref().is_some_and(|tree| tree.place.is_built_in());
        files.into_iter().filter(|(_, tree)| built_in(tree)).map(|(name, _)| name).collect()
    }

    pub(super) fn disabled_tools<'a>(&'a self, errors: &'a Errors) -> Option<Cursor<'a>> {
        let node = self.settings.as_ref()?.get("permission")?.get("disabled_tools")?;
        let is_list = matches!(node.value, Value::List(_));
        is_list.then(|| Cursor { node, path: "permission.disabled_tools".into(), errors })
    }
}

/// The text is the canonical JSON of the policy, without values from the environment: these values can differ between
/// processes with the same policy.
pub(super) fn read(sources: &Sources, errors: &Errors) -> Option<(Trees, String)> {
    if let Some(dir) = sources.policy_dir() {
        check_folder(dir, errors);
    }
    let built_in = built_in(SETTINGS)?;
    let mut settings = settings(&built_in, sources, errors);
    if let Some(settings) = &mut settings {
        environment::apply_environment(settings, &built_in, &sources.environment, errors);
    }
    let samples = sources.part == Part::Whole && with_samples(settings.as_ref());
    let whole = |name| replacing(name, sources.policy_dir(), sources, samples, errors);
    let mut agents = whole(AGENTS);
    let mut tools = whole(TOOLS);
    let mut mcp = whole(MCP);
    let mcp_lock = whole(MCP_LOCK_FILE);
    let declared = declared([("agents", &agents), ("mcp", &mcp), ("mcp_lock", &mcp_lock), ("tools", &tools)]);
    let mut models = whole(MODELS);
    for tree in [&mut agents, &mut tools, &mut models].into_iter().flatten() {
        expand(tree, "", &sources.environment, errors);
    }
    if let Some(mcp) = &mut mcp {
        expand_servers(mcp, &sources.environment, errors);
    }
    let permissions = whole(PERMISSIONS);
    let tenants = whole(TENANTS);
    let limits = whole(LIMITS);
    Some((Trees { settings, agents, tools, permissions, tenants, limits, models, mcp, mcp_lock }, declared))
}

fn declared(files: [(&str, &Option<Node>); 4]) -> String {
    let mut text = String::from("{");
    for (name, tree) in files {
        write_name(name, &mut text);
        match tree {
            Some(tree) => write_tree(tree, &mut text),
            None => text.push_str("null"),
        }
        text.push(',');
    }
    text.push('}');
    text
}

/// Returns the trees of the servers and of the pins. The caller replaces the pins, so errors in them do not matter.
pub(super) fn read_mcp(sources: &Sources, errors: &Errors) -> (Option<Node>, Option<Node>) {
    let dir = sources.dir.as_deref();
    let mut mcp = replacing(MCP, dir, sources, true, errors);
    if let Some(mcp) = &mut mcp {
        expand_servers(mcp, &sources.environment, errors);
    }
    (mcp, replacing(MCP_LOCK_FILE, dir, sources, true, &Errors::default()))
}

pub(super) fn read_tools(sources: &Sources, errors: &Errors) -> Option<Node> {
    // The built-in tools have no Python module, so the setting of the samples does not matter.
    let mut tools = replacing(TOOLS, sources.policy_dir(), sources, true, errors)?;
    expand(&mut tools, "", &sources.environment, errors);
    Some(tools)
}

pub(super) fn wants_json_log(dir: Option<&Path>, environment: &Environment) -> bool {
    const JSON: &str = "json";
    if let Some(text) = environment.get("TICKFLEET_LOG_FORMAT").filter(|text| !text.trim().is_empty()) {
        return text.trim() == JSON;
    }
    if let ParsedFile::Tree(tree) = from_folder(SETTINGS, dir, &Errors::default()) {
        let format = tree.get("log").and_then(|log| log.get("format")).map(|node| &node.value);
        return matches!(format, Some(Value::Text(text)) if text == JSON);
    }
    // The YAML may be invalid, so search the text. No other setting is named `format`.
    let text = dir.and_then(|dir| fs::read_to_string(dir.join(SETTINGS)).ok()).unwrap_or_default();
    text.contains("format: json")
}

fn built_in(name: &str) -> Option<Node> {
    static PARSED: [OnceLock<Option<Node>>; BUILT_IN.len()] = [const { OnceLock::new() }; BUILT_IN.len()];
    let mut files = BUILT_IN.iter().zip(&PARSED);
    let ((name, text), parsed) = files.find(|((built_in, _), _)| *built_in == name)?;
    parsed.get_or_init(|| parse(text, Origin::BuiltIn(name), &Errors::default())).clone()
}

/// The folder's `tickfleet.yaml` overrides [`Sources::written`], which overrides the built-in settings.
fn settings(built_in: &Node, sources: &Sources, errors: &Errors) -> Option<Node> {
    let mut tree = built_in.clone();
    if let Some(text) = sources.written.get(SETTINGS) {
        tree.merge(parse(text, Origin::File(SETTINGS), errors)?);
    }
    match from_folder(SETTINGS, sources.dir.as_deref(), errors) {
        ParsedFile::Missing => {}
        ParsedFile::Broken => return None,
        ParsedFile::Tree(mut over) if sources.part == Part::Redis => {
            if let Value::Mapping(sections) = &mut over.value {
                sections.retain(|section| section.key == "redis");
                tree.merge(over);
            }
        }
        ParsedFile::Tree(over) if matches!(over.value, Value::Mapping(_) | Value::Null) => tree.merge(over),
        ParsedFile::Tree(over) => {
            errors.push(&over.place, "", over.describe(), "a mapping of sections such as `caps:`");
            return None;
        }
    }
    Some(tree)
}

fn with_samples(settings: Option<&Node>) -> bool {
    let switch = settings.and_then(|settings| settings.get("permission")?.get("samples"));
    match switch.map(|node| &node.value) {
        Some(Value::Boolean(switch)) => *switch,
        Some(Value::Text(text)) => text != "false",
        _ => true,
    }
}

/// The folder's file comes first, then [`Sources::written`], then the built-in file. Without `samples`, a missing
/// sample file is empty.
fn replacing(
    name: &'static str,
    dir: Option<&Path>,
    sources: &Sources,
    samples: bool,
    errors: &Errors,
) -> Option<Node> {
    match from_folder(name, dir, errors) {
        ParsedFile::Missing if sources.written.contains_key(name) => {
            parse(sources.written.get(name)?, Origin::File(name), errors)
        }
        ParsedFile::Missing => match SAMPLES.iter().find(|(file, _)| *file == name) {
            Some((_, section)) if !samples => parse(&format!("{section}: {{}}"), Origin::File(name), errors),
            _ => built_in(name),
        },
        ParsedFile::Broken => None,
        ParsedFile::Tree(tree) => Some(tree),
    }
}

enum ParsedFile {
    Missing,
    Broken,
    Tree(Node),
}

fn from_folder(name: &str, dir: Option<&Path>, errors: &Errors) -> ParsedFile {
    let Some(path) = dir.map(|dir| dir.join(name)).filter(|path| path.exists()) else {
        return ParsedFile::Missing;
    };
    let shown = path.display().to_string();
    let broken = |found: String, expected: &str| {
        errors.push(&ConfigLocation::whole_file(&shown), "", found, expected);
        ParsedFile::Broken
    };
    if fs::metadata(&path).is_ok_and(|file| file.len() > FILE_BYTES_MAX) {
        return broken(format!("more than {} MiB", FILE_BYTES_MAX >> 20), "a configuration file");
    }
    match fs::read(&path).map(String::from_utf8) {
        Err(error) => broken(format!("an unreadable file ({error})"), "a readable file"),
        Ok(Err(_)) => broken("bytes that are not UTF-8".into(), "text in UTF-8"),
        Ok(Ok(text)) => parse(&text, Origin::File(&shown), errors).map_or(ParsedFile::Broken, ParsedFile::Tree),
    }
}

/// A YAML file with another name, such as `agents.yml`, is an error, because nothing would read the file.
fn check_folder(dir: &Path, errors: &Errors) {
    let names = || BUILT_IN.iter().map(|(name, _)| *name);
    let shown = dir.display().to_string();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) => {
            let found = format!("an unreadable folder ({error})");
            return errors.push(&ConfigLocation::whole_file(&shown), "", found, "a folder with configuration files");
        }
    };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
        if is_yaml && !name.starts_with('.') && !names().any(|known| known == name) {
            let place = ConfigLocation::whole_file(&dir.join(&name).display().to_string());
            let expected = format!("one of {}", suggest::list(names()));
            errors.suggest(&place, "", "a file that nothing reads", expected, suggest::closest(&name, names()));
        }
    }
}

/// Only these fields read the environment: `base_url`, `token_url`, `allow_private`, `http.defaults`, and
/// `interpreter`, `cwd` and `path` of modules.
fn expand(node: &mut Node, path: &str, environment: &Environment, errors: &Errors) {
    let Value::Mapping(entries) = &mut node.value else { return };
    for Entry { key, node, .. } in entries {
        let path = join(path, key);
        match key.as_str() {
            "input_schema" | "output_schema" | "body" | "equals" => {}
            "base_url" | "token_url" => expand_text(node, &path, environment, errors),
            "interpreter" | "cwd" if is_of_modules(&path) => expand_text(node, &path, environment, errors),
            "path" if is_of_modules(&path) => expand_list(node, &path, environment, errors),
            "defaults" if path.ends_with(".http.defaults") => expand_members(node, &path, environment, errors),
            "allow_private" => expand_list(node, &path, environment, errors),
            _ => expand(node, &path, environment, errors),
        }
    }
}

fn is_of_modules(path: &str) -> bool {
    ToolRuntime::ALL.iter().any(|runtime| path.split('.').next() == Some(runtime.section()))
}

fn expand_servers(tree: &mut Node, environment: &Environment, errors: &Errors) {
    let Some(Value::Mapping(servers)) = tree.get_mut("servers").map(|node| &mut node.value) else { return };
    for Entry { key: server, node, .. } in servers {
        let Value::Mapping(entries) = &mut node.value else { continue };
        for Entry { key, node, .. } in entries {
            let path = format!("servers.{server}.{key}");
            match (key.as_str(), &mut node.value) {
                ("url" | "command" | "cwd", _) => expand_text(node, &path, environment, errors),
                ("allow_private", _) => expand_list(node, &path, environment, errors),
                ("args", Value::List(items)) => {
                    let each = items.iter_mut().enumerate();
                    each.for_each(|(i, item)| expand_text(item, &format!("{path}[{i}]"), environment, errors));
                }
                _ => {}
            }
        }
    }
}

fn expand_members(node: &mut Node, path: &str, environment: &Environment, errors: &Errors) {
    let Value::Mapping(entries) = &mut node.value else { return };
    entries.iter_mut().for_each(|entry| expand_text(&mut entry.node, &join(path, &entry.key), environment, errors));
}

fn expand_text(node: &mut Node, path: &str, environment: &Environment, errors: &Errors) {
    if matches!(node.value, Value::Text(_))
        && let Some(text) = environment::expand(&Cursor { node, path: path.into(), errors }, environment)
    {
        node.value = Value::Text(text);
    }
}

/// A variable can contain several items, separated by commas, or no item.
fn expand_list(node: &mut Node, path: &str, environment: &Environment, errors: &Errors) {
    let Value::List(items) = &mut node.value else { return };
    items.iter_mut().enumerate().for_each(|(i, n)| expand_text(n, &format!("{path}[{i}]"), environment, errors));
    let split = |item: Node| match &item.value {
        Value::Text(text) => {
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(|part| Node { value: Value::Text(part.into()), place: item.place.clone() }).collect()
        }
        _ => vec![item],
    };
    *items = std::mem::take(items).into_iter().flat_map(split).collect();
}

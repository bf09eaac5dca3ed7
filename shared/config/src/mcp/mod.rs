//! `mcp.yaml`: the MCP servers and their pinned tools.

pub(crate) mod lock;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::document::errors::Errors;
use crate::document::reader::{Cursor, Section};
use crate::document::tree::{Node, Value};
use crate::mcp::lock::{McpDefinition, McpPins};
use crate::tools::SecretRef;
use crate::tools::read::{EFFECTS, TIMEOUT_MS_MAX, Tools, default_id};
use crate::tools::templates;
use crate::tools::{effect_key, http};
use tickfleet_model::{Effect, EffectKey, limits, suggest};

/// In characters. The names of the server's tools begin with the server's name.
const SERVER_NAME_MAX: usize = 32;
const OTHERS_KEY: &str = "mcpServers";
const HEADERS_REFUSED: [&str; 9] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

#[derive(Debug, Clone, Default)]
pub struct McpFile {
    pub servers: BTreeMap<String, McpServerDef>,
}

#[derive(Debug, Clone)]
pub struct McpServerDef {
    pub connection: McpConnection,
    pub prefix: String,
    pub trust_annotations: bool,
    /// By the tool's name on the server.
    pub effects: BTreeMap<String, Effect>,
    pub effect_keys: BTreeMap<String, EffectKey>,
    /// Maximum time between progress reports of a call. Default: the fleet's tool timeout.
    pub timeout: Option<Duration>,
    /// For one try that regularly reports progress.
    pub timeout_max: Option<Duration>,
    pub category: Option<String>,
    pub required_capabilities: BTreeSet<String>,
    pub required_features: BTreeSet<String>,
    pub requires_approval: bool,
    pub tools: Vec<McpDefinition>,
    pub server_version: Option<String>,
}

impl McpServerDef {
    #[must_use]
    pub fn tool_name(&self, own: &str) -> String {
        format!("{}{own}", self.prefix)
    }

    #[must_use]
    pub fn effect(&self, tool: &McpDefinition) -> Effect {
        let declared = self.effects.get(&tool.name).copied();
        declared.unwrap_or_else(|| if self.trust_annotations { tool.annotations.effect() } else { Effect::Once })
    }
}

/// Servers with equal values can share one connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct McpConnection {
    pub transport: McpTransport,
    pub secrets: BTreeMap<String, SecretRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum McpTransport {
    Stdio {
        command: String,
        args: Vec<String>,
        /// In addition to `PATH`: name → template.
        env: BTreeMap<String, String>,
        cwd: Option<String>,
    },
    Http {
        url: String,
        /// Header → template.
        headers: BTreeMap<String, String>,
        allow_private: BTreeSet<String>,
    },
}

pub(crate) fn read(tree: &Node, pins: &McpPins, known: &mut Tools, errors: &Errors) -> McpFile {
    let mut file = McpFile::default();
    for (name, cursor) in servers(tree, errors) {
        let Some((mut def, chosen)) = server(&name, &cursor) else { continue };
        let Some(pinned) = pins.servers.get(&name) else {
            let expected = format!("its tools in mcp.lock.yaml: run `tickfleet mcp pin {name}`");
            errors.push(&cursor.node.place, &cursor.path, "a server without pinned tools", expected);
            continue;
        };
        def.server_version.clone_from(&pinned.version);
        def.tools = chosen.of(&pinned.tools, &cursor, &def.effects);
        def.effect_keys = chosen.effect_keys(&def);
        for tool in &def.tools {
            import(&def.tool_name(&tool.name), &tool.name, &cursor, known);
        }
        file.servers.insert(name, def);
    }
    file
}

pub(crate) fn read_unpinned(tree: &Node, errors: &Errors) -> McpFile {
    let read = |(name, cursor): (String, Cursor<'_>)| Some((server(&name, &cursor)?.0, name));
    McpFile { servers: servers(tree, errors).into_iter().filter_map(read).map(|(def, name)| (name, def)).collect() }
}

fn servers<'a>(tree: &'a Node, errors: &'a Errors) -> Vec<(String, Cursor<'a>)> {
    let mut root = Section::open(tree, "", errors);
    let members = root.optional("servers").map(|c| c.members()).unwrap_or_default();
    match tree.entries().iter().find(|entry| entry.key == OTHERS_KEY) {
        Some(other) => {
            let found = format!("the field `{OTHERS_KEY}`, as other programs call it");
            let expected = "`servers`, with the same entries below it: command, args and env, or url and headers";
            errors.push(&other.key_place, OTHERS_KEY, found, expected);
        }
        None => root.close(),
    }
    let mut sound = Vec::with_capacity(members.len());
    for (name, place, cursor) in members {
        let odd = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-'));
        if name.is_empty() || name.len() > SERVER_NAME_MAX || name.contains(odd) {
            let expected = format!("1 to {SERVER_NAME_MAX} characters of a-z 0-9 _ -");
            errors.push(place, &cursor.path, format!("the server name {name:?}"), expected);
        }
        sound.push((name.to_owned(), cursor));
    }
    sound
}

fn import(name: &str, own: &str, cursor: &Cursor<'_>, known: &mut Tools) {
    let refuse = |found: String, expected: &str| {
        cursor.errors.push(&cursor.node.place, &cursor.path, found, expected);
    };
    let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if name.len() > limits::NAME_BYTES_MAX || name.contains(odd) {
        let max = limits::NAME_BYTES_MAX;
        let expected =
            format!("names of at most {max} characters of A-Z a-z 0-9 _ . -; choose a prefix, or exclude it");
        refuse(format!("the tool `{own}` as {name:?}"), &expected);
    }
    let id = default_id(name);
    if known.names.contains(name) || known.names_and_ids.contains(&id) {
        let expected = "a name that no other tool has; choose another prefix, or exclude it";
        refuse(format!("the tool `{own}` as `{name}`, which is another tool already"), expected);
    }
    known.names.insert(name.to_owned());
    known.names_and_ids.extend([name.to_owned(), id]);
}

struct ImportChoice<'a> {
    only: Option<Cursor<'a>>,
    exclude: Option<Cursor<'a>>,
    effects: Option<Cursor<'a>>,
    effect_keys: Option<Cursor<'a>>,
    effect_window: Option<Cursor<'a>>,
}

impl ImportChoice<'_> {
    fn effect_keys(&self, def: &McpServerDef) -> BTreeMap<String, EffectKey> {
        let members = self.effect_keys.as_ref().map(Cursor::members).unwrap_or_default();
        if let Some(window) = self.effect_window.as_ref().filter(|_| members.is_empty()) {
            window.refuse("effect_keys beside it: a window is the time for which the keys hold");
        }
        let read = |(name, place, key): (&str, _, Cursor<'_>)| {
            let Some(tool) = def.tools.iter().find(|tool| tool.name == name) else {
                let names = || def.tools.iter().map(|tool| tool.name.as_str());
                let expected = format!("an imported tool of the server: {}", suggest::list(names()));
                let found = format!("the unknown tool `{name}`");
                key.errors.suggest(place, &key.path, found, expected, suggest::closest(name, names()));
                return None;
            };
            let window = self.effect_window.as_ref();
            let key = effect_key::of(Some(&key), window, Some(&tool.input_schema), Some(def.effect(tool)))?;
            Some((name.to_owned(), key))
        };
        members.into_iter().filter_map(read).collect()
    }

    fn of(
        &self,
        pinned: &[McpDefinition],
        server: &Cursor<'_>,
        effects: &BTreeMap<String, Effect>,
    ) -> Vec<McpDefinition> {
        let known: BTreeSet<String> = pinned.iter().map(|tool| tool.name.clone()).collect();
        let listed = |list: &Option<Cursor<'_>>| -> BTreeSet<String> {
            let Some(list) = list else { return BTreeSet::new() };
            crate::policy::names(list, Some(&known), "a pinned tool of the server")
        };
        if let Some(cursor) = &self.effects {
            for name in effects.keys().filter(|name| !known.contains(*name)) {
                let names = || known.iter().map(String::as_str);
                let expected = format!("a pinned tool of the server: {}", suggest::list(names()));
                let meant = suggest::closest(name, names());
                let found = format!("the unknown tool `{name}`");
                cursor.errors.suggest(&cursor.node.place, &cursor.path, found, expected, meant);
            }
        }
        let only = listed(&self.only);
        let exclude = listed(&self.exclude);
        let wanted =
            |tool: &&McpDefinition| (self.only.is_none() || only.contains(&tool.name)) && !exclude.contains(&tool.name);
        let tools: Vec<McpDefinition> = pinned.iter().filter(wanted).cloned().collect();
        if tools.is_empty() {
            let place = &server.node.place;
            let path = &server.path;
            server.errors.push(place, path, "a server without an imported tool", "at least one tool");
        }
        tools
    }
}

fn server<'a>(name: &str, cursor: &Cursor<'a>) -> Option<(McpServerDef, ImportChoice<'a>)> {
    let mut s = cursor.section();
    let secrets = s.optional("secrets").map(|c| http::secrets(&c)).unwrap_or_default();
    let transport = transport(cursor, &mut s, &secrets);
    let effects = s.optional("effects");
    let effect = |(tool, _, c): (&str, _, Cursor<'_>)| Some((tool.to_owned(), c.choice(&EFFECTS)?));
    let timeout_ms: Option<u64> = s.optional("timeout_ms").and_then(|c| c.integer(1, TIMEOUT_MS_MAX));
    let least = timeout_ms.map_or(1, i128::from);
    let timeout_max_ms: Option<u64> = s.optional("timeout_max_ms").and_then(|c| c.integer(least, TIMEOUT_MS_MAX));
    let chosen = ImportChoice {
        only: s.optional("tools"),
        exclude: s.optional("exclude"),
        effects: effects.clone(),
        effect_keys: s.optional("effect_keys"),
        effect_window: s.optional("effect_window"),
    };
    let def = McpServerDef {
        connection: McpConnection { transport: transport.unwrap_or_else(nowhere), secrets },
        prefix: s.optional("prefix").and_then(|c| c.text().map(str::to_owned)).unwrap_or_else(|| format!("{name}__")),
        trust_annotations: s.optional("trust_annotations").and_then(|c| c.boolean()).unwrap_or(true),
        effects: effects.map(|c| c.members().into_iter().filter_map(effect).collect()).unwrap_or_default(),
        effect_keys: BTreeMap::new(),
        timeout: timeout_ms.map(Duration::from_millis),
        timeout_max: timeout_max_ms.map(Duration::from_millis),
        category: s.optional("category").and_then(|c| c.some_text()),
        required_capabilities: s.optional("required_capabilities").map(|c| c.words()).unwrap_or_default(),
        required_features: s.optional("required_features").map(|c| c.words()).unwrap_or_default(),
        requires_approval: s.optional("requires_approval").and_then(|c| c.boolean()).unwrap_or_default(),
        tools: Vec::new(),
        server_version: None,
    };
    s.close();
    matches!(cursor.node.value, Value::Mapping(_)).then_some((def, chosen))
}

fn nowhere() -> McpTransport {
    McpTransport::Stdio { command: String::new(), args: Vec::new(), env: BTreeMap::new(), cwd: None }
}

fn transport(server: &Cursor<'_>, s: &mut Section<'_>, secrets: &BTreeMap<String, SecretRef>) -> Option<McpTransport> {
    let command = s.optional("command");
    let url = s.optional("url");
    let of_child = ["args", "env", "cwd"].map(|field| s.optional(field));
    let of_http = ["headers", "allow_private"].map(|field| s.optional(field));
    let misplaced = |fields: &[Option<Cursor<'_>>], with: &str| {
        fields.iter().flatten().for_each(|c| c.refuse(format!("nothing: it has no meaning with `{with}`")));
    };
    match (command, url) {
        (Some(command), None) => {
            misplaced(&of_http, "command");
            let [args, env, cwd] = of_child;
            Some(McpTransport::Stdio {
                command: command.some_text()?,
                args: args.map(|c| texts(&c)).unwrap_or_default(),
                env: env.map(|c| templates::over_secrets(&c, secrets, templates::variable)).unwrap_or_default(),
                cwd: cwd.and_then(|c| c.some_text()),
            })
        }
        (None, Some(url)) => {
            misplaced(&of_child, "url");
            let [headers, allow_private] = of_http;
            Some(McpTransport::Http {
                url: address(&url)?,
                headers: headers.map(|c| templates::over_secrets(&c, secrets, header)).unwrap_or_default(),
                allow_private: allow_private.map(|c| http::hosts(&c)).unwrap_or_default(),
            })
        }
        (Some(_), Some(url)) => {
            url.refuse("either `command` or `url`, not both");
            None
        }
        (None, None) if matches!(server.node.value, Value::Mapping(_)) => {
            let expected = "`command` (a child process) or `url` (streamable HTTP)";
            server.errors.push(&server.node.place, &server.path, "a server that cannot be reached", expected);
            None
        }
        (None, None) => None,
    }
}

fn texts(cursor: &Cursor<'_>) -> Vec<String> {
    cursor.items().iter().filter_map(|item| item.text().map(str::to_owned)).collect()
}

fn header(name: &str) -> Result<(), &'static str> {
    if HEADERS_REFUSED.iter().any(|refused| refused.eq_ignore_ascii_case(name)) {
        return Err("a header that does not belong to the connection or the protocol");
    }
    if templates::is_header_name(name) { Ok(()) } else { Err("a name such as X-Request-Id") }
}

fn address(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    if text.contains("${") {
        return None; // The missing variable has already been noted.
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '#' | '{' | '}' | '\\');
    if host.is_empty() || text.contains(odd) || host.contains('@') {
        cursor.refuse("http:// or https://, a host, and no fragment, template or password");
        return None;
    }
    Some(text.to_owned())
}

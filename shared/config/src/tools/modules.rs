//! The sections `python` and `node` of `tools.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::document::reader::Cursor;
use crate::document::tree::Value;
use crate::tools::templates::{over_secrets, variable};
use crate::tools::{SecretRef, ShellLevel, ShellPath, TENANT};
use crate::tools::{http, shell};

const PROCESSES_MAX: i128 = 64;
const CONCURRENCY_MAX: i128 = 256;
const MODULES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 32;
/// The kernel limits the address of a Unix socket to 107 bytes (`man 7 unix`).
const SOCKET_BYTES_MAX: usize = 107;
/// A tool host starts its own interpreters, so these fields are not allowed with `host`.
const OF_OWN_PROCESSES: [&str; 8] = ["module", "path", "interpreter", "cwd", "memory_max", "env", "secrets", "sandbox"];
/// Other levels cannot contain a long-running process.
const LEVELS: [(&str, ShellLevel); 2] = [("basic", ShellLevel::Basic), ("strict", ShellLevel::Strict)];

pub const NODE_CODE: [&str; 6] = ["js", "mjs", "cjs", "ts", "mts", "cts"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToolRuntime {
    Python,
    Node,
}

impl ToolRuntime {
    pub const ALL: [Self; 2] = [Self::Python, Self::Node];

    #[must_use]
    pub const fn section(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    #[must_use]
    pub const fn interpreter(self) -> &'static str {
        match self {
            Self::Python => "python3",
            Self::Node => "node",
        }
    }

    fn expected_module(self, name: &str) -> Option<&'static str> {
        let is_sound = match self {
            Self::Python => name.split('.').all(|part| {
                let letter = |c: char| c.is_alphabetic() || c == '_';
                part.starts_with(letter) && part.chars().all(|c| letter(c) || c.is_numeric())
            }),
            Self::Node => {
                !name.starts_with('-')
                    && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
                    && !name.chars().any(char::is_control)
                    && name.rsplit_once('.').is_some_and(|(_, ending)| NODE_CODE.contains(&ending))
            }
        };
        let expected = match self {
            Self::Python => "the name of a module, such as shop.tools",
            Self::Node => "a file below a folder of `path`, such as shop/tools.js",
        };
        (!is_sound).then_some(expected)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModulesDef {
    pub runtime: ToolRuntime,
    /// The absolute path of a tool host's socket. `None` if the worker starts the interpreters.
    pub host: Option<String>,
    /// Empty with a tool host, which configures its own modules.
    pub modules: Vec<String>,
    /// A changed code file in these folders counts as a changed configuration.
    pub path: Vec<String>,
    /// The interpreter must be able to import the package `tickfleet`; default `python3` or `node`.
    pub interpreter: String,
    /// Default: the working directory of the worker.
    pub cwd: Option<String>,
    /// Default 2.
    pub processes: usize,
    /// Per process; default 8.
    pub concurrency: usize,
    /// Default 10,000.
    pub recycle_after_calls: u64,
    /// Resident bytes; default 512 MiB.
    pub memory_max: u64,
    /// Includes all imports; default 60 s.
    pub start_timeout: Duration,
    /// Between the cancel of a call and the end of its process; default 5 s.
    pub cancel_grace: Duration,
    pub env: BTreeMap<String, String>,
    pub secrets: BTreeMap<String, SecretRef>,
    pub sandbox: Option<ModulesSandbox>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModulesSandbox {
    /// `basic` or `strict`.
    pub level: ShellLevel,
    /// In addition to the interpreters' own files and [`ModulesDef::path`].
    pub paths: Vec<ShellPath>,
    pub tcp_ports: BTreeSet<u16>,
}

pub(crate) fn read(cursor: &Cursor<'_>, runtime: ToolRuntime) -> BTreeMap<String, ModulesDef> {
    let mut read = BTreeMap::new();
    for (name, place, entry) in cursor.members() {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
            let expected = format!("1 to {NAME_BYTES_MAX} letters, digits, _ and -");
            entry.errors.push(place, &entry.path, format!("the name {name:?}"), expected);
        }
        read.insert(format!("{}.{name}", runtime.section()), definition(&entry, runtime));
    }
    read
}

fn definition(cursor: &Cursor<'_>, runtime: ToolRuntime) -> ModulesDef {
    let mut s = cursor.section();
    let host = s.optional("host").and_then(|c| host(&c, cursor));
    let modules = match host {
        Some(_) => s.optional("module"),
        None => s.required("module"),
    };
    let secrets = s.optional("secrets").map(|c| secrets(&c)).unwrap_or_default();
    let second = Duration::from_secs(1);
    let minute = Duration::from_secs(60);
    let hour = Duration::from_secs(3_600);
    let grace_min = Duration::from_millis(10);
    let mib = 1 << 20;
    let tib = 1 << 40;
    let def = ModulesDef {
        runtime,
        modules: modules.map(|c| self::modules(&c, runtime)).unwrap_or_default(),
        host,
        path: s.optional("path").map(|c| folders(&c)).unwrap_or_default(),
        interpreter: s
            .optional("interpreter")
            .and_then(|c| c.some_text())
            .unwrap_or_else(|| runtime.interpreter().to_owned()),
        cwd: s.optional("cwd").and_then(|c| c.some_text()),
        processes: s.optional("processes").and_then(|c| c.integer(1, PROCESSES_MAX)).unwrap_or(2),
        concurrency: s.optional("concurrency").and_then(|c| c.integer(1, CONCURRENCY_MAX)).unwrap_or(8),
        recycle_after_calls: s
            .optional("recycle_after_calls")
            .and_then(|c| c.integer(1, i64::MAX.into()))
            .unwrap_or(10_000),
        memory_max: s.optional("memory_max").and_then(|c| c.size(16 * mib, tib)).unwrap_or(512 * mib),
        start_timeout: s.optional("start_timeout").and_then(|c| c.duration(second, hour)).unwrap_or(minute),
        cancel_grace: s.optional("cancel_grace").and_then(|c| c.duration(grace_min, minute)).unwrap_or(5 * second),
        env: s.optional("env").map(|c| over_secrets(&c, &secrets, variable)).unwrap_or_default(),
        secrets,
        sandbox: s.optional("sandbox").map(|c| sandbox(&c)),
    };
    s.close();
    if let (Some(_), Some(_)) = (&def.sandbox, &def.cwd) {
        cursor.refuse("no `cwd` beside `sandbox`: a confined interpreter works in a folder of its own");
    }
    def
}

fn sandbox(cursor: &Cursor<'_>) -> ModulesSandbox {
    let mut s = cursor.section();
    let sandbox = ModulesSandbox {
        level: s.required("level").and_then(|c| c.choice(&LEVELS)).unwrap_or_default(),
        paths: s.optional("paths").map(|c| shell::paths(&c)).unwrap_or_default(),
        tcp_ports: s.optional("tcp_ports").map(|c| shell::ports(&c)).unwrap_or_default(),
    };
    s.close();
    sandbox
}

fn host(cursor: &Cursor<'_>, entry: &Cursor<'_>) -> Option<String> {
    let path = cursor.some_text()?;
    if !path.starts_with('/') || path.len() > SOCKET_BYTES_MAX {
        cursor.refuse(format!("the absolute path of a Unix socket, of {SOCKET_BYTES_MAX} bytes at most"));
    }
    for (name, _, field) in entry.members().into_iter().filter(|(name, ..)| OF_OWN_PROCESSES.contains(name)) {
        field.refuse(format!("no `{name}` beside `host`: the tool host has its own"));
    }
    Some(path)
}

fn modules(cursor: &Cursor<'_>, runtime: ToolRuntime) -> Vec<String> {
    let items = match &cursor.node.value {
        Value::List(_) => cursor.items(),
        _ => vec![cursor.clone()],
    };
    if items.is_empty() || items.len() > MODULES_MAX {
        cursor.refuse(format!("1 to {MODULES_MAX} modules"));
    }
    let mut seen = BTreeSet::new();
    let read = |item: &Cursor<'_>| {
        let name = item.some_text()?;
        if let Some(expected) = runtime.expected_module(&name) {
            item.refuse(expected);
        } else if !seen.insert(name.clone()) {
            item.refuse("each module once");
        }
        Some(name)
    };
    items.iter().filter_map(read).collect()
}

fn folders(cursor: &Cursor<'_>) -> Vec<String> {
    cursor.items().iter().filter_map(Cursor::some_text).collect()
}

/// A process serves all tenants, so it must not have the secrets of one tenant.
fn secrets(cursor: &Cursor<'_>) -> BTreeMap<String, SecretRef> {
    let secrets = http::secrets(cursor);
    let of_a_tenant =
        |secret: &SecretRef| matches!(secret, SecretRef::Env(r) | SecretRef::File(r) if r.contains(TENANT));
    if secrets.values().any(of_a_tenant) {
        cursor.refuse(format!("no {TENANT}: a process runs calls of all tenants"));
    }
    secrets
}

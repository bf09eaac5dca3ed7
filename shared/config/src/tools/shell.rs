//! Reads the command of a shell tool.

use std::collections::{BTreeMap, BTreeSet};

use crate::document::reader::{Cursor, Section};
use crate::document::tree::Value;
use crate::tools::templates::{Arguments, Templates};
use crate::tools::{ShellDef, ShellLevel, ShellLimits, ShellPath};

const LEVELS: [(&str, ShellLevel); 3] =
    [("basic", ShellLevel::Basic), ("strict", ShellLevel::Strict), ("docker", ShellLevel::Docker)];
const BYTES_MAX: u64 = 1 << 40;
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
const TIME_MS_MAX: i128 = 3_600_000;

pub(crate) fn read(cursor: &Cursor<'_>, arguments: &Arguments) -> Option<ShellDef> {
    let templates = Templates { arguments, secrets: BTreeSet::new() };
    let mut s = cursor.section();
    let level = s.required("level").and_then(|c| c.choice(&LEVELS)).unwrap_or_default();
    let image = s.optional("image");
    if let (Some(image), false) = (&image, level == ShellLevel::Docker) {
        image.refuse("an image at the level docker only");
    }
    if image.is_none() && level == ShellLevel::Docker {
        cursor.refuse("an `image` beside the level docker: the command runs in it");
    }
    let def = ShellDef {
        level,
        command: s.required("command").map(|c| command(&c, &templates)).unwrap_or_default(),
        stdin: s.optional("stdin").and_then(|c| template(&c, &templates)),
        environment: s.optional("environment").map(|c| environment(&c)).unwrap_or_default(),
        paths: s.optional("paths").map(|c| paths(&c)).unwrap_or_default(),
        tcp_ports: s.optional("tcp_ports").map(|c| ports(&c)).unwrap_or_default(),
        transient_exits: s.optional("transient_exits").map(|c| exits(&c)).unwrap_or_default(),
        permanent_exits: s.optional("permanent_exits").map(|c| exits(&c)).unwrap_or_default(),
        limits: s.optional("limits").map(|c| limits(c.section())).unwrap_or_default(),
        image: image.and_then(|c| c.some_text()),
    };
    s.close();
    if !def.transient_exits.is_disjoint(&def.permanent_exits) {
        cursor.refuse("an exit code in one of transient_exits, permanent_exits");
    }
    matches!(cursor.node.value, Value::Mapping(_)).then_some(def)
}

/// Rejects a placeholder in the program, so that arguments of a call cannot change the program.
fn command(cursor: &Cursor<'_>, templates: &Templates<'_>) -> Vec<String> {
    let items = cursor.items();
    if items.is_empty() {
        cursor.refuse("a list: the program, then its arguments, one element each");
    }
    if let Some(program) = items.first().filter(|first| first.text().is_some_and(|text| text.contains("{{"))) {
        program.refuse("a program without {{argument}}: a call does not choose what is executed");
    }
    items.iter().filter_map(|item| template(item, templates)).collect()
}

fn template(cursor: &Cursor<'_>, templates: &Templates<'_>) -> Option<String> {
    let text = cursor.text()?;
    templates.check(cursor, text);
    Some(text.to_owned())
}

fn environment(cursor: &Cursor<'_>) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (name, _, value) in cursor.members() {
        let odd = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() || name.contains(odd) {
            value.refuse("a variable's name of letters, digits and _");
        }
        if let Some(text) = value.text() {
            if text.contains("{{") {
                value.refuse("no {{argument}}: a call does not set the environment");
            }
            all.insert(name.to_owned(), text.to_owned());
        }
    }
    all
}

pub(crate) fn paths(cursor: &Cursor<'_>) -> Vec<ShellPath> {
    let read = |item: Cursor<'_>| {
        let mut s = item.section();
        let path = s.required("path").and_then(|c| absolute(&c));
        let write = s.optional("write").and_then(|c| c.boolean()).unwrap_or_default();
        s.close();
        Some(ShellPath { path: path?, write })
    };
    cursor.items().into_iter().filter_map(read).collect()
}

fn absolute(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.some_text()?;
    if !text.starts_with('/') || text.split('/').any(|part| part == "..") {
        cursor.refuse("an absolute path without ..");
    }
    Some(text)
}

pub(crate) fn ports(cursor: &Cursor<'_>) -> BTreeSet<u16> {
    cursor.items().iter().filter_map(|item| item.integer(1, 65_535)).collect()
}

fn exits(cursor: &Cursor<'_>) -> BTreeSet<u8> {
    cursor.items().iter().filter_map(|item| item.integer(1, 255)).collect()
}

fn limits(mut s: Section<'_>) -> ShellLimits {
    let mut size = |name, max| s.optional(name).and_then(|c| c.size(1, max));
    let memory_bytes = size("memory_bytes", BYTES_MAX);
    let file_bytes = size("file_bytes", BYTES_MAX);
    let workspace_bytes = size("workspace_bytes", BYTES_MAX);
    let output_bytes = size("output_bytes", OUTPUT_BYTES_MAX);
    let mut number = |name, max| s.optional(name).and_then(|c| c.integer(1, max));
    let limits = ShellLimits {
        memory_bytes,
        file_bytes,
        workspace_bytes,
        output_bytes,
        cpu_ms: number("cpu_ms", TIME_MS_MAX),
        wall_ms: number("wall_ms", TIME_MS_MAX),
        processes: number("processes", 10_000),
        open_files: number("open_files", 100_000),
        workspace_files: number("workspace_files", 10_000_000),
    };
    s.close();
    limits
}

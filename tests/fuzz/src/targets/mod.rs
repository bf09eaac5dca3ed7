//! The targets, one module per subject.

mod documents;
mod files;
mod messages;
mod plain;
mod redaction;
mod schema;
mod services;
mod stored;

use crate::corpus::Source;
use crate::target::Target;

pub static TARGETS: &[Target] = &[
    target("turn", messages::turn, &[Source::Turns, Source::Json], 3_000),
    target("task", messages::task, &[Source::Json], 6_000),
    target("dialect", messages::dialect, &[Source::Calls], 3_000),
    target("answer", plain::answer, &[Source::Answers], 4_000),
    target("json", plain::json, &[Source::Json], 3_000),
    target("schema", schema::schema, &[Source::Schemas], 800),
    target("redaction", redaction::redaction, &[Source::Json, Source::Answers], 1_000),
    target("http_answer", services::http_answer, &[Source::HttpAnswers], 3_000),
    target("http_request", services::http_request, &[Source::Arguments], 3_000),
    target("token", services::token, &[Source::HttpAnswers], 3_000),
    target("mcp", services::mcp, &[Source::McpMessages], 500),
    target("mcp_lock", files::mcp_lock, &[Source::Locks], 200),
    target("config", files::config, &[Source::Configurations], 60),
    target("openapi", files::openapi, &[Source::Documents], 200),
    target("records", stored::records, &[Source::Json], 4_000),
    target("words", stored::words, &[Source::Json], 4_000),
    target("document", documents::document, &[Source::Json, Source::Answers], 3_000),
];

const fn target(name: &'static str, run: fn(&[u8]), corpus: &'static [Source], mutations: usize) -> Target {
    Target { name, run, corpus, mutations }
}

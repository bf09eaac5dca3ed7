//! The targets, one module per subject.

mod dictionary;
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
    Target {
        name: "turn",
        parses: "a turn on the `turns` stream, in any dialect, by a producer",
        run: messages::turn,
        corpus: &[Source::Turns, Source::Json],
        words: &dictionary::TURN,
        mutations: 3_000,
    },
    Target {
        name: "task",
        parses: "a message on the `tasks` stream: a task, a cancel, what a runtime outside says, by a producer",
        run: messages::task,
        corpus: &[Source::Json],
        words: &dictionary::TASK,
        mutations: 6_000,
    },
    Target {
        name: "dialect",
        parses: "the list of calls in a provider's response, by a model; and what the results become",
        run: messages::dialect,
        corpus: &[Source::Calls],
        words: &dictionary::CALLS,
        mutations: 3_000,
    },
    Target {
        name: "answer",
        parses: "the plain answer of a model without function calling",
        run: plain::answer,
        corpus: &[Source::Answers],
        words: &dictionary::ANSWER,
        mutations: 4_000,
    },
    Target {
        name: "json",
        parses: "JSON under bounds, the strings in it, and names of tools on the wire, by anybody",
        run: plain::json,
        corpus: &[Source::Json],
        words: &dictionary::JSON,
        mutations: 3_000,
    },
    Target {
        name: "schema",
        parses: "the schema of a tool, by its author, and arguments, by a model",
        run: schema::schema,
        corpus: &[Source::Schemas],
        words: &dictionary::SCHEMA,
        mutations: 800,
    },
    Target {
        name: "redaction",
        parses: "whatever is written down, for the secrets in it",
        run: redaction::redaction,
        corpus: &[Source::Json, Source::Answers],
        words: &dictionary::SECRETS,
        mutations: 1_000,
    },
    Target {
        name: "http_answer",
        parses: "the answer of a web service: status, headers, body",
        run: services::http_answer,
        corpus: &[Source::HttpAnswers],
        words: &dictionary::HTTP,
        mutations: 3_000,
    },
    Target {
        name: "http_request",
        parses: "the arguments of a model, as they become a request",
        run: services::http_request,
        corpus: &[Source::Arguments],
        words: &dictionary::HTTP,
        mutations: 3_000,
    },
    Target {
        name: "token",
        parses: "the answer of a token service (OAuth 2)",
        run: services::token,
        corpus: &[Source::HttpAnswers],
        words: &dictionary::TOKEN,
        mutations: 3_000,
    },
    Target {
        name: "mcp",
        parses: "a message of an MCP server: results, errors, lists of tools, notifications",
        run: services::mcp,
        corpus: &[Source::McpMessages],
        words: &dictionary::MCP,
        mutations: 500,
    },
    Target {
        name: "mcp_lock",
        parses: "`mcp.lock.yaml`: pinned definitions, by an MCP server's author and an operator's hand",
        run: files::mcp_lock,
        corpus: &[Source::Locks],
        words: &dictionary::LOCK,
        mutations: 200,
    },
    Target {
        name: "config",
        parses: "the files of a configuration, YAML, by an operator",
        run: files::config,
        corpus: &[Source::Configurations],
        words: &dictionary::CONFIG,
        mutations: 60,
    },
    Target {
        name: "openapi",
        parses: "an OpenAPI document, by whoever has a web service",
        run: files::openapi,
        corpus: &[Source::Documents],
        words: &dictionary::OPENAPI,
        mutations: 200,
    },
    Target {
        name: "records",
        parses: "records, slices, logs and declarations as they stand in Redis, where a hand may have changed them",
        run: stored::records,
        corpus: &[Source::Json],
        words: &dictionary::RECORDS,
        mutations: 4_000,
    },
    Target {
        name: "words",
        parses: "ids, names of turns and queues, durations, sizes, versions, hosts, Redis' address",
        run: stored::words,
        corpus: &[Source::Json],
        words: &dictionary::WORDS,
        mutations: 4_000,
    },
    Target {
        name: "document",
        parses: "a document of a knowledge base: Markdown, text, lines of JSON, by anybody",
        run: documents::document,
        corpus: &[Source::Json, Source::Answers],
        words: &dictionary::DOCUMENT,
        mutations: 3_000,
    },
];

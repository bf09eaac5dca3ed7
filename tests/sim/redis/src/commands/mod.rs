//! The commands.

mod expiry;
mod groups;
mod hashes;
mod keys;
mod parse;
mod pending;
mod server;
mod sets;
mod stream_reads;
mod streams;
mod strings;
mod table;
mod xinfo;
mod zsets;

pub(crate) use stream_reads::settled;
pub(crate) use table::find;

use crate::db::Db;
use crate::reply::Reply;

/// What a command is given, its name first.
pub(crate) type Args<'a> = &'a [&'a [u8]];

/// Why a command has no reply yet, or only an error.
#[derive(Debug)]
pub(crate) enum Stop {
    Error(Reply),
    /// It waits for entries until then, µs; none: without end.
    Block(Option<i64>),
}

impl From<Reply> for Stop {
    fn from(reply: Reply) -> Self {
        Self::Error(reply)
    }
}

pub(crate) type Outcome = Result<Reply, Stop>;

/// What carries a command out.
pub(crate) type Run = fn(&mut Db, Args<'_>) -> Outcome;

pub(crate) fn fail<T>(text: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Error(Reply::error(text)))
}

pub(crate) fn syntax<T>() -> Result<T, Stop> {
    fail("ERR syntax error")
}

/// Whether an option is this word, however it is written.
pub(crate) fn is(text: &[u8], word: &str) -> bool {
    text.eq_ignore_ascii_case(word.as_bytes())
}

/// Bytes as they stand in an error.
pub(crate) fn shown(text: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(text)
}

/// The error of a family of commands that has no such member.
pub(crate) fn no_subcommand<T>(args: Args<'_>) -> Result<T, Stop> {
    let family = shown(args[0]).to_uppercase();
    fail(format!(
        "ERR unknown subcommand or wrong number of arguments for '{}'. Try {family} HELP.",
        shown(args.get(1).copied().unwrap_or_default())
    ))
}

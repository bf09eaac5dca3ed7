//! The story of a game: its commands in words.

use tickfleet_sim_redis::Reply;

use crate::server::Done;

/// A command as the story tells it.
pub(super) fn told(owner: &str, verb: impl Fn(&str) -> Option<&'static str>, done: &Done<'_>) -> String {
    let words: Vec<String> = done.args.iter().map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
    let (head, from) = match words.first().map(String::as_str) {
        Some("EVALSHA") => (verb(&words[1]).unwrap_or("?").to_uppercase(), 4),
        Some("SCRIPT") => ("SCRIPT LOAD".into(), words.len()),
        _ => (words.first().cloned().unwrap_or_default(), 1),
    };
    let args = words.get(from..).unwrap_or_default().join(" ");
    let (args, reply) = (short(&args, 300), short(&shown(done.reply), 200));
    format!("{owner}: {head} {args} -> {reply}")
}

pub(super) fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A reply as redis-cli would show it, in one line.
fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Status(word) | Reply::Error(word) => word.clone(),
        Reply::Int(number) => number.to_string(),
        Reply::Bulk(bytes) => format!("{:?}", String::from_utf8_lossy(bytes)),
        Reply::Nil | Reply::NilArray => "(nil)".into(),
        Reply::Array(all) => format!("[{}]", all.iter().map(shown).collect::<Vec<_>>().join(" ")),
    }
}

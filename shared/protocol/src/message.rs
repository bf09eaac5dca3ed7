//! Reads a message from bytes. If the message is invalid, the parts that can be read are kept for the reply.

pub(crate) mod calls;
pub(crate) mod fields;
pub(crate) mod owner;
pub(crate) mod problem;

use super::json::{Bounds, Document, JsonError};
use super::rejected_message::RejectedMessage;
use problem::MessageProblem;
use tickfleet_model::{RejectionCode, limits};

/// The levels of a message: message, content, list of calls, call, `function`, and its members.
const LEVELS: usize = 5;

pub(super) fn read_message<T>(
    bytes: &[u8],
    strict: impl FnOnce(&Document<'_>) -> Result<T, MessageProblem>,
) -> Result<T, Box<RejectedMessage>> {
    const BOUNDS: Bounds = Bounds { bytes_max: limits::TURN_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if bytes.len() <= BOUNDS.bytes_max => text,
        _ => return Err(salvage(bytes, BOUNDS)),
    };
    let (document, problem) = Document::read(text, BOUNDS.depth_max, LEVELS);
    let verdict = match problem {
        Some(error) => Err(malformed(&error)),
        None => strict(&document),
    };
    verdict.map_err(|problem| RejectedMessage::of(problem, &document))
}

#[must_use]
pub fn glance(bytes: &[u8]) -> Box<RejectedMessage> {
    let text = String::from_utf8_lossy(bytes.get(..limits::SALVAGE_BYTES_MAX).unwrap_or(bytes));
    let (document, _) = Document::read(&text, limits::JSON_DEPTH_MAX, LEVELS);
    RejectedMessage::of(MessageProblem::new(RejectionCode::MalformedJson, ""), &document)
}

fn salvage(bytes: &[u8], bounds: Bounds) -> Box<RejectedMessage> {
    let start = bytes.get(..limits::SALVAGE_BYTES_MAX).unwrap_or(bytes);
    let text = String::from_utf8_lossy(start);
    let (document, other) = Document::read(&text, bounds.depth_max, LEVELS);
    let problem = match super::json::check(bytes, bounds) {
        Err(error) => malformed(&error),
        Ok(()) => other.map_or_else(
            || MessageProblem::new(RejectionCode::MalformedJson, "the message is not UTF-8"),
            |e| malformed(&e),
        ),
    };
    RejectedMessage::of(problem, &document)
}

fn malformed(error: &JsonError) -> MessageProblem {
    MessageProblem::new(error.problem.code(), error.to_string())
}

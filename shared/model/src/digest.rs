//! Digests of turns and tasks, and idempotency keys of calls. Two submissions with the same ID and digest are the same
//! turn.

use sha2::{Digest as _, Sha256};

use super::{AgentId, Task, TenantId, Turn, TurnId};

/// Returns 32 hexadecimal characters. A producer may submit a turn again with a new deadline, so only agent, task,
/// dialect, `allowed_tools` and calls are covered.
#[must_use]
pub fn content_digest(turn: &Turn) -> String {
    let mut hash = Sha256::new();
    part(&mut hash, Some(turn.agent.as_str()));
    part(&mut hash, turn.task.as_ref().map(super::TaskId::as_str));
    part(&mut hash, Some(turn.dialect.as_str()));
    // Hashed only if set, so that turns without `allowed_tools` keep their digests.
    if let Some(names) = &turn.allowed_tools {
        hash.update((names.len() as u64).to_be_bytes());
        names.iter().for_each(|name| part(&mut hash, Some(name)));
    }
    for call in &turn.calls {
        part(&mut hash, call.provider_id.as_deref());
        part(&mut hash, Some(&call.tool));
        part(&mut hash, Some(&call.arguments));
    }
    hex(&hash.finalize()[..16])
}

/// Returns 32 hexadecimal characters that cover target, work and delegator.
#[must_use]
pub fn task_digest(task: &Task) -> String {
    let mut hash = Sha256::new();
    let input = task.input.as_ref().map_or("", |input| input.get());
    let delegator = task.delegator.as_ref().map_or("", AgentId::as_str);
    for text in [task.target.as_str(), &task.description, input, delegator] {
        part(&mut hash, Some(text));
    }
    hex(&hash.finalize()[..16])
}

/// Returns 64 hexadecimal characters. All attempts and submissions of a call have the same key, and every other call
/// has a different key.
#[must_use]
pub fn idempotency_key(tenant: &TenantId, turn: &TurnId, digest: &str, position: usize) -> String {
    let mut hash = Sha256::new();
    part(&mut hash, Some(tenant.as_str()));
    part(&mut hash, Some(turn.as_str()));
    part(&mut hash, Some(digest));
    hash.update((position as u64).to_be_bytes());
    hex(&hash.finalize())
}

/// Returns 32 hexadecimal characters that do not reveal the text. Equal texts have different hashes if `of` differs.
#[must_use]
pub(crate) fn short_hash(of: &str, text: &str) -> String {
    let mut hash = Sha256::new();
    part(&mut hash, Some(of));
    part(&mut hash, Some(text));
    hex(&hash.finalize()[..16])
}

/// Returns 64 hexadecimal characters that do not reveal the texts.
#[must_use]
pub(crate) fn hash_of<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    texts.for_each(|text| part(&mut hash, Some(text)));
    hex(&hash.finalize())
}

/// The hash of a missing part differs from the hash of every text.
fn part(hash: &mut Sha256, text: Option<&str>) {
    match text {
        Some(text) => {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        }
        None => hash.update(u64::MAX.to_be_bytes()),
    }
}

/// Two lower-case digits for each byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    // Formatting each byte would take six times as long, and every call is hashed.
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
    let mut text = String::with_capacity(bytes.len() * 2);
    text.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;
    use crate::{AgentId, Call, Context, Dialect, Priority, TaskId};

    fn call(provider_id: Option<&str>, tool: &str, arguments: &str) -> Call {
        Call { provider_id: provider_id.map(Into::into), tool: tool.into(), arguments: arguments.into() }
    }

    fn turn(calls: Vec<Call>) -> Turn {
        Turn {
            id: None,
            tenant: TenantId::new("acme").unwrap(),
            agent: AgentId::new("kelly").unwrap(),
            priority: Priority::Normal,
            deadline_ms: None,
            reply_to: None,
            dialect: Dialect::Raw,
            task: None,
            context: Context::default(),
            want_audits: false,
            strict: false,
            allowed_tools: None,
            parallel_reads: false,
            pending_approval: false,
            local_calls: false,
            calls,
        }
    }

    #[test]
    fn the_digest_covers_the_content_but_not_deadline_or_priority() {
        let base = content_digest(&turn(vec![call(None, "a", "{}")]));
        assert_eq!(base.len(), 32);
        for other in [
            turn(vec![call(Some(""), "a", "{}")]),
            turn(vec![call(None, "a{", "}")]),
            turn(vec![call(None, "a", "{ }")]),
            turn(vec![call(None, "a", "{}"), call(None, "a", "{}")]),
            Turn { task: Some(TaskId::new("t").unwrap()), ..turn(vec![call(None, "a", "{}")]) },
            Turn { dialect: Dialect::Anthropic, ..turn(vec![call(None, "a", "{}")]) },
            Turn { agent: AgentId::new("k").unwrap(), ..turn(vec![call(None, "a", "{}")]) },
        ] {
            assert_ne!(content_digest(&other), base, "{other:?}");
        }
        let later = Turn { deadline_ms: Some(1), priority: Priority::Urgent, ..turn(vec![call(None, "a", "{}")]) };
        assert_eq!(content_digest(&later), base);
    }

    #[test]
    fn idempotency_keys_differ_by_position_and_stay_the_same_over_time() {
        let tenant = TenantId::new("acme").unwrap();
        let id = TurnId::new("t-1").unwrap();
        let key = |position| idempotency_key(&tenant, &id, "d", position);
        assert_ne!(key(0), key(1));
        // This value must not change: after an upgrade, turns that are already running must still send the same keys.
        assert_eq!(key(0), "fcd8f8f91ab6ef9204d06fb0640b6f4316b8f31993c6f71c5c2806dbb7c87fcc");
    }
}

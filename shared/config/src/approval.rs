//! `approval` of a tool or rule, and `approvers` of `permissions.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tickfleet_model::approval::{ApprovalDemand, is_approver_word};
use tickfleet_model::{AgentId, limits, suggest};

use crate::document::errors::{ConfigLocation, Errors};
use crate::document::reader::Cursor;

const NARROW_MAX: usize = 16;
const WORD: &str = "1 to 64 of A-Z a-z 0-9 _ . @ -";

#[derive(Debug, Clone)]
pub(super) struct NamedRole {
    place: ConfigLocation,
    path: String,
    role: String,
}

#[derive(Debug, Clone)]
struct Quorum {
    place: ConfigLocation,
    path: String,
    by: BTreeSet<String>,
    quorum: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ApprovalDemands {
    roles: Vec<NamedRole>,
    quorums: Vec<Quorum>,
}

pub(super) fn demand(cursor: &Cursor<'_>, demands: &mut ApprovalDemands) -> ApprovalDemand {
    let mut s = cursor.section();
    let mut by = BTreeSet::new();
    for item in s.optional("by").map(|c| c.items()).unwrap_or_default() {
        let Some(role) = item.some_text() else { continue };
        let place = item.node.place.clone();
        let path = item.path.clone();
        demands.roles.push(NamedRole { place, path, role: role.clone() });
        if !by.insert(role) {
            item.refuse("each name once");
        }
    }
    let quorum = s.optional("quorum").and_then(|c| {
        let quorum: u32 = c.integer(1, i128::from(limits::APPROVERS_QUORUM_MAX))?;
        let place = c.node.place.clone();
        let path = c.path.clone();
        let by = by.clone();
        demands.quorums.push(Quorum { place, path, by, quorum: usize::try_from(quorum).unwrap_or(usize::MAX) });
        Some(quorum)
    });
    let most = Duration::from_millis(limits::DEADLINE_MS_MAX.unsigned_abs());
    let expires = s.optional("expires").and_then(|c| c.duration(Duration::from_secs(1), most));
    let narrow = s.optional("narrow").map(|c| pointers(&c)).unwrap_or_default();
    s.close();
    let expires_ms = expires.and_then(|expires| i64::try_from(expires.as_millis()).ok());
    ApprovalDemand { by, quorum: quorum.unwrap_or(1), expires_ms, narrow }
}

fn pointers(cursor: &Cursor<'_>) -> BTreeSet<String> {
    let words = cursor.words();
    if words.is_empty() || words.len() > NARROW_MAX || words.iter().any(|pointer| !pointer.starts_with('/')) {
        cursor.refuse(format!("1 to {NARROW_MAX} JSON pointers to arguments, such as [/amount]"));
    }
    words
}

/// No approver may have the name of an agent, so that no agent can approve its own calls.
pub(super) fn approvers(cursor: &Cursor<'_>, agents: Option<&BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let mut approvers = BTreeMap::new();
    for (name, place, person) in cursor.members() {
        if !is_approver_word(name) {
            cursor.errors.push(place, &person.path, format!("the name {name:?}"), format!("a name: {WORD}"));
        } else if agents.is_some_and(|agents| agents.contains(name)) && AgentId::new(name).is_ok() {
            let expected = "the name of a person: no agent may approve";
            cursor.errors.push(place, &person.path, format!("the agent {name:?}"), expected);
        }
        let mut s = person.section();
        let roles = s.optional("roles").map(|c| roles(&c)).unwrap_or_default();
        s.close();
        approvers.insert(name.to_owned(), roles);
    }
    if approvers.len() > limits::APPROVERS_MAX {
        cursor.refuse(format!("at most {} approvers", limits::APPROVERS_MAX));
    }
    approvers
}

fn roles(cursor: &Cursor<'_>) -> BTreeSet<String> {
    let roles = cursor.words();
    if roles.iter().any(|role| !is_approver_word(role)) || roles.len() > limits::APPROVER_ROLES_MAX {
        cursor.refuse(format!("at most {} roles, each {WORD}", limits::APPROVER_ROLES_MAX));
    }
    roles
}

/// An impossible demand is an error. Otherwise, the call would wait until its deadline. A quorum without any possible
/// approver is allowed, because such calls are denied at once.
pub(super) fn check(demands: &ApprovalDemands, approvers: &BTreeMap<String, BTreeSet<String>>, errors: &Errors) {
    let known: BTreeSet<&str> = approvers.values().flatten().map(String::as_str).collect();
    for NamedRole { place, path, role } in demands.roles.iter().filter(|named| !known.contains(named.role.as_str())) {
        let names = || known.iter().copied();
        let expected = format!("a role that an approver of permissions.yaml has: {}", suggest::list(names()));
        errors.suggest(place, path, format!("the unknown role `{role}`"), expected, suggest::closest(role, names()));
    }
    for Quorum { place, path, by, quorum } in &demands.quorums {
        let may = approvers.values().filter(|roles| by.is_empty() || !by.is_disjoint(roles)).count();
        if may > 0 && *quorum > may {
            let expected = format!("at most {may}: permissions.yaml has only that many approvers for it");
            errors.push(place, path, format!("a quorum of {quorum}"), expected);
        }
    }
}

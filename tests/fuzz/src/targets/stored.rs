//! Stored records that an operator may have changed by hand, and short values such as IDs.

use tickfleet_config::{RedisUrl, units};
use tickfleet_core::turn::Slice;
use tickfleet_core::{EntryId, Record, keys};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::version::{self, Selector};
use tickfleet_model::{AgentId, ConsumerId, InboxName, Priority, TaskId, TenantId, TurnId, day, limits};
use tickfleet_outbound::Guard;
use tickfleet_store::{AdmissionNote, Queue, TurnName, entry_ms, fuzzing};

use crate::bounds::text;

pub(super) fn records(bytes: &[u8]) {
    if let Some((turn, admissions, tries)) = fuzzing::turn(bytes) {
        assert!(admissions.len() + tries.len() <= turn.notes.len());
        let (back, ..) = fuzzing::turn(&turn.encode()).expect("a record reads back");
        assert_eq!(back, turn);
    }
    if let Some(finished) = fuzzing::finished(bytes) {
        assert!(finished.reply.len() <= bytes.len());
        let _ = serde_json::from_str::<tickfleet_client::Reply>(&finished.reply);
    }
    let fields = bytes.split(|byte| *byte == b'\n').map(field).collect();
    if let Ok(slice) = Slice::read(keys::ready(Priority::Normal), EntryId::new("1700000000000-0"), &fields) {
        assert_eq!(slice.turn.state.in_flight_upto(), Some(slice.turn.position + slice.calls.len()));
    }
    if let Ok(policy) = fuzzing::tenant(bytes) {
        let back: TenantPolicy = serde_json::from_value(serde_json::to_value(&policy).unwrap()).unwrap();
        assert_eq!(back, policy);
        assert!(policy.time_zone.as_deref().is_none_or(|zone| day::zone(zone).is_ok()));
    }
    let given = text(bytes);
    assert!(AdmissionNote::read_all(&given).len() <= given.split(';').count());
}

fn field(line: &[u8]) -> (std::sync::Arc<str>, bytes::Bytes) {
    let (name, value) = match line.iter().position(|byte| *byte == b' ') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, &[][..]),
    };
    (text(name).into(), value.to_vec().into())
}

pub(super) fn words(bytes: &[u8]) {
    let word = text(bytes);
    macro_rules! ids {
        ($($id:ident),+) => {
            $(if let Ok(id) = $id::new(&word) {
                assert_eq!(id.as_str(), word);
                assert!(word.len() <= limits::ID_BYTES_MAX && !word.contains([':', ' ', '\n']), "{word:?}");
            })+
        };
    }
    ids!(TenantId, AgentId, TurnId, TaskId, ConsumerId, InboxName);
    if let Some(name) = TurnName::parse(&word) {
        assert_eq!(name.to_string(), word);
    }
    if let Some(queue) = Queue::parse(&word) {
        assert_eq!(queue.to_string(), word);
    }
    if let Some(duration) = units::parse_duration(&word) {
        assert_eq!(units::parse_duration(&units::format_duration(duration)), Some(duration));
    }
    if let Some(size) = units::parse_size(&word) {
        assert_eq!(units::parse_size(&units::format_size(size)), Some(size));
    }
    if let Some(url) = RedisUrl::new(&word) {
        assert_eq!(url.expose(), word);
        assert_password_is_masked(&url, &word);
    }
    let (name, label) = version::split(&word);
    assert!(word.starts_with(name) && word.ends_with(label.unwrap_or_default()));
    if let (Some(version), Some(selector)) = (version::parse(&word), Selector::parse(&word)) {
        let _ = selector.takes(&version);
        assert_eq!(version::parse(&version.to_string()), Some(version));
    }
    // The search for an unknown zone is slow, so this skips words without a slash.
    if let Some(Ok(zone)) = word.contains('/').then(|| day::zone(&word)) {
        let (begin, end) = day::day_bounds(1_700_000_000_000, zone);
        assert!(begin <= 1_700_000_000_000 && end > 1_700_000_000_000);
    }
    let _ = (Guard::parse(word.split(',')), entry_ms(&word));
}

fn assert_password_is_masked(url: &RedisUrl, word: &str) {
    let Some((_, rest)) = word.split_once("://") else { return };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((user, _)) = authority.rsplit_once('@') else { return };
    let Some((_, password)) = user.split_once(':') else { return };
    if password.len() >= 8 && word.matches(password).count() == 1 {
        assert!(!url.to_string().contains(password), "{url}");
        assert!(!format!("{url:?}").contains(password), "{url:?}");
    }
}

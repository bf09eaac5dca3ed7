//! What is read back from Redis, where somebody's hand may have changed it; and the small words of the whole system.

use std::collections::HashMap;

use tickfleet_config::{RedisUrl, units};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::version::{self, Selector};
use tickfleet_model::{AgentId, ConsumerId, InboxName, Priority, TaskId, TenantId, TurnId, day, limits};
use tickfleet_outbound::Guard;
use tickfleet_store::fields::slice;
use tickfleet_store::{
    AdmissionNote, AgentBudget, Entry, FailedTry, Queue, SliceEntry, SliceMeta, TurnName, entry_ms, fuzzing,
};

use crate::bounds::text;

/// A record: lines of `<field> <value>`, as hashes and entries of streams have them.
pub(super) fn records(bytes: &[u8]) {
    let lines: Vec<(&[u8], &[u8])> = bytes.split(|byte| *byte == b'\n').map(field).collect();
    let fields: HashMap<String, String> = lines.iter().map(|(name, value)| (text(name), text(value))).collect();
    let given = fields.len();
    let record = fuzzing::turn_record(fields.clone());
    assert!(record.results.len() <= given.min(record.done), "no more results than there are fields");
    let _ = (record.slice_meta(), record.is_ending(), fuzzing::accounts(&text(bytes), &fields));
    entry(&lines);
    let finished = fuzzing::finished(&text(bytes));
    assert!(finished.reply.len() <= text(bytes).len());
    let _ = serde_json::from_str::<tickfleet_client::Reply>(&finished.reply);
    let _ = AgentBudget::unpack(bytes);
    if let Ok(policy) = fuzzing::tenant(bytes) {
        let back: TenantPolicy = serde_json::from_value(serde_json::to_value(&policy).unwrap()).unwrap();
        assert_eq!(back, policy);
        assert!(policy.time_zone.as_deref().is_none_or(|zone| day::zone(zone).is_ok()));
    }
    log(&text(bytes));
}

fn field(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|byte| *byte == b' ') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, &[]),
    }
}

/// The same lines as the entry of a slice.
fn entry(lines: &[(&[u8], &[u8])]) {
    let fields = lines.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    let entry = Entry { id: "1700000000000-0".into(), fields };
    assert!(entry.field(slice::NAME).is_none_or(|name| name.len() <= entry.bytes()));
    match SliceEntry::parse(Queue::Ready(Priority::Normal), &entry) {
        Ok(slice) => {
            assert!(slice.calls.len() <= lines.len());
            let meta = serde_json::to_string(&slice.meta).expect("a meta is JSON");
            let back: SliceMeta = serde_json::from_str(&meta).expect("a meta reads back");
            assert_eq!(format!("{back:?}"), format!("{:?}", slice.meta), "{meta}");
            assert_eq!(SliceMeta::submitted_of(&meta), slice.meta.submitted());
        }
        Err(problem) => assert!(!problem.is_empty()),
    }
}

fn log(given: &str) {
    let notes = given.split(';').count();
    assert!(AdmissionNote::read_all(given).len() + FailedTry::read_all(given).len() <= notes);
    let cause = fuzzing::cause(given);
    assert!(cause.len() <= limits::LOG_BYTES_MAX && !cause.contains([' ', ',', ';', '\n']), "{cause}");
    let written = format!("R1,2,3,4,{cause}");
    let back = FailedTry::read_all(&written);
    assert_eq!(back.len(), 1, "{written}");
    assert!(given.starts_with(&back[0].cause), "{given:?} came back as {:?}", back[0].cause);
}

/// A word: whatever reads it and writes it again makes the same of it.
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
    // What no zone is named is compared with every zone: that of each word is not worth the time.
    if let Some(Ok(zone)) = word.contains('/').then(|| day::zone(&word)) {
        let (begin, end) = day::day_bounds(1_700_000_000_000, zone);
        assert!(begin <= 1_700_000_000_000 && end > 1_700_000_000_000);
    }
    let _ = (Guard::parse(word.split(',')), entry_ms(&word));
}

/// `scheme://user:password@host`: the password shows nowhere.
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

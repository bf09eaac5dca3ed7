//! The first line of an export says what excuses what is cut off: nobody has signed it, and nothing is.

use std::collections::BTreeMap;

use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines::{self, Header, Line};
use tickfleet_proof::seal::{EntryId, SealBody};
use tickfleet_proof::verify::{Expected, Kind, Verdict};

use super::{export, verify, verify_as};

/// What the first line says, edited so that it excuses what is cut off.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Edit {
    /// It is of one tenant alone, and all of the others is gone.
    Tenant,
    /// It is of one tenant alone, and the others are there.
    TenantAlone,
    /// It is of another fleet, and the newest seals are gone with their entries.
    Fleet,
    /// It goes on behind this seal, and all entries before are gone.
    Follows,
    /// It goes on behind all that there is, and every entry is gone.
    FollowsAll,
}

pub(crate) const HEADERS: [Edit; 5] = [Edit::Tenant, Edit::TenantAlone, Edit::Fleet, Edit::Follows, Edit::FollowsAll];

/// Answers what it has to be called.
pub(crate) fn edit_header(lines: &mut Vec<String>, way: Edit, seal: usize) -> Vec<Kind> {
    let Some(Line::Header(mut header)) = Line::read(&lines[0]) else { panic!("a header") };
    let ids: Vec<EntryId> = lines.iter().filter_map(|line| entry_id(line)).collect();
    let kinds = match way {
        Edit::Tenant => {
            header.tenant = Some("acme".into());
            lines.retain(|line| tenant_of(line).is_none_or(|tenant| tenant == "acme"));
            vec![Kind::Truncated]
        }
        Edit::TenantAlone => {
            header.tenant = Some("acme".into());
            vec![Kind::HeaderWrong]
        }
        Edit::Fleet => {
            header.fleet = "x".into();
            lines.truncate(seal);
            vec![Kind::HeaderWrong, Kind::Truncated]
        }
        Edit::Follows | Edit::FollowsAll => {
            let at = if matches!(way, Edit::Follows) { seal } else { lines.len() };
            let upto = lines[..at].iter().filter_map(|line| entry_id(line)).max().unwrap_or(ids[0]);
            header.follows = BTreeMap::from([(0, format!("{upto} 0-0 0"))]);
            lines.retain(|line| entry_id(line).is_none_or(|id| id > upto));
            vec![Kind::Missing]
        }
    };
    lines[0] = lines::header(&header);
    kinds
}

fn entry_id(line: &str) -> Option<EntryId> {
    let Some(Line::Entry(entry)) = Line::read(line) else { return None };
    entry.id.parse().ok()
}

fn tenant_of(line: &str) -> Option<String> {
    let text = match Line::read(line)? {
        Line::Entry(entry) => entry.text.into_owned(),
        Line::Seal(seal) => seal.body.to_owned(),
        _ => return None,
    };
    let said: serde_json::Value = serde_json::from_str(&text).ok()?;
    said["tenant"].as_str().map(str::to_owned)
}

#[test]
fn what_the_first_line_says_excuses_nothing() {
    let made = export(1, 12, 0);
    let seal = made.lines.len() - 4;
    for (way, without_anchors) in HEADERS.into_iter().zip([false, true, true, true, true]) {
        let mut lines = made.lines.clone();
        let kinds = edit_header(&mut lines, way, seal);
        let anchors: &[Anchor] = if without_anchors { &[] } else { &made.anchors };
        for verdict in [verify_as(&lines, anchors, Expected::default()), verify(&lines, &made.anchors)] {
            let named = verdict.findings.iter().any(|finding| kinds.contains(&finding.kind));
            assert!(named && !verdict.intact, "{way:?}: {:?}, {:?}", verdict.findings, verdict.told);
        }
        // Another fleet's name leaves no anchor out.
        let known = verify(&lines, &made.anchors).findings.iter().any(|finding| finding.kind == Kind::Truncated);
        assert_eq!(known, matches!(way, Edit::Tenant | Edit::Fleet), "{way:?}");
    }
    // Without any seal there is no fleet either.
    let mut header = Header { fleet: "x".into(), ..Header::default() };
    header.export = lines::FORMAT;
    let verdict = verify_as(&[lines::header(&header)], &made.anchors, Expected::default());
    assert!(!verdict.intact, "{:?}", verdict.told);
}

#[test]
fn what_whoever_verifies_says_of_an_export_excuses_what_is_not_there() {
    let made = export(1, 12, 0);
    let mut alone = made.lines.clone();
    edit_header(&mut alone, Edit::Tenant, 0);
    let told = |verdict: &Verdict, what: &str| verdict.told.iter().any(|told| told.contains(what));
    let of_acme = Expected { tenant: Some("acme".into()), ..Expected::default() };
    let verdict = verify_as(&alone, &made.anchors, of_acme);
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert!(told(&verdict, "2 chains of other tenants that anchors know are not looked for"), "{:?}", verdict.told);

    let mut part = made.lines.clone();
    edit_header(&mut part, Edit::Follows, made.lines.len() / 2);
    let verdict = verify_as(&part, &made.anchors, Expected { goes_on: true, ..Expected::default() });
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert!(told(&verdict, "are of an earlier part"), "{:?}", verdict.told);

    // The log was trimmed, or its beginning was cut off: who knows from when on it has to be there, is told.
    let sealed_ms = |line: &String| {
        let Some(Line::Seal(seal)) = Line::read(line) else { return None };
        serde_json::from_str::<SealBody>(seal.body).ok().map(|body| body.sealed_ms)
    };
    let cut = made.lines.iter().rposition(|line| sealed_ms(line).is_some_and(|ms| ms <= 5)).unwrap();
    let trimmed: Vec<String> = [&made.lines[..1], &made.lines[cut + 1..]].concat();
    for (from_ms, is_intact) in [(None, true), (Some(6), true), (Some(0), false)] {
        let expected = Expected { anchors_from_ms: from_ms, ..Expected::default() };
        let verdict = verify_as(&trimmed, &made.anchors, expected);
        assert_eq!(verdict.intact, is_intact, "{from_ms:?}: {:?}", verdict.findings);
        assert!(told(&verdict, "are not in this export; an anchor knows seal"), "{:?}", verdict.told);
        let kinds: Vec<Kind> = verdict.findings.iter().map(|finding| finding.kind).collect();
        assert!(is_intact || kinds.iter().all(|kind| *kind == Kind::SealMissing), "{kinds:?}");
    }
    // Of a tenant that has been quiet since, nothing is left.
    alone[0].clone_from(&made.lines[0]);
    for (from_ms, is_intact) in [(None, false), (Some(9), false), (Some(100), true)] {
        let verdict = verify_as(&alone, &made.anchors, Expected { anchors_from_ms: from_ms, ..Expected::default() });
        assert_eq!(verdict.intact, is_intact, "{from_ms:?}: {:?}", verdict.findings);
        assert_eq!(told(&verdict, "2 chains that anchors know were sealed before that time"), is_intact);
    }
}

#[test]
fn a_log_that_was_trimmed_within_a_seal_is_intact_from_there_on() {
    let made = export(1, 12, 0);
    let ids: Vec<EntryId> = made.lines.iter().filter_map(|line| entry_id(line)).collect();
    // Trimming takes whole seals last: those of the oldest entries are there, and their entries are not.
    let at = (ids.len() / 2..ids.len()).find(|at| ids[*at].ms > ids[at - 1].ms).unwrap();
    let (first, gone) = (ids[at], at);
    let trimmed: Vec<String> =
        made.lines.iter().filter(|line| entry_id(line).is_none_or(|id| id >= first)).cloned().collect();
    let from = |ms: u64| Expected { anchors_from_ms: i64::try_from(ms).ok(), ..Expected::default() };
    for (expected, missing) in [
        (from(first.ms), 0),
        (from(first.ms + 1_000_000), 0),
        (from(ids[at - 1].ms), ids[..at].iter().filter(|id| id.ms >= ids[at - 1].ms).count()),
        (Expected::default(), gone),
    ] {
        let verdict = verify_as(&trimmed, &made.anchors, expected.clone());
        let named = verdict.findings.iter().filter(|finding| finding.kind == Kind::Missing).count();
        assert_eq!((named, verdict.findings.len()), (missing, missing), "{expected:?}: {:?}", verdict.findings);
        let excused = format!("{} sealed entries were written before that time", gone - missing);
        assert_eq!(verdict.told.iter().any(|told| told.contains(&excused)), gone > missing, "{:?}", verdict.told);
    }
    // What is gone behind the first entry that is there was not trimmed, and what was edited is no less so.
    for edit in [|_: &str| String::new(), |line: &str| line.replace("TOOL_CALL", "TOOL_CALK")] {
        let mut lines = trimmed.clone();
        let at = lines.iter().position(|line| entry_id(line).is_some_and(|id| id > first)).unwrap();
        lines[at] = edit(&lines[at]);
        let verdict = verify_as(&lines, &made.anchors, from(first.ms + 1_000_000));
        assert_eq!(verdict.findings.len(), 1, "{:?}", verdict.findings);
    }
}

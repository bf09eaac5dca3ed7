//! Tests that the first line of an export cannot excuse missing entries. The first line is unsigned.

use std::collections::BTreeMap;

use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines::{self, Header, Line};
use tickfleet_proof::seal::{ChainName, EntryId, Head, Leaf, Losses, SealBody, Signer, seal};
use tickfleet_proof::verify::{Expected, ExportVerdict, FindingKind, Verifier};

use super::{Export, export, signer, verify, verify_as};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Edit {
    /// Claims a single tenant. The other tenants' lines are removed.
    Tenant,
    /// Claims a single tenant. The other tenants' lines are still there.
    TenantAlone,
    /// Names another fleet. The newest seals and their entries are removed.
    Fleet,
    /// Claims to continue after this seal. All entries before the seal are removed.
    Follows,
    /// Claims to continue after the last entry. All entries are removed.
    FollowsAll,
}

pub(crate) const HEADERS: [Edit; 5] = [Edit::Tenant, Edit::TenantAlone, Edit::Fleet, Edit::Follows, Edit::FollowsAll];

/// The verifier must report at least one of the returned kinds of findings.
pub(crate) fn edit_header(lines: &mut Vec<String>, way: Edit, seal: usize) -> Vec<FindingKind> {
    let Some(Line::Header(mut header)) = Line::read(&lines[0]) else { panic!("a header") };
    let ids: Vec<EntryId> = lines.iter().filter_map(|line| entry_id(line)).collect();
    let kinds = match way {
        Edit::Tenant => {
            header.tenant = Some("acme".into());
            lines.retain(|line| tenant_of(line).is_none_or(|tenant| tenant == "acme"));
            vec![FindingKind::Truncated]
        }
        Edit::TenantAlone => {
            header.tenant = Some("acme".into());
            vec![FindingKind::HeaderWrong]
        }
        Edit::Fleet => {
            header.fleet = "x".into();
            lines.truncate(seal);
            vec![FindingKind::HeaderWrong, FindingKind::Truncated]
        }
        Edit::Follows | Edit::FollowsAll => {
            let at = if matches!(way, Edit::Follows) { seal } else { lines.len() };
            let upto = lines[..at].iter().filter_map(|line| entry_id(line)).max().unwrap_or(ids[0]);
            header.follows = BTreeMap::from([(0, format!("{upto} 0-0 0"))]);
            lines.retain(|line| entry_id(line).is_none_or(|id| id > upto));
            vec![FindingKind::Missing]
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
fn an_edited_header_is_detected() {
    let made = export(1, 12, 0);
    let seal = made.lines.len() - 4;
    for (way, without_anchors) in HEADERS.into_iter().zip([false, true, true, true, true]) {
        let mut lines = made.lines.clone();
        let kinds = edit_header(&mut lines, way, seal);
        let anchors: &[Anchor] = if without_anchors { &[] } else { &made.anchors };
        for verdict in [verify_as(&lines, anchors, Expected::default()), verify(&lines, &made.anchors)] {
            let named = verdict.findings.iter().any(|finding| kinds.contains(&finding.kind));
            assert!(named && !verdict.intact, "{way:?}: {:?}, {:?}", verdict.findings, verdict.notes);
        }
        // Anchors of the expected fleet are checked even if the header names another fleet.
        let known = verify(&lines, &made.anchors).findings.iter().any(|finding| finding.kind == FindingKind::Truncated);
        assert_eq!(known, matches!(way, Edit::Tenant | Edit::Fleet), "{way:?}");
    }
    let mut header = Header { fleet: "x".into(), ..Header::default() };
    header.export = lines::FORMAT;
    let verdict = verify_as(&[lines::header(&header)], &made.anchors, Expected::default());
    assert!(!verdict.intact, "{:?}", verdict.notes);
}

#[test]
fn verifier_options_excuse_expected_gaps_only() {
    let made = export(1, 12, 0);
    let mut alone = made.lines.clone();
    edit_header(&mut alone, Edit::Tenant, 0);
    let reported = |verdict: &ExportVerdict, what: &str| verdict.notes.iter().any(|reported| reported.contains(what));
    let of_acme = Expected { tenant: Some("acme".into()), ..Expected::default() };
    let verdict = verify_as(&alone, &made.anchors, of_acme);
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert!(reported(&verdict, "2 anchored chains of other tenants are not checked"), "{:?}", verdict.notes);

    let mut part = made.lines.clone();
    edit_header(&mut part, Edit::Follows, made.lines.len() / 2);
    let verdict = verify(&part, &made.anchors);
    assert!(verdict.findings.iter().all(|finding| finding.what.ends_with("pass --partial")), "{:?}", verdict.findings);
    let verdict = verify_as(&part, &made.anchors, Expected { partial: true, ..Expected::default() });
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert!(reported(&verdict, "belong to an earlier part"), "{:?}", verdict.notes);

    // Either the log was trimmed, or an attacker cut off its beginning. Only the time from which the log must be
    // complete distinguishes the two cases.
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
        assert!(reported(&verdict, "are not in this export; an anchor lists seal"), "{:?}", verdict.notes);
        let kinds: Vec<FindingKind> = verdict.findings.iter().map(|finding| finding.kind).collect();
        assert!(is_intact || kinds.iter().all(|kind| *kind == FindingKind::SealMissing), "{kinds:?}");
    }
    // The lines of all other tenants are missing, as if the log was trimmed after the last calls of these tenants.
    alone[0].clone_from(&made.lines[0]);
    for (from_ms, is_intact) in [(None, false), (Some(9), false), (Some(100), true)] {
        let verdict = verify_as(&alone, &made.anchors, Expected { anchors_from_ms: from_ms, ..Expected::default() });
        assert_eq!(verdict.intact, is_intact, "{from_ms:?}: {:?}", verdict.findings);
        assert_eq!(reported(&verdict, "2 anchored chains were sealed before that time"), is_intact);
    }
}

#[test]
fn a_gap_between_parts_of_a_followed_log_is_reported() {
    let part = |follows: &str, ids: &[&str]| {
        let follows = BTreeMap::from([(0, format!("{follows} 9 0 0 0-0"))]);
        let header = Header { export: lines::FORMAT, fleet: "f".into(), follows, ..Header::default() };
        let entries = ids.iter().map(|id| lines::entry(0, id, "", "{}"));
        std::iter::once(lines::header(&header)).chain(entries).collect::<Vec<_>>()
    };
    let first = part("0-0", &["1-0", "2-0"]);
    let second = part("2-0", &["3-0"]);
    let third = part("3-0", &["4-0"]);
    let missing = |parts: &[&[String]]| -> Vec<Option<String>> {
        let verdict = verify_as(&parts.concat(), &[], Expected { partial: true, ..Expected::default() });
        verdict.findings.into_iter().filter(|found| found.kind == FindingKind::Missing).map(|found| found.id).collect()
    };
    assert_eq!(missing(&[&first, &second, &third]), []);
    assert_eq!(missing(&[&second, &third]), []);
    assert_eq!(missing(&[&first, &third]), [Some("3-0".to_owned())], "nothing is sealed, and all the same");
    assert_eq!(missing(&[&part("0-0", &[]), &second]), [Some("2-0".to_owned())]);
}

#[test]
fn a_log_trimmed_within_a_seal_is_intact_from_the_declared_time() {
    let made = export(1, 12, 0);
    let ids: Vec<EntryId> = made.lines.iter().filter_map(|line| entry_id(line)).collect();
    // The log trims entries before it trims their seals, so the export has the oldest seals without their entries.
    let at = (ids.len() / 2..ids.len()).find(|at| ids[*at].ms > ids[at - 1].ms).unwrap();
    let first = ids[at];
    let gone = at;
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
        let named = verdict.findings.iter().filter(|finding| finding.kind == FindingKind::Missing).count();
        assert_eq!((named, verdict.findings.len()), (missing, missing), "{expected:?}: {:?}", verdict.findings);
        let excused = format!("{} sealed entries were written before that time", gone - missing);
        assert_eq!(
            verdict.notes.iter().any(|reported| reported.contains(&excused)),
            gone > missing,
            "{:?}",
            verdict.notes
        );
    }
    // A missing entry after the first remaining entry cannot have been trimmed.
    for edit in [|_: &str| String::new(), |line: &str| line.replace("TOOL_CALL", "TOOL_CALK")] {
        let mut lines = trimmed.clone();
        let at = lines.iter().position(|line| entry_id(line).is_some_and(|id| id > first)).unwrap();
        lines[at] = edit(&lines[at]);
        let verdict = verify_as(&lines, &made.anchors, from(first.ms + 1_000_000));
        assert_eq!(verdict.findings.len(), 1, "{:?}", verdict.findings);
    }
}

/// Each entry was sealed half a second after it was written.
fn exported_from(from_ms: i64, until_ms: Option<i64>, written: &[(&str, &[u64])]) -> (Vec<String>, Vec<Anchor>) {
    let signer = signer();
    let mut anchors = Vec::new();
    let mut entries = BTreeMap::new();
    let mut seals = Vec::new();
    for (tenant, times) in written {
        let chain = ChainName { fleet: "f".into(), shard: 0, tenant: (*tenant).into() };
        let mut head = Head::default();
        for ms in *times {
            let id = EntryId { ms: *ms, seq: tenant.len() as u64 };
            let sealed_ms = i64::try_from(*ms).unwrap() + 500;
            let sealed = seal(&chain, &head, &[Leaf::of(id, "", "{}")], &Losses::default(), sealed_ms, &signer);
            anchors.extend(Anchor::of(&sealed.body, &sealed.signature, &signer.public_key()));
            let body: SealBody = serde_json::from_str(&sealed.body).unwrap();
            if body.is_in_time_range(Some(from_ms), until_ms) {
                entries.insert(id, lines::entry(0, &id.to_string(), "", "{}"));
                seals.push(lines::seal(0, &sealed.body, &sealed.signature));
            }
            head = sealed.head;
        }
    }
    (entries.into_values().chain(seals).collect(), anchors)
}

#[test]
fn an_export_from_a_time_is_intact_for_anchors_from_that_time() {
    let quiet: &[(&str, &[u64])] = &[("quiet", &[1_000, 4_600]), ("a", &[1_000, 4_600, 9_000]), ("old", &[4_400])];
    let (made, anchors) = exported_from(5_000, None, quiet);
    let expected = |from: i64| Expected { anchors_from_ms: Some(from), ..Expected::default() };
    let verdict = verify_as(&made, &anchors, expected(5_000));
    assert!(verdict.intact, "{:?}", verdict.findings);
    let of: Vec<_> = verdict.chains.iter().map(|chain| (&*chain.tenant, chain.first_seal, chain.last_seal)).collect();
    assert_eq!(of, [("a", 2, 3), ("quiet", 2, 2)]);
    assert!(!verify_as(&made, &anchors, expected(4_900)).intact, "what was sealed before has to be there as well");
    let (made, _) = exported_from(5_000, Some(9_000), quiet);
    assert_eq!(made.len(), 4, "{made:?}");
    let (made, _) = exported_from(5_000, Some(4_600), quiet);
    assert!(made.is_empty(), "{made:?}");
}

/// The rewritten export is signed with a forger's key, and its first line names that key.
fn as_fleet(made: &Export, fleet: &str) -> Export {
    let forger = Signer::new("x", &"09".repeat(32)).unwrap();
    let mut heads: BTreeMap<String, Head> = BTreeMap::new();
    let mut lines = made.lines.clone();
    let mut anchors = Vec::new();
    let Some(Line::Header(header)) = Line::read(&lines[0]) else { panic!("a header") };
    let keys = BTreeMap::from([("x".to_owned(), forger.public_key())]);
    lines[0] = lines::header(&Header { fleet: fleet.into(), keys, ..*header });
    for (at, line) in lines.iter_mut().enumerate().skip(1) {
        let Some(Line::Seal(found)) = Line::read(line) else { continue };
        let body: SealBody = serde_json::from_str(found.body).unwrap();
        let leaves: Vec<Leaf> = made.lines[..at]
            .iter()
            .filter_map(|line| {
                let Some(Line::Entry(entry)) = Line::read(line) else { return None };
                let id: EntryId = entry.id.parse().ok()?;
                body.entry_ids().unwrap().contains(&id).then(|| Leaf::of(id, &entry.admitted, &entry.text))
            })
            .collect();
        let head = heads.entry(body.tenant.clone()).or_default();
        let chain = ChainName { fleet: fleet.into(), ..body.chain() };
        let sealed = seal(&chain, head, &leaves, &Losses::default(), body.sealed_ms, &forger);
        anchors.extend(Anchor::of(&sealed.body, &sealed.signature, &forger.public_key()));
        *head = sealed.head;
        *line = lines::seal(0, &sealed.body, &sealed.signature);
    }
    Export { lines, anchors }
}

fn held_against(lines: &[String], anchors: &[Anchor], fleet: Option<&str>) -> ExportVerdict {
    let expected = Expected { fleet: fleet.map(str::to_owned), ..Expected::default() };
    let mut verifier = Verifier::new(BTreeMap::new()).expecting(expected);
    lines.iter().for_each(|line| verifier.line(line));
    verifier.finish(anchors, None)
}

#[test]
fn an_export_resealed_for_another_fleet_is_not_intact() {
    let made = export(1, 6, 0);
    let resealed = as_fleet(&made, "x");
    let kinds = |verdict: &ExportVerdict| verdict.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>();
    let verdict = held_against(&resealed.lines, &made.anchors, None);
    assert_eq!(kinds(&verdict), [FindingKind::HeaderWrong], "{:?}", verdict.findings);
    // If one file has the anchors of both fleets, only the expected fleet distinguishes the two exports.
    let both = [&made.anchors[..], &resealed.anchors[..]].concat();
    for (lines, fleet, is_intact) in [
        (&made.lines, None, true),
        (&resealed.lines, None, true),
        (&made.lines, Some("f"), true),
        (&resealed.lines, Some("x"), true),
        (&resealed.lines, Some("f"), false),
    ] {
        let verdict = held_against(lines, &both, fleet);
        assert_eq!(verdict.intact, is_intact, "{fleet:?}: {:?}", verdict.findings);
        let named =
            [FindingKind::HeaderWrong, FindingKind::Truncated].iter().all(|kind| kinds(&verdict).contains(kind));
        assert!(is_intact || named, "{:?}", verdict.findings);
    }
    // An export without seals does not prove its fleet, so it is intact only if the caller names this fleet.
    let empty = [lines::header(&Header { export: lines::FORMAT, fleet: "f".into(), ..Header::default() })];
    for (fleet, is_intact) in [(None, false), (Some("f"), true), (Some("x"), false)] {
        let verdict = held_against(&empty, &resealed.anchors, fleet);
        assert_eq!(verdict.intact, is_intact, "{fleet:?}: {:?}", verdict.findings);
    }
}

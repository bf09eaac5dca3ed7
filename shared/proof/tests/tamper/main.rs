//! Edits, deletes, reorders, inserts and truncates lines of an export a thousand times. The verifier must find and
//! locate each change.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod header;

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines::{self, End, Header, Line};
use tickfleet_proof::seal::{ChainName, EntryId, Head, Leaf, Losses, Signer, seal};
use tickfleet_proof::verify::{Expected, ExportVerdict, FindingKind, Verifier};

use header::{HEADERS, edit_header};

const TENANTS: [&str; 3] = ["acme", "globex", ""];

fn signer() -> Signer {
    Signer::new("k1", &"07".repeat(32)).unwrap()
}

#[derive(Clone)]
struct Export {
    lines: Vec<String>,
    anchors: Vec<Anchor>,
}

fn export(seed: u64, batches: usize, unsealed: usize) -> Export {
    let mut rng = StdRng::seed_from_u64(seed);
    let signer = signer();
    let mut heads: BTreeMap<&str, Head> = BTreeMap::new();
    let mut made = Vec::new();
    let mut anchors = Vec::new();
    let mut id = EntryId { ms: 1_800_000_000_000, seq: 0 };
    let mut next = |rng: &mut StdRng| {
        let more = rng.random_range(0..3);
        id = if more == 0 { EntryId { ms: id.ms, seq: id.seq + 1 } } else { EntryId { ms: id.ms + more, seq: 0 } };
        let tenant = TENANTS[rng.random_range(0..TENANTS.len())];
        let text = format!(
            r#"{{"timestamp":"2027-01-15T08:00:00.000Z","action":"TOOL_CALL","tenant":"{tenant}","meta":{{"result":"{}","call":"t{id}/0"}}}}"#,
            "x".repeat(rng.random_range(0..30)),
        );
        (id, tenant, text)
    };
    for batch in 0..batches {
        let entries: Vec<_> = (0..rng.random_range(1..12)).map(|_| next(&mut rng)).collect();
        made.extend(entries.iter().map(|(id, _, text)| lines::entry(0, &id.to_string(), "A1,1,1,10,5,1,9", text)));
        for tenant in TENANTS {
            let of = entries.iter().filter(|entry| entry.1 == tenant);
            let leaves: Vec<Leaf> = of.map(|(id, _, text)| Leaf::of(*id, "A1,1,1,10,5,1,9", text)).collect();
            if leaves.is_empty() {
                continue;
            }
            let head = heads.entry(tenant).or_default();
            let chain = ChainName { fleet: "f".into(), shard: 0, tenant: tenant.into() };
            let sealed = seal(&chain, head, &leaves, &Losses::default(), batch as i64, &signer);
            anchors.extend(Anchor::of(&sealed.body, &sealed.signature, &signer.public_key()));
            made.push(lines::seal(0, &sealed.body, &sealed.signature));
            *head = sealed.head;
        }
    }
    for _ in 0..unsealed {
        let (id, _, text) = next(&mut rng);
        made.push(lines::entry(0, &id.to_string(), "", &text));
    }
    let keys = BTreeMap::from([("k1".to_owned(), signer.public_key())]);
    let header = Header { export: lines::FORMAT, fleet: "f".into(), keys, ..Header::default() };
    let seals = made.iter().filter(|line| matches!(Line::read(line), Some(Line::Seal(_)))).count() as u64;
    let end = lines::end(End { entries: made.len() as u64 - seals, seals });
    let lines = std::iter::once(lines::header(&header)).chain(made).chain([end]).collect();
    Export { lines, anchors }
}

/// The export must contain every anchored seal, as if the log had never been trimmed.
fn verify(lines: &[String], anchors: &[Anchor]) -> ExportVerdict {
    verify_as(lines, anchors, Expected { anchors_from_ms: Some(0), ..Expected::default() })
}

fn verify_as(lines: &[String], anchors: &[Anchor], expected: Expected) -> ExportVerdict {
    let trusted = BTreeMap::from([("k1".to_owned(), signer().public_key())]);
    let mut verifier = Verifier::new(trusted).expecting(expected);
    lines.iter().for_each(|line| verifier.line(line));
    verifier.finish(anchors, None)
}

/// The line indexes of the sealed entries, and of the seals.
fn places(export: &Export) -> (Vec<usize>, Vec<usize>) {
    let is_seal = |at: &usize| matches!(Line::read(&export.lines[*at]), Some(Line::Seal(_)));
    let all = 1..export.lines.len() - 1;
    let seals: Vec<usize> = all.clone().filter(is_seal).collect();
    let last = *seals.last().unwrap();
    (all.filter(|at| *at < last && !is_seal(at)).collect(), seals)
}

fn id_of(line: &str) -> String {
    let Some(Line::Entry(entry)) = Line::read(line) else { panic!("no entry: {line}") };
    entry.id.into_owned()
}

/// The verifier must report one of these kinds of findings, and these entries.
enum Named {
    Entry(Vec<FindingKind>, Vec<String>),
    Seal(Vec<FindingKind>),
}

/// The new byte is an ASCII digit, so that the line stays valid UTF-8.
fn edit(rng: &mut StdRng, line: &str) -> String {
    let mut bytes = line.as_bytes().to_vec();
    let at = rng.random_range(0..bytes.len());
    bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
    String::from_utf8(bytes).unwrap()
}

fn swap_texts(lines: &mut [String], entry: usize, other: usize) -> Named {
    let (Some(Line::Entry(a)), Some(Line::Entry(b))) = (Line::read(&lines[entry]), Line::read(&lines[other])) else {
        panic!("entries");
    };
    if a.text == b.text {
        return Named::Entry(Vec::new(), Vec::new());
    }
    let changed = (lines::entry(0, &a.id, &a.admitted, &b.text), lines::entry(0, &b.id, &b.admitted, &a.text));
    let ids = vec![a.id.to_string(), b.id.to_string()];
    (lines[entry], lines[other]) = changed;
    Named::Entry(vec![FindingKind::Edited], ids)
}

fn take_seal(rng: &mut StdRng, lines: &mut Vec<String>, seal: usize) -> Named {
    let gone = lines.remove(seal);
    let Some(Line::Seal(gone)) = Line::read(&gone) else { panic!("a seal") };
    let body: tickfleet_proof::seal::SealBody = serde_json::from_str(gone.body).unwrap();
    if rng.random_bool(0.5) {
        let ids: Vec<String> = body.entry_ids().unwrap().iter().map(ToString::to_string).collect();
        lines.retain(
            |line| !matches!(Line::read(line), Some(Line::Entry(entry)) if ids.contains(&entry.id.to_string())),
        );
    }
    Named::Seal(vec![FindingKind::SealMissing, FindingKind::Truncated, FindingKind::Inserted])
}

fn tamper(rng: &mut StdRng, export: &mut Export) -> Named {
    let (entries, seals) = places(export);
    let entry = entries[rng.random_range(0..entries.len())];
    let seal = seals[rng.random_range(0..seals.len())];
    let lines = &mut export.lines;
    match rng.random_range(0..9) {
        0 => {
            let id = id_of(&lines[entry]);
            lines[entry] = edit(rng, &lines[entry]);
            Named::Entry(vec![FindingKind::Edited, FindingKind::Missing], vec![id])
        }
        1 => {
            let id = id_of(&lines.remove(entry));
            Named::Entry(vec![FindingKind::Missing], vec![id])
        }
        2 => {
            let other = entries[rng.random_range(0..entries.len())];
            if other == entry {
                return Named::Entry(Vec::new(), Vec::new());
            }
            let ids = vec![id_of(&lines[entry]), id_of(&lines[other])];
            lines.swap(entry, other);
            Named::Entry(vec![FindingKind::Reordered], ids)
        }
        3 => {
            let other = entries[rng.random_range(0..entries.len())];
            swap_texts(lines, entry, other)
        }
        4 => {
            // The entry was never written, or has the ID of another entry.
            let id: EntryId = id_of(&lines[entry]).parse().unwrap();
            // An entry after the last sealed entry would only count as not sealed yet.
            let last: EntryId = id_of(&lines[*entries.last().unwrap()]).parse().unwrap();
            let more = if id.ms < last.ms { 1_000 * rng.random_range(0..2) } else { 0 };
            let id = EntryId { seq: id.seq + more, ..id };
            lines.insert(entry + 1, lines::entry(0, &id.to_string(), "", r#"{"action":"TOOL_CALL"}"#));
            Named::Entry(vec![FindingKind::Inserted], vec![id.to_string()])
        }
        5 => {
            lines[seal] = edit(rng, &lines[seal]);
            Named::Seal(vec![FindingKind::SealBroken, FindingKind::Unreadable])
        }
        6 => take_seal(rng, lines, seal),
        7 => {
            let way = HEADERS[rng.random_range(0..HEADERS.len())];
            Named::Seal(edit_header(lines, way, seal))
        }
        _ => {
            lines.truncate(rng.random_range(1..=*seals.last().unwrap()));
            Named::Seal(vec![FindingKind::Truncated])
        }
    }
}

#[test]
fn an_unchanged_export_is_intact() {
    let made = export(1, 40, 3);
    let verdict = verify(&made.lines, &made.anchors);
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert_eq!((verdict.unsealed, verdict.chains.len()), (3, 3));
    assert_eq!(verdict.sealed + verdict.unsealed, verdict.entries);
    assert!(verdict.chains.iter().all(|chain| chain.anchored == Some(chain.last_seal)));
    assert_eq!(verdict.notes.len(), 1, "{:?}", verdict.notes);
}

#[test]
fn a_thousand_tampered_exports_are_detected_and_located() {
    #[allow(clippy::disallowed_methods, reason = "a test's own knob: which export to play again")]
    let seed = std::env::var("TICKFLEET_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut kinds: BTreeMap<FindingKind, u64> = BTreeMap::new();
    let mut done = 0;
    let mut exports = BTreeMap::new();
    for run in seed.map_or(0..1_200_u64, |seed| seed..seed + 1) {
        let mut rng = StdRng::seed_from_u64(run);
        let made: &Export = exports.entry(run % 17).or_insert_with(|| export(run % 17, 8, usize::from(run % 3 == 0)));
        let mut made = made.clone();
        let before = made.lines.clone();
        let named = tamper(&mut rng, &mut made);
        if made.lines == before {
            continue;
        }
        done += 1;
        let verdict = verify(&made.lines, &made.anchors);
        let changed = || made.lines.iter().zip(&before).find(|(now, then)| now != then);
        assert!(
            !verdict.intact,
            "TICKFLEET_SEED={run}: nothing was found of {:?} ({} lines of {})",
            changed(),
            made.lines.len(),
            before.len()
        );
        verdict.findings.iter().for_each(|finding| *kinds.entry(finding.kind).or_default() += 1);
        let found = |kinds: &[FindingKind], ids: &[String]| {
            verdict.findings.iter().any(|finding| {
                let stands = |id: &String| finding.id.as_ref() == Some(id) || finding.beside.as_ref() == Some(id);
                kinds.contains(&finding.kind) && (ids.is_empty() || ids.iter().any(stands))
            })
        };
        match named {
            Named::Entry(kinds, ids) => {
                for id in ids {
                    assert!(
                        found(&kinds, std::slice::from_ref(&id)),
                        "TICKFLEET_SEED={run}: {id}: {:?}",
                        verdict.findings
                    );
                }
            }
            Named::Seal(kinds) => assert!(found(&kinds, &[]), "TICKFLEET_SEED={run}: {:?}", verdict.findings),
        }
    }
    assert!(seed.is_some() || done >= 1_000, "{done}");
    println!("{done} exports were tampered with: {kinds:?}");
}

#[test]
fn a_chain_rewritten_with_the_right_key_does_not_match_its_anchors() {
    let made = export(1, 10, 0);
    let other = export(2, 20, 0);
    let verdict = verify(&other.lines, &made.anchors);
    assert!(verdict.findings.iter().any(|finding| finding.kind == FindingKind::Rewritten), "{:?}", verdict.findings);
    let verdict = verify(&other.lines, &other.anchors);
    assert!(verdict.intact);
}

#[test]
fn an_entry_under_two_seals_is_reported_as_forked() {
    let signer = signer();
    let chain = ChainName { fleet: "f".into(), shard: 0, tenant: "acme".into() };
    let leaves = ["1-0", "2-0", "3-0"].map(|id| Leaf::of(id.parse().unwrap(), "", "{}"));
    let first = seal(&chain, &Head::default(), &leaves[..2], &Losses::default(), 1, &signer);
    // The sealer has lost its position, so it seals an entry a second time, and continues the same chain.
    let second = seal(&chain, &first.head, &leaves[1..], &Losses::default(), 2, &signer);
    let mut made = ["1-0", "2-0", "3-0"].map(|id| lines::entry(0, id, "", "{}")).to_vec();
    made.extend([&first, &second].map(|sealed| lines::seal(0, &sealed.body, &sealed.signature)));
    let verdict = verify(&made, &[]);
    let named: Vec<_> = verdict.findings.iter().map(|finding| (finding.kind, finding.id.as_deref())).collect();
    assert_eq!(named, [(FindingKind::Forked, Some("2-0"))], "{:?}", verdict.findings);
}

#[test]
fn a_wrong_key_breaks_seals_and_a_key_from_the_export_is_reported() {
    let made = export(1, 5, 0);
    let mut verifier =
        Verifier::new(BTreeMap::from([("k1".to_owned(), Signer::new("k1", &"08".repeat(32)).unwrap().public_key())]));
    made.lines.iter().for_each(|line| verifier.line(line));
    let verdict = verifier.finish(&[], None);
    assert!(verdict.findings.iter().all(|finding| finding.kind == FindingKind::SealBroken) && !verdict.intact);
    let mut verifier = Verifier::new(BTreeMap::new());
    made.lines.iter().for_each(|line| verifier.line(line));
    let verdict = verifier.finish(&made.anchors, None);
    assert!(verdict.intact && verdict.notes[0].contains("the export itself contains"), "{:?}", verdict.notes);
}

#[test]
fn losses_before_sealing_are_counted_but_keep_the_export_intact() {
    let signer = signer();
    let chain = ChainName { fleet: "f".into(), shard: 0, tenant: "acme".into() };
    let leaf = |id: &str| Leaf::of(id.parse().unwrap(), "", "{}");
    let first = seal(&chain, &Head::default(), &[leaf("1-0")], &Losses::default(), 1, &signer);
    let losses = Losses { entries: 40, ..Losses::default() };
    let second = seal(&chain, &first.head, &[leaf("9-0")], &losses, 2, &signer);
    let made = vec![
        lines::entry(0, "1-0", "", "{}"),
        lines::entry(0, "9-0", "", "{}"),
        lines::seal(0, &first.body, &first.signature),
        lines::seal(0, &second.body, &second.signature),
    ];
    let verdict = verify(&made, &[]);
    assert!(verdict.intact, "{:?}", verdict.findings);
    assert!(verdict.notes.iter().any(|reported| reported.contains("40 entries")), "{:?}", verdict.notes);
    assert_eq!(verdict.chains[0].lost, 40);
}

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::lines;

fn entry(id: u64, call: &str, admitted: &str, more: &str) -> String {
    let turn = call.split('/').next().unwrap();
    let text = format!(
        r#"{{"timestamp":"1970-01-01T00:00:{:02}.000Z","action":"TOOL_CALL","entity_id":"pay","actor_id":"kelly","tenant":"acme","meta":{{"call":"{call}","turn":"{turn}","outcome":"ok","duration_ms":10{more}}}}}"#,
        id % 60
    );
    lines::entry(0, &format!("{id}-0"), admitted, &text)
}

fn prove(lines: &[String]) -> Proof {
    let mut prover = Prover::new(None, None);
    lines.iter().for_each(|line| prover.line(line));
    prover.finish()
}

fn violated(proof: &Proof) -> Vec<&str> {
    proof.claims.iter().filter(|claim| !claim.holds).map(|claim| claim.claim).collect()
}

#[test]
fn calls_within_caps_pass_and_calls_without_a_note_are_unchecked() {
    let proof = prove(&[
        entry(1, "a/0", "A1000,2,2,3,5000,2,100", ""),
        entry(2, "a/1", "A1000,2,2,3,5000,2,100", ""),
        entry(3, "b/0", "A1500,1,3,3,5000,3,100", ""),
        entry(6, "c/0", "A5100,1,1,3,10000,4,100", ""),
        entry(7, "d/0", "", ""),
    ]);
    assert!(proof.holds, "{:?}", proof.claims);
    let ticks = &proof.claims[1];
    assert_eq!((ticks.checked, ticks.unchecked, proof.calls), (2, 1, 5));
}

#[test]
fn every_kind_of_tick_overrun_is_detected() {
    let first = "A1000,2,2,3,5000,2,100";
    let ticks = "No tick of an agent overran its cap.";
    for (second, why) in [
        ("A1200,2,4,3,5000,4,100", "beyond the cap"),
        ("A1200,2,2,3,5000,4,100", "the same place twice"),
        ("A1200,1,1,3,6000,3,100", "a window within a window"),
        ("A6000,1,3,3,5000,3,100", "a window that had ended"),
    ] {
        let made = [
            entry(1, "a/0", first, ""),
            entry(2, "a/1", first, ""),
            entry(3, "b/0", second, ""),
            entry(4, "b/1", second, ""),
        ];
        assert!(violated(&prove(&made)).contains(&ticks), "{why}");
    }
    let more = [entry(1, "a/0", first, ""), entry(2, "a/1", first, ""), entry(3, "a/2", first, "")];
    assert!(violated(&prove(&more)).contains(&ticks), "more calls than were admitted");
}

#[test]
fn daily_cap_overruns_are_detected() {
    let day = 86_400_000_i64;
    let late = |at: i64, used: u32| format!("A{at},1,1,3,{},{used},3", at + 5_000);
    let made = |two: String| prove(&[entry(1, "a/0", &late(1_000, 3), ""), entry(2, "b/0", &two, "")]);
    assert_eq!(violated(&made(late(60_000, 4))), ["No day of an agent overran its cap."]);
    assert_eq!(violated(&made(late(60_000, 3))), ["No day of an agent overran its cap."]);
    assert!(violated(&made(late(day + 60_000, 1))).is_empty());
    // The tenant's cap is in the header of the export.
    let facts = lines::TenantFacts { time_zone: "UTC".into(), day_cap: Some(1) };
    let header = Header { export: 1, tenants: BTreeMap::from([("acme".to_owned(), facts)]), ..Header::default() };
    let proof =
        prove(&[lines::header(&header), entry(1, "a/0", &late(1_000, 1), ""), entry(2, "b/0", &late(60_000, 2), "")]);
    assert_eq!(violated(&proof), ["No day of a tenant overran its cap."]);
    // A later export of another tenant does not change the cap.
    let of = |tenant: &str, day_cap: Option<u64>| {
        let facts = lines::TenantFacts { time_zone: "Europe/Vienna".into(), day_cap };
        let tenants = BTreeMap::from([(tenant.to_owned(), facts)]);
        lines::header(&Header { export: 1, tenant: Some(tenant.into()), tenants, ..Header::default() })
    };
    let calls = [entry(1, "a/0", &late(1_000, 1), ""), entry(2, "b/0", &late(60_000, 2), "")];
    let proof = prove(&[&[of("acme", Some(1))], &calls[..], &[of("b", None)]].concat());
    assert_eq!(violated(&proof), ["No day of a tenant overran its cap."]);
    assert!(proof.assumptions.iter().any(|said| said.contains("Days of acme are in the time zone Europe/Vienna")));
    // A later header of the same tenant changes the cap.
    let proof = prove(&[&[of("acme", Some(1))], &calls[..], &[of("acme", Some(2))]].concat());
    assert!(proof.holds, "{:?}", proof.claims);
}

#[test]
fn a_second_result_is_detected_unless_its_id_had_expired() {
    let twice = [entry(1, "a/0", "", ""), entry(2, "a/0", "", "")];
    assert_eq!(violated(&prove(&twice)), ["No call has two results."]);
    let header = Header { export: 1, dedupe_ms: 500, ..Header::default() };
    let again = prove(&[lines::header(&header), twice[0].clone(), twice[1].clone()]);
    assert!(again.holds && again.unseen.iter().any(|line| line.contains("were reused")), "{:?}", again.unseen);
    assert!(prove(&[twice[0].clone(), twice[0].clone()]).holds);
}

#[test]
fn a_duplicate_effect_is_detected_only_within_its_window() {
    let effect = r#","effect":{"key":"h","window_ms":5000}"#;
    let reported = r#","effect":{"key":"h","window_ms":5000},"repeats":"a/0""#;
    let ran = entry(1, "a/0", "", effect);
    assert_eq!(
        violated(&prove(&[ran.clone(), entry(2, "b/0", "", effect)])),
        ["No effect key ran twice within its window."]
    );
    assert!(prove(&[ran.clone(), entry(2, "b/0", "", reported)]).holds);
    assert!(prove(&[ran, entry(9, "b/0", "", effect)]).holds);
}

#[test]
fn only_calls_that_ended_in_the_period_are_checked() {
    let mut prover = Prover::new(Some(2_000), Some(4_000));
    for id in 1..6 {
        prover.line(&entry(id, &format!("t{id}/0"), "", ""));
    }
    let proof = prover.finish();
    assert_eq!((proof.calls, proof.first_ms, proof.last_ms), (2, Some(2_000), Some(3_000)));
}

#[test]
fn header_statements_are_reported_as_unproven() {
    let mut said = lines::Header { export: lines::FORMAT, dedupe_ms: 1, ..lines::Header::default() };
    said.tenants.insert("acme".into(), lines::TenantFacts { time_zone: "Europe/Paris".into(), day_cap: Some(9) });
    let made = [entry(1, "a/0", "A900,1,1,3,5000,1,100", ""), entry(2, "a/0", "", "")];
    let proof = prove(&[&[lines::header(&said)][..], &made].concat());
    let results = &proof.claims[0];
    assert_eq!((results.holds, results.checked, results.unchecked), (true, 2, 1), "{results:?}");
    let reported = [
        "An id can be reused 1 ms after its turn has ended.",
        "Days of acme are in the time zone Europe/Paris; the cap is 9 calls a day.",
    ];
    assert_eq!(proof.assumptions, reported);
    let report = crate::report::markdown(&proof, &crate::verify::ExportVerdict::default());
    let row =
        "| No call has two results. | yes | 2 calls | 1 calls: their ids were reused after their records had expired";
    assert!(
        report.contains(row) && report.contains("## As the export says") && report.contains(reported[1]),
        "{report}"
    );
    assert!(!prove(&made).holds, "without it, two results are two");
}

const LIMITS: &str = "No window of a limit overran.";

fn limits_of(proof: &Proof) -> &Claim {
    proof.claims.iter().find(|claim| claim.claim == LIMITS).unwrap()
}

/// An admission at 1 s. `number` is the count in the tick.
fn debits(number: u64, debits: &str) -> String {
    format!("A1000,1,{number},9,5000,{number},100;{debits}")
}

#[test]
fn every_kind_of_limit_window_overrun_is_detected() {
    let first = debits(1, "Dmails@acme,2,2,3,9000,0");
    let holds = prove(&[
        entry(1, "a/0", &first, ""),
        entry(2, "b/0", &debits(2, "Dmails@acme,1,3,3,9000,0;Dsum@acme:x,500,500,600,60000,0"), ""),
        entry(3, "c/0", "A9100,1,1,9,10000,3,100;Dmails@acme,3,3,3,19000,9000", ""),
    ]);
    assert!(holds.holds, "{:?}", holds.claims);
    assert_eq!((limits_of(&holds).checked, limits_of(&holds).unchecked), (3, 0));
    for (second, why) in [
        (debits(2, "Dmails@acme,2,4,3,9000,0"), "beyond what it allows"),
        (debits(2, "Dmails@acme,1,1,3,9000,0"), "the same place twice"),
        (debits(2, "Dmails@acme,2,2,3,9000,0"), "the same places twice"),
        (debits(2, "Dmails@acme,1,1,3,8000,0"), "a window within a window"),
        (debits(2, "Dmails@acme,1,3,3,900,0"), "a window that had ended"),
    ] {
        let proof = prove(&[entry(1, "a/0", &first, ""), entry(2, "b/0", &second, "")]);
        assert_eq!(violated(&proof), [LIMITS], "{why}");
    }
}

#[test]
fn overruns_after_a_limit_reset_are_still_detected() {
    // The reset was at 1 s, before the last call.
    let made = |last: &str| {
        prove(&[
            entry(1, "a/0", &debits(1, "Dmails@acme,2,2,3,9000,0"), ""),
            entry(2, "b/0", &debits(2, "Dmails@acme,2,2,3,9000,1000"), ""),
            entry(3, "c/0", &format!("A1500,1,3,9,5000,3,100;Dmails@acme,{last}"), ""),
        ])
    };
    assert!(made("1,3,3,9000,1000").holds);
    for (last, why) in [
        ("1,2,3,9000,1000", "the same count"),
        ("1,3,3,9000,0", "of the window before the reset"),
        ("1,1,3,9000,2000", "of one that begins later"),
    ] {
        assert_eq!(violated(&made(last)), [LIMITS], "{why}");
    }
}

#[test]
fn a_reset_unreadable_counter_is_checked_call_by_call() {
    let reset = r#"{"timestamp":"1970-01-01T00:00:01.000Z","action":"LIMIT_RESET","entity_id":"mails@acme","actor_id":"anna","tenant":null,"meta":{"limit":"mails","counter":"acme","used_before":null,"window_ends_ms":null}}"#;
    let made = |last: &str| {
        prove(&[
            entry(1, "a/0", &debits(1, "Dmails@acme,2,2,3,9000,0"), ""),
            lines::entry(0, "2-0", "", reset),
            entry(3, "b/0", &debits(2, last), ""),
        ])
    };
    assert!(made("Dmails@acme,2,2,3,9000,0").holds);
    assert_eq!(violated(&made("Dmails@acme,4,4,3,9000,0")), [LIMITS]);
}

#[test]
fn calls_without_readable_debits_are_reported_as_unchecked() {
    let unchecked = |note: &str| limits_of(&prove(&[entry(1, "a/0", note, "")])).unchecked;
    assert_eq!(unchecked("A1000,1,1,9,5000,1,100"), 1, "an older build");
    assert_eq!(unchecked(&debits(1, "Dmails@acme,1,1,3,9000,0;D")), 1, "too many");
    assert_eq!(unchecked(&debits(1, "Dmails@acme,1,what")), 1, "what cannot be read");
    assert_eq!(unchecked(&debits(1, "D0")), 0);
    // A worker of an older version settled the first call of the admission.
    let older = "A1000,2,2,9,5000,2,100";
    let newer = "A1000,2,2,9,5000,2,100;Dmails@acme,2,2,1,9000,0";
    let proof = prove(&[entry(1, "a/0", older, ""), entry(2, "a/1", newer, "")]);
    assert_eq!((violated(&proof), limits_of(&proof).unchecked), (vec![LIMITS], 1));
}

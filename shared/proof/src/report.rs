//! A Markdown report for readers who have only the export and the program.

use chrono::DateTime;

use crate::prove::{Claim, Proof};
use crate::verify::ExportVerdict;

/// Maximum number of findings, and of violations per claim. The JSON output has more.
const SHOWN_MAX: usize = 50;

#[must_use]
pub fn markdown(proof: &Proof, verdict: &ExportVerdict) -> String {
    let mut text = String::from("# What the audit log proves\n\n");
    let time =
        |ms: Option<i64>| ms.and_then(DateTime::from_timestamp_millis).map_or("–".into(), |at| at.to_rfc3339());
    let answer =
        if proof.holds && verdict.intact { "Everything that was checked holds." } else { "**Not everything holds.**" };
    text += &format!(
        "{answer} {} calls ended between {} and {}.\n\n## Claims\n\n| Claim | Holds | Checked | Not checked |\n|---|---|---|---|\n",
        proof.calls,
        time(proof.first_ms),
        time(proof.last_ms)
    );
    for claim in &proof.claims {
        let unchecked = if claim.unchecked == 0 {
            "–".into()
        } else {
            format!("{} calls: {}", claim.unchecked, claim.why_unchecked)
        };
        let holds = match (claim.holds, claim.checked) {
            (false, _) => "**no**",
            (true, 0) => "nothing to check",
            (true, _) => "yes",
        };
        text += &format!("| {} | {holds} | {} {} | {unchecked} |\n", claim.claim, claim.checked, claim.unit);
    }
    proof.claims.iter().filter(|claim| !claim.holds).for_each(|claim| text += &violations(claim));
    text += "\n## The entries\n\n";
    text += &intact(verdict);
    text += "\n## As the export says\n\nThe claims also rest on these unsigned statements:\n\n";
    for line in &proof.assumptions {
        text += &format!("- {line}\n");
    }
    text += "\n## Not verifiable\n\n";
    for line in proof.unseen.iter().chain(&verdict.notes) {
        text += &format!("- {line}\n");
    }
    text += "\nCheck it yourself: `tickfleet audit verify` and `tickfleet prove` need only the export and the public \
         key.\n";
    text
}

fn violations(claim: &Claim) -> String {
    let mut text = format!("\n### {} — it does not hold\n\n", claim.claim.trim_end_matches('.'));
    for what in claim.violations.iter().take(SHOWN_MAX) {
        text += &format!("- {what}\n");
    }
    let more = claim.violations.len().saturating_sub(SHOWN_MAX) as u64 + claim.more_violations;
    if more > 0 {
        text += &format!("- and {more} more\n");
    }
    text
}

fn intact(verdict: &ExportVerdict) -> String {
    let mut text = format!(
        "{} entries, of which {} are sealed and {} are not; {} seals in {} chains.\n\n",
        verdict.entries,
        verdict.sealed,
        verdict.unsealed,
        verdict.seals,
        verdict.chains.len()
    );
    if verdict.intact {
        text += "The sealed entries are unchanged.\n";
        return text;
    }
    text += "**They differ from the log as it was written:**\n\n";
    for finding in verdict.findings.iter().take(SHOWN_MAX) {
        text += &format!("- {finding}\n");
    }
    let more = verdict.findings.len().saturating_sub(SHOWN_MAX) as u64 + verdict.more_findings;
    if more > 0 {
        text += &format!("- and {more} more\n");
    }
    text
}

//! Measures processor time and peak memory of seal, verify, prove and what-if, each in its own process. Pass the output
//! of the example `export`: `cargo run --release -p tickfleet-proof --example measure million.jsonl`

use std::cell::Cell;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::sync::Arc;

use serde::Deserialize;
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, AgentPolicy, Policy, TenantId};
use tickfleet_proof::lines::Line;
use tickfleet_proof::prove::Prover;
use tickfleet_proof::seal::{ChainName, Head, Leaf, Losses, Signer, seal};
use tickfleet_proof::verify::Verifier;
use tickfleet_proof::whatif::recorded::{LogStart, OperatorActions, RecordedEntry};
use tickfleet_proof::whatif::replay::{Fleet, Replay};
use tickfleet_proof::whatif::turns::Turn;

/// This constant and the next two must match the example `export`.
const AGENTS: u64 = 100;
const CALLS_PER_TICK: u32 = 10;
const CALLS_PER_DAY: u32 = 1_000_000;
/// Ticks per second in the kernel's accounting of processor time.
const TICKS: f64 = 100.0;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [path] => {
            for what in ["read", "seal", "verify", "prove", "whatif"] {
                let status = Command::new(std::env::current_exe()?).args([path, what]).status()?;
                if !status.success() {
                    return Err(format!("{what}: {status}").into());
                }
            }
            Ok(())
        }
        [path, what] => measure(path, what),
        _ => Err("expected the path of an export".into()),
    }
}

fn measure(path: &str, what: &str) -> Result<(), Box<dyn Error>> {
    let lines = BufReader::with_capacity(1 << 20, File::open(path)?).lines();
    let (entries, summary) = match what {
        "read" => seal_all(lines, false)?,
        "seal" => seal_all(lines, true)?,
        "verify" => verify(lines)?,
        "prove" => prove(lines)?,
        _ => replay(lines)?,
    };
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // After the process' name, index 11 is the user time and index 12 the system time.
    let numbers: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let of = |at: usize| numbers.get(at).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or_default();
    let seconds = (of(11) + of(12)) / TICKS;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what:<7} {entries} entries: {seconds:.1} s of processor time, {} at most; {summary}", peak.trim())?;
    Ok(())
}

type MeasureResult = std::io::Result<(u64, String)>;

#[derive(Deserialize)]
struct EntryTenant {
    tenant: String,
}

/// Works like a scheduler, without requests to Redis. If `seals` is false, entries are only read, so that this time can
/// be subtracted.
fn seal_all(lines: impl Iterator<Item = std::io::Result<String>>, seals: bool) -> MeasureResult {
    let chain = ChainName { fleet: "f".into(), shard: 0, tenant: "acme".into() };
    let signer = Signer::new("k1", &"07".repeat(32)).map_err(std::io::Error::other)?;
    let mut head = Head::default();
    let mut leaves = Vec::new();
    let mut entries = 0;
    let mut made = 0;
    for line in lines {
        let line = line?;
        let Some(Line::Entry(entry)) = Line::read(&line) else { continue };
        entries += 1;
        if !seals {
            continue;
        }
        let entry_tenant = serde_json::from_str::<EntryTenant>(&entry.text).map_err(std::io::Error::other)?;
        if entry_tenant.tenant == chain.tenant {
            leaves.push(Leaf::of(entry.id.parse().unwrap_or_default(), &entry.admitted, &entry.text));
        }
        if leaves.len() == 500 {
            head = seal(&chain, &head, &leaves, &Losses::default(), 1, &signer).head;
            leaves.clear();
            made += 1;
        }
    }
    Ok((entries, format!("{made} seals")))
}

fn verify(lines: impl Iterator<Item = std::io::Result<String>>) -> MeasureResult {
    let mut verifier = Verifier::new(BTreeMap::new());
    for line in lines {
        verifier.line(&line?);
    }
    let verdict = verifier.finish(&[], None);
    Ok((verdict.entries, if verdict.intact { "intact".to_owned() } else { format!("{:?}", verdict.findings) }))
}

fn prove(lines: impl Iterator<Item = std::io::Result<String>>) -> MeasureResult {
    let mut prover = Prover::new(None, None);
    for line in lines {
        prover.line(&line?);
    }
    let proof = prover.finish();
    Ok((proof.calls, format!("{} claims hold: {}", proof.claims.len(), proof.holds)))
}

/// The command `tickfleet whatif` does more: it sorts the log first, and runs the guards for each call.
fn replay(lines: impl Iterator<Item = std::io::Result<String>>) -> MeasureResult {
    let mut policy = Policy::default();
    policy.defaults.calls_per_tick = CALLS_PER_TICK;
    policy.defaults.max_actions_per_day = CALLS_PER_DAY;
    let agents = (0..AGENTS).filter_map(|number| AgentId::new(format!("agent-{number}")).ok());
    policy.agents = Arc::new(agents.map(|agent| (agent, AgentPolicy::default())).collect());
    policy.tenants.extend(TenantId::new("acme").ok().map(|tenant| (tenant, TenantPolicy::default())));
    let fleet = Fleet {
        policy: &policy,
        shards: 1,
        agent_stagger: |_, _, _| 0,
        counter_stagger: |_, _, _| 0,
        slots: None,
        one_tenant: false,
    };
    let differences = Cell::new(0_u64);
    let mut entries = 0;
    let tell = |_| differences.set(differences.get() + 1);
    let began = LogStart::default();
    let mut replay = Replay::new(fleet, &OperatorActions::default(), &began, tell);
    for line in lines {
        let line = line?;
        let Some(Line::Entry(entry)) = Line::read(&line) else { continue };
        let RecordedEntry::Call(call) = RecordedEntry::entry(&entry) else { continue };
        entries += 1;
        if let Some(turn) = Turn::of(&[*call]) {
            replay.turn(turn);
        }
    }
    let undecided = replay.finish().not_decidable.len();
    Ok((entries, format!("{} differences, {undecided} reasons why something is not decidable", differences.get())))
}

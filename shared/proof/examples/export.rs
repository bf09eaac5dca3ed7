//! Writes an export with the given number of sealed entries to standard output, for measurements: `cargo run --release
//! -p tickfleet-proof --example export 1000000 > million.jsonl`. A second argument names a folder for the fleet's
//! configuration.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use chrono::DateTime;
use tickfleet_proof::lines::{self, End, Header};
use tickfleet_proof::seal::{ChainName, EntryId, Head, Leaf, Losses, Signer, seal};

const BATCH: usize = 500;
const AGENTS: u64 = 100;
const BEGAN_MS: u64 = 1_800_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args().nth(1).unwrap_or_default().parse()?;
    if let Some(folder) = std::env::args().nth(2) {
        configure(Path::new(&folder))?;
    }
    let signer = Signer::new("k1", &"07".repeat(32))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let keys = BTreeMap::from([("k1".to_owned(), signer.public_key())]);
    let header = Header { export: lines::FORMAT, fleet: "f".into(), keys, ..Header::default() };
    writeln!(out, "{}", lines::header(&header))?;
    let chain = ChainName { fleet: "f".into(), shard: 0, tenant: "acme".into() };
    let mut head = Head::default();
    let mut leaves = Vec::new();
    let mut seals = 0;
    for number in 0..count {
        let agent = number % AGENTS;
        let call = number / AGENTS;
        let ends_ms = BEGAN_MS + (call / 10 + 1) * 5_000;
        let at_ms = ends_ms - 5_000 + call % 10 * 10;
        let id = EntryId { ms: at_ms + 5, seq: agent };
        // A limit on each agent's calls per hour counts the calls too.
        let hour_ms = BEGAN_MS + call / 7_200 * 3_600_000;
        let used = call % 7_200 + 1;
        let limit = format!("Dhourly@acme:agent-{agent},1,{used},7200,{},{hour_ms}", hour_ms + 3_600_000);
        let admitted = format!("A{at_ms},1,{},10,{ends_ms},{},1000000;{limit}", call % 10 + 1, call + 1);
        let time = DateTime::from_timestamp_millis(i64::try_from(at_ms)? + 5).unwrap_or_default();
        let text = format!(
            r#"{{"timestamp":"{}","level":"info","action":"TOOL_CALL","entity_type":"tool","entity_id":"tool_echo","actor_type":"agent","actor_id":"agent-{agent}","tenant":"acme","message":"agent-{agent} called echo: ok in 1 ms","meta":{{"call":"t{number}/0","turn":"t{number}","tool_call_id":null,"arguments":{{"text":"hello","value":{number}}},"result":"{{\"text\":\"hello\"}}","duration_ms":1,"success":true,"error":null,"retry_count":0,"outcome":"ok","policy_version":1,"policy_digest":"3f2a9c0d1e4b"}}}}"#,
            time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        );
        leaves.push(Leaf::of(id, &admitted, &text));
        writeln!(out, "{}", lines::entry(0, &id.to_string(), &admitted, &text))?;
        if leaves.len() == BATCH || number + 1 == count {
            let sealed = seal(&chain, &head, &leaves, &Losses::default(), i64::try_from(at_ms)?, &signer);
            writeln!(out, "{}", lines::seal(0, &sealed.body, &sealed.signature))?;
            (head, seals) = (sealed.head, seals + 1);
            leaves.clear();
        }
    }
    writeln!(out, "{}", lines::end(End { entries: count, seals }))?;
    out.flush()?;
    Ok(())
}

fn configure(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let agents: String = (0..AGENTS).map(|number| format!("  agent-{number}: {{}}\n")).collect();
    for (name, text) in [
        ("tickfleet.yaml", "caps: {tick: 5s, max_calls_per_tick: 10, max_actions_per_day: 1000000}\n"),
        ("permissions.yaml", "permissions: {echo: {everyone: true}}\n"),
        ("tenants.yaml", "tenants: {acme: {}}\n"),
        ("tools.yaml", "tools: {}\n"),
        ("agents.yaml", &format!("agents:\n{agents}")),
    ] {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

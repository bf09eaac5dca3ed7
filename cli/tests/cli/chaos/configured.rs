//! Defines the configuration of the fleet under faults: agents that exceed their cap, two tools, and a cap per day.

use std::fs;
use std::path::Path;

use super::target::ChaosTarget;
use super::verdict::{DAY_CALLS, TICK_CALLS};
use super::{AGENTS, INBOX_UNREAD_MAX};

pub fn write(folder: &Path, address: &str, target: &ChaosTarget) {
    // If a failover may lose writes, each call waits until the replica has its begin and its debits.
    let durable = if target.forgets() { "\n    durable: replica" } else { "" };
    let tenants: String = target.homes.iter().map(|home| format!("  {}: {{plan: pro}}\n", home.tenant)).collect();
    let tool = |name: &str, effect: &str| {
        format!(
            "  {name}:\n    id: tool_{name}\n    description: Does it.\n    effect: {effect}{durable}\n    timeout_ms: 10000\n    input_schema:\n      \
             type: object\n      properties: {{number: {{type: integer}}, agent: {{type: string}}, turn: {{type: string}}, tool: {{type: string}}}}\n    \
             http: {{method: POST, base_url: 'http://{address}', path: /{name}, body: {{number: '{{{{number}}}}', agent: \
             '{{{{agent}}}}', turn: '{{{{turn}}}}', tool: '{{{{tool}}}}'}}, allow_private: [127.0.0.1]}}\n"
        )
    };
    let agents: String = (0..AGENTS).map(|agent| format!("  a{agent}: {{}}\n")).collect();
    let row = "match: {agents: [daily]}, per: [agent], every: day, on_reach: reject";
    for (name, text) in [
        ("tickfleet.yaml", settings(target)),
        ("agents.yaml", format!("agents:\n{agents}  daily: {{}}\n  probe: {{}}\n")),
        ("tenants.yaml", format!("tenants:\n{tenants}")),
        ("limits.yaml", format!("limits: {{per_day: {{{row}, max: {DAY_CALLS}}}}}\n")),
        ("tools.yaml", format!("tools:\n{}{}", tool("pay", "once"), tool("look", "read"))),
        ("permissions.yaml", "permissions:\n  pay: {everyone: true}\n  look: {everyone: true}\n".to_owned()),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
}

fn settings(target: &ChaosTarget) -> String {
    format!(
        "caps: {{tick: 1s, max_calls_per_tick: {TICK_CALLS}, max_actions_per_day: 1000000}}\nredis: {{shards: {}}}\n\
         queues: {{inbox_unread_max: {INBOX_UNREAD_MAX}}}\n\
         # What has no reply is sent again in the end, and its id shall still be known then, also by a clock that is a day ahead.\n\
         retention: {{records: 7d, dedupe_for: 7d, replies: 7d}}\n",
        target.shards()
    )
}

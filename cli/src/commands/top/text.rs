//! A frame as text.

use comfy_table::{CellAlignment, Table};
use tickfleet_model::Outcome;
use tickfleet_model::hidden::visible;

use super::finding::{Finding, Severity};
use super::frame::{Agent, Frame, Node, Shard, WorkInState};
use super::tools::ToolRow;
use crate::output::time_format::{clock, span};
use crate::output::{lines, short, table};

const ROWS_MAX: usize = 20;
const NAME_CHARS: usize = 40;
const FINDING_CHARS: usize = 160;

pub(super) fn text(frame: &Frame) -> String {
    let mut blocks = vec![heading(frame), backlog(frame)];
    if !frame.shards.is_empty() {
        blocks.push(shards(frame));
    }
    blocks.extend([nodes(frame), agents(frame), tools(frame)]);
    blocks.join("\n\n")
}

fn heading(frame: &Frame) -> String {
    let policy = match frame.policy_generation {
        0 => "no policy yet".to_owned(),
        generation => format!("policy {generation}"),
    };
    let paused = if frame.paused > 0 { format!(" · {} paused", frame.paused) } else { String::new() };
    let mut lines =
        vec![format!("tickfleet top · {} · {policy}{paused} · {}", frame.heading.redis, clock(frame.heading.now_ms))];
    if frame.findings.is_empty() {
        lines.push("Nothing needs attention.".to_owned());
    }
    lines.extend(frame.findings.iter().map(finding));
    let rates = [("turns in", frame.rates.turns), ("slices", frame.rates.slices), ("calls", frame.rates.calls)];
    let rates = rates.map(|(name, rate)| format!("{name} {}/s", rate.map_or("–".into(), grouped)));
    lines.push(format!("slots {} of {} busy · {}", frame.slots.busy, frame.slots.all, rates.join(" · ")));
    let server = &frame.server;
    let memory = match server.max_bytes {
        0 => format!("{} of unbounded memory", bytes(server.used_bytes)),
        max => format!("{} of {}", bytes(server.used_bytes), bytes(max)),
    };
    let cpu = server.cpu.map_or(String::new(), |cpu| format!(" · {:.0} % of a core", cpu * 100.0));
    lines.push(format!(
        "redis {}: {memory} · {} commands/s{cpu} · {} clients",
        server.version,
        grouped(server.commands_per_s as f64),
        server.clients
    ));
    lines.join("\n")
}

fn finding(finding: &Finding) -> String {
    let mark = match finding.severity {
        Severity::Bad => '!',
        Severity::Doubt => '*',
        Severity::Info => '-',
    };
    format!("{mark} {} > {}", short(&visible(&finding.text), FINDING_CHARS), finding.action)
}

/// Columns whose names begin with `>` are aligned to the right.
fn titled(title: &str, head: &[&str], rows: impl ExactSizeIterator<Item = Vec<String>>) -> String {
    let hidden = rows.len().saturating_sub(ROWS_MAX);
    let more = if hidden > 0 { format!(" · {hidden} more") } else { String::new() };
    let names: Vec<&str> = head.iter().map(|name| name.trim_start_matches('>')).collect();
    let mut shown: Table = table(&names);
    shown.add_rows(rows.take(ROWS_MAX));
    for (column, name) in shown.column_iter_mut().zip(head) {
        if name.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{title}{more}\n{}", lines(shown))
}

fn backlog(frame: &Frame) -> String {
    let row = |work: &WorkInState| {
        vec![work.state.to_owned(), grouped(work.count as f64), work.oldest_ms.map_or(String::new(), span)]
    };
    titled("Backlog", &["state", ">count", ">oldest"], frame.backlog.iter().map(row))
}

fn shards(frame: &Frame) -> String {
    let row = |shard: &Shard| {
        let [inbound, ready, running] = [shard.inbound, shard.ready, shard.running].map(|count| grouped(count as f64));
        vec![shard.shard.to_string(), inbound, ready, running, shard.calls_per_s.map_or("–".into(), grouped)]
    };
    titled("Shards", &[">shard", ">in", ">ready", ">running", ">calls/s"], frame.shards.iter().map(row))
}

fn nodes(frame: &Frame) -> String {
    let alive = |kind: &str| match frame.nodes.iter().filter(|node| node.alive && node.kind == kind).count() {
        1 => format!("1 {kind}"),
        count => format!("{count} {kind}s"),
    };
    let row = |node: &Node| {
        let heartbeat = match node.heartbeat_age_ms {
            _ if !node.alive => format!("gone {}", span(-node.lease_left_ms)),
            Some(age) => format!("{} ago", span(age)),
            None => format!("{} left", span(node.lease_left_ms)),
        };
        let slots = match node.slots {
            Some(slots) if node.drained && slots.busy > 0 => format!("drains {}", slots.busy),
            _ if node.drained => "drained".to_owned(),
            slots => slots.map_or(String::new(), |slots| format!("{}/{}", slots.busy, slots.all)),
        };
        vec![short(&visible(&node.name), NAME_CHARS), heartbeat, slots]
    };
    let title = format!("{}, {} alive", alive("scheduler"), alive("worker"));
    titled(&title, &["name", ">heartbeat", ">slots"], frame.nodes.iter().map(row))
}

fn agents(frame: &Frame) -> String {
    let used = |used: i64, max: Option<u32>| {
        let max = max.map_or(String::new(), |max| format!("/{}", grouped(max.into())));
        format!("{}{max}", grouped(used as f64))
    };
    let row = |agent: &Agent| {
        vec![
            short(&agent.name(), NAME_CHARS),
            grouped(agent.turns as f64),
            agent.oldest_ms.map_or(String::new(), span),
            if agent.due_in_ms <= 0 { "now".into() } else { format!("in {}", span(agent.due_in_ms)) },
            used(agent.tick_used, agent.tick_max),
            used(agent.day_used, agent.day_max),
        ]
    };
    let so_far = if frame.agents_complete { "" } else { " so far" };
    let title = format!("Capped agents: {}{so_far}", frame.agents.len());
    titled(&title, &["agent", ">turns", ">waits", ">next", ">tick", ">day"], frame.agents.iter().map(row))
}

fn tools(frame: &Frame) -> String {
    let row = |tool: &ToolRow| {
        let others = tool.outcomes.iter().filter(|(outcome, _)| !outcome.is_success());
        vec![
            short(&tool.tool, NAME_CHARS),
            grouped(tool.calls as f64),
            grouped(tool.outcomes.get(&Outcome::Ok).copied().unwrap_or(0) as f64),
            span(i64::try_from(tool.mean_ms).unwrap_or(i64::MAX)),
            others.map(|(outcome, count)| format!("{count} {}", outcome.as_str())).collect::<Vec<_>>().join(", "),
        ]
    };
    let sample = if frame.tools.sampled { "a sample of " } else { "" };
    let title = format!("Tools · {sample}{} calls of the last minute", grouped(frame.tools.seen as f64));
    titled(&title, &["tool", ">calls", ">ok", ">mean", "other outcomes"], frame.tools.rows.iter().map(row))
}

fn grouped(number: f64) -> String {
    if number < 10.0 && number.fract() > 0.0 {
        return format!("{number:.1}");
    }
    let digits = format!("{number:.0}");
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = count as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{size:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::super::frame::{Heading, Server, Slots, WorkInState};
    use super::super::tools::Tools;
    use super::*;

    fn finding(severity: Severity, text: &str) -> Finding {
        let kind = super::super::finding::FindingKind::Store;
        Finding { kind, severity, text: text.into(), count: 1, subject: None, action: "tickfleet doctor".into() }
    }

    fn frame() -> Frame {
        let agent = |agent: &str, turns| Agent {
            tenant: "atlas-ux".into(),
            agent: agent.into(),
            limit: None,
            turns,
            oldest_ms: Some(12_300),
            due_in_ms: 2_100,
            tick_used: 10,
            day_used: 340,
            tick_max: Some(10),
            day_max: Some(1_000),
            first: "atlas-ux:order-17".into(),
        };
        let node = |name: &str, kind, alive| Node {
            name: name.into(),
            kind,
            shard: 0,
            alive,
            heartbeat_age_ms: Some(1_200),
            lease_left_ms: if alive { 8_800 } else { -4_000 },
            slots: (kind == "worker").then_some(Slots { busy: 12, all: 32 }),
            drained: false,
        };
        Frame {
            heading: Heading { redis: "redis://127.0.0.1:6379/0".into(), now_ms: 1_767_571_205_000 },
            policy_generation: 3,
            paused: 2,
            server: Server {
                version: "7.0.15".into(),
                used_bytes: 13_000_000,
                commands_per_s: 1_204,
                ..Server::default()
            },
            slots: Slots { busy: 12, all: 32 },
            backlog: vec![WorkInState { state: "ready", count: 1_234, unit: "slices", oldest_ms: Some(4_200) }],
            nodes: vec![node("w-gone", "worker", false), node("s-a", "scheduler", true), node("w-a", "worker", true)],
            agents: vec![agent("kelly", 4), agent("sunday", 1)],
            agents_complete: true,
            tools: Tools {
                rows: vec![ToolRow {
                    tool: "post_to_x".into(),
                    calls: 9,
                    outcomes: [(Outcome::Ok, 7), (Outcome::Denied, 2)].into(),
                    mean_ms: 40,
                    longest_ms: 90,
                }],
                seen: 9,
                sampled: false,
            },
            findings: vec![finding(Severity::Bad, "memory is nearly full: new work is rejected")],
            ..Frame::default()
        }
    }

    #[test]
    fn the_text_shows_every_section() {
        let text = text(&frame());
        for said in [
            "policy 3 · 2 paused",
            "slots 12 of 32 busy",
            "12.4 MiB of unbounded memory · 1,204 commands/s",
            "! memory is nearly full: new work is rejected > tickfleet doctor",
            "ready  1,234   4.2 s",
            "1 scheduler, 1 worker alive",
            "gone 4.0 s",
            "1.2 s ago  12/32",
            "Capped agents: 2",
            "atlas-ux:kelly",
            "in 2.1 s  10/10  340/1,000",
            "Tools · 9 calls of the last minute",
            "2 denied",
        ] {
            assert!(text.contains(said), "no {said:?} in\n{text}");
        }
    }

    #[test]
    fn a_fleet_at_rest_and_hidden_rows_are_reported() {
        let mut frame = frame();
        frame.findings.clear();
        frame.agents = vec![frame.agents[0].clone(); 30];
        let text = text(&frame);
        assert!(text.contains("Nothing needs attention."), "{text}");
        assert!(text.contains("Capped agents: 30 · 10 more\n"), "{text}");
    }

    #[test]
    fn numbers_and_sizes_are_human_readable() {
        assert_eq!([0.0, 2.5, 12.5, 999.0, 1_234_567.0].map(grouped), ["0", "2.5", "12", "999", "1,234,567"]);
        assert_eq!([0, 1_023, 1_536, 3 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}

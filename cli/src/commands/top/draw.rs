//! Draws a frame into a buffer of cells. A terminal shows the buffer, or it is printed as text. This module does no
//! I/O.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style as Cells};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Clear, Row, Table, Widget};

use super::finding::{Finding, Severity};
use super::frame::{Agent, Frame, Node, Sort, WorkInState};
use super::tools::ToolRow;
use super::trend::Trend;
use crate::output::short;
use crate::output::time_format::{clock, span};
use tickfleet_model::Outcome;
use tickfleet_model::hidden::visible;
use tickfleet_model::outcome::OutcomeSeverity;

const PRINTED_ROWS_MAX: usize = 20;
/// Below this width, the table of tools is placed below the table of agents instead of next to it.
const WIDE_COLUMNS: u16 = 140;
const TREND_WORDS: u16 = 48;
const TREND_COLUMNS: u16 = 100;
const BAR_CELLS: usize = 20;
/// Below this height, states without work are left out of the backlog.
const TALL_ROWS: u16 = 30;
/// Below this height, the trends are left out.
const TREND_ROWS: u16 = 20;
/// Least and most rows of findings on a terminal.
const FINDINGS: (u16, u16) = (2, 10);
const CORE_STATES: [&str; 2] = ["ready", "running"];

/// Lines have at most 76 characters, so that they fit a terminal with 80 columns.
const HELP: [&str; 20] = [
    "q, Ctrl-C, Esc   quit; Esc closes an open window first",
    "p                pause the display",
    "+  -             refresh faster, slower",
    "s                sort by count, by time, by name",
    "up, down         select a capped agent",
    "e, Enter         explain why its first turn waits",
    "?                this help",
    "",
    "First come the findings: ! bad, * to decide or to check, - for information.",
    "All data is read from Redis. Rates cover the time since the last refresh.",
    "Slots are as of each worker's last heartbeat.",
    "Trends cover what this view has seen, at most five minutes.",
    "capped: turns that wait for a later tick or day; at most 256 agents.",
    "delayed: turns with a failed call that is retried later.",
    "dead: rejected and poison messages; tickfleet dead list shows them.",
    "timers: turns and tasks with a deadline or a wait.",
    "Calls and tools come from the audit log (audit.log_tool_calls).",
    "Tools show the last minute; above 200 calls per refresh, a sample.",
    "",
    "any key closes this",
];

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    pub(super) colour: bool,
}

impl Style {
    fn of(self, colour: Color) -> Cells {
        if self.colour { Cells::new().fg(colour) } else { Cells::new() }
    }

    fn bold(self) -> Cells {
        Cells::new().add_modifier(Modifier::BOLD)
    }
}

#[derive(Debug, Clone)]
pub(super) struct TurnExplanation {
    pub(super) title: String,
    pub(super) lines: Vec<String>,
    pub(super) at: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ViewState {
    pub(super) sort: Sort,
    pub(super) every: String,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) trouble: Option<String>,
    pub(super) trend: Trend,
    pub(super) chosen: Option<usize>,
    pub(super) explanation: Option<TurnExplanation>,
}

impl ViewState {
    pub(super) const fn has_window(&self) -> bool {
        self.help || self.explanation.is_some()
    }
}

pub(super) fn printed(frame: &Frame, columns: u16) -> String {
    let rows = |count: usize| u16::try_from(count.min(PRINTED_ROWS_MAX)).unwrap_or(0);
    let top = frame.backlog.len().max(frame.nodes.len() + 1).max(frame.backlog.len() + shard_lines(frame));
    let height = 5
        + u16::try_from(frame.findings.len()).unwrap_or(0).max(1)
        + rows(top)
        + rows(frame.agents.len()).max(1)
        + rows(frame.tools.rows.len()).max(1)
        + 6;
    let area = Rect::new(0, 0, columns, height);
    let mut buffer = Buffer::empty(area);
    draw(frame, None, Style::default(), area, &mut buffer);
    let line = |y: u16| {
        let text: String =
            (0..columns).filter_map(|x| buffer.cell((x, y))).map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    let lines: Vec<String> = (0..height).map(line).collect();
    lines.join("\n").trim_end().to_owned()
}

pub(super) fn draw(frame: &Frame, view_state: Option<&ViewState>, style: Style, area: Rect, buffer: &mut Buffer) {
    let most = match view_state {
        Some(_) => (area.height / 5).clamp(FINDINGS.0, FINDINGS.1),
        None => u16::MAX,
    };
    let found = finding_lines(frame, view_state, (area.width, most), style);
    let trend = view_state.filter(|_| area.height >= TREND_ROWS);
    let trend = trend.and_then(|view_state| trend_line(&view_state.trend, area.width, style));
    let head = 3 + u16::from(trend.is_some()) + u16::try_from(found.len()).unwrap_or(0);
    let left = area.height.saturating_sub(head + 1 + u16::from(view_state.is_some()));
    let is_whole = view_state.is_none() || area.height >= TALL_ROWS;
    let is_shown = |waiting: &&WorkInState| is_whole || waiting.count > 0 || CORE_STATES.contains(&waiting.state);
    let backlog: Vec<&WorkInState> = frame.backlog.iter().filter(is_shown).collect();
    let top = tables_on_top(frame, backlog.len(), left);
    let [header, upper, lower, footer] = Layout::vertical([
        Constraint::Length(head + 1),
        Constraint::Length(top),
        Constraint::Min(0),
        Constraint::Length(u16::from(view_state.is_some())),
    ])
    .areas(area);
    let [title, load @ ..] = heading(frame, style);
    lines(std::iter::once(title).chain(found).chain(load).chain(trend), header, buffer);
    let [left, nodes] = Layout::horizontal([Constraint::Length(40), Constraint::Min(0)]).areas(upper);
    draw_backlog(frame, &backlog, style, left, buffer);
    draw_nodes(frame, style, nodes, buffer);
    let (agents, tools) = if lower.width >= WIDE_COLUMNS {
        let [agents, tools] = Layout::horizontal([Constraint::Length(76), Constraint::Min(0)]).areas(lower);
        (agents, tools)
    } else {
        let wanted = u16::try_from(frame.agents.len().clamp(1, PRINTED_ROWS_MAX) + 3).unwrap_or(u16::MAX);
        let share = if view_state.is_some() { wanted.min(lower.height / 2 + 1) } else { wanted };
        let [agents, tools] = Layout::vertical([Constraint::Length(share), Constraint::Min(0)]).areas(lower);
        (agents, tools)
    };
    draw_agents(frame, view_state.and_then(|view_state| view_state.chosen), style, agents, buffer);
    draw_tools(frame, style, tools, buffer);
    if let Some(view_state) = view_state {
        lines([foot(view_state, style)], footer, buffer);
        if view_state.help {
            let help = HELP.into_iter().map(|line| Line::raw(format!(" {line}"))).collect();
            draw_window(" tickfleet top ", help, 80, style, area, buffer);
        }
        if let Some(explanation) = &view_state.explanation {
            draw_explanation(explanation, style, area, buffer);
        }
    }
}

fn finding_lines(
    frame: &Frame,
    view_state: Option<&ViewState>,
    (columns, most): (u16, u16),
    style: Style,
) -> Vec<Line<'static>> {
    let trouble = view_state.and_then(|view_state| view_state.trouble.as_ref());
    let trouble = trouble.map(|trouble| Line::styled(format!("! {trouble}"), style.of(Color::Red)));
    let mut found: Vec<Line<'static>> = trouble.into_iter().collect();
    if frame.findings.is_empty() && found.is_empty() {
        return vec![Line::styled("Nothing needs a person.", style.of(Color::Green))];
    }
    let room = usize::from(most);
    let is_cut = frame.findings.len() > room;
    let shown = if is_cut { room.saturating_sub(1) } else { room };
    found.extend(frame.findings.iter().take(shown).map(|finding| finding_line(finding, columns, style)));
    if is_cut {
        found.push(Line::raw(format!("  {} more findings: tickfleet doctor", frame.findings.len() - shown)));
    }
    found
}

fn finding_line(finding: &Finding, columns: u16, style: Style) -> Line<'static> {
    let (mark, colour) = match finding.severity {
        Severity::Bad => ('!', Color::Red),
        Severity::Doubt => ('*', Color::Yellow),
        Severity::Info => ('-', Color::Reset),
    };
    let columns = usize::from(columns);
    let text = short(&visible(&finding.text), columns.saturating_sub(2));
    let used = text.chars().count() + 2;
    let mut spans = vec![Span::styled(format!("{mark} {text}"), style.of(colour))];
    if used + finding.action.chars().count() + 3 <= columns {
        spans.push(Span::styled(format!(" > {}", finding.action), style.of(Color::DarkGray)));
    }
    Line::from(spans)
}

/// Returns at most half of the height `left`, or the height of the backlog if the backlog is higher.
fn tables_on_top(frame: &Frame, states: usize, left: u16) -> u16 {
    let backlog = states + shard_lines(frame);
    let wanted = backlog.max(frame.nodes.len().min(PRINTED_ROWS_MAX) + 1) + 2;
    let least = u16::try_from(backlog + 2).unwrap_or(u16::MAX);
    u16::try_from(wanted).unwrap_or(u16::MAX).min(least.max(left / 2))
}

fn shard_lines(frame: &Frame) -> usize {
    if frame.shards.is_empty() { 0 } else { frame.shards.len().min(8) + 2 }
}

fn lines<'a>(lines: impl IntoIterator<Item = Line<'a>>, area: Rect, buffer: &mut Buffer) {
    for (line, y) in lines.into_iter().zip(area.top()..area.bottom()) {
        buffer.set_line(area.x, y, &line, area.width);
    }
}

fn heading(frame: &Frame, style: Style) -> [Line<'static>; 3] {
    let policy = match frame.policy_generation {
        0 => "no policy yet".to_owned(),
        generation => format!("policy {generation}"),
    };
    let paused = if frame.paused > 0 { format!(" · {} paused", frame.paused) } else { String::new() };
    let rates = [("turns in", frame.rates.turns), ("slices", frame.rates.slices), ("calls", frame.rates.calls)];
    let rates = rates.map(|(what, rate)| format!("{what} {}/s", rate.map_or("–".into(), grouped)));
    let busy = frame.slots.busy;
    let all = frame.slots.all;
    let filled = (BAR_CELLS * busy).checked_div(all).unwrap_or(0).min(BAR_CELLS);
    let mood = if all > 0 && busy * 10 >= all * 9 { Color::Yellow } else { Color::Green };
    let server = &frame.server;
    let memory = match server.max_bytes {
        0 => format!("{} of unbounded memory", bytes(server.used_bytes)),
        max => format!("{} of {}", bytes(server.used_bytes), bytes(max)),
    };
    let cpu = server.cpu.map_or(String::new(), |cpu| format!(" · {:.0} % of a core", cpu * 100.0));
    [
        Line::from(vec![
            Span::styled("tickfleet top", style.bold()),
            Span::raw(format!(" · {} · {policy}{paused} · {}", frame.heading.redis, clock(frame.heading.now_ms))),
        ]),
        Line::from(vec![
            Span::raw("slots ["),
            Span::styled("|".repeat(filled), style.of(mood)),
            Span::raw(format!("{}] {busy} of {all} busy   ", " ".repeat(BAR_CELLS - filled))),
            Span::styled(rates.join(" · "), style.bold()),
        ]),
        Line::raw(format!(
            "redis {}: {memory} · {} commands/s{cpu} · {} clients",
            server.version,
            grouped(server.commands_per_s as f64),
            server.clients
        )),
    ]
}

fn foot(view_state: &ViewState, style: Style) -> Line<'static> {
    let state = if view_state.paused { "paused".to_owned() } else { format!("every {}", view_state.every) };
    let keys = format!("q quit · p pause · + - pace · ↑↓ e explain · s sort: {} · ? help", view_state.sort.as_str());
    Line::from(vec![Span::styled(format!("{state}  "), style.bold()), Span::styled(keys, style.of(Color::DarkGray))])
}

fn trend_line(trend: &Trend, columns: u16, style: Style) -> Option<Line<'static>> {
    let covers = trend.covers_ms()?;
    let words = if columns < TREND_COLUMNS { TREND_WORDS } else { TREND_WORDS + 14 };
    let cells = usize::from(columns.saturating_sub(words) / 3).clamp(4, 60);
    let mut spans = Vec::new();
    for (what, bars, most) in trend.lines(cells) {
        spans.push(Span::raw(format!("{what} ")));
        spans.push(Span::styled(bars, style.of(Color::Green)));
        spans.push(Span::raw(format!(" ≤{}  ", grouped(most))));
    }
    if columns >= TREND_COLUMNS {
        spans.push(Span::raw(format!("in {}", span(covers))));
    }
    Some(Line::from(spans))
}

/// Cuts the middle, because the end of a name says more.
fn squeezed(name: &str, chars: usize) -> String {
    let all: Vec<char> = name.chars().collect();
    if all.len() <= chars || chars < 6 {
        return name.to_owned();
    }
    let head: String = all[..2].iter().collect();
    let tail: String = all[all.len() - (chars - 3)..].iter().collect();
    format!("{head}…{tail}")
}

fn table(
    title: &str,
    head: Vec<&str>,
    rows: Vec<Row<'_>>,
    widths: &[u16],
    style: Style,
    area: Rect,
    buffer: &mut Buffer,
) {
    if area.height == 0 {
        return;
    }
    let room = usize::from(area.height.saturating_sub(2)).min(PRINTED_ROWS_MAX);
    let hidden = rows.len().saturating_sub(room);
    let title = if hidden > 0 { format!("{title} · {hidden} more") } else { title.to_owned() };
    buffer.set_line(area.x, area.y, &Line::styled(title, style.bold()), area.width.saturating_sub(1));
    let below = Rect { y: area.y + 1, height: area.height - 1, ..area };
    // Width 0 means the remaining width. Without such a column, the first column gets the remaining width.
    let rest = widths.iter().position(|width| *width == 0).unwrap_or(0);
    let width = |(at, width): (usize, &u16)| if at == rest { Constraint::Min(10) } else { Constraint::Length(*width) };
    let widths: Vec<Constraint> = widths.iter().enumerate().map(width).collect();
    let head = Row::new(head).style(style.of(Color::Cyan));
    let table = Table::new(rows.into_iter().take(room), widths).header(head).column_spacing(1);
    Widget::render(table, Rect { width: below.width.saturating_sub(2), ..below }, buffer);
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::new(Line::raw(text.into()).right_aligned())
}

fn draw_backlog(frame: &Frame, states: &[&WorkInState], style: Style, area: Rect, buffer: &mut Buffer) {
    let row = |waiting: &&WorkInState| {
        let age = waiting.oldest_ms.map_or(String::new(), span);
        let loud = waiting.state == "dead" && waiting.count > 0;
        let row = Row::new([Cell::new(waiting.state), right(grouped(waiting.count as f64)), right(age)]);
        if loud { row.style(style.of(Color::Yellow)) } else { row }
    };
    let rows = states.iter().map(row).collect();
    let height = u16::try_from(states.len() + 2).unwrap_or(u16::MAX).min(area.height);
    let head = vec!["state", "     count", "      oldest"];
    table("Backlog", head, rows, &[14, 10, 12], style, Rect { height, ..area }, buffer);
    let rest = Rect { y: area.y + height, height: area.height - height, ..area };
    if frame.shards.is_empty() || rest.height < 3 {
        return;
    }
    let row = |shard: &super::frame::Shard| {
        let counts = [shard.inbound, shard.ready, shard.running].map(|count| right(grouped(count as f64)));
        let calls = right(shard.calls_per_s.map_or("–".into(), grouped));
        Row::new([right(shard.shard.to_string())].into_iter().chain(counts).chain([calls]).collect::<Vec<_>>())
    };
    let head = vec!["shard", "in", "ready", "running", "calls/s"];
    table("Shards", head, frame.shards.iter().map(row).collect(), &[5, 5, 5, 7, 7], style, rest, buffer);
}

fn draw_nodes(frame: &Frame, style: Style, area: Rect, buffer: &mut Buffer) {
    let alive = |kind: &str| frame.nodes.iter().filter(|node| node.alive && node.kind == kind).count();
    let title = [alive("scheduler"), alive("worker")]
        .into_iter()
        .zip(["scheduler", "worker"])
        .map(|(count, kind)| format!("{count} {kind}{}", if count == 1 { "" } else { "s" }));
    let title = format!("{} alive", title.collect::<Vec<_>>().join(", "));
    let room = usize::from(area.width.saturating_sub(2 + 16 + 9 + 2)).max(10);
    let row = |node: &Node| {
        let beat = match node.heartbeat_age_ms {
            _ if !node.alive => format!("gone {}", span(-node.lease_left_ms)),
            Some(age) => format!("{} ago", span(age)),
            None => format!("{} left", span(node.lease_left_ms)),
        };
        let slots = match node.slots {
            Some(slots) if node.drained && slots.busy > 0 => format!("drains {}", slots.busy),
            _ if node.drained => "drained".to_owned(),
            slots => slots.map_or(String::new(), |slots| format!("{}/{}", slots.busy, slots.all)),
        };
        let row = Row::new([Cell::new(squeezed(&node.name, room)), right(beat), right(slots)]);
        if node.alive { row } else { row.style(style.of(Color::Red)) }
    };
    let head = vec!["name", "            beat", "    slots"];
    table(&title, head, frame.nodes.iter().map(row).collect(), &[20, 16, 9], style, area, buffer);
}

fn draw_agents(frame: &Frame, chosen: Option<usize>, style: Style, area: Rect, buffer: &mut Buffer) {
    let so_far = if frame.agents_complete { "" } else { " so far" };
    let title = format!("Capped agents: {}{so_far}", frame.agents.len());
    let used = |used: i64, max: Option<u32>| {
        let used = grouped(used as f64);
        right(max.map_or_else(|| used.clone(), |max| format!("{used}/{}", grouped(max.into()))))
    };
    let chosen = chosen.map(|at| at.min(frame.agents.len().saturating_sub(1)));
    let room = usize::from(area.height.saturating_sub(2)).clamp(1, PRINTED_ROWS_MAX);
    let above = chosen.map_or(0, |at| (at + 1).saturating_sub(room));
    let row = |(at, agent): (usize, &Agent)| {
        let next = if agent.due_in_ms <= 0 { "now".into() } else { format!("in {}", span(agent.due_in_ms)) };
        let row = Row::new([
            Cell::new(short(&agent.name(), 40)),
            right(grouped(agent.turns as f64)),
            right(agent.oldest_ms.map_or(String::new(), span)),
            right(next),
            used(agent.tick_used, agent.tick_max),
            used(agent.day_used, agent.day_max),
        ]);
        if chosen == Some(at) { row.style(Cells::new().add_modifier(Modifier::REVERSED)) } else { row }
    };
    let head = vec!["agent", "  turns", "      waits", "          next", "     tick", "            day"];
    let rows = frame.agents.iter().enumerate().skip(above).map(row).collect();
    table(&title, head, rows, &[20, 7, 11, 14, 9, 15], style, area, buffer);
}

fn draw_tools(frame: &Frame, style: Style, area: Rect, buffer: &mut Buffer) {
    let tools = &frame.tools;
    let kind = if tools.sampled { "a sample of " } else { "" };
    let title = format!("Tools · {kind}{} calls of the last minute", grouped(tools.seen as f64));
    let row = |tool: &ToolRow| {
        let ok = tool.outcomes.get("ok").copied().unwrap_or(0);
        let others: Vec<String> = tool
            .outcomes
            .iter()
            .filter(|(outcome, _)| *outcome != "ok")
            .map(|(outcome, count)| format!("{count} {outcome}"))
            .collect();
        let has_failed = |outcome: &String| {
            Outcome::parse(outcome).is_some_and(|outcome| outcome.severity() == OutcomeSeverity::Bad)
        };
        let colour = match (others.is_empty(), tool.outcomes.keys().any(has_failed)) {
            (true, _) => Color::Reset,
            (false, true) => Color::Red,
            (false, false) => Color::Yellow,
        };
        Row::new([
            Cell::new(short(&tool.tool, 40)),
            right(grouped(tool.calls as f64)),
            right(grouped(ok as f64)),
            right(span(i64::try_from(tool.mean_ms).unwrap_or(i64::MAX))),
            Cell::new(Span::styled(format!(" {}", others.join(", ")), style.of(colour))),
        ])
    };
    let head = vec!["tool", "    calls", "       ok", "       mean", " other outcomes"];
    table(&title, head, tools.rows.iter().map(row).collect(), &[18, 9, 9, 11, 0], style, area, buffer);
}

fn draw_explanation(explanation: &TurnExplanation, style: Style, area: Rect, buffer: &mut Buffer) {
    let columns = usize::from(area.width.saturating_sub(4)).max(1);
    let wrapped = explanation.lines.iter().skip(explanation.at).flat_map(|line| {
        let chars: Vec<char> = visible(line).chars().filter(|c| !c.is_control()).collect();
        let parts: Vec<String> = chars.chunks(columns).map(|part| part.iter().collect()).collect();
        parts
    });
    let shown = wrapped.take(usize::from(area.height)).map(|line| Line::raw(format!(" {line}"))).collect();
    let title = format!(" {} · up, down scroll · any other key closes ", explanation.title);
    draw_window(&title, shown, area.width, style, area, buffer);
}

fn draw_window(title: &str, shown: Vec<Line<'_>>, width: u16, style: Style, area: Rect, buffer: &mut Buffer) {
    let width = area.width.min(width);
    let height = area.height.min(u16::try_from(shown.len() + 2).unwrap_or(u16::MAX));
    let x = area.x + (area.width - width) / 2;
    let y = area.y + (area.height - height) / 2;
    let window = Rect::new(x, y, width, height);
    Widget::render(Clear, window, buffer);
    let block = ratatui::widgets::Block::bordered().title(title.to_owned()).border_style(style.of(Color::Cyan));
    let inside = block.inner(window);
    Widget::render(block, window, buffer);
    lines(shown, inside, buffer);
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
                    outcomes: [("ok".to_owned(), 7), ("denied".to_owned(), 2)].into(),
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
    fn a_printed_frame_shows_every_section() {
        let text = printed(&frame(), 110);
        for said in [
            "policy 3 · 2 paused",
            "12 of 32 busy",
            "12.4 MiB of unbounded memory · 1,204 commands/s",
            "! memory is nearly full: new work is rejected > tickfleet doctor",
            "1,234        4.2 s",
            "1 scheduler, 1 worker alive",
            "gone 4.0 s",
            "1.2 s ago     12/32",
            "Capped agents: 2",
            "atlas-ux:kelly",
            "in 2.1 s     10/10       340/1,000",
            "Tools · 9 calls of the last minute",
            "2 denied",
        ] {
            assert!(text.contains(said), "no {said:?} in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn any_size_of_terminal_is_drawn_without_a_panic() {
        let explanation = TurnExplanation { title: "demo:x".into(), lines: vec!["it waits ".repeat(40); 9], at: 3 };
        let mut view_state =
            ViewState { every: "1s".into(), paused: true, help: true, chosen: Some(7), ..ViewState::default() };
        (view_state.sort, view_state.trouble, view_state.explanation) =
            (Sort::Time, Some("away".into()), Some(explanation));
        (0..3).for_each(|_| view_state.trend.add(&frame()));
        for (columns, rows) in [(80, 24), (200, 60), (40, 10), (20, 3), (1, 1), (130, 8)] {
            let area = Rect::new(0, 0, columns, rows);
            draw(&frame(), Some(&view_state), Style { colour: true }, area, &mut Buffer::empty(area));
        }
    }

    fn text_of(frame: &Frame, view_state: &ViewState, (columns, rows): (u16, u16)) -> String {
        let area = Rect::new(0, 0, columns, rows);
        let mut buffer = Buffer::empty(area);
        draw(frame, Some(view_state), Style::default(), area, &mut buffer);
        let line = |y| (0..columns).filter_map(|x| buffer.cell((x, y))).map(ratatui::buffer::Cell::symbol).collect();
        (0..rows).map(line).collect::<Vec<String>>().join("\n")
    }

    #[test]
    fn eighty_columns_show_every_figure_whole() {
        let mut frame = frame();
        let agent = &mut frame.agents[0];
        (agent.tenant, agent.agent) = ("a-tenant-with-a-name".into(), "and-an-agent-with-one".into());
        (agent.turns, agent.oldest_ms, agent.due_in_ms) = (9_999, Some(86_399_000), 86_399_000);
        (agent.day_used, agent.day_max) = (100_000, Some(100_000));
        (frame.nodes[2].name, frame.tools.rows[0].calls) = ("w-tickfleet-worker-6d8f9c7b5-x2x4z-7".into(), 1_234_567);
        frame.backlog.push(WorkInState { state: "capped", count: 4, unit: "turns", oldest_ms: None });
        let mut view_state = ViewState { every: "1s".into(), ..ViewState::default() };
        (0..3).for_each(|_| view_state.trend.add(&frame));
        let text = text_of(&frame, &view_state, (80, 40));
        for said in [
            "9,999 23 h 59 min in 23 h 59 min",
            "10/10",
            "100,000/100,000",
            "x2x4z-7",
            "1.2 s ago",
            "12/32",
            "1,234,567",
            "other outcomes",
            "2 denied",
            "calls/s",
            "capped ██",
            "? help",
        ] {
            assert!(text.contains(said), "no {said:?} in\n{text}");
        }
    }

    #[test]
    fn the_selected_row_stays_visible_and_its_explanation_opens_on_top() {
        let mut frame = frame();
        frame.agents = vec![frame.agents[0].clone(); 30];
        frame.agents[25].agent = "chosen".into();
        let mut view_state = ViewState { chosen: Some(25), ..ViewState::default() };
        assert!(text_of(&frame, &view_state, (80, 24)).contains("atlas-ux:chosen"));
        view_state.explanation = Some(TurnExplanation {
            title: "demo:order-17".into(),
            lines: vec!["first".into(), "x".repeat(100)],
            at: 1,
        });
        let drawn = text_of(&frame, &view_state, (80, 24));
        assert!(drawn.contains("demo:order-17") && !drawn.contains("first"), "{drawn}");
        assert!(drawn.contains(&"x".repeat(76)), "a wide line continues on the next line: {drawn}");
    }

    #[test]
    fn rows_that_do_not_fit_are_counted() {
        let mut frame = frame();
        frame.agents = vec![frame.agents[0].clone(); 30];
        let area = Rect::new(0, 0, 80, 24);
        let mut buffer = Buffer::empty(area);
        let view_state = ViewState { every: "1s".into(), ..ViewState::default() };
        draw(&frame, Some(&view_state), Style::default(), area, &mut buffer);
        let text: String = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
        assert!(text.contains(" more"), "{text}");
        assert!(text.contains("q quit") && text.contains("every 1s"));
    }

    #[test]
    fn a_small_terminal_shows_findings_first_and_part_of_each_table() {
        let mut frame = frame();
        frame.findings =
            (0..9).map(|number| finding(Severity::Doubt, &format!("{number} {}", "wide ".repeat(30)))).collect();
        frame.backlog = ["inbound turns", "inbound tasks", "ready", "running", "capped", "delayed", "timers", "dead"]
            .map(|state| WorkInState { state, count: u64::from(state == "capped"), unit: "turns", oldest_ms: None })
            .into();
        let mut view_state = ViewState { every: "1s".into(), ..ViewState::default() };
        (0..3).for_each(|_| view_state.trend.add(&frame));
        let text = text_of(&frame, &view_state, (80, 24));
        let rows: Vec<&str> = text.lines().collect();
        assert!(rows[1].starts_with("* 0 wide") && rows[3].starts_with("* 2 wide"), "{text}");
        assert!(rows[4].starts_with("  6 more findings: tickfleet doctor"), "{text}");
        for said in ["slots [", "capped", "w-gone", "atlas-ux:kelly", "post_to_x", "q quit"] {
            assert!(text.contains(said), "no {said:?} in\n{text}");
        }
        assert!(!text.contains("inbound tasks"), "a state without work: {text}");
        frame.findings.clear();
        assert!(text_of(&frame, &view_state, (80, 24)).contains("Nothing needs a person."));
    }

    #[test]
    fn numbers_and_sizes_are_human_readable() {
        assert_eq!([0.0, 2.5, 12.5, 999.0, 1_234_567.0].map(grouped), ["0", "2.5", "12", "999", "1,234,567"]);
        assert_eq!([0, 1_023, 1_536, 3 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
    }
}

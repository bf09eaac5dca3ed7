//! Limits as scripts get them: rows that say how much a counter allows, and the counters that a turn's calls debit.

use crate::script::args::Args;
use tickfleet_model::Limit;
use tickfleet_model::limit::counters::Debits;
use tickfleet_model::limit::{Every, LimitMode, OnReach};

/// A limit in one shard, with the bounds of the day that it counts in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRow {
    name: String,
    max: u64,
    window: Window,
    day_ms: (i64, i64),
    reach: &'static str,
    keys_max: u64,
    /// What it allows, for people.
    words: String,
}

/// How a counter comes to have room again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    /// It begins anew after this length, ms.
    Length(i64),
    /// It begins anew with the day.
    Day,
    /// Calls give their places back when they end.
    Held,
}

impl LimitRow {
    /// The row of a limit in shard `shard` of `shards`; `day_ms` are the start and the end of the day that it counts in.
    #[must_use]
    pub fn new(limit: &Limit, (shard, shards): (u32, u32), tick_ms: i64, day_ms: (i64, i64)) -> Self {
        Self {
            name: limit.name.clone(),
            max: limit.share(shard, shards),
            window: match (limit.every, limit.period_ms(tick_ms)) {
                (Every::Held, _) => Window::Held,
                (_, Some(length_ms)) => Window::Length(length_ms),
                (_, None) => Window::Day,
            },
            day_ms,
            reach: match (limit.mode, limit.on_reach) {
                (LimitMode::Shadow, _) => "shadow",
                (LimitMode::Enforce, OnReach::Wait) => "wait",
                (LimitMode::Enforce, OnReach::Reject) => "reject",
            },
            keys_max: limit.keys_max,
            words: limit.to_string(),
        }
    }

    /// The same with another number that a counter allows.
    #[must_use]
    pub fn with_max(self, max: u64) -> Self {
        Self { max, ..self }
    }
}

/// A counter of a limit, and what a turn's calls debit of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterDebits {
    /// The row of the batch, from 0.
    pub row: usize,
    /// When its windows begin within their length, ms.
    pub stagger_ms: i64,
    /// The counter, and the amounts.
    pub debits: Debits,
}

/// Adds rows as `read_rows` of `limits.lua` reads them.
pub(crate) fn add_rows(args: &mut Args, rows: &[LimitRow]) {
    args.show(rows.len());
    for row in rows {
        args.text(row.name.as_str()).show(row.max);
        match row.window {
            Window::Length(length_ms) => args.show(length_ms),
            Window::Day => args.text(""),
            Window::Held => args.text("held"),
        };
        args.show(row.day_ms.0).show(row.day_ms.1).text(row.reach).show(row.keys_max).text(row.words.as_str());
    }
}

/// Adds a turn's counters as `read_debits` of `limits.lua` reads them.
pub(crate) fn add_debits(args: &mut Args, counters: &[CounterDebits]) {
    args.show(counters.len());
    for counter in counters {
        args.show(counter.row + 1).text(counter.debits.key.as_str()).show(counter.stagger_ms);
        args.text(amounts(&counter.debits.amounts));
    }
}

/// One amount where all are the same; else all, with commas between.
fn amounts(amounts: &[Option<u64>]) -> String {
    let show = |amount: &Option<u64>| amount.map_or_else(|| "-".to_owned(), |amount| amount.to_string());
    match amounts {
        [first, rest @ ..] if first.is_some() && rest.iter().all(|amount| amount == first) => show(first),
        _ => amounts.iter().map(show).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_scripts_read_them() {
        let cases: [(&[Option<u64>], &str); 4] =
            [(&[Some(1), Some(1)], "1"), (&[Some(1), Some(0)], "1,0"), (&[None], "-"), (&[None, Some(5)], "-,5")];
        for (given, written) in cases {
            assert_eq!(amounts(given), written);
        }
    }
}

//! Limits as scripts get them: rows that say how much a counter allows, and the counters that a turn's calls debit.

use std::collections::HashMap;

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
    /// The slots of the workers that its number follows from; 0 where it does not.
    slots: u64,
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
            slots: 0,
        }
    }

    /// The same with another number that a counter allows.
    #[must_use]
    pub fn with_max(self, max: u64) -> Self {
        Self { max, ..self }
    }

    /// The same, its number being a part of so many slots: the logs of turns say how many there were.
    #[must_use]
    pub fn part_of(self, slots: u64) -> Self {
        Self { slots, ..self }
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

/// Adds the rows alone.
fn add_rows(args: &mut Args, rows: &[LimitRow]) {
    args.show(rows.len());
    for row in rows {
        args.text(row.name.as_str()).show(row.max);
        match row.window {
            Window::Length(length_ms) => args.show(length_ms),
            Window::Day => args.text(""),
            Window::Held => args.text("held"),
        };
        args.show(row.day_ms.0).show(row.day_ms.1).text(row.reach).show(row.keys_max).text(row.words.as_str());
        match row.slots {
            0 => args.text(""),
            slots => args.show(slots),
        };
    }
}

/// What stands for an amount that is written out in words.
const IN_WORDS: u8 = u8::MAX;

/// The counters of a batch, each once, by their numbers: scripts make something of each, however many turns debit it.
pub(crate) struct Counters<'a> {
    rows: &'a [LimitRow],
    /// By limit and key.
    numbers: HashMap<(&'a str, &'a str), u32>,
}

impl<'a> Counters<'a> {
    /// Adds rows, and the counters that turns debit, as `read_rows` of `limits.lua` reads them. If `told`, the logs of turns
    /// say what they debited.
    pub(crate) fn add(
        args: &mut Args,
        rows: &'a [LimitRow],
        told: bool,
        debits: impl Iterator<Item = &'a CounterDebits> + Clone,
    ) -> Self {
        args.flag(told);
        add_rows(args, rows);
        let mut counters = Self { rows, numbers: HashMap::new() };
        let mut each: Vec<&CounterDebits> = Vec::new();
        for counter in debits {
            let next = u32::try_from(each.len() + 1).unwrap_or(u32::MAX);
            if *counters.numbers.entry(counters.name(counter)).or_insert(next) == next {
                each.push(counter);
            }
        }
        args.show(each.len());
        for counter in each {
            args.show(counter.row + 1).text(counter.debits.key.as_str()).show(counter.stagger_ms);
        }
        counters
    }

    fn name(&self, counter: &'a CounterDebits) -> (&'a str, &'a str) {
        (self.rows.get(counter.row).map_or("", |row| row.name.as_str()), counter.debits.key.as_str())
    }

    /// Adds what a turn debits, as `read_debits` of `limits.lua` reads it.
    pub(crate) fn add_debits(&self, args: &mut Args, debits: &'a [CounterDebits]) {
        let mut text = Vec::with_capacity(debits.len() * 4);
        let mut words = Vec::new();
        for counter in debits {
            let number = self.numbers.get(&self.name(counter)).copied().unwrap_or_default();
            let amounts = &counter.debits.amounts;
            let small = same(amounts).and_then(|amount| u8::try_from(amount).ok()).filter(|amount| *amount != IN_WORDS);
            text.extend(&number.to_be_bytes()[1..]);
            text.push(small.unwrap_or(IN_WORDS));
            if small.is_none() {
                words.push(in_words(amounts));
            }
        }
        args.text(text);
        for amounts in words {
            args.text(amounts);
        }
    }
}

/// The amount, where it is the same for all calls.
fn same(amounts: &[Option<u64>]) -> Option<u64> {
    match amounts {
        [first, rest @ ..] if rest.iter().all(|amount| amount == first) => *first,
        _ => None,
    }
}

/// One amount where all are the same; else all, with commas between.
fn in_words(amounts: &[Option<u64>]) -> String {
    let show = |amount: &Option<u64>| amount.map_or_else(|| "-".to_owned(), |amount| amount.to_string());
    match same(amounts) {
        Some(amount) => amount.to_string(),
        None => amounts.iter().map(show).collect::<Vec<_>>().join(","),
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
            assert_eq!(in_words(given), written);
        }
    }

    fn debit(row: usize, key: &str, amounts: &[Option<u64>]) -> CounterDebits {
        CounterDebits { row, stagger_ms: 7, debits: Debits { limit: row, key: key.into(), amounts: amounts.to_vec() } }
    }

    fn row(name: &str) -> LimitRow {
        LimitRow {
            name: name.into(),
            max: 9,
            window: Window::Day,
            day_ms: (0, 1),
            reach: "wait",
            keys_max: 10,
            words: String::new(),
            slots: 0,
        }
    }

    #[test]
    fn a_counter_is_sent_once_for_all_turns_and_rows_of_its_limit() {
        let rows = [row("a"), row("b"), row("a")];
        let turns = [
            vec![debit(0, "x", &[Some(1)]), debit(1, "x", &[Some(254), Some(254)])],
            vec![],
            vec![debit(2, "x", &[Some(255)]), debit(1, "y", &[Some(1), Some(2)])],
        ];
        let mut args = Args::new(String::new());
        let counters = Counters::add(&mut args, &rows, true, turns.iter().flatten());
        let sent: Vec<&[u8]> = args.values[1 + 2 + 9 * rows.len()..].iter().map(Vec::as_slice).collect();
        assert_eq!(sent, ["3", "1", "x", "7", "2", "x", "7", "2", "y", "7"].map(str::as_bytes));

        let mut args = Args::new(String::new());
        turns.iter().for_each(|turn| counters.add_debits(&mut args, turn));
        let first = [0, 0, 1, 1, 0, 0, 2, 254];
        let last = [0, 0, 1, 255, 0, 0, 3, 255];
        assert_eq!(args.values[1..], [first.to_vec(), vec![], last.to_vec(), b"255".to_vec(), b"1,2".to_vec()]);
    }
}

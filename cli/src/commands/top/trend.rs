//! Draws polled values as lines of small bars. This module does no I/O.

use std::collections::VecDeque;

use super::frame::Frame;

/// Five minutes, with one poll per second.
const SEEN_MAX: usize = 300;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Debug, Clone, Copy)]
struct Point {
    at_ms: i64,
    calls: f64,
    turns: f64,
    capped: f64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Trend {
    seen: VecDeque<Point>,
}

impl Trend {
    pub(super) fn add(&mut self, frame: &Frame) {
        let capped = frame.backlog.iter().find(|waiting| waiting.state == "capped").map_or(0, |waiting| waiting.count);
        #[allow(clippy::cast_precision_loss, reason = "turns are far fewer than 2^53")]
        let point = Point {
            at_ms: frame.heading.now_ms,
            calls: frame.rates.calls.unwrap_or(0.0),
            turns: frame.rates.turns.unwrap_or(0.0),
            capped: capped as f64,
        };
        self.seen.push_back(point);
        if self.seen.len() > SEEN_MAX {
            self.seen.pop_front();
        }
    }

    pub(super) fn covers_ms(&self) -> Option<i64> {
        let first = self.seen.front()?;
        let last = self.seen.back()?;
        (self.seen.len() > 1).then(|| (last.at_ms - first.at_ms).max(0))
    }

    pub(super) fn lines(&self, cells: usize) -> [(&'static str, String, f64); 3] {
        let line = |what, of: fn(&Point) -> f64| {
            let values: Vec<f64> = self.seen.iter().map(of).collect();
            let most = values.iter().copied().fold(0.0, f64::max);
            (what, bars(&values, cells, most), most)
        };
        [
            line("calls/s", |point| point.calls),
            line("turns/s", |point| point.turns),
            line("capped", |point| point.capped),
        ]
    }
}

fn bars(values: &[f64], cells: usize, most: f64) -> String {
    let together = values.len().div_ceil(cells.max(1)).max(1);
    let bar = |some: &[f64]| {
        #[allow(clippy::cast_precision_loss, reason = "a few values")]
        let mean = some.iter().sum::<f64>() / some.len() as f64;
        if mean <= 0.0 || most <= 0.0 {
            return BARS[0];
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of eight, above nothing")]
        let height = (mean / most * 8.0).ceil() as usize;
        BARS[height.clamp(1, 8)]
    };
    values.chunks(together).map(bar).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::frame::{Heading, Rates, WorkInState};
    use super::*;

    fn look(at_ms: i64, calls: f64) -> Frame {
        Frame {
            heading: Heading { now_ms: at_ms, ..Heading::default() },
            rates: Rates { calls: Some(calls), ..Rates::default() },
            backlog: vec![WorkInState { state: "capped", count: 3, unit: "turns", oldest_ms: None }],
            ..Frame::default()
        }
    }

    #[test]
    fn bars_scale_with_their_values_and_stay_bounded() {
        let mut trend = Trend::default();
        trend.add(&look(0, 0.0));
        assert_eq!(trend.covers_ms(), None, "one look is no trend");
        for (at, calls) in [1.0, 4.0, 8.0].into_iter().enumerate() {
            trend.add(&look(i64::try_from(at + 1).unwrap() * 1_000, calls));
        }
        let [calls, turns, capped] = trend.lines(10);
        assert_eq!((calls.1.as_str(), calls.2), (" ▁▄█", 8.0));
        assert_eq!((turns.1.as_str(), turns.2), ("    ", 0.0), "nothing is no bar");
        assert_eq!((capped.1.as_str(), trend.covers_ms()), ("████", Some(3_000)));
        assert_eq!(trend.lines(2)[0].1, "▁▆", "two looks a bar");
        for at in 0..1_000 {
            trend.add(&look(at, 1.0));
        }
        assert!(trend.seen.len() == SEEN_MAX && trend.lines(16)[0].1.chars().count() <= 16);
    }
}

//! The recent changes of a shard, so that a simulated failure can return to an earlier state.

use std::collections::VecDeque;

use super::effects::Effect;
use super::shard::Contents;

/// The contents at an earlier time, and all effects since then.
#[derive(Debug)]
pub struct History {
    keep_ms: i64,
    base: Contents,
    frames: VecDeque<(i64, Vec<Effect>)>,
}

impl History {
    pub const fn new(contents: Contents, keep_ms: i64) -> Self {
        Self { keep_ms, base: contents, frames: VecDeque::new() }
    }

    /// `at_ms` is by a clock that never steps back.
    pub fn push(&mut self, at_ms: i64, effects: Vec<Effect>) {
        if !effects.is_empty() {
            self.frames.push_back((at_ms, effects));
        }
        while self.frames.front().is_some_and(|frame| frame.0 < at_ms - self.keep_ms) {
            let oldest = self.frames.pop_front().map(|(_, effects)| effects);
            oldest.into_iter().flatten().for_each(|effect| self.base.apply(effect));
        }
    }

    /// If the history begins later than `at_ms`, returns its oldest contents.
    pub fn contents_at(&self, at_ms: i64) -> Contents {
        let mut contents = self.base.clone();
        let before = self.frames.iter().take_while(|frame| frame.0 <= at_ms);
        before.flat_map(|frame| &frame.1).for_each(|effect| contents.apply(effect.clone()));
        contents
    }
}

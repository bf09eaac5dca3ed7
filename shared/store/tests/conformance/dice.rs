//! Random draws, and the reduction of failed games to smaller ones.

use proptest::prelude::Rng;
use proptest::strategy::{NewTree, Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use super::plan::{Draft, Step, game};

pub struct Dice<'a>(&'a mut dyn Rng);

impl Dice<'_> {
    pub fn below(&mut self, end: usize) -> usize {
        (self.0.next_u32() as usize) % end
    }

    /// `end` is exclusive.
    pub fn within(&mut self, begin: i64, end: i64) -> i64 {
        begin + self.below(usize::try_from(end - begin).unwrap()) as i64
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut drawn = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            match drawn.checked_sub(*weight) {
                Some(rest) => drawn = rest,
                None => return index,
            }
        }
        0
    }

    pub fn list<T>(&mut self, least: usize, most: usize, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        let count = least + self.below(most - least + 1);
        (0..count).map(|_| item(self)).collect()
    }
}

/// Removes only parts of a failed game. With the generic strategies of proptest, the preparation of a plan takes longer
/// than the game.
#[derive(Debug)]
pub struct Games(pub usize);

impl Strategy for Games {
    type Tree = SmallerGames;
    type Value = Vec<Step>;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let failing = game(&mut Dice(runner.rng()), self.0);
        Ok(SmallerGames { current: failing.clone(), failing, removal: 0, has_shrunk: false })
    }
}

#[derive(Debug)]
pub struct SmallerGames {
    failing: Vec<Step>,
    current: Vec<Step>,
    removal: usize,
    has_shrunk: bool,
}

impl SmallerGames {
    fn try_next(&mut self) -> bool {
        loop {
            if let Some(smaller) = without(&self.failing, self.removal) {
                self.current = smaller;
                return true;
            }
            if !std::mem::take(&mut self.has_shrunk) {
                self.current = self.failing.clone();
                return false;
            }
            self.removal = 0;
        }
    }
}

impl ValueTree for SmallerGames {
    type Value = Vec<Step>;

    fn current(&self) -> Vec<Step> {
        self.current.clone()
    }

    /// proptest calls this after the current game has failed. The first current game is the complete game.
    fn simplify(&mut self) -> bool {
        self.has_shrunk |= self.current.len() < self.failing.len() || size(&self.current) < size(&self.failing);
        self.failing = self.current.clone();
        self.try_next()
    }

    fn complicate(&mut self) -> bool {
        self.removal += 1;
        self.try_next()
    }
}

fn size(steps: &[Step]) -> usize {
    let parts = |step: &Step| match step {
        Step::Commit(drafts) => drafts.iter().map(|draft| 1 + draft.guards.len() + draft.writes.len()).sum(),
        Step::Read(questions) => questions.len(),
        _ => 1,
    };
    steps.iter().map(parts).sum()
}

/// The game after the removal with this number. `None` after the last removal.
fn without(steps: &[Step], removal: usize) -> Option<Vec<Step>> {
    let mut left = removal;
    // Try halves first, single steps last.
    let mut chunk = steps.len() / 2;
    while chunk > 0 && steps.len() > 1 {
        let chunks = steps.len().div_ceil(chunk);
        if left < chunks {
            let mut steps = steps.to_vec();
            steps.drain(left * chunk..((left + 1) * chunk).min(steps.len()));
            return Some(steps);
        }
        left -= chunks;
        chunk /= 2;
    }
    for (index, step) in steps.iter().enumerate() {
        let smaller = match step {
            Step::Commit(drafts) => remove_of_batch(drafts, &mut left).map(Step::Commit),
            Step::Read(questions) if questions.len() > 1 => remove(questions, &mut left).map(Step::Read),
            _ => None,
        };
        if let Some(smaller) = smaller {
            let mut steps = steps.to_vec();
            steps[index] = smaller;
            return Some(steps);
        }
    }
    None
}

fn remove_of_batch(drafts: &[Draft], left: &mut usize) -> Option<Vec<Draft>> {
    if drafts.len() > 1
        && let Some(drafts) = remove(drafts, left)
    {
        return Some(drafts);
    }
    for (index, draft) in drafts.iter().enumerate() {
        let mut draft = draft.clone();
        if let Some(guards) = remove(&draft.guards, left) {
            draft.guards = guards;
        } else if let Some(writes) = remove(&draft.writes, left) {
            draft.writes = writes;
        } else {
            continue;
        }
        let mut drafts = drafts.to_vec();
        drafts[index] = draft;
        return Some(drafts);
    }
    None
}

/// If the list is too short, returns `None` and subtracts its length from `left`.
fn remove<T: Clone>(items: &[T], left: &mut usize) -> Option<Vec<T>> {
    if *left >= items.len() {
        *left -= items.len();
        return None;
    }
    let mut items = items.to_vec();
    items.remove(*left);
    Some(items)
}

//! The definition of a target.

use crate::corpus::Source;

/// A parser under test, or several parsers of the same input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target's binary in `libfuzzer`, and of its folder of seeds.
    pub name: &'static str,
    /// The input that the target parses, and who wrote it.
    pub parses: &'static str,
    /// Plays one input.
    pub run: fn(&[u8]),
    /// The third-party data sources of the target's corpus.
    pub corpus: &'static [Source],
    /// Words of the grammar, used by the mutator.
    pub words: &'static [&'static str],
    /// Mutated inputs per run of the tests. A run of all targets takes seconds.
    pub mutations: usize,
}

//! The definition of a target.

use crate::corpus::Source;

/// One parser under test, or several parsers of the same input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target's binary in `libfuzzer`, and of its folder of seeds.
    pub name: &'static str,
    /// The input that the target parses, and the author of this input.
    pub parses: &'static str,
    pub run: fn(&[u8]),
    /// Sources of third-party data for the target's corpus.
    pub corpus: &'static [Source],
    /// Words of the grammar, for the mutator.
    pub words: &'static [&'static str],
    /// Number of mutated inputs per test run. A run of all targets takes seconds.
    pub mutations: usize,
}

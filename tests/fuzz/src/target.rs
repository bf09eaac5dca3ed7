//! What a target is.

use crate::corpus::Source;

/// A parser, or parsers that read the same, under test.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: the binary of `libfuzzer`, and its folder among the seeds.
    pub name: &'static str,
    /// What it parses, and who wrote that.
    pub parses: &'static str,
    /// Plays one input.
    pub run: fn(&[u8]),
    /// The data of others that its corpus is made of.
    pub corpus: &'static [Source],
    /// Words that the grammar knows, for the mutator.
    pub words: &'static [&'static str],
    /// Mutated inputs in a run of the tests: together they take seconds.
    pub mutations: usize,
}

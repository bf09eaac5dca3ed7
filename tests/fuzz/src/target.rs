//! A target is one parser under test, or several parsers of the same input.

use crate::corpus::Source;

#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Also the name of the binary in `libfuzzer`, and of the folder of seeds.
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub corpus: &'static [Source],
    /// Small enough that a run of all targets takes seconds.
    pub mutations: usize,
}

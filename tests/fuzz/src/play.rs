//! Runs a fuzz target on inputs that are the same on every machine.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::Target;
use crate::corpus;
use crate::mutator::Mutator;

const SAMPLE: usize = 60;
const SEED: u64 = 0x7469_636B_666C_6565;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct InputCounts {
    /// Written by hand, or kept after a failure.
    pub committed: usize,
    pub sampled: usize,
    pub mutated: usize,
}

#[must_use]
pub fn committed(target: &Target) -> Vec<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["seeds", "found"].map(|kind| here.join(kind).join(target.name));
    folders.iter().flat_map(|folder| files(folder)).filter_map(|file| fs::read(file).ok()).collect()
}

/// The words of the target's grammar, in the format of libFuzzer. Random mutations of bytes would not produce them.
fn dictionary(target: &Target) -> Vec<Vec<u8>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("dictionaries").join(target.name).with_extension("dict");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines()
        .map(|line| word(line.strip_prefix('"').and_then(|line| line.strip_suffix('"')).unwrap_or(line)))
        .collect()
}

fn word(quoted: &str) -> Vec<u8> {
    let mut word = Vec::new();
    let mut bytes = quoted.bytes();
    while let Some(byte) = bytes.next() {
        let escaped = if byte == b'\\' { bytes.next() } else { None };
        word.push(match escaped {
            Some(b'x') => [bytes.next(), bytes.next()].into_iter().flatten().fold(0, |code, digit| {
                16 * code + char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).unwrap_or(0)
            }),
            Some(other) => other,
            None => byte,
        });
    }
    word
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// `data` is cargo's target folder. If a property fails, the panic names the file with the input.
pub fn play(target: &Target, data: &Path) -> InputCounts {
    let mut inputs = committed(target);
    assert!(!inputs.is_empty(), "{} has no seeds", target.name);
    let mut played = InputCounts { committed: inputs.len(), ..InputCounts::default() };
    for source in target.corpus {
        let sample = corpus::inputs(*source, data, SAMPLE);
        played.sampled += sample.len();
        inputs.extend(sample);
    }
    inputs.iter().for_each(|input| one(target, input, data));
    let mut mutator = Mutator::new(SEED, dictionary(target));
    for _ in 0..target.mutations {
        let input = mutator.below(inputs.len());
        let other = mutator.below(inputs.len());
        let mutated = mutator.mutate(&inputs[input], &inputs[other]);
        one(target, &mutated, data);
        played.mutated += 1;
    }
    played
}

fn one(target: &Target, input: &[u8], data: &Path) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) else { return };
    let words = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let folder = data.join("fuzz-failed").join(target.name);
    let file = folder.join(format!("{:08x}", crc(input)));
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&file, input));
    panic!("{}: {} ({written:?}: {})", target.name, words.unwrap_or("it panicked"), file.display());
}

fn crc(input: &[u8]) -> u32 {
    input.iter().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

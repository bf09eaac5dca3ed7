//! What games reach of the scripts: their lines, and the ways of their conditions.
//!
//! A branch is a condition on a line: each comparison, and each value that is asked for its truth, by `if`, `while`,
//! `and` or `or`; and the end of each loop. It has two ways: on to what is written next (the body, the next operand), or
//! past it. Both are counted for themselves, so that a body on the line of its `if` is seen to be missed.

use std::collections::BTreeMap;
use std::io::Write;

use tickfleet_sim_redis::{Redis, ScriptCoverage};
use tickfleet_store::{ScriptLine, Scripts};

/// What one game reached, by the digest of the script.
pub(crate) type Reached = BTreeMap<String, ReachedOf>;

/// What one game reached of one script.
#[derive(Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ReachedOf {
    /// The lines that ran.
    lines: Vec<usize>,
    /// Of each branch a digit: 1 where it went on, 2 where it went past, 3 where it did both, 0 where it did neither.
    ways: String,
}

/// What was reached on a server.
pub(crate) fn reached(redis: &Redis) -> Reached {
    let scripts = redis.coverage().scripts.into_iter().filter(|(_, script)| !script.ran.is_empty());
    let of = |script: ScriptCoverage| ReachedOf {
        lines: script.ran.into_iter().collect(),
        ways: script
            .branches
            .iter()
            .map(|b| char::from(b'0' + u8::from(b.went_on) + 2 * u8::from(b.went_past)))
            .collect(),
    };
    scripts.map(|(digest, script)| (digest, of(script))).collect()
}

/// A file of scripts: a verb's own, or a fragment's, with what any script that it is a part of reached.
#[derive(Default)]
struct File {
    /// The lines that can run: their text, and whether they ran.
    lines: BTreeMap<usize, (&'static str, bool)>,
    /// By line, and by number on it: whether it went on, and whether it went past.
    branches: BTreeMap<(usize, usize), (bool, bool)>,
}

/// A script: where its lines stand, and what can be reached of it.
struct Script {
    lines: Vec<ScriptLine>,
    can: ScriptCoverage,
}

/// What can be reached of all scripts, and what was.
pub(crate) struct Map {
    /// By digest.
    scripts: BTreeMap<String, Script>,
    files: BTreeMap<&'static str, File>,
}

impl Map {
    /// Nothing was reached yet.
    pub(crate) fn new() -> Self {
        let mut redis = Redis::new(0);
        let scripts = Scripts::embedded();
        for (_, text) in scripts.iter() {
            redis.execute(&["SCRIPT", "LOAD", text].map(|word| word.as_bytes().to_vec()));
        }
        let known = redis.coverage().scripts.into_iter().filter_map(|(digest, can)| {
            let mut places = scripts.iter().zip(Scripts::lines());
            let (_, lines) = places.find(|((_, text), _)| *text == can.text)?;
            Some((digest, Script { lines, can }))
        });
        let mut map = Self { scripts: known.collect(), files: BTreeMap::new() };
        let nothing: Reached = map.scripts.keys().map(|digest| (digest.clone(), ReachedOf::default())).collect();
        map.add(&nothing);
        map
    }

    /// Adds what a game reached.
    pub(crate) fn add(&mut self, reached: &Reached) {
        for (digest, of) in reached {
            let Some(Script { lines, can }) = self.scripts.get(digest) else { continue };
            let place = |line: usize| lines.get(line.checked_sub(1)?);
            for line in &can.lines {
                let Some(place) = place(*line) else { continue };
                let file = self.files.entry(place.file).or_default();
                let (_, ran) = file.lines.entry(place.line).or_insert((place.text, false));
                *ran |= of.lines.binary_search(line).is_ok();
            }
            let ways = of.ways.bytes().chain(std::iter::repeat(b'0'));
            for (branch, way) in can.branches.iter().zip(ways) {
                let Some(place) = place(branch.line) else { continue };
                let file = self.files.entry(place.file).or_default();
                let (went_on, went_past) = file.branches.entry((place.line, branch.number)).or_default();
                *went_on |= matches!(way, b'1' | b'3');
                *went_past |= matches!(way, b'2' | b'3');
            }
        }
    }

    /// Tells by file how much was reached, then what was not.
    pub(crate) fn tell(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "{:<24} {:>6} {:>8} {:>6} {:>8}", "script", "lines", "reached", "ways", "reached")?;
        let mut all = [0; 4];
        for (path, file) in &self.files {
            let counts = file.counts();
            all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
            row(out, word(path), counts)?;
        }
        row(out, "all", all)?;
        for (path, file) in &self.files {
            file.tell_missed(path, out)?;
        }
        Ok(())
    }
}

/// The name of a file: a verb's word, or a fragment's with its folder.
fn word(path: &str) -> &str {
    let path = path.strip_suffix(".lua").unwrap_or(path);
    let path = path.strip_prefix("script/").unwrap_or(path);
    path.strip_prefix("verbs/").and_then(|path| path.split('/').next_back()).unwrap_or(path)
}

fn row(out: &mut impl Write, name: &str, [lines, ran, ways, gone]: [usize; 4]) -> std::io::Result<()> {
    writeln!(out, "{name:<24} {lines:>6} {ran:>8} {ways:>6} {gone:>8}")
}

impl File {
    /// Lines that can run, those that ran, ways of branches, those that were gone.
    fn counts(&self) -> [usize; 4] {
        let ran = self.lines.values().filter(|(_, ran)| *ran).count();
        let gone = self.branches.values().map(|(on, past)| usize::from(*on) + usize::from(*past)).sum();
        [self.lines.len(), ran, 2 * self.branches.len(), gone]
    }

    /// Tells the lines that never ran, and of those that did the ways that were never gone.
    fn tell_missed(&self, path: &str, out: &mut impl Write) -> std::io::Result<()> {
        for (line, (text, ran)) in &self.lines {
            let text = text.trim();
            if !ran {
                writeln!(out, "{path}:{line}: never ran: {text}")?;
                continue;
            }
            for ((_, number), (on, past)) in self.branches.range((*line, 0)..=(*line, usize::MAX)) {
                let missed = match (on, past) {
                    (true, true) => continue,
                    (true, false) => "never went past",
                    (false, true) => "never went on",
                    (false, false) => "was never asked",
                };
                writeln!(out, "{path}:{line}: condition {number} {missed}: {text}")?;
            }
        }
        Ok(())
    }
}

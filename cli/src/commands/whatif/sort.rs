//! Sorts more lines than fit in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Lines, Seek as _, Write as _};

const PART_BYTES: usize = 32 * 1024 * 1024;

#[derive(Default)]
pub(super) struct Sorter {
    part: Vec<(String, String)>,
    bytes: usize,
    parts: Vec<File>,
}

impl Sorter {
    /// The line must not contain a line break.
    pub(super) fn push(&mut self, key: String, line: String) -> std::io::Result<()> {
        self.bytes += key.len() + line.len() + 64;
        self.part.push((key.replace(|c: char| c.is_control(), " "), line));
        if self.bytes >= PART_BYTES { self.spill_to_disk() } else { Ok(()) }
    }

    fn spill_to_disk(&mut self) -> std::io::Result<()> {
        let mut part = std::mem::take(&mut self.part);
        part.sort();
        self.bytes = 0;
        let mut file = BufWriter::new(tempfile::tempfile()?);
        for (key, line) in part {
            writeln!(file, "{key}\t{line}")?;
        }
        let mut file = file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.rewind()?;
        self.parts.push(file);
        Ok(())
    }

    pub(super) fn sorted(mut self) -> std::io::Result<Sorted> {
        self.spill_to_disk()?;
        let mut sorted = Sorted { parts: Vec::new(), heads: BinaryHeap::new() };
        for (number, file) in self.parts.into_iter().enumerate() {
            sorted.parts.push(BufReader::new(file).lines());
            sorted.next_of(number)?;
        }
        Ok(sorted)
    }
}

pub(super) struct Sorted {
    parts: Vec<Lines<BufReader<File>>>,
    heads: BinaryHeap<Reverse<(String, usize, String)>>,
}

impl Sorted {
    fn next_of(&mut self, number: usize) -> std::io::Result<()> {
        if let Some(line) = self.parts[number].next() {
            let line = line?;
            let (key, line) = line.split_once('\t').unwrap_or(("", &line));
            self.heads.push(Reverse((key.to_owned(), number, line.to_owned())));
        }
        Ok(())
    }

    pub(super) fn next(&mut self) -> std::io::Result<Option<String>> {
        let Some(Reverse((_, number, line))) = self.heads.pop() else { return Ok(None) };
        self.next_of(number)?;
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn lines_are_sorted_across_spilled_parts() {
        let mut sorter = Sorter::default();
        for number in [7, 3, 9, 1, 8, 2] {
            sorter.push(format!("{number:03}"), format!("line {number}")).unwrap();
            if number == 9 {
                sorter.spill_to_disk().unwrap();
            }
        }
        let mut sorted = sorter.sorted().unwrap();
        let mut lines = Vec::new();
        while let Some(line) = sorted.next().unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, ["line 1", "line 2", "line 3", "line 7", "line 8", "line 9"]);
    }
}

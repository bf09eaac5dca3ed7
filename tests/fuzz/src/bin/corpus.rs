//! `corpus <folder of the data sets> <folder to write to>` writes the corpora for libFuzzer.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tickfleet_fuzz::{TARGETS, Target, corpus, play};

const AT_MOST: usize = 1_000;

fn main() -> io::Result<()> {
    let mut folders = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(data), Some(out)) = (folders.next(), folders.next()) else {
        return Err(io::Error::other("expected: corpus <folder of the data sets> <folder to write to>"));
    };
    TARGETS.iter().try_for_each(|target| write(target, &data, &out))
}

fn write(target: &Target, data: &Path, out: &Path) -> io::Result<()> {
    let folder = out.join(target.name);
    fs::create_dir_all(&folder)?;
    let of_others = target.corpus.iter().flat_map(|source| corpus::inputs(*source, data, AT_MOST));
    for (number, input) in play::committed(target).into_iter().chain(of_others).enumerate() {
        fs::write(folder.join(format!("{number:05}")), input)?;
    }
    Ok(())
}

//! Compresses the files of the console with gzip, and writes their list for `src/console/mod.rs`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "this is how Cargo and a build script exchange values"
)]

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};

const FOLDER: &str = "src/console";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={FOLDER}");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let mut list = String::from("&[\n");
    for file in files(Path::new(FOLDER))? {
        let name = file.strip_prefix(FOLDER).map_err(io::Error::other)?.display().to_string();
        let Some(kind) = media_type(&file) else { continue };
        let packed = out.join(format!("{}.gz", name.replace('/', "-")));
        let mut writer = GzBuilder::new().write(File::create(&packed)?, Compression::best());
        writer.write_all(&fs::read(&file)?)?;
        writer.finish()?;
        writeln!(list, "    ({name:?}, {kind:?}, include_bytes!({packed:?})),").map_err(io::Error::other)?;
    }
    fs::write(out.join("console_files.rs"), list + "]\n")
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn media_type(file: &Path) -> Option<&'static str> {
    match file.extension()?.to_str()? {
        "html" => Some("text/html; charset=utf-8"),
        "css" => Some("text/css; charset=utf-8"),
        "js" => Some("text/javascript; charset=utf-8"),
        "svg" => Some("image/svg+xml"),
        "txt" => Some("text/plain; charset=utf-8"),
        _ => None,
    }
}

//! Finds and reads the files of an import.

use std::fs;
use std::path::Path;

use tickfleet_tools_knowledge::documents::{FileFormat, Problem};

/// Only explicitly named files can exceed this number.
const FILES_MAX: usize = 20_000;
const DEPTH_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundFile {
    /// Becomes the source of the file's documents.
    pub(super) name: String,
    pub(super) form: FileFormat,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) files: Vec<FoundFile>,
    /// Paths that cannot be read, and explicitly named files that are not documents.
    pub(super) problems: Vec<Problem>,
    /// Files in folders that were skipped, because they are not documents.
    pub(super) others: usize,
}

impl Tree {
    /// Sorts files by name. Skips hidden files and links in folders.
    pub(super) fn below(roots: &[String]) -> Self {
        let mut tree = Self::default();
        for root in roots {
            match fs::metadata(root) {
                Ok(found) if found.is_dir() => tree.folder(root, 0),
                Ok(found) if found.is_file() => match FileFormat::of(root) {
                    Some(form) => tree.files.push(FoundFile { name: root.clone(), form }),
                    None => tree.problem(root, "expected .md, .markdown, .txt, .text, .jsonl or .ndjson"),
                },
                Ok(_) => tree.problem(root, "it is neither a file nor a folder"),
                Err(error) => tree.problem(root, &error.to_string()),
            }
        }
        tree.files.sort_by(|a, b| a.name.cmp(&b.name));
        tree.files.dedup_by(|a, b| a.name == b.name);
        tree
    }

    fn folder(&mut self, folder: &str, depth: usize) {
        if depth > DEPTH_MAX {
            return self.problem(folder, &format!("it is more than {DEPTH_MAX} folders deep"));
        }
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return self.problem(folder, &error.to_string()),
        };
        for entry in entries {
            let (name, kind) = match entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))) {
                Ok(found) => found,
                Err(error) => return self.problem(folder, &error.to_string()),
            };
            let Some(name) = name.to_str() else {
                self.problem(folder, &format!("the name {name:?} is not UTF-8"));
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let path = format!("{}/{name}", folder.trim_end_matches('/'));
            if kind.is_dir() {
                self.folder(&path, depth + 1);
            } else if let Some(form) = FileFormat::of(name).filter(|_| kind.is_file()) {
                if self.files.len() >= FILES_MAX {
                    return self.problem(folder, &format!("there are more than {FILES_MAX} files"));
                }
                self.files.push(FoundFile { name: path, form });
            } else {
                self.others += 1;
            }
        }
    }

    fn problem(&mut self, place: &str, why: &str) {
        self.problems.push(Problem { place: place.to_owned(), why: why.to_owned() });
    }
}

impl FoundFile {
    pub(super) fn read(&self) -> Result<Vec<u8>, Problem> {
        let problem = |why: String| Problem { place: self.name.clone(), why };
        let bytes = fs::metadata(Path::new(&self.name)).map_err(|error| problem(error.to_string()))?.len();
        if bytes > self.form.bytes_max() {
            return Err(problem(format!("it has {bytes} bytes; at most {} are allowed", self.form.bytes_max())));
        }
        fs::read(&self.name).map_err(|error| problem(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_folder_scan_skips_hidden_files_and_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("b/.git")).unwrap();
        for name in ["z.md", "b/a.txt", "b/.git/x.md", "b/picture.png", ".hidden.md"] {
            fs::write(at(name), "x").unwrap();
        }
        std::os::unix::fs::symlink(at("z.md"), at("b/link.md")).unwrap();
        let root = dir.path().to_str().unwrap().to_owned();
        let tree = Tree::below(&[format!("{root}/"), at("z.md").to_str().unwrap().to_owned(), format!("{root}/none")]);
        let names: Vec<&str> = tree.files.iter().map(|file| &file.name[root.len()..]).collect();
        assert_eq!(names, ["/b/a.txt", "/z.md"]);
        assert_eq!((tree.problems.len(), tree.others), (1, 2));
    }
}

//! The prompts: the built-in ones, or those of the folder `prompts` beside the other files.

use std::fs;
use std::path::Path;

use crate::document::errors::{Errors, Place};
use tickfleet_model::suggest;
use tickfleet_protocol::Prompts;

/// The folder with the prompts, below that of the configuration.
const FOLDER: &str = "prompts";

/// A prompt beyond this is not one of ours, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The prompts in force; none where one of them is not usable, which is noted.
pub(super) fn read(dir: Option<&Path>, errors: &Errors) -> Option<Prompts> {
    let folder = dir.map(|dir| dir.join(FOLDER)).filter(|folder| folder.is_dir());
    let Some(folder) = folder else { return Some(Prompts::default()) };
    check_folder(&folder, errors);
    let mut texts = Vec::new();
    for (name, built_in) in Prompts::BUILT_IN {
        let path = folder.join(name);
        texts.push(if path.exists() { file(&path, errors) } else { Some(built_in.to_owned()) });
    }
    let texts: Vec<String> = texts.into_iter().collect::<Option<_>>()?;
    let made = Prompts::new(texts.try_into().ok()?);
    let refused = |error: &tickfleet_protocol::text::PromptError| {
        let place = Place::whole_file(&folder.join(error.file).display().to_string());
        errors.push(&place, "", error.to_string(), format!("a text with {} in it", error.placeholder));
    };
    made.inspect_err(refused).ok()
}

fn file(path: &Path, errors: &Errors) -> Option<String> {
    let place = Place::whole_file(&path.display().to_string());
    if fs::metadata(path).is_ok_and(|file| file.len() > FILE_BYTES_MAX) {
        errors.push(&place, "", format!("more than {} MiB", FILE_BYTES_MAX >> 20), "a prompt");
        return None;
    }
    let read = fs::read_to_string(path);
    let unreadable = |error: &std::io::Error| {
        errors.push(&place, "", format!("an unreadable file ({error})"), "a text in UTF-8");
    };
    read.inspect_err(unreadable).ok()
}

/// Refuses texts that nothing would read (`tool.md`).
fn check_folder(folder: &Path, errors: &Errors) {
    let names = || Prompts::BUILT_IN.iter().map(|(name, _)| *name);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        // Kubernetes mounts a ConfigMap through entries that begin with a dot.
        if !name.starts_with('.') && !names().any(|known| known == name) {
            let place = Place::whole_file(&folder.join(&name).display().to_string());
            let expected = format!("one of {}", suggest::list(names()));
            errors.suggest(&place, "", "a file that nothing reads", expected, suggest::closest(&name, names()));
        }
    }
}

//! The built-in prompts, and the prompts in the folder `prompts`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::document::errors::{ConfigLocation, Errors};
use crate::document::reader::Cursor;
use tickfleet_model::suggest;
use tickfleet_protocol::Prompts;

const FOLDER: &str = "prompts";

const FILE_BYTES_MAX: u64 = 1 << 20;

const OF_AGENT: &str = "agent.";
const ENDING: &str = ".txt";

const AGENTS_BUILT_IN: [(&str, &str); 5] = [
    ("agent.atlas.txt", include_str!("../../../config/prompts/agent.atlas.txt")),
    ("agent.archy.txt", include_str!("../../../config/prompts/agent.archy.txt")),
    ("agent.kelly.txt", include_str!("../../../config/prompts/agent.kelly.txt")),
    ("agent.publisher.txt", include_str!("../../../config/prompts/agent.publisher.txt")),
    ("agent.guidance.txt", include_str!("../../../config/prompts/agent.guidance.txt")),
];

pub(super) struct AgentPrompts(BTreeMap<String, String>);

impl AgentPrompts {
    pub(super) fn text(&self, cursor: &Cursor<'_>) -> Option<String> {
        let name = cursor.some_text()?;
        let found = self.0.get(&name).cloned();
        if found.is_none() {
            let names = || self.0.keys().map(String::as_str);
            let expected = format!("a file {OF_AGENT}<name>{ENDING} in the folder prompts: {}", suggest::list(names()));
            cursor.refuse_with(expected, suggest::closest(&name, names()));
        }
        found
    }
}

fn name_of(file: &str) -> Option<String> {
    let name = file.strip_prefix(OF_AGENT)?.strip_suffix(ENDING)?;
    (!name.is_empty()).then(|| name.to_owned())
}

pub(super) fn of_agents(dir: Option<&Path>, errors: &Errors) -> AgentPrompts {
    let built_in = AGENTS_BUILT_IN.iter().filter_map(|(file, text)| Some((name_of(file)?, (*text).to_owned())));
    let mut prompts: BTreeMap<String, String> = built_in.collect();
    let folder = dir.map(|dir| dir.join(FOLDER));
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    for entry in entries {
        if let Some(name) = entry.file_name().to_str().and_then(name_of) {
            prompts.extend(file(&entry.path(), errors).map(|text| (name, text)));
        }
    }
    AgentPrompts(prompts)
}

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
        let place = ConfigLocation::whole_file(&folder.join(error.file).display().to_string());
        errors.push(&place, "", error.to_string(), format!("a text with {} in it", error.placeholder));
    };
    made.inspect_err(refused).ok()
}

fn file(path: &Path, errors: &Errors) -> Option<String> {
    let place = ConfigLocation::whole_file(&path.display().to_string());
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

fn check_folder(folder: &Path, errors: &Errors) {
    let names = || Prompts::BUILT_IN.iter().map(|(name, _)| *name);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        // Kubernetes mounts a ConfigMap through entries that begin with a dot.
        if !name.starts_with('.') && name_of(&name).is_none() && !names().any(|known| known == name) {
            let place = ConfigLocation::whole_file(&folder.join(&name).display().to_string());
            let expected = format!("{OF_AGENT}<name>{ENDING} or one of {}", suggest::list(names()));
            errors.suggest(&place, "", "a file that nothing reads", expected, suggest::closest(&name, names()));
        }
    }
}

//! `tickfleet memory`: shows and changes the memories of an agent.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use tickfleet_model::knowledge::{Memory as Note, digest};
use tickfleet_model::{AgentId, TenantId, limits};
use tickfleet_store::{RememberResult, Store};
use tickfleet_tools_knowledge::tools::sound;

use crate::caller::{unknown_caller, with_tenant};
use crate::failure::Failure;
use crate::output::time_format::stamp;
use crate::output::{Output, lines, short, table};
use crate::setup::Setup;

const FILE_BYTES_MAX: u64 = 64 * limits::MEMORIES_BYTES_MAX as u64;

/// Add, import, list or delete memories of an agent, which it searches with search_my_memories.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet memory add --tenant demo --agent kelly 'Ben wants posts before nine.' --tag ben
  tickfleet memory import notes.jsonl --tenant demo --agent kelly
  tickfleet memory list --tenant demo --agent kelly
  tickfleet memory forget --tenant demo --agent kelly p-0f1e2d3c4b5a69788796a5b4c3d2e1f0")]
pub(crate) struct Memory {
    #[command(subcommand)]
    command: MemoryCommand,
}

/// Owner of the memories.
#[derive(Debug, Args)]
struct Owner {
    /// Tenant of the agent.
    #[arg(long)]
    tenant: TenantId,
    /// Agent that owns the memories.
    #[arg(long)]
    agent: AgentId,
}

#[derive(Debug, Subcommand)]
enum MemoryCommand {
    /// Add a memory. Equal texts are stored once.
    Add {
        /// Text to remember.
        text: String,
        #[command(flatten)]
        owner: Owner,
        /// Tag to find it by. Repeatable.
        #[arg(long, value_name = "WORD")]
        tag: Vec<String>,
    },
    /// Import memories: JSON lines {"text": "…", "tags": ["…"]} from .jsonl, or one per paragraph of any other text.
    Import {
        /// File to import.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        owner: Owner,
    },
    /// List the memories, the newest first.
    List {
        #[command(flatten)]
        owner: Owner,
    },
    /// Delete memories.
    Forget {
        /// Ids of memories.
        #[arg(value_name = "ID", required_unless_present = "all")]
        ids: Vec<String>,
        #[command(flatten)]
        owner: Owner,
        /// Delete all memories.
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
}

#[derive(Debug, Default, Serialize)]
struct MemoryResult {
    added: usize,
    known: usize,
    forgotten: u64,
}

#[derive(Deserialize)]
struct MemoryLine {
    text: String,
    #[serde(default)]
    tags: Vec<String>,
}

pub(crate) async fn run(setup: &Setup, args: &Memory, output: &Output) -> Result<(), Failure> {
    let done = match &args.command {
        MemoryCommand::Add { text, owner, tag } => {
            let note = sound(text, tag).map_err(Failure::usage)?;
            add(&store(setup, owner).await?, owner, vec![note]).await?
        }
        MemoryCommand::Import { file, owner } => {
            let notes = read(file)?;
            add(&store(setup, owner).await?, owner, notes).await?
        }
        MemoryCommand::List { owner } => {
            let memories = store(setup, owner).await?.memories(&owner.tenant, &owner.agent).await?;
            return output.show(&memories, |memories| listed(memories));
        }
        MemoryCommand::Forget { ids, owner, all } => {
            let store = store(setup, owner).await?;
            let memories = store.memories(&owner.tenant, &owner.agent).await?;
            if let Some(unknown) = ids.iter().find(|id| !memories.iter().any(|memory| memory.id == **id)) {
                let why = format!("{} has no memory {unknown:?}; nothing was deleted", owner.agent);
                return Err(Failure::failed(anyhow::anyhow!(why)));
            }
            let every = || memories.iter().map(|memory| memory.id.clone()).collect();
            let ids = if *all { every() } else { ids.clone() };
            MemoryResult {
                forgotten: store.forget(&owner.tenant, &owner.agent, &ids).await?,
                ..MemoryResult::default()
            }
        }
    };
    output
        .show(&done, |done| format!("{} added, {} already stored, {} deleted", done.added, done.known, done.forgotten))
}

async fn store(setup: &Setup, owner: &Owner) -> Result<Store, Failure> {
    let active = setup.active();
    with_tenant(setup, &active, &owner.tenant).await?;
    let in_force = active.load();
    let found = in_force.policy.look_up(&owner.tenant, &owner.agent);
    found.map_err(|unknown| unknown_caller(unknown, &in_force.policy, &owner.tenant, &owner.agent))?;
    Ok(setup.client().await?.store(&owner.tenant).clone())
}

fn read(file: &PathBuf) -> Result<Vec<(String, Vec<String>)>, Failure> {
    let failed = |why: String| Failure::failed(anyhow::anyhow!("{}: {why}", file.display()));
    let bytes = fs::metadata(file).map_err(|error| failed(error.to_string()))?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(failed(format!("it has {bytes} bytes; at most {FILE_BYTES_MAX} are read")));
    }
    let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    let is_lines = file.extension().is_some_and(|end| end == "jsonl" || end == "ndjson");
    let parts: Vec<&str> = if is_lines { text.lines().collect() } else { text.split("\n\n").collect() };
    let mut notes = Vec::new();
    for (number, part) in parts.into_iter().enumerate().filter(|(_, part)| !part.trim().is_empty()) {
        let unit = if is_lines { "line" } else { "paragraph" };
        let at = |why: String| failed(format!("{unit} {}: {why}", number + 1));
        let line = if is_lines {
            serde_json::from_str(part).map_err(|error| at(format!("{error}; expected {{\"text\": …}}")))?
        } else {
            MemoryLine { text: part.to_owned(), tags: Vec::new() }
        };
        notes.push(sound(&line.text, &line.tags).map_err(at)?);
    }
    Ok(notes)
}

async fn add(store: &Store, owner: &Owner, notes: Vec<(String, Vec<String>)>) -> Result<MemoryResult, Failure> {
    let at_ms = store.now_ms().await?;
    let mut done = MemoryResult::default();
    for (text, tags) in notes {
        // The ID is derived from the text, so a repeated text is stored once.
        let id = format!("p-{}", digest(&[&text]));
        let note = Note { id, text, tags, at_ms };
        match store.remember(&owner.tenant, &owner.agent, &note).await? {
            RememberResult::Done { forgotten } => {
                (done.added, done.forgotten) = (done.added + 1, done.forgotten + forgotten as u64);
            }
            RememberResult::Known => done.known += 1,
            RememberResult::Pressure => {
                let why = "Redis memory is nearly full (80 % of maxmemory used); no more memories were added";
                return Err(Failure::failed(anyhow::anyhow!("{why}. {} were added before that", done.added)));
            }
        }
    }
    Ok(done)
}

fn listed(memories: &[Note]) -> String {
    if memories.is_empty() {
        return "no memories".to_owned();
    }
    let mut table = table(&["ID", "MADE", "TAGS", "TEXT"]);
    for memory in memories {
        let tags = short(&memory.tags.join(", "), 40);
        table.add_row([memory.id.clone(), stamp(memory.at_ms), tags, short(&memory.text, 100)]);
    }
    lines(table)
}

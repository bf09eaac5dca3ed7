//! The tools: `search_atlasux_knowledge`, `search_my_memories` and `remember`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_model::knowledge::Memory;
use tickfleet_model::{Effect, limits};
use tickfleet_store::{RememberResult, Store, StoreError};
use tickfleet_tools::{CallContext, ToolError, TypedTool, wording};

use crate::recall::{Recollection, Source};
use crate::search::{Findings, Knowledge};

const PASSAGES_DEFAULT: usize = 5;
const PASSAGES_MAX: usize = 20;
const MEMORIES_DEFAULT: usize = 10;
const MEMORIES_FOUND_MAX: usize = 50;
const QUERY_CHARS_MAX: usize = 1_000;
const TAG_CHARS_MAX: usize = 64;

#[must_use]
pub fn all(store: &Store, knowledge: &Arc<Knowledge>) -> Vec<TypedTool> {
    vec![
        search_knowledge(store.clone(), Arc::clone(knowledge)),
        search_memories(store.clone(), Arc::clone(knowledge)),
        remember(store.clone()),
    ]
}

pub const NAMES: [&str; 3] = ["search_atlasux_knowledge", "search_my_memories", "remember"];

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchKnowledge {
    /// The question or keywords to search for.
    #[schemars(length(min = 1, max = QUERY_CHARS_MAX))]
    query: String,
    /// Only documents of this category. Default: all.
    #[serde(default)]
    #[schemars(length(min = 1, max = TAG_CHARS_MAX))]
    category: Option<String>,
    /// The maximum number of passages to return, 1 to 20. Default: 5.
    #[serde(default)]
    #[schemars(range(min = 1, max = PASSAGES_MAX))]
    max_results: Option<usize>,
}

fn search_knowledge(store: Store, knowledge: Arc<Knowledge>) -> TypedTool {
    TypedTool::new(
        NAMES[0],
        "Searches the knowledge base of your business and returns the passages that fit best, each with its title, \
         source, category and score.",
        Effect::Read,
        move |context: CallContext, args: SearchKnowledge| {
            let store = store.clone();
            let knowledge = Arc::clone(&knowledge);
            async move {
                let most = args.max_results.unwrap_or(PASSAGES_DEFAULT).clamp(1, PASSAGES_MAX);
                let found =
                    knowledge.search(&store, &context.tenant, &args.query, args.category.as_deref(), most).await;
                found.map_err(passing) as Result<Findings, ToolError>
            }
        },
    )
    .category("knowledge")
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SearchMemories {
    /// The question or keywords to search for.
    #[schemars(length(min = 1, max = QUERY_CHARS_MAX))]
    query: String,
    /// The sources to search: memory (your notes), audit (your calls), workflows (your turns and tasks that have
    /// ended), kb (the knowledge base). Default: all.
    #[serde(default)]
    #[schemars(length(max = 4))]
    sources: Option<Vec<Source>>,
    /// The maximum number of findings to return, 1 to 50. Default: 10.
    #[serde(default)]
    #[schemars(range(min = 1, max = MEMORIES_FOUND_MAX))]
    max_results: Option<usize>,
}

fn search_memories(store: Store, knowledge: Arc<Knowledge>) -> TypedTool {
    TypedTool::new(
        NAMES[1],
        "Searches your notes, calls and tasks and the knowledge base, and returns the best matches.",
        Effect::Read,
        move |context: CallContext, args: SearchMemories| {
            let store = store.clone();
            let knowledge = Arc::clone(&knowledge);
            async move {
                let most = args.max_results.unwrap_or(MEMORIES_DEFAULT).clamp(1, MEMORIES_FOUND_MAX);
                let sources = args.sources.unwrap_or_default();
                let found =
                    knowledge.recall(&store, &context.tenant, &context.agent, &args.query, &sources, most).await;
                Ok(found) as Result<Recollection, ToolError>
            }
        },
    )
    .category("knowledge")
    .answers_by_agent()
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Remember {
    /// The text to note down, in full sentences: you will read it without this conversation.
    #[schemars(length(min = 1, max = limits::MEMORY_BYTES_MAX))]
    text: String,
    /// Words to find the note by, at most 16.
    #[serde(default)]
    #[schemars(length(max = limits::MEMORY_TAGS_MAX))]
    tags: Option<Vec<String>>,
}

#[derive(Serialize, JsonSchema)]
struct Noted {
    /// The memory's id.
    memory_id: String,
    /// The number of older memories that were removed to make room.
    forgotten: usize,
}

fn remember(store: Store) -> TypedTool {
    TypedTool::new(
        NAMES[2],
        "Saves a note for your later conversations and tasks. search_my_memories finds it again. Only you see it. If there are too many notes, the oldest are removed.",
        Effect::Idempotent,
        move |context: CallContext, args: Remember| {
            let store = store.clone();
            async move { note(&store, &context, args).await }
        },
    )
    .category("knowledge")
    .validate(|args: &Remember| sound(&args.text, args.tags.as_deref().unwrap_or_default()).map(drop))
}

async fn note(store: &Store, context: &CallContext, args: Remember) -> Result<Noted, ToolError> {
    let (text, tags) =
        sound(&args.text, args.tags.as_deref().unwrap_or_default()).map_err(ToolError::InvalidArguments)?;
    let at_ms = store.now_ms().await.map_err(passing)?;
    // Every attempt of the call has the same id, so the note is stored only once.
    let id = format!("m-{}", context.idempotency_key.chars().take(32).collect::<String>());
    let memory = Memory { id: id.clone(), text, tags, at_ms };
    match store.remember(&context.tenant, &context.agent, &memory).await.map_err(passing)? {
        RememberResult::Done { forgotten } => Ok(Noted { memory_id: id, forgotten }),
        RememberResult::Known => Ok(Noted { memory_id: id, forgotten: 0 }),
        RememberResult::Pressure => Err(ToolError::NotExecuted {
            message: "Memory is nearly full, so no notes are saved until there is room.".into(),
            retry_after: None,
        }),
    }
}

/// Removes control characters, surrounding spaces and empty tags. Line feeds and tabs stay.
pub fn sound(text: &str, tags: &[String]) -> Result<(String, Vec<String>), String> {
    let clean =
        |text: &str| -> String { text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect() };
    let text = clean(text).trim().to_owned();
    if text.is_empty() {
        return Err("text: it says nothing".to_owned());
    }
    if text.len() > limits::MEMORY_BYTES_MAX {
        return Err(format!("text: it has {} bytes; at most {} are kept", text.len(), limits::MEMORY_BYTES_MAX));
    }
    if tags.len() > limits::MEMORY_TAGS_MAX {
        return Err(format!("tags: there are {}; at most {} are kept", tags.len(), limits::MEMORY_TAGS_MAX));
    }
    let tags: Vec<String> = tags.iter().map(|tag| clean(tag).trim().to_owned()).filter(|tag| !tag.is_empty()).collect();
    match tags.iter().find(|tag| tag.chars().count() > TAG_CHARS_MAX) {
        Some(tag) => Err(format!("tags: {:?} is longer than {TAG_CHARS_MAX} characters", wording::cut(tag, 40))),
        None => Ok((text, tags)),
    }
}

/// Running a lookup or `remember` twice does no harm.
fn passing(error: StoreError) -> ToolError {
    ToolError::Transient(error.to_string())
}

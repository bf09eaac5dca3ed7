//! `tickfleet kb`: imports, lists, searches and removes documents of a tenant's knowledge base.

mod files;
mod import;

use clap::{Args, Subcommand};
use serde::Serialize;
use tickfleet_model::TenantId;
use tickfleet_model::knowledge::Document;
use tickfleet_store::Store;
use tickfleet_tools_knowledge::search::{Findings, Ranking};

use crate::caller::{no_tenant, with_tenant};
use crate::failure::Failure;
use crate::output::time_format::stamp;
use crate::output::{Output, StatusColor, lines, short, table};
use crate::setup::Setup;

/// Import, list, search or remove documents of a tenant's knowledge base, which agents search with
/// search_atlasux_knowledge.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet kb import docs/ --tenant demo --category handbook
  tickfleet kb import docs/ --tenant demo --category handbook --prune
  tickfleet kb list --tenant demo
  tickfleet kb search --tenant demo 'how many calls may an agent make?'
  tickfleet kb remove --tenant demo handbook/limits.md

Search compares words. If EMBEDDINGS_MODEL names a model, search also compares meaning: the model is called at
EMBEDDINGS_BASE_URL with EMBEDDINGS_API_KEY, or at OPENAI_BASE_URL with OPENAI_API_KEY. Workers need the same variables.")]
pub(crate) struct Kb {
    #[command(subcommand)]
    command: KbCommand,
}

#[derive(Debug, Subcommand)]
enum KbCommand {
    /// Import Markdown, text and JSON lines. Unchanged documents are skipped.
    Import(import::Import),
    /// List the documents.
    List {
        /// Tenant of the knowledge base.
        #[arg(long)]
        tenant: TenantId,
        /// Only documents of this category.
        #[arg(long)]
        category: Option<String>,
    },
    /// Remove documents by source or id.
    Remove(RemoveArgs),
    /// Search as an agent would.
    Search {
        /// Tenant of the knowledge base.
        #[arg(long)]
        tenant: TenantId,
        /// Search text.
        query: String,
        /// Only documents of this category.
        #[arg(long)]
        category: Option<String>,
        /// Passages to show.
        #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
        max_results: u8,
    },
}

#[derive(Debug, Args)]
struct RemoveArgs {
    /// Tenant of the knowledge base.
    #[arg(long)]
    tenant: TenantId,
    /// Sources or ids from `kb list`. A source that ends in / removes the whole folder.
    #[arg(value_name = "SOURCE", required_unless_present = "all")]
    sources: Vec<String>,
    /// Remove all documents.
    #[arg(long, conflicts_with = "sources")]
    all: bool,
}

#[derive(Serialize)]
struct RemoveResult {
    removed: u64,
}

pub(crate) async fn run(setup: &Setup, args: &Kb, output: &Output) -> Result<(), Failure> {
    match &args.command {
        KbCommand::Import(args) => import::run(setup, args, output).await,
        KbCommand::List { tenant, category } => {
            let documents = documents(&store(setup, tenant).await?, tenant, category.as_deref()).await?;
            output.show(&documents, |documents| listed(documents))
        }
        KbCommand::Remove(args) => remove(setup, args, output).await,
        KbCommand::Search { tenant, query, category, max_results } => {
            let store = store(setup, tenant).await?;
            setup.knowledge.embedder().map_err(|why| Failure::failed(anyhow::anyhow!(why)))?;
            let most = usize::from(*max_results);
            let found = setup.knowledge.search(&store, tenant, query, category.as_deref(), most).await?;
            output.show(&found, |found| findings_text(found, output))
        }
    }
}

async fn store(setup: &Setup, tenant: &TenantId) -> Result<Store, Failure> {
    let active = setup.active();
    with_tenant(setup, &active, tenant).await?;
    let tenants = &active.load().policy.tenants;
    if !tenants.contains_key(tenant) {
        return Err(no_tenant(tenant, tenants.keys()));
    }
    Ok(setup.client().await?.store(tenant).clone())
}

async fn documents(store: &Store, tenant: &TenantId, category: Option<&str>) -> Result<Vec<Document>, Failure> {
    let mut documents = store.documents(tenant).await?;
    let wanted = category.map(str::to_lowercase);
    documents.retain(|document| wanted.as_ref().is_none_or(|wanted| document.category.to_lowercase() == *wanted));
    documents.sort_by(|a, b| (&a.source, &a.title).cmp(&(&b.source, &b.title)));
    Ok(documents)
}

async fn remove(setup: &Setup, args: &RemoveArgs, output: &Output) -> Result<(), Failure> {
    let store = store(setup, &args.tenant).await?;
    let documents = documents(&store, &args.tenant, None).await?;
    let named = |name: &str, document: &Document| {
        document.id == name || document.source == name || (name.ends_with('/') && document.source.starts_with(name))
    };
    if let Some(nothing) = args.sources.iter().find(|name| !documents.iter().any(|document| named(name, document))) {
        let unknown =
            format!("no document has the source or id {nothing:?}; see tickfleet kb list. Nothing was removed");
        return Err(Failure::failed(anyhow::anyhow!(unknown)));
    }
    let gone = documents.iter().filter(|document| args.all || args.sources.iter().any(|name| named(name, document)));
    let ids: Vec<String> = gone.map(|document| document.id.clone()).collect();
    let removed = RemoveResult { removed: store.drop_documents(&args.tenant, &ids).await? };
    output.show(&removed, |removed| format!("documents removed: {}", removed.removed))
}

fn listed(documents: &[Document]) -> String {
    if documents.is_empty() {
        return "no documents; add some with tickfleet kb import".to_owned();
    }
    let mut table = table(&["SOURCE", "TITLE", "CATEGORY", "PASSAGES", "EMBEDDED BY", "IMPORTED", "ID"]);
    for document in documents {
        let model = if document.model.is_empty() { "-" } else { &document.model };
        table.add_row([
            document.source.clone(),
            short(&document.title, 50),
            document.category.clone(),
            document.passages.to_string(),
            model.to_owned(),
            stamp(document.at_ms),
            document.id.clone(),
        ]);
    }
    lines(table)
}

fn findings_text(found: &Findings, output: &Output) -> String {
    let ranking = match found.ranking {
        Ranking::Words => "words",
        Ranking::Meaning => "meaning",
    };
    let note = found.note.as_ref().map(|note| format!(" {note}")).unwrap_or_default();
    let mut text = format!("{} passages, ranked by {ranking}.{note}\n", found.passages.len());
    for passage in &found.passages {
        let category = if passage.category.is_empty() { String::new() } else { format!(", {}", passage.category) };
        let head = output.paint(StatusColor::Strong, &short(&passage.title, 100));
        text.push_str(&format!("\n{head}\n{}{category}  {:.3}\n", passage.source, passage.score));
        // A document must not control the terminal.
        let clean = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>();
        passage.text.lines().for_each(|line| text.push_str(&format!("  {}\n", clean(line))));
    }
    text
}

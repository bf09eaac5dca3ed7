//! `tickfleet kb import`: imports files as documents of a tenant.

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tickfleet_model::TenantId;
use tickfleet_store::{KeepResult, Store};
use tickfleet_tools_knowledge::documents::{self, Problem};
use tickfleet_tools_knowledge::import::{Import as Importer, Imported};

use super::files::{FoundFile, Tree};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

const PROBLEMS_SHOWN: usize = 20;

#[derive(Debug, Args)]
#[command(after_help = "\
A file .md, .markdown, .txt or .text is one document, identified by its path as given: always import from the same
folder. A line of .jsonl or .ndjson is one document:
  {\"title\": \"Refunds\", \"text\": \"…\", \"category\": \"policies\", \"source\": \"https://…\"}
Only `text` is required. Documents of one source are distinguished by their titles.")]
pub(super) struct Import {
    /// Files, or folders with documents.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Tenant of the knowledge base.
    #[arg(long)]
    tenant: TenantId,
    /// Category of documents that do not name one.
    #[arg(long, default_value = "", hide_default_value = true)]
    category: String,
    /// Remove documents that came from these paths and no longer exist. A read error prevents every removal.
    #[arg(long)]
    prune: bool,
}

#[derive(Debug, Default, Serialize)]
struct Report {
    new: usize,
    replaced: usize,
    unchanged: usize,
    removed: u64,
    gone: usize,
    left_out: usize,
    /// `None` if no model is configured to embed passages.
    model: Option<String>,
    problems: Vec<ReportedProblem>,
    stopped: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct ReportedProblem {
    place: String,
    why: String,
}

impl From<Problem> for ReportedProblem {
    fn from(Problem { place, why }: Problem) -> Self {
        Self { place, why }
    }
}

pub(super) async fn run(setup: &Setup, args: &Import, output: &Output) -> Result<(), Failure> {
    let store = super::store(setup, &args.tenant).await?;
    let embedder = setup.knowledge.embedder().map_err(|why| Failure::failed(anyhow::anyhow!(why)))?;
    let mut report = Report { model: embedder.map(|embedder| embedder.model().to_owned()), ..Report::default() };
    let roots: Vec<String> = args.paths.iter().map(|path| tidy(path)).collect();
    let tree = Tree::below(&roots);
    (report.left_out, report.problems) = (tree.others, tree.problems.into_iter().map(ReportedProblem::from).collect());
    let mut importer = Importer::begin(&store, &args.tenant, embedder).await?;
    let bar = progress(tree.files.len());
    for file in &tree.files {
        bar.set_message(file.name.clone());
        one_file(file, args, &mut importer, &mut report).await?;
        bar.inc(1);
        if report.stopped.is_some() {
            break;
        }
    }
    bar.finish_and_clear();
    prune(&store, args, &importer, &roots, &mut report).await?;
    if let Some(why) = importer.without_meaning() {
        output.note(&format!("passages were not embedded ({why}): until the next import, search compares only words"));
    }
    let is_good = report.problems.is_empty() && report.stopped.is_none();
    for problem in report.problems.iter().take(PROBLEMS_SHOWN).filter(|_| !output.json) {
        // A file name can contain control characters, which must not reach the terminal.
        let line = format!("{}: {}", problem.place, problem.why);
        output.note(&line.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>());
    }
    output.show(&report, report_text)?;
    if is_good { Ok(()) } else { Err(Failure::Reported) }
}

/// Documents use the path without a leading `./` or a trailing `/`.
fn tidy(path: &str) -> String {
    let mut tidy = path;
    while let Some(rest) = tidy.strip_prefix("./").filter(|rest| !rest.is_empty()) {
        tidy = rest;
    }
    let short = tidy.trim_end_matches('/');
    if short.is_empty() { tidy.to_owned() } else { short.to_owned() }
}

async fn one_file(
    file: &FoundFile,
    args: &Import,
    importer: &mut Importer<'_>,
    report: &mut Report,
) -> Result<(), Failure> {
    let content = match file.read() {
        Ok(content) => content,
        Err(problem) => {
            report.problems.push(problem.into());
            return Ok(());
        }
    };
    for draft in documents::read(&file.name, file.form, &content, &args.category) {
        let draft = match draft {
            Ok(draft) => draft,
            Err(problem) => {
                report.problems.push(problem.into());
                continue;
            }
        };
        let named = format!("{} {:?}", draft.document.source, draft.document.title);
        match importer.keep(draft).await? {
            Imported::New => report.new += 1,
            Imported::Replaced => report.replaced += 1,
            Imported::Unchanged => report.unchanged += 1,
            Imported::Twice => {
                let why = format!("{named} has the same title; documents of one source need different titles");
                report.problems.push(ReportedProblem { place: file.name.clone(), why });
            }
            Imported::Refused(kept) => {
                report.stopped = Some(match kept {
                    KeepResult::Pressure => "Redis memory is nearly full (80 % of maxmemory used)",
                    KeepResult::TooManyDocuments => "the knowledge base has reached its maximum number of documents",
                    _ => "the knowledge base has reached its maximum size",
                });
                return Ok(());
            }
        }
    }
    Ok(())
}

/// After a problem or an early stop, the list of existing files may be incomplete, so nothing is removed.
async fn prune(
    store: &Store,
    args: &Import,
    importer: &Importer<'_>,
    roots: &[String],
    report: &mut Report,
) -> Result<(), Failure> {
    if !report.problems.is_empty() || report.stopped.is_some() {
        return Ok(());
    }
    let gone: Vec<String> = importer.gone(roots).into_iter().map(|document| document.id).collect();
    report.gone = gone.len();
    if args.prune {
        report.removed = store.drop_documents(&args.tenant, &gone).await?;
    }
    Ok(())
}

fn progress(files: usize) -> ProgressBar {
    let bar = ProgressBar::new(files as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

fn report_text(report: &Report) -> String {
    let mut text = format!("{} new, {} replaced, {} unchanged", report.new, report.replaced, report.unchanged);
    if report.removed > 0 {
        text.push_str(&format!(", {} removed", report.removed));
    } else if report.gone > 0 {
        text.push_str(&format!("; {} no longer in the files (--prune removes them)", report.gone));
    }
    match &report.model {
        Some(model) => text.push_str(&format!("; embedded by {model}")),
        None => text.push_str("; search compares only words (EMBEDDINGS_MODEL is not set)"),
    }
    if !report.problems.is_empty() {
        text.push_str(&format!("\n{} could not be imported", report.problems.len()));
    }
    if let Some(why) = report.stopped {
        text.push_str(&format!("\nstopped: {why}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_folder_paths_get_one_name() {
        for path in ["docs", "./docs", "docs/", "././docs//"] {
            assert_eq!(tidy(path), "docs");
        }
        assert_eq!((tidy("/"), tidy("."), tidy("./")), ("/".into(), ".".into(), ".".into()));
    }
}

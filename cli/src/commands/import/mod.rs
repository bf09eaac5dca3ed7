//! `tickfleet tools import`: converts the operations of an OpenAPI document into a section of `tools.yaml`. Every tool
//! is built as in a worker before it is printed. Operations that a worker could not use are left out.

mod bundle;
mod operation;
mod schema;
mod security;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use tickfleet_config::tools::ToolsFile;
use tickfleet_config::{SERVICE_URL, is_service_url};
use tickfleet_tools::{Environment, NoShell, Registry, ToolKinds};
use tickfleet_tools_http::HttpKind;

use crate::failure::Failure;
use crate::global::Global;
use crate::output::Output;
use crate::setup;

use bundle::{Bundle, bundled};
use operation::{ImportedTool, Operation};
use schema::Document;
use security::SecretNaming;

const DOCUMENT_BYTES_MAX: u64 = 16 << 20;
const OPERATIONS_MAX: usize = 2_000;
/// OpenAPI's methods; other members of a path item are not operations.
const METHODS: [&str; 8] = ["get", "put", "post", "delete", "patch", "head", "options", "trace"];

/// Convert the operations of an OpenAPI document (3.0 or 3.1, JSON or YAML) into a section of tools.yaml.
#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  tickfleet tools import openapi.json > conf/tools.yaml
  tickfleet tools import openapi.yaml --only listPets,addPet --prefix pets_ --server https://pets.example.com/v1

GET becomes `read`, PUT and DELETE `idempotent`, POST and PATCH `once`. Security schemes become references to
environment variables. File references are followed within the document's folder; the command fetches nothing.
An operation that cannot be imported completely is named on stderr with the reason.")]
pub(crate) struct Import {
    /// OpenAPI document.
    file: PathBuf,
    /// Base URL of the service. Default: the first server of the document.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Only these operations, by operationId.
    #[arg(long, value_delimiter = ',', value_name = "OPERATION,…")]
    only: Vec<String>,
    /// Prefix for the names of tools and secrets.
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Use one secret per tenant, such as PETS_KEY_acme for the tenant acme.
    #[arg(long)]
    per_tenant: bool,
    /// Private host, host:port or CIDR block that the tools can reach. Repeatable.
    #[arg(long, value_name = "HOST")]
    allow_private: Vec<String>,
}

#[derive(Default, Serialize)]
pub(crate) struct Report {
    pub(crate) tools: BTreeMap<String, Value>,
    left_out: Vec<(String, String)>,
    notes: Vec<(String, String)>,
}

impl Report {
    pub(crate) fn yaml(&self) -> Result<String, Failure> {
        serde_saphyr::to_string(&json!({ "tools": self.tools })).map_err(Failure::failed)
    }
}

/// Fails if an operation of `--only` is missing, or if no operation could be imported.
pub(crate) fn run(args: &Import, global: &Global, output: &Output) -> Result<(), Failure> {
    let document = bundled(read(&args.file)?, &args.file);
    let taken = setup::sources(global)?.built_in_tools;
    let report = imported(document, args, &taken, &ToolBuilder::new())?;
    show_report(&report, args, output)
}

/// Builds tools in the same way as a worker.
pub(crate) struct ToolBuilder {
    kinds: ToolKinds,
    environment: Environment,
}

impl ToolBuilder {
    pub(crate) fn new() -> Self {
        let environment = Environment::of([]);
        Self {
            kinds: ToolKinds { http: Box::new(HttpKind::new(environment.clone())), shell: Box::new(NoShell) },
            environment,
        }
    }
}

/// Avoids the names in `taken`. Fails if an operation of `--only` is missing.
pub(crate) fn imported(
    document: Bundle,
    args: &Import,
    taken: &BTreeSet<String>,
    builder: &ToolBuilder,
) -> Result<Report, Failure> {
    let version = document.root.get("openapi").and_then(Value::as_str).unwrap_or_default();
    let old = version.starts_with("3.0");
    if !old && !version.starts_with("3.1") {
        return Err(Failure::usage(format!("{}: expected `openapi: 3.0` or `3.1`", args.file.display())));
    }
    let document = Document { root: document.root, old, files: document.files };
    let (operations, unread) = operations(&document)?;
    let found = |name: &String| operations.iter().any(|operation| operation.name() == *name);
    if let Some(missing) = args.only.iter().find(|name| !found(name)) {
        let unread = match unread.first() {
            Some((operation, why)) => format!("; {} could not be read, such as {operation}: {why}", unread.len()),
            None => String::new(),
        };
        return Err(Failure::usage(format!("no operation {missing:?} in {}{unread}", args.file.display())));
    }
    let mut report = Report { left_out: unread, ..Report::default() };
    for operation in operations {
        let name = operation.name();
        if !args.only.is_empty() && !args.only.contains(&name) {
            continue;
        }
        let tool = format!("{}{name}", args.prefix);
        let shown = format!("{} {} ({name})", operation.method.to_uppercase(), operation.path);
        let known = taken.contains(&tool) || report.tools.contains_key(&tool);
        let made = match known {
            true => Err("its name is taken; pass --prefix to change it".to_owned()),
            false => one(&operation, &tool, args, builder),
        };
        match made {
            Ok(imported) => {
                report.notes.extend(imported.notes.into_iter().map(|note| (tool.clone(), note)));
                report.tools.insert(tool, imported.tool);
            }
            Err(reason) => report.left_out.push((shown, reason)),
        }
    }
    Ok(report)
}

fn one(operation: &Operation<'_>, name: &str, args: &Import, builder: &ToolBuilder) -> Result<ImportedTool, String> {
    let server = match &args.server {
        Some(server) => server.trim_end_matches('/').to_owned(),
        None => server(operation)?,
    };
    if !is_service_url(&server) {
        return Err(format!("the server's address is {server:?}; expected {SERVICE_URL}"));
    }
    let naming = SecretNaming { prefix: args.prefix.clone(), per_tenant: args.per_tenant };
    let imported = operation.import(&server, &naming, &args.allow_private)?;
    let file: ToolsFile =
        serde_json::from_value(json!({ "tools": { name: imported.tool } })).map_err(|error| error.to_string())?;
    let built = Registry::build(Vec::new(), &file, &builder.kinds, &builder.environment, Duration::from_secs(1));
    built.map(|_| imported).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// Variables in the URL get their defaults.
fn server(operation: &Operation<'_>) -> Result<String, String> {
    let holders = [operation.operation, operation.item, &operation.document.root];
    let server = holders.iter().find_map(|holder| holder.get("servers")?.get(0));
    let mut url = server.and_then(|s| s.get("url")).and_then(Value::as_str).unwrap_or_default().to_owned();
    let variables = server.and_then(|s| s.get("variables")).and_then(Value::as_object);
    for (name, variable) in variables.into_iter().flatten() {
        let default = variable.get("default").and_then(Value::as_str).unwrap_or_default();
        url = url.replace(&format!("{{{name}}}"), default);
    }
    let absolute = url.starts_with("https://") || url.starts_with("http://");
    if !absolute || url.contains(['{', '}']) {
        return Err("the document has no absolute server URL; pass --server".to_owned());
    }
    Ok(url.trim_end_matches('/').to_owned())
}

fn read(file: &Path) -> Result<Value, Failure> {
    let shown = file.display();
    let unread = |error: &dyn std::fmt::Display| Failure::failed(anyhow::anyhow!("{shown} cannot be read: {error}"));
    if std::fs::metadata(file).map_err(|e| unread(&e))?.len() > DOCUMENT_BYTES_MAX {
        return Err(unread(&format!("it has more than {} MiB", DOCUMENT_BYTES_MAX >> 20)));
    }
    let text = std::fs::read_to_string(file).map_err(|e| unread(&e))?;
    parse(&text).map_err(|error| unread(&error))
}

/// Fails if YAML aliases expand too much.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| error.to_string());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_events: 8_000_000, max_nodes: 4_000_000 },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.without_snippet().to_string())
}

type Operations<'d> = (Vec<Operation<'d>>, Vec<(String, String)>);

fn operations(document: &Document) -> Result<Operations<'_>, Failure> {
    let mut operations = Vec::new();
    let mut unread = Vec::new();
    let paths = document.root.get("paths").and_then(Value::as_object);
    for (path, item) in paths.into_iter().flatten().filter(|(path, _)| !path.starts_with("x-")) {
        let item = match document.whole(item) {
            Ok(item) => item,
            Err(why) => {
                unread.push((path.clone(), why));
                continue;
            }
        };
        for (method, operation) in METHODS.iter().filter_map(|method| Some((*method, item.get(*method)?))) {
            match document.whole(operation) {
                Ok(operation) => operations.push(Operation { document, method, path, item, operation }),
                Err(why) => unread.push((format!("{} {path}", method.to_uppercase()), why)),
            }
        }
    }
    if operations.len() + unread.len() > OPERATIONS_MAX {
        return Err(Failure::usage(format!("the document has more than {OPERATIONS_MAX} operations")));
    }
    Ok((operations, unread))
}

fn show_report(report: &Report, args: &Import, output: &Output) -> Result<(), Failure> {
    if output.json {
        output.data(report)?;
    } else if !report.tools.is_empty() {
        output.print(&format!(
            "# Imported from {}. Each tool needs a row in permissions.yaml before an agent may call it.\n{}",
            args.file.file_name().unwrap_or_default().to_string_lossy(),
            report.yaml()?
        ))?;
    }
    for (tool, note) in &report.notes {
        output.note(&format!("{tool}: {note}"));
    }
    for (operation, reason) in &report.left_out {
        output.note(&format!("left out: {operation}: {reason}"));
    }
    let tools = report.tools.len();
    let all = report.tools.len() + report.left_out.len();
    output.note(&format!("imported {tools} of {all} operations"));
    if tools == 0 {
        return Err(Failure::failed(anyhow::anyhow!("nothing could be imported")));
    }
    Ok(())
}

//! A declared shell tool, checked when the configuration is loaded.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_config::tools::{ShellDef, ShellLevel};
use tickfleet_sandbox::{Grant, Level, Limits, Network, Spec};
use tickfleet_tools::{CallContext, DeclarationError, Handler, ToolFailure, ToolOutput};

use crate::command::{Arguments, Template};
use crate::result::CommandResult;
use crate::shell::{self, Shell};

pub(crate) struct ShellTool {
    shell: Arc<Shell>,
    level: Level,
    command: Vec<Template>,
    stdin: Option<Template>,
    /// The run of a command, still without the command, the standard input and the workspace.
    plan: Spec,
    image: Option<String>,
    transient: BTreeSet<u8>,
    permanent: BTreeSet<u8>,
}

fn field(name: &str) -> impl FnOnce(String) -> DeclarationError {
    let field = format!("shell.{name}");
    move |why| DeclarationError::Field { field, why }
}

impl ShellTool {
    /// Rejects templates with arguments outside `input_schema`.
    pub(crate) fn new(def: &ShellDef, input_schema: &Value, shell: &Arc<Shell>) -> Result<Self, DeclarationError> {
        let command = def.command.iter().map(|text| Template::parse(text)).collect::<Result<Vec<_>, _>>();
        let tool = Self {
            shell: Arc::clone(shell),
            level: match def.level {
                ShellLevel::Basic => Level::Basic,
                ShellLevel::Strict => Level::Strict,
                ShellLevel::Docker => Level::Docker,
            },
            command: command.map_err(field("command"))?,
            stdin: def.stdin.as_deref().map(Template::parse).transpose().map_err(field("stdin"))?,
            plan: plan(def),
            image: def.image.clone(),
            transient: def.transient_exits.clone(),
            permanent: def.permanent_exits.clone(),
        };
        let program = tool.command.first().ok_or_else(|| field("command")("it is empty".into()))?;
        if let Some(name) = program.arguments().next() {
            return Err(field("command")(format!("the argument '{name}' would choose what is executed")));
        }
        let known = |name: &str| input_schema.pointer("/properties").and_then(|all| all.get(name)).is_some();
        for name in tool.command.iter().chain(&tool.stdin).flat_map(Template::arguments) {
            if !known(name) {
                return Err(field("command")(format!("the argument '{name}' is not in input_schema.properties")));
            }
        }
        let trial = Spec { argv: vec!["trial".into()], workspace: "/nowhere/at/all".into(), ..tool.plan.clone() };
        trial.check().map_err(field("paths"))?;
        Ok(tool)
    }

    pub(crate) fn fits_the_machine(&self) -> Result<(), DeclarationError> {
        self.shell.support().check(self.level, &self.plan.network).map_err(DeclarationError::Machine)
    }
}

fn plan(def: &ShellDef) -> Spec {
    let own = shell::limits();
    let set = def.limits;
    let output = set.output_bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let grant = |path: &tickfleet_config::tools::ShellPath| Grant { path: path.path.clone().into(), write: path.write };
    Spec {
        environment: def.environment.clone(),
        grants: def.paths.iter().map(grant).collect(),
        network: match def.tcp_ports.is_empty() {
            true => Network::None,
            false => Network::Tcp(def.tcp_ports.iter().copied().collect()),
        },
        limits: Limits {
            cpu_ms: set.cpu_ms.unwrap_or(own.cpu_ms),
            memory_bytes: set.memory_bytes.unwrap_or(own.memory_bytes),
            processes: set.processes.unwrap_or(own.processes),
            open_files: set.open_files.unwrap_or(own.open_files),
            file_bytes: set.file_bytes.unwrap_or(own.file_bytes),
            workspace_bytes: set.workspace_bytes.unwrap_or(own.workspace_bytes),
            workspace_files: set.workspace_files.unwrap_or(own.workspace_files),
            output_bytes: output.unwrap_or(own.output_bytes),
            wall_ms: set.wall_ms.unwrap_or(own.wall_ms),
        },
        ..Spec::new(Vec::<String>::new(), "")
    }
}

#[async_trait]
impl Handler for ShellTool {
    fn validate(&self, arguments: &RawValue) -> Result<(), String> {
        match arguments.get().contains("\\u0000") {
            true => Err("An argument contains a NUL character, which commands cannot receive.".into()),
            false => Ok(()),
        }
    }

    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        let arguments: Arguments = serde_json::from_str(arguments.get())
            .map_err(|_| ToolFailure::InvalidArguments { message: "The arguments must be a JSON object.".into() })?;
        let spec = Spec {
            argv: self.command.iter().filter_map(|template| template.render(&arguments)).collect(),
            stdin: self.stdin.as_ref().and_then(|t| t.render(&arguments)).unwrap_or_default().into_bytes(),
            workspace: self.shell.workspace(context)?.path,
            ..self.plan.clone()
        };
        let outcome = self.shell.run(self.level, spec, self.image.as_deref(), context).await?;
        let result = CommandResult::from(outcome).into_outcome(&self.transient, &self.permanent)?;
        let json = to_raw_value(&result).map_err(|error| ToolFailure::Internal { message: error.to_string() })?;
        Ok(ToolOutput { json, content_type: "application/json" })
    }
}

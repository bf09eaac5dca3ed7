//! The program `tickfleet`, to which users can add custom tools.

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tickfleet_tools::TypedTool;

use crate::args::Cli;
use crate::failure::Failure;
use crate::fleet::extensions::Extensions;
use crate::fleet::registrar::Registrar;
use crate::output::Output;

/// The ending process waits this long for work on blocking threads.
const BLOCKING_WORK_WAIT: Duration = Duration::from_secs(1);

/// The program `tickfleet` with custom tools. All commands can use these tools.
///
/// ```no_run
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use tickfleet::{Effect, Program, ToolError, TypedTool};
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Area {
///     /// Width in metres.
///     width: f64,
///     /// Height in metres.
///     height: f64,
/// }
///
/// #[derive(Serialize, JsonSchema)]
/// struct SquareMetres {
///     area: f64,
/// }
///
/// fn main() -> std::process::ExitCode {
///     let area = TypedTool::new("area", "Multiplies width by height.", Effect::Read, |_, args: Area| async move {
///         Ok::<_, ToolError>(SquareMetres { area: args.width * args.height })
///     });
///     Program::new().tool(area).main()
/// }
/// ```
#[derive(Debug, Default)]
#[must_use = "nothing runs before `main`"]
pub struct Program {
    extensions: Extensions,
}

impl Program {
    pub fn new() -> Self {
        Self::default()
    }

    /// A section of the same name in `tools.yaml` can replace the tool's description and make the tool stricter.
    pub fn tool(mut self, tool: TypedTool) -> Self {
        self.extensions.tools.push(tool);
        self
    }

    /// `agents.yaml` binds agents to the handler by its name. The handler's arguments are those of a task.
    pub fn task_handler(mut self, handler: TypedTool) -> Self {
        self.extensions.task_handlers.push(handler);
        self
    }

    /// Runs `beside` in every worker process until the worker drains. `beside` can register tools if
    /// `worker.allow_dynamic_registration` is true.
    pub fn beside_worker<Beside, Running>(mut self, beside: Beside) -> Self
    where
        Beside: Fn(Registrar) -> Running + Send + Sync + 'static,
        Running: Future<Output = ()> + Send + 'static,
    {
        self.extensions.beside = Some(Arc::new(move |registrar| Box::pin(beside(registrar))));
        self
    }

    /// Call this method from `main`, outside any async runtime. The first SIGTERM or SIGINT drains the process. The
    /// second signal stops the process immediately.
    pub fn main(self) -> ExitCode {
        // A worker executes this program as the launcher of sandboxed commands. No thread may have started yet.
        if std::env::args_os().nth(1).is_some_and(|argument| argument == tickfleet_sandbox::sandbox::LAUNCH) {
            return tickfleet_sandbox::launcher::main();
        }
        // Tools run as the same user. The process becomes non-dumpable before it reads any secret, so that tools cannot
        // read its memory.
        let hidden = tickfleet_sandbox::hide_this_process();
        let mut cli = match Cli::try_parse() {
            Ok(cli) => cli,
            Err(error) => return not_parsed(&error),
        };
        cli.global.extensions = self.extensions;
        // This fails only if a provider is already installed.
        tickfleet_outbound::install_crypto_provider();
        let json_log = crate::writes_log(&cli.command)
            && tickfleet_config::wants_json_log(cli.global.config.as_deref(), &crate::global::environment());
        let output = Output::new(cli.global.json).with_json_log(json_log);
        if let Err(error) = hidden {
            return output.fail(&Failure::failed(anyhow::anyhow!(
                "cannot protect this process from other processes of its user (PR_SET_DUMPABLE: {error}): they could \
                 read its secrets"
            )));
        }
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                return output.fail(&Failure::failed(anyhow::anyhow!("cannot start the runtime: {error}")));
            }
        };
        let outcome = runtime.block_on(crate::run(cli, &output));
        runtime.shutdown_timeout(BLOCKING_WORK_WAIT);
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => output.fail(&failure),
        }
    }
}

fn not_parsed(error: &clap::Error) -> ExitCode {
    // If even this write fails, the error cannot be reported.
    drop(error.print());
    if error.use_stderr() { ExitCode::from(crate::failure::USAGE) } else { ExitCode::SUCCESS }
}

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tickfleet_client::{Session, TaskEvent, TaskProgress};
use tickfleet_model::AgentId;

use crate::failure::Failure;
use crate::output::time_format::clock;
use crate::output::{Output, StatusColor, short};

const TEXT_CHARS: usize = 140;
const SPIN_EVERY: Duration = Duration::from_millis(120);

/// Content goes to stdout, everything else to stderr.
pub(super) struct ConversationPrinter<'a> {
    output: &'a Output,
    agent: &'a AgentId,
}

/// Dropping this value removes the spinner.
pub(super) struct ExchangeSpinner<'a> {
    output: &'a Output,
    agent: &'a AgentId,
    spinner: ProgressBar,
}

impl Drop for ExchangeSpinner<'_> {
    fn drop(&mut self) {
        self.spinner.finish_and_clear();
    }
}

impl<'a> ConversationPrinter<'a> {
    pub(super) const fn new(output: &'a Output, agent: &'a AgentId) -> Self {
        Self { output, agent }
    }

    pub(super) fn greeting(&self, session: &Session, before: usize) {
        let continuing = if before == 0 { String::new() } else { format!(", continuing after {before} exchanges") };
        let agent = self.agent;
        self.output.note(&format!(
            "Session {} with {agent}{continuing}. Ctrl-C cancels the task, Ctrl-D exits.",
            session.id()
        ));
    }

    pub(super) fn prompt(&self) {
        use std::io::Write as _;
        // A missing prompt does not stop the conversation.
        let _ = write!(std::io::stderr(), "{} ", self.output.paint(StatusColor::Strong, "you>"));
        let _ = std::io::stderr().flush();
    }

    pub(super) fn print_continue_hint(&self, session: &Session) {
        let id = session.id();
        self.output.note(&format!("\nTo continue: tickfleet chat --agent {} --session {id}", self.agent));
    }

    pub(super) fn problem(&self, text: &str) {
        self.output.note(text);
    }

    pub(super) fn begin(&self) -> ExchangeSpinner<'a> {
        let spinner = if self.output.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            spinner.set_style(style);
        }
        spinner.set_message("waiting for a scheduler");
        spinner.enable_steady_tick(SPIN_EVERY);
        ExchangeSpinner { output: self.output, agent: self.agent, spinner }
    }
}

impl ExchangeSpinner<'_> {
    pub(super) fn problem(&self, text: &str) {
        self.spinner.suspend(|| self.output.note(text));
    }

    pub(super) fn progress(&self, progress: &TaskProgress) -> Result<(), Failure> {
        if self.output.json {
            return self.output.print(&serde_json::to_string(progress).map_err(Failure::failed)?);
        }
        if let Some(doing) = doing(&progress.event) {
            self.spinner.set_message(doing);
        }
        let lines = self.lines(&progress.event);
        self.spinner.suspend(|| lines.iter().try_for_each(|line| self.output.print(line)))
    }

    fn lines(&self, event: &TaskEvent) -> Vec<String> {
        let step = |color, word: &str, rest: &str| {
            format!("  {} {}", self.output.paint(color, &format!("{word:<9}")), short(rest, TEXT_CHARS))
        };
        match event {
            TaskEvent::Accepted { .. } => Vec::new(),
            // The text of this plan is the final answer. A separate event shows the same text.
            TaskEvent::Plan { calls, .. } if calls.is_empty() => Vec::new(),
            TaskEvent::Plan { model, text, calls } => {
                let plan = if text.trim().is_empty() { model.clone() } else { format!("{model}: {}", text.trim()) };
                let calls = calls
                    .iter()
                    .map(|call| step(StatusColor::Strong, "", &format!("{} {}", call.tool, call.arguments)));
                [step(StatusColor::Strong, "plan", &plan)].into_iter().chain(calls).collect()
            }
            TaskEvent::Execute { turn } => vec![step(StatusColor::Strong, "execute", &format!("turn {turn}"))],
            TaskEvent::Result { tool, ok: true, content } => {
                vec![step(StatusColor::Good, "ok", &format!("{tool}: {content}"))]
            }
            TaskEvent::Result { tool, ok: false, content } => {
                vec![step(StatusColor::Bad, "failed", &format!("{tool}: {content}"))]
            }
            TaskEvent::Note { text } => vec![step(StatusColor::Doubtful, "note", text)],
            TaskEvent::AgentMessage { from, text } => {
                vec![step(StatusColor::Good, "message", &format!("from {from}: {text}"))]
            }
            TaskEvent::Waiting { what, until_ms } => {
                vec![step(StatusColor::Doubtful, "waits", &format!("for {what}{}", until(*until_ms)))]
            }
            TaskEvent::Capped { limit, until_ms } => {
                vec![step(StatusColor::Doubtful, "capped", &format!("{limit} used up{}", until(*until_ms)))]
            }
            TaskEvent::Answer { answer, .. } => {
                vec![format!("{} {answer}", self.output.paint(StatusColor::Good, &format!("{}>", self.agent)))]
            }
            TaskEvent::Failed { outcome, message } => {
                vec![format!("{} {message}", self.output.paint(StatusColor::Bad, &format!("{outcome}:")))]
            }
        }
    }
}

fn doing(event: &TaskEvent) -> Option<String> {
    Some(match event {
        TaskEvent::Accepted { .. }
        | TaskEvent::Result { .. }
        | TaskEvent::Note { .. }
        | TaskEvent::AgentMessage { .. } => "thinking".into(),
        TaskEvent::Plan { calls, .. } if calls.is_empty() => "answering".into(),
        TaskEvent::Plan { .. } | TaskEvent::Execute { .. } => "its calls are running".into(),
        TaskEvent::Waiting { what, .. } => format!("waiting for {what}"),
        TaskEvent::Capped { limit, .. } => format!("{limit} used up, waiting"),
        TaskEvent::Answer { .. } | TaskEvent::Failed { .. } => return None,
    })
}

fn until(ms: Option<i64>) -> String {
    ms.map(|ms| format!(", until {}", clock(ms))).unwrap_or_default()
}

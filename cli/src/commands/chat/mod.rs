//! `tickfleet chat`: a conversation with an agent in a terminal.

mod keys;
mod play;
mod show;

use std::io::IsTerminal;

use clap::Args;
use serde_json::value::RawValue;
use tickfleet_client::{Session, SessionError, SessionId};
use tickfleet_model::{AgentId, Context, TenantId};

use self::keys::{Key, Keys};
use self::play::ExchangeEnd;
use self::show::ConversationPrinter;
use super::delegate::parse_json;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Chat with an agent and follow its plans, calls and answers live.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: Ctrl-C cancels the running task, twice exits; Ctrl-D ends the conversation.

Examples:
  tickfleet chat --agent atlas
  tickfleet chat --agent atlas --session release-7       continue a conversation
  tickfleet chat --agent atlas --once 'What is new?'     one exchange, for scripts: exit code 0 if the agent responded
  tickfleet chat --agent atlas --once 'Hi' --json        its events as JSON lines")]
pub(crate) struct Chat {
    /// Agent to chat with.
    #[arg(long)]
    agent: AgentId,
    /// Tenant of the agent.
    #[arg(long, default_value = "demo")]
    tenant: TenantId,
    /// Conversation to continue. If missing, a new one.
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Send this message, print the response, and exit.
    #[arg(long, value_name = "TEXT")]
    once: Option<String>,
    /// User that the agent acts for, as JSON.
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    user: Option<Box<RawValue>>,
}

pub(crate) async fn run(setup: &Setup, args: &Chat, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let id = args.session.clone().map_or_else(new_session, Ok)?;
    let context = Context { user_context: args.user.clone(), ..Context::default() };
    let session = Session::open(&client, args.tenant.clone(), args.agent.clone(), id, context);
    let before = session.history().await.map_err(failed)?.len();
    if let Some(note) = setup.unserved(&client, &args.tenant).await? {
        output.note(&note);
    }
    let mut keys = Keys::listen(args.once.is_none())?;
    let show = ConversationPrinter::new(output, &args.agent);
    if let Some(text) = &args.once {
        return match play::exchange(&session, text, &mut keys, &show).await? {
            ExchangeEnd::Answered => Ok(()),
            ExchangeEnd::NotAnswered | ExchangeEnd::Left => Err(Failure::Reported),
        };
    }
    show.greeting(&session, before);
    let is_typed = std::io::stdin().is_terminal();
    loop {
        if is_typed {
            show.prompt();
        }
        match keys.next().await {
            Key::Line(text) if text.trim().is_empty() => {}
            Key::Line(text) => {
                if play::exchange(&session, &text, &mut keys, &show).await? == ExchangeEnd::Left {
                    break;
                }
            }
            Key::Interrupt | Key::End => break,
        }
    }
    show.print_continue_hint(&session);
    Ok(())
}

fn new_session() -> Result<SessionId, Failure> {
    let unique = tickfleet_store::incarnation("c", "chat");
    let plain: String = unique.as_str().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    SessionId::new(plain).map_err(Failure::failed)
}

fn failed(error: SessionError) -> Failure {
    match error {
        SessionError::Store(error) => error.into(),
        SessionError::Submit(error) => error.into(),
        SessionError::Length { .. } | SessionError::Others(_) => Failure::usage(error.to_string()),
        SessionError::Busy => Failure::failed(error),
    }
}

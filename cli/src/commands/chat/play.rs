//! One exchange: a message of the user, and the agent's response.

use tickfleet_client::{Exchange, Session, SessionError, TaskEvent, TaskProgress};

use super::failed;
use super::keys::Keys;
use super::show::{ConversationPrinter, ExchangeSpinner};
use crate::failure::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExchangeEnd {
    Answered,
    NotAnswered,
    /// The user left, and the task is being canceled.
    Left,
}

pub(super) async fn exchange(
    session: &Session,
    text: &str,
    keys: &mut Keys,
    show: &ConversationPrinter<'_>,
) -> Result<ExchangeEnd, Failure> {
    let mut exchange = match session.send(text).await {
        Ok(exchange) => exchange,
        Err(error @ (SessionError::Length { .. } | SessionError::Busy)) => {
            show.problem(&error.to_string());
            return Ok(ExchangeEnd::NotAnswered);
        }
        Err(error) => return Err(failed(error)),
    };
    let shown = show.begin();
    let mut cancelled = false;
    loop {
        tokio::select! {
            progress = exchange.next() => match progress? {
                Some(TaskProgress { event: TaskEvent::Answer { .. }, .. }) if cancelled => {
                    shown.problem("It had ended before the cancellation arrived.");
                    return Ok(ExchangeEnd::Answered);
                }
                Some(progress) => {
                    shown.progress(&progress)?;
                    match progress.event {
                        TaskEvent::Answer { .. } => return Ok(ExchangeEnd::Answered),
                        TaskEvent::Failed { .. } => return Ok(ExchangeEnd::NotAnswered),
                        _ => {}
                    }
                }
                None => return Ok(ExchangeEnd::NotAnswered),
            },
            () = keys.interrupted() => {
                if cancelled {
                    return Ok(ExchangeEnd::Left);
                }
                cancelled = true;
                shown.problem("Canceling the task. Press Ctrl-C again to exit at once.");
                if cancel(&exchange, keys, &shown).await? == ExchangeEnd::Left {
                    return Ok(ExchangeEnd::Left);
                }
            }
        }
    }
}

async fn cancel(exchange: &Exchange, keys: &mut Keys, shown: &ExchangeSpinner<'_>) -> Result<ExchangeEnd, Failure> {
    tokio::select! {
        cancelled = exchange.cancel("canceled in the chat") => {
            let cancelled = cancelled?;
            let below = cancelled.children.len();
            if below > 0 {
                shown.problem(&format!("Its subtasks end too: {below}."));
            }
            Ok(ExchangeEnd::NotAnswered)
        }
        () = keys.interrupted() => Ok(ExchangeEnd::Left),
    }
}

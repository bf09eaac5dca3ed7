//! One exchange: a message of the user, and the agent's response.

use tickfleet_client::{Exchange, Session, SessionError, TaskEvent, TaskProgress};

use super::failed;
use super::keys::Keys;
use super::show::{Show, Shown};
use crate::failure::Failure;

/// How an exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Played {
    /// With an answer.
    Answered,
    /// Without an answer.
    NotAnswered,
    /// The user has left; the task is being canceled.
    Left,
}

/// Sends a message and shows the task's events until the task has ended or the user leaves.
///
/// # Errors
/// Redis cannot be reached, or the session cannot be used.
pub(super) async fn exchange(
    session: &Session,
    text: &str,
    keys: &mut Keys,
    show: &Show<'_>,
) -> Result<Played, Failure> {
    let mut exchange = match session.send(text).await {
        Ok(exchange) => exchange,
        Err(error @ (SessionError::Length { .. } | SessionError::Busy)) => {
            show.problem(&error.to_string());
            return Ok(Played::NotAnswered);
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
                    return Ok(Played::Answered);
                }
                Some(progress) => {
                    shown.progress(&progress)?;
                    match progress.event {
                        TaskEvent::Answer { .. } => return Ok(Played::Answered),
                        TaskEvent::Failed { .. } => return Ok(Played::NotAnswered),
                        _ => {}
                    }
                }
                None => return Ok(Played::NotAnswered),
            },
            () = keys.interrupted() => {
                if cancelled {
                    return Ok(Played::Left);
                }
                cancelled = true;
                shown.problem("Canceling the task. Press Ctrl-C again to exit at once.");
                if cancel(&exchange, keys, &shown).await? == Played::Left {
                    return Ok(Played::Left);
                }
            }
        }
    }
}

/// Cancels the task and its subtasks, unless the user leaves meanwhile.
async fn cancel(exchange: &Exchange, keys: &mut Keys, shown: &Shown<'_>) -> Result<Played, Failure> {
    tokio::select! {
        cancelled = exchange.cancel("cancelled in the chat") => {
            let cancelled = cancelled?;
            let below = cancelled.children.len();
            if below > 0 {
                shown.problem(&format!("Its subtasks end too: {below}."));
            }
            Ok(Played::NotAnswered)
        }
        () = keys.interrupted() => Ok(Played::Left),
    }
}

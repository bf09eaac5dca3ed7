//! Takes over the terminal, draws frames and reads keys.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tickfleet_client::Client;
use tickfleet_config::units::format_duration;
use tickfleet_ops::shutdown::Shutdown;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::draw::{self, Style, TurnExplanation, ViewState};
use super::frame::Frame;
use super::poller::Poller;
use super::{EVERY_MAX, EVERY_MIN};
use crate::commands::explain;
use crate::failure::Failure;
use crate::setup::Setup;

/// The thread that reads keys checks at this interval whether it must end.
const KEYS_WAIT: Duration = Duration::from_millis(100);
const KEYS_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyAction {
    Quit,
    Close,
    Pause,
    Faster,
    Slower,
    Sort,
    Help,
    Up,
    Down,
    Explain,
    Other,
    Redraw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PollPace {
    every: Duration,
    paused: bool,
}

impl PollPace {
    fn faster(self) -> Self {
        Self { every: (self.every / 2).max(EVERY_MIN), ..self }
    }

    fn slower(self) -> Self {
        Self { every: (self.every * 2).min(EVERY_MAX), ..self }
    }
}

/// Dropping this value restores the terminal. A panic also restores it, before the panic message is printed.
struct Screen {
    terminal: DefaultTerminal,
    reading: Arc<AtomicBool>,
}

impl Screen {
    fn enter() -> Result<(Self, mpsc::Receiver<KeyAction>), Failure> {
        let refused =
            |error: io::Error| Failure::failed(anyhow::anyhow!("the terminal cannot be used: {error}; try --once"));
        let terminal = ratatui::try_init().map_err(refused)?;
        let reading = Arc::new(AtomicBool::new(true));
        let (send, keys) = mpsc::channel(KEYS_MAX);
        let needed = Arc::clone(&reading);
        std::thread::spawn(move || read_keys(&needed, &send));
        Ok((Self { terminal, reading }, keys))
    }

    fn draw(&mut self, frame: &Frame, view_state: &ViewState, style: Style) -> Result<(), Failure> {
        let drawn = self.terminal.draw(|canvas| {
            let area = canvas.area();
            draw::draw(frame, Some(view_state), style, area, canvas.buffer_mut());
        });
        drawn.map(drop).map_err(|error| Failure::failed(anyhow::anyhow!("the terminal cannot be written: {error}")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.reading.store(false, Ordering::Relaxed);
        ratatui::restore();
    }
}

pub(super) async fn run(
    setup: &Setup,
    (poller, first): (Poller, Frame),
    every: Duration,
    style: Style,
) -> Result<(), Failure> {
    let explanation_loader = ExplanationLoader { setup: Arc::new(setup.clone()), client: setup.client().await? };
    let (explanations, mut explanation_receiver) = mpsc::channel(1);
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    // If the connection is lost, the terminal closes and sends SIGHUP.
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::failed)?;
    let (pace, paces) = watch::channel(PollPace { every, paused: false });
    let (frames, mut fresh) = watch::channel(Ok(first.clone()));
    tokio::spawn(poll_repeatedly(Arc::clone(&explanation_loader.setup), poller, paces, frames));

    let (mut screen, mut keys) = Screen::enter()?;
    let mut frame = first;
    let mut view_state = ViewState { every: format_duration(every), ..ViewState::default() };
    view_state.trend.add(&frame);
    loop {
        frame.sort(view_state.sort);
        screen.draw(&frame, &view_state, style)?;
        tokio::select! {
            () = shutdown.draining.cancelled() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            changed = fresh.changed() => {
                if changed.is_err() {
                    return Err(Failure::failed(anyhow::anyhow!("the refresh loop panicked")));
                }
                match fresh.borrow_and_update().clone() {
                    Ok(seen) => {
                        view_state.trend.add(&seen);
                        (frame, view_state.trouble) = (seen, None);
                    }
                    Err(trouble) => view_state.trouble = Some(trouble),
                }
            }
            Some(explanation) = explanation_receiver.recv() => {
                view_state.explanation = view_state.explanation.take().map(|_| explanation);
            }
            action = keys.recv() => match action {
                Some(KeyAction::Quit) | None => return Ok(()),
                Some(KeyAction::Close) if !view_state.has_window() => return Ok(()),
                Some(KeyAction::Explain) if view_state.explanation.is_none() => {
                    explanation_loader.load(&frame, &mut view_state, &explanations);
                }
                Some(action) => apply(action, frame.agents.len(), &mut view_state, &pace),
            }
        }
    }
}

struct ExplanationLoader {
    setup: Arc<Setup>,
    client: Client,
}

impl ExplanationLoader {
    fn load(&self, frame: &Frame, view_state: &mut ViewState, explanations: &mpsc::Sender<TurnExplanation>) {
        let row = view_state.chosen.unwrap_or(0);
        let Some(turn) = frame.agents.get(row).map(|agent| agent.first.clone()) else { return };
        view_state.chosen = Some(row);
        view_state.explanation =
            Some(TurnExplanation { title: turn.clone(), lines: vec!["Looking …".to_owned()], at: 0 });
        let setup = Arc::clone(&self.setup);
        let client = self.client.clone();
        let explanations = explanations.clone();
        tokio::spawn(async move {
            let found = explain::render(&setup, &client, None, &turn).await;
            let lines =
                found.map_or_else(|failure| vec![failure.message().unwrap_or_default()], |rendered| rendered.lines);
            drop(explanations.send(TurnExplanation { title: turn, lines, at: 0 }).await);
        });
    }
}

fn apply(action: KeyAction, rows: usize, view_state: &mut ViewState, pace: &watch::Sender<PollPace>) {
    if view_state.help {
        view_state.help = action == KeyAction::Redraw;
        return;
    }
    if let Some(explanation) = &mut view_state.explanation {
        match action {
            KeyAction::Up => explanation.at = explanation.at.saturating_sub(1),
            KeyAction::Down => explanation.at = (explanation.at + 1).min(explanation.lines.len().saturating_sub(1)),
            KeyAction::Redraw => {}
            _ => view_state.explanation = None,
        }
        return;
    }
    let last = rows.saturating_sub(1);
    match action {
        KeyAction::Up => view_state.chosen = Some(view_state.chosen.map_or(0, |at| at.saturating_sub(1)).min(last)),
        KeyAction::Down => view_state.chosen = Some(view_state.chosen.map_or(0, |at| at + 1).min(last)),
        KeyAction::Pause => pace.send_modify(|pace| pace.paused = !pace.paused),
        KeyAction::Faster => pace.send_modify(|pace| *pace = pace.faster()),
        KeyAction::Slower => pace.send_modify(|pace| *pace = pace.slower()),
        KeyAction::Sort => view_state.sort = view_state.sort.next(),
        KeyAction::Help => view_state.help = true,
        KeyAction::Redraw | KeyAction::Other | KeyAction::Explain | KeyAction::Close | KeyAction::Quit => {}
    }
    let now = *pace.borrow();
    (view_state.every, view_state.paused) = (format_duration(now.every), now.paused);
}

async fn poll_repeatedly(
    setup: Arc<Setup>,
    mut poller: Poller,
    mut paces: watch::Receiver<PollPace>,
    frames: watch::Sender<Result<Frame, String>>,
) {
    loop {
        let PollPace { every, paused } = *paces.borrow_and_update();
        tokio::select! {
            changed = paces.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = tokio::time::sleep(every), if !paused => {}
        }
        let seen = poller.poll(&setup).await.map_err(|failure| failure.message().unwrap_or_default());
        let seen = seen.map_err(|message| message.lines().next().unwrap_or_default().to_owned());
        if frames.send(seen).is_err() {
            return;
        }
    }
}

/// Runs on its own thread, because reading from the terminal blocks.
fn read_keys(needed: &AtomicBool, actions: &mpsc::Sender<KeyAction>) {
    while needed.load(Ordering::Relaxed) {
        let action =
            match event::poll(KEYS_WAIT).and_then(|there| if there { event::read().map(Some) } else { Ok(None) }) {
                Ok(None) => continue,
                Ok(Some(event)) => key_action(&event),
                Err(_) => KeyAction::Quit,
            };
        if actions.blocking_send(action).is_err() || action == KeyAction::Quit {
            return;
        }
    }
}

fn key_action(event: &Event) -> KeyAction {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = event else {
        return KeyAction::Redraw;
    };
    match code {
        KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => KeyAction::Quit,
        KeyCode::Char('q' | 'Q') => KeyAction::Quit,
        KeyCode::Esc => KeyAction::Close,
        KeyCode::Up | KeyCode::Char('k') => KeyAction::Up,
        KeyCode::Down | KeyCode::Char('j') => KeyAction::Down,
        KeyCode::Enter | KeyCode::Char('e') => KeyAction::Explain,
        KeyCode::Char('p' | ' ') => KeyAction::Pause,
        KeyCode::Char('+' | '=') => KeyAction::Faster,
        KeyCode::Char('-' | '_') => KeyAction::Slower,
        KeyCode::Char('s') => KeyAction::Sort,
        KeyCode::Char('?' | 'h') => KeyAction::Help,
        _ => KeyAction::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_map_to_actions() {
        let key = |code| key_action(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
        assert_eq!([key(KeyCode::Char('q')), key(KeyCode::Esc)], [KeyAction::Quit, KeyAction::Close]);
        assert_eq!(key_action(&Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL))), KeyAction::Quit);
        assert_eq!(
            [key(KeyCode::Char('c')), key_action(&Event::Resize(80, 24))],
            [KeyAction::Other, KeyAction::Redraw]
        );
    }

    #[test]
    fn selection_and_scrolling_stay_within_bounds() {
        let (pace, _paces) = watch::channel(PollPace { every: Duration::from_secs(1), paused: false });
        let mut view_state = ViewState::default();
        let press = |action, view_state: &mut ViewState| apply(action, 2, view_state, &pace);
        for chosen in [0, 1, 1] {
            press(KeyAction::Down, &mut view_state);
            assert_eq!(view_state.chosen, Some(chosen));
        }
        press(KeyAction::Up, &mut view_state);
        press(KeyAction::Up, &mut view_state);
        assert_eq!(view_state.chosen, Some(0));
        view_state.explanation =
            Some(TurnExplanation { title: "demo:x".into(), lines: vec!["a".into(), "b".into()], at: 0 });
        for at in [1, 1] {
            press(KeyAction::Down, &mut view_state);
            assert_eq!(
                view_state.explanation.as_ref().map(|explanation| explanation.at),
                Some(at),
                "the picture's row stays"
            );
        }
        press(KeyAction::Redraw, &mut view_state);
        assert!(view_state.explanation.is_some(), "another size closes nothing");
        press(KeyAction::Other, &mut view_state);
        assert!(
            view_state.explanation.is_none() && !view_state.paused && view_state.chosen == Some(0),
            "any other key closes it"
        );
    }

    #[test]
    fn escape_closes_the_help_before_it_quits() {
        let (pace, _paces) = watch::channel(PollPace { every: Duration::from_secs(1), paused: false });
        let mut view_state = ViewState::default();
        apply(KeyAction::Help, 0, &mut view_state, &pace);
        assert!(view_state.has_window());
        apply(KeyAction::Redraw, 0, &mut view_state, &pace);
        assert!(view_state.has_window(), "another size closes nothing");
        apply(KeyAction::Close, 0, &mut view_state, &pace);
        assert!(!view_state.has_window());
    }

    #[test]
    fn the_pace_stays_within_its_bounds() {
        let pace = PollPace { every: Duration::from_secs(1), paused: false };
        assert_eq!(pace.faster().every, Duration::from_millis(500));
        assert_eq!((0..9).fold(pace, |pace, _| pace.faster()).every, EVERY_MIN);
        assert_eq!((0..9).fold(pace, |pace, _| pace.slower()).every, EVERY_MAX);
    }
}

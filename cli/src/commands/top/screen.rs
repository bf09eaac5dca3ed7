//! The terminal: takes it over, draws, reads keys, and restores it in every case.

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

use super::draw::{self, Live, Story, Style};
use super::frame::Frame;
use super::poller::Poller;
use super::{EVERY_MAX, EVERY_MIN};
use crate::commands::explain;
use crate::failure::Failure;
use crate::setup::Setup;

/// How often the thread that reads keys checks whether it is still needed.
const KEYS_WAIT: Duration = Duration::from_millis(100);
/// Maximum number of unprocessed keys.
const KEYS_MAX: usize = 64;

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Quit,
    Pause,
    Faster,
    Slower,
    Sort,
    Help,
    Up,
    Down,
    /// Explain why the first turn of the selected row waits.
    Explain,
    /// A key without a function; it closes an open window.
    Other,
    /// The size of the terminal has changed: draw again.
    Redraw,
}

/// When the next poll is due, as set by keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    every: Duration,
    paused: bool,
}

impl Pace {
    fn faster(self) -> Self {
        Self { every: (self.every / 2).max(EVERY_MIN), ..self }
    }

    fn slower(self) -> Self {
        Self { every: (self.every * 2).min(EVERY_MAX), ..self }
    }
}

/// The terminal while the view uses it. Dropping this restores the terminal. A panic also restores it before its
/// message is printed.
struct Screen {
    terminal: DefaultTerminal,
    reading: Arc<AtomicBool>,
}

impl Screen {
    fn take() -> Result<(Self, mpsc::Receiver<Wish>), Failure> {
        let refused =
            |error: io::Error| Failure::failed(anyhow::anyhow!("the terminal cannot be used: {error}; try --once"));
        let terminal = ratatui::try_init().map_err(refused)?;
        let reading = Arc::new(AtomicBool::new(true));
        let (send, keys) = mpsc::channel(KEYS_MAX);
        let needed = Arc::clone(&reading);
        std::thread::spawn(move || read_keys(&needed, &send));
        Ok((Self { terminal, reading }, keys))
    }

    fn draw(&mut self, frame: &Frame, live: &Live, style: Style) -> Result<(), Failure> {
        let drawn = self.terminal.draw(|canvas| {
            let area = canvas.area();
            draw::draw(frame, Some(live), style, area, canvas.buffer_mut());
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

/// Shows frames until a key, a signal or a closed terminal ends the view.
///
/// # Errors
/// A terminal that cannot be used.
pub(super) async fn run(
    setup: &Setup,
    (poller, first): (Poller, Frame),
    every: Duration,
    style: Style,
) -> Result<(), Failure> {
    let asker = Asker { setup: Arc::new(setup.clone()), client: setup.client().await? };
    let (tell, mut told) = mpsc::channel(1);
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    // A closed terminal, for example after a lost connection, also ends the view.
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::failed)?;
    let (pace, paces) = watch::channel(Pace { every, paused: false });
    let (frames, mut fresh) = watch::channel(Ok(first.clone()));
    tokio::spawn(keep_looking(Arc::clone(&asker.setup), poller, paces, frames));

    let (mut screen, mut keys) = Screen::take()?;
    let mut frame = first;
    let mut live = Live { every: format_duration(every), ..Live::default() };
    live.trend.add(&frame);
    loop {
        frame.sort(live.sort);
        screen.draw(&frame, &live, style)?;
        tokio::select! {
            () = shutdown.draining.cancelled() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
            changed = fresh.changed() => {
                if changed.is_err() {
                    return Err(Failure::failed(anyhow::anyhow!("the refresh loop panicked")));
                }
                match fresh.borrow_and_update().clone() {
                    Ok(seen) => {
                        live.trend.add(&seen);
                        (frame, live.trouble) = (seen, None);
                    }
                    Err(trouble) => live.trouble = Some(trouble),
                }
            }
            Some(story) = told.recv() => live.story = live.story.take().map(|_| story),
            wish = keys.recv() => match wish {
                Some(Wish::Quit) | None => return Ok(()),
                Some(Wish::Explain) if live.story.is_none() => asker.ask(&frame, &mut live, &tell),
                Some(wish) => follow(wish, frame.agents.len(), &mut live, &pace),
            }
        }
    }
}

/// Explains why a turn waits.
struct Asker {
    setup: Arc<Setup>,
    client: Client,
}

impl Asker {
    /// Requests an explanation of why the first turn of the selected row waits. The result arrives through `tell`.
    fn ask(&self, frame: &Frame, live: &mut Live, tell: &mpsc::Sender<Story>) {
        let row = live.chosen.unwrap_or(0);
        let Some(turn) = frame.agents.get(row).map(|agent| agent.first.clone()) else { return };
        live.chosen = Some(row);
        live.story = Some(Story { title: turn.clone(), lines: vec!["Looking …".to_owned()], at: 0 });
        let (setup, client) = (Arc::clone(&self.setup), self.client.clone());
        let tell = tell.clone();
        tokio::spawn(async move {
            let found = explain::told(&setup, &client, None, &turn).await;
            let lines = found.map_or_else(|failure| vec![failure.message().unwrap_or_default()], |told| told.lines);
            // The view may have ended meanwhile.
            drop(tell.send(Story { title: turn, lines, at: 0 }).await);
        });
    }
}

fn follow(wish: Wish, rows: usize, live: &mut Live, pace: &watch::Sender<Pace>) {
    if std::mem::take(&mut live.help) {
        return;
    }
    if let Some(story) = &mut live.story {
        match wish {
            Wish::Up => story.at = story.at.saturating_sub(1),
            Wish::Down => story.at = (story.at + 1).min(story.lines.len().saturating_sub(1)),
            Wish::Redraw => {}
            _ => live.story = None,
        }
        return;
    }
    let last = rows.saturating_sub(1);
    match wish {
        Wish::Up => live.chosen = Some(live.chosen.map_or(0, |at| at.saturating_sub(1)).min(last)),
        Wish::Down => live.chosen = Some(live.chosen.map_or(0, |at| at + 1).min(last)),
        Wish::Pause => pace.send_modify(|pace| pace.paused = !pace.paused),
        Wish::Faster => pace.send_modify(|pace| *pace = pace.faster()),
        Wish::Slower => pace.send_modify(|pace| *pace = pace.slower()),
        Wish::Sort => live.sort = live.sort.next(),
        Wish::Help => live.help = true,
        Wish::Redraw | Wish::Other | Wish::Explain | Wish::Quit => {}
    }
    let now = *pace.borrow();
    (live.every, live.paused) = (format_duration(now.every), now.paused);
}

/// Polls repeatedly, at the pace set by keys, until the view ends.
async fn keep_looking(
    setup: Arc<Setup>,
    mut poller: Poller,
    mut paces: watch::Receiver<Pace>,
    frames: watch::Sender<Result<Frame, String>>,
) {
    loop {
        let Pace { every, paused } = *paces.borrow_and_update();
        tokio::select! {
            changed = paces.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            () = tokio::time::sleep(every), if !paused => {}
        }
        let seen =
            poller.look(&setup.configuration.policy).await.map_err(|failure| failure.message().unwrap_or_default());
        let seen = seen.map_err(|message| message.lines().next().unwrap_or_default().to_owned());
        if frames.send(seen).is_err() {
            return;
        }
    }
}

/// Reads keys until they are no longer needed. Runs on a thread of its own, because reading from the terminal blocks.
fn read_keys(needed: &AtomicBool, wishes: &mpsc::Sender<Wish>) {
    while needed.load(Ordering::Relaxed) {
        let wish = match event::poll(KEYS_WAIT).and_then(|there| if there { event::read().map(Some) } else { Ok(None) })
        {
            Ok(None) => continue,
            Ok(Some(event)) => wish_of(&event),
            // The terminal is gone.
            Err(_) => Wish::Quit,
        };
        if wishes.blocking_send(wish).is_err() || wish == Wish::Quit {
            return;
        }
    }
}

fn wish_of(event: &Event) -> Wish {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press | KeyEventKind::Repeat, .. }) = event else {
        return Wish::Redraw;
    };
    match code {
        KeyCode::Char('c' | 'd') if modifiers.contains(KeyModifiers::CONTROL) => Wish::Quit,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Wish::Quit,
        KeyCode::Up | KeyCode::Char('k') => Wish::Up,
        KeyCode::Down | KeyCode::Char('j') => Wish::Down,
        KeyCode::Enter | KeyCode::Char('e') => Wish::Explain,
        KeyCode::Char('p' | ' ') => Wish::Pause,
        KeyCode::Char('+' | '=') => Wish::Faster,
        KeyCode::Char('-' | '_') => Wish::Slower,
        KeyCode::Char('s') => Wish::Sort,
        KeyCode::Char('?' | 'h') => Wish::Help,
        _ => Wish::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_what_they_are_for() {
        let key = |code| wish_of(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
        assert_eq!([key(KeyCode::Char('q')), key(KeyCode::Esc)], [Wish::Quit; 2]);
        assert_eq!(wish_of(&Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL))), Wish::Quit);
        assert_eq!([key(KeyCode::Char('c')), wish_of(&Event::Resize(80, 24))], [Wish::Other, Wish::Redraw]);
    }

    #[test]
    fn a_row_is_chosen_and_a_story_scrolled_within_what_there_is() {
        let (pace, _paces) = watch::channel(Pace { every: Duration::from_secs(1), paused: false });
        let mut live = Live::default();
        let press = |wish, live: &mut Live| follow(wish, 2, live, &pace);
        for chosen in [0, 1, 1] {
            press(Wish::Down, &mut live);
            assert_eq!(live.chosen, Some(chosen));
        }
        press(Wish::Up, &mut live);
        press(Wish::Up, &mut live);
        assert_eq!(live.chosen, Some(0));
        live.story = Some(Story { title: "demo:x".into(), lines: vec!["a".into(), "b".into()], at: 0 });
        for at in [1, 1] {
            press(Wish::Down, &mut live);
            assert_eq!(live.story.as_ref().map(|story| story.at), Some(at), "the picture's row stays");
        }
        press(Wish::Redraw, &mut live);
        assert!(live.story.is_some(), "another size closes nothing");
        press(Wish::Other, &mut live);
        assert!(live.story.is_none() && !live.paused && live.chosen == Some(0), "any other key closes it");
    }

    #[test]
    fn the_pace_stays_within_its_bounds() {
        let pace = Pace { every: Duration::from_secs(1), paused: false };
        assert_eq!(pace.faster().every, Duration::from_millis(500));
        assert_eq!((0..9).fold(pace, |pace, _| pace.faster()).every, EVERY_MIN);
        assert_eq!((0..9).fold(pace, |pace, _| pace.slower()).every, EVERY_MAX);
    }
}

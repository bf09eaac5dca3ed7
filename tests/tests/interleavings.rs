//! The model against Redis: random sequences of what schedulers, workers, producers and time do, through the real
//! scripts and through the referee. After every step the answers must agree, every few steps the whole worlds, and
//! in the end every promise must have been kept.
//!
//! Actors crash between any two steps, go on with stale memory after their lease has ended, and repeat verbs whose
//! answers were lost. `TICKFLEET_SEED=<n>` replays one interleaving, `TICKFLEET_INTERLEAVINGS=<n>` sets how many are
//! played.

#![allow(
    clippy::print_stdout,
    reason = "how much was played, and what was noticed, is worth a line of a test's output"
)]

mod actors;
mod finish;
mod game;
mod ledger_games;
mod lost;
mod lost_games;
mod sabotage;
mod shards;
mod simulated;
mod spoken;
mod targeted;
mod worlds;

use rand::Rng;
use tickfleet_store::Scripts;
use tickfleet_testkit::RedisServer;

use finish::finish;
use game::{Game, Table, Violation};

/// Plays the interleaving of this seed.
///
/// # Errors
/// The first violation, with the steps that led to it.
async fn play(table: &mut Table, seed: u64) -> Result<usize, Violation> {
    let mut game = Game::new(table, seed).await?;
    let steps = game.rng.random_range(40..150);
    let mut outcome = Ok(());
    for step in 0..steps {
        outcome = game.checked_step(step).await;
        if outcome.is_err() {
            break;
        }
    }
    if outcome.is_ok() {
        outcome = finish(&mut game).await;
    }
    outcome.map(|()| steps).map_err(|violation| told(&game, seed, &violation))
}

/// A violation with the steps that led to it.
fn told(game: &Game<'_>, seed: u64, violation: &Violation) -> Violation {
    let trace: Vec<String> = game.trace.iter().cloned().collect();
    format!("seed {seed}: {violation}\nthe steps before:\n{}", trace.join("\n"))
}

fn number_from_environment(name: &str) -> Option<u64> {
    #[allow(clippy::disallowed_methods, reason = "a test's own knobs: which interleaving to replay, how many to play")]
    std::env::var(name).ok()?.parse().ok()
}

/// Plays one part of all interleavings on a server of its own.
async fn play_part(part: u64) {
    let server = RedisServer::start().await;
    let mut table = Table::new(&server.url(), Scripts::embedded()).await;
    if let Some(seed) = number_from_environment("TICKFLEET_SEED") {
        if seed % PARTS == part {
            play(&mut table, seed).await.unwrap_or_else(|violation| panic!("{violation}"));
        }
        return;
    }
    let count = number_from_environment("TICKFLEET_INTERLEAVINGS").unwrap_or(8_000);
    let mut steps = 0;
    for seed in (0..count).filter(|seed| seed % PARTS == part) {
        steps += play(&mut table, seed).await.unwrap_or_else(|violation| panic!("{violation}"));
    }
    println!("{} interleavings, {steps} random steps", count / PARTS);
}

/// Each part has a process and a server of its own under the test runner.
const PARTS: u64 = 12;

#[tokio::test]
async fn redis_does_what_the_referee_says_first_part() {
    play_part(0).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_second_part() {
    play_part(1).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_third_part() {
    play_part(2).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_fourth_part() {
    play_part(3).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_fifth_part() {
    play_part(4).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_sixth_part() {
    play_part(5).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_seventh_part() {
    play_part(6).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_eighth_part() {
    play_part(7).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_ninth_part() {
    play_part(8).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_tenth_part() {
    play_part(9).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_eleventh_part() {
    play_part(10).await;
}

#[tokio::test]
async fn redis_does_what_the_referee_says_twelfth_part() {
    play_part(11).await;
}

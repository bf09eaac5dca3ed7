//! The simulated Redis in the place of the real one: the referee's rules hold there, too.

use std::os::unix::net::UnixListener;
use std::thread;

use tickfleet_store::Scripts;

use super::game::Table;
use super::play;

/// How many are played: each shows hundreds of scripts' replies to the referee.
const INTERLEAVINGS: u64 = 60;

#[allow(clippy::disallowed_methods, reason = "what serves clients tells them the machine's time")]
fn now_us() -> i64 {
    chrono::Utc::now().timestamp_micros()
}

#[tokio::test]
async fn the_simulated_redis_does_what_the_referee_says() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || tickfleet_sim_redis::serve(listener, 1, now_us));
    let mut table = Table::new(&format!("unix://{}", socket.display()), Scripts::embedded()).await;
    for seed in 0..INTERLEAVINGS {
        play(&mut table, seed).await.unwrap_or_else(|violation| panic!("{violation}"));
    }
}

//! Several shards on one Redis: tenants, agents and turns of the same names in each, every clock its own. Each shard is
//! played and checked as if it were alone, so whatever one does to another is noticed.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tickfleet_store::Scripts;
use tickfleet_testkit::RedisServer;

use super::finish::finish;
use super::game::{Game, Table, Violation};
use super::{number_from_environment, told};

const SHARDS: u32 = 3;

/// A shard in play, and how many steps it has behind it.
type Playing<'t> = (Game<'t>, usize);

async fn tables(server: &RedisServer, scripts: &Scripts) -> Vec<Table> {
    let mut tables = Vec::new();
    for shard in 0..SHARDS {
        tables.push(Table::of_shard(&server.url(), scripts.clone(), shard, SHARDS).await);
    }
    tables
}

/// Random steps of random shards, then each comes to its end while the others stand still.
async fn play_together(tables: &mut [Table], seed: u64) -> Result<(), Violation> {
    let () = redis::cmd("FLUSHALL").query_async(&mut tables[0].redis).await.map_err(|e| e.to_string())?;
    let mut chance = StdRng::seed_from_u64(seed);
    let mut playing: Vec<Playing<'_>> = Vec::new();
    for (at, table) in tables.iter_mut().enumerate() {
        playing.push((Game::new(table, seed * u64::from(SHARDS) + at as u64).await?, 0));
    }
    for _ in 0..chance.random_range(100..300) {
        let at = chance.random_range(0..playing.len());
        let (game, steps) = &mut playing[at];
        game.checked_step(*steps).await.map_err(|violation| told(game, seed, &violation))?;
        *steps += 1;
    }
    for (game, _) in &mut playing {
        finish(game).await.map_err(|violation| told(game, seed, &violation))?;
    }
    Ok(())
}

#[tokio::test]
async fn shards_of_one_redis_do_not_meet() {
    let server = RedisServer::start().await;
    let mut tables = tables(&server, &Scripts::embedded()).await;
    let count = number_from_environment("TICKFLEET_INTERLEAVINGS").unwrap_or(10_000).div_ceil(60);
    for seed in 0..count {
        play_together(&mut tables, seed).await.unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// Shard 0 is as ever: only the others go wrong, by writing what is its own.
#[tokio::test]
async fn a_key_that_shards_share_is_noticed() {
    for (theirs, shared) in [
        ("TIMERS = P .. 'meta', P .. 'timers'", "TIMERS = P .. 'meta', string.gsub(P, '%d', '0') .. 'timers'"),
        ("local BUDGETS = P .. 'budgets'", "local BUDGETS = string.gsub(P, '%d', '0') .. 'budgets'"),
    ] {
        let server = RedisServer::start().await;
        let mut tables = tables(&server, &Scripts::embedded().sabotage(theirs, shared).unwrap()).await;
        let mut noticed = false;
        for seed in 0..50 {
            noticed = noticed || play_together(&mut tables, seed).await.is_err();
        }
        assert!(noticed, "{shared}");
    }
}

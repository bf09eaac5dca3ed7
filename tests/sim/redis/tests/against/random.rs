//! Commands drawn at random, over a few keys of mixed kinds.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::pair::{Pair, sorted, timeless, words};
use tickfleet_sim_redis::Reply;

/// Commands, each with what is drawn in the places of:
/// `K` any key, `S` `H` `E` `Z` `X` a key of that kind mostly (string, hash, set, sorted set, stream), `m` a name,
/// `v` a value, `n` a number, `i` an entry's id, `r` an end of a range of ids, `s` an end of a range of scores,
/// `g` a group, `c` a consumer.
const COMMANDS: &[&str] = &[
    "SET S v",
    "SET S v NX",
    "SET S v XX",
    "SET S v GET",
    "SET K v KEEPTTL",
    "GET S",
    "APPEND S v",
    "GETRANGE S n n",
    "INCR S",
    "INCRBY S n",
    "SETRANGE S 3 v",
    "STRLEN S",
    "DEL K",
    "EXISTS K K",
    "TYPE K",
    "PERSIST K",
    "PEXPIRE K 100000 NX",
    "PEXPIRE K 100000 XX",
    "PEXPIREAT K 4000000000000 GT",
    "PEXPIREAT K 3900000000000 LT",
    "PEXPIRE K 0",
    "MGET S K",
    "HSET H m v",
    "HSET H m v m v",
    "HSETNX H m v",
    "HGET H m",
    "HMGET H m m",
    "HDEL H m",
    "HDEL H m m m",
    "HINCRBY H m n",
    "HGETALL H",
    "HEXISTS H m",
    "HLEN H",
    "HSCAN H 0",
    "HKEYS H",
    "HVALS H",
    "SADD E m m",
    "SADD E n n",
    "SREM E m n",
    "SMEMBERS E",
    "SISMEMBER E m",
    "SCARD E",
    "ZADD Z n m",
    "ZADD Z n m n m",
    "ZADD Z NX n m",
    "ZADD Z XX n m",
    "ZADD Z LT n m",
    "ZADD Z GT CH n m",
    "ZADD Z XX CH n m",
    "ZADD Z INCR n m",
    "ZREM Z m",
    "ZSCORE Z m",
    "ZCARD Z",
    "ZRANK Z m",
    "ZRANGE Z n n",
    "ZRANGE Z n n REV",
    "ZRANGE Z s s BYSCORE",
    "ZRANGE Z s s BYSCORE LIMIT n n",
    "ZRANGEBYSCORE Z s s WITHSCORES",
    "ZREMRANGEBYSCORE Z s s",
    "ZCOUNT Z s s",
    "ZSCAN Z 0",
    "XADD X i f v",
    "XADD X i m v m v",
    "XADD X NOMKSTREAM i f v",
    "XADD X MAXLEN n i f v",
    "XADD X MINID i i f v",
    "XADD X 6-* f v",
    "XADD X 9-* f v",
    "XADD X MAXLEN ~ n i f v",
    "XLEN X",
    "XRANGE X r r",
    "XRANGE X r r COUNT n",
    "XREVRANGE X r r",
    "XREVRANGE X r r COUNT n",
    "XDEL X i",
    "XDEL X i i i",
    "XTRIM X MAXLEN n",
    "XTRIM X MINID i",
    "XTRIM X MINID ~ i",
    "XTRIM X MAXLEN ~ n",
    "XREAD STREAMS X i",
    "XREAD COUNT n STREAMS X X i i",
    "XGROUP CREATE X g i",
    "XGROUP CREATE X g $ MKSTREAM",
    "XGROUP CREATE X g 0 MKSTREAM",
    "XGROUP SETID X g i",
    "XGROUP DESTROY X g",
    "XGROUP CREATECONSUMER X g c",
    "XGROUP DELCONSUMER X g c",
    "XREADGROUP GROUP g c STREAMS X >",
    "XREADGROUP GROUP g c COUNT 1 STREAMS X >",
    "XREADGROUP GROUP g c COUNT 2 STREAMS X X > >",
    "XREADGROUP GROUP g c NOACK STREAMS X >",
    "XREADGROUP GROUP g c STREAMS X i",
    "XREADGROUP GROUP g c COUNT 1 STREAMS X 0",
    "XACK X g i",
    "XACK X g i i i",
    "XPENDING X g",
    "XPENDING X g r r 10",
    "XPENDING X g r r 2 c",
    "XPENDING X g IDLE 900000 r r 2 c",
    "XCLAIM X g c 0 i",
    "XCLAIM X g c 0 i i JUSTID",
    "XCLAIM X g c 0 i FORCE",
    "XCLAIM X g c 900000 i",
    "XCLAIM X g c 0 i RETRYCOUNT n LASTID i",
    "XAUTOCLAIM X g c 0 i",
    "XAUTOCLAIM X g c 0 r COUNT 1",
    "XAUTOCLAIM X g c 0 i JUSTID",
    "XINFO STREAM X",
    "XINFO GROUPS X",
    "XINFO CONSUMERS X g",
    "DBSIZE",
];

/// What has no order among what is asked for.
fn is_unordered(command: &str) -> bool {
    ["SMEMBERS"].iter().any(|name| command.starts_with(name))
}

fn id(rng: &mut StdRng) -> String {
    if rng.random_bool(0.1) {
        format!("{}-{}", rng.random_range(0..12), rng.random_range(0..3))
    } else {
        rng.random_range(0..12).to_string()
    }
}

fn drawn(word: &str, rng: &mut StdRng) -> String {
    let of_kind = |rng: &mut StdRng, kind: &str| {
        let kind = if rng.random_bool(0.04) { *["s", "h", "e", "z", "x"].choose(rng).unwrap() } else { kind };
        format!("{kind}{}", rng.random_range(0..2))
    };
    match word {
        "K" => {
            let kind = ["s", "h", "e", "z", "x"][rng.random_range(0..5)];
            of_kind(rng, kind)
        }
        "S" | "H" | "E" | "Z" | "X" => of_kind(rng, &word.to_lowercase()),
        "m" => ["a", "b", "c", "d"].choose(rng).unwrap().to_string(),
        "v" => ["1", "v", "long ".repeat(12).trim().replace(' ', "-").as_str(), "07", "-3", "''"]
            .choose(rng)
            .unwrap()
            .to_string(),
        "n" => {
            if rng.random_bool(0.05) {
                "1.5".into()
            } else {
                rng.random_range(-2..6).to_string()
            }
        }
        "i" => id(rng),
        "r" => match rng.random_range(0..6) {
            0 => "-".into(),
            1 => "+".into(),
            2 => format!("({}", id(rng)),
            _ => id(rng),
        },
        "s" => match rng.random_range(0..6) {
            0 => "-inf".into(),
            1 => "+inf".into(),
            2 => format!("({}", rng.random_range(-2..6)),
            _ => rng.random_range(-2..6).to_string(),
        },
        "g" => ["g", "h"].choose(rng).unwrap().to_string(),
        "c" => ["one", "two"].choose(rng).unwrap().to_string(),
        other => other.to_owned(),
    }
}

fn unordered(reply: &mut Reply) {
    sorted(reply);
}

/// Plays one course. Answers the first difference, with the commands before.
async fn play(pair: &mut Pair, seed: u64, commands: usize) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut before: Vec<String> = Vec::new();
    pair.ask(&words("FLUSHALL"));
    for at in 0..commands {
        if at % 64 == 0 {
            pair.set_clock();
        }
        let command = COMMANDS.choose(&mut rng).unwrap();
        let line: Vec<String> = command
            .split(' ')
            .enumerate()
            .map(|(at, word)| if at == 0 { word.into() } else { drawn(word, &mut rng) })
            .collect();
        let line = line.join(" ");
        let told = pair.same(&words(&line), if is_unordered(command) { unordered } else { timeless });
        before.push(line);
        if let Err(difference) = told {
            let from = before.len().saturating_sub(60);
            return Err(format!("seed {seed}: {difference}\nbefore:\n{}", before[from..].join("\n")));
        }
    }
    Ok(())
}

#[tokio::test]
async fn commands_at_random_are_answered_the_same() {
    let mut pair = Pair::new().await;
    let mut differences = Vec::new();
    for seed in 0..60 {
        differences.extend(play(&mut pair, seed, 600).await.err());
    }
    assert!(differences.is_empty(), "{} courses differ, the first:\n{}", differences.len(), differences[0]);
}

#[tokio::test]
async fn long_streams_are_trimmed_by_the_same_nodes() {
    let mut pair = Pair::new().await;
    let mut rng = StdRng::seed_from_u64(7);
    for at in 1..2_000 {
        let length = if rng.random_bool(0.3) { rng.random_range(0..300) } else { rng.random_range(0..20) };
        let value = match rng.random_range(0..3) {
            0 => rng.random_range(-1_i64..1 << 40).to_string(),
            1 => "x".repeat(length),
            _ => "7".repeat(length % 12),
        };
        let value = if value.is_empty() { "''".to_owned() } else { value };
        let field = if rng.random_bool(0.1) { "other" } else { "f" };
        let line = match rng.random_range(0..40) {
            0 => format!("XTRIM x MAXLEN ~ {}", rng.random_range(0..400)),
            1 => format!("XTRIM x MINID ~ {}", at - rng.random_range(0..at.min(300))),
            2 => format!("XDEL x {} {}", at - rng.random_range(0..at.min(100)), at - rng.random_range(0..at.min(100))),
            3 => format!("XTRIM x MAXLEN {}", rng.random_range(50..400)),
            4 => format!("XTRIM x MAXLEN ~ 0 LIMIT {}", rng.random_range(0..300)),
            _ => format!("XADD x {at} {field} {value} g 1"),
        };
        pair.same(&words(&line), timeless).unwrap();
        pair.same(&words("XINFO STREAM x"), timeless).map_err(|why| format!("after {line}: {why}")).unwrap();
    }
}

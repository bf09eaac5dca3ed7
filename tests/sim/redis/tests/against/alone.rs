//! What only the simulated server has: its clock, snapshots, starting anew, coverage.

use tickfleet_sim_redis::{Answer, Redis, Reply};

use super::pair::words;

const SECOND_US: i64 = 1_000_000;

fn ask(redis: &mut Redis, line: &str) -> Reply {
    match redis.execute(&words(line)) {
        Answer::Now(reply) => reply,
        Answer::Block { until_us } => panic!("{line} waits until {until_us:?}"),
    }
}

fn eval(redis: &mut Redis, script: &str) -> Reply {
    match redis.execute(&["EVAL", script, "0"].map(|word| word.as_bytes().to_vec())) {
        Answer::Now(reply) => reply,
        Answer::Block { .. } => panic!("a script waits"),
    }
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(text.as_bytes().to_vec())
}

#[test]
fn keys_end_by_the_clock_that_is_set_and_live_longer_when_it_steps_back() {
    let mut redis = Redis::new(1);
    redis.set_time_us(100 * SECOND_US);
    ask(&mut redis, "SET k v PX 5000");
    ask(&mut redis, "SET l v PX 50000");
    redis.set_time_us(90 * SECOND_US);
    assert_eq!(ask(&mut redis, "PTTL k"), Reply::Int(15_000));
    redis.set_time_us(105 * SECOND_US - 1);
    assert_eq!(ask(&mut redis, "EXISTS k"), Reply::Int(1));
    redis.set_time_us(105 * SECOND_US);
    let before = redis.changes();
    assert_eq!(ask(&mut redis, "DBSIZE"), Reply::Int(1));
    assert_eq!(redis.changes(), before + 1);
    redis.set_time_us(90 * SECOND_US);
    assert_eq!(ask(&mut redis, "GET k"), Reply::Nil, "what is gone stays gone");
}

#[test]
fn entries_are_numbered_by_the_clock_and_never_step_back() {
    let mut redis = Redis::new(1);
    redis.set_time_us(5_000);
    assert_eq!(ask(&mut redis, "XADD x * a 1"), bulk("5-0"));
    assert_eq!(ask(&mut redis, "XADD x * a 1"), bulk("5-1"));
    redis.set_time_us(2_000);
    assert_eq!(ask(&mut redis, "XADD x * a 1"), bulk("5-2"));
    redis.set_time_us(7_001);
    assert_eq!(eval(&mut redis, "return redis.call('XADD', 'x', '*', 'a', 1)"), bulk("7-0"));
    assert_eq!(eval(&mut redis, "return redis.call('TIME')[2]"), bulk("7001"));
}

#[test]
fn a_server_that_starts_anew_has_its_snapshot_another_id_and_no_script() {
    let run_id = |redis: &mut Redis| match ask(redis, "INFO server") {
        Reply::Bulk(info) => String::from_utf8(info).unwrap().split("run_id:").nth(1).unwrap()[..40].to_owned(),
        other => panic!("{other:?}"),
    };
    let mut redis = Redis::new(1);
    ask(&mut redis, "HSET h a 1");
    let (snapshot, before) = (redis.snapshot(), run_id(&mut redis));
    ask(&mut redis, "HSET h a 2 b 3");
    ask(&mut redis, "SET k v");
    eval(&mut redis, "return 1");
    let digest = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    assert_eq!(ask(&mut redis, &format!("EVALSHA {digest} 0")), Reply::Int(1));
    redis.restart(snapshot.clone(), 2);
    assert_eq!(ask(&mut redis, "HGETALL h"), Reply::Array(vec![bulk("a"), bulk("1")]));
    assert_eq!(redis.keys().collect::<Vec<_>>(), [b"h"]);
    assert!(
        matches!(ask(&mut redis, &format!("EVALSHA {digest} 0")), Reply::Error(why) if why.starts_with("NOSCRIPT"))
    );
    assert_ne!(run_id(&mut redis), before);
    assert_eq!(run_id(&mut redis), run_id(&mut Redis::new(2)), "the seed makes it");
    ask(&mut redis, "DEL h");
    redis.restart(snapshot, 3);
    assert_eq!(ask(&mut redis, "HLEN h"), Reply::Int(1), "a snapshot may serve again");
}

#[test]
fn memory_is_given_back_with_what_took_it() {
    let mut redis = Redis::new(1);
    let before = redis.used_memory();
    let lines = [
        "SET s v PX 100000",
        "APPEND s more",
        "HSET h a 1 b 2",
        "HSET h a long",
        "HDEL h b",
        "SADD e a b",
        "ZADD z 1 a 2 b",
        "ZREM z a",
        "XADD x 1-1 a 1",
        "XADD x 2-1 a 1",
        "XGROUP CREATE x g 0",
        "XREADGROUP GROUP g c STREAMS x >",
        "XDEL x 1-1",
    ];
    for line in lines {
        ask(&mut redis, line);
    }
    assert!(redis.used_memory() > before + 500);
    ask(&mut redis, "DEL s h e z x");
    assert_eq!(redis.used_memory(), before);
    redis.set_maxmemory(redis.used_memory());
    ask(&mut redis, "SET s v");
    assert!(matches!(ask(&mut redis, "SET t v"), Reply::Error(why) if why.starts_with("OOM ")));
}

#[test]
fn a_blocked_read_is_asked_again_until_there_is_something() {
    let mut redis = Redis::new(1);
    redis.set_time_us(SECOND_US);
    ask(&mut redis, "XGROUP CREATE x g $ MKSTREAM");
    let (by_group, plain) = (words("XREADGROUP GROUP g c BLOCK 1500 STREAMS x >"), words("XREAD BLOCK 0 STREAMS x $"));
    assert_eq!(redis.execute(&by_group), Answer::Block { until_us: Some(SECOND_US * 5 / 2) });
    assert_eq!(redis.execute(&plain), Answer::Block { until_us: None });
    let plain = redis.settled(&plain);
    assert_eq!(plain.last().unwrap(), b"0-0");
    ask(&mut redis, "XADD x 3-0 a 1");
    let entry = Reply::Array(vec![bulk("3-0"), Reply::Array(vec![bulk("a"), bulk("1")])]);
    let found = Answer::Now(Reply::Array(vec![Reply::Array(vec![bulk("x"), Reply::Array(vec![entry])])]));
    assert_eq!(redis.retry(&plain), found);
    assert_eq!(redis.retry(&by_group), found);
    assert!(matches!(redis.retry(&by_group), Answer::Block { .. }));
    ask(&mut redis, "DEL x");
    assert!(matches!(redis.retry(&by_group), Answer::Now(Reply::Error(why)) if why.starts_with("UNBLOCKED ")));
}

#[test]
fn lines_that_ran_are_told_while_that_is_on() {
    let script =
        "#!lua\nlocal function f(x)\n  return x\nend\nif redis.call('EXISTS', 'k') == 1 then\n  f(1)\nend\nreturn 1";
    let mut redis = Redis::new(1);
    redis.cover(true);
    eval(&mut redis, script);
    let of = |redis: &Redis| redis.coverage().scripts.into_values().find(|of| of.text == script).unwrap();
    let first = of(&redis);
    assert_eq!(first.lines.iter().copied().collect::<Vec<_>>(), [3, 4, 5, 6, 8]);
    assert_eq!(first.ran.iter().copied().collect::<Vec<_>>(), [4, 5, 8]);
    ask(&mut redis, "SET k v");
    eval(&mut redis, script);
    let second = of(&redis);
    assert_eq!(second.ran.iter().copied().collect::<Vec<_>>(), [3, 4, 5, 6, 8]);
    redis.cover(false);
    ask(&mut redis, "DEL k");
    eval(&mut redis, "return 2");
    assert!(redis.coverage().scripts.values().any(|of| of.text == "return 2" && of.ran.is_empty()));
}

/// The ways that the conditions of a script went, given how it was called: a line's number, and for each condition `>`
/// where it went on, `v` where it went past, both where it did both.
fn ways(script: &str, keys: &[&str]) -> Vec<(usize, String)> {
    let mut redis = Redis::new(1);
    redis.cover(true);
    for key in keys {
        redis.execute(&["EVAL", script, "1", key].map(|word| word.as_bytes().to_vec()));
    }
    let mut ways: Vec<(usize, String)> = Vec::new();
    for branch in &redis.coverage().scripts.into_values().find(|of| of.text == script).unwrap().branches {
        if ways.last().is_none_or(|(line, _)| *line != branch.line) {
            ways.push((branch.line, String::new()));
        }
        let way = ["-", ">", "v", "x"][usize::from(branch.went_on) + 2 * usize::from(branch.went_past)];
        ways.last_mut().unwrap().1.push_str(way);
    }
    ways
}

#[test]
fn the_ways_of_conditions_are_told() {
    let one_line = "if KEYS[1] == 'a' then return 1 else return 2 end";
    assert_eq!(ways(one_line, &["a"]), [(1, ">".into())]);
    assert_eq!(ways(one_line, &["b"]), [(1, "v".into())]);
    assert_eq!(ways(one_line, &["a", "b"]), [(1, "x".into())]);
    let operands = "local k = KEYS[1]
if k == 'a' or k ~= 'b' and #k > 1 then return k end";
    assert_eq!(ways(operands, &["a"]), [(2, "v--".into())]);
    assert_eq!(ways(operands, &["b"]), [(2, ">v-".into())]);
    assert_eq!(ways(operands, &["cc"]), [(2, ">>>".into())]);
    // A constant has but one way.
    let choice = "local k = KEYS[1]\nlocal n = k == 'a' and 1 or 2\nreturn n";
    assert_eq!(ways(choice, &["a", "b"]), [(2, "x".into())]);
    let loops = "local n = #KEYS[1]
for i = 1, n do n = i end
for _ in pairs(KEYS) do n = n + 1 end
                 while n > 2 do
 n = n - 1 end
repeat n = n + 1 until n > 3
return n > 3 and 1 or nil";
    assert_eq!(ways(loops, &[""]), [(2, "v"), (3, "x"), (4, "v"), (6, "x"), (7, ">")].map(|(l, w)| (l, w.into())));
}

#[test]
fn errors_name_the_same_line_while_lines_are_told() {
    let scripts = [
        "

local x = nil
return x.y",
        "
error('here')",
        "

return redis.call('NOSUCH')",
    ];
    for script in scripts {
        let (mut plain, mut covered) = (Redis::new(1), Redis::new(1));
        covered.cover(true);
        assert_eq!(eval(&mut covered, script), eval(&mut plain, script));
        covered.cover(false);
        assert_eq!(eval(&mut covered, script), eval(&mut plain, script));
    }
}

#[test]
fn a_scan_finds_what_is_there_all_the_while() {
    let mut redis = Redis::new(1);
    for n in 0..300 {
        ask(&mut redis, &format!("SET k{n} v"));
    }
    let (mut cursor, mut found, mut steps) = ("0".to_owned(), std::collections::BTreeSet::new(), 0);
    loop {
        let Reply::Array(answer) = ask(&mut redis, &format!("SCAN {cursor} COUNT 7")) else { panic!("no scan") };
        let [Reply::Bulk(next), Reply::Array(names)] = answer.as_slice() else { panic!("no scan") };
        found.extend(names.iter().map(|name| format!("{name:?}")));
        ask(&mut redis, &format!("DEL gone{steps}"));
        ask(&mut redis, &format!("SET new{steps} v"));
        cursor = String::from_utf8(next.clone()).unwrap();
        steps += 1;
        if cursor == "0" {
            break;
        }
    }
    let old = (0..300).map(|n| format!("{:?}", bulk(&format!("k{n}"))));
    assert!(old.into_iter().all(|name| found.contains(&name)));
    assert!(steps > 40);
}

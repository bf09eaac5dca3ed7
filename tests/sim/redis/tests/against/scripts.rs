//! Scripts: what they see, what they return, how they fail, and what full memory refuses.

use super::pair::{Pair, timeless};

/// Scripts with their keys (before `--`) and arguments.
const SCRIPTS: &[&str] = &[
    "return 1",
    "return 3.99",
    "return -3.99",
    "return 'x'",
    "return true",
    "return false",
    "return nil",
    "return {1, 2, nil, 4}",
    "return {1, 'a', {2, {}}, true, false, 'end'}",
    "return {ok = 'FINE'}",
    "return {err = 'MINE bad'}",
    "return {err = 'bad'}",
    "return redis.error_reply('MINE bad')",
    "return redis.error_reply('-MINE bad')",
    "return redis.error_reply('bad')",
    "return redis.status_reply('FINE')",
    "return {KEYS[1], ARGV[1], #KEYS, #ARGV}",
    "return redis.sha1hex('abc')",
    "return redis.call('SET', 'k', 1)",
    "return redis.call('GET', 'k')",
    "return redis.call('GET', 'none')",
    "return redis.call('HMGET', 'none', 'a', 'b')",
    "return type(redis.call('GET', 'none')) .. type(redis.call('SET', 'k', 2)) .. redis.call('SET', 'k', 2).ok",
    "return redis.call('HSET', 'k', 1, 2)",
    "return redis.pcall('HSET', 'k', 1, 2)",
    "return redis.pcall('HSET', 'k', 1, 2).err",
    "return redis.call('NOSUCH', 'k')",
    "return redis.pcall('NOSUCH', 'k')",
    "return redis.call('GET')",
    "return redis.call()",
    "return redis.call('SET', 'k', {})",
    "return redis.pcall('SET', 'k', true)",
    "redis.call('EVAL', 'return 1', 0)",
    "redis.call('CONFIG', 'GET', 'x')",
    "redis.call('XREAD', 'BLOCK', 1, 'STREAMS', 's', '0')",
    "\n\nerror('plain')",
    "error('plain', 0)",
    "error({err = 'MINE table'})",
    "error({err = 'MINE table', more = 1})",
    "error()",
    "\nlocal x = nil\nreturn x.y",
    "local function f() return nosuch end\nreturn f()",
    "nosuch = 1",
    "function nosuch() end",
    "return redis.call('SET', 'f', 1.5) and redis.call('GET', 'f')",
    "local t = {} for _, n in ipairs({0.1, 1e15, 1e17, 123456789012345678, -0.5, 1/0, -1/0, 2^53, 1e-7}) do\n\
     redis.call('SET', 'f', n) t[#t + 1] = redis.call('GET', 'f') end return t",
    "return {tostring(0.1), tostring(1e15), tostring(1e14), 1e14 .. '', 2^53 .. '', tonumber('0x10'), tostring(-0)}",
    "local ok, problem = pcall(redis.call, 'HSET', 'k', 1, 2) return {tostring(ok), problem.err, type(problem)}",
    "local ok, problem = pcall(function() error('x') end) return {tostring(ok), problem}",
    "local ok, problem = pcall(function() local a = nil; return a.b end) return {tostring(ok), problem}",
    "local ok, problem = pcall(function() error({err = 'E x'}) end)\nerror(problem)",
    "local ok, problem = pcall(redis.call, 'HSET', 'k', 1, 2)\nerror(problem)",
    "local call = redis.call\nlocal function f()\n  return call('HSET', 'k', 1, 2)\nend\nreturn f()",
    "local call = redis.call\nlocal function f()\n  local r = call('HSET', 'k', 1, 2)\n return r\nend\nlocal r = f() return r",
    "return {struct.pack('<ddd', 1, 2.5, -3), struct.unpack('<dd', struct.pack('<dd', 7, 8.25))}",
    "return {struct.pack('>I2i4bBhHlLs', 513, -2, -1, 255, -3, 65535, -4, 5, 'text')}",
    "return {struct.unpack('>I2i4bBhHlLs', struct.pack('>I2i4bBhHlLs', 513, -2, -1, 255, -3, 65535, -4, 5, 'text'))}",
    "return {struct.pack('!8bd', 1, 2), struct.size('!8bd'), struct.size('<i3f'), struct.pack('c3xc0', 'abcdef', 'zz')}",
    "return struct.unpack('<d', 'short')",
    "return struct.pack('y', 1)",
    "return {string.format('%d %s %.3f %5.1f %q', 3, 'a', 1.5, 2, 'q'), string.rep('x', 3), ('abc'):upper()}",
    "return {math.floor(-1.5), math.max(1, 2), math.huge, -math.huge, 0/0}",
    "return {math.random(), tostring(math.random(10)), math.random(5, 6)}",
    "return {table.concat({1, 2, 3}, ','), #{1, 2, nil, 4}, unpack({1, 2, 3}, 2, 3), select('#', 1, nil, nil)}",
    "return {type(os), type(io)}",
    "return type(debug)",
    "return {type(string), type(table), type(math), type(struct), type(redis), type(loadstring), type(unpack)}",
    "return cjson.encode({{'a', 'b/\\n\\1\\127\"'}, 1.5, 1e20, true, {}, {x = 0.1}, 123456789012345678})",
    "return print('x')",
    "return redis.call('SADD', 's1', 1, 2) + redis.call('SCARD', 's1')",
    "return redis.call('ZADD', 'z', 1.5, 'a', '(2', 'b')",
    "redis.call('ZADD', 'z', 1.5, 'a') return {redis.call('ZSCORE', 'z', 'a'), redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')}",
    "redis.call('XADD', 'st', '1-1', 'a', 1) return redis.call('XRANGE', 'st', '-', '+')",
    "redis.call('XGROUP', 'CREATE', 'st', 'g', '0') return {redis.call('XINFO', 'GROUPS', 'st'), redis.call('XPENDING', 'st', 'g')}",
    "return redis.call('XINFO', 'GROUPS', 'missing')",
    "return redis.call('XPENDING', 'st', 'nog')",
    "return redis.pcall('XPENDING', 'st', 'nog').err",
    "syntax error here",
    "return 1 +",
    "#!lua\nreturn 1",
    "#!lua flags=no-writes\nreturn redis.call('SET', 'k', 1)",
    "#!lua flags=no-writes\nreturn redis.call('GET', 'k')",
    "#!lua flags=no-writes,allow-oom\n\nreturn nosuch",
    "#!lua flags=bad\nreturn 1",
    "#!lua bad\nreturn 1",
    "#!python\nreturn 1",
    "#!lua",
    "#!lua flags=allow-oom\nerror('third')",
    "return #redis.call('TIME')",
    "local t = {} for i = 1, 5000 do t[i] = i end return #redis.call('MGET', unpack(t))",
    "local t = {} for i = 1, 3500 do t[i] = i .. 'x' end redis.call('SADD', 'many', unpack(t))\n\
     for i = 1, 3500 do t[i] = i .. 'y' end redis.call('SADD', 'many', unpack(t))\n\
     for i = 1, 3500 do t[i] = i .. 'z' end redis.call('SADD', 'many', unpack(t))\n\
     return {#redis.call('SMEMBERS', 'many'), #redis.call('SMEMBERS', 'many')}",
    "local t = {} for i = 1, 3 do t[i] = i end return #t, 5",
    "return {redis.call('PING'), redis.call('ECHO', 'x'), redis.call('TYPE', 'k'), redis.call('EXISTS', 'k')}",
    "return coroutine.wrap(function() return redis.call('GET', 'k') end)()",
    "redis.log(redis.LOG_WARNING, 'x') redis.setresp(2) return redis.REPL_ALL",
    "return {double = 3.5}",
    "return {1, {err = 'MINE x'}, {ok = 'y'}}",
    "return tostring(redis.call('GET', 'none') == false)",
    "return string.match('ab:cd:ef', '^([^:]+):(.+)$')",
    "return {string.find('a.b', '.', 1, true), string.gsub('hello', 'l', 'L')}",
    "return 9223372036854775807",
    "return 1e300",
    "return -1e300",
    "return redis.error_reply(5)",
    "return redis.error_reply('a', 'b')",
    "local a <const> = 1",
    "return _VERSION",
    "KEYS[1] = 'other' return KEYS[1]",
];

fn eval(script: &str) -> Vec<Vec<u8>> {
    ["EVAL", script, "1", "key", "arg"].map(|word| word.as_bytes().to_vec()).into()
}

fn line(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

#[tokio::test]
async fn scripts_see_return_and_fail_the_same() {
    let mut pair = Pair::new().await;
    let mut differences = Vec::new();
    for script in SCRIPTS {
        pair.set_clock();
        differences.extend(pair.same(&eval(script), timeless).err());
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[tokio::test]
async fn scripts_are_loaded_and_forgotten_the_same() {
    let mut pair = Pair::new().await;
    let source = b"return ARGV[1]".to_vec();
    let digest = "098e0f0d1448c0a81dafe820f66d460eb09263da";
    let load = [b"SCRIPT".to_vec(), b"LOAD".to_vec(), source];
    for round in 0..2 {
        pair.same(&line(&format!("EVALSHA {digest} 0 x")), timeless).unwrap();
        pair.same(&load, timeless).unwrap();
        pair.same(&line(&format!("SCRIPT EXISTS {digest} {}", digest.to_uppercase())), timeless).unwrap();
        pair.same(&line(&format!("EVALSHA {} 0 x", digest.to_uppercase())), timeless).unwrap();
        pair.same(&line(&format!("EVALSHA {digest} 1 x")), timeless).unwrap();
        pair.same(&line(&format!("EVALSHA {digest} {} x", round + 2)), timeless).unwrap();
        pair.same(&line(&format!("EVALSHA {digest} -1 x")), timeless).unwrap();
        pair.same(&line(&format!("EVALSHA {digest} a x")), timeless).unwrap();
        pair.same(&line("SCRIPT FLUSH"), timeless).unwrap();
    }
}

/// What is asked for while memory is full.
const ASKED: &[&str] = &[
    "SET k w",
    "GET k",
    "DEL none",
    "APPEND k x",
    "INCR i",
    "HSET h b 1",
    "HDEL h b",
    "HINCRBY h n 1",
    "ZADD z 2 a",
    "ZREM z none",
    "SADD s b",
    "SREM s b",
    "XADD x 2 a 1",
    "XDEL x 9",
    "XTRIM x MAXLEN 9",
    "XGROUP CREATE x h 0",
    "XGROUP DESTROY x none",
    "XGROUP CREATECONSUMER x g c",
    "XREADGROUP GROUP g c STREAMS x >",
    "XACK x g 9",
    "XCLAIM x g c 0 1",
    "XAUTOCLAIM x g c 0 0",
    "PEXPIRE k 100000",
    "EXPIRE k 100",
    "PERSIST k",
    "SCRIPT EXISTS a",
    "TYPE k",
    "EXISTS k",
    "XREAD STREAMS x 0",
    "SETRANGE k 0 x",
];

#[tokio::test]
async fn full_memory_refuses_the_same() {
    let mut pair = Pair::new().await;
    let before = ["SET k v", "HSET h a 1", "XADD x 1 a 1", "XGROUP CREATE x g 0", "ZADD z 1 a", "SADD s a"];
    let scripts = [
        "return 1",
        "return redis.call('SET', 'k', 1)",
        "return redis.pcall('SET', 'k', 1)",
        "redis.call('DEL', 'none') return redis.call('SET', 'k', 1)",
        "#!lua\nreturn 1",
        "#!lua flags=no-writes\nreturn redis.call('GET', 'k')",
        "#!lua flags=allow-oom\nreturn redis.call('SET', 'k', 1)",
        "#!lua flags=allow-oom\nreturn redis.call('XGROUP', 'CREATE', 'y', 'g', '0', 'MKSTREAM')",
        "return redis.call('XGROUP', 'CREATE', 'y2', 'g', '0', 'MKSTREAM')",
    ];
    let known = "#!lua\nreturn 2";
    pair.ask(&[b"SCRIPT".to_vec(), b"LOAD".to_vec(), known.into()]);
    for command in before {
        pair.same(&line(command), timeless).unwrap();
    }
    pair.same(&line("CONFIG SET maxmemory 1"), timeless).unwrap();
    let mut differences = Vec::new();
    for command in ASKED {
        differences.extend(pair.same(&line(command), timeless).err());
    }
    for script in scripts.iter().chain([&known]) {
        differences.extend(pair.same(&eval(script), timeless).err());
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

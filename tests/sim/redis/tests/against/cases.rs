//! The edges of each command, picked by hand.

use super::pair::{Pair, sorted, timeless, words};
use tickfleet_sim_redis::Reply;

const STRINGS: &str = "
    GET s | SET s v | GET s | get s | SET s w NX | SET t w NX | SET u w XX | SET s x XX GET | SET s y NX GET
    SET s v EX 0 | SET s v PX -1 | SET s v EX x | SET s v PX | SET s v NX XX | SET s v EX 10 PX 10 | SET s v KEEPTTL EX 1
    SET s v EX 10 KEEPTTL | SET s | SET s v PX 100000 | SET s w KEEPTTL | SET s v PXAT 1 | EXISTS s | SET s v BAD
    APPEND s abc | APPEND n abc | GETRANGE s 0 0 | GETRANGE s -2 -1 | GETRANGE s 1 -1 | GETRANGE s 5 2 | GETRANGE s 0 99
    GETRANGE s -99 1 | GETRANGE s -1 -2 | GETRANGE no 0 -1 | GETRANGE s a 1 | GETRANGE n -3 -99 | STRLEN n | STRLEN no
    SETRANGE n 5 x | GET n | SETRANGE n -1 x | SETRANGE m 3 '' | EXISTS m | SETRANGE n 0 '' | MGET s n no
    INCR i | INCR i | SET i 007 | INCR i | SET i 9223372036854775807 | INCR i | INCRBY i -5 | INCRBY i x | DECR i
    HSET h a 1 | GET h | INCR h | APPEND h x | STRLEN h | SET h str | GET h | TYPE h | DEL h s no | DEL
    EXISTS i i no | TYPE no | TYPE i | UNLINK i | FOO bar baz | DBSIZE | TYPE | PING | PING a | PING a b | ECHO x
    SELECT 0 | SELECT x | GETRANGE n -99 -99 | GETRANGE n 0 -99 | SET i -0 | INCR i | SET i '' | INCR i
";

const EXPIRY: &str = "
    PTTL k | TTL k | PEXPIRE k 10 | SET k v | PTTL k | TTL k | PEXPIRE k 100000 NX | PEXPIRE k 200000 NX | TTL k
    PEXPIRE k 50000 GT | PEXPIRE k 300000 GT | TTL k | PEXPIRE k 400000 LT | PEXPIRE k 200000 LT | TTL k | EXPIRE k 500 XX
    TTL k | PERSIST k | PERSIST k | TTL k | PEXPIRE k 100 XX | PEXPIRE k 100000 GT | PEXPIRE k 100000 LT | TTL k
    PEXPIRE k 1 BAD | PEXPIRE k x | PEXPIRE k 1 NX XX | PEXPIRE k 1 GT LT | EXPIRE k 9223372036854775807
    PEXPIRE k 9223372036854775807 | PEXPIRE k 0 | EXISTS k | SET k v | EXPIRE k -1 | GET k | SET k v | PEXPIREAT k 1
    EXISTS k | SET k v EX 100 | APPEND k x | TTL k | SET k v | TTL k | HSET h a 1 | EXPIRE h 100 | HDEL h a | HSET h a 1 | TTL h
    PERSIST no | SET k v PX 100000 | INCR k | TTL k
";

const HASHES: &str = "
    HSET h a 1 b 2 | HSET h a 3 c 4 | HSET h a | HGET h a | HGET h no | HGET no a | HMGET h a no b | HMGET no a b | HMGET h
    HGETALL h | HGETALL no | HLEN h | HLEN no | HEXISTS h a | HEXISTS h no | HKEYS h | HVALS h | HDEL h a a no | HDEL no a
    HGETALL h | HSET h a 9 | HGETALL h | HINCRBY h n 5 | HINCRBY h n -7 | HINCRBY h n x | HSET h t text | HINCRBY h t 1
    HSET h m 9223372036854775807 | HINCRBY h m 1 | HSETNX h a 1 | HSETNX h z 1 | HSCAN h 0 | HSCAN h 0 COUNT 1 | HSCAN no 0
    HSCAN h 0 MATCH n* | HSCAN h x | HSCAN h 0 COUNT 0 | HSCAN h 0 BAD 1 | HSCAN h 0 COUNT x | SET s v | HSET s a 1 | HGET s a
    HGETALL s | HDEL s a | HSCAN s 0 | HINCRBY s a 1 | HDEL h a b c n t m z | EXISTS h | HSET h a | HGET h | HSET h '' '' | HGETALL h
    HINCRBY h '' 1 | HSCAN h 0 TYPE string
";

const SETS: &str = "
    SADD s 3 1 2 2 | SMEMBERS s | SCARD s | SISMEMBER s 1 | SISMEMBER s 9 | SREM s 1 9 | SMEMBERS s | SSCAN s 0 | SADD s 10
    SMEMBERS s | SCARD no | SMEMBERS no | SREM no a | SREM s 2 3 10 | EXISTS s | SADD s -5 5 0 | SMEMBERS s | SSCAN s 0 COUNT 1
    SET k v | SADD k a | SREM k a | SMEMBERS k | SCARD k | SISMEMBER k a | SSCAN k 0 | SSCAN no 0 | SADD s
";

const SORTED_SETS: &str = "
    ZADD z 1 a 2 b | ZADD z 1 a 3 c | ZADD z CH 2 a 3 c | ZADD z NX 9 a 4 d | ZADD z XX 9 e 5 a | ZADD z GT 1 a | ZADD z LT 1 a
    ZADD z GT CH 7 a 0 b | ZADD z NX XX 1 a | ZADD z GT LT 1 a | ZADD z NX GT 1 a | ZADD z INCR 1 a | ZADD z INCR 1 a 2 b
    ZADD z XX INCR 1 no | ZADD z NX INCR 1 a | ZADD z x a | ZADD z nan a | ZADD z inf i | ZADD z INCR -inf i | ZSCORE z i
    ZADD z 0.1 f 1e20 g 1e-7 h -0 n | ZRANGE z 0 -1 WITHSCORES | ZSCORE z f | ZSCORE z no | ZSCORE no a | ZCARD z | ZCARD no
    ZRANK z a | ZRANK z no | ZRANK no a | ZREM z f g no | ZREM no a | ZRANGE z 0 1 | ZRANGE z -2 -1 | ZRANGE z 5 1 | ZRANGE z 0 99
    ZRANGE z x 1 | ZRANGE z 0 -1 REV | ZRANGE z 0 10 BYSCORE | ZRANGE z (3 10 BYSCORE WITHSCORES | ZRANGE z 10 (3 BYSCORE REV
    ZRANGE z -inf +inf BYSCORE LIMIT 1 2 | ZRANGE z -inf +inf BYSCORE LIMIT 1 -1 | ZRANGE z -inf +inf BYSCORE LIMIT -1 2
    ZRANGE z 0 1 LIMIT 0 1 | ZRANGE z a b BYSCORE | ZRANGE z 0 1 BAD | ZRANGEBYSCORE z 1 5 | ZRANGEBYSCORE z (1 (5 WITHSCORES
    ZRANGEBYSCORE z -inf inf LIMIT 0 2 | ZRANGEBYSCORE z 5 1 | ZRANGEBYSCORE z 1 5 REV | ZRANGEBYSCORE no 1 2 | ZCOUNT z (1 +inf
    ZREVRANGE z 0 1 | ZREVRANGEBYSCORE z 5 1 WITHSCORES | ZREMRANGEBYSCORE z 1 2 | ZREMRANGEBYSCORE z x 2 | ZREMRANGEBYSCORE no 1 2
    ZRANGE z 0 -1 WITHSCORES | ZREMRANGEBYSCORE z -inf +inf | EXISTS z | ZADD z XX 1 a | EXISTS z | ZINCRBY z 2.5 m | ZINCRBY z x m
    ZADD z 1 b 1 a 1 c | ZRANGE z 0 -1 | ZSCAN z 0 | ZSCAN z 0 COUNT 1 | ZSCAN z 0 MATCH a* | ZSCAN no 0 | SET k v | ZADD k 1 a
    ZSCORE k a | ZRANGE k 0 1 | ZRANGEBYSCORE k 1 2 | ZREM k a | ZADD z | ZADD z 1 | ZADD z CH | ZSCAN k 0 | ZREMRANGEBYSCORE k 1 2
    ZADD z 1700000000123 t 1700000000123.5 u | ZRANGE z 0 -1 WITHSCORES | ZADD z +5 p .5 q 5. r | ZRANGE z 0 -1 WITHSCORES
";

const STREAMS: &str = "
    XADD x 1-1 a 1 | XADD x 1-1 a 1 | XADD x 1-0 a 1 | XADD x 0-0 a 1 | XADD x 1 a 1 | XADD x 2 a 1 b 2 | XADD x 2-* a 1
    XADD x 5-* a 1 | XADD x 4-* a 1 | XADD x bad a 1 | XADD x 6 a | XADD x 6 a 1 b | XADD x - a 1 | XADD x + a 1 | XADD x 6-x a 1
    XADD n NOMKSTREAM 1-1 a 1 | EXISTS n | XLEN x | XLEN no | XRANGE x - + | XRANGE x - + COUNT 2 | XRANGE x - + COUNT 0
    XRANGE x - + COUNT -1 | XRANGE x - + COUNT | XRANGE x - + COUNT x | XRANGE x 2 2 | XRANGE x (2 + | XRANGE x (2-0 5
    XRANGE x - (5 | XRANGE x - (5-0 | XRANGE x 5 1 | XRANGE x (- + | XRANGE x bad + | XRANGE no - + | XRANGE x - + BAD 1
    XRANGE x (18446744073709551615-18446744073709551615 + | XRANGE x - (0-0 | XREVRANGE x + - | XREVRANGE x + - COUNT 1
    XREVRANGE x (5 - | XREVRANGE x 2 (1-1 | XRANGE x 1-1 1-1 | XRANGE x ( + | XADD x MAXLEN 2 7-1 a 1 | XLEN x | XINFO STREAM x
    XADD x MAXLEN ~ 1 7-2 a 1 | XLEN x | XADD x MINID 7-2 8 a 1 | XRANGE x - + | XADD x MINID ~ 8 9 a 1 | XLEN x | XADD x MAXLEN = 1 10 a 1
    XADD x MAXLEN -1 11 a 1 | XADD x MAXLEN x 11 a 1 | XADD x MAXLEN 1 MINID 1 11 a 1 | XADD x LIMIT 1 11 a 1 | XADD x MAXLEN 1 LIMIT 1 11 a 1
    XADD x MAXLEN ~ 1 LIMIT -1 11 a 1 | XADD x MAXLEN | XDEL x 10 | XLEN x | EXISTS x | XDEL x 10 | XDEL no 1 | XDEL x bad | XDEL x 1-1 bad
    XINFO STREAM x | XADD x 12 a 1 | XADD x 13 a 1 | XADD x 14 a 1 | XDEL x 13 | XINFO STREAM x | XTRIM x MAXLEN 1 | XTRIM x MAXLEN 0 | XTRIM x MINID 99
    XTRIM x | XTRIM x BAD 1 | XTRIM no MAXLEN 0 | XTRIM x MAXLEN ~ 0 LIMIT 0 | XTRIM x LIMIT 1 | XINFO STREAM x | XINFO STREAM no | XINFO STREAM
    XINFO BAD x | XINFO GROUPS x | XINFO GROUPS no | XINFO GROUPS | XINFO CONSUMERS x | XINFO CONSUMERS x g | SET k v | XADD k 1 a 1 | XLEN k
    XRANGE k - + | XDEL k 1 | XTRIM k MAXLEN 1 | XINFO STREAM k | XINFO GROUPS k | XREAD STREAMS k 0 | XDEL k bad
    XADD big 18446744073709551615-18446744073709551615 a 1 | XADD big * a 1 | XADD big 1 a 1 | XADD m 5-18446744073709551615 a 1 | XADD m 5-* a 1
    XREAD COUNT 2 STREAMS x 0 | XADD x 20 a 1 | XREAD STREAMS x 0 | XREAD STREAMS x $ | XREAD STREAMS x 20 | XREAD COUNT 1 STREAMS x m 0 0
    XREAD STREAMS x | XREAD STREAMS x m 0 | XREAD BAD STREAMS x 0 | XREAD COUNT x STREAMS x 0 | XREAD STREAMS x > | XREAD STREAMS no 0
    XREAD GROUP g c STREAMS x 0 | XREAD NOACK STREAMS x 0 | XREAD COUNT 1 | XREAD BLOCK x STREAMS x 0 | XREAD BLOCK -1 STREAMS x 0 | XREAD BLOCK 1 STREAMS x $
    XREAD BLOCK 1 STREAMS x 0 | XREAD COUNT 0 STREAMS x 0 | XREAD COUNT -1 STREAMS x 0 | XREAD STREAMS x bad | XADD x MAXLEN 0 30 a 1 | XLEN x | XINFO STREAM x
    XADD x 007-+5 a 1 | XADD x 40-007 a 1 | XRANGE x 040 + | XADD x '' a 1
";

const GROUPS: &str = "
    XGROUP CREATE x g 0 | XGROUP CREATE x g 0 MKSTREAM | XGROUP CREATE x g 0 | XGROUP CREATE x h $ | XGROUP CREATE x bad no
    XGROUP | XGROUP CREATE | XGROUP CREATE x | XGROUP BAD x g | XGROUP CREATE x i 0 BAD | XGROUP CREATE x i 0 ENTRIESREAD -2 | XGROUP CREATE x i 0 ENTRIESREAD 3
    XINFO GROUPS x | XADD x 1 a 1 | XADD x 2 a 2 | XADD x 3 a 3 | XADD x 4 a 4 | XINFO GROUPS x | XREADGROUP GROUP g c STREAMS x > | XINFO GROUPS x
    XREADGROUP GROUP g c STREAMS x > | XREADGROUP GROUP g c STREAMS x 0 | XREADGROUP GROUP g c COUNT 1 STREAMS x 1 | XREADGROUP GROUP g d STREAMS x 0
    XINFO CONSUMERS x g | XREADGROUP GROUP h c COUNT 2 STREAMS x > | XINFO GROUPS x | XPENDING x g | XPENDING x h | XPENDING x g - + 10 | XPENDING x g - + 2 c
    XPENDING x g - + 10 no | XPENDING x g (1 3 10 | XPENDING x g 2 (3 10 | XPENDING x g IDLE 0 - + 10 | XPENDING x g IDLE 1000000 - + 10 | XPENDING x g IDLE 0 - +
    XPENDING x no | XPENDING no g | XPENDING x g - + | XPENDING x g - + x | XPENDING x g bad + 1 | XPENDING x g - + 0 | XPENDING x g - + -1 | XPENDING x g 3 1 10
    XACK x g 1 9 | XACK x g 1 | XACK x no 1 | XACK no g 1 | XACK x g bad | XACK x g | XPENDING x g | XDEL x 2 | XREADGROUP GROUP g c STREAMS x 0 | XINFO GROUPS x
    XADD x 5 a 5 | XADD x 6 a 6 | XINFO GROUPS x | XREADGROUP GROUP h c COUNT 1 STREAMS x > | XINFO GROUPS x | XREADGROUP GROUP h c NOACK STREAMS x > | XINFO GROUPS x
    XPENDING x h | XREADGROUP GROUP no c STREAMS x > | XREADGROUP GROUP g c STREAMS no > | XREADGROUP GROUP g c STREAMS x $ | XREADGROUP GROUP g c STREAMS x
    XREADGROUP g c STREAMS x > | XREADGROUP STREAMS x > a b c | XREADGROUP GROUP g c STREAMS x bad | XREADGROUP GROUP g c BLOCK 1 STREAMS x > | XREADGROUP GROUP g c BLOCK 1 STREAMS x >
    XCLAIM x g d 0 3 | XCLAIM x g d 0 2 | XCLAIM x g d 0 3 JUSTID | XPENDING x g - + 10 | XCLAIM x g e 1000000 3 | XCLAIM x g e 0 99 | XCLAIM x g e 0 1 FORCE | XCLAIM x g e 0 3 RETRYCOUNT 7
    XPENDING x g - + 10 | XCLAIM x g e 0 3 IDLE 5000 | XCLAIM x g e 0 3 TIME 5 JUSTID | XCLAIM x g e x 3 | XCLAIM x g e 0 3 BAD | XCLAIM x g e 0 3 IDLE x | XCLAIM x no e 0 3 | XCLAIM no g e 0 3
    XCLAIM x g e 0 3 LASTID 9 | XINFO GROUPS x | XCLAIM x g e 0 bad | XCLAIM x g e 0 | XAUTOCLAIM x g f 0 0 | XAUTOCLAIM x g f 0 0 COUNT 1 | XAUTOCLAIM x g f 0 (3 COUNT 1 JUSTID
    XAUTOCLAIM x g f 1000000 - | XAUTOCLAIM x g f x 0 | XAUTOCLAIM x g f 0 0 COUNT 0 | XAUTOCLAIM x g f 0 0 BAD | XAUTOCLAIM x no f 0 0 | XAUTOCLAIM no g f 0 0 | XAUTOCLAIM x g f 0 bad
    XDEL x 4 | XAUTOCLAIM x g c 0 - | XPENDING x g | XINFO CONSUMERS x g | XGROUP CREATECONSUMER x g new | XGROUP CREATECONSUMER x g new | XGROUP CREATECONSUMER x no new
    XGROUP DELCONSUMER x g c | XGROUP DELCONSUMER x g no | XPENDING x g | XINFO CONSUMERS x g | XGROUP SETID x g 2 | XINFO GROUPS x | XGROUP SETID x g $ | XINFO GROUPS x | XGROUP SETID x g - | XINFO GROUPS x
    XGROUP SETID x no 2 | XGROUP SETID x g 1 ENTRIESREAD 1 | XINFO GROUPS x | XGROUP SETID x g | XGROUP DESTROY x h | XGROUP DESTROY x h | XGROUP DESTROY no h | XGROUP DESTROY x
    XTRIM x MAXLEN 0 | XINFO GROUPS x | XINFO STREAM x | XADD x 20 a 1 | XINFO GROUPS x | XREADGROUP GROUP g c STREAMS x > | XINFO GROUPS x | SET k v | XGROUP CREATE k g 0 | XREADGROUP GROUP g c STREAMS k >
    XPENDING k g | XACK k g 1 | XCLAIM k g c 0 1 | XAUTOCLAIM k g c 0 0 | XGROUP CREATECONSUMER k g c | XGROUP DESTROY k g | XGROUP CREATE k g 0 MKSTREAM | XINFO CONSUMERS k g | XINFO CONSUMERS x no
    XGROUP CREATE s g 0 MKSTREAM ENTRIESREAD 5 | XINFO GROUPS s | XADD s 1 a 1 | XINFO GROUPS s | XADD s 2 a 1 | XDEL s 1 | XINFO GROUPS s | XREADGROUP GROUP g c COUNT 1 STREAMS s > | XINFO GROUPS s | XINFO STREAM s
";

const SERVER: &str = "
    CONFIG GET maxmemory | CONFIG SET maxmemory 100mb | CONFIG GET maxmemory | CONFIG GET maxmemory-policy | CONFIG SET maxmemory x | CONFIG SET maxmemory 0
    SCRIPT | SCRIPT BAD | SCRIPT LOAD | SCRIPT EXISTS | EVAL | EVALSHA a 0 | EVALSHA 0000000000000000000000000000000000000000 0 | SCRIPT EXISTS a b | SCRIPT FLUSH
    CLIENT SETINFO LIB-NAME x | CLIENT SETNAME x | XINFO | MEMORY | MEMORY USAGE no | DBSIZE | FLUSHALL | FLUSHDB | KEYS * | SCAN 0 | SCAN x | SCAN 0 COUNT 0
    SET key:1 a | SET key:2 b | HSET other a 1 | SCAN 0 TYPE hash | SCAN 0 MATCH other COUNT 100 | KEYS key:[1-1] | KEYS key:? | KEYS o*r | KEYS key:[^1] | KEYS \\key:1 | SCAN 0 TYPE bad
";

fn coarse(reply: &mut Reply) {
    sorted(reply);
    timeless(reply);
}

/// Plays lines of commands; answers what differs.
async fn play(cases: &str, mask: fn(&mut Reply)) -> Vec<String> {
    let mut pair = Pair::new().await;
    let mut differences = Vec::new();
    for line in cases.split(['\n', '|']).map(str::trim).filter(|line| !line.is_empty()) {
        pair.set_clock();
        differences.extend(pair.same(&words(line), mask).err());
    }
    differences
}

#[tokio::test]
async fn the_edges_of_each_command_are_the_same() {
    let mut differences = Vec::new();
    for cases in [STRINGS, EXPIRY, HASHES, SETS, SORTED_SETS, STREAMS, GROUPS] {
        differences.extend(play(cases, timeless).await);
    }
    differences.extend(play(SERVER, coarse).await);
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

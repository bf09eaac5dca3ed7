//! A check for leaked keys at the end of tests. Every key must have a TTL, or match an exception that states a reason.

use redis::aio::ConnectionLike;

const SCAN_COUNT: usize = 1_000;

/// An exception is a pattern (`*` any characters, `?` one character), with the reason why such keys have no TTL.
pub async fn assert_no_leaked_keys(connection: &mut impl ConnectionLike, exceptions: &[(&str, &str)]) {
    for (pattern, reason) in exceptions {
        assert!(!reason.trim().is_empty(), "the exception {pattern:?} needs a reason");
    }
    let leaked = match leaked_keys(connection, exceptions).await {
        Ok(leaked) => leaked,
        Err(error) => panic!("cannot look for leaked keys: {error}"),
    };
    assert!(
        leaked.is_empty(),
        "{} keys without a TTL are on no exception list:\n  {}",
        leaked.len(),
        leaked.join("\n  ")
    );
}

pub async fn leaked_keys(
    connection: &mut impl ConnectionLike,
    exceptions: &[(&str, &str)],
) -> redis::RedisResult<Vec<String>> {
    let mut leaked = Vec::new();
    let mut cursor: u64 = 0;
    loop {
        let (next, keys): (u64, Vec<String>) =
            redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(SCAN_COUNT).query_async(connection).await?;
        leaked.extend(without_ttl(connection, keys).await?);
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    leaked.retain(|key| !exceptions.iter().any(|(pattern, _)| matches(pattern.as_bytes(), key.as_bytes())));
    leaked.sort();
    // Remove duplicates, because SCAN may return a key twice.
    leaked.dedup();
    Ok(leaked)
}

async fn without_ttl(connection: &mut impl ConnectionLike, keys: Vec<String>) -> redis::RedisResult<Vec<String>> {
    if keys.is_empty() {
        return Ok(keys);
    }
    let mut pipe = redis::pipe();
    for key in &keys {
        pipe.cmd("PTTL").arg(key);
    }
    let ttls: Vec<i64> = pipe.query_async(connection).await?;
    // -1: no TTL. -2: the key has expired since the scan.
    Ok(keys.into_iter().zip(ttls).filter(|(_, ttl)| *ttl == -1).map(|(key, _)| key).collect())
}

/// At a mismatch, the search continues from the last `*`.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut p = 0;
    let mut t = 0;
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((star_p, star_t)) => {
                    star = Some((star_p, star_t + 1));
                    p = star_p + 1;
                    t = star_t + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use redis::AsyncCommands;

    use super::*;
    use crate::RedisServer;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("tf:*:turns", "tf:{0}:turns", true),
            ("tf:*:turns", "tf:{0}:turns:x", false),
            ("*", "", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*ab*ab", "xabyabzab", true),
            ("*ab*ab", "xabyzb", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[tokio::test]
    async fn only_keys_without_ttl_or_exception_are_leaks() {
        let server = RedisServer::start().await;
        let mut connection = server.connection().await;
        let () = connection.set("leaked", 1).await.unwrap();
        let () = connection.set("tf:{0}:epoch", 1).await.unwrap();
        let () = connection.set_ex("ends", 1, 100).await.unwrap();
        for n in 0..2_500 {
            let () = connection.set_ex(format!("many:{n}"), 1, 100).await.unwrap();
        }
        let exceptions = [("tf:*:epoch", "one per shard, for ever")];
        assert_eq!(leaked_keys(&mut connection, &exceptions).await.unwrap(), ["leaked"]);

        let () = connection.del("leaked").await.unwrap();
        assert_no_leaked_keys(&mut connection, &exceptions).await;
    }

    #[tokio::test]
    #[should_panic(expected = "leaked")]
    async fn a_leak_fails_the_test_and_names_the_key() {
        let server = RedisServer::start().await;
        let mut connection = server.connection().await;
        let () = connection.set("leaked", 1).await.unwrap();
        assert_no_leaked_keys(&mut connection, &[]).await;
    }
}

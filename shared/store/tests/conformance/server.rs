//! A real server with a wall clock that the game sets, so that times and entry IDs can be compared exactly.

use redis::aio::MultiplexedConnection;
use tickfleet_testkit::{Clocks, RedisOptions, RedisServer, file_of, stop_clock};

pub struct Server {
    redis: RedisServer,
    connection: MultiplexedConnection,
    _clocks: Clocks,
}

impl Server {
    pub async fn start(now_ms: i64) -> Self {
        let clocks = Clocks::new().await.expect("cc, which builds the stopped clock");
        // With one entry per node, approximate trimming is exact.
        let options = RedisOptions::with(&["--stream-node-max-entries", "1"]);
        let redis = RedisServer::start_with(RedisOptions { program: Some(clocks.server()), ..options }).await;
        let connection = redis.connection().await;
        let mut server = Self { redis, connection, _clocks: clocks };
        server.set_clock(now_ms).await;
        server
    }

    pub fn url(&self) -> String {
        self.redis.url()
    }

    pub fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Waits until the server reports the new time, because Valkey reads the clock only once a millisecond.
    pub async fn set_clock(&mut self, now_ms: i64) {
        stop_clock(&file_of(&self.redis), now_ms);
        loop {
            let time = redis::cmd("TIME");
            let (seconds, micros): (i64, i64) = time.query_async(&mut self.connection).await.unwrap();
            if seconds * 1_000 + micros / 1_000 == now_ms {
                return;
            }
        }
    }

    /// The server keeps its data.
    pub async fn restart(&mut self) {
        let () = redis::cmd("SAVE").query_async(&mut self.connection).await.unwrap();
        self.redis.kill9();
        self.redis.restart().await;
        self.connection = self.redis.connection().await;
    }
}

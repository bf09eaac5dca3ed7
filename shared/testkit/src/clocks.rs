//! Wall clocks of real processes, which a test can move while the process runs.

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use tickfleet_ops::redis_server::find_binary;

use crate::{RedisOptions, RedisServer};

/// libfaketime cannot be used, because Redis' allocator reads the time before libfaketime is initialized.
const SOURCE: &str = include_str!("clocks.c");
/// Environment variable with the path of a process's clock file.
const VARIABLE: &str = "TICKFLEET_TEST_CLOCK";
const FILE: &str = "clock";

/// The clocks initially show the machine's time. Monotonic time is unaffected.
#[derive(Debug)]
pub struct Clocks {
    dir: TempDir,
    server: PathBuf,
}

impl Clocks {
    /// `None` if `cc` is missing, the system does not support preloading, or Redis is linked statically.
    pub async fn new() -> Option<Self> {
        match Self::build().await {
            Ok(clocks) => Some(clocks),
            Err(why) => {
                eprintln!("clocks are left as they are: {why}");
                None
            }
        }
    }

    async fn build() -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().expect("a temporary folder for clocks");
        let source = dir.path().join("clocks.c");
        let server = dir.path().join("redis-server");
        let clocks = Self { dir, server };
        std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let built =
            Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(clocks.library()).arg(&source).output();
        let built = built.map_err(|error| format!("cc: {error}"))?;
        if !built.status.success() {
            return Err(format!("cc: {}", String::from_utf8_lossy(&built.stderr)));
        }
        clocks.write_server().map_err(|error| error.to_string())?;
        clocks
            .holds()
            .await
            .then_some(clocks)
            .ok_or_else(|| "this Redis sees the machine's clock all the same".to_owned())
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("clocks.so")
    }

    /// Writes a script that sets the clock, and then replaces its shell with Redis.
    fn write_server(&self) -> std::io::Result<()> {
        let program = find_binary().expect("a Redis server");
        let text = format!(
            "#!/bin/sh\nLD_PRELOAD='{}' {VARIABLE}={FILE} exec '{}' \"$@\"\n",
            self.library().display(),
            program.display()
        );
        std::fs::write(&self.server, text)?;
        std::fs::set_permissions(&self.server, std::fs::Permissions::from_mode(0o700))
    }

    async fn holds(&self) -> bool {
        let options = RedisOptions { program: Some(self.server()), ..RedisOptions::default() };
        let Ok(server) = RedisServer::try_start_with(options).await else { return false };
        let before = time_ms(&server).await;
        move_clock(&file_of(&server), -3_600_500);
        let after = time_ms(&server).await;
        // Time passes between the two reads.
        (before - 3_600_500..before).contains(&after)
    }

    /// For [`RedisOptions::program`]: Redis with its own clock. [`file_of`] returns the file that moves this clock.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.server.clone()
    }

    /// Gives another program its own clock. `file` moves this clock.
    #[must_use]
    pub fn variables(&self, file: &Path) -> [(&'static str, String); 2] {
        [("LD_PRELOAD", self.library().display().to_string()), (VARIABLE, file.display().to_string())]
    }
}

#[must_use]
pub fn file_of(server: &RedisServer) -> PathBuf {
    server.dir().join(FILE)
}

/// `ahead_ms` is relative to the machine's clock. The process must have been started.
pub fn move_clock(file: &Path, ahead_ms: i64) {
    write_clock(file, ahead_ms, 0);
}

/// The clock stands still at this time since 1970. The process must have been started.
pub fn stop_clock(file: &Path, at_ms: i64) {
    write_clock(file, at_ms, 8);
}

fn write_clock(file: &Path, ms: i64, offset: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(file).expect("the file of a clock");
    file.write_all_at(&ms.to_ne_bytes(), offset).expect("move a clock");
}

async fn time_ms(server: &RedisServer) -> i64 {
    let (seconds, micros): (i64, i64) =
        redis::cmd("TIME").query_async(&mut server.connection().await).await.expect("the time of Redis");
    seconds * 1_000 + micros / 1_000
}

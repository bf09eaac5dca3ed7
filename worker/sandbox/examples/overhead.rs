//! Measures the cost of confinement per call. Runs `/bin/true` without a sandbox and then at each level:
//! ```sh
//! cargo build --release -p tickfleet-sandbox --example overhead --bin tickfleet-sandbox-exec
//! target/release/examples/overhead
//! ```
#![allow(clippy::print_stdout, reason = "it prints what it measured")]

use std::error::Error;
use std::time::Duration;

use tickfleet_sandbox::{Launcher, Level, Sandbox, Spec};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const RUNS: usize = 300;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let built = program.ancestors().nth(2).ok_or("no folder of built programs")?;
    let launcher = Launcher::program(built.join("tickfleet-sandbox-exec"));
    let folder = tempfile::tempdir()?;
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(folder.path(), Some(1_000_000), Some(1_000_000))?;
    }
    let sandbox = Sandbox::probe(launcher, None, folder.path()).await;
    println!("{}", sandbox.support());
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let began = Instant::now();
        tokio::process::Command::new("/bin/true").output().await?;
        times.push(began.elapsed());
    }
    report("bare", times);
    for level in [Level::Basic, Level::Strict] {
        if sandbox.support().check(level, &Default::default()).is_err() {
            continue;
        }
        let mut times = Vec::new();
        for _ in 0..RUNS {
            let began = Instant::now();
            let spec = Spec::new(["/bin/true"], folder.path());
            sandbox.run(level, spec, &CancellationToken::new()).await?;
            times.push(began.elapsed());
        }
        report(&level.to_string(), times);
    }
    Ok(())
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)].as_secs_f64() * 1_000.0;
    println!("{what:8} p50 {:5.1} ms   p99 {:5.1} ms", at(50), at(99));
}

//! The container image. `image/check.py` builds and runs it.

use std::process::Command;

use super::chart::runs;

#[test]
fn the_image_runs_the_binary_as_pid_1_unprivileged_on_a_read_only_root() {
    let id = Command::new("id").arg("-u").output().unwrap();
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        eprintln!("not root: the image is not checked here; run image/check.py as root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let listing = folder.path().join("sbom.json");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../image/check.py");
    let binary = env!("CARGO_BIN_EXE_tickfleet");
    let output = Command::new("python3").args([script, binary]).arg(&listing).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    eprint!("{}", text(&output.stdout));
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert!(text(&output.stdout).contains("worker: ready, PID 1"), "{}", text(&output.stdout));
    runs("check_image.py", &[listing.to_str().unwrap()]);
}

//! Tests docs/example-tools/README.md, and that the tools reject invalid requests.

use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copied = Command::new("cp").args(["-r", "conf", "data"]).arg(folder.path()).current_dir(ROOT).status();
    assert!(copied.unwrap().success());
    folder
}

fn shell(folder: &Path, line: &str) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_example-tools")).parent().unwrap();
    #[allow(clippy::disallowed_methods, reason = "the reader's PATH, with the program in front")]
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let said = Command::new("sh").args(["-c", line]).current_dir(folder).env("PATH", path).output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

fn tried(folder: &Path, tenant: &str, agent: &str, tool: &str, arguments: &str) -> String {
    let line =
        format!("example-tools tools try {tool} --config conf --tenant {tenant} --agent {agent} --json '{arguments}'");
    shell(folder, &line)
}

#[test]
fn the_page_shows_what_its_commands_print() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let folder = folder();
    let mut played = 0;
    for block in page.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for step in block.split("$ ").skip(1) {
            let (command, shown) = step.split_once('\n').unwrap();
            let masked = |text: &str| {
                let is_digest = |word: &str| word.len() == 12 && word.bytes().all(|b| b.is_ascii_hexdigit());
                let words = text.split_whitespace().map(|word| match is_digest(word) {
                    true => "#".to_owned(),
                    false => word.replace(|c: char| c.is_ascii_digit(), "#"),
                });
                // Durations vary in their number of digits.
                words
                    .map(|word| if word.ends_with("ms") || word.starts_with('#') { "#".into() } else { word })
                    .collect::<Vec<String>>()
            };
            let printed = shell(folder.path(), command);
            assert_eq!(masked(&printed), masked(shown), "{command}\n{printed}");
            played += 1;
        }
    }
    assert!(played >= 9, "{played}");
}

#[test]
fn nothing_is_written_outside_the_workspace() {
    let folder = folder();
    let work = folder.path().join("data/example/workspace");
    let outside = folder.path().join("outside");
    std::fs::create_dir_all(&work).unwrap();
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, work.join("link")).unwrap();
    std::fs::write(outside.join("target"), "as it was").unwrap();
    std::os::unix::fs::symlink(outside.join("target"), work.join("file-link")).unwrap();
    for path in
        ["../x", "a/../../x", "/etc/x", "link/x", ".ssh/x", "a//x", "a/./x", "a\\\\..\\\\x", "1/2/3/4/5/6/7/8/9"]
    {
        let said =
            tried(folder.path(), "example", "writer", "write_file", &format!(r#"{{"path":"{path}","content":"x"}}"#));
        assert!(!said.contains(r#""outcome": "ok""#), "{path}: {said}");
    }
    // If the name of the file is a link, the tool replaces the link and leaves its target unchanged.
    let said = tried(folder.path(), "example", "writer", "write_file", r#"{"path":"file-link","content":"new"}"#);
    assert!(said.contains(r#""outcome": "ok""#), "{said}");
    assert_eq!(std::fs::read_to_string(outside.join("target")).unwrap(), "as it was");
    assert_eq!(std::fs::read_to_string(work.join("file-link")).unwrap(), "new");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn a_tenant_reads_only_its_own_projects_and_no_large_or_linked_files() {
    let folder = folder();
    let read = |tenant, tool, project: &str| {
        tried(folder.path(), tenant, "guidance", tool, &format!(r#"{{"project_id":"{project}"}}"#))
    };
    assert!(read("example", "get_problem_spec", "atlas-site").contains("research boards"));
    assert!(!read("other", "get_problem_spec", "atlas-site").contains("research boards"));
    assert!(!read("other", "get_problem_spec", "../example/projects/atlas-site").contains("research boards"));
    let project = folder.path().join("data/example/projects/atlas-site");
    std::fs::write(project.join("world_model.json"), format!("\"{}\"", "x".repeat(300_000))).unwrap();
    assert!(read("example", "get_world_model", "atlas-site").contains("more than 262144 bytes"));
    std::fs::remove_file(project.join("problem_spec.json")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", project.join("problem_spec.json")).unwrap();
    assert!(read("example", "get_problem_spec", "atlas-site").contains("is not what it has to be"));
    std::fs::write(project.join("workflow_state.json"), "{").unwrap();
    assert!(read("example", "get_workflow_state", "atlas-site").contains("does not contain JSON"));
}

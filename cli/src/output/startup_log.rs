//! Decides whether problems before the start of the log are reported as JSON log lines.

use std::path::PathBuf;

use tickfleet_config::Environment;

const WITH_VALUE: [&str; 2] = ["--config", "--redis-url"];

/// The arguments are not parsed yet, and may be invalid.
pub(crate) fn logs_json(args: &[String], environment: &Environment) -> bool {
    starts_a_process(args) && tickfleet_config::wants_json_log(folder(args, environment).as_deref(), environment)
}

fn starts_a_process(args: &[String]) -> bool {
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let mut values = 0;
    let command = args.iter().find(|arg| {
        let is_value = std::mem::replace(&mut values, usize::from(WITH_VALUE.contains(&arg.as_str()))) > 0;
        !is_value && !arg.starts_with('-')
    });
    match command.map_or("", String::as_str) {
        "scheduler" | "worker" | "dev" => true,
        "gateway" => !has("key") && !has("openapi"),
        "audit" => has("--follow"),
        "approvals" => has("notify"),
        "mcp" => has("serve"),
        _ => false,
    }
}

fn folder(args: &[String], environment: &Environment) -> Option<PathBuf> {
    let joined = args.iter().find_map(|arg| arg.strip_prefix("--config="));
    let option = joined.or_else(|| args.iter().skip_while(|arg| *arg != "--config").nth(1).map(String::as_str));
    option.or_else(|| environment.get("TICKFLEET_CONFIG").map(String::as_str)).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(String::from).collect()
    }

    #[test]
    fn long_running_commands_are_recognized() {
        for process in [
            "scheduler",
            "--config dev worker --no-such-option",
            "--redis-url submit dev",
            "gateway --keys k.yaml",
            "audit export --follow --to stdout",
            "approvals notify --to x",
            "mcp serve --agent kelly",
        ] {
            assert!(starts_a_process(&words(process)), "{process}");
        }
        for other in ["submit --tenant scheduler", "gateway key", "audit export", "approvals", "mcp check", "schedular"]
        {
            assert!(!starts_a_process(&words(other)), "{other}");
        }
    }

    #[test]
    fn the_log_format_is_read_even_from_a_broken_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().to_str().unwrap();
        let none = Environment::new();
        let json: Environment = [("TICKFLEET_LOG_FORMAT".to_owned(), "json".to_owned())].into();
        let here = format!("worker --config {conf}");
        let joined = format!("--config={conf} worker");
        let asks = |line: &str, environment: &Environment| logs_json(&words(line), environment);
        assert!(asks("worker", &json) && !asks("worker", &none) && !asks("submit", &json));
        for (settings, expected) in [
            ("log: {format: json}", true),
            ("log:\n  format: json\nredis: 5\nnonsense: [\"\n", true),
            ("log: {format: json, level: 5}\nwoker: {}", true),
            ("log: {format: pretty}", false),
            ("redis: {shards: 2}", false),
        ] {
            std::fs::write(dir.path().join("tickfleet.yaml"), settings).unwrap();
            assert_eq!((asks(&here, &none), asks(&joined, &none)), (expected, expected), "{settings}");
            let by_variable: Environment = [("TICKFLEET_CONFIG".to_owned(), conf.to_owned())].into();
            assert_eq!(asks("worker", &by_variable), expected, "{settings}");
        }
        let pretty: Environment = [("TICKFLEET_LOG_FORMAT".to_owned(), "pretty".to_owned())].into();
        std::fs::write(dir.path().join("tickfleet.yaml"), "log: {format: json}").unwrap();
        assert!(!asks(&here, &pretty), "a variable comes first");
    }
}

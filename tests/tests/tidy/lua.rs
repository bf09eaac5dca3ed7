//! Scripts: the header is the contract, and some commands are never the answer.

/// Parts of the project's scripts that others include: they are no scripts by themselves.
const INCLUDED: &str = "/script/fragments/";

/// What no script does, and why.
const BANNED: [(&str, &str); 4] = [
    ("XCLAIM", "a claimed entry's old owner still acknowledges it"),
    ("XAUTOCLAIM", "a claimed entry's old owner still acknowledges it"),
    ("cjson", "scripts parse no JSON: what they need is passed in"),
    ("'KEYS'", "it looks at every key of the server"),
];

/// A script begins with its shebang and a comment that gives purpose, keys, arguments and replies.
pub fn contract(path: &str, text: &str) -> Vec<String> {
    let included = path.contains(INCLUDED);
    let mut lines = text.lines().peekable();
    let mut complaints = Vec::new();
    if !included && lines.next_if(|line| line.starts_with("#!lua")).is_none() {
        complaints.push(format!("{path}: the first line is no `#!lua …`, so Redis would not check its slots"));
    }
    let header: Vec<&str> = lines.take_while(|line| line.starts_with("--")).collect();
    let purpose = header.first().map_or("", |line| line.trim_start_matches('-').trim());
    if purpose.len() < 10 {
        complaints.push(format!("{path}: no comment at the top says what it is for"));
    }
    let header = header.join("\n").to_lowercase();
    let parts: &[&str] = if included { &[] } else { &["keys", "argv", "repl"] };
    for part in parts.iter().filter(|part| !header.contains(**part)) {
        complaints.push(format!("{path}: the comment at the top says nothing about `{part}`"));
    }
    complaints
}

/// Commands that no script may use.
pub fn banned(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("--").next().unwrap_or_default();
        for (word, why) in BANNED {
            if code.to_lowercase().contains(&word.to_lowercase()) {
                complaints.push(format!("{path}:{}: {word}: {why}", number + 1));
            }
        }
    }
    complaints
}

#[test]
fn a_script_without_contract_is_found() {
    assert_eq!(contract("shared/store/src/verbs/turns/x.lua", "return 1").len(), 5);
    let good = "#!lua\n-- Ends a slice, once.\n-- KEYS[1] record\n-- ARGV[1] entry\n-- Replies: OK, STALE\nreturn 1";
    assert_eq!(contract("shared/store/src/verbs/turns/x.lua", good), Vec::<String>::new());
    assert!(contract("shared/store/src/script/fragments/x.lua", "-- Time of the shard.\nlocal x").is_empty());
}

#[test]
fn banned_commands_are_found_but_not_in_comments() {
    assert_eq!(banned("x.lua", "redis.call('xclaim', k) -- not XAUTOCLAIM").len(), 1);
    assert!(banned("x.lua", "local k = KEYS[1] -- cjson is banned").is_empty());
}

//! Forms of calls other than plain JSON, of certain model families and agent frameworks. A form announces a call in
//! JSON, or is itself a call. A form of the second kind is not read, because its meaning also depends on the tool's
//! definition.

use tickfleet_model::limits;

use super::super::json::prefix;

const TAG_BYTES_MAX: usize = 200;
/// From a tool's name to the start of its arguments.
const LINES_BETWEEN_MAX: usize = 4;
const LINES_MAX: usize = 10_000;

/// In lower case without punctuation.
const CALLS: [&str; 8] =
    ["toolcall", "functioncall", "tooluse", "toolcode", "usetool", "calltool", "toolinvocation", "usemcptool"];
/// Tags of calls that this module does not read: their content is not JSON in the fleet's format.
const FOREIGN: [&str; 6] = ["invoke", "toolname", "toolinput", "toolarguments", "usemcptool", "recipient"];
/// These tags end a call or report a result.
const NO_CALLS: [&str; 5] = ["result", "response", "output", "error", "end"];

const NAME_LABELS: [&str; 11] = [
    "action",
    "tool",
    "function",
    "toolcall",
    "functioncall",
    "toolname",
    "functionname",
    "calltool",
    "callfunction",
    "usetool",
    "nextaction",
];
const INPUT_LABELS: [&str; 12] = [
    "actioninput",
    "arguments",
    "args",
    "parameters",
    "params",
    "input",
    "inputs",
    "toolinput",
    "toolarguments",
    "toolargs",
    "functionarguments",
    "functioninput",
];
/// With these values, no tool is called.
const NO_TOOLS: [&str; 6] = ["none", "null", "na", "no", "finalanswer", "finish"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CallForm {
    pub(super) at: usize,
    /// Bytes before the JSON; `None` if the line is itself the call.
    pub(super) announces: Option<usize>,
}

pub(super) struct CallTag {
    pub(super) bytes: usize,
    pub(super) is_foreign: bool,
}

pub(super) fn tag(text: &str) -> Option<CallTag> {
    let inside = prefix(text.strip_prefix('<')?, TAG_BYTES_MAX);
    let (tag, _) = inside.split_once('>')?;
    let name = tag.split(|c: char| c.is_whitespace() || c == '=').next().unwrap_or_default();
    if name.trim_start_matches(['|', '｜']).starts_with('/') {
        return None;
    }
    let has_more = name.len() < tag.trim_end().len();
    let name = folded(name);
    if NO_CALLS.iter().any(|word| name.ends_with(word)) {
        return None;
    }
    let is_foreign = FOREIGN.contains(&name.as_str());
    let is_call = is_foreign || CALLS.iter().any(|word| name.contains(word));
    is_call.then_some(CallTag { bytes: 1 + tag.len() + 1, is_foreign: is_foreign || has_more })
}

/// The length of the fence line in bytes; 0 if the fence begins no call.
pub(super) fn fence(text: &str) -> usize {
    let line = text.lines().next().unwrap_or_default();
    let info = line.strip_prefix("```").map(folded).unwrap_or_default();
    let is_call = CALLS.iter().any(|word| info.starts_with(word));
    if is_call { line.len() } else { 0 }
}

pub(super) fn find(answer: &str) -> Vec<CallForm> {
    let mut forms = Vec::new();
    let lines: Vec<(usize, &str)> = lines(answer).take(LINES_MAX).collect();
    for (number, (start, line)) in lines.iter().enumerate() {
        let text = line.trim_start();
        let at = start + (line.len() - text.len());
        let behind = || lines.iter().skip(number + 1).map(|(_, line)| line.trim()).filter(|line| !line.is_empty());
        let fence = fence(text);
        if fence > 0 {
            forms.push(CallForm { at, announces: Some(fence) });
            continue;
        }
        let python = || is_python(text) && has_keywords(text) && text.trim_end().ends_with(']');
        if names_a_tool(text, behind) || is_functionary(text, behind) || is_expression_of_functions(text) || python() {
            forms.push(CallForm { at, announces: None });
        }
    }
    if let Some(at) = lone_expression(answer)
        && !forms.iter().any(|form| form.at <= at)
    {
        forms.insert(0, CallForm { at, announces: None });
    }
    forms
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_inclusive('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len();
        Some((start, line))
    })
}

/// True for two lines such as `Action: add`, `Action Input: {…}`. `behind` returns the lines after `line`.
fn names_a_tool<'a, Lines: Iterator<Item = &'a str>>(line: &str, behind: impl Fn() -> Lines) -> bool {
    let Some((label, value)) = labelled(line).filter(|(label, _)| NAME_LABELS.contains(&label.as_str())) else {
        return false;
    };
    let name: String = value.chars().take_while(|c| is_name_char(*c)).collect();
    if name.is_empty() || name.len() > limits::NAME_BYTES_MAX || NO_TOOLS.contains(&folded(&name).as_str()) {
        return false;
    }
    match value.get(name.len()..).unwrap_or_default().trim() {
        "" | "()" => behind()
            .take(LINES_BETWEEN_MAX)
            .any(|line| labelled(line).is_some_and(|(label, _)| INPUT_LABELS.contains(&label.as_str()))),
        // `Action: search[Oslo]`
        input => {
            let has_ends =
                [('(', ')'), ('[', ']'), ('{', '}')].iter().any(|(a, z)| input.starts_with(*a) && input.ends_with(*z));
            has_ends && !matches!(label.as_str(), "tool" | "function")
        }
    }
}

/// The label is in lower case without punctuation and Markdown.
fn labelled(line: &str) -> Option<(String, &str)> {
    let marks = ['*', '#', '>', '-', '_', '`', '"', '\'', ' ', '\t'];
    let (label, value) = line.trim_start_matches(marks).split_once(':')?;
    if label.len() > limits::NAME_BYTES_MAX {
        return None;
    }
    let label = folded(label).trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    Some((label, value.trim_matches(|c: char| c.is_whitespace() || marks.contains(&c))))
}

/// True for a line `>>>name` before a line of JSON.
fn is_functionary<'a, Lines: Iterator<Item = &'a str>>(line: &str, behind: impl Fn() -> Lines) -> bool {
    let Some(name) = line.strip_prefix(">>>").map(str::trim_end) else { return false };
    !name.is_empty()
        && name != "all"
        && name.chars().all(is_name_char)
        && behind().next().is_some_and(|line| line.starts_with('{'))
}

/// True for `functions.name(…)` and `functions.name:0{…}`.
fn is_expression_of_functions(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("functions.") else { return false };
    let name = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')).count();
    name > 0 && rest.get(name..).is_some_and(|after| after.starts_with(['(', ':', '{', '[']))
}

/// The offset of the call if the answer is a single call in Python syntax, otherwise `None`. The call can be in a
/// fence.
fn lone_expression(answer: &str) -> Option<usize> {
    let trimmed = answer.trim();
    let inside = trimmed.strip_prefix("```").and_then(|text| text.strip_suffix("```"));
    let inside = inside.and_then(|text| text.split_once('\n')).map_or(trimmed, |(_, text)| text.trim());
    let inside = inside.strip_prefix("print(").and_then(|text| text.strip_suffix(')')).unwrap_or(inside);
    let name = inside.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')).count();
    let arguments = inside.get(name..)?.strip_prefix('(')?.strip_suffix(')')?.trim_start();
    let is_call = arguments.is_empty() || arguments.starts_with(['"', '\'', '{']) || begins_with_keyword(arguments);
    (name > 0 && is_call).then(|| answer.len() - answer.trim_start().len())
}

/// True for a list of calls in Python syntax: `[add(a=1)]`.
pub(super) fn is_python(text: &str) -> bool {
    let Some(inside) = text.strip_prefix('[') else { return false };
    let name = inside
        .bytes()
        .take(limits::NAME_BYTES_MAX)
        .take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.'));
    let name = name.count();
    name > 0 && inside.as_bytes().get(name) == Some(&b'(')
}

fn has_keywords(text: &str) -> bool {
    text.split_once('(').is_some_and(|(_, arguments)| arguments.starts_with(')') || begins_with_keyword(arguments))
}

fn begins_with_keyword(arguments: &str) -> bool {
    let name = arguments.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let after = arguments.get(name..).unwrap_or_default().trim_start();
    name > 0 && after.starts_with('=') && !after.starts_with("==")
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':')
}

pub(super) fn folded(word: &str) -> String {
    word.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

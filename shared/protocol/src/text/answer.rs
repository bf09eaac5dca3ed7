//! Finds the tool calls in a model's plain-text answer. Nothing after broken JSON counts as a call, because the content
//! of a string can look like a call there.

use std::borrow::Cow;

use super::super::json::{Bounds, Document, JsonError, bounded, check, leading, prefix};
use super::forms::{self, CallForm};
use super::meaning::{self, collect, unreadable};
use tickfleet_model::{Call, limits};

/// The levels of the JSON in an answer: list, call, `function`, members of `function`.
const LEVELS: usize = 4;

const FORM_BYTES_MAX: usize = 60;

/// These bytes after broken JSON show whether the text is a broken call, or prose with braces.
const LOOK_AHEAD_BYTES: usize = 256;

/// Text between these marks contains no calls. The flag is true if the start mark can be in the prompt.
const THOUGHTS: [(&str, &str, bool); 5] = [
    ("<think>", "</think>", true),
    ("[THINK]", "[/THINK]", true),
    ("<|channel|>analysis<|message|>", "<|end|>", false),
    (TO_THE_USER, "<|end|>", false),
    ("<|channel>thought", "<channel|>", true),
];

/// The text for the user follows. It may end without an end mark.
const TO_THE_USER: &str = "<|channel|>final<|message|>";

/// After these marks, JSON follows, or a markup that this module does not read. [`forms::tag`] recognizes further
/// marks.
const MARKS: [&str; 3] = ["[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>"];

/// This module does not read these markups, because they have the tool's name outside the JSON.
const FOREIGN: [&str; 11] = [
    "<|tool_call>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜DSML｜",
    "<function=",
    "<arg_key>",
    "<invoke ",
    "<|open|>tools",
    RECIPIENT,
];

const RECIPIENT: &str = "to=functions.";

const HEADERS: [&str; 2] = ["<|start|>", "<|channel|>"];
const HEADER_ENDS: &str = "<|message|>";

/// At most one call more than a turn may have. An unreadable call is the last one. Its arguments are the broken text,
/// so that the call never runs.
#[must_use]
pub fn calls_in(answer: &str) -> Vec<Call> {
    calls_up_to(answer, limits::CALLS_PER_TURN_MAX + 1)
}

pub(crate) fn calls_up_to(answer: &str, calls_max: usize) -> Vec<Call> {
    let forms = forms::find(answer);
    let at = thought_in_prompt(answer);
    let mut reader = AnswerReader {
        answer,
        at,
        calls: Vec::new(),
        doubt: None,
        marked: None,
        forms,
        next_form: 0,
        open_thought: None,
    };
    // A prompt can end with the start of a message header; the answer then begins in the middle of this header.
    let start = answer.trim_start();
    if start.starts_with(RECIPIENT) {
        reader.give_up(answer.len() - start.len());
    }
    while reader.calls.len() < calls_max && reader.step() {}
    reader.calls
}

/// The offset after a thought that began in the prompt. 0 if no thought began there.
fn thought_in_prompt(answer: &str) -> usize {
    let ends = THOUGHTS.into_iter().filter(|(.., may_be_prompted)| *may_be_prompted).filter_map(|(start, end, _)| {
        let at = answer.find(end)?;
        let is_lone = answer.get(..at).is_some_and(|before| !before.contains(start));
        is_lone.then_some(at + end.len())
    });
    ends.max().unwrap_or(0)
}

struct AnswerReader<'a> {
    answer: &'a str,
    at: usize,
    calls: Vec<Call>,
    /// The offset of broken JSON that does not look like a call. Later text may be inside a string of the broken JSON,
    /// so it does not count as a call.
    doubt: Option<usize>,
    /// The offset of a mark after which JSON must follow.
    marked: Option<usize>,
    forms: Vec<CallForm>,
    /// The first of `forms` at or after the current position.
    next_form: usize,
    open_thought: Option<usize>,
}

impl<'a> AnswerReader<'a> {
    fn rest(&self) -> &'a str {
        self.answer.get(self.at..).unwrap_or_default()
    }

    fn step(&mut self) -> bool {
        let next = |c: char| matches!(c, '{' | '[' | '<') || self.marked.is_some() && !c.is_whitespace();
        let found = self.rest().find(next);
        while self.forms.get(self.next_form).is_some_and(|form| form.at < self.at) {
            self.next_form += 1;
        }
        let form = self.forms.get(self.next_form).copied();
        if let Some(form) = form.filter(|form| found.is_none_or(|found| form.at <= self.at + found)) {
            return self.form(form);
        }
        let Some(found) = found else {
            if let Some(mark) = self.marked {
                self.give_up(mark);
            }
            return false;
        };
        self.at += found;
        let rest = self.rest();
        if self.thought(rest) || self.mark(rest) {
            return self.at < self.answer.len();
        }
        if rest.starts_with(['{', '[']) {
            match leading(rest, limits::JSON_DEPTH_MAX) {
                Ok(end) => self.json(rest.get(..end).unwrap_or_default()),
                Err(error) => self.broken(rest, &error),
            }
        } else if let Some(mark) = self.marked {
            self.give_up(mark);
        } else {
            self.at += 1;
        }
        self.at < self.answer.len()
    }

    /// The line announces a call, or is itself a call that cannot be read. Returns false if no text is left to read.
    fn form(&mut self, form: CallForm) -> bool {
        let Some(bytes) = form.announces else {
            self.give_up(self.marked.unwrap_or(form.at));
            return false;
        };
        self.marked = Some(form.at);
        self.at = form.at + bytes;
        if self.rest().trim().is_empty() {
            self.give_up(form.at);
        }
        self.at < self.answer.len()
    }

    /// Skips a thought, and returns false if `rest` does not begin with one. A thought without an end may contain a
    /// call, so its text is read.
    fn thought(&mut self, rest: &str) -> bool {
        if self.open_thought.is_some() {
            return false;
        }
        for (start, end, may_be_prompted) in THOUGHTS {
            if let Some(inside) = rest.strip_prefix(start) {
                let ends = inside.find(end).map(|at| start.len() + at + end.len());
                if ends.is_none() && start != TO_THE_USER {
                    self.open_thought = Some(self.at);
                    self.at += start.len();
                    return true;
                }
                self.at += ends.unwrap_or(rest.len());
                return true;
            }
            if may_be_prompted && rest.starts_with(end) {
                self.calls.clear();
                (self.doubt, self.marked) = (None, None);
                self.at += end.len();
                return true;
            }
        }
        false
    }

    /// Reads a mark, and returns false if `rest` does not begin with one. Stops at a markup that this module does not
    /// read.
    fn mark(&mut self, rest: &str) -> bool {
        if FOREIGN.iter().any(|mark| rest.starts_with(mark)) || names_a_recipient(rest) {
            self.give_up(self.marked.unwrap_or(self.at));
            return true;
        }
        if forms::tag(rest).is_some_and(|tag| tag.is_foreign) {
            self.give_up(self.marked.unwrap_or(self.at));
            return true;
        }
        let bytes = mark_bytes(rest);
        if bytes == 0 {
            return false;
        }
        self.marked = Some(self.at);
        self.at += bytes;
        // No call follows the mark, so the mark itself is an unreadable call.
        if self.rest().trim().is_empty() {
            self.give_up(self.at - bytes);
        }
        true
    }

    fn json(&mut self, text: &str) {
        let (document, _) = Document::read(text, limits::JSON_DEPTH_MAX, LEVELS);
        let before = self.calls.len();
        if let Some(root) = document.root() {
            collect(root, &mut self.calls);
        }
        if let Some(doubt) = self.open_thought.or(self.doubt).filter(|_| self.calls.len() > before) {
            self.calls.truncate(before);
            return self.give_up(doubt);
        }
        // Drop the calls after an unreadable call: the error message states that none of them ran.
        if let Some(bad) = self.calls.iter().skip(before).position(needs_repair) {
            self.calls.truncate(before + bad + 1);
            self.at = self.answer.len();
            return;
        }
        self.at += text.len();
        if let Some(mark) = self.marked.take().filter(|_| self.calls.len() == before) {
            self.give_up(mark);
        }
    }

    fn broken(&mut self, rest: &str, error: &JsonError) {
        let read = rest.get(..error.byte).unwrap_or(rest);
        // A Python call in brackets counts only at the start of the answer. Later, it is prose.
        let python =
            || forms::is_python(rest) && self.answer.get(..self.at).is_some_and(|before| before.trim().is_empty());
        if self.marked.is_some() || python() || looks_like_a_call(prefix(rest, read.len() + LOOK_AHEAD_BYTES)) {
            return self.give_up(self.marked.unwrap_or(self.at));
        }
        if read.contains(':') {
            self.doubt.get_or_insert(self.at);
        }
        // Continue after the broken part, so that no byte is scanned twice.
        self.at += read.len().max(1);
    }

    fn give_up(&mut self, start: usize) {
        let start = self.open_thought.unwrap_or(start);
        let raw = self.answer.get(start..).unwrap_or_default();
        self.calls.push(unreadable(raw, named(raw)));
        self.at = self.answer.len();
    }
}

/// For example `<|channel|>commentary to=functions.add`.
fn names_a_recipient(rest: &str) -> bool {
    let Some(header) = HEADERS.iter().find_map(|start| rest.strip_prefix(start)) else { return false };
    let header = prefix(header, LOOK_AHEAD_BYTES);
    let Some((header, _)) = header.split_once(HEADER_ENDS) else { return header.contains(RECIPIENT) };
    let recipient = header.split_whitespace().find_map(|word| word.split_once("to=").map(|(_, recipient)| recipient));
    recipient.is_some_and(|recipient| !matches!(recipient, "" | "user" | "assistant" | "all"))
}

/// Only the first key of the object matters. Quotes of any kind can surround the key.
fn looks_like_a_call(text: &str) -> bool {
    let quotes = ['"', '\'', '`', '“', '”', '\\', ' ', '\n', '\r', '\t'];
    let inside = text.strip_prefix('[').unwrap_or(text).trim_start();
    // Some prompt templates show one brace as two, and models copy both.
    let inside = inside.strip_prefix('{').map_or(inside, |inside| inside.strip_prefix('{').unwrap_or(inside));
    let inside = inside.trim_start_matches(quotes);
    let inside = inside.strip_prefix("&quot;").unwrap_or(inside);
    let end = inside.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(inside.len());
    let (key, after) = inside.split_at_checked(end).unwrap_or((inside, ""));
    let after = after.strip_prefix("&quot;").unwrap_or(after).trim_start_matches(quotes);
    (after.is_empty() || after.starts_with(':')) && meaning::starts_call(key, inside)
}

fn unmarked(raw: &str) -> &str {
    raw.get(mark_bytes(raw).max(forms::fence(raw))..).unwrap_or(raw).trim_start()
}

fn mark_bytes(text: &str) -> usize {
    let tag = || forms::tag(text).filter(|tag| !tag.is_foreign).map(|tag| tag.bytes);
    MARKS.iter().find(|mark| text.starts_with(**mark)).map(|mark| mark.len()).or_else(tag).unwrap_or(0)
}

fn named(raw: &str) -> String {
    let (document, _) = Document::read(prefix(unmarked(raw), LOOK_AHEAD_BYTES), limits::JSON_DEPTH_MAX, 1);
    let name = document.root().and_then(meaning::name_of).unwrap_or_default();
    bounded(&name, limits::NAME_BYTES_MAX).into_owned()
}

/// If the model must fix a call, no later call may run. Empty arguments count as the empty object, as in all dialects.
fn needs_repair(call: &Call) -> bool {
    if call.arguments.is_empty() { call.tool.is_empty() } else { problem(call).is_some() }
}

/// At most [`limits::ERROR_BYTES_MAX`] bytes. `None` if the arguments are JSON, even if the tool rejects them.
#[must_use]
pub fn problem(call: &Call) -> Option<String> {
    const BOUNDS: Bounds = Bounds { bytes_max: limits::ARGUMENTS_BYTES_MAX, depth_max: limits::JSON_DEPTH_MAX };
    let raw = call.arguments.as_str();
    let error = check(call.arguments.as_bytes(), BOUNDS).err();
    let whose = match call.tool.as_str() {
        "" => "A call in your answer".to_owned(),
        name => format!("Your call of '{}'", bounded(name, limits::NAME_BYTES_MAX)),
    };
    if error.is_none() && !call.tool.is_empty() {
        return None;
    }
    // Other text after the call's own JSON is not an error.
    let error = leading(unmarked(raw), limits::JSON_DEPTH_MAX).err().or(error.filter(|_| !call.tool.is_empty()));
    let what = match (mark_of(raw), error) {
        (Some(mark), _) => format!("{whose} is in an unsupported form ({mark})."),
        (None, Some(error)) => format!("{whose} cannot be read: {error}."),
        (None, None) if !named(raw).is_empty() => {
            "A call in your answer cannot be read: its arguments must be an object under the key \"arguments\"."
                .to_owned()
        }
        (None, None) => format!("{whose} names no tool: \"tool\" must be a tool's name as a string."),
    };
    let form = r#"{"tool": "<name>", "reason": "<why>", "arguments": {…}}"#;
    let error_text =
        format!("{what} It was not carried out, nor was anything after it. Answer with JSON alone: {form}");
    Some(bounded(&error_text, limits::ERROR_BYTES_MAX - '…'.len_utf8()).into_owned())
}

/// `None` for JSON, and for JSON after a mark that this module reads.
fn mark_of(raw: &str) -> Option<Cow<'_, str>> {
    if let Some((start, ..)) = THOUGHTS.iter().find(|(start, ..)| raw.starts_with(start)) {
        return Some(Cow::Owned(format!("it is inside {start}, which does not end")));
    }
    let known = FOREIGN.iter().chain(&HEADERS).find(|mark| raw.starts_with(**mark)).copied();
    let json = |bytes: usize| raw.get(bytes..).is_some_and(|after| after.trim_start().starts_with(['{', '[']));
    let marked = |bytes: usize| raw.get(..bytes).map(str::trim).filter(|_| bytes > 0 && !json(bytes));
    let foreign = || forms::tag(raw).and_then(|tag| raw.get(..tag.bytes));
    let mark = known.or_else(|| marked(mark_bytes(raw).max(forms::fence(raw)))).or_else(foreign);
    let python = || forms::is_python(raw).then_some("[name(…)]");
    let line = || forms::find(raw).first().is_some_and(|form| form.at == 0).then(|| raw.lines().next()).flatten();
    mark.filter(|mark| !json(mark.len()) || known.is_some())
        .or_else(python)
        .or_else(line)
        .map(|mark| bounded(mark, FORM_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use proptest::prelude::*;

    use super::*;

    fn read(answer: &str) -> Vec<String> {
        let error_text = |call: &Call| match problem(call) {
            None => format!("{} {}", call.tool, call.arguments),
            Some(_) => "unreadable".into(),
        };
        calls_in(answer).iter().map(error_text).collect()
    }

    fn complaint(answer: &str) -> String {
        problem(calls_in(answer).last().expect(answer)).expect(answer)
    }

    #[test]
    fn a_call_is_found_in_every_common_format() {
        for answer in [
            r#"{"tool": "add", "reason": "asked to", "arguments": {"a": 1}}"#,
            r#"Let me see. {"tool":"add","arguments":{"a": 1}} That should do."#,
            "Sure:\n```json\n{\"tool\": \"add\", \"arguments\": {\"a\": 1}}\n```\nDone.",
            r#"{"name": "add", "arguments": {"a": 1}}"#,
            r#"{"name": "add", "parameters": {"a": 1}}"#,
            r#"{"type":"function","function":{"name":"add","arguments":"{\"a\": 1}"}}"#,
            r#"{"function": "add", "parameters": {"a": 1}}"#,
            r#"[{"tool":"add","arguments":{"a": 1}}]"#,
            r#"{"calls":[{"name":"add","arguments":{"a": 1}}]}"#,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
            r#"[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]"#,
            r#"<think>I could {"tool":"rm","arguments":{}}</think>{"tool":"add","arguments":{"a": 1}}"#,
            r#"or {"tool":"rm","arguments":{}}? no.</think>{"tool":"add","arguments":{"a": 1}}"#,
            r#"The set {x} and [1] and {"a": 1} are none. {"tool":"add","arguments":{"a": 1}}"#,
        ] {
            assert_eq!(read(answer), [r#"add {"a": 1}"#], "{answer}");
        }
    }

    #[test]
    fn several_calls_keep_their_order_ids_and_digits() {
        let answer = r#"First {"id":"c1","tool":"a","arguments":{"n":12345678901234567890123.10}}, then
            {"tool":"b","reason":"r"} and {"tool":"c","arguments":"{\"x\":1}"}"#;
        assert_eq!(read(answer), [r#"a {"n":12345678901234567890123.10}"#, "b {}", r#"c {"x":1}"#]);
        assert_eq!(calls_in(answer)[0].provider_id.as_deref(), Some("c1"));
    }

    #[test]
    fn prose_and_unrelated_json_contain_no_call() {
        for answer in [
            "",
            "Paris is the capital of France.",
            r#"{"capital": "Paris", "name": "France"}"#,
            r#"{"tool": null, "reason": "none is needed", "arguments": {}}"#,
            r#"{"name":"add","description":"Adds.","parameters":{"type":"object"}}"#,
            r#"{"parameters": {}}"#,
            "<think>I could call none.",
            "The config is {\"a\": 1, ...} or so.",
            r#"<|channel|>final<|message|>{"name":"rm","arguments":{}}"#,
            "It is in [f(x), 1].",
            "f(x) = {x: 1}, [see](https://example.com) and <b>bold</b>",
        ] {
            assert_eq!(read(answer), [""; 0], "{answer}");
        }
    }

    #[test]
    fn a_broken_call_never_runs_and_ends_the_parse() {
        let rm = r#"{"tool":"rm","arguments":{}}"#;
        for answer in [
            r#"{"tool":"add","arguments":{"a":1}"#.to_owned(),
            r#"{"tool":"add","arguments":{"a":1"#.into(),
            r#"{'tool': 'add', 'arguments': {}}"#.into(),
            format!(r#"{{"tool":"add","arguments":{{"a":1,}}}} {rm}"#),
            format!(r#"{{"tool":"add","arguments":{{"text":"say "{rm}""}}}}"#),
            format!(r#"{{"arguments":{{"text":"say "{rm}""}},"tool":"add"}}"#),
            format!(r#"[{{"tool":"add","arguments":{{}}}}, {{"tool":"add","arguments":{{"a":tru}}}}] {rm}"#),
            format!(r#"The config {{"text": "say "{rm}"}}"#),
            r#"{"tool":"add","arguments":{"a":1,"a":2}}"#.into(),
            r#"{"tool": 5, "arguments": {}}"#.into(),
            r#"{"reason": "because", "arguments": {"a": 1}}"#.into(),
            "<tool_call>".into(),
            "<tool_call>not json</tool_call>".into(),
            "<tool_call>add\n<arg_key>a</arg_key>".into(),
            r#"<|tool_calls_section_begin|>functions.add:0<|x|>{"tool":"rm","arguments":{}}"#.into(),
            r#"<|channel|>commentary to=functions.add<|message|>{"tool":"rm","arguments":{}}"#.into(),
            r#" to=functions.add<|channel|>commentary<|message|>{"tool":"rm","arguments":{}}"#.into(),
            "[add(a=1), rm()]".into(),
        ] {
            assert_eq!(read(&answer), ["unreadable"], "{answer}");
        }
        let second = format!(r#"{rm} {{"tool":"add","arguments":{{"a":1"#);
        assert_eq!(read(&second), ["rm {}", "unreadable"]);
    }

    #[test]
    fn no_call_runs_after_a_complete_but_invalid_call() {
        let good = r#"{"tool":"x","arguments":{}}"#;
        for bad in [r#"{"name":"","arguments":{}}"#, r#"{"tool":1,"arguments":{}}"#, r#"{"tool":"y","arguments":"{a"}"#]
        {
            assert_eq!(read(&format!("[{good},{bad},{good}] {good}")), ["x {}", "unreadable"], "{bad}");
            assert_eq!(read(&format!("{bad}\n{good}")), ["unreadable"], "{bad}");
        }
        let none = r#"{"tool":"y","arguments":""}"#;
        assert_eq!(read(&format!("{none} {good}")).len(), 2, "no text at all is the empty object");
    }

    #[test]
    fn an_error_names_the_call_the_fault_and_the_expected_format() {
        let cut = complaint(r#"{"tool":"write_file","arguments":{"path":"a"#);
        assert!(cut.starts_with("Your call of 'write_file' cannot be read: the text ends where the rest of a string"));
        assert!(cut.ends_with(r#"Answer with JSON alone: {"tool": "<name>", "reason": "<why>", "arguments": {…}}"#));
        assert!(complaint(r#"{"tool":"x","arguments":{"a":1,}}"#).contains("(at arguments, line 1, column 32)"));
        assert!(complaint(r#"x {"tool": 5, "arguments": {}} y"#).contains("names no tool"));
        assert!(complaint("<tool_call>{\"a\":1}</tool_call>").contains("names no tool"));
        assert!(complaint("<function=add>").contains("in an unsupported form (<function=)"));
        assert!(complaint(r#"{"tool":"x","arguments":"{oops"}"#).contains("Your call of 'x' cannot be read"));
        assert!(
            complaint(&format!(r#"{{"tool":"{}","arguments":{{"#, "y".repeat(200))).len() <= limits::ERROR_BYTES_MAX
        );
    }

    #[test]
    fn parsing_stops_one_call_above_the_turn_limit() {
        let answer = r#"{"tool":"a"}"#.repeat(limits::CALLS_PER_TURN_MAX * 3);
        assert_eq!(calls_in(&answer).len(), limits::CALLS_PER_TURN_MAX + 1);
    }

    proptest! {
        #[test]
        fn no_answer_panics_and_every_error_is_bounded(answer in "[\\PC{}\\[\\]\",:<>a-z\n]{0,200}") {
            for call in calls_in(&answer) {
                prop_assert!(problem(&call).is_none_or(|error_text| error_text.len() <= limits::ERROR_BYTES_MAX));
            }
        }

        #[test]
        fn a_call_in_any_text_is_found_and_never_runs_truncated(
            before in "[a-z .,!\n]{0,30}", value in any::<String>(), at in any::<prop::sample::Index>(),
        ) {
            let value = serde_json::to_string(&value).unwrap();
            let arguments = format!(r#"{{"v": {value}}}"#);
            let call = format!(r#"{{"tool": "t", "arguments": {arguments}}}"#);
            prop_assert_eq!(read(&format!("{before}{call} bye")), [format!("t {arguments}")]);
            let cut = format!("{before}{}", prefix(&call, at.index(call.len())));
            prop_assert!(read(&cut).iter().all(|error_text| error_text == "unreadable"), "{}", cut);
        }
    }
}

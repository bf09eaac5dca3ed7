//! Functions that a script rarely needs are made when they are first called: Redis makes every other one anew whenever the
//! script runs, which takes it about a thousand instructions each.
//!
//! Such a function has `-- rarely` behind its head. What it alone uses lies within it, so that it is made no earlier either.
//! What is in its place costs as much as a function, so it is worth it only where several lie within.

use std::ops::Range;

use super::unused::{END, Function, functions, kept};

/// Stands behind the head of such a function.
const MARK: &str = " -- rarely";
/// Stands before what is made late.
pub(crate) const BEGIN: &str = "_made or (function() ";

/// The lines of a script, each with the number (from 0) of the line that it was before: what is made late has moved to where
/// the function is that it is made for.
pub(super) fn made_late(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = text.split('\n').map(str::to_owned).enumerate().collect();
    let heads = lines.iter().filter_map(|(_, line)| Some(name_of(line.strip_suffix(MARK)?)?.to_owned()));
    // The last one first: it may need those before it.
    for name in heads.collect::<Vec<_>>().iter().rev() {
        if let Some(with) = made_late_of(&lines, name) {
            lines = with;
        }
    }
    lines
}

fn name_of(head: &str) -> Option<&str> {
    Some(head.strip_prefix("local function ")?.split_once('(')?.0)
}

/// The lines with one such function; none where it lies within another one already.
fn made_late_of(lines: &[(usize, String)], name: &str) -> Option<Vec<(usize, String)>> {
    let texts: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
    let functions = functions(&texts);
    let root = functions.iter().find(|function| function.name == name)?;
    let before = |mark| texts[..root.lines.start].iter().filter(|line| line.contains(mark)).count();
    if before(BEGIN) > before(END) {
        return None;
    }
    let eager = kept(&texts, &functions, Some(name));
    let is_within = |function: &&Function<'_>| function.lines.end <= root.lines.end && !eager[function.lines.start];
    let within: Vec<Range<usize>> = functions.iter().filter(is_within).map(|function| function.lines.clone()).collect();
    let moved = |at: usize| within.iter().any(|range| range.contains(&at));
    let mut late: Vec<(usize, String)> = within.iter().flat_map(|range| lines[range.clone()].iter().cloned()).collect();
    let begin = format!("local {name}_made local function {name}(...) {name}_made = {name}{BEGIN}");
    let end = format!(" return {name}{END}{name}_made(...) end");
    late.first_mut()?.1.insert_str(0, &begin);
    late.last_mut()?.1.push_str(&end);
    let before = (0..root.lines.start).filter(|at| !moved(*at)).map(|at| lines[at].clone());
    let after = lines[root.lines.end..].iter().cloned();
    Some(before.chain(late).chain(after).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rarely_needed_lies_within_the_function_that_needs_it_and_knows_where_it_was() {
        let text = "local function both() end\nlocal function rare(x)\n  both()\nend\nlocal state = both()\n\
                    local function root(x) -- rarely\n  return rare(x)\nend\nreturn root(state)";
        let lines = made_late(text);
        let texts: Vec<&str> = lines.iter().map(|(_, text)| text.as_str()).collect();
        let late =
            "local root_made local function root(...) root_made = root_made or (function() local function rare(x)";
        let end = "end return root end)() return root_made(...) end";
        let expected = [
            "local function both() end",
            "local state = both()",
            late,
            "  both()",
            "end",
            "local function root(x) -- rarely",
            "  return rare(x)",
            end,
            "return root(state)",
        ];
        assert_eq!(texts, expected);
        assert_eq!(lines.iter().map(|(from, _)| *from).collect::<Vec<_>>(), [0, 4, 1, 2, 3, 5, 6, 7, 8]);
    }

    #[test]
    fn what_two_of_them_need_is_made_at_once_and_one_within_another_stays_there() {
        let shared = "local function shared()\nend\nlocal function a() -- rarely\n  shared()\nend\n\
                      local function b() -- rarely\n  shared()\nend\na() b()";
        let lines = made_late(shared);
        assert_eq!(lines[0].1, "local function shared()");
        let within = "local function a() -- rarely\nend\nlocal function b() -- rarely\n  a()\nend\nb()";
        let lines = made_late(within);
        assert_eq!(lines.iter().filter(|(_, line)| line.contains("b_made(...)")).count(), 1);
    }
}

//! Making a failing game small: fewer troubles, fewer turns, the same kind of violation. And telling its story.

use std::io::Write;
use std::time::{Duration, Instant};

use super::Play;
use crate::game::Verdict;

/// The time that shrinking may take.
const TIME: Duration = Duration::from_secs(45);
/// Lines of the story that are told.
const LINES_MAX: usize = 120;

/// Makes a failing game small and tells its story.
///
/// # Errors
/// It cannot be played.
#[allow(clippy::disallowed_methods, reason = "how long somebody waits is a matter of the real clock")]
pub(crate) fn shrink_and_tell(play: Play, out: &mut impl Write) -> anyhow::Result<()> {
    let until = Instant::now() + TIME;
    let (verdict, _) = play.apart()?;
    if verdict.violations.is_empty() {
        writeln!(
            out,
            "seed {} does not fail when it is played again: what it depends on beside its seed is a bug",
            play.seed
        )?;
        return Ok(());
    }
    let small = shrink(play, &verdict, until);
    tell(&small, out).map(drop)
}

/// Plays a game and tells the story of what is wrong. Gives whether anything is.
///
/// # Errors
/// It cannot be played.
pub(crate) fn tell(play: &Play, out: &mut impl Write) -> anyhow::Result<bool> {
    let (verdict, story) = Play { story: true, ..play.clone() }.apart()?;
    if verdict.violations.is_empty() {
        writeln!(out, "No violation. {}", serde_json::to_string(&verdict)?)?;
        return Ok(false);
    }
    writeln!(out, "\nWhat is wrong:")?;
    for violation in &verdict.violations {
        writeln!(out, "  {violation}")?;
    }
    let subjects = subjects(&verdict);
    let lines: Vec<&String> = story.iter().filter(|line| belongs(line, &subjects)).collect();
    let shown = lines.len().min(LINES_MAX);
    writeln!(out, "\nThe story ({shown} of {} lines; the time is in seconds since the epoch):", story.len())?;
    for line in &lines[lines.len() - shown..] {
        writeln!(out, "  {line}")?;
    }
    writeln!(out, "\nTo play it again: {}", play.again())?;
    Ok(true)
}

#[allow(clippy::disallowed_methods, reason = "how long somebody waits is a matter of the real clock")]
fn shrink(play: Play, verdict: &Verdict, until: Instant) -> Play {
    let fails = |play: &Play| play.apart().is_ok_and(|(verdict, _)| !verdict.violations.is_empty());
    let mut small = Play { keep: Some(play.keep.clone().unwrap_or_else(|| (0..verdict.planned).collect())), ..play };
    // Troubles: halves, then quarters, and at last one by one.
    let mut size = small.keep.as_ref().map_or(0, |keep| keep.len()).div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while let Some(keep) = small.keep.clone().filter(|keep| from < keep.len()) {
            if Instant::now() > until {
                return small;
            }
            let rest = keep.iter().enumerate().filter(|(at, _)| !(from..from + size).contains(at)).map(|(_, t)| *t);
            let less = Play { keep: Some(rest.collect()), ..small.clone() };
            if fails(&less) { small = less } else { from += size }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    let mut turns = small.turns.unwrap_or(128);
    let mut step = turns / 2;
    while step > 0 && Instant::now() < until {
        let less = Play { turns: Some(turns.saturating_sub(step)), ..small.clone() };
        if turns > step && fails(&less) {
            turns -= step;
            small = less;
        } else {
            step /= 2;
        }
    }
    small
}

/// The turns that violations name; where they name none, the tenants.
fn subjects(verdict: &Verdict) -> Vec<String> {
    let words = || verdict.violations.iter().flat_map(|violation| violation.split([' ', '/', ',', ':', ';', '(']));
    let turns = words().filter(|word| word.starts_with('p') && word.contains('-') && word.len() < 12);
    let turns: Vec<String> = turns.map(str::to_owned).collect();
    let tenants = words().filter(|word| turns.is_empty() && word.starts_with("tenant") && word.len() > "tenant".len());
    turns.iter().cloned().chain(tenants.map(str::to_owned)).collect()
}

/// Whether a line is about them, or about everybody.
fn belongs(line: &str, subjects: &[String]) -> bool {
    let of = |subject: &String| {
        line.match_indices(subject.as_str())
            .any(|(at, _)| !line[at + subject.len()..].starts_with(|next: char| next.is_ascii_digit()))
    };
    line.contains("TROUBLE")
        || line.contains("VIOLATION")
        || line.contains("starts again")
        || line.contains("trouble is over")
        || subjects.iter().any(of)
}

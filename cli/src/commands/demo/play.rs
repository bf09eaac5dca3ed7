//! Plays the day: submits its turns on schedule, and collects every reply.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::anyhow;
use tickfleet_client::audit::{Export, ExportRange, ExportResume};
use tickfleet_client::{Client, Replies, Reply, private_inbox};
use tickfleet_model::{InboxName, Outcome};
use tickfleet_proof::prove::{Proof, Prover};
use tickfleet_store::{AdmissionNote, TurnName, TurnView, admissions};
use tokio::time::{Instant, sleep, sleep_until};

use super::day::{Planned, tenant};
use super::played::{DayResult, PlayedTurn};
use super::show;
use crate::commands::audit::export::header;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Without a reply for this long, the demo stops waiting for missing replies.
const SILENCE_MAX: Duration = Duration::from_secs(20);
/// Surplus replies may arrive for this long after all expected replies.
const SURPLUS_REPLY_WAIT: Duration = Duration::from_millis(300);
/// The output of this tool contains the ID of the delegated task. The demo also waits for the reply to that task.
const DELEGATE: &str = "delegate_task";

#[derive(Default)]
struct Collected {
    turns: BTreeMap<String, Vec<(Instant, Reply)>>,
    tasks: BTreeMap<String, Vec<Reply>>,
}

/// Fails if a turn is not accepted, or if a reply is missing.
pub(super) async fn day(setup: &Setup, day: &[Planned], output: &Output) -> Result<DayResult, Failure> {
    let client = setup.client().await?;
    let inbox = private_inbox("demo");
    let replies = client.replies(&tenant()?, &inbox);
    let (submitted, collected) = tokio::try_join!(submit_all(&client, day, &inbox), collect(replies, day, output))?;
    let Collected { mut turns, tasks } = collected;
    let mut played = Vec::with_capacity(day.len());
    for (planned, (at, duplicates)) in day.iter().zip(submitted) {
        let replies = turns.remove(&planned.turn_id()).unwrap_or_default();
        let replies = replies.into_iter().map(|(came, reply)| (came - at, reply)).collect();
        let (slices, waited_ms) = trace(&client, planned).await?;
        played.push(PlayedTurn { replies, duplicates, slices, waited_ms });
    }
    Ok(DayResult { turns: played, tasks, proof: proof(setup, &client).await? })
}

async fn proof(setup: &Setup, client: &Client) -> Result<Proof, Failure> {
    let range = ExportRange::default();
    let made_ms = client.store(&tenant()?).now_ms().await?;
    let header = header(setup, client.stores(), &range, made_ms).await?;
    let mut log = Vec::new();
    let export = Export::new(client.stores(), range, ExportResume::default(), &mut log);
    export.write(&header).await.map_err(Failure::failed)?;
    let mut prover = Prover::new(None, None);
    String::from_utf8_lossy(&log).lines().for_each(|line| prover.line(line));
    Ok(prover.finish())
}

fn name(planned: &Planned) -> Result<TurnName, Failure> {
    let turn = planned.turn.id.clone().ok_or_else(|| anyhow!("a turn of the day has no id"))?;
    Ok(TurnName { tenant: planned.turn.tenant.clone(), turn })
}

async fn submit_all(client: &Client, day: &[Planned], inbox: &InboxName) -> Result<Vec<(Instant, usize)>, Failure> {
    let begin = Instant::now();
    let mut submitted = Vec::with_capacity(day.len());
    for planned in day {
        sleep_until(begin + planned.after).await;
        let mut turn = planned.turn.clone();
        turn.reply_to = Some(inbox.clone());
        if let Some(ms) = planned.expires_after_ms {
            turn.deadline_ms = Some(client.store(&turn.tenant).now_ms().await? + ms);
        }
        let at = Instant::now();
        let mut duplicates = 0;
        for _ in 0..planned.submits {
            duplicates += usize::from(client.submit(turn.clone()).await?.duplicate);
        }
        if let Some(reason) = &planned.cancel {
            cancel(client, planned, reason).await?;
        }
        submitted.push((at, duplicates));
    }
    Ok(submitted)
}

/// Waits for the admission of the turn first: a turn that is canceled before its admission would never begin.
async fn cancel(client: &Client, planned: &Planned, reason: &str) -> Result<(), Failure> {
    let name = name(planned)?;
    while matches!(client.store(&name.tenant).turn_view(&name).await?, TurnView::Unknown) {
        sleep(Duration::from_millis(5)).await;
    }
    client.cancel(&name, reason).await?;
    Ok(())
}

/// Also waits for the replies to delegated tasks.
async fn collect(mut replies: Replies, day: &[Planned], output: &Output) -> Result<Collected, Failure> {
    let mut open: BTreeSet<String> = day.iter().map(Planned::turn_id).collect();
    let mut collected = Collected::default();
    loop {
        let silence = if open.is_empty() { SURPLUS_REPLY_WAIT } else { SILENCE_MAX };
        let Some(reply) = replies.next(silence).await? else { break };
        let came = Instant::now();
        let key = reply.id().map(ToString::to_string).unwrap_or_default();
        for task in delegated(&reply) {
            if !collected.tasks.contains_key(&task) {
                open.insert(task);
            }
        }
        open.remove(&key);
        if !output.json {
            output.print(&show::live(day, &reply, output))?;
        }
        if reply.task_id.is_some() {
            collected.tasks.entry(key).or_default().push(reply);
        } else {
            collected.turns.entry(key).or_default().push((came, reply));
        }
    }
    replies.forget().await?;
    if let Some(missing) = open.first() {
        let count = open.len();
        let seconds = SILENCE_MAX.as_secs();
        let missing = anyhow!("{count} replies did not arrive within {seconds} s, including the reply of {missing}");
        return Err(Failure::failed(missing));
    }
    Ok(collected)
}

fn delegated(reply: &Reply) -> Vec<String> {
    let made = reply.results.iter().filter(|r| r.tool == DELEGATE && r.outcome == Outcome::Ok);
    let job = |json: &str| serde_json::from_str::<serde_json::Value>(json).ok()?["job_id"].as_str().map(Into::into);
    made.filter_map(|result| job(result.output.as_ref()?.get())).collect()
}

/// Also returns how long (ms) the turn waited for its admissions.
async fn trace(client: &Client, planned: &Planned) -> Result<(Vec<AdmissionNote>, i64), Failure> {
    let turn = match client.store(&planned.turn.tenant).turn_view(&name(planned)?).await? {
        TurnView::Finished(finished) => finished,
        TurnView::Live(_) => return Err(open_record_failure(planned)),
        // A rejected turn was never admitted and has no record.
        TurnView::Unknown => return Ok((Vec::new(), 0)),
    };
    let slices = admissions(&turn.notes);
    let admitted: u32 = slices.iter().map(|slice| slice.calls).sum();
    let whole = usize::try_from(admitted).is_ok_and(|admitted| admitted >= planned.turn.calls.len());
    let until_ms = slices.last().filter(|_| whole).map_or(turn.ended_ms, |slice| slice.at_ms);
    let waited_ms = (until_ms - turn.admitted_ms).max(0);
    Ok((slices, waited_ms))
}

fn open_record_failure(planned: &Planned) -> Failure {
    Failure::failed(anyhow!("turn {} has its reply, but its record is still open", planned.turn_id()))
}

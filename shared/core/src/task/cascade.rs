//! Ends the descendants of a turn or task that was canceled or has failed.

use tickfleet_model::TurnId;

use crate::bounds::Bounds;
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::record::Record;
use crate::transaction::{Conflict, Guard, RecordKey, TimerRule, Transaction, Write};
use crate::turn::Cancellation;
use crate::turn::end::cascade_timer;
use crate::turn::state::Finished;
use crate::view::{Query, Undecided, Value, View};

pub const STEP_MAX: usize = 32;

/// The caller ends each descendant with a [`super::cancel::Cancel`] that sets `above`. Then the caller repeats this
/// decision with a new view, until [`Cascade::Done`] or [`Cascade::Later`]. The timer stays due: if the caller crashes,
/// another scheduler continues.
#[derive(Debug, Clone)]
pub struct CascadeStep<'a> {
    pub name: TurnName,
    pub bounds: &'a Bounds,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cascade {
    /// The caller must end these descendants.
    End {
        members: Vec<TurnName>,
        reason: String,
    },
    /// Check again at this time (ms): the turn has not ended, and may begin descendants.
    Later(i64),
    Done,
}

impl Decision for CascadeStep<'_> {
    type Output = Cascade;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Cascade>, Undecided> {
        let again = || Cascade::End { members: Vec::new(), reason: String::new() };
        if context.failed(|conflict| *conflict == Conflict::Full) {
            return Ok(Step::Return(again()));
        }
        let set = self.name.descendants();
        let members = view.first(&set, None, STEP_MAX)?;
        if members.is_empty() {
            return self.nothing_left(view, context);
        }
        let (names, odd): (Vec<_>, Vec<_>) =
            members.iter().map(|(member, _)| TurnId::new(&**member).map_err(|_| member)).partition(Result::is_ok);
        if names.is_empty() {
            let mut transaction = Transaction::new(context.version.clone());
            for member in odd.into_iter().filter_map(Result::err) {
                transaction.leave(set.clone(), member.clone());
            }
            return Ok(Step::Commit(transaction, again()));
        }
        let reason = self.reason(view)?;
        let names = names.into_iter().filter_map(Result::ok);
        let members = names.map(|turn| TurnName { tenant: self.name.tenant.clone(), turn }).collect();
        Ok(Step::Return(Cascade::End { members, reason }))
    }
}

fn readable<T: Record>(view: &View, key: &RecordKey) -> Result<Option<T>, Undecided> {
    match view.record::<T>(key) {
        Err(Undecided::Missing(queries)) => Err(Undecided::Missing(queries)),
        found => Ok(found.ok().flatten().map(|stored| stored.value)),
    }
}

impl CascadeStep<'_> {
    fn nothing_left(&self, view: &View, context: &Context) -> Result<Step<Cascade>, Undecided> {
        let key = self.name.record();
        let mut transaction = Transaction::new(context.version.clone());
        let is_there = !matches!(view.get(&Query::Record(key.clone()))?, Value::Record(None));
        if is_there && !mutant!("cascade_waits_for_the_end") {
            let due_ms = context.now_ms + self.bounds.lease_ms;
            transaction.timer(cascade_timer(&self.name), due_ms, TimerRule::Set);
            return Ok(Step::Commit(transaction, Cascade::Later(due_ms)));
        }
        transaction.guards.extend((!is_there).then_some(Guard::Absent(key)));
        transaction.guard(Guard::Fits { set: self.name.descendants(), member: "".into(), max: 1 });
        transaction.write(Write::ClearTimer(cascade_timer(&self.name).into()));
        Ok(Step::Commit(transaction, Cascade::Done))
    }

    fn reason(&self, view: &View) -> Result<String, Undecided> {
        let canceled = |reason: &str| format!("its parent was canceled: {reason}");
        if let Some(cancellation) = readable::<Cancellation>(view, &self.name.cancellation())? {
            return Ok(canceled(&cancellation.reason));
        }
        Ok(match readable::<Finished>(view, &self.name.finished())? {
            Some(Finished { canceled: Some(reason), .. }) => canceled(&reason),
            // Without an end reason, only a task that failed ends its descendants.
            Some(Finished { reason: None, .. }) => "the task that began it has failed".to_owned(),
            _ => "the turn or task that began it has ended".to_owned(),
        })
    }
}

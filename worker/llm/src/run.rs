//! START HERE: carries out one task from its current state to its next wait or its end.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tickfleet_core::EntryId;
use tickfleet_core::task::spend::ReportedModelUse;
use tickfleet_core::task::step::{AddSteps, Stepped};
use tickfleet_model::loops::LOOP_ADVICE;
use tickfleet_models::{ModelAnswer, ModelChain, ModelChainError, ModelError, ModelRequest, StopReason};
use tickfleet_ops::{gen_ai, traces};
use tickfleet_store::TurnName;
use tickfleet_tools::{Awaited, CallContext, ToolFailure, ToolOutput};
use tracing::{Instrument as _, Span};

use crate::budget::{self, Budgets};
use crate::failure::{internal, refused, stale, store_unavailable, transient, unanswered};
use crate::history::{History, HistoryEntry, NextStep, Plan, Summary};
use crate::prompt::{self, TaskArguments};
use crate::turns::{self, PlanResults, RECHECK_AFTER};
use crate::{LlmAgent, answer, compact, task_input};

const SAME_CALLS: &str =
    "You have made the same calls with the same arguments several times in a row, and each time got the same results.";

/// After more answers of the wrong form than this, the task fails.
const UNFIT_MAX: usize = 2;

#[derive(Serialize)]
struct TaskOutput<'a> {
    answer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Box<RawValue>>,
    /// `answered`, `max_iterations`, `repeated`, or `cut_off` if the answer is incomplete.
    stopped: &'static str,
    iterations: usize,
    usage: TaskUsage,
}

#[derive(Serialize, Default)]
struct TaskUsage {
    input_tokens: u64,
    output_tokens: u64,
    /// In the currency of the prices, as a decimal number.
    cost: String,
}

struct TaskRun<'a> {
    agent: &'a LlmAgent,
    models: &'a ModelChain,
    context: &'a CallContext,
    name: TurnName,
    task: TaskArguments,
    history: History,
    /// Entries of the history when this attempt began. This attempt wrote all later entries.
    known_at_start: usize,
}

/// The error is [`ToolFailure::Waits`] if the task waits for a turn, a budget or a paused provider.
pub(crate) async fn task(
    agent: &LlmAgent,
    models: &ModelChain,
    context: &CallContext,
    arguments: &RawValue,
) -> Result<ToolOutput, ToolFailure> {
    let task = serde_json::from_str(arguments.get()).map_err(internal)?;
    let name = TurnName { tenant: context.tenant.clone(), turn: context.call.turn.clone() };
    let steps = agent.store.steps(&name, 0).await.map_err(store_unavailable)?;
    let history = History::read(&steps).map_err(internal)?;
    let known_at_start = history.entries.len();
    let mut run = TaskRun { agent, models, context, name, task, history, known_at_start };
    if run.history.entries.is_empty() {
        run.append(task_input::earlier_exchanges(&agent.store, context).await.map_err(store_unavailable)?, None)
            .await?;
    }
    loop {
        match run.history.next(agent.def.max_iterations, agent.def.repeats_max) {
            NextStep::Plan { last } => run.plan(last).instrument(span("plan")).await?,
            NextStep::Warn => {
                run.append(vec![HistoryEntry::Note { text: format!("{SAME_CALLS} {LOOP_ADVICE}") }], None).await?
            }
            NextStep::Execute { number } => run.execute(number).instrument(span("execute")).await?,
            NextStep::Answer => {
                if let Some(done) = run.answer().instrument(span("answer")).await? {
                    return Ok(done);
                }
            }
        }
    }
}

fn span(step: &'static str) -> Span {
    tracing::debug_span!(target: traces::TARGET, "step", step)
}

impl TaskRun<'_> {
    /// The answer is stored before it has any effect.
    async fn plan(&mut self, last: bool) -> Result<(), ToolFailure> {
        let known = self.history.entries.len();
        self.append(
            task_input::unread_messages(&self.agent.store, self.context, known).await.map_err(store_unavailable)?,
            None,
        )
        .await?;
        self.compact().await?;
        let request = prompt::request(&self.agent.def, self.context, &self.task, &self.history, last);
        let number = self.history.entries.len().to_string();
        let ModelReply { model, mut answer, spent, at_ms } = self.ask(self.models, &number, &request).await?;
        if last {
            // Some servers return calls although the model must answer without calls.
            answer.calls.clear();
        }
        if answer.stop == StopReason::Refused {
            let reason = if answer.text.is_empty() { "it gave no reason" } else { answer.text.trim() };
            let reason = format!("The model declined to continue: {reason}");
            self.append(Vec::new(), Some(&spent)).await?;
            return Err(refused(reason));
        }
        if answer.text.trim().is_empty() && answer.calls.is_empty() {
            self.append(Vec::new(), Some(&spent)).await?;
            return Err(transient("The model gave an empty answer.".to_owned(), None));
        }
        self.append(vec![HistoryEntry::Plan(Plan::of(&model, answer, last, spent.used.cost, at_ms))], Some(&spent))
            .await?;
        self.agent.metrics.task_step("plan");
        Ok(())
    }

    /// If no summary can be made, old results are shortened instead.
    async fn compact(&mut self) -> Result<(), ToolFailure> {
        let agent = self.agent;
        let Some(Ok(models)) = &agent.compacts else { return Ok(()) };
        let Some(upto) = compact::summary_due(&self.history, agent.def.context_bytes_max) else { return Ok(()) };
        let task = prompt::task_message(self.context, &self.task);
        let request = compact::request(&agent.def, &task, &self.history, upto);
        // The `s` distinguishes this number from the number of the next plan's request.
        let number = format!("{}s", self.history.entries.len());
        let reply = match self.ask(models, &number, &request).instrument(span("compact")).await {
            Ok(reply) => reply,
            Err(waits @ ToolFailure::Waits { .. }) => return Err(waits),
            Err(failure) => {
                tracing::warn!(task = %self.name.turn, ?failure, "no summary of old steps; truncating them");
                return Ok(());
            }
        };
        let ModelReply { model, answer, spent, .. } = reply;
        if answer.stop == StopReason::Refused || answer.text.trim().is_empty() {
            return self.append(Vec::new(), Some(&spent)).await;
        }
        let text = turns::cut(answer.text, agent.def.result_bytes_max);
        let input = spent.used.tokens_in;
        let output = spent.used.tokens_out;
        let cost = spent.used.cost;
        let summary = Summary { upto, text, model, input, output, cost };
        self.append(vec![HistoryEntry::Summary(summary)], Some(&spent)).await?;
        agent.metrics.task_step("compact");
        Ok(())
    }

    /// `number` must be unique among the requests of the task.
    async fn ask(&self, models: &ModelChain, number: &str, request: &ModelRequest) -> Result<ModelReply, ToolFailure> {
        request.check().map_err(|error| unanswered(&error.into()))?;
        let agent = self.agent;
        let metrics = &self.agent.metrics;
        let mut budgets = Budgets::now(agent, self.context, &self.name).await?;
        let mut failed = Vec::new();
        for (at, model) in models.names().enumerate() {
            // Each model has its own number, so that a debit stays if an earlier provider may charge for the request.
            let number = format!("{number}.{at}");
            let is_reserved = match budgets.reserve(&number, model, request).await {
                Ok(is_reserved) => is_reserved,
                // An error would let the task wait for the budget. After the wait, the request would go again to an
                // earlier provider that may already charge for it.
                Err(_) if failed.iter().any(|error: &ModelError| error.may_have_run) => break,
                Err(failure) => return Err(failure),
            };
            let asking = tracing::debug_span!(target: traces::TARGET, "model request", model);
            let (provider, asked) = models.described(at).unwrap_or_default();
            let chat = asking.in_scope(|| gen_ai::chat_span(provider, asked, self.context.agent.as_str()));
            match models.ask_one(at, request).instrument(chat.clone()).instrument(asking).await {
                Ok(mut answer) => {
                    let used = budget::used(request, &answer);
                    answer.usage = used;
                    chat.record("gen_ai.usage.input_tokens", used.input);
                    chat.record("gen_ai.usage.output_tokens", used.output);
                    let cost = agent.set.cost(model, used.input, used.output);
                    metrics.model_asked(model, "ok");
                    metrics.model_used(model, used.input, used.output, cost);
                    let spent = budgets.spent(&number, used.input, used.output, cost);
                    return Ok(ModelReply { model: model.to_owned(), answer, spent, at_ms: budgets.now_ms });
                }
                Err(error) => {
                    metrics.model_asked(&error.provider, error.failure.as_str());
                    gen_ai::failed(&chat, error.failure.as_str());
                    if is_reserved && !error.may_have_run {
                        budgets.return_debits(&number).await?;
                    }
                    failed.push(error);
                }
            }
        }
        Err(unanswered(&ModelChainError::All(failed)))
    }

    async fn execute(&mut self, number: usize) -> Result<(), ToolFailure> {
        let Some(plan) = self.history.last_plan() else { return Ok(()) };
        // If this attempt made the plan, no earlier attempt submitted the plan's calls, so `since` is `None`.
        let since = plan.at_ms.filter(|_| self.history.last_plan_at() < Some(self.known_at_start));
        let (bytes_max, priority) =
            (self.agent.def.result_bytes_max, self.task.priority.as_deref().unwrap_or_default());
        match turns::run_calls(&self.agent.store, self.context, plan, number, since, priority, bytes_max).await? {
            PlanResults::Pending(turn) => {
                self.agent.metrics.task_step("execute");
                Err(ToolFailure::Waits { awaits: Awaited::Turn(turn), at_most: RECHECK_AFTER })
            }
            // A history must not contain only some of the results, so one step adds all.
            PlanResults::Finished(results) => {
                let entries = results.into_iter().map(HistoryEntry::Result).collect();
                self.append(entries, None).instrument(span("validate")).await?;
                self.agent.metrics.task_step("validate");
                Ok(())
            }
        }
    }

    /// `None` if the model must answer again in the required form.
    async fn answer(&mut self) -> Result<Option<ToolOutput>, ToolFailure> {
        let Some(plan) = self.history.last_plan() else { return Err(internal("it has no answer")) };
        let output = match &self.agent.form {
            None => None,
            Some(form) => match form.read(&plan.text, self.name.turn.as_str(), &self.history).await {
                Ok(output) => Some(output),
                Err(problem) if self.history.unfit() < UNFIT_MAX => {
                    self.append(vec![HistoryEntry::Unfit { text: answer::unfit_message(&problem) }], None).await?;
                    return Ok(None);
                }
                Err(problem) => {
                    let times = UNFIT_MAX + 1;
                    let why =
                        format!("The model gave {times} answers that do not fit the agent's answer_schema. {problem}");
                    return Err(refused(why));
                }
            },
        };
        let iterations = self.history.plans().count();
        let stopped = match self.history.was_last() {
            _ if plan.cut => "cut_off",
            false => "answered",
            true if iterations >= self.agent.def.max_iterations as usize => "max_iterations",
            true => "repeated",
        };
        let (input_tokens, output_tokens, cost) = self.history.used();
        let usage = TaskUsage { input_tokens, output_tokens, cost: tickfleet_model::limit::amount::show(cost) };
        self.agent.metrics.task_step("answer");
        task_input::record_answer(&self.agent.store, self.context, plan.text.trim())
            .await
            .map_err(store_unavailable)?;
        let done = TaskOutput { answer: plan.text.trim(), output, stopped, iterations, usage };
        Ok(Some(ToolOutput { json: to_raw_value(&done).map_err(internal)?, content_type: "application/json" }))
    }

    /// Counts the usage of the model's response in the same step.
    async fn append(
        &mut self,
        entries: Vec<HistoryEntry>,
        spent: Option<&ReportedModelUse>,
    ) -> Result<(), ToolFailure> {
        if entries.is_empty() && spent.is_none() {
            return Ok(());
        }
        let texts = entries.iter().map(|entry| serde_json::to_vec(entry).map(Bytes::from));
        let store = &self.agent.store;
        let bounds = store.bounds();
        let step = AddSteps {
            name: self.name.clone(),
            entry: EntryId::new(&self.context.fence),
            known: self.history.entries.len() as u64,
            entries: texts.collect::<Result<_, _>>().map_err(internal)?,
            spent: spent.cloned(),
            bounds: &bounds,
        };
        match store.decide(step).await.map_err(|error| store_unavailable(error.into()))?.result {
            Stepped::Ok(_) | Stepped::Already(_) => {
                self.history.entries.extend(entries);
                Ok(())
            }
            Stepped::Stale => Err(stale()),
            Stepped::Full(_) => Err(refused(
                "The task has read and written more than one task may; split it into smaller tasks.".to_owned(),
            )),
        }
    }
}

struct ModelReply {
    model: String,
    answer: ModelAnswer,
    spent: ReportedModelUse,
    /// In ms of shard time.
    at_ms: i64,
}

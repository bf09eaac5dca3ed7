//! A running interpreter: the messages sent to it, and the calls that it has not answered yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde_json::value::RawValue;
use tickfleet_config::ModulesDef;
use tickfleet_model::{Redactor, limits};
use tickfleet_tools::Secrets;
use tickfleet_tools::inner::InnerResult;
use tickfleet_tools::standard_error::StderrTail;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::definition::Definition;
use crate::frames::{self, FrameError};
use crate::machine::Machine;
use crate::messages::{CallFacts, Failure, FromHost, PROTOCOL, ToHost};
use crate::process::{self, Process};

pub(crate) type CallReply = Result<HostOutput, Failure>;

#[derive(Debug)]
pub(crate) struct HostOutput {
    pub(crate) json: String,
    pub(crate) content_blocks: bool,
}

pub(crate) struct Interpreter {
    pub(crate) secrets: Arc<Secrets>,
    /// `None` if the interpreter is not a process of the worker.
    pub(crate) process: Option<u32>,
    /// Canceled when the interpreter should receive no more calls.
    pub(crate) retired: CancellationToken,
    /// Canceled when a canceled call has not ended in time.
    pub(crate) stuck: CancellationToken,
    /// Canceled when no more responses can arrive.
    pub(crate) closed: CancellationToken,
    pub(crate) idle: Notify,
    frames: mpsc::UnboundedSender<Vec<u8>>,
    calls: Mutex<HashMap<u64, CallChannels>>,
    next: AtomicU64,
}

/// If the interpreter is lost, `answer` fails.
pub(crate) struct PendingCall {
    pub(crate) id: u64,
    pub(crate) answer: oneshot::Receiver<CallReply>,
    pub(crate) inner: mpsc::Receiver<InnerCall>,
    pub(crate) progress: watch::Receiver<Progress>,
}

/// A fraction from 0 to 1, if known, and a text.
pub(crate) type Progress = (Option<f64>, String);

pub(crate) struct InnerCall {
    pub(crate) number: u64,
    pub(crate) tool: String,
    /// JSON text.
    pub(crate) arguments: String,
}

struct CallChannels {
    answer: oneshot::Sender<CallReply>,
    inner: mpsc::Sender<InnerCall>,
    progress: watch::Sender<Progress>,
}

/// The error is for an operator. If an import fails, the error contains the user's own lines of the traceback.
pub(crate) async fn start(
    name: &str,
    def: &ModulesDef,
    secrets: Arc<Secrets>,
    machine: &Machine,
) -> Result<(Arc<Interpreter>, Process, Vec<Definition>), String> {
    let tail = Arc::new(StderrTail::default());
    let began = Instant::now();
    let (process, socket) = process::start(name, def, &secrets, machine, &tail).await?;
    // One time limit covers the start and the imports.
    match tokio::time::timeout_at(began + def.start_timeout, greet(socket)).await {
        Ok(Ok((socket, tools))) => Ok((Interpreter::new(name, &process, socket, secrets), process, tools)),
        Ok(Err(why)) => {
            let status = process.end().await.filter(|_| why.is_none());
            let silent = if def.host.is_some() { "the tool host closed the connection" } else { "it did not answer" };
            let ended = || status.map_or_else(|| silent.to_owned(), |status| format!("it ended with {status}"));
            let why = why.unwrap_or_else(|| format!("{}{}", ended(), tail.failure_suffix()));
            Err(secrets.scrub(&why))
        }
        Err(_) => {
            process.kill();
            process.end().await;
            Err(format!("it was not ready within {} s{}", def.start_timeout.as_secs_f32(), tail.failure_suffix()))
        }
    }
}

/// Waits for the imports. The error is `None` if the host has closed the connection.
async fn greet(socket: UnixStream) -> Result<(UnixStream, Vec<Definition>), Option<String>> {
    let mut socket = socket;
    let in_words = |error: FrameError| Some(format!("it sent {error}"));
    match next(&mut socket).await.map_err(in_words)? {
        Some(FromHost::Ready { protocol }) if protocol == PROTOCOL => {}
        Some(FromHost::Ready { protocol }) => {
            return Err(Some(format!(
                "its package tickfleet speaks version {protocol} of the protocol, and this worker version {PROTOCOL}: \
                 install the package of the worker's own version"
            )));
        }
        Some(FromHost::Refused { message }) => {
            return Err(Some(format!("the tool host rejected the request: {message}")));
        }
        Some(FromHost::Failed { message }) => return Err(Some(format!("a module cannot be imported:\n{message}"))),
        Some(_) => return Err(Some("it did not report that it is ready".to_owned())),
        None => return Err(None),
    }
    let describe = frames::encode(&ToHost::Describe).map_err(in_words)?;
    socket.write_all(&describe).await.map_err(|_| None)?;
    match next(&mut socket).await.map_err(in_words)? {
        Some(FromHost::Tools { tools }) => Ok((socket, tools)),
        Some(_) => Err(Some("it did not list its tools when asked".to_owned())),
        None => Err(None),
    }
}

async fn next(socket: &mut UnixStream) -> Result<Option<FromHost>, FrameError> {
    match frames::read(socket).await {
        Ok(Some(body)) => Ok(Some(serde_json::from_slice(&body)?)),
        Ok(None) => Ok(None),
        // The standard error of an exiting process is more informative than this failure, so the failure is dropped.
        Err(FrameError::Socket(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Interpreter {
    fn new(name: &str, process: &Process, socket: UnixStream, secrets: Arc<Secrets>) -> Arc<Self> {
        let (frames, outgoing) = mpsc::unbounded_channel();
        let interpreter = Arc::new(Self {
            secrets,
            process: process.id(),
            retired: CancellationToken::new(),
            stuck: CancellationToken::new(),
            closed: CancellationToken::new(),
            idle: Notify::new(),
            frames,
            calls: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let (read, write) = socket.into_split();
        tokio::spawn(send(write, outgoing, interpreter.closed.clone()));
        tokio::spawn(read_messages(name.to_owned(), read, Arc::clone(&interpreter)));
        interpreter
    }

    /// `None` if the interpreter has exited. Fails if the call is too long for a frame. Nothing is sent in both cases.
    pub(crate) fn call(
        &self,
        tool: &str,
        arguments: &str,
        context: &CallFacts<'_>,
    ) -> Result<Option<PendingCall>, FrameError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = frames::encode(&ToHost::Call { id, tool, arguments, context })?;
        let (answered, answer) = oneshot::channel();
        // A correct host requests at most this many inner calls.
        let (asks, inner) = mpsc::channel(limits::INNER_CALLS_MAX);
        let (reports, progress) = watch::channel(Progress::default());
        {
            // `close` takes the same lock. So `close` either runs first, or finds the call and makes it fail.
            let mut calls = self.calls.lock();
            if self.closed.is_cancelled() || self.frames.send(frame).is_err() {
                return Ok(None);
            }
            calls.insert(id, CallChannels { answer: answered, inner: asks, progress: reports });
        }
        Ok(Some(PendingCall { id, answer, inner, progress }))
    }

    pub(crate) fn cancel(&self, id: u64) {
        self.send(&ToHost::Cancel { id });
    }

    /// Sends the result of an inner call. A result that is too long for a frame becomes a failure.
    pub(crate) fn inner_ended(&self, id: u64, number: u64, result: &InnerResult) {
        let output = result.output.as_deref().map(RawValue::get);
        let ended = ToHost::Inner { id, number, outcome: &result.outcome, output, error: result.error.as_deref() };
        let frame = frames::encode(&ended).or_else(|error| {
            let error = format!("its result cannot be encoded: {error}");
            frames::encode(&ToHost::Inner { id, number, outcome: "internal", output: None, error: Some(&error) })
        });
        if let Ok(frame) = frame {
            let _ = self.frames.send(frame);
        }
    }

    pub(crate) fn send_bye(&self) {
        self.send(&ToHost::Bye);
    }

    fn send(&self, message: &ToHost<'_>) {
        // An exited host does not need the message. Messages of this kind are short and always fit a frame.
        if let Ok(frame) = frames::encode(message) {
            let _ = self.frames.send(frame);
        }
    }

    fn close(&self) {
        let lost = {
            let mut calls = self.calls.lock();
            self.closed.cancel();
            std::mem::take(&mut *calls)
        };
        drop(lost);
    }
}

/// Frames that are queued during one write are sent with the next write.
async fn send(mut to: OwnedWriteHalf, mut frames: mpsc::UnboundedReceiver<Vec<u8>>, closed: CancellationToken) {
    loop {
        let frame = tokio::select! {
            () = closed.cancelled() => return,
            frame = frames.recv() => frame,
        };
        let Some(mut frame) = frame else { return };
        while let Ok(more) = frames.try_recv() {
            frame.extend(more);
        }
        // The task that reads messages detects the cause.
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Ends when the host closes the connection or violates the protocol.
async fn read_messages(name: String, from: OwnedReadHalf, interpreter: Arc<Interpreter>) {
    let mut from = BufReader::new(from);
    let redactor = Redactor::default();
    loop {
        let message = match frames::read(&mut from).await {
            Ok(Some(body)) => serde_json::from_slice(&body).map_err(FrameError::from),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        match message {
            Ok(FromHost::Result { id, output, content_blocks, error }) => {
                let call = interpreter.calls.lock().remove(&id);
                let answer = match (output, error) {
                    (Some(json), None) => Ok(HostOutput { json, content_blocks }),
                    (_, Some(error)) => Err(error),
                    (None, None) => break,
                };
                call.map(|call| call.answer.send(answer));
            }
            Ok(FromHost::Inner { id, number, tool, arguments }) => {
                let asks = interpreter.calls.lock().get(&id).map(|call| call.inner.clone());
                let Some(asks) = asks else { continue };
                if let Err(mpsc::error::TrySendError::Full(_)) = asks.try_send(InnerCall { number, tool, arguments }) {
                    tracing::error!(name, "tool process exceeds the limit of inner calls; stopping it");
                    break;
                }
            }
            Ok(FromHost::Progress { id, fraction, message }) => {
                if let Some(call) = interpreter.calls.lock().get(&id) {
                    call.progress.send_replace((fraction, interpreter.secrets.scrub(&message)));
                }
            }
            Ok(FromHost::Log { call, level, message }) => {
                let clean = interpreter.secrets.scrub(&message);
                let line = redactor.text(&clean);
                log(&name, &call, &level, &line);
            }
            Ok(other) => {
                tracing::error!(name, ?other, "unexpected message from a tool process; stopping it");
                break;
            }
            Err(FrameError::Socket(_)) => break,
            Err(error) => {
                tracing::error!(name, %error, "invalid frame from a tool process; stopping it");
                break;
            }
        }
    }
    interpreter.close();
}

fn log(name: &str, call: &str, level: &str, line: &str) {
    match level {
        "error" => tracing::error!(name, call, line, "log of a tool"),
        "warn" => tracing::warn!(name, call, line, "log of a tool"),
        "info" => tracing::info!(name, call, line, "log of a tool"),
        _ => tracing::debug!(name, call, line, "log of a tool"),
    }
}

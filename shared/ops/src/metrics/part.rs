//! The role of a process in metrics.

/// The role of a process: it exports what it can know, and nothing else, so that an absent metric means an absent part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// Schedulers only.
    Scheduler,
    /// Workers only.
    Worker,
    /// Both in one process.
    #[default]
    Both,
    /// Neither: it exports the audit log.
    Exporter,
}

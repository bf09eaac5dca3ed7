use tickfleet_model::RejectionCode;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageProblem {
    pub(crate) code: RejectionCode,
    pub(crate) message: String,
}

impl MessageProblem {
    pub(crate) fn new(code: RejectionCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

tickfleet_model::words! {
    /// The actions that audit entries record.
    pub enum AuditAction {
        /// A call of a tool, or a task.
        ToolCall = "TOOL_CALL",
        Approval = "APPROVAL",
        Pause = "PAUSE",
        Resume = "RESUME",
        PauseTool = "PAUSE_TOOL",
        ResumeTool = "RESUME_TOOL",
        DisableTool = "DISABLE_TOOL",
        EnableTool = "ENABLE_TOOL",
        Cancel = "CANCEL",
        Replay = "REPLAY",
        Drop = "DROP",
        DrainWorker = "DRAIN_WORKER",
        ResumeWorker = "RESUME_WORKER",
        SetTenant = "SET_TENANT",
        UnsetTenant = "UNSET_TENANT",
        LimitReset = "LIMIT_RESET",
        Repair = "REPAIR",
    }
}

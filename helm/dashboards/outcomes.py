"""Outcomes of calls by kind. A test writes the lists: TICKFLEET_WRITE_DOCS=1 cargo nextest run --workspace -E 'test(tidy::lists)'"""

REFUSED = "unknown_tool|denied|invalid_arguments|approval_refused"
NOT_REACHED = "expired|cancelled|daily_cap_reached|rejected"
FAILED = "permanent|transient|outcome_unknown|internal"
TOOL_FAILED = "transient|outcome_unknown|internal"

//! What may be left in Redis when a fleet has stopped.

/// Keys that may last without a TTL, each with its reason.
pub const LASTING: &[(&str, &str)] = &[
    ("{tickfleet:0}:meta", "the shard's clock, policy and epoch"),
    ("{tickfleet:0}:policies", "the last policies, and one field per scheduler that decides by one"),
    ("{tickfleet:0}:turns", "the inbound stream; trimmed with every batch"),
    ("{tickfleet:0}:tasks", "the inbound stream; trimmed with every batch"),
    ("{tickfleet:0}:ready:*", "the ready streams; trimmed with every batch"),
    ("{tickfleet:0}:external:*", "one stream per agent with an external runtime"),
    ("{tickfleet:0}:grouped", "the streams that have had their group: one for each of our own"),
    ("{tickfleet:0}:externals", "the names of those streams"),
    ("{tickfleet:0}:audit", "bounded by age, entries and bytes"),
    ("{tickfleet:0}:dead", "bounded by age and entries"),
    ("{tickfleet:0}:budgets", "one field per agent that was active; pruned a day after"),
    ("{tickfleet:0}:counters:*", "one field per counter of a limit; pruned a minute after its window"),
    ("{tickfleet:0}:limits", "the limits that have counters"),
    ("{tickfleet:0}:queued", "one field per id that waits for its decision"),
    ("{tickfleet:0}:beats", "one field per living consumer"),
    ("{tickfleet:0}:nodes", "one field per living consumer"),
    ("{tickfleet:0}:suspects", "one field per living scheduler at most"),
    ("{tickfleet:0}:tenant:*", "one per configured tenant"),
    ("{tickfleet:0}:tenants", "tenants that were set at run time"),
    ("{tickfleet:0}:kb:*", "a tenant's documents, which people put there and take away; bounded in number and bytes"),
    ("{tickfleet:0}:kbd:*", "the list of those documents"),
    ("{tickfleet:0}:kbs:*", "one per tenant with documents or memories: their generations and bytes"),
    ("{tickfleet:0}:memories:*", "an agent's memories, which are there to last; the oldest go beyond a bound"),
    ("{tickfleet:0}:remembered:*", "the order of those memories"),
];

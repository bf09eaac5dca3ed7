//! Optional features of a fleet. The benchmark measures their cost.

use std::path::Path;

use tickfleet_proof::seal::secret_text;

/// Optional features whose cost is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Extra {
    /// Seals of the audit log, once a second.
    Seal,
    /// Two rules on the arguments of each call, one of them with approval. Each call meets both.
    Rule,
    /// Facts: each call depends on a fact of its session and sets another one.
    Fact,
    /// All of these.
    All,
}

impl Extra {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Seal => "a sealed audit log",
            Self::Rule => "two rules a call",
            Self::Fact => "two facts a call",
            Self::All => "a sealed audit log, two rules and two facts a call",
        }
    }

    pub(super) fn has(self, what: Self) -> bool {
        self == what || self == Self::All
    }

    pub(super) fn write(self, dir: &Path, tool: &str) -> std::io::Result<()> {
        if self.has(Self::Seal) {
            let key = dir.join("seal.key");
            let settings = dir.join("tickfleet.yaml");
            // The key need not be secret: everything that it signs is deleted after the benchmark.
            std::fs::write(&key, secret_text(&[7; 32]))?;
            let before = std::fs::read_to_string(&settings)?;
            std::fs::write(settings, format!("{before}seal: {{key: 'file:{}'}}\n", key.display()))?;
        }
        let mut row = "everyone: true".to_owned();
        if self.has(Self::Rule) {
            row += ", rules: [{require: size(args.text) <= 100000}, {require: args.text != 'ask', otherwise: ask}]";
        }
        if self.has(Self::Fact) {
            row += ", facts: {forbid: [read_untrusted], sets: [has_asked]}";
        }
        let sets = "  fail: {agents: [a0], facts: {sets: [read_untrusted]}}\n";
        let (sets, people) =
            (if self.has(Self::Fact) { sets } else { "" }, if self.has(Self::Rule) { PEOPLE } else { "" });
        std::fs::write(dir.join("permissions.yaml"), format!("permissions:\n  {tool}: {{{row}}}\n{sets}{people}"))
    }
}

const PEOPLE: &str = "approvers: {ann: {roles: [finance]}}\n";

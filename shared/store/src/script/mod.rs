//! Scripts: how their texts are put together, what they are given, and how their replies are read.

pub(crate) mod args;
pub(crate) mod fragments;
pub(crate) mod rarely;
pub(crate) mod reply;
pub(crate) mod unused;

use std::iter::once;

use crate::records::schema::resolved;
use fragments::Fragment;

/// One script as Redis gets it.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Its name in errors and metrics.
    pub(crate) verb: &'static str,
    /// Its text.
    pub(crate) source: String,
    /// The digest that Redis knows it by.
    pub(crate) digest: String,
}

impl Script {
    /// The script of `verb` with this text.
    pub(crate) fn new(verb: &'static str, source: String) -> Self {
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { verb, source, digest }
    }
}

/// A function of Redis, and the script of the same text: it runs where functions may not be used.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// The name of the function and of its library. It has the text's digest: those of several releases stand side by side.
    pub(crate) name: String,
    /// The text of the library.
    pub(crate) source: String,
    /// The script.
    pub(crate) script: Script,
}

impl Function {
    /// The function of `verb` with this script, which registers itself as `NAME` in a library, and runs otherwise. A library
    /// has a first line of its own.
    pub(crate) fn new(verb: &'static str, text: &str) -> Self {
        let script = Script::new(verb, text.to_owned());
        let name = format!("tickfleet_{verb}_{}", script.digest);
        let body = text.split_once('\n').map_or("", |(_, body)| body);
        Self { source: format!("#!lua name={name}\nlocal NAME = '{name}'\n{body}"), name, script }
    }
}

/// The place of a line of a script, among the files that it is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScriptLine {
    /// The file, below the `src` of this crate.
    pub file: &'static str,
    /// The number of the line there, from 1.
    pub line: usize,
    /// What is written there. In the script, names of fields are short.
    pub text: &'static str,
}

/// The parts that a script is made of.
pub(crate) struct Parts {
    /// The file with its own text, below the crate's `src`.
    pub(crate) file: &'static str,
    /// Its own text.
    pub(crate) text: &'static str,
    /// The fragments that go before it, after [`fragments::BASE`].
    pub(crate) fragments: &'static [Fragment],
    /// True if it drains, and makes Redis' memory fuller first: what is admitted frees its inbound entry, but is a
    /// slice meanwhile. Redis runs such a script while there is memory. Beyond, it refuses it, and it is run a second
    /// time, however full memory is, with the one bound that then holds (`AT_BRIM`, see `pressure.lua`).
    pub(crate) drains: bool,
}

impl Parts {
    /// The script's text, names of fields replaced.
    pub(crate) fn composed(&self) -> String {
        let (shebang, _) = self.split();
        self.after(shebang, if self.drains { "local AT_BRIM = false\n" } else { "" })
    }

    /// The text of its second form, where it drains.
    pub(crate) fn composed_at_brim(&self) -> Option<String> {
        self.drains.then(|| self.after("#!lua flags=allow-oom", "local AT_BRIM = true\n"))
    }

    fn after(&self, shebang: &str, prologue: &str) -> String {
        let lines = self.lean(shebang, prologue);
        resolved(&lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n"))
    }

    /// The lines of the script, each with its number before it was made lean.
    /// All but what every script begins with is a function of its own: where a function is made, Redis' Lua finds what it
    /// uses of the block around it by walking over all that is used of that block so far.
    fn lean(&self, shebang: &str, prologue: &str) -> Vec<(usize, String)> {
        let (_, body) = self.split();
        let base = fragments::BASE.text;
        let fragments: String = self.fragments.iter().map(|fragment| format!("{}\n", fragment.text)).collect();
        let text = format!("{shebang}\n{prologue}{base}\nreturn (function() {fragments}{body} end)()");
        rarely::made_late(&unused::without_unused(&text))
    }

    fn all_fragments(&self) -> impl Iterator<Item = Fragment> {
        once(fragments::BASE).chain(self.fragments.iter().copied())
    }

    /// Where each line of the script stands, of either form: they have as many.
    pub(crate) fn lines(&self) -> Vec<ScriptLine> {
        let of = |file: &'static str, text: &'static str| {
            text.split('\n').zip(1..).map(move |(text, line)| ScriptLine { file, line, text })
        };
        let mut own = of(self.file, self.text);
        let first = own.next();
        // What the form says of itself stands nowhere, behind the first line.
        let form = first.filter(|_| self.drains);
        let fragments = self.all_fragments().flat_map(|fragment| of(fragment.file, fragment.text));
        let all: Vec<ScriptLine> = first.into_iter().chain(form).chain(fragments).chain(own).collect();
        let (shebang, prologue) = (self.split().0, if self.drains { "\n" } else { "" });
        self.lean(shebang, prologue).iter().filter_map(|(from, _)| all.get(*from).copied()).collect()
    }

    /// The shebang, which must be the first line, and what follows it.
    fn split(&self) -> (&'static str, &'static str) {
        self.text.split_once('\n').unwrap_or((self.text, ""))
    }
}

/// The list of verbs: makes the enum `Verb` of it. A line is `Variant: "folder" / "word" [fragments]`, with `drains`
/// behind it where that is so.
macro_rules! verbs {
    ($($variant:ident: $room:literal / $word:literal [$($fragment:ident),*] $($drains:ident)?),* $(,)?) => {
        /// A verb.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Verb {
            $(
                #[doc = concat!("`", $room, "/", $word, ".lua`")]
                $variant,
            )*
        }

        impl Verb {
            /// All verbs.
            pub(crate) const ALL: [Self; Self::WORDS.len()] = [$(Self::$variant),*];
            /// Their words.
            pub(crate) const WORDS: &[&str] = &[$($word),*];

            /// Returns the name that the verb has everywhere.
            pub(crate) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Returns the parts that its script is made of.
            fn parts(self) -> $crate::script::Parts {
                match self {
                    $(Self::$variant => $crate::script::Parts {
                        file: concat!("verbs/", $room, "/", $word, ".lua"),
                        text: include_str!(concat!($room, "/", $word, ".lua")),
                        fragments: &[$($fragment),*],
                        drains: verbs!(@drains $($drains)?),
                    },)*
                }
            }
        }
    };
    (@drains) => { false };
    (@drains drains) => { true };
}
pub(crate) use verbs;

//! The scripts that are compiled in.

use std::iter::repeat_n;
use std::sync::{Arc, LazyLock, OnceLock};

use super::Verb;
use crate::records::schema::resolved;
use crate::script::{Script, ScriptLine};

/// One verb's script, with its second form where it drains.
#[derive(Debug, Clone)]
pub(crate) struct Forms {
    /// The usual one.
    pub(crate) usual: Script,
    /// The script that runs in its place if memory is full; none if the verb does not drain, or runs then anyway.
    pub(crate) at_brim: Option<Script>,
}

impl Forms {
    fn of(verb: Verb) -> Self {
        let (word, parts) = (verb.as_str(), verb.parts());
        let at_brim = parts.composed_at_brim().map(|source| Script::new(word, source));
        Self { usual: Script::new(word, parts.composed()), at_brim }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = &Script> {
        std::iter::once(&self.usual).chain(&self.at_brim)
    }
}

/// All scripts. Each is put together and hashed when it is first asked for: a command needs few of them, and all took most of
/// its start.
#[derive(Debug, Clone)]
pub struct Scripts {
    /// In the order of [`Verb::ALL`].
    forms: [OnceLock<Forms>; Verb::ALL.len()],
}

impl Scripts {
    /// The scripts that are compiled in.
    #[must_use]
    pub fn embedded() -> Self {
        Self::clone(&Self::shared())
    }

    /// The same, put together once in a process, however many shards it has.
    pub(crate) fn shared() -> Arc<Self> {
        static EMBEDDED: LazyLock<Arc<Scripts>> =
            LazyLock::new(|| Arc::new(Scripts { forms: [const { OnceLock::new() }; Verb::ALL.len()] }));
        Arc::clone(&EMBEDDED)
    }

    /// Replaces `from` by `to` in the scripts that contain it, both written as scripts are. For tests that switch a rule
    /// off.
    ///
    /// # Errors
    /// The text to replace, where no script contains it: the guard has moved and the test must follow.
    pub fn sabotage(mut self, from: &str, to: &str) -> Result<Self, String> {
        let (from, to) = (&*resolved(from), &*resolved(to));
        let mut hit = false;
        Verb::ALL.into_iter().for_each(|verb| _ = self.of(verb));
        let forms = self.forms.iter_mut().filter_map(OnceLock::get_mut);
        let scripts = forms.flat_map(|forms| std::iter::once(&mut forms.usual).chain(&mut forms.at_brim));
        for script in scripts.filter(|s| s.source.contains(from)) {
            *script = Script::new(script.verb, script.source.replace(from, to));
            hit = true;
        }
        if hit { Ok(self) } else { Err(format!("no script contains {from:?}")) }
    }

    /// The script of a verb.
    pub(crate) fn of(&self, verb: Verb) -> &Forms {
        self.forms[verb as usize].get_or_init(|| Forms::of(verb))
    }

    /// Where the lines of the sources stand, in the order of [`Self::iter`]. For tests that tell which of them ran.
    pub fn lines() -> impl Iterator<Item = Vec<ScriptLine>> {
        let forms = |verb: Verb| if verb.parts().drains { 2 } else { 1 };
        Verb::ALL.into_iter().flat_map(move |verb| repeat_n(verb.parts().lines(), forms(verb)))
    }

    /// The verbs and sources, for `doctor` and the tidy test; those that drain come twice.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        Verb::ALL.into_iter().flat_map(|verb| self.of(verb).each()).map(|script| (script.verb, script.source.as_str()))
    }
}

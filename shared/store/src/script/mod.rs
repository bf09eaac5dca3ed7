//! The function that Redis runs, and how replies are read.

pub(crate) mod reply;

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

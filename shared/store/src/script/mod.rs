//! The function that Redis runs, and the reader of replies.

pub(crate) mod reply;

/// A script for Redis.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// Its name in errors and metrics.
    pub(crate) verb: &'static str,
    /// Its text.
    pub(crate) source: String,
    /// The digest that identifies the script in Redis.
    pub(crate) digest: String,
}

impl Script {
    /// The script of `verb` with this text.
    pub(crate) fn new(verb: &'static str, source: String) -> Self {
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { verb, source, digest }
    }
}

/// A Redis function, and a script with the same text. The script is for servers and users without functions.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// The name of the function and of its library. It contains the text's digest, so that several releases can
    /// coexist.
    pub(crate) name: String,
    /// The text of the library.
    pub(crate) source: String,
    /// The script with the same text.
    pub(crate) script: Script,
}

impl Function {
    /// The function of `verb` with this text. If the text is loaded as a library, it registers itself as `NAME`. If it
    /// is run as a script, it takes effect at once. The first line of the text is only for the script: a library has
    /// another first line.
    pub(crate) fn new(verb: &'static str, text: &str) -> Self {
        let script = Script::new(verb, text.to_owned());
        let name = format!("tickfleet_{verb}_{}", script.digest);
        let body = text.split_once('\n').map_or("", |(_, body)| body);
        Self { source: format!("#!lua name={name}\nlocal NAME = '{name}'\n{body}"), name, script }
    }
}

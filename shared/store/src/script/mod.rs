pub(crate) mod reply;

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) verb: &'static str,
    pub(crate) source: String,
    pub(crate) digest: String,
}

impl Script {
    pub(crate) fn new(verb: &'static str, source: String) -> Self {
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { verb, source, digest }
    }
}

/// A Redis function. The script has the same text, for servers without functions and Redis users that may not use
/// functions.
#[derive(Debug, Clone)]
pub(crate) struct Function {
    /// Contains the text's digest, so that several releases can coexist.
    pub(crate) name: String,
    pub(crate) source: String,
    pub(crate) script: Script,
}

impl Function {
    /// As a library, `text` registers a function named `NAME`. As a script, it runs that function at once. The library
    /// gets another first line.
    pub(crate) fn new(verb: &'static str, text: &str) -> Self {
        let script = Script::new(verb, text.to_owned());
        let name = format!("tickfleet_{verb}_{}", script.digest);
        let body = text.split_once('\n').map_or("", |(_, body)| body);
        Self { source: format!("#!lua name={name}\nlocal NAME = '{name}'\n{body}"), name, script }
    }
}

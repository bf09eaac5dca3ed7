//! The differences between the runtimes: the command of a host, the paths that it reads, and the files that are code.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use tickfleet_config::tools::NODE_CODE;
use tickfleet_config::{ModulesDef, ToolRuntime};

const NODE_HOST: &str = "node_modules/tickfleet/dist/host/main.js";

#[derive(Debug, Clone, Copy)]
pub(crate) enum SocketAt {
    StandardInput = 0,
    StandardOutput = 1,
}

impl SocketAt {
    /// Node.js cannot move descriptors, so a shell moves the socket to descriptor 3. Child processes of tools do not
    /// inherit descriptor 3.
    const fn start_of_node(self) -> &'static str {
        match self {
            Self::StandardInput => r#"exec "$@" 3<&0 0</dev/null 1>&2"#,
            Self::StandardOutput => r#"exec "$@" 3<&1 0</dev/null 1>&2"#,
        }
    }
}

/// The runtime's name in texts for people.
pub(crate) const fn name(runtime: ToolRuntime) -> &'static str {
    match runtime {
        ToolRuntime::Python => "Python",
        ToolRuntime::Node => "Node.js",
    }
}

/// The name of the runtime's processes in logs.
pub(crate) const fn process(runtime: ToolRuntime) -> &'static str {
    match runtime {
        ToolRuntime::Python => "a Python process",
        ToolRuntime::Node => "a Node.js process",
    }
}

pub(crate) const fn variables(def: &ModulesDef) -> &'static [(&'static str, &'static str)] {
    match (def.runtime, &def.sandbox) {
        (ToolRuntime::Python, _) => &[("PYTHONUNBUFFERED", "1")],
        // Node.js exits if it is not allowed to read the machine's OpenSSL configuration.
        (ToolRuntime::Node, Some(_)) => &[("OPENSSL_CONF", "/dev/null")],
        (ToolRuntime::Node, None) => &[],
    }
}

pub(crate) fn is_code(runtime: ToolRuntime, path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|ending| match runtime {
        ToolRuntime::Python => ending == "py",
        ToolRuntime::Node => NODE_CODE.contains(&ending) || ending == "json",
    })
}

pub(crate) fn is_beside_code(runtime: ToolRuntime, folder: &OsStr) -> bool {
    folder
        == match runtime {
            ToolRuntime::Python => "__pycache__",
            ToolRuntime::Node => "node_modules",
        }
}

pub(crate) fn command(
    def: &ModulesDef,
    interpreter: String,
    folders: &[PathBuf],
    socket: SocketAt,
) -> Result<Vec<String>, String> {
    let mut argv: Vec<String> = match def.runtime {
        ToolRuntime::Python => {
            let descriptor = (socket as u8).to_string();
            let concurrency = def.concurrency.to_string();
            vec![
                interpreter,
                "-m".into(),
                "tickfleet.host".into(),
                "--fd".into(),
                descriptor,
                "--concurrency".into(),
                concurrency,
            ]
        }
        ToolRuntime::Node => {
            let host = node_host(folders)?.display().to_string();
            ["/bin/sh", "-c", socket.start_of_node(), "sh", &interpreter, &host, "--fd", "3"].map(String::from).into()
        }
    };
    argv.extend(folders.iter().flat_map(|folder| ["--path".to_owned(), folder.display().to_string()]));
    argv.extend(def.modules.iter().cloned());
    Ok(argv)
}

/// Node.js searches for packages from a folder upwards, so an entry without folders uses the working directory.
pub(crate) fn folders(def: &ModulesDef) -> Vec<PathBuf> {
    match def.runtime {
        ToolRuntime::Node if def.path.is_empty() => vec![PathBuf::from(def.cwd.as_deref().unwrap_or("."))],
        _ => def.path.iter().map(PathBuf::from).collect(),
    }
}

/// Returns the paths that the interpreter reads, besides the folders of the modules.
pub(crate) fn reads(def: &ModulesDef, interpreter: &Path, folders: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    match def.runtime {
        ToolRuntime::Python => Ok(virtual_environment(interpreter).into_iter().collect()),
        ToolRuntime::Node => {
            let host = node_host(folders)?;
            // The package can be a link. The host is three levels below the package.
            let package = host.canonicalize().ok().and_then(|host| Some(host.ancestors().nth(3)?.to_owned()));
            let above = folders.iter().flat_map(|folder| folder.ancestors());
            let found = above.flat_map(|folder| [folder.join("node_modules"), folder.join("package.json")]);
            let program = interpreter.canonicalize().ok();
            let mut all: Vec<PathBuf> = found.filter_map(|path| path.canonicalize().ok()).collect();
            all.extend(package.into_iter().chain(program));
            all.sort();
            all.dedup();
            Ok(all)
        }
    }
}

fn virtual_environment(interpreter: &Path) -> Option<PathBuf> {
    let folder = interpreter.parent()?.parent()?;
    folder.join("pyvenv.cfg").is_file().then(|| folder.canonicalize().ok()).flatten()
}

/// Searches as Node.js does, so that the modules use the host's own copy of the package.
fn node_host(folders: &[PathBuf]) -> Result<PathBuf, String> {
    let above = folders.iter().flat_map(|folder| folder.ancestors());
    let host = above.map(|folder| folder.join(NODE_HOST)).find(|host| host.is_file());
    host.ok_or_else(|| {
        let places: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
        format!(
            "the package tickfleet is not installed: no {NODE_HOST} in {} or above; run `npm install tickfleet` there",
            places.join(", ")
        )
    })
}

/// Links are not followed, because Python recognizes a virtual environment by the path of the link.
pub(crate) fn interpreter(name: &str, path: &str) -> Result<PathBuf, String> {
    let found = match name.contains('/') {
        true => Some(PathBuf::from(name)),
        false => path.split(':').map(|folder| Path::new(folder).join(name)).find(|place| place.is_file()),
    };
    let found = found.ok_or_else(|| format!("'{name}' not found in PATH"))?;
    std::path::absolute(&found).map_err(|error| format!("'{}' has no absolute path ({error})", found.display()))
}

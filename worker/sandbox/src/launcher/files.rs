//! What of the machine's files a command needs to run at all: programs, libraries, and facts that are the same everywhere.

/// Folders of programs and libraries: read and executed.
pub(super) const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Files and folders of `/etc` that programs look for: read. Nothing that holds a secret.
pub(super) const ETC: [&str; 16] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/hosts",
    "/etc/inputrc",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/pki",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/ssl/certs",
];

/// Devices: read and written.
pub(super) const DEVICES: [&str; 4] = ["/dev/null", "/dev/full", "/dev/random", "/dev/urandom"];

/// A device that is read only: whoever may also write to it can map it as shared memory without a file, which nothing
/// counts.
pub(super) const ZERO: &str = "/dev/zero";

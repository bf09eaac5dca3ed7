//! Entry point for fuzz targets, which parse several hundred files per second.

/// Makes the current thread parse YAML itself from now on, instead of starting a new thread for each file. On a busy
/// machine, each new thread would wait for a processor. Must be called on the main thread of the process.
pub fn parse_here() {
    crate::document::yaml::parse_here();
}

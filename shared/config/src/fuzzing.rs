//! Entry point for fuzz targets, which parse some hundred files per second.

/// Parses YAML on the current thread from now on, instead of on a new thread for each file, which would wait for a
/// processor on a busy machine. Must be called on the main thread of the process.
pub fn parse_here() {
    crate::document::yaml::parse_here();
}

//! Entry point for fuzz targets, which parse several hundred files per second.

/// From now on, parses YAML on the current thread instead of a new thread for each file. On a busy machine, each new
/// thread would wait for a processor. Must be called on the main thread of the process.
pub fn parse_here() {
    crate::document::yaml::parse_here();
}

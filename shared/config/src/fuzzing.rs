//! Entry point for fuzz targets.

/// Parses YAML without a new thread for each file, because new threads are slow on a busy machine. Call this function
/// on the main thread.
pub fn parse_here() {
    crate::document::yaml::parse_here();
}

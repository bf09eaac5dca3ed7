//! A door for fuzz targets, which parse some hundred files a second.

/// Parses YAML on this thread from now on, instead of one that is begun for each file and waits for a processor on a
/// busy machine. The thread must be the main one of its process.
pub fn parse_here() {
    crate::document::yaml::parse_here();
}

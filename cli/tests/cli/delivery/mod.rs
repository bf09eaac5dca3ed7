//! The chart, the image, what Docker Compose starts, the schemas of the configuration, and how releases are made.

mod chart;
mod compose;
mod image;
mod release;
mod schemas;

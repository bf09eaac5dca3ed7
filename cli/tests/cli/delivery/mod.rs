//! Delivery: the chart, the image, the Compose fleet, the schemas of the configuration, and releases.

mod chart;
mod compose;
mod image;
mod release;
mod schemas;

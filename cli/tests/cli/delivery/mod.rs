//! The chart and the image.

mod chart;
mod image;

//! Bytes to values and back. Every stored or sent format carries a version.

pub mod row;

#[cfg(test)]
mod golden;
#[cfg(test)]
mod samples;

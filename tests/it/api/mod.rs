//! The HTTP API through a real gateway, scheduler and worker: what is written is answered by its
//! owner, and what is answered can be read.

mod changes;
mod dead_letters;
mod fixture;
mod triggers;

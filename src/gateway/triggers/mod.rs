//! `/v1/triggers`: registering triggers, reading, changing, commanding and cancelling them.

pub(super) mod batch;
pub(super) mod commands;
pub(super) mod create;
pub(super) mod patch;
pub(super) mod read;
pub(super) mod resource;

mod idempotent_create;
mod merge_patch;
mod patched_trigger;
mod registration;
mod trigger_body;

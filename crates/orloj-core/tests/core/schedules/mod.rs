//! Recurring triggers: when they come, against another implementation; that each occurrence fires
//! once over years and owners; what is missed; and triggers that wait for others.

mod dag;
mod downtime;
mod oracle;
mod season;
mod world;

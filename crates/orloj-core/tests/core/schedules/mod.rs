//! Recurring triggers: their times, compared with another implementation; that each occurrence
//! fires once over years and owners; what is missed; and triggers that wait for others.

mod dependency_graph;
mod downtime;
mod long_run;
mod oracle;
mod test_partition;

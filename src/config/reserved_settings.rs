//! librdkafka's settings that only Orloj may set: its protocol depends on them, or what it sends at
//! once.

/// Why a librdkafka setting cannot be passed through, or which setting of ours to use instead;
/// `None` if it can be passed through.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    Some(match name {
        "isolation.level" => "aborted fires must stay invisible, so we always read committed",
        "enable.auto.commit" | "enable.auto.offset.store" => {
            "offsets are committed inside the transaction whose effects they describe"
        }
        "enable.idempotence" | "max.in.flight" | "max.in.flight.requests.per.connection" => {
            "order and uniqueness of fires depend on it"
        }
        "acks" | "request.required.acks" => "a fire counts when all replicas have it",
        "transactional.id" => "it follows from topics.prefix and scheduler.instance_id",
        "group.id" => "it follows from topics.prefix",
        "group.instance.id" => "use scheduler.instance_id",
        "group.protocol" => {
            "with the other protocol brokers notice a dead scheduler after 45 s, and not after \
             scheduler.session_timeout; docs/internals/timeouts.md has the reasons"
        }
        "group.remote.assignor" => "use scheduler.assignor",
        "partition.assignment.strategy" => "use scheduler.assignor",
        "partitioner" => "all our topics are partitioned alike; see triggers.partitioner",
        "batch.size" => "topics that take less at once are known by their max.message.bytes",
        "delivery.report.only.error" => "the fast flush depends on it",
        "enable.partition.eof" => "catching up is detected by it where it is needed",
        "auto.offset.reset" => "a missing offset is an alarm, never a silent jump",
        "metadata.broker.list" => "use bootstrap.servers, which is the same setting",
        "session.timeout.ms" => "use scheduler.session_timeout",
        "heartbeat.interval.ms" => "use scheduler.heartbeat_interval",
        "transaction.timeout.ms" => "use scheduler.transaction_timeout",
        "socket.timeout.ms" => "use timeouts.request and timeouts.fetch",
        "message.timeout.ms" | "delivery.timeout.ms" => "use timeouts.delivery",
        "socket.connection.setup.timeout.ms" => "use timeouts.connect",
        "topic.metadata.refresh.interval.ms" | "metadata.max.age.ms" => {
            "use timeouts.metadata_refresh and timeouts.metadata_refresh_producers"
        }
        _ => return None,
    })
}

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a topic from its beginning with read_committed, in no group, until it is closed. */
final class Reader implements AutoCloseable {
    private final ConcurrentLinkedQueue<Judge.Seen> seen = new ConcurrentLinkedQueue<>();
    private final KafkaConsumer<byte[], byte[]> consumer;
    private volatile boolean ended;

    Reader(String bootstrap, String topic) {
        consumer = consumer(bootstrap, "read_committed");
        assign(consumer, topic);
        new Thread(this::follow, "reader").start();
    }

    List<Judge.Seen> seen() {
        return List.copyOf(seen);
    }

    @Override
    public void close() {
        ended = true;
    }

    private void follow() {
        try (consumer) {
            while (!ended) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> seen.add(toSeen(record)));
            }
        }
    }

    /** All committed records of a topic that is not written any more. */
    static List<Judge.Seen> readAll(String bootstrap, String topic) throws Exception {
        try (var reader = consumer(bootstrap, "read_committed");
                var ofAll = consumer(bootstrap, "read_uncommitted")) {
            var partitions = assign(reader, topic);
            // A reader comes as far only when no transaction is open any more.
            var ends = ofAll.endOffsets(partitions);
            var records = new ArrayList<Judge.Seen>();
            Cluster.await("the end of " + topic, () -> {
                reader.poll(Duration.ofMillis(100)).forEach(record -> records.add(toSeen(record)));
                return partitions.stream().allMatch(p -> reader.position(p) >= ends.get(p));
            });
            return records;
        }
    }

    private static List<TopicPartition> assign(KafkaConsumer<?, ?> consumer, String topic) {
        var partitions = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition())).toList();
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        return partitions;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String isolation) {
        return new KafkaConsumer<>(
                // A broker that hangs is given up soon: lateness is the scheduler's alone.
                Map.of("bootstrap.servers", bootstrap, "isolation.level", isolation,
                        "request.timeout.ms", 2_000),
                new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Judge.Seen toSeen(ConsumerRecord<byte[], byte[]> record) {
        var now = System.currentTimeMillis();
        var headers = StreamSupport.stream(record.headers().spliterator(), false)
                .map(header -> Map.entry(header.key(), new String(header.value(), UTF_8))).toList();
        return new Judge.Seen(record.partition(), record.offset(), record.timestamp(), now,
                record.key(), record.value(), headers);
    }
}

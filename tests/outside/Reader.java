import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.stream.StreamSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads topics from their beginning with read_committed, in no group. */
final class Reader implements AutoCloseable {
    private final ConcurrentLinkedQueue<Judge.Seen> seen = new ConcurrentLinkedQueue<>();
    private final KafkaConsumer<byte[], byte[]> consumer;
    private volatile boolean ended;

    /** Reads a topic as its records become visible, until it is closed. */
    Reader(String bootstrap, String topic) {
        consumer = consumer(bootstrap);
        assign(consumer, topic);
        new Thread(this::follow, "reader").start();
    }

    Collection<Judge.Seen> seen() {
        return List.copyOf(seen);
    }

    /** Its thread closes the consumer. */
    @Override
    public void close() {
        ended = true;
    }

    private void follow() {
        while (!ended) {
            consumer.poll(Duration.ofMillis(100)).forEach(record -> seen.add(toSeen(record)));
        }
        consumer.close();
    }

    /** All committed records of a topic that is not written any more. */
    static List<Judge.Seen> readAll(String bootstrap, String topic) throws Exception {
        try (var consumer = consumer(bootstrap);
                var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var partitions = assign(consumer, topic);
            Cluster.await("the transactions of " + topic + " to end", () ->
                    ends(admin, partitions, IsolationLevel.READ_COMMITTED)
                            .equals(ends(admin, partitions, IsolationLevel.READ_UNCOMMITTED)));
            var ends = consumer.endOffsets(partitions);
            var all = new ArrayList<Judge.Seen>();
            Cluster.await("the end of " + topic, () -> {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> all.add(toSeen(record)));
                return partitions.stream().allMatch(p -> consumer.position(p) >= ends.get(p));
            });
            return all;
        }
    }

    private static Map<TopicPartition, Long> ends(Admin admin, List<TopicPartition> partitions,
            IsolationLevel isolation) throws Exception {
        var latest = new java.util.HashMap<TopicPartition, OffsetSpec>();
        partitions.forEach(partition -> latest.put(partition, OffsetSpec.latest()));
        var found = new java.util.HashMap<TopicPartition, Long>();
        admin.listOffsets(latest, new ListOffsetsOptions(isolation)).all().get()
                .forEach((partition, end) -> found.put(partition, end.offset()));
        return found;
    }

    private static List<TopicPartition> assign(KafkaConsumer<?, ?> consumer, String topic) {
        var partitions = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(topic, info.partition())).toList();
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        return partitions;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap) {
        return new KafkaConsumer<>(Map.of(
                "bootstrap.servers", bootstrap,
                "isolation.level", "read_committed",
                // A broker that hangs is left soon: the lateness is the scheduler's, not ours.
                "request.timeout.ms", 2_000),
                new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static Judge.Seen toSeen(ConsumerRecord<byte[], byte[]> record) {
        var now = System.currentTimeMillis();
        var headers = StreamSupport.stream(record.headers().spliterator(), false)
                .map(h -> Map.entry(h.key(), new String(h.value(), StandardCharsets.UTF_8))).toList();
        return new Judge.Seen(record.partition(), record.offset(), record.timestamp(), now,
                record.key(), record.value(), headers);
    }
}

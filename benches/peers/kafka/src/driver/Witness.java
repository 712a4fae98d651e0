package driver;

import java.time.Duration;
import java.util.BitSet;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A read_committed reader of what a scheduler writes. A fire counts when it has been received here,
 * and once.
 */
final class Witness implements AutoCloseable {
    private final Peer peer;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final BitSet seen = new BitSet();
    private final Lateness lateness = new Lateness();
    private int measured;
    private int duplicates;
    private int sentinels;
    private long lastMs;
    private long measuredFromMs;

    Witness(Peer peer, String bootstrap, String topic, int partitions) {
        this.peer = peer;
        consumer =
                new KafkaConsumer<>(
                        Map.of(
                                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG,
                                bootstrap,
                                ConsumerConfig.ISOLATION_LEVEL_CONFIG,
                                "read_committed",
                                ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG,
                                false,
                                ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG,
                                10,
                                ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG,
                                4 << 20,
                                ConsumerConfig.MAX_POLL_RECORDS_CONFIG,
                                10_000),
                        new ByteArrayDeserializer(),
                        new ByteArrayDeserializer());
        var all =
                IntStream.range(0, partitions)
                        .mapToObj(partition -> new TopicPartition(topic, partition))
                        .toList();
        consumer.assign(all);
        consumer.seekToBeginning(all);
    }

    /** How late counts from fires due at {@code ms} on. */
    void measureFrom(long ms) {
        measuredFromMs = ms;
    }

    /** Reads until so many measured ones have come, and says whether they came in time. */
    boolean awaitMeasured(int count, long deadlineMs) {
        while (measured < count && System.currentTimeMillis() < deadlineMs) {
            read();
        }
        return measured >= count;
    }

    /** Reads until a sentinel of each partition has come, and says whether they came in time. */
    boolean awaitSentinels(int count, long deadlineMs) {
        while (sentinels < count && System.currentTimeMillis() < deadlineMs) {
            read();
        }
        return sentinels >= count;
    }

    /** Measured ones that have come, each once. */
    int measured() {
        return measured;
    }

    /** Measured ones that came again. */
    int duplicates() {
        return duplicates;
    }

    /** When the last measured one came. */
    long lastMs() {
        return lastMs;
    }

    Lateness lateness() {
        return lateness;
    }

    @Override
    public void close() {
        consumer.close();
    }

    private void read() {
        var received = consumer.poll(Duration.ofMillis(100));
        if (received.isEmpty()) {
            return;
        }
        var nowMs = System.currentTimeMillis();
        for (var fire : received) {
            switch (Kind.of(fire.key())) {
                case MEASURED -> count(Kind.number(fire.key()), peer.dueMs(fire.headers()), nowMs);
                case SENTINEL -> sentinels++;
                case PENDING -> {}
            }
        }
    }

    private void count(int number, long dueMs, long nowMs) {
        if (seen.get(number)) {
            duplicates++;
            return;
        }
        seen.set(number);
        measured++;
        lastMs = nowMs;
        if (dueMs >= measuredFromMs) {
            lateness.add(nowMs - dueMs);
        }
    }
}

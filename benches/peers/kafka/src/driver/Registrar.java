package driver;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.util.Map;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntToLongFunction;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes registrations: all have the same payload, and an id that tells the {@link Kind}.
 *
 * <p>A registration that Kafka refuses ends the measurement.
 */
final class Registrar implements AutoCloseable {
    private final Peer peer;
    private final String topic;
    private final byte[] target;
    private final byte[] payload;
    private final KafkaProducer<byte[], byte[]> producer;
    private volatile Exception refused;

    Registrar(Peer peer, String bootstrap, String topic, String target, int payloadBytes) {
        this.peer = peer;
        this.topic = topic;
        this.target = target.getBytes(US_ASCII);
        payload = payload(payloadBytes);
        producer =
                new KafkaProducer<>(
                        Map.of(
                                ProducerConfig.BOOTSTRAP_SERVERS_CONFIG,
                                bootstrap,
                                ProducerConfig.COMPRESSION_TYPE_CONFIG,
                                "lz4",
                                ProducerConfig.LINGER_MS_CONFIG,
                                2,
                                ProducerConfig.BATCH_SIZE_CONFIG,
                                256 << 10,
                                ProducerConfig.BUFFER_MEMORY_CONFIG,
                                64L << 20),
                        new ByteArraySerializer(),
                        new ByteArraySerializer());
    }

    /** Registers {@code count} as fast as it goes, each due as {@code dueMs} says. */
    void fill(Kind kind, int count, IntToLongFunction dueMs) {
        for (var number = 0; number < count; number++) {
            register(kind, number, dueMs.applyAsLong(number), null);
        }
        flush();
    }

    /** Registers {@code count}, {@code rate} a second from {@code beginMs} on. */
    void live(int count, int rate, long beginMs, long delayMs) {
        for (var number = 0; number < count; number++) {
            var at = beginMs + number * 1_000L / rate;
            while (System.currentTimeMillis() < at) {
                LockSupport.parkNanos(200_000);
            }
            register(Kind.MEASURED, number, peer.roundUp(at + delayMs), null);
        }
        flush();
    }

    /** One registration in each partition, which comes out after all before it went in. */
    void sentinels(int partitions, long dueMs) {
        for (var partition = 0; partition < partitions; partition++) {
            register(Kind.SENTINEL, partition, dueMs, partition);
        }
        flush();
    }

    /** Writes as if it were the scheduler. */
    void fires(int first, int count) {
        for (var number = first; number < first + count; number++) {
            register(Kind.MEASURED, number, 0, null);
        }
        flush();
    }

    @Override
    public void close() {
        producer.close();
    }

    private void register(Kind kind, int number, long dueMs, Integer partition) {
        var id = kind.id(number);
        var registration = new ProducerRecord<>(topic, partition, id, payload);
        peer.register(registration.headers(), dueMs, id, target);
        producer.send(
                registration,
                (written, failure) -> {
                    if (failure != null) {
                        refused = failure;
                    }
                });
    }

    private void flush() {
        producer.flush();
        if (refused != null) {
            throw new IllegalStateException("a registration was refused", refused);
        }
    }

    /** Text that compresses about as well as the JSON of real payloads. */
    private static byte[] payload(int bytes) {
        var payload = new byte[bytes];
        for (var at = 0; at < bytes; at++) {
            payload[at] = (byte) ('a' + at * at % 26);
        }
        return payload;
    }
}

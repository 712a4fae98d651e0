package streams;

import java.io.IOException;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KafkaStreams.State;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * A scheduler as one would write it with Kafka Streams: registrations in, fires out, exactly once.
 *
 * <p>The topology is one processor with one persistent store; see {@link Timeline}. It prints
 * "ready" when it has its partitions, and ends when its standard input closes.
 *
 * <p>Environment: BOOTSTRAP_SERVERS, SCHEDULES_TOPICS (the input topic), GROUP_ID, WORK (a folder),
 * and what {@link #tuned} reads, for whoever doubts its defaults.
 */
public final class SchedulerApp {
    private SchedulerApp() {}

    public static void main(String[] arguments) throws IOException {
        var streams = new KafkaStreams(topology(), settings());
        streams.setUncaughtExceptionHandler(
                failure -> {
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                    throw new AssertionError("halted");
                });
        streams.setStateListener(
                (now, before) -> {
                    if (now == State.RUNNING) {
                        System.out.println("ready");
                    }
                });
        streams.start();
        while (System.in.read() != -1) {
            // Nothing is ever said: only the end matters.
        }
        Runtime.getRuntime().halt(0);
    }

    private static Topology topology() {
        var timeline =
                new Timeline.Settings(
                        Duration.ofMillis(tuned("TICK_MS", 5)),
                        tuned("FIRES_PER_TICK", 4_000),
                        tuned("SHORTCUT", 1) == 1,
                        tuned("INDEX", 0) == 1);
        var topology = new Topology();
        topology
                .addSource(
                        "registrations",
                        new ByteArrayDeserializer(),
                        new ByteArrayDeserializer(),
                        environment("SCHEDULES_TOPICS"))
                .addProcessor("timeline", () -> new Timeline(timeline), "registrations")
                .addStateStore(store(Timeline.STORE), "timeline")
                .addSink(
                        "fires",
                        (key, fire, record) -> fire.topic(),
                        new ByteArraySerializer(),
                        (String topic, Fire fire) -> fire.payload(),
                        "timeline");
        return timeline.indexed()
                ? topology.addStateStore(store(Timeline.INDEX), "timeline")
                : topology;
    }

    private static StoreBuilder<KeyValueStore<Bytes, byte[]>> store(String name) {
        return Stores.keyValueStoreBuilder(
                        Stores.persistentKeyValueStore(name), Serdes.Bytes(), Serdes.ByteArray())
                // Nothing is read again or overwritten soon: a cache would only copy.
                .withCachingDisabled()
                // A key is put once and deleted once, so compacting early saves nothing.
                .withLoggingEnabled(Map.of("segment.bytes", "268435456"));
    }

    private static Properties settings() {
        var settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, environment("GROUP_ID"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, environment("BOOTSTRAP_SERVERS"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, environment("WORK"));
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, tuned("THREADS", 2));
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, tuned("COMMIT_MS", 50));
        // An idle thread waits this long for records before it looks at its punctuators.
        settings.put(StreamsConfig.POLL_MS_CONFIG, tuned("POLL_MS", 5));
        settings.put(StreamsConfig.BUFFERED_RECORDS_PER_PARTITION_CONFIG, 20_000);
        settings.put(
                StreamsConfig.ROCKSDB_CONFIG_SETTER_CLASS_CONFIG, TimelineRocksDb.class.getName());

        consumer(settings, ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        consumer(settings, ConsumerConfig.MAX_POLL_RECORDS_CONFIG, 10_000);
        consumer(settings, ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG, 4 << 20);
        consumer(settings, ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG, 50);

        producer(settings, ProducerConfig.COMPRESSION_TYPE_CONFIG, "lz4");
        producer(settings, ProducerConfig.BATCH_SIZE_CONFIG, 512 << 10);
        producer(settings, ProducerConfig.LINGER_MS_CONFIG, tuned("LINGER_MS", 5));
        producer(settings, ProducerConfig.BUFFER_MEMORY_CONFIG, 128 << 20);
        return settings;
    }

    private static void consumer(Properties settings, String name, Object value) {
        settings.put(StreamsConfig.consumerPrefix(name), value);
    }

    private static void producer(Properties settings, String name, Object value) {
        settings.put(StreamsConfig.producerPrefix(name), value);
    }

    private static int tuned(String name, int ours) {
        return Integer.parseInt(System.getenv().getOrDefault(name, Integer.toString(ours)));
    }

    private static String environment(String name) {
        var value = System.getenv(name);
        if (value == null) {
            throw new IllegalArgumentException("the environment lacks " + name);
        }
        return value;
    }
}

import java.io.IOException;
import java.lang.ProcessBuilder.Redirect;
import java.net.*;
import java.net.http.*;
import java.nio.file.*;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;

/** Three brokers and the schedulers, each a process on loopback with its data below one folder. */
final class Cluster implements AutoCloseable {
    static final int TARGET_PARTITIONS = 6;
    private static final int BROKERS = 3;
    private static final long READY_MS = 60_000;
    private static final long END_MS = 20_000;

    /** Where things are: the case's data, the list of processes, the scheduler, Kafka's jars. */
    record Places(Path data, Path processes, String orloj, String jars) {}

    private final long began = System.currentTimeMillis();
    private final Places places;
    private final List<Child> brokers = new ArrayList<>();
    private final List<Child> others = new ArrayList<>();
    /** What ended that was not killed, or did not end as it was asked to. */
    final List<String> ended = new ArrayList<>();
    final String bootstrap;
    private final Admin admin;
    /** By the id of the broker: of the broker and of its controller. */
    private final Map<Integer, int[]> ports = new TreeMap<>();
    private int nextPort = 20_000 + (int) (ProcessHandle.current().pid() % 10_000);

    Cluster(Places places) throws Exception {
        this.places = places;
        Files.createDirectories(places.data);
        var ids = IntStream.rangeClosed(1, BROKERS).boxed().toList();
        ids.forEach(id -> ports.put(id, new int[] {freePort(), freePort()}));
        bootstrap = ids.stream().map(id -> "127.0.0.1:" + ports.get(id)[0])
                .collect(Collectors.joining(","));
        var formats = new ArrayList<Child>();
        for (var id : ids) {
            var name = "broker-" + id;
            var file = properties(id).toString();
            formats.add(new Child(name, java("kafka.tools.StorageTool", "format", "--cluster-id",
                    "b3Jsb2otdGVzdC1rYWZrYQ", "--config", file), Map.of(), 0));
            brokers.add(new Child(name, java("kafka.Kafka", file), Map.of(), 0));
        }
        for (var format : formats) {
            format.start();
        }
        for (var format : formats) {
            format.awaitSuccess();
        }
        for (var broker : brokers) {
            broker.start();
        }
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        awaitBrokers();
    }

    void awaitBrokers() throws Exception {
        await("three brokers", () -> admin.describeCluster().nodes().get().size() == BROKERS);
    }

    /** Creates Orloj's topics by its own command, and the topic that it fires into. */
    void createTopics(String triggers, String target) throws Exception {
        var apply = new Child("topics", List.of(places.orloj, "topics", "apply"), settings(), 0);
        apply.start();
        apply.awaitSuccess();
        var topic = new NewTopic(target, TARGET_PARTITIONS, (short) BROKERS);
        admin.createTopics(List.of(topic)).all().get();
        var both = List.of(target, triggers);
        await("the topics", () -> admin.describeTopics(both).allTopicNames().get().size() == 2);
    }

    Child startScheduler(String name) throws Exception {
        var port = freePort();
        var settings = settings();
        settings.put("ORLOJ_SCHEDULER__LISTEN", "127.0.0.1:" + port);
        var data = "scheduler.data_dir=" + places.data.resolve(name);
        var command = List.of(places.orloj, "scheduler", "--set", data);
        var child = new Child(name, command, settings, port);
        others.add(child);
        child.start();
        return child;
    }

    /** The broker that coordinates the group of the schedulers. */
    Child coordinator() throws Exception {
        var group = admin.listGroups().all().get().iterator().next().groupId();
        var description = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        return brokers.get(description.coordinator().id() - 1);
    }

    /** SIGSTOP in the middle of a transaction, if one of a few attempts finds one. */
    void stopInTransaction(Child scheduler) throws Exception {
        var open = new ListTransactionsOptions().filterOnDuration(1_000);
        for (int attempt = 0; attempt < 5; attempt++) {
            scheduler.signal("STOP");
            Thread.sleep(1_500);
            var transactions = admin.listTransactions(open).all().get();
            if (transactions.stream().anyMatch(t -> t.transactionalId().startsWith("orloj."))) {
                say(scheduler.name + " is stopped in a transaction");
                return;
            }
            scheduler.signal("CONT");
            Thread.sleep(500);
        }
        scheduler.signal("STOP");
    }

    void noteWhatEnded() {
        brokers.forEach(Child::noteIfEnded);
    }

    @Override
    public void close() {
        admin.close(Duration.ZERO);
        others.forEach(child -> child.process.destroyForcibly());
        brokers.forEach(child -> child.process.destroyForcibly());
    }

    /** What is going on, for those who wait. */
    void say(String what) {
        System.err.printf("[%3d s] %s%n", (System.currentTimeMillis() - began) / 1_000, what);
    }

    private Map<String, String> settings() {
        return new HashMap<>(Map.of("ORLOJ_KAFKA__BOOTSTRAP_SERVERS", bootstrap,
                "ORLOJ_TOPICS__PARTITIONS", "8", "ORLOJ_TOPICS__REPLICATION_FACTOR", "3"));
    }

    private Path properties(int id) throws IOException {
        var voters = ports.entrySet().stream()
                .map(entry -> entry.getKey() + "@127.0.0.1:" + entry.getValue()[1])
                .collect(Collectors.joining(","));
        var listeners = "PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d"
                .formatted(ports.get(id)[0], ports.get(id)[1]);
        var data = places.data.resolve("broker-" + id);
        return Files.writeString(Path.of(data + ".properties"), """
                process.roles=broker,controller
                node.id=%d
                controller.quorum.voters=%s
                controller.listener.names=CONTROLLER
                inter.broker.listener.name=PLAINTEXT
                listeners=%s
                advertised.listeners=%s
                listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
                log.dirs=%s
                auto.create.topics.enable=false
                min.insync.replicas=2
                offsets.topic.replication.factor=3
                offsets.topic.num.partitions=8
                transaction.state.log.replication.factor=3
                transaction.state.log.min.isr=2
                transaction.state.log.num.partitions=8
                """.formatted(id, voters, listeners, listeners, data));
    }

    private List<String> java(String... arguments) {
        var command = new ArrayList<>(List.of("java", "-Xmx512m", "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN",
                "-cp", places.jars + "/*"));
        command.addAll(List.of(arguments));
        return command;
    }

    /** Below the ports of outgoing connections: what is started again finds its own free. */
    private int freePort() {
        while (true) {
            try (var socket = new ServerSocket(nextPort++, 1, InetAddress.getLoopbackAddress())) {
                return socket.getLocalPort();
            } catch (IOException taken) {
                continue;
            }
        }
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        Exception last = null;
        var until = System.currentTimeMillis() + READY_MS;
        while (System.currentTimeMillis() < until) {
            try {
                if (condition.call()) {
                    return;
                }
            } catch (IOException | ExecutionException notYet) {
                last = notYet;
            }
            Thread.sleep(100);
        }
        throw new IOException("waited in vain for " + what, last);
    }

    /** A process that can be started again with the same command; it has a log of its name. */
    final class Child {
        private final String name;
        private final int port;
        private final ProcessBuilder command;
        private Process process;

        private Child(String name, List<String> command, Map<String, String> settings, int port) {
            this.name = name;
            this.port = port;
            var log = places.data.resolve(name + ".log").toFile();
            this.command = new ProcessBuilder(command).redirectErrorStream(true);
            this.command.redirectOutput(Redirect.appendTo(log));
            this.command.environment().keySet().removeIf(key -> key.startsWith("ORLOJ"));
            this.command.environment().putAll(settings);
        }

        void start() throws IOException {
            say("starts " + name);
            process = command.start();
            Files.writeString(places.processes, process.pid() + "\n", StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        }

        void awaitSuccess() throws Exception {
            if (process.waitFor() != 0) {
                throw new IOException(name + " failed: see its log");
            }
        }

        void awaitReady() throws Exception {
            var client = HttpClient.newHttpClient();
            var request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/readyz"))
                    .timeout(Duration.ofSeconds(1)).build();
            var ignored = HttpResponse.BodyHandlers.discarding();
            await(name + " to be ready", () -> process.isAlive()
                    && client.send(request, ignored).statusCode() == 200);
        }

        void kill() throws InterruptedException {
            say("kills " + name);
            noteIfEnded();
            process.destroyForcibly().waitFor();
        }

        /** STOP or CONT. */
        void signal(String signal) throws Exception {
            say("sends SIG" + signal + " to " + name);
            if (!noteIfEnded()) {
                var pid = Long.toString(process.pid());
                new ProcessBuilder("kill", "-s", signal, pid).start().waitFor();
            }
        }

        /** SIGTERM; it must end by itself and without an error. */
        void terminate() throws InterruptedException {
            say("ends " + name);
            if (noteIfEnded()) {
                return;
            }
            process.destroy();
            if (!process.waitFor(END_MS, TimeUnit.MILLISECONDS)) {
                ended.add(name + " did not end within " + END_MS + " ms");
            } else if (process.exitValue() != 0) {
                ended.add(name + ", asked to end, ended with " + process.exitValue());
            }
        }

        boolean noteIfEnded() {
            if (!process.isAlive()) {
                ended.add(name + " ended by itself with " + process.exitValue());
            }
            return !process.isAlive();
        }
    }
}

import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/** Three brokers and the schedulers, each a process on loopback with its data below one folder. */
final class Cluster implements AutoCloseable {
    static final int TARGET_PARTITIONS = 6;
    private static final int BROKERS = 3;
    private static final long READY_MS = 60_000;
    private static final long END_MS = 20_000;

    private final Path folder;
    private final Path pids;
    private final String binary;
    private final String jars;
    private final List<Child> brokers = new ArrayList<>();
    private final List<Child> others = new ArrayList<>();
    /** What ended without having been killed. */
    final List<String> ended = new ArrayList<>();
    final String bootstrap;
    private final Admin admin;
    private final long began = System.currentTimeMillis();
    private int nextPort = 20_000 + (int) (ProcessHandle.current().pid() % 10_000);

    /** A process that can be started again with the same command. */
    final class Child {
        final String name;
        private final ProcessBuilder command;
        private final URI ready;
        private Process process;

        private Child(String name, List<String> command, Map<String, String> settings, URI ready) {
            this.name = name;
            this.ready = ready;
            this.command = new ProcessBuilder(command).redirectErrorStream(true);
            this.command.redirectOutput(
                    ProcessBuilder.Redirect.appendTo(folder.resolve(name + ".log").toFile()));
            this.command.environment().keySet().removeIf(key -> key.startsWith("ORLOJ"));
            this.command.environment().putAll(settings);
        }

        void start() throws IOException {
            say("starts " + name);
            process = command.start();
            Files.writeString(pids, process.pid() + "\n", StandardOpenOption.CREATE,
                    StandardOpenOption.APPEND);
        }

        void kill() throws InterruptedException {
            say("kills " + name);
            noteIfEnded();
            process.destroyForcibly().waitFor();
        }

        /** SIGSTOP or SIGCONT. */
        void signal(String signal) throws Exception {
            say("sends SIG" + signal + " to " + name);
            noteIfEnded();
            run(List.of("kill", "-s", signal, Long.toString(process.pid())));
        }

        void awaitReady() throws Exception {
            var client = HttpClient.newHttpClient();
            var request = HttpRequest.newBuilder(ready).timeout(Duration.ofSeconds(1)).build();
            await(name + " to be ready", () -> process.isAlive()
                    && client.send(request, HttpResponse.BodyHandlers.discarding()).statusCode() == 200);
        }

        /** SIGTERM; it must end by itself and without an error. */
        void terminate() throws InterruptedException {
            if (noteIfEnded()) {
                return;
            }
            say("ends " + name);
            process.destroy();
            if (!process.waitFor(END_MS, TimeUnit.MILLISECONDS)) {
                ended.add(name + " did not end within " + END_MS + " ms");
            } else if (process.exitValue() != 0) {
                ended.add(name + " ended with " + process.exitValue() + " when it was asked to end");
            }
        }

        boolean noteIfEnded() {
            if (!process.isAlive()) {
                ended.add(name + " ended by itself with " + process.exitValue());
            }
            return !process.isAlive();
        }
    }

    Cluster(Path folder, Path pids, String binary, String jars) throws Exception {
        this.folder = Files.createDirectories(folder);
        this.pids = pids;
        this.binary = binary;
        this.jars = jars;
        var ports = IntStream.range(0, 2 * BROKERS).map(any -> freePort()).toArray();
        bootstrap = IntStream.range(0, BROKERS).mapToObj(i -> "127.0.0.1:" + ports[i])
                .collect(Collectors.joining(","));
        var formats = new ArrayList<Process>();
        for (int i = 0; i < BROKERS; i++) {
            formats.add(prepareBroker(i + 1, ports));
        }
        for (var format : formats) {
            if (format.waitFor() != 0) {
                throw new IOException("the storage of a broker cannot be formatted: see its log");
            }
        }
        for (var broker : brokers) {
            broker.start();
        }
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        await("three brokers", () -> admin.describeCluster().nodes().get().size() == BROKERS);
    }

    /** Creates Orloj's topics by its own command, and the topic that it fires into. */
    void createTopics(String target) throws Exception {
        var apply = new Child("topics", List.of(binary, "topics", "apply"), settings(), null);
        apply.start();
        if (apply.process.waitFor() != 0) {
            throw new IOException("orloj topics apply failed: see topics.log");
        }
        admin.createTopics(List.of(new NewTopic(target, TARGET_PARTITIONS, (short) BROKERS)))
                .all().get();
        await("the topics to be known", () ->
                admin.describeTopics(List.of(target, "orloj.triggers")).allTopicNames().get() != null);
    }

    Child startScheduler(String name) throws Exception {
        var port = freePort();
        var settings = settings();
        settings.put("ORLOJ_SCHEDULER__LISTEN", "127.0.0.1:" + port);
        var data = "scheduler.data_dir=" + folder.resolve(name);
        var ready = URI.create("http://127.0.0.1:" + port + "/readyz");
        var child = new Child(name, List.of(binary, "scheduler", "--set", data), settings, ready);
        others.add(child);
        child.start();
        return child;
    }

    /** The broker that decides about the membership and the offsets of the schedulers. */
    Child coordinator() throws Exception {
        var group = admin.listGroups().all().get().iterator().next().groupId();
        var description = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        return brokers.get(description.coordinator().id() - 1);
    }

    /** What no test has killed must run. */
    void noteWhatEnded() {
        brokers.forEach(Child::noteIfEnded);
    }

    @Override
    public void close() {
        admin.close(Duration.ZERO);
        for (var child : others) {
            child.process.destroyForcibly();
        }
        for (var child : brokers) {
            child.process.destroyForcibly();
        }
    }

    private Map<String, String> settings() {
        return new java.util.HashMap<>(Map.of(
                "ORLOJ_KAFKA__BOOTSTRAP_SERVERS", bootstrap,
                "ORLOJ_TOPICS__PARTITIONS", "8",
                "ORLOJ_TOPICS__REPLICATION_FACTOR", Integer.toString(BROKERS)));
    }

    private Process prepareBroker(int id, int[] ports) throws Exception {
        var voters = IntStream.range(0, BROKERS)
                .mapToObj(i -> (i + 1) + "@127.0.0.1:" + ports[BROKERS + i])
                .collect(Collectors.joining(","));
        var plain = "PLAINTEXT://127.0.0.1:" + ports[id - 1];
        var controller = "CONTROLLER://127.0.0.1:" + ports[BROKERS + id - 1];
        var file = folder.resolve("broker-" + id + ".properties");
        Files.writeString(file, """
                process.roles=broker,controller
                node.id=%d
                controller.quorum.voters=%s
                controller.listener.names=CONTROLLER
                inter.broker.listener.name=PLAINTEXT
                listeners=%s,%s
                advertised.listeners=%s,%s
                listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
                log.dirs=%s
                auto.create.topics.enable=false
                min.insync.replicas=2
                offsets.topic.replication.factor=3
                offsets.topic.num.partitions=8
                transaction.state.log.replication.factor=3
                transaction.state.log.min.isr=2
                transaction.state.log.num.partitions=8
                """.formatted(id, voters, plain, controller, plain, controller,
                folder.resolve("broker-" + id)));
        brokers.add(new Child("broker-" + id, java("kafka.Kafka", file.toString()), Map.of(), null));
        return new ProcessBuilder(java("kafka.tools.StorageTool", "format", "--cluster-id",
                "b3Jsb2otdGVzdC1rYWZrYQ", "--config", file.toString()))
                .redirectErrorStream(true)
                .redirectOutput(folder.resolve("broker-" + id + ".log").toFile()).start();
    }

    private List<String> java(String... arguments) {
        var command = new ArrayList<>(List.of("java", "-Xmx512m", "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC", "-Dorg.apache.logging.log4j.level=WARN", "-cp", jars + "/*"));
        command.addAll(List.of(arguments));
        return command;
    }

    /** Below the ports of outgoing connections, so that what is restarted finds its own free. */
    private int freePort() {
        while (true) {
            try (var socket = new ServerSocket(nextPort++, 1, InetAddress.getLoopbackAddress())) {
                return socket.getLocalPort();
            } catch (IOException taken) {
                continue;
            }
        }
    }

    /** What is going on, for those who wait. */
    void say(String what) {
        System.err.printf("[%3d s] %s%n", (System.currentTimeMillis() - began) / 1_000, what);
    }

    static void run(List<String> command) throws Exception {
        if (new ProcessBuilder(command).inheritIO().start().waitFor() != 0) {
            throw new IOException("failed: " + command);
        }
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        Exception last = null;
        for (var until = System.currentTimeMillis() + READY_MS; System.currentTimeMillis() < until;) {
            try {
                if (condition.call()) {
                    return;
                }
            } catch (IOException | java.util.concurrent.ExecutionException notYet) {
                last = notYet;
            }
            Thread.sleep(100);
        }
        throw new IOException("waited in vain for " + what, last);
    }
}

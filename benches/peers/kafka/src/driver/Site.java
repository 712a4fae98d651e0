package driver;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.NewTopic;

/**
 * Where one measurement takes place: topics, a group and a folder of its own, all removed at its
 * end.
 */
final class Site implements AutoCloseable {
    private final Peer peer;
    private final Settings settings;
    private final List<String> command;
    private final String prefix;
    private final Path folder;
    private final Admin admin;
    private SchedulerProcess scheduler;

    Site(Peer peer, Settings settings, List<String> command) throws IOException {
        this.peer = peer;
        this.settings = settings;
        this.command = command;
        prefix = "%s-%d-%d".formatted(
                peer.title(), ProcessHandle.current().pid(), System.currentTimeMillis());
        folder = Files.createDirectories(settings.work().resolve(prefix));
        admin = Admin.create(
                Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, settings.bootstrap()));
        create(
                new NewTopic(input(), settings.partitions(), (short) 1).configs(peer.input()),
                new NewTopic(output(), settings.partitions(), (short) 1),
                new NewTopic(history(), settings.partitions(), (short) 1));
    }

    Peer peer() {
        return peer;
    }

    Registrar registrar() {
        return new Registrar(
                peer, settings.bootstrap(), input(), output(), settings.payloadBytes());
    }

    /** A registrar that needs no scheduler: its registrations are where fires come. */
    Registrar shortCircuit() {
        return new Registrar(
                peer, settings.bootstrap(), output(), output(), settings.payloadBytes());
    }

    Witness witness() {
        return new Witness(peer, settings.bootstrap(), output(), settings.partitions());
    }

    /** Starts the scheduler and waits until it has its partitions. */
    SchedulerProcess startScheduler() throws IOException {
        var environment = new HashMap<>(settings.environment());
        environment.put("BOOTSTRAP_SERVERS", settings.bootstrap());
        environment.put("SCHEDULES_TOPICS", input());
        environment.put("HISTORY_TOPIC", history());
        environment.put("GROUP_ID", prefix);
        environment.put("WORK", folder.toString());
        scheduler = SchedulerProcess.start(command, environment);
        scheduler.awaitReady();
        return scheduler;
    }

    @Override
    public void close() throws IOException {
        if (scheduler != null) {
            scheduler.close();
        }
        try {
            var ours = admin.listTopics().names().get().stream().filter(n -> n.startsWith(prefix));
            admin.deleteTopics(ours.toList()).all().get();
        } catch (InterruptedException | ExecutionException failure) {
            System.err.println("its topics were not deleted: " + failure);
        }
        try (var files = Files.walk(folder)) {
            for (var file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(file);
            }
        }
    }

    private String input() {
        return prefix + "-in";
    }

    private String output() {
        return prefix + "-out";
    }

    private String history() {
        return prefix + "-history";
    }

    private void create(NewTopic... topics) {
        try {
            admin.createTopics(List.of(topics)).all().get();
        } catch (InterruptedException | ExecutionException failure) {
            throw new IllegalStateException("the topics were not created", failure);
        }
    }
}

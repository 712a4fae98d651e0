package driver;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** The measured process. It says "ready" on a line of its own, and ends when its input closes. */
final class SchedulerProcess implements AutoCloseable {
    private final Process process;

    private SchedulerProcess(Process process) {
        this.process = process;
    }

    static SchedulerProcess start(List<String> command, Map<String, String> environment)
            throws IOException {
        var builder = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
        builder.environment().putAll(environment);
        return new SchedulerProcess(builder.start());
    }

    /** Waits until it has its partitions. */
    void awaitReady() throws IOException {
        var says = new BufferedReader(new InputStreamReader(process.getInputStream()));
        for (var line = says.readLine(); line != null; line = says.readLine()) {
            if (line.equals("ready")) {
                // What it prints from now on must not fill the pipe.
                CompletableFuture.runAsync(() -> says.lines().forEach(ignored -> {}));
                return;
            }
        }
        throw new IllegalStateException("the scheduler ended before it was ready");
    }

    boolean isAlive() {
        return process.isAlive();
    }

    /** The most memory it has held, in MiB. */
    long peakRssMb() {
        try (var lines = Files.lines(Path.of("/proc/" + process.pid() + "/status"))) {
            var peak = lines.filter(line -> line.startsWith("VmHWM:")).findFirst().orElseThrow();
            return Long.parseLong(peak.replaceAll("\\D", "")) >> 10;
        } catch (IOException unreadable) {
            throw new UncheckedIOException(unreadable);
        }
    }

    @Override
    public void close() {
        process.destroyForcibly().onExit().join();
    }
}

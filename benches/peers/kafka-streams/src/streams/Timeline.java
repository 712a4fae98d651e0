package streams;

import static java.nio.charset.StandardCharsets.US_ASCII;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * One partition's pending registrations in due order, and the tick that fires what is due.
 *
 * <p>A row's key is the due time (big-endian, ms) and the id, so that rows sort by time; its value
 * is the target topic, its length before it, and the payload. A scan begins at a row that is known
 * to be the first, never at the front of the store: there lie the tombstones of all that has fired.
 *
 * <p>Registrations can be cancelled (by a null value) and replaced only if a second store knows
 * each id's due time. That costs writes, so who needs neither does without: it then registers and
 * fires, and does no more.
 */
final class Timeline implements Processor<byte[], byte[], byte[], Fire> {
    static final String STORE = "timeline";
    static final String INDEX = "due-by-id";

    /**
     * How often to look, how much to fire before a commit is possible, whether to fire at once what
     * is due on arrival, and whether there is an index.
     */
    record Settings(Duration tick, int firesPerTick, boolean shortcut, boolean indexed) {}

    private static final String FIRE_AT = "orloj-fire-at";
    private static final String TARGET = "orloj-target-topic";

    private final Settings settings;
    private final ArrayList<KeyValue<Bytes, byte[]>> fired = new ArrayList<>();
    private final ArrayList<KeyValue<Bytes, byte[]>> forgotten = new ArrayList<>();
    private ProcessorContext<byte[], Fire> context;
    private KeyValueStore<Bytes, byte[]> rows;
    private KeyValueStore<Bytes, byte[]> dueById;

    /** No row sorts before it. */
    private byte[] front = key(0, new byte[0]);

    /** Most triggers name the target of the one before. */
    private String target = "";

    private byte[] targetBytes = {};

    Timeline(Settings settings) {
        this.settings = settings;
    }

    @Override
    public void init(ProcessorContext<byte[], Fire> context) {
        this.context = context;
        rows = context.getStateStore(STORE);
        dueById = settings.indexed() ? context.getStateStore(INDEX) : null;
        context.schedule(settings.tick(), PunctuationType.WALL_CLOCK_TIME, this::fireDue);
    }

    @Override
    public void process(Record<byte[], byte[]> registration) {
        if (settings.indexed()) {
            forget(registration.key());
        }
        if (registration.value() == null) {
            return;
        }
        var headers = registration.headers();
        var due = Long.parseLong(new String(header(headers, FIRE_AT), US_ASCII));
        setTarget(header(headers, TARGET), 0);
        if (settings.shortcut() && due <= context.currentSystemTimeMs()) {
            fire(due, registration.key(), registration.value());
            return;
        }
        var key = key(due, registration.key());
        rows.put(Bytes.wrap(key), row(registration.value()));
        if (settings.indexed()) {
            dueById.put(Bytes.wrap(registration.key()), Arrays.copyOf(key, Long.BYTES));
        }
        if (compare(key, front) < 0) {
            front = key;
        }
    }

    private void fireDue(long now) {
        var end = key(now + 1, new byte[0]);
        if (compare(front, end) >= 0) {
            return;
        }
        try (var due = rows.range(Bytes.wrap(front), Bytes.wrap(end))) {
            while (due.hasNext() && fired.size() < settings.firesPerTick()) {
                var row = due.next();
                fireRow(row.key.get(), row.value);
                fired.add(KeyValue.pair(row.key, null));
            }
            front = due.hasNext() ? due.peekNextKey().get() : end;
        }
        // As one batch of each store.
        rows.putAll(fired);
        fired.clear();
        if (settings.indexed()) {
            dueById.putAll(forgotten);
            forgotten.clear();
        }
    }

    /** Removes what was registered under an id before. */
    private void forget(byte[] id) {
        var due = dueById.get(Bytes.wrap(id));
        if (due != null) {
            // Not as `delete`, which would read the row first.
            rows.put(Bytes.wrap(key(ByteBuffer.wrap(due).getLong(), id)), null);
            dueById.put(Bytes.wrap(id), null);
        }
    }

    private void fireRow(byte[] key, byte[] row) {
        var length = Byte.toUnsignedInt(row[0]);
        setTarget(row, length);
        var id = new byte[key.length - Long.BYTES];
        System.arraycopy(key, Long.BYTES, id, 0, id.length);
        if (settings.indexed()) {
            forgotten.add(KeyValue.pair(Bytes.wrap(id), null));
        }
        var payload = new byte[row.length - 1 - length];
        System.arraycopy(row, 1 + length, payload, 0, payload.length);
        fire(ByteBuffer.wrap(key).getLong(), id, payload);
    }

    private void fire(long due, byte[] id, byte[] payload) {
        var headers = new RecordHeaders();
        headers.add(FIRE_AT, Long.toString(due).getBytes(US_ASCII));
        context.forward(new Record<>(id, new Fire(target, payload), due, headers));
    }

    private byte[] row(byte[] payload) {
        var row = new byte[1 + targetBytes.length + payload.length];
        row[0] = (byte) targetBytes.length;
        System.arraycopy(targetBytes, 0, row, 1, targetBytes.length);
        System.arraycopy(payload, 0, row, 1 + targetBytes.length, payload.length);
        return row;
    }

    /** Takes the target from a header's value, or from a row if {@code length} says how much. */
    private void setTarget(byte[] from, int length) {
        var begin = length == 0 ? 0 : 1;
        var end = length == 0 ? from.length : 1 + length;
        if (!Arrays.equals(from, begin, end, targetBytes, 0, targetBytes.length)) {
            targetBytes = Arrays.copyOfRange(from, begin, end);
            target = new String(targetBytes, US_ASCII);
        }
    }

    private static byte[] header(Headers headers, String name) {
        return headers.lastHeader(name).value();
    }

    private static byte[] key(long due, byte[] id) {
        return ByteBuffer.allocate(Long.BYTES + id.length).putLong(due).put(id).array();
    }

    private static int compare(byte[] left, byte[] right) {
        return Arrays.compareUnsigned(left, right);
    }
}

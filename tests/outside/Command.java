import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.stream.LongStream;
import org.apache.kafka.clients.producer.ProducerRecord;

/** One record of the triggers topic: what it asks for, how it is written, what the broker answered. */
final class Command {
    enum Kind { ONCE, RECURRING, CANCEL }

    enum Form { HEADERS, JSON }

    /** UNKNOWN until the broker has answered; then the log decides whether it is there. */
    enum Answer { UNKNOWN, ACKNOWLEDGED, ABORTED }

    /** Carried by the record and by its fires. */
    static final String NUMBER = "outside-number";

    final int number;
    final String id;
    final Kind kind;
    boolean inTransaction;
    Form form = Form.HEADERS;
    /** When: at a time, or so long after the broker's timestamp, or from start to end (exclusive). */
    long fireAt;
    long delay;
    long every;
    long start;
    long end;
    /** Null: the key of a fire is the trigger's id. */
    String targetKey;
    byte[] payload = {};
    volatile Answer answer = Answer.UNKNOWN;
    /** When commitTransaction returned; 0 for a record outside of a transaction. */
    volatile long committedAt;

    Command(int number, String id, Kind kind) {
        this.number = number;
        this.id = id;
        this.kind = kind;
    }

    String fireKey() {
        return targetKey == null ? id : targetKey;
    }

    /** The due times that follow from the broker's timestamp of the record. */
    List<Long> dueTimes(long timestamp) {
        return switch (kind) {
            case CANCEL -> List.of();
            case ONCE -> List.of(fireAt > 0 ? fireAt : timestamp + delay);
            case RECURRING -> LongStream.iterate(start, due -> due < end, due -> due + every)
                    .boxed().toList();
        };
    }

    /** As docs/reference/formats.md describes it. */
    ProducerRecord<String, byte[]> toRecord(String triggers, String target) {
        var value = kind == Kind.CANCEL ? null : form == Form.JSON ? json(target) : payload;
        var record = new ProducerRecord<>(triggers, id, value);
        header(record, NUMBER, Integer.toString(number));
        if (kind == Kind.CANCEL || form == Form.JSON) {
            return record;
        }
        header(record, "orloj-target-topic", target);
        if (targetKey != null) {
            header(record, "orloj-target-key", targetKey);
        }
        if (kind == Kind.RECURRING) {
            header(record, "orloj-schedule", schedule());
        } else if (fireAt > 0) {
            header(record, "orloj-fire-at", Long.toString(fireAt));
        } else {
            header(record, "orloj-delay", delay + "ms");
        }
        return record;
    }

    private static void header(ProducerRecord<?, ?> record, String name, String value) {
        record.headers().add(name, value.getBytes(StandardCharsets.UTF_8));
    }

    private byte[] json(String target) {
        var fields = new ArrayList<String>();
        fields.add(kind == Kind.RECURRING ? "\"schedule\": " + schedule()
                : fireAt > 0 ? "\"fireAt\": " + fireAt : "\"delay\": " + delay);
        fields.add("\"target\": {\"topic\": \"" + target + "\""
                + (targetKey == null ? "" : ", \"key\": \"" + targetKey + "\"") + "}");
        fields.add("\"payloadBase64\": \"" + Base64.getEncoder().encodeToString(payload) + "\"");
        return ("{" + String.join(", ", fields) + "}").getBytes(StandardCharsets.UTF_8);
    }

    /** However late an occurrence is, it fires: none may be left out. */
    private String schedule() {
        return "{\"every\": %d, \"start\": %d, \"end\": %d, \"misfire\": {\"all\": 1000}}"
                .formatted(every, start, end);
    }
}

package driver;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;

/** One JSON object on one line. */
final class Result {
    private final Map<String, Object> fields = new LinkedHashMap<>();

    Result(Peer peer, String name) {
        put("peer", peer.title());
        put("version", peer.version());
        put("case", name);
    }

    /** A number, a boolean, or text. */
    Result put(String name, Object value) {
        fields.put(name, value);
        return this;
    }

    /** Adds a sentence to the remarks. */
    Result note(String sentence) {
        fields.merge("note", sentence, (before, more) -> before + " " + more);
        return this;
    }

    @Override
    public String toString() {
        return fields.entrySet().stream()
                .map(field -> quoted(field.getKey()) + ":" + json(field.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
    }

    private static String json(Object value) {
        if (value instanceof Double number) {
            return String.format(java.util.Locale.ROOT, "%.3f", number);
        }
        return value instanceof String text ? quoted(text) : value.toString();
    }

    private static String quoted(String text) {
        var escaped = text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ");
        return '"' + escaped + '"';
    }
}

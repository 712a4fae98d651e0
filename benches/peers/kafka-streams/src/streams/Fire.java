package streams;

/** What is due: its payload, and the topic that its registration named. */
record Fire(String topic, byte[] payload) {}

// The bytes of a registration: when it is due, its number, whether it counts, and the payload.

const HEAD_BYTES = 13;

/** A registration's bytes; `dueMs` is since the epoch. */
export function encode(dueMs, number, counts, payload) {
  const bytes = new Uint8Array(HEAD_BYTES + payload.length);
  const view = new DataView(bytes.buffer);
  view.setBigUint64(0, BigInt(dueMs));
  view.setUint32(8, number);
  view.setUint8(12, counts ? 1 : 0);
  bytes.set(payload, HEAD_BYTES);
  return bytes;
}

/** What `encode` was given, the payload apart. */
export function decode(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  return {
    dueMs: Number(view.getBigUint64(0)),
    number: view.getUint32(8),
    counts: view.getUint8(12) === 1,
  };
}

/** Text that compresses about as well as the JSON of real payloads. */
export function payload(bytes) {
  return Uint8Array.from({ length: bytes }, (_, at) => 97 + ((at * at) % 26));
}

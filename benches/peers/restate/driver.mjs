// Measures Restate's delayed sends: `node driver.mjs <case> key=value...`.
//
// The server, the registrar and the witness are processes of their own. The last line on standard
// output is the result, in JSON; what goes on is told on standard error.

import { mkdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { start } from "./server.mjs";

/** Registrations of one invocation, and invocations at a time. */
const BATCH = 500;
const BATCHES_AT_ONCE = 8;
/** From a live registration to its time. */
const DELAY_MS = 3_000;
/** Live registrations' first fires, which do not count. */
const WARM_UP_S = 2;
/** Live registrations are made in ticks. */
const TICK_MS = 20;
const GRACE_MS = 30_000;
const DAY_MS = 86_400_000;

const [name, ...rest] = process.argv.slice(2);
const asked = Object.fromEntries(rest.map((argument) => argument.split("=", 2)));
const number = (key, ours) => Number(asked[key] ?? ours);
const deadlineMs = Date.now() + 1_000 * number("deadline", 300);
const result = { peer: "restate", version: "1.7.12", case: name };

const fires = { seen: new Set(), late: [], lastMs: 0, duplicates: 0, measureFromMs: 0 };
let wake = () => {};

// A case ends at the deadline by itself, unless a client waits for what never comes.
setTimeout(() => end({ timed_out: true, received: 0 }), deadlineMs + GRACE_MS - Date.now());

const measure = { burst, lateness, sustained }[name];
if (measure === undefined) {
  result.skipped = "The driver knows no such case.";
} else {
  const folder = path.join(asked.work ?? tmpdir(), `restate-${process.pid}`);
  mkdirSync(folder, { recursive: true });
  process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
  const server = await start(folder, number("partitions", 4), deadlineMs, receive);
  await measure(server);
  if (server.isAlive()) {
    result.rss_mb = server.peakRssMb();
  } else {
    result.note = "It ended by itself.";
  }
}
end({});

function end(more) {
  process.stdout.write(`${JSON.stringify({ ...result, ...more })}\n`, () => process.exit());
}

/** All are due in the same millisecond, as the registrar's clock has it. */
async function burst(server) {
  const count = number("count", 100_000);
  const begunMs = Date.now();
  const dueMs = begunMs + 5_000 + Math.ceil((1_000 * count) / number("intake", 4_000));
  await fill(server, count, { counts: true, dueMs });
  say(`registered in ${Date.now() - begunMs} ms; all due in ${dueMs - Date.now()} ms`);
  if (Date.now() > dueMs) {
    result.note = "It was still taking registrations in when they became due.";
  }
  tell(await received(count), count);
  result.seconds = (fires.lastMs - dueMs) / 1e3;
}

/** A steady rate, with others pending for later. */
async function lateness(server) {
  const pending = number("pending", 0);
  const rate = number("rate", 2_000);
  const seconds = number("seconds", 10);
  const begunMs = Date.now();
  const filled = await fill(server, pending, {
    counts: false,
    due: () => begunMs + Math.floor(Math.random() * DAY_MS),
  });
  Object.assign(result, { rate, pending, seconds, pending_fill_s: (Date.now() - begunMs) / 1e3 });
  say(`${filled} pending taken in after ${result.pending_fill_s} s`);
  if (filled < pending) {
    result.note = "It did not take in what was to be pending.";
    tell(false, 0);
    return;
  }
  const count = rate * (WARM_UP_S + seconds);
  const liveMs = Date.now() + 500;
  fires.measureFromMs = liveMs + DELAY_MS + 1_000 * WARM_UP_S;
  live(server, count, rate, liveMs);
  tell(await received(count), count);
  const tookMs = fires.lastMs - liveMs - DELAY_MS;
  result.achieved_per_s = Math.round((1_000 * fires.seen.size) / tookMs);
}

/** Registered as fast as it goes, due soon after: it fires while it still takes in. */
async function sustained(server) {
  const count = number("count", 100_000);
  const spreadMs = 1_000 * number("spread", 10);
  const begunMs = Date.now();
  const due = () => Date.now() + 1_000 + Math.floor(Math.random() * (spreadMs - 1_000));
  const filling = fill(server, count, { counts: true, due });
  const complete = await received(count);
  if (complete) {
    await filling;
  }
  tell(complete, count);
  result.seconds = (fires.lastMs - begunMs) / 1e3;
  result.per_s = Math.round(fires.seen.size / result.seconds);
}

/** Registers `count`, due at `dueMs` or as `due` says, until the deadline. Returns how many. */
async function fill(server, count, { counts, dueMs, due }) {
  let [first, registered] = [0, 0];
  const worker = async () => {
    while (first < count) {
      const batch = { first, count: Math.min(BATCH, count - first), counts, dueMs };
      first += batch.count;
      batch.dues = due && Array.from({ length: batch.count }, due);
      if (!(await register(server, batch))) {
        return;
      }
      registered += batch.count;
    }
  };
  await Promise.all(Array.from({ length: BATCHES_AT_ONCE }, worker));
  return registered;
}

async function live(server, count, rate, fromMs) {
  let first = 0;
  while (first < count) {
    const end = Math.min(count, Math.floor(((Date.now() - fromMs) * rate) / 1_000));
    while (first < end) {
      const dues = [];
      for (let at = first; at < Math.min(end, first + BATCH); at++) {
        dues.push(fromMs + Math.floor((at * 1_000) / rate) + DELAY_MS);
      }
      register(server, { first, count: dues.length, counts: true, dues });
      first += dues.length;
    }
    await new Promise((resolve) => setTimeout(resolve, TICK_MS));
  }
}

/** Says whether it was done before the deadline. */
async function register(server, batch) {
  try {
    await server.register({ ...batch, payloadBytes: number("payload", 300) });
    return true;
  } catch (failure) {
    if (failure.name === "TimeoutError") {
      return false;
    }
    throw failure;
  }
}

function receive(batch) {
  for (const [id, dueMs, atMs] of batch) {
    if (fires.seen.has(id)) {
      fires.duplicates++;
      continue;
    }
    fires.seen.add(id);
    fires.lastMs = Math.max(fires.lastMs, atMs);
    if (dueMs >= fires.measureFromMs) {
      fires.late.push(atMs - dueMs);
    }
  }
  wake();
}

/** Waits until so many have come, and says whether they came in time. */
function received(count) {
  return new Promise((resolve) => {
    const timeout = setTimeout(() => resolve(false), deadlineMs - Date.now());
    wake = () => {
      if (fires.seen.size >= count) {
        clearTimeout(timeout);
        resolve(true);
      }
    };
    wake();
  });
}

function tell(complete, count) {
  result.count = count;
  const late = Float64Array.from(fires.late).sort();
  if (late.length > 0) {
    const allBut = (perThousand) => late.at(-1 - Math.floor((late.length * perThousand) / 1_000));
    Object.assign(result, { p50_ms: allBut(500), p99_ms: allBut(10), p999_ms: allBut(1) });
  }
  if (fires.duplicates > 0) {
    result.duplicates = fires.duplicates;
  }
  if (!complete) {
    Object.assign(result, { timed_out: true, received: fires.seen.size });
  }
}

function say(text) {
  process.stderr.write(`driver: ${text}\n`);
}

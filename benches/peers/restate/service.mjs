// A process with one service: `registrar`, which sends with delays, or `witness`, which receives.
//
// Registrations are made by a service because one invocation can make a thousand of them: one HTTP
// request each would measure the requests. What the witness receives it tells its parent in
// batches; a fire counts when it has been received here.

import http2 from "node:http2";
import * as restate from "@restatedev/restate-sdk";
import { decode, encode, payload } from "./record.mjs";

const TELL_EVERY_MS = 20;

// The SDK takes it for granted; Node has it from version 22 on.
Promise.withResolvers ??= () => {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};

const binary = { input: restate.serde.binary };
// Nothing of what was done is kept: no peer keeps it.
const options = { journalRetention: 0 };

function registrar() {
  let text = payload(300);
  // { first, count, dues: [ms] or dueMs, counts, payloadBytes }
  const register = async (context, batch) => {
    if (text.length !== batch.payloadBytes) {
      text = payload(batch.payloadBytes);
    }
    for (let at = 0; at < batch.count; at++) {
      const dueMs = batch.dues?.[at] ?? batch.dueMs;
      context.genericSend({
        service: "witness",
        method: "fire",
        parameter: encode(dueMs, batch.first + at, batch.counts, text),
        inputSerde: restate.serde.binary,
        delay: Math.max(0, dueMs - Date.now()),
      });
    }
  };
  return restate.service({ name: "registrar", handlers: { register }, options });
}

function witness() {
  let seen = [];
  setInterval(() => {
    if (seen.length > 0) {
      process.send(seen);
      seen = [];
    }
  }, TELL_EVERY_MS);
  const fire = restate.handlers.handler(binary, async (_context, bytes) => {
    const { dueMs, number, counts } = decode(bytes);
    if (counts) {
      seen.push([number, dueMs, Date.now()]);
    }
  });
  return restate.service({ name: "witness", handlers: { fire }, options });
}

const services = [process.argv[2] === "witness" ? witness() : registrar()];
// Neither service waits for anything: a request and its response are enough, and are faster.
const endpoint = restate.createEndpointHandler({ services, bidirectional: false });
const server = http2.createServer(endpoint);
server.listen(0, "127.0.0.1", () => process.send({ port: server.address().port }));
process.on("disconnect", () => process.exit());

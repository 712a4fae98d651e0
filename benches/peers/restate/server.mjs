// Restate's published server, and the two services that it calls, as processes of this one.

import { fork, spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import net from "node:net";
import path from "node:path";

const READY_DEADLINE_MS = 60_000;

/**
 * Starts all; `seen` is called with batches of [number, due, received], in ms. No call takes longer
 * than to the deadline.
 */
export async function start(folder, partitions, deadlineMs, seen) {
  const [ingress, admin, fabric] = await Promise.all([freePort(), freePort(), freePort()]);
  const server = spawn(binary(), ["--no-logo"], {
    env: { ...process.env, ...settings(folder, partitions, { ingress, admin, fabric }) },
    stdio: ["ignore", "ignore", "inherit"],
  });
  const children = [server];
  process.on("exit", () => children.forEach((child) => child.kill("SIGKILL")));

  const ready = Date.now() + READY_DEADLINE_MS;
  await until(ready, () => ok(`http://127.0.0.1:${admin}/health`));
  await until(ready, () => ok(`http://127.0.0.1:${ingress}/restate/health`));
  for (const name of ["witness", "registrar"]) {
    const { child, port } = await startService(name, seen);
    children.push(child);
    await until(ready, () =>
      ok(`http://127.0.0.1:${admin}/deployments`, { uri: `http://127.0.0.1:${port}` }),
    );
  }
  return {
    /** Has a batch registered; returns when the server has made it durable. */
    register: (batch) =>
      call(`http://127.0.0.1:${ingress}/registrar/register`, batch, deadlineMs - Date.now()),
    peakRssMb: () => peakRssMb(server.pid),
    isAlive: () => server.exitCode === null,
  };
}

function settings(folder, partitions, ports) {
  return {
    DO_NOT_TRACK: "1",
    RESTATE_DISABLE_TELEMETRY: "true",
    RESTATE_BASE_DIR: path.join(folder, "restate-data"),
    RESTATE_NODE_NAME: "peer",
    RESTATE_LISTEN_MODE: "tcp",
    RESTATE_BIND_IP: "127.0.0.1",
    RESTATE_ADVERTISED_HOST: "127.0.0.1",
    RESTATE_BIND_PORT: String(ports.fabric),
    RESTATE_INGRESS__BIND_PORT: String(ports.ingress),
    RESTATE_ADMIN__BIND_PORT: String(ports.admin),
    RESTATE_ADMIN__DISABLE_WEB_UI: "true",
    RESTATE_LOG_FILTER: "error,octocrab=off",
    // As many as a Kafka peer has; it would take 24.
    RESTATE_DEFAULT_NUM_PARTITIONS: String(partitions),
    // Kafka does not wait for the disk either.
    RESTATE_LOG_SERVER__ROCKSDB_DISABLE_WAL_FSYNC: "true",
  };
}

function binary() {
  const require = createRequire(import.meta.url);
  const host = `@restatedev/restate-server-linux-${process.arch}`;
  return path.join(path.dirname(require.resolve(`${host}/package.json`)), "bin/restate-server");
}

function startService(name, seen) {
  const env = { ...process.env, RESTATE_LOGGING: "ERROR" };
  const child = fork(new URL("service.mjs", import.meta.url), [name], { env });
  return new Promise((resolve, reject) => {
    child.once("exit", () => reject(new Error(`the ${name} ended before it listened`)));
    child.once("message", ({ port }) => {
      child.on("message", seen);
      resolve({ child, port });
    });
  });
}

async function call(url, body, timeoutMs = READY_DEADLINE_MS) {
  const answer = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(Math.max(0, timeoutMs)),
  });
  if (!answer.ok) {
    throw new Error(`${url}: ${answer.status} ${await answer.text()}`);
  }
  await answer.arrayBuffer();
}

async function ok(url, body) {
  try {
    await (body ? call(url, body) : fetch(url).then((answer) => check(answer, url)));
    return true;
  } catch (failure) {
    ok.last = failure;
    return false;
  }
}

function check(answer, url) {
  if (!answer.ok) {
    throw new Error(`${url}: ${answer.status}`);
  }
}

async function until(deadlineMs, holds) {
  while (!(await holds())) {
    if (Date.now() > deadlineMs) {
      throw new Error("the server is not ready", { cause: ok.last });
    }
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

function freePort() {
  return new Promise((resolve) => {
    const probe = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}

function peakRssMb(pid) {
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return Math.round(Number(/VmHWM:\s+(\d+)/.exec(status)[1]) / 1024);
}

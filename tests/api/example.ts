// Registers a trigger, looks at it, and cancels it, with the types that openapi-typescript makes of
// /openapi.json.

import createClient from "openapi-fetch";
import type { paths } from "./orloj.js";

const { ORLOJ_URL, ORLOJ_KEY, ORLOJ_TOPIC } = process.env;
const orloj = createClient<paths>({
  baseUrl: ORLOJ_URL,
  headers: { Authorization: `Bearer ${ORLOJ_KEY}` },
});

const created = await orloj.POST("/v1/triggers", {
  body: {
    name: "Tea is ready",
    labels: { room: "kitchen" },
    topic: ORLOJ_TOPIC!,
    payload: { minutes: 4 },
    delaySeconds: 3600,
  },
});
if (created.error) throw new Error(JSON.stringify(created.error));
const id = created.data!.triggerId;
const params = { path: { id } };

const pending = await orloj.GET("/v1/triggers/{id}", { params });
if (pending.data?.status !== "PENDING") throw new Error(JSON.stringify(pending));

const cancelled = await orloj.DELETE("/v1/triggers/{id}", { params });
if (cancelled.error) throw new Error(JSON.stringify(cancelled.error));
const cancelled = await orloj.GET("/v1/triggers/{id}", { params });
if (cancelled.data?.status !== "CANCELLED") throw new Error(JSON.stringify(cancelled));
console.log("TypeScript:", id, cancelled.data.status);

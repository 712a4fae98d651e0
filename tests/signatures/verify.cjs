// Verifies deliveries with the official JavaScript library, and v1a, which it passes over, with
// Node's own Ed25519; what was changed must fail.

const assert = require("node:assert");
const crypto = require("node:crypto");
const fs = require("node:fs");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

// What precedes an Ed25519 public key in its DER form.
const PUBLIC_KEY_DER = Buffer.from("302a300506032b6570032100", "hex");

function verifyPair(whpk, body, headers) {
  const der = Buffer.concat([PUBLIC_KEY_DER, Buffer.from(whpk.slice("whpk_".length), "base64")]);
  const key = crypto.createPublicKey({ key: der, format: "der", type: "spki" });
  const signed = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
  const signatures = headers["webhook-signature"].split(" ").filter((s) => s.startsWith("v1a,"));
  return signatures.some((signature) =>
    crypto.verify(null, Buffer.from(signed), key, Buffer.from(signature.slice(4), "base64")),
  );
}

let checks = 0;
for (const delivery of JSON.parse(fs.readFileSync(process.argv[2], "utf8"))) {
  const body = Buffer.from(delivery.body, "base64").toString("utf8");
  const another = { ...delivery.headers, "webhook-id": "another" };
  for (const key of delivery.keys) {
    if (key.public) {
      assert(verifyPair(key.public, body, delivery.headers));
      assert(!verifyPair(key.public, body + " ", delivery.headers));
      assert(!verifyPair(key.public, body, another));
    } else {
      const webhook = new Webhook(key.shared);
      webhook.verify(body, delivery.headers);
      assert.throws(() => webhook.verify(body + " ", delivery.headers), WebhookVerificationError);
      assert.throws(() => webhook.verify(body, another), WebhookVerificationError);
    }
    checks += 2;
  }
}
assert(checks > 0);
console.log(`JavaScript: ${checks} changed requests refused, the true ones verified`);

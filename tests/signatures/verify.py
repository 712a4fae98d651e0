"""Verifies deliveries with the official Python library; a body or an id that was changed must fail."""

import base64
import json
import sys

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

checks = 0
for delivery in json.load(open(sys.argv[1], encoding="utf-8")):
    body, headers = base64.b64decode(delivery["body"]), delivery["headers"]
    for key in delivery["keys"]:
        if "shared" not in key:
            continue  # the library knows v1 alone, and must pass over v1a
        webhook = Webhook(key["shared"])
        webhook.verify(body, headers)
        for changed in [(body + b" ", headers), (body, headers | {"webhook-id": "another"})]:
            try:
                webhook.verify(*changed)
            except WebhookVerificationError:
                checks += 1
            else:
                sys.exit("what was changed is verified")
print(f"Python: {checks} changed requests refused, the true ones verified")
if checks == 0:
    sys.exit("nothing was verified")

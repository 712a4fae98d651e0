"""Registers a trigger, looks at it, and cancels it, with the client that openapi-python-client makes
of /openapi.json."""

import os

from orloj_client import AuthenticatedClient
from orloj_client.api.triggers import cancel_trigger, create_trigger, get_trigger
from orloj_client.models import NewTrigger

client = AuthenticatedClient(base_url=os.environ["ORLOJ_URL"], token=os.environ["ORLOJ_KEY"])

body = NewTrigger.from_dict(
    {
        "name": "Tea is ready",
        "labels": {"room": "kitchen"},
        "topic": os.environ["ORLOJ_TOPIC"],
        "payload": {"minutes": 4},
        "delaySeconds": 3600,
    }
)
created = create_trigger.sync(client=client, body=body)
trigger = get_trigger.sync(id=created.trigger_id, client=client)
assert trigger.name == "Tea is ready", trigger
assert trigger.status == "PENDING", trigger

cancelled = cancel_trigger.sync(id=created.trigger_id, client=client)
assert cancelled.cancelled, cancelled
trigger = get_trigger.sync(id=created.trigger_id, client=client)
assert trigger.status == "CANCELLED", trigger
print("Python:", created.trigger_id, trigger.status)

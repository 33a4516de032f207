"""Sends tasks and reads Celery's result backend for the interop tests: one JSON request a line, one JSON answer a line."""

import json
import sys

from app import app


def send(request):
    for task in request["tasks"]:
        app.send_task(task["name"], args=task["args"], task_id=task["id"])
    return {}


def results(request):
    found = {}
    for task_id in request["ids"]:
        meta = app.backend.get_task_meta(task_id, cache=False)
        value = meta["result"]
        found[task_id] = {
            "state": meta["status"],
            "value": value if isinstance(value, (int, float, str, type(None))) else repr(value),
        }
    return {"results": found}


def runs(request):
    return {"runs": {key.decode(): int(n) for key, n in app.backend.client.hgetall("runs").items()}}


for line in sys.stdin:
    request = json.loads(line)
    answer = {"send": send, "results": results, "runs": runs}[request["op"]](request)
    print(json.dumps(answer), flush=True)

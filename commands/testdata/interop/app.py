"""The Celery application of the interop tests; importing z4j_celery is all that its worker does to get an agent.

INTEROP_REDIS is broker and result backend. Every execution appends one line to INTEROP_RAN, so that a test knows what ran
without asking either side.
"""

import json
import logging
import os
import time

import z4j_celery  # noqa: F401  starts the agent once a worker is ready
from celery import Celery

app = Celery("app", broker=os.environ["INTEROP_REDIS"], backend=os.environ["INTEROP_REDIS"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue="interop",
    task_track_started=True,
    worker_send_task_events=True,
    worker_hijack_root_logger=True,
)
if os.environ.get("INTEROP_EXTENDED"):
    app.conf.result_extended = True  # keeps the arguments of a task, so that it can be run again without being told them
# The agent tells of the first of equal failures only, unless it is asked for more.
logging.getLogger("z4j").setLevel(logging.DEBUG)


def ran(task, *args):
    line = json.dumps({"id": task.request.id, "name": task.name, "args": args}) + "\n"
    fd = os.open(os.environ["INTEROP_RAN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


@app.task(name="app.add", bind=True)
def add(self, a, b):
    ran(self, a, b)
    return a + b


@app.task(name="app.check", bind=True)
def check(self, value):
    ran(self, value)
    if value < 0:
        raise ValueError(f"negative: {value}")
    return value


@app.task(name="app.flaky", bind=True, max_retries=1)
def flaky(self, value):
    ran(self, value)
    if self.request.retries == 0:
        raise self.retry(exc=RuntimeError("once more"), countdown=0)
    return value


@app.task(name="app.count", bind=True)
def count(self, key):
    return app.backend.client.hincrby("runs", key, 1)


@app.task(name="app.once", bind=True)
def once(self, key):
    if app.backend.client.hincrby("runs", key, 1) == 1:
        raise ValueError(f"the first time of {key}")


@app.task(name="app.slow", bind=True)
def slow(self, seconds):
    ran(self, seconds)
    time.sleep(seconds)
    return seconds

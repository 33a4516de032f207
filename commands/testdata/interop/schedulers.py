"""A process whose agent has the schedulers of APScheduler and Celery beat and no worker, for the interop tests.

It changes a schedule every second, and tells each time what the agent has been told by the adapters.
"""

import json
import logging
import os
import time

from apscheduler.schedulers.background import BackgroundScheduler
from celery import Celery
from z4j_apscheduler import APSchedulerAdapter
from z4j_bare.install import install_agent
from z4j_celerybeat import CeleryBeatSchedulerAdapter

logging.basicConfig(level=logging.DEBUG)
logging.getLogger("z4j").setLevel(logging.DEBUG)


def nothing():
    pass


def main():
    beat = Celery("beat", broker=os.environ["INTEROP_REDIS"])
    beat.conf.beat_schedule = {"nightly": {"task": "app.count", "schedule": 86400.0, "args": ("beat",)}}
    scheduler = BackgroundScheduler()
    scheduler.start()
    scheduler.add_job(nothing, "interval", hours=1, id="hourly")
    install_agent(
        engines=[],
        schedulers=[APSchedulerAdapter(scheduler=scheduler), CeleryBeatSchedulerAdapter(celery_app=beat)],
        autostart=True,
    )
    for minutes in range(1, 1000):
        scheduler.reschedule_job("hourly", trigger="interval", minutes=minutes)
        print(json.dumps({"changed": minutes}), flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()

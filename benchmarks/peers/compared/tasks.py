"""What workers do, for each of the peers the same."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery
from django.conf import settings

from compared.models import Note

BROKER = Path(os.environ["PEERS_BROKER"], "messages")
BROKER.mkdir(exist_ok=True)

celery = Celery("compared", broker="filesystem://", task_ignore_result=True, worker_hijack_root_logger=False)
celery.conf.broker_transport_options = {
    "data_folder_in": str(BROKER),
    "data_folder_out": str(BROKER),
    "control_folder": str(BROKER.with_name("control")),
}
# Its default, which keeps 5 s between two looks at the database, would make the tables wait.
celery.conf.beat_max_loop_interval = 1


def work(order: int) -> None:
    """Take as long as the environment says: long enough for somebody to kill us, or to move the row."""
    Note.objects.create(order=order, text="begun")
    time.sleep(float(os.environ.get("PEERS_SLOW", "0")))
    Note.objects.create(order=order, text="done")


def fail(order: int) -> None:
    Note.objects.create(order=order, text="tried")
    raise ValueError("This never works.")


@celery.task
def celery_work(order: int) -> None:
    work(order)


@celery.task(autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0.2)
def celery_fail(order: int) -> None:
    fail(order)


if settings.IS_POSTGRESQL:
    from procrastinate import RetryStrategy
    from procrastinate.contrib.django import app

    @app.task
    def procrastinate_work(order: int) -> None:
        work(order)

    @app.task(retry=RetryStrategy(max_attempts=1))
    def procrastinate_fail(order: int) -> None:
        fail(order)

    if os.environ.get("PEERS_PERIODIC"):

        @app.periodic(cron="* * * * * */1")
        @app.task
        def procrastinate_tick(timestamp: int) -> None:
            work(-1)

"""What goes on in the shop of the demo while it is open: a worker, people who order, a bank and carriers that call back."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Self

from django.db import connection
from django.utils import timezone

from shop import world
from shop.models import Order, Parcel
from statemachine_fields import EventRefused, RowMissing

#: Seconds between two new orders, and between two times that a bank or a carrier looks for news.
NEW_ORDER_EVERY, NEWS_EVERY = 5.0, 2.0
#: Where orders stay. Those are dropped to make room for others.
DONE = ["DELIVERED", "RETURNED", "LOST", "CANCELLED"]

#: Told who says it, and what.
Say = Callable[[str, str], None]


class Worker:
    """`manage.py statemachine_worker shop` as a child, which ends when we do. What it writes is said, line by line."""

    def __init__(self, seconds: float | None, say: Say) -> None:
        self.command = [sys.executable, sys.argv[0], "statemachine_worker", "shop", "--skip-checks"]
        if seconds:
            self.command += ["--run-for", str(seconds)]
        self.say = say

    def __enter__(self) -> Self:
        # In a session of its own: Ctrl-C goes to everyone in ours, and a second signal would end it at once.
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.process.terminate()
            self.process.wait()
        except (KeyboardInterrupt, SystemExit):  # told again
            self.process.terminate()
            self.process.wait()
        self.listener.join(timeout=10)

    def wait(self) -> None:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            self.process.wait()

    def _listen(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self.process.stdout:
            self.say("worker", re.sub(r"^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d{3} ", r"\1 ", line.rstrip()))


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Raise SystemExit on signals that would end the process, so that it can stop its worker first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def open_to_others(limit: int, say: Say) -> Iterator[None]:
    """Let customers order, and the bank and the carriers call back, each from a thread of its own.

    :param limit: how many orders there may be: new ones take the place of those that have been done for longest.
    """
    closed = threading.Event()

    def repeat(act: Callable[[], object], seconds: float) -> None:
        while not closed.wait(random.uniform(0.5, 1.5) * seconds):
            act()
        connection.close()

    others = [
        threading.Thread(target=repeat, args=(lambda: take_order(limit), NEW_ORDER_EVERY), daemon=True),
        threading.Thread(target=repeat, args=(lambda: hear_from_bank(say), NEWS_EVERY), daemon=True),
        threading.Thread(target=repeat, args=(lambda: hear_from_carriers(say), NEWS_EVERY), daemon=True),
    ]
    for thread in others:
        thread.start()
    try:
        yield
    finally:
        closed.set()
        for thread in others:
            thread.join()


def hear_from_bank(say: Say) -> None:
    """Let the bank tell what it knows of orders that wait for their money."""
    for order in Order.objects.filter(status="PENDING"):
        if news := world.news_of_payment(order):
            call_back(order, news, "bank", say)


def hear_from_carriers(say: Say) -> None:
    """Let carriers tell what has become of parcels."""
    for parcel in Parcel.objects.filter(status="ON_THE_ROAD").select_related("order"):
        if news := world.news_of_parcel(parcel):
            call_back(parcel, news, parcel.carrier, say)


def call_back(row: Order | Parcel, news: world.News, who: str, say: Say) -> None:
    """Deliver an event as those do who are not sure of having been heard: under a key, and now and then twice."""
    (name, payload), key = news, f"evt_{random.getrandbits(48):012x}"
    facts = ", ".join([name, *map(str, payload.values())])
    for _ in range(2 if random.random() < 0.1 else 1):
        try:
            answer = row.states.deliver(name, payload, dedup_key=key).value
        except (EventRefused, RowMissing):  # somebody has cancelled or deleted it meanwhile
            answer = "refused"
        say(who, f"{timezone.localtime():%H:%M:%S} {row}: {facts} ({answer})")


def take_order(limit: int) -> None:
    """Create an order, unless there are as many as there may be and none of them is done."""
    drop_done(limit - 1)
    if Order.objects.count() < limit:
        Order.objects.create(
            customer=random.choice(world.CUSTOMERS), total=Decimal(random.randint(500, 50_000)).scaleb(-2)
        )


def drop_done(limit: int) -> int:
    """Delete orders that have been done for longest until no more than the limit are left; return how many."""
    excess = max(Order.objects.count() - limit, 0)
    oldest = Order.objects.filter(status__in=DONE).order_by("status_changed_at", "pk").values_list("pk", flat=True)
    _total, deleted = Order.objects.filter(pk__in=list(oldest[:excess])).delete()
    return deleted.get(Order._meta.label, 0)


def free_port(wanted: int) -> int:
    """Return the port, or another one if something listens there already."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

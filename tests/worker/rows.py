"""What tests of the worker share: lanes, rows whose clock is set by hand, and somebody else's connection."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from statemachine_fields.db.columns import FEATURES
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.lease import Lane, Lease, lanes_of, now
from tests.patience import PATIENCE

T = TypeVar("T")

only_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one lock for all rows")
not_mariadb = pytest.mark.skipif(connection.vendor == "mysql", reason="workers run on PostgreSQL and SQLite")


def lane_of(model: Any) -> Lane:
    (lane,) = lanes_of([model.states._meta])
    return lane


def claim(
    lane: Lane, limit: int = 10, *, suspects: bool = False, owner: str = "me:1", seconds: float = 60
) -> list[Lease]:
    return Claimer(owner, seconds).claim(lane, limit, suspects=suspects)


def claim_one(lane: Lane, owner: str = "me:1") -> Lease:
    (lease,) = claim(lane, 1, owner=owner)
    return lease


def lease_on(lane: Lane, key: Any = 1, status: str | None = None, **facts: Any) -> Lease:
    """Return a lease of a row that nobody has saved."""
    status = status or lane.states[0]
    known: dict[str, Any] = {"sequence": 0, "failures": 0, "crashes": 0, "age": 0.0, "error": "", "load_error": None}
    known |= {"instance": lane.bound.model(pk=key, status=status), "trusted_until": now() + 60}
    known |= {"claimed_at": time.monotonic(), **facts}
    return Lease(lane=lane, schedule=lane.schedules[status], key=key, token=7, status=status, **known)


class Clock:
    """A clock for a module to read in place of `time`, which goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.now = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def in_seconds(seconds: float) -> datetime.datetime:
    return timezone.now() + datetime.timedelta(seconds=seconds)


def set_clock(row: Any, **columns: Any) -> None:
    """Write columns of the machine as nobody may: `next_at`, `lease_expires_at` and so on."""
    names = type(row).states._meta.names
    written = {getattr(names, name): MachineValue(value) for name, value in columns.items()}
    type(row)._base_manager.filter(pk=row.pk).update(**written)


def let_lease_run_out(row: Any) -> None:
    set_clock(row, lease_expires_at=in_seconds(-1))


def columns_of(row: Any) -> SimpleNamespace:
    """Return the machine's columns as the database has them, without their prefix."""
    names, columns = type(row).states._meta.names, ("status", "sequence", "changed_at", *FEATURES["schedule"])
    found = type(row)._base_manager.filter(pk=row.pk).values(*[getattr(names, name) for name in columns]).get()
    return SimpleNamespace(**{name: found[getattr(names, name)] for name in columns})


def seconds_until(when: datetime.datetime | None) -> float | None:
    return None if when is None else (when - timezone.now()).total_seconds()


def about(seconds: float) -> Any:
    """Match a number of seconds that was true a moment ago."""
    return pytest.approx(seconds, abs=5)


def elsewhere(program: Callable[[], T]) -> T:
    """Run a program with a connection of its own, which must not wait for anybody, and return its result."""
    results: list[Any] = []

    def run() -> None:
        try:
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("SET lock_timeout = '5s'")
            results.append(program())
        except Exception as error:  # noqa: BLE001 - raised again in the test's own thread
            results.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    (result,) = results
    if isinstance(result, Exception):
        raise result
    return result  # type: ignore[no-any-return]


@contextmanager
def locked(*rows: Any) -> Iterator[None]:
    """Let somebody else have rows locked in a transaction that stays open."""
    has_them, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                for row in rows:
                    type(row)._base_manager.select_for_update().get(pk=row.pk)
                has_them.set()
                may_go.wait(PATIENCE)
        finally:
            connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert has_them.wait(PATIENCE)
        yield
    finally:
        may_go.set()
        thread.join(PATIENCE)


def must_not_wait() -> None:
    """Let a statement of this connection fail that would wait for a lock, in place of hanging."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '5s'")

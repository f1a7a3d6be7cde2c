"""What judges and writes, as a worker has it, and the lanes that most tests are about."""

from __future__ import annotations

import psycopg
import pytest
from django.db import OperationalError, connection

from lab.models import Chore, Lot, Payment, Ping
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.inflight import Buffer, InFlight
from statemachine_fields.worker.outcome_events import Events
from tests.worker.rows import lane_of


@pytest.fixture
def lots():
    return lane_of(Lot)


@pytest.fixture
def chores():
    return lane_of(Chore)


@pytest.fixture
def payments():
    return lane_of(Payment)


@pytest.fixture
def pings():
    return lane_of(Ping)


@pytest.fixture
def executor():
    return HandlerExecutor(max_crashes=5)


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def committer(executor, events):
    return Committer(executor, events)


@pytest.fixture
def inflight(lots):
    return InFlight(Buffer([lots], {}))


@pytest.fixture
def break_after(lots, monkeypatch):
    """Let the next call of a verb break the connection, after it was written or before."""

    def install(verb, *, written):
        real = getattr(type(lots), verb)

        def once(*args):
            monkeypatch.setattr(type(lots), verb, real)
            if written:
                real(*args)
            connection.connection.close()
            error = OperationalError("server closed the connection unexpectedly")
            raise error from psycopg.OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(type(lots), verb, once)

    yield install
    connection.close()

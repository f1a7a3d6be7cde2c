"""What a line in the log is about: in fields of their own, for programs that read logs."""

from __future__ import annotations

import json
import logging
import uuid

import pytest

from lab.models import Chore, Crate
from statemachine_fields.worker.claim import Claimer
from statemachine_fields.worker.commit import Committer
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.lease import row_fields
from statemachine_fields.worker.management.commands.statemachine_worker import JsonFormatter
from statemachine_fields.worker.outcome_events import Events
from statemachine_fields.worker.outcomes import Failed, Transitioned, Waited
from tests.worker.rows import claim_one, lane_of, lease_on

pytestmark = pytest.mark.django_db


def fields(record):
    """Return what a JSON line has besides what every line has."""
    line = json.loads(JsonFormatter().format(record))
    usual = ("time", "level", "logger", "process", "thread", "message", "exception")
    return {name: value for name, value in line.items() if name not in usual}


def of_row(chore, **more):
    return {"model": "lab.Chore", "machine": "states", "key": chore.pk, "database": "default", "state": "NEW", **more}


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def committer(events):
    return Committer(HandlerExecutor(max_crashes=5), events)


def test_a_failure(committer, caplog):
    chore = Chore.objects.create(script={"NEW": "raise"}, name="this")
    committer.commit([committer.executor.run(claim_one(lane_of(Chore)))])
    (record,) = caplog.records
    said = fields(record)
    assert 60 <= said.pop("retry_seconds") <= 66
    assert said == of_row(chore, attempt=1, outcome="failed", error="ValueError: no luck with this")
    assert "Traceback" in json.loads(JsonFormatter().format(record))["exception"]


def test_a_failure_for_good(committer, caplog):
    chore = Chore.objects.create(script={"NEW": "raise"}, name="this")
    lease = claim_one(lane_of(Chore))
    lease.failures = 2
    committer.commit([committer.executor.run(lease)])
    error = "ValueError: no luck with this"
    assert fields(caplog.records[0]) == of_row(chore, attempt=3, outcome="moved", to_state="FAILED", error=error)


def test_an_outcome_that_comes_too_late(events, caplog):
    chore = Chore.objects.create()
    events.dropped(Transitioned(lease_on(lane_of(Chore), key=chore.pk), to_status="DOING"))
    assert fields(caplog.records[0]) == of_row(chore, attempt=1, outcome="dropped", to_state="DOING")


def test_a_row_that_is_set_aside(events, caplog):
    chore = Chore.objects.create()
    events.deferred(Waited(lease_on(lane_of(Chore), key=chore.pk)), "It is locked.")
    assert fields(caplog.records[0]) == of_row(chore, attempt=1, outcome="waited", error="It is locked.")


def test_rows_whose_worker_died_are_one_line_and_a_count(caplog):
    Chore.objects.bulk_create([Chore() for _ in range(30)])
    lane = lane_of(Chore)
    assert len(Claimer("gone:1", 0.0).claim(lane, 30)) == 30
    claimer = Claimer("me:1", 60)
    assert len(claimer.claim(lane, 30, suspects=True)) == 30
    claimer.digest.flush(everything=True)
    first, rest = caplog.records
    assert {name: fields(first)[name] for name in ("model", "state", "crashes", "attempt")} == {
        "model": "lab.Chore",
        "state": "NEW",
        "crashes": 1,
        "attempt": 1,
    }
    assert fields(rest)["more"] == 29


def test_a_thousand_failures_of_one_cause_are_one_traceback(committer, events, caplog):
    lane = lane_of(Chore)
    error = ValueError("no luck")
    outcomes = [
        Failed(lease_on(lane, key=key), delay=60, failures=1, error="no luck", exception=error) for key in range(1000)
    ]
    events.committed(outcomes)
    events.digest.flush(everything=True)
    first, rest = caplog.records
    assert (first.exc_info is not None, rest.exc_info is not None) == (True, False)
    assert (fields(first)["key"], fields(rest)["key"], fields(rest)["more"]) == (0, 999, 999)


def test_keys_are_what_json_can_hold():
    key = uuid.uuid4()
    lane = lane_of(Crate)
    assert [row_fields(lane, each)["key"] for each in (7, "a", key, (1, 2))] == [7, "a", str(key), "(1, 2)"]


def test_what_others_give_as_extra_is_there_too():
    record = logging.makeLogRecord({"msg": "hello", "request_id": uuid.UUID(int=7)})
    assert fields(record) == {"request_id": "00000000-0000-0000-0000-000000000007"}

"""What was counted is written once, also if nobody answers that it was."""

from __future__ import annotations

import datetime

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from statemachine_fields.worker import statistics as module
from statemachine_fields.worker.models import RunStatistics
from statemachine_fields.worker.outcomes import Transitioned
from statemachine_fields.worker.statistics import StatisticsWriter, this_period
from tests.worker.rows import not_mariadb, only_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]


@pytest.fixture
def writer(events):
    return StatisticsWriter(events)


def written():
    return {(hour.machine, hour.state): hour.counts["moved"] for hour in RunStatistics.objects.by_hour()}


def count(events, number=1):
    events.count("a.A", "NEW", Transitioned.kind, number)


@pytest.fixture
def lose_the_answer(monkeypatch):
    """Let the next COMMIT be done, or not, and its answer be lost."""

    def install(*, is_committed):
        real = connection._commit

        def commit():
            monkeypatch.undo()
            if is_committed:
                real()
            else:
                connection._rollback()
            raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(connection._connections[connection._alias], "_commit", commit)

    return install


def test_counts_are_added_to_those_of_others(writer, events):
    for _ in range(2):
        count(events, 2)
        writer.write()
    assert written() == {("a.A", "NEW"): 4}


def test_a_kind_that_nobody_knew_before_is_counted_as_any_other(writer, events):
    events.count("a.A", "NEW", "spawned", 3, 0.5)
    writer.write()
    (hour,) = RunStatistics.objects.by_hour()
    assert (hour.counts, hour.seconds) == ({"spawned": 3}, 0.5)


def test_seconds_are_those_of_the_handlers_that_ended_so(writer, events):
    events.count("a.A", "NEW", "claimed", 4)
    for kind, seconds in [("moved", 1.0), ("moved", 0.5), ("failed", 8.0)]:
        events.count("a.A", "NEW", kind, seconds=seconds)
    writer.write()
    found = {row.kind: (row.count, row.seconds) for row in RunStatistics.objects.all()}
    assert found == {"claimed": (4, 0.0), "moved": (2, 1.5), "failed": (1, 8.0)}
    (hour,) = RunStatistics.objects.by_hour()
    assert (hour.counts, hour.seconds) == ({"claimed": 4, "moved": 2, "failed": 1}, 9.5)


def test_hours_are_those_of_each_machine_and_state_the_newest_first():
    now = this_period()
    for number, (machine, state, hours) in enumerate(
        [("a.A", "NEW", 1), ("a.A", "NEW", 0), ("a.A", "OLD", 0), ("b.B", "NEW", 0)]
    ):
        for kind in ("claimed", "moved"):
            period = now - datetime.timedelta(hours=hours)
            RunStatistics.objects.create(machine=machine, state=state, period=period, kind=kind, count=number)
    found = RunStatistics.objects.by_hour()
    assert [(hour.machine, hour.state, (now - hour.period).seconds // 3600) for hour in found] == [
        ("a.A", "NEW", 0),
        ("a.A", "OLD", 0),
        ("b.B", "NEW", 0),
        ("a.A", "NEW", 1),
    ]
    assert [hour.counts for hour in found] == [{"claimed": number, "moved": number} for number in (1, 2, 3, 0)]
    assert found[0].counts["parked"] == 0
    assert RunStatistics.objects.filter(state="OLD", kind="moved").by_hour()[0].counts == {"moved": 2}


def test_nothing_is_written_where_nothing_was_counted(writer, django_assert_num_queries):
    with django_assert_num_queries(0):
        writer.write()


@only_postgresql
@pytest.mark.parametrize("is_committed", [True, False], ids=["heard", "not heard"])
def test_counts_are_written_once_if_the_answer_is_lost(is_committed, writer, events, lose_the_answer):
    count(events)
    lose_the_answer(is_committed=is_committed)
    with pytest.raises(OperationalError):
        writer.write()
    count(events, 10)
    writer.write()
    writer.write()
    assert written() == {("a.A", "NEW"): 11}


@only_postgresql
def test_counts_whose_transaction_has_not_ended_are_waited_for(writer, events, lose_the_answer, monkeypatch):
    count(events)
    lose_the_answer(is_committed=True)
    with pytest.raises(OperationalError):
        writer.write()
    count(events, 10)
    leases = module.dialect_for(connection)
    with monkeypatch.context() as patch:
        patch.setattr(leases, "was_committed", lambda *args: None)
        writer.write()
        assert written() == {("a.A", "NEW"): 1}
    writer.write()
    assert written() == {("a.A", "NEW"): 11}


def test_counts_that_could_not_be_sent_are_kept(writer, events, monkeypatch):
    count(events)

    def fail(*args):
        raise OperationalError("no")

    with monkeypatch.context() as patch:
        patch.setattr(module, "add_up", fail)
        with pytest.raises(OperationalError):
            writer.write()
    writer.write()
    assert written() == {("a.A", "NEW"): 1}


def test_a_failure_is_told_and_tried_again_later(writer, events, monkeypatch, caplog):
    count(events)

    def fail(*args):
        raise OperationalError("no")

    writer._write_at = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(module, "add_up", fail)
        writer.tick()
    assert "Run statistics cannot be written now, and are kept: no" in caplog.text
    writer.tick()
    assert written() == {}
    writer._backoff.until = 0.0
    writer.tick()
    assert written() == {("a.A", "NEW"): 1}


def test_old_periods_are_deleted(writer, settings):
    settings.STATEMACHINE_FIELDS = {"STATISTICS_DAYS": 3}
    for days in (2, 4):
        period = timezone.now() - datetime.timedelta(days)
        RunStatistics.objects.create(machine="a.A", state=f"{days}", period=period, kind="moved")
    writer.tick()
    assert [row.state for row in RunStatistics.objects.all()] == ["2"]


def test_a_period_is_an_hour():
    period = this_period()
    assert (period.minute, period.second, period.microsecond) == (0, 0, 0)
    assert 0 <= (timezone.now() - period).total_seconds() < 3601

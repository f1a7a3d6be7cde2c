"""`Order.states.in_state()`, `as_of()`, `stuck()` and `durations()`, and `order.states.status_at()`."""

from __future__ import annotations

import datetime
import math
import random
import re
from collections import defaultdict
from dataclasses import FrozenInstanceError
from itertools import pairwise
from types import SimpleNamespace

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, models
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import Car, Invoice, Kept, Logged, Parcel, Project, Ticket, Vehicle
from statemachine_fields.db import durations
from statemachine_fields.db.expressions import MachineValue
from statemachine_fields.exceptions import UnknownState
from statemachine_fields.machine.ids import uuid7_floor
from statemachine_fields.machine.questions import Duration, Durations
from tests.settings import SMF_DB

pytestmark = pytest.mark.django_db

NOON = datetime.datetime(2024, 5, 6, 12, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


def seconds(number):
    return datetime.timedelta(seconds=number)


def at(number):
    """Return the instant that many seconds after noon."""
    return NOON + seconds(number)


def make_row(machine, history, *, using="default"):
    """Create a row with a history of `(seconds after noon, from_status, to_status)`; None in it is a missing record."""
    status = history[-1][2] if history else machine.graph.initial
    [row] = machine.model._base_manager.using(using).bulk_create([machine.model(**{machine.names.status: status})])
    return write_history(machine, row, history, using=using)


def write_history(machine, row, history, *, using="default"):
    machine.model._base_manager.using(using).filter(pk=row.pk).update(
        **{machine.names.sequence: MachineValue(len(history))},
        **({machine.names.changed_at: MachineValue(at(history[-1][0]))} if history else {}),
    )
    machine.transition_model._base_manager.using(using).bulk_create(
        machine.build_record(
            id=next_id(at(entry[0])),
            instance_id=machine.key_of(row),
            sequence=sequence,
            transitioned_at=at(entry[0]),
            from_status=entry[1],
            to_status=entry[2],
        )
        for sequence, entry in enumerate(history, 1)
        if entry is not None
    )
    return row


def next_id(moment, made=iter(range(10**9))):  # noqa: B008 - one counter for all
    """Return an id as the machine would have made it at that time."""
    floor = uuid7_floor(moment.timestamp())
    return type(floor)(int=floor.int + next(made))


def expected_status(history, current, moment):
    """Say in plain Python what `as_of()` has to answer."""
    present = [entry for entry in history if entry is not None]
    before = [to_status for time, _, to_status in present if at(time) <= moment]
    if before:
        return before[-1]
    return (present[0][1] or None) if present else current


def expected_durations(histories, since=None, until=None):
    """Say in plain Python what `durations()` has to answer, order apart."""
    states, edges = defaultdict(list), defaultdict(list)
    for history in histories:
        for entering, leaving in pairwise(history):
            if entering is None or leaving is None:
                continue
            if (since is None or at(leaving[0]) >= since) and (until is None or at(leaving[0]) < until):
                stayed = at(leaving[0]) - at(entering[0])
                states[leaving[1]].append(stayed)
                edges[leaving[1], leaving[2]].append(stayed)
    return Durations(summarise(states), summarise(edges))


def summarise(groups):
    return {key: Duration(len(stays), percentile(0.5, stays), percentile(0.95, stays)) for key, stays in groups.items()}


def percentile(fraction, stays):
    numbers = sorted(stay // MICROSECOND for stay in stays)
    place = fraction * (len(numbers) - 1)
    low, high = numbers[math.floor(place)], numbers[math.ceil(place)]
    return datetime.timedelta(microseconds=low + (place - math.floor(place)) * (high - low))


def random_history(generator, machine, *, length):
    """Walk the graph at random. Times ascend with the numbers, and sometimes tie; some records are missing."""
    history, time, state = [], generator.uniform(0, 1000), machine.graph.initial
    if generator.random() < 0.3:
        history.append((round(time, 6), "", state))
    for _ in range(generator.randrange(length)):
        targets = machine.graph.targets(state) or (machine.graph.initial,)
        time += generator.choice([0, 0, 0.000001, 1, generator.uniform(0, 500), generator.uniform(0, 200_000)])
        target = generator.choice(targets)
        history.append((round(time, 6), state, target))
        state = target
    lost = {place for place in range(len(history) - 1) if generator.random() < 0.1}
    return [None if place in lost else entry for place, entry in enumerate(history)]


class TestInState:
    def test_finds_the_rows_in_any_of_the_states(self):
        due, paid, refunded = (Invoice.objects.create(payment_status=state) for state in ("DUE", "PAID", "REFUNDED"))

        assert [*Invoice.payment.in_state("PAID")] == [paid]
        assert {*Invoice.payment.in_state("DUE", "REFUNDED")} == {due, refunded}
        assert Invoice.states.in_state("DRAFT").count() == 3

    def test_chains_like_any_queryset(self):
        Invoice.objects.create(number="1", payment_status="PAID")
        other = Invoice.objects.create(number="2", payment_status="PAID")

        assert Invoice.payment.in_state("PAID").exclude(number="1").get() == other
        assert (Invoice.payment.in_state("PAID") & Invoice.states.in_state("SENT")).count() == 0

    def test_is_one_statement(self, django_assert_num_queries):
        with django_assert_num_queries(1):
            assert list(Ticket.states.in_state("open", "closed")) == []

    def test_takes_enum_members(self):
        ticket = Ticket.objects.create(status=Ticket.Status.MONDAY)

        assert Ticket.states.in_state(Ticket.Status.MONDAY, Ticket.Status.CLOSED).get() == ticket

    def test_of_no_state_is_refused(self):
        with pytest.raises(ValueError, match=r"lab.Ticket.states: in_state\(\) needs at least one state"):
            Ticket.states.in_state()

    def test_of_a_state_that_is_not_declared_is_refused(self):
        with pytest.raises(UnknownState, match="Did you mean 'monday'"):
            Ticket.states.in_state("open", "munday")

    def test_follows_the_default_manager(self, monkeypatch):
        Ticket.objects.create(title="hidden")
        shown = Ticket.objects.create(title="shown")
        monkeypatch.setattr(
            Ticket._default_manager, "get_queryset", lambda: Ticket._base_manager.exclude(title="hidden")
        )

        assert Ticket.states.in_state("open").get() == shown


class TestAsOf:
    def test_is_what_the_last_move_before_led_to(self):
        row = make_row(Project.flow._meta, [(10, "PLAN", "BUILD"), (20, "BUILD", "PLAN")])

        statuses = [Project.flow.as_of(at(second)).get().phase_as_of for second in (9, 10, 19, 20, 99)]

        assert statuses == ["PLAN", "BUILD", "BUILD", "PLAN", "PLAN"]
        assert [row.flow.status_at(at(second)) for second in (9, 10, 19, 20, 99)] == statuses

    def test_of_a_row_that_never_moved_is_the_current_status(self):
        row = make_row(Project.flow._meta, [])

        assert Project.flow.as_of(NOON).get().phase_as_of == "PLAN"
        assert row.flow.status_at(NOON) == "PLAN"

    def test_of_a_row_whose_start_was_recorded_is_nothing_before_it(self):
        row = make_row(Logged.states._meta, [(10, "", "NEW"), (20, "NEW", "DONE")])

        assert [Logged.states.as_of(at(second)).get().status_as_of for second in (9, 10, 20)] == [None, "NEW", "DONE"]
        assert [row.states.status_at(at(second)) for second in (9, 10, 20)] == [None, "NEW", "DONE"]

    def test_of_moves_at_one_instant_is_the_last_by_number(self):
        row = make_row(Project.flow._meta, [(10, "PLAN", "BUILD"), (10, "BUILD", "PLAN"), (10, "PLAN", "BUILD")])

        assert (row.flow.status_at(at(10) - MICROSECOND), row.flow.status_at(at(10))) == ("PLAN", "BUILD")

    @pytest.mark.parametrize("fraction", [0, 0.000001, 0.119999, 0.12, 0.120001, 0.999999])
    def test_is_exact_to_the_microsecond(self, fraction):
        row = make_row(Project.flow._meta, [(fraction, "PLAN", "BUILD")])

        before, then, after = (row.flow.status_at(at(fraction) + step * MICROSECOND) for step in (-1, 0, 1))

        assert (before, then, after) == ("PLAN", "BUILD", "BUILD")

    @pytest.mark.skipif(SMF_DB != "sqlite", reason="about how SQLite writes its clock")
    @pytest.mark.parametrize(("text", "fraction"), [("12:00:00.000", 0), ("12:00:00.120", 0.12)])
    def test_knows_an_instant_as_the_clock_of_sqlite_writes_it(self, text, fraction):
        row = make_row(Project.flow._meta, [(-5, "PLAN", "BUILD"), (0, "BUILD", "PLAN")])
        table = Project.flow.transition_model._meta.db_table
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET transitioned_at = %s WHERE sequence = 2", [f"2024-05-06 {text}"])

        assert row.flow.status_at(at(fraction)) == "PLAN"
        assert row.flow.status_at(at(fraction) - MICROSECOND) == "BUILD"
        assert Project.flow.durations(at(fraction), at(fraction) + MICROSECOND).states["BUILD"].count == 1
        assert Project.flow.durations(at(fraction) + MICROSECOND).states == {}
        assert Project.flow.durations(None, at(fraction)).states == {}

    def test_real_moves_are_found_at_their_own_time(self):
        row = Project.objects.create()
        records = [row.flow.transition_to(state) for state in ("BUILD", "PLAN", "BUILD")]

        last = {record.transitioned_at: record.to_status for record in records}  # a clock may tie
        assert {moment: row.flow.status_at(moment) for moment in last} == last

    def test_can_be_filtered_sorted_and_counted(self):
        early = make_row(Project.flow._meta, [(10, "PLAN", "BUILD")])
        late = make_row(Project.flow._meta, [(30, "PLAN", "BUILD")])

        rows = Project.flow.as_of(at(20))

        assert rows.get(phase_as_of="BUILD") == early
        assert rows.get(phase_as_of="PLAN") == late
        assert [*rows.order_by("phase_as_of")] == [early, late]
        assert [*rows.values("phase_as_of").annotate(n=models.Count("pk")).order_by("phase_as_of")] == [
            {"phase_as_of": "BUILD", "n": 1},
            {"phase_as_of": "PLAN", "n": 1},
        ]

    def test_is_one_statement(self, django_assert_num_queries):
        row = make_row(Project.flow._meta, [(10, "PLAN", "BUILD")])

        with django_assert_num_queries(1):
            list(Project.flow.as_of(NOON))
        for moment in (at(9), at(11)):
            with django_assert_num_queries(1):
                row.flow.status_at(moment)

    def test_machines_of_one_model_are_asked_apart(self):
        row = make_row(Invoice.payment._meta, [(10, "DUE", "PAID"), (20, "PAID", "REFUNDED")])
        write_history(Invoice.states._meta, row, [(15, "DRAFT", "SENT")])

        found = Invoice.payment.as_of(at(12)).get()

        assert (found.payment_status_as_of, found.payment_status) == ("PAID", "REFUNDED")
        assert Invoice.states.as_of(at(12)).get().status_as_of == "DRAFT"
        assert (row.payment.status_at(at(20)), row.states.status_at(at(20))) == ("REFUNDED", "SENT")

    def test_of_rows_with_uuid_keys(self):
        row = make_row(Parcel.states._meta, [(10, "IN_TRANSIT", "SCANNED"), (20, "SCANNED", "LOST")])
        make_row(Parcel.states._meta, [])

        assert Parcel.states.as_of(at(15)).get(pk=row.pk).status_as_of == "SCANNED"
        assert row.states.status_at(at(5)) == "IN_TRANSIT"

    def test_of_a_multi_table_child_is_what_its_parent_was(self):
        car = Car.objects.create()
        Vehicle.objects.create()
        write_history(Vehicle.states._meta, car, [(10, "PARKED", "MOVING")])
        write_history(Car.fuel._meta, car, [(5, "FULL", "EMPTY"), (20, "EMPTY", "FULL")])

        assert car.states.status_at(at(10)) == "MOVING"
        assert Car.states.as_of(at(10)).get(pk=car.pk).status_as_of == "MOVING"
        assert Car.fuel.as_of(at(10)).get().fuel_state_as_of == "EMPTY"
        assert Car.objects.annotate(then=Car.states.status_as_of(at(10))).get().then == "MOVING"

    def test_of_rows_that_are_not_there_is_nothing(self):
        row = make_row(Kept.states._meta, [(10, "NEW", "DONE")])
        Kept.objects.filter(pk=row.pk).delete()

        assert row.states.status_at(at(20)) is None
        assert Kept().states.status_at(at(20)) is None
        assert list(Kept.states.as_of(NOON)) == []

    def test_needs_an_aware_datetime(self):
        naive = datetime.datetime(2024, 5, 6)  # noqa: DTZ001
        row = Project.objects.create()

        for ask in (Project.flow.as_of, row.flow.status_at, Project().flow.status_at, Project.flow.durations):
            with pytest.raises(ValueError, match=r"must be an aware datetime.*timezone.make_aware\(\)"):
                ask(naive)
            with pytest.raises(TypeError, match="must be a datetime, got datetime.date"):
                ask(naive.date())

    def test_needs_a_naive_datetime_without_time_zones(self, settings):
        settings.USE_TZ = False

        with pytest.raises(ValueError, match=r"must be a naive datetime.*timezone.make_naive\(\)"):
            Project.flow.as_of(NOON)

    @pytest.mark.parametrize("seed", range(4))
    def test_agrees_with_plain_python_over_random_histories(self, seed):
        generator = random.Random(seed)
        histories = {}
        for _ in range(30):
            history = random_history(generator, Ticket.states._meta, length=8)
            histories[make_row(Ticket.states._meta, history).pk] = history
        times = [entry[0] for history in histories.values() for entry in history if entry is not None]
        current = dict(Ticket.objects.values_list("pk", "status"))

        for time in [-1, *generator.sample(times, 10), generator.uniform(0, 5000)]:
            answered = dict(Ticket.states.as_of(at(time)).values_list("pk", "status_as_of"))
            assert answered == {
                pk: expected_status(history, current[pk], at(time)) for pk, history in histories.items()
            }
            for row in Ticket.objects.order_by("?")[:3]:
                assert row.states.status_at(at(time)) == answered[row.pk]


class TestStuck:
    def test_finds_the_rows_that_entered_the_state_longer_ago_oldest_first(self):
        now = timezone.now()
        rows = [Project.objects.create(phase="BUILD") for _ in range(4)]
        for row, hours in zip(rows, (2, 5, 0, 4), strict=True):
            entered = MachineValue(now - datetime.timedelta(hours=hours))
            Project.objects.filter(pk=row.pk).update(phase_changed_at=entered)
        Project.objects.filter(pk=rows[3].pk).update(phase=MachineValue("PLAN"))

        assert [*Project.flow.stuck("BUILD", datetime.timedelta(hours=1))] == [rows[1], rows[0]]
        assert [*Project.flow.stuck("BUILD", 3 * 3600)] == [rows[1]]
        assert [*Project.flow.stuck("PLAN", older_than=3600.5)] == [rows[3]]
        assert [*Project.flow.stuck("BUILD", datetime.timedelta(days=1))] == []

    def test_a_row_that_has_just_moved_is_not_stuck(self):
        row = Ticket.objects.create()
        row.states.transition_to(Ticket.Status.MONDAY)

        assert not Ticket.states.stuck(Ticket.Status.MONDAY, 60).exists()

    def test_asks_the_clock_of_the_database_when_it_runs(self, monkeypatch):
        row = Ticket.objects.create()
        Ticket.objects.filter(pk=row.pk).update(status_changed_at=MachineValue(row.status_changed_at - seconds(100)))
        monkeypatch.setattr(timezone, "now", lambda: NOON)

        assert Ticket.states.stuck("open", 90).get() == row
        assert not Ticket.states.stuck("open", 1000).exists()

    @pytest.mark.skipif(SMF_DB != "mariadb", reason="the others compare instants in UTC")
    def test_the_time_zone_of_the_session_does_not_matter(self):
        Ticket.objects.create()
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+09:00'")
        try:
            assert not Ticket.states.stuck("open", 60).exists()
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SET time_zone = DEFAULT")

    def test_is_one_statement_and_chains(self, django_assert_num_queries):
        with django_assert_num_queries(1):
            list(Ticket.states.stuck("open", 60).filter(title="")[:10])

    def test_of_a_negative_age_is_refused(self):
        for age in (-1, datetime.timedelta(seconds=-1)):
            with pytest.raises(ValueError, match="older_than must not be negative"):
                Ticket.states.stuck("open", age)

    def test_of_a_state_that_is_not_declared_is_refused(self):
        with pytest.raises(UnknownState):
            Ticket.states.stuck("lost", 60)

    def test_of_a_multi_table_child(self):
        Car.objects.create()

        assert Car.fuel.stuck("FULL", 0).count() <= 1
        assert not Car.fuel.stuck("FULL", 60).exists()


class TestDurations:
    def test_of_an_empty_table_are_nothing(self):
        assert Project.flow.durations() == Durations({}, {})
        assert Project.flow.durations(NOON, at(10)) == Durations({}, {})

    def test_are_between_a_move_and_the_one_before(self):
        make_row(Invoice.payment._meta, [(0, "", "DUE"), (10, "DUE", "PAID"), (40, "PAID", "REFUNDED")])

        found = Invoice.payment.durations()

        assert found.states == {
            "DUE": Duration(1, seconds(10), seconds(10)),
            "PAID": Duration(1, seconds(30), seconds(30)),
        }
        assert found.edges == {
            ("DUE", "PAID"): Duration(1, seconds(10), seconds(10)),
            ("PAID", "REFUNDED"): Duration(1, seconds(30), seconds(30)),
        }
        assert Invoice.states.durations() == Durations({}, {})

    def test_the_time_before_an_unrecorded_start_does_not_count(self):
        make_row(Invoice.payment._meta, [(10, "DUE", "PAID"), (40, "PAID", "REFUNDED")])

        assert [*Invoice.payment.durations().states] == ["PAID"]

    def test_a_missing_record_takes_its_stays_away_and_no_other(self):
        history = [(0, "PLAN", "BUILD"), None, (10, "PLAN", "BUILD"), (15, "BUILD", "PLAN")]
        make_row(Project.flow._meta, history)

        assert Project.flow.durations().states == {"BUILD": Duration(1, seconds(5), seconds(5))}

    def test_percentiles_lie_between_the_stays_next_to_them(self):
        for length in (1, 2, 3, 10):
            make_row(Project.flow._meta, [(0, "", "PLAN"), (length, "PLAN", "BUILD")])

        assert Project.flow.durations().states["PLAN"] == Duration(4, seconds(2.5), seconds(8.95))

    def test_moves_at_one_instant_last_no_time(self):
        make_row(Project.flow._meta, [(10, "PLAN", "BUILD"), (10, "BUILD", "PLAN"), (10, "PLAN", "BUILD")])

        assert Project.flow.durations().states == {
            "PLAN": Duration(1, seconds(0), seconds(0)),
            "BUILD": Duration(1, seconds(0), seconds(0)),
        }

    def test_of_long_stays_are_exact(self):
        century = 100 * 365 * 86_400 + 0.000001
        make_row(Project.flow._meta, [(0, "", "PLAN"), (century, "PLAN", "BUILD")])

        assert Project.flow.durations().states["PLAN"].median == seconds(century)

    def test_count_moves_from_since_on_and_before_until(self):
        make_row(
            Project.flow._meta, [(0, "", "PLAN"), (10, "PLAN", "BUILD"), (20, "BUILD", "PLAN"), (30, "PLAN", "BUILD")]
        )

        def left(since, until):
            return {state: found.count for state, found in Project.flow.durations(since, until).states.items()}

        assert left(at(10), at(20)) == {"PLAN": 1}
        assert left(at(10), at(20) + MICROSECOND) == {"PLAN": 1, "BUILD": 1}
        assert left(at(10) + MICROSECOND, at(20)) == {}
        assert left(at(20), None) == {"PLAN": 1, "BUILD": 1}
        assert left(None, at(30)) == {"PLAN": 1, "BUILD": 1}
        assert left(at(20), at(10)) == {}

    def test_the_stay_may_begin_long_before_the_window(self):
        make_row(Project.flow._meta, [(-400 * 86_400, "", "PLAN"), (10, "PLAN", "BUILD")])

        assert Project.flow.durations(NOON).states["PLAN"].median == datetime.timedelta(days=400, seconds=10)

    def test_history_that_was_written_later_counts_when_it_happened(self):
        row = make_row(Project.flow._meta, [])
        Project.flow.transition_model.objects.bulk_create(
            Project.flow._meta.build_record(
                instance=row, sequence=number, transitioned_at=at(number), from_status="PLAN", to_status="BUILD"
            )
            for number in (1, 2)
        )

        assert Project.flow.durations(NOON, at(60)).states["PLAN"].count == 1

    def test_a_window_from_before_there_were_ids(self):
        make_row(Project.flow._meta, [(0, "", "PLAN"), (10, "PLAN", "BUILD")])

        assert Project.flow.durations(datetime.datetime.min.replace(tzinfo=datetime.UTC)).states["PLAN"].count == 1

    def test_come_in_the_order_of_the_declaration_and_the_rest_after_it(self):
        declared = [("IN_TRANSIT", "SCANNED"), ("IN_TRANSIT", "LOST")]
        declared += [("SCANNED", "SCANNED"), ("SCANNED", "IN_TRANSIT"), ("SCANNED", "LOST")]
        rest = [("LOST", "SCANNED"), ("away", "gone"), ("gone", "LOST")]
        for source, target in random.Random(3).sample(declared + rest, 8):
            row = make_row(Parcel.states._meta, [])
            write_history(Parcel.states._meta, row, [(0, "", source), (1, source, target)])

        found = Parcel.states.durations()

        assert [*found.states] == ["IN_TRANSIT", "SCANNED", "LOST", "away", "gone"]
        assert [*found.edges] == declared + rest

    def test_of_a_multi_table_child(self):
        car = Car.objects.create()
        write_history(Car.states._meta, car, [(0, "PARKED", "MOVING"), (60, "MOVING", "PARKED")])
        write_history(Car.fuel._meta, car, [(0, "FULL", "EMPTY"), (5, "EMPTY", "FULL")])

        assert Car.states.durations().states == {"MOVING": Duration(1, seconds(60), seconds(60))}
        assert Car.fuel.durations().states == {"EMPTY": Duration(1, seconds(5), seconds(5))}

    def test_of_real_moves(self):
        row = Logged.objects.create()
        for state in ("DONE", "NEW", "DONE"):
            row.states.transition_to(state)
        times = [record.transitioned_at for record in row.states.history.reverse()]
        stays = [later - earlier for earlier, later in pairwise(times)]

        found = Logged.states.durations(timezone.now() - seconds(60)).states

        assert (found["NEW"].count, found["DONE"].count) == (2, 1)
        assert found["DONE"].median == stays[1]
        assert found["NEW"].median == percentile(0.5, [stays[0], stays[2]])

    def test_are_one_statement(self, django_assert_num_queries):
        make_row(Project.flow._meta, [(0, "", "PLAN"), (10, "PLAN", "BUILD")])

        for window in ((), (NOON,), (None, NOON), (NOON, at(60))):
            with django_assert_num_queries(1):
                Project.flow.durations(*window)

    @pytest.mark.parametrize(
        ("native", "version", "bounded"),
        [
            (False, (8, 0, 36), True),
            (True, (10, 11, 4), False),
            (True, (10, 11, 5), True),
            (True, (11, 0, 2), False),
            (True, (11, 1, 1), False),
            (True, (11, 4, 2), True),
        ],
    )
    def test_ids_bound_the_scan_only_where_they_sort_by_time(self, native, version, bounded):
        database = SimpleNamespace(features=SimpleNamespace(has_native_uuid_field=native), mysql_version=version)

        assert durations.sorts_ids_by_time(database) is bounded

    def test_are_frozen(self):
        with pytest.raises(FrozenInstanceError):
            Durations({}, {}).states = {}

    @pytest.mark.parametrize("machine", [Ticket.states._meta, Parcel.states._meta], ids=str)
    @pytest.mark.parametrize("seed", range(4))
    def test_agree_with_plain_python_over_random_histories(self, machine, seed):
        generator = random.Random(seed)
        histories = [random_history(generator, machine, length=12) for _ in range(40)]
        for history in histories:
            make_row(machine, history)
        times = sorted(at(entry[0]) for history in histories for entry in history if entry is not None)

        windows = [(None, None), (times[0], times[-1])]
        windows += [sorted(generator.sample(times, 2)) for _ in range(5)]
        windows += [(generator.choice(times), None), (None, generator.choice(times))]
        for since, until in windows:
            assert machine.face.durations(since, until) == expected_durations(histories, since, until)

    def test_hold_for_groups_of_every_size(self):
        histories = [[(0, "", "PLAN"), (number**2 + number / 10**6, "PLAN", "BUILD")] for number in range(1, 42)]
        for history in random.Random(7).sample(histories, 41):
            make_row(Project.flow._meta, history)

        for _, (time, *_) in histories[1:]:
            assert Project.flow.durations(until=at(time)) == expected_durations(histories, until=at(time))


@pytest.mark.django_db(databases=["default", "other"])
class TestOtherDatabases:
    def test_questions_go_where_they_are_sent(self):
        row = make_row(Project.flow._meta, [(0, "", "PLAN"), (10, "PLAN", "BUILD")], using="other")

        assert Project.flow.durations().states == {}
        assert Project.flow.durations(using="other").states["PLAN"].count == 1
        assert Project.flow.as_of(at(5)).using("other").get().phase_as_of == "PLAN"
        assert Project.flow.in_state("BUILD").using("other").get() == row
        assert Project.flow.stuck("BUILD", 60).using("other").get() == row

    def test_a_row_is_asked_where_it_is(self):
        row = make_row(Project.flow._meta, [(10, "PLAN", "BUILD")], using="other")

        assert row.flow.status_at(at(5)) == "PLAN"
        assert row.flow.status_at(at(15)) == "BUILD"


class TestAsync:
    def test_twins_answer_the_same(self):
        row = make_row(Project.flow._meta, [(0, "", "PLAN"), (10, "PLAN", "BUILD")])

        async def ask():
            answers = (await Project.flow.adurations(NOON, at(60)), await row.flow.astatus_at(at(5)))
            found = await Project.flow.as_of(at(5)).aget()
            return *answers, found.phase_as_of

        assert async_to_sync(ask)() == (Project.flow.durations(NOON, at(60)), "PLAN", "PLAN")


PROJECTS, MOVES = 20_000, 10

FILL = f"""
    INSERT INTO lab_project (id, phase, phase_sequence, phase_changed_at)
    SELECT p, CASE WHEN p %% 100 = 0 THEN 'BUILD' ELSE 'PLAN' END, {MOVES}, %(end)s::timestamptz
      FROM generate_series(1, {PROJECTS}) AS p;
    INSERT INTO lab_projectphasestatetransition
           (id, instance_id, sequence, from_status, to_status, transitioned_at, metadata)
    SELECT (lpad(to_hex(floor(extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '70008000'
               || lpad(to_hex(n), 12, '0'))::uuid,
           n %% {PROJECTS} + 1, n / {PROJECTS} + 1, 'PLAN', 'BUILD', moment, '{{}}'
      FROM (SELECT n, %(end)s::timestamptz - ({PROJECTS * MOVES} - n) * interval '1 minute' AS moment
              FROM generate_series(0, {PROJECTS * MOVES - 1}) AS n) AS made;
    ANALYZE lab_project; ANALYZE lab_projectphasestatetransition"""


@pytest.fixture(scope="class")
def many_rows(django_db_setup, django_db_blocker):
    """Commit 200,000 audit rows, one a minute, ten for each of 20,000 projects; 200 projects are in BUILD."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        for statement in FILL.split(";"):
            cursor.execute(statement, {"end": NOON})
        yield
        cursor.execute("TRUNCATE lab_project, lab_projectphasestatetransition")


def plan_of(ask):
    """Return the plan of the one statement that a question is."""
    with CaptureQueriesContext(connection) as queries:
        ask()
    [query] = queries
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {query['sql']}")
        return "\n".join(row[0] for row in cursor.fetchall())


@pytest.mark.skipif(SMF_DB != "postgresql", reason="about the plans of PostgreSQL")
@pytest.mark.usefixtures("many_rows")
class TestPlans:
    HISTORY_INDEX = r"Index Scan (Backward )?using lab_projectphasestatetra_instance_id_sequence_\w+_uniq"
    KEY_INDEX = r"Index Scan (using|on) lab_projectphasestatetransition_pkey"
    STATUS_INDEX = r"Index Scan (using|on) lab_project_phase_\w+_idx"

    @pytest.mark.parametrize("one", [False, True], ids=["as_of() for a page", "status_at() of a row"])
    def test_the_past_is_searched_in_the_history_of_each_row(self, one):
        moment, project = NOON - datetime.timedelta(days=30), Project.objects.get(pk=500)
        page = Project.flow.as_of(moment).order_by("pk")[:50]

        plan = plan_of((lambda: project.flow.status_at(moment)) if one else (lambda: list(page)))

        assert len(re.findall(self.HISTORY_INDEX, plan)) == 2, plan
        assert "Seq Scan" not in plan

    @pytest.mark.parametrize("ask", [lambda: Project.flow.in_state("BUILD"), lambda: Project.flow.stuck("BUILD", 3600)])
    def test_in_state_and_stuck_search_the_status(self, ask):
        plan = plan_of(lambda: list(ask()))

        assert re.search(self.STATUS_INDEX, plan), plan
        assert "Seq Scan" not in plan

    def test_stuck_searches_the_time_too_where_there_is_an_index(self):
        with connection.cursor() as cursor:
            cursor.execute("CREATE INDEX ON lab_project (phase, phase_changed_at)")

        plan = plan_of(lambda: list(Project.flow.stuck("PLAN", datetime.timedelta(days=9000))))

        assert re.search(r"Index Cond: .*phase_changed_at < \(statement_timestamp\(\)", plan), plan

    def test_durations_of_one_hundredth_of_the_time_start_at_its_first_id(self):
        since = NOON - datetime.timedelta(minutes=PROJECTS * MOVES / 100)

        plan = plan_of(lambda: Project.flow.durations(since))

        assert re.search(self.KEY_INDEX, plan), plan
        assert re.search(self.HISTORY_INDEX, plan), plan
        assert "Seq Scan" not in plan

"""Live keys under concurrency, with real connections: one live row of a key at any time, and everybody gets one."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from lab.models import Shipment
from statemachine_fields import DuplicateLiveRow, InvalidStateTransition
from tests.patience import PATIENCE
from tests.sessions import wait_until_blocked
from tests.together import together

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="it has no unique constraints for some of the rows"),
]
only_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="written in PostgreSQL's terms")

CALLS = 40


def start_and_end(seed: int, atomic: bool) -> list[tuple[Any, bool]]:
    """Ask for the live row again and again, and end what is found, sometimes."""
    chance = random.Random(seed)
    found = []
    for _ in range(CALLS):
        if atomic:
            with transaction.atomic():
                found.append(Shipment.states.get_or_start(number="A-17"))
        else:
            found.append(Shipment.states.get_or_start(number="A-17"))
        if chance.random() < 0.7:
            try:
                found[-1][0].states.transition_to("LOST")
            except InvalidStateTransition:
                continue  # somebody else has ended it
    return found


@only_postgresql
@pytest.mark.parametrize("atomic", [False, True])
def test_everybody_gets_a_row_however_many_start_and_end_it(atomic):
    results = together(*[lambda seed=seed: start_and_end(seed, atomic) for seed in range(8)])

    assert not [result for result in results if isinstance(result, Exception)]
    found = [each for result in results for each in result]
    assert len(found) == 8 * CALLS
    started = [row.pk for row, created in found if created]
    assert len(started) == len(set(started)) == Shipment.objects.count()
    assert Shipment.objects.filter(status="NEW").count() <= 1


@only_postgresql
def test_of_those_who_create_at_once_one_does_and_the_others_learn_who_did():
    results = together(*[lambda: Shipment.objects.create(number="A-17") for _ in range(8)])

    (created,) = [row for row in results if isinstance(row, Shipment)]
    refused = [error for error in results if not isinstance(error, Shipment)]
    assert [type(error) for error in refused] == [DuplicateLiveRow] * 7
    assert {error.pk for error in refused} == {created.pk}


@only_postgresql
@pytest.mark.parametrize("is_kept", [True, False], ids=["committed", "rolled back"])
def test_who_creates_waits_for_an_end_that_is_not_committed(is_kept):
    first = Shipment.objects.create(number="A-17")
    results: list[Any] = []

    def create() -> None:
        results.extend(together(lambda: Shipment.objects.create(number="A-17")))

    thread = threading.Thread(target=create)
    with transaction.atomic():
        first.states.transition_to("LOST")
        thread.start()
        wait_until_blocked()
        transaction.set_rollback(not is_kept)
    thread.join(PATIENCE)

    (result,) = results
    if is_kept:
        assert Shipment.states.live(number="A-17") == result
    else:
        assert isinstance(result, DuplicateLiveRow)
        assert result.pk == first.pk


@only_postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("way", [Shipment.objects.create, Shipment.states.get_or_start])
def test_a_transaction_that_cannot_see_the_live_row_is_told_by_the_database_to_be_repeated(level, way):
    with pytest.raises(OperationalError, match="could not serialize access"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert not Shipment.objects.exists()
        assert isinstance(together(lambda: Shipment.objects.create(number="A-17"))[0], Shipment)
        way(number="A-17")


@only_postgresql
def test_the_index_finds_the_live_row_also_with_a_plan_for_all_values():
    Shipment.objects.bulk_create(Shipment(number=f"B-{number}", status="LOST") for number in range(3000))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE lab_shipment")
        sql, params = Shipment.states._meta.key.holders({"number": "A-17"}, None).query.sql_with_params()
        assert params == ("A-17",)
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE look (text) AS {sql.replace('%s', '$1')}")
        try:
            cursor.execute("EXPLAIN EXECUTE look ('A-17')")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        finally:
            cursor.execute("DEALLOCATE look; RESET plan_cache_mode")
    assert Shipment.states._meta.key.constraint.name in plan


NUMBERS = st.sampled_from(["A", "B", None])
STATES = [value for value, _label in Shipment.states.states]
ENDED = Shipment.states.terminal_states
EDGES = Shipment.states.transitions


class Undo(Exception):
    """Raised to roll a transaction back."""


class RandomKeys(RuleBasedStateMachine):
    """Whatever is done to rows, in a transaction or not, is what a dict of numbers and states says."""

    rows = Bundle("rows")

    def __init__(self) -> None:
        super().__init__()
        Shipment.objects.all().delete()
        #: Number and status, by key.
        self.known: dict[Any, tuple[str | None, str]] = {}

    def holder(self, number: str | None) -> Any:
        found = [pk for pk, (its, status) in self.known.items() if its == number is not None and status not in ENDED]
        assert len(found) <= 1
        return found[0] if found else None

    def attempt(self, act: Any, pk: Any, number: str | None, status: str, in_transaction: bool) -> Any:
        """Do something that leaves a row so, and see that it is refused if another has the key, and only then."""
        holder = None if status in ENDED else self.holder(number)
        is_refused = holder is not None and holder != pk
        try:
            if in_transaction:
                with transaction.atomic():
                    self.refused_or_done(act, holder, is_refused)
                    assert Shipment.objects.count() >= len(self.known)  # it can still be asked
            else:
                self.refused_or_done(act, holder, is_refused)
        except Undo:
            return False
        return not is_refused

    def refused_or_done(self, act: Any, holder: Any, is_refused: bool) -> None:
        if not is_refused:
            self.result = act()
            return
        with pytest.raises(DuplicateLiveRow) as caught:
            act()
        assert caught.value.pk == holder

    @rule(target=rows, number=NUMBERS, status=st.sampled_from(STATES), in_transaction=st.booleans())
    def create(self, number, status, in_transaction):
        if self.attempt(
            lambda: Shipment.objects.create(number=number, status=status), None, number, status, in_transaction
        ):
            self.known[self.result.pk] = (number, status)
            return self.result.pk
        return None

    @rule(target=rows, number=st.sampled_from(["A", "B"]))
    def get_or_start(self, number):
        holder = self.holder(number)
        row, created = Shipment.states.get_or_start(number=number)
        assert created == (holder is None)
        assert created or row.pk == holder
        self.known.setdefault(row.pk, (number, "NEW"))
        return row.pk

    @rule(pk=rows, number=NUMBERS, in_transaction=st.booleans())
    def give_another_number(self, pk, number, in_transaction):
        if pk in self.known:
            row = Shipment.objects.get(pk=pk)
            row.number = number
            if self.attempt(row.save, pk, number, row.status, in_transaction):
                self.known[pk] = (number, row.status)

    @rule(pk=rows, state=st.sampled_from(STATES), in_transaction=st.booleans(), number=NUMBERS, renames=st.booleans())
    def move(self, pk, state, in_transaction, number, renames):
        if pk not in self.known:
            return
        row = Shipment.objects.get(pk=pk)
        number = number if renames else row.number
        update = {"number": number} if renames else None
        if state in EDGES.get(row.status, ()):
            act = lambda: row.states.transition_to(state, update=update)  # noqa: E731
        else:
            act = lambda: row.states.force_transition_to(state, reason="a test", update=update)  # noqa: E731
        if self.attempt(act, pk, number, state, in_transaction):
            self.known[pk] = (number, state)

    @rule(pk=rows)
    def delete(self, pk):
        if self.known.pop(pk, None) is not None:
            Shipment.objects.get(pk=pk).delete()

    @invariant()
    def rows_are_what_they_should_be(self):
        found = {pk: (number, status) for pk, number, status in Shipment.objects.values_list("pk", "number", "status")}
        assert found == self.known
        for number in ("A", "B"):
            live = Shipment.states.live(number=number)
            assert (live and live.pk) == self.holder(number)


def test_random_programs_keep_keys_unique():
    run_state_machine_as_test(
        RandomKeys,
        settings=settings(
            max_examples=25,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

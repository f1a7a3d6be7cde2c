"""Random programs against a pure-Python model: what rows and histories must look like after any sequence of calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from lab.models import Stamped
from statemachine_fields import ConcurrentTransition, InvalidStateTransition, RowMissing, UnrecordedStatusChange

EDGES = Stamped.states.transitions
STATES = [value for value, _label in Stamped.states.states]
NAMES = st.sampled_from(["a", "b", "c"])


@dataclass
class Expected:
    """What a row must look like."""

    status: str
    name: str
    history: list[tuple[str, str]] = field(default_factory=list)

    def allows(self, state: str) -> bool:
        return state in EDGES.get(self.status, [])

    def move(self, state: str) -> None:
        self.history.append((self.status, state))
        self.status = state


class Undo(Exception):
    """Raised to roll a transaction back."""


class RandomPrograms(RuleBasedStateMachine):
    """Instances are handed around and grow stale; the model knows only the rows."""

    instances = Bundle("instances")

    def __init__(self) -> None:
        super().__init__()
        Stamped.objects.all().delete()
        self.rows: dict[Any, Expected] = {}

    @rule(target=instances, status=st.sampled_from(STATES), name=NAMES)
    def create(self, status, name):
        row = Stamped.objects.create(status=status, name=name)
        self.rows[row.pk] = Expected(status, name)
        return row

    @rule(target=instances, instance=instances)
    def load_again(self, instance):
        return Stamped.objects.filter(pk=instance.pk).first() or instance

    @rule(target=instances, instance=instances)
    def load_in_part(self, instance):
        return Stamped.objects.filter(pk=instance.pk).only("name").first() or instance

    @rule(instance=instances, state=st.sampled_from(STATES), name=st.none() | NAMES)
    def transition(self, instance, state, name):
        expected = self.rows.get(instance.pk)
        update = None if name is None else {"name": name}
        if expected is None:
            with pytest.raises(RowMissing):
                instance.states.transition_to(state, update=update)
        elif not expected.allows(state):
            with pytest.raises(InvalidStateTransition) as caught:
                instance.states.transition_to(state, update=update)
            assert caught.value.from_status == expected.status
        else:
            record = instance.states.transition_to(state, update=update)
            expected.move(state)
            expected.name = name or expected.name
            assert (record.from_status, record.to_status) == expected.history[-1]
            assert (instance.status, instance.status_sequence) == (state, len(expected.history))

    @rule(instance=instances, state=st.sampled_from(STATES), seen=st.sampled_from(STATES) | st.integers(0, 4))
    def transition_if_as_expected(self, instance, state, seen):
        expected = self.rows.get(instance.pk)
        if expected is None:
            return
        if seen not in (expected.status, len(expected.history)):
            with pytest.raises(ConcurrentTransition):
                instance.states.transition_to(state, expected=seen)
        elif not expected.allows(state):
            with pytest.raises(InvalidStateTransition):
                instance.states.transition_to(state, expected=seen)
        else:
            instance.states.transition_to(state, expected=seen)
            expected.move(state)

    @rule(instance=instances, state=st.sampled_from(STATES))
    def force(self, instance, state):
        if expected := self.rows.get(instance.pk):
            instance.states.force_transition_to(state, reason="chance")
            expected.move(state)

    @rule(instance=instances, state=st.sampled_from(STATES), name=NAMES)
    def transition_and_save_in_two_steps(self, instance, state, name):
        expected = self.rows.get(instance.pk)
        if expected is None or not expected.allows(state):
            return
        with transaction.atomic():
            instance.states.transition_to(state, save=False)
            instance.name = name
            instance.save()
        expected.move(state)
        expected.name = name

    @rule(instance=instances, name=NAMES)
    def save(self, instance, name):
        """However stale the instance is, the status stays."""
        if expected := self.rows.get(instance.pk):
            instance.name = name
            instance.save()
            expected.name = name

    @rule(instance=instances, state=st.sampled_from(STATES))
    def assign_and_save(self, instance, state):
        if instance.pk not in self.rows or state == instance.status:
            return
        instance.status = state
        with pytest.raises(UnrecordedStatusChange):
            instance.save()
        instance.refresh_from_db()

    @rule(instance=instances, state=st.sampled_from(STATES))
    def transition_and_roll_back(self, instance, state):
        expected = self.rows.get(instance.pk)
        if expected is None or not expected.allows(state):
            return
        with pytest.raises(Undo), transaction.atomic():
            instance.states.transition_to(state)
            raise Undo

    @rule(instance=instances, state=st.sampled_from(STATES))
    def record_and_roll_back_and_save(self, instance, state):
        expected = self.rows.get(instance.pk)
        if expected is None or not expected.allows(state):
            return
        with transaction.atomic():
            with pytest.raises(Undo), transaction.atomic():
                instance.states.transition_to(state, save=False)
                raise Undo
            instance.save()
        expected.name = instance.name

    @rule(state=st.sampled_from(STATES), name=NAMES)
    def bulk(self, state, name):
        chosen = {pk: row for pk, row in self.rows.items() if row.name == name}
        going = [row for row in chosen.values() if row.allows(state)]
        refused = {pk: row.status for pk, row in chosen.items() if not row.allows(state)}
        result = Stamped.states.bulk_transition(Stamped.objects.filter(name=name), state, batch_size=2)
        assert result.moved == len(going)
        assert {refusal.pk: refusal.status for refusal in result.refusals} == refused
        for row in going:
            row.move(state)

    @rule(instance=consumes(instances))
    def delete(self, instance):
        if self.rows.pop(instance.pk, None):
            instance.delete()

    @invariant()
    def rows_are_as_the_model_says(self):
        columns = Stamped.objects.values_list("pk", "status", "name", "status_sequence")
        assert sorted(columns) == sorted((pk, row.status, row.name, len(row.history)) for pk, row in self.rows.items())

    @invariant()
    def histories_are_as_the_model_says(self):
        found: dict[Any, list[tuple[int, str, str]]] = {}
        records = Stamped.states.transition_model.objects.order_by("instance_id", "sequence")
        for pk, *record in records.values_list("instance_id", "sequence", "from_status", "to_status"):
            found.setdefault(pk, []).append(tuple(record))
        assert found == {
            pk: [(number, *move) for number, move in enumerate(row.history, start=1)]
            for pk, row in self.rows.items()
            if row.history
        }


@pytest.mark.django_db
def test_rows_and_histories_follow_the_model():
    run_state_machine_as_test(
        RandomPrograms,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )

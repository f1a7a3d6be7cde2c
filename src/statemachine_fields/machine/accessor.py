"""`order.states`: the machine as one row sees it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import models, router

from statemachine_fields.db.rows import all_rows, row_label
from statemachine_fields.exceptions import RowMissing
from statemachine_fields.machine.context import read_metadata
from statemachine_fields.machine.guards import Blocker
from statemachine_fields.machine.initial_records import records_of_rows
from statemachine_fields.machine.registry import MachineAttribute
from statemachine_fields.machine.transition import transition
from statemachine_fields.machine.twins import as_async
from statemachine_fields.machine.waiting import await_for, wait_for
from statemachine_fields.schedule.policy import Seconds, plain
from statemachine_fields.schedule.rows import RowSchedule

if TYPE_CHECKING:
    from statemachine_fields.machine.attempts import StateAttempt
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.binding import Binding
    from statemachine_fields.machine.delivery import Delivery
    from statemachine_fields.machine.events import StateEvent

M = TypeVar("M", bound=models.Model)


class StateMachineAccessor(Generic[M]):
    """What a row can be asked and told. Questions about moves speak of the instance; moves are judged by the row."""

    __slots__ = ("_bound", "_instance")

    def __init__(self, bound: Binding[M], instance: M) -> None:
        self._bound = bound
        self._instance = instance

    def __repr__(self) -> str:
        return f"<{self._bound} of {row_label(self._instance)}: {self.current}>"

    @property
    def current(self) -> str:
        """The current status value."""
        status: str = getattr(self._instance, self._bound.names.status)
        return status

    @property
    def display(self) -> str:
        """The label of the current status, in the active language."""
        return self._bound.label_of(self.current)

    @property
    def is_terminal(self) -> bool:
        """Whether no move leads out of the current state."""
        return self._bound.graph.is_terminal(self.current)

    @property
    def history(self) -> models.QuerySet[StateTransition[M]]:
        """The transitions of this row, the most recent first."""
        audit = self._bound.transition_model
        if self._instance.pk is None:
            return all_rows(audit).none()
        records = all_rows(audit, router.db_for_read(audit, instance=self._instance))
        of_key = records.filter(instance_id=self._bound.key_of(self._instance))
        return records_of_rows(self._bound, of_key).order_by("-sequence")

    @property
    def attempts(self) -> models.QuerySet[StateAttempt[M]]:
        """The tries of this row that did not move it, the most recent first. AttributeError without `record_attempts`."""
        tries = self._bound.attempt_model
        if self._instance.pk is None:
            return all_rows(tries).none()
        kept = all_rows(tries, router.db_for_read(tries, instance=self._instance))
        return kept.filter(instance_id=self._bound.key_of(self._instance)).order_by("-number")

    def status_at(self, when: datetime.datetime) -> str | None:
        """Return the status that the row had at an instant: what its history says, or the current one if it has none.

        Asks the database, with one query. None if the row was not there yet, which only `record_initial` knows, or if it
        is not there now.

        :raises ValueError: the instant is naive although the project uses time zones, or the reverse.
        """
        status = self._bound.questions.status_as_of(when)
        if self._instance.pk is None:
            return None
        using = router.db_for_read(self._bound.model, instance=self._instance)
        rows = all_rows(self._bound.model, using).filter(pk=self._bound.key_of(self._instance))
        found: str | None = rows.values_list(status, flat=True).first()
        return found

    def can_transition_to(self, state: str, user: Any = None) -> bool:
        """Say whether nothing stands against a move to the state: not the graph, no guard, no missing permission."""
        return not self.blockers(state, user)

    def get_valid_transitions(self) -> list[str]:
        """Return the states that a declared move leads to from the current one, in the order declared."""
        return list(self._bound.graph.targets(self.current))

    def blockers(self, state: str, user: Any = None) -> list[Blocker]:
        """Return every reason against a move to the state, as the instance has it; none means that it may move.

        :param user: whose permissions count. Without one, permissions are not asked.
        """
        return self._bound.judge.blockers(self._instance, self.current, plain(state), user)

    def transition_to(
        self,
        new_status: str,
        metadata: Mapping[str, Any] | None = None,
        save: bool = True,
        *,
        update: Mapping[str, Any] | None = None,
        record: Mapping[str, Any] | None = None,
        expected: str | int | None = None,
        user: Any = None,
    ) -> StateTransition[M]:
        """Move the row to another state and record it, both or neither; return the record.

        The graph is checked against the row in the database, so of several that race for one move exactly one wins.
        Written are the status, its counter and time, `update`, and the model's `auto_now` fields; other unsaved changes
        stay unsaved. If the call raises, row and instance are as they were.

        :param metadata: facts to keep with the record; anything `DjangoJSONEncoder` can write.
        :param save: with False, the record is written and the status is left to your own `save()` in the same
            transaction, outside of which this is refused.
        :param update: values for other fields of the row, written with the move.
        :param record: values for the fields that `transition_base` added to the audit table.
        :param expected: the state, or the number of transitions, that the row must have for the move to be right.
        :param user: who moves the row. Their permission is asked, and they are recorded as `actor`.
        :raises InvalidStateTransition: the row's status has no such move. `UnknownState` if there is no such state,
            `TransitionBlocked` if a guard or a permission is against it.
        :raises ConcurrentTransition: the row is not where `expected` says, or the database gave up on a conflict.
        :raises RowMissing: the instance was never saved, or its row is gone.
        """
        if save and update is None and record is None and expected is None and user is None:
            target = new_status if type(new_status) is str else plain(new_status)
            return transition(self._bound, self._instance, target, metadata)
        return transition(
            self._bound,
            self._instance,
            plain(new_status),
            metadata,
            update=update,
            record=record,
            expected=plain(expected) if isinstance(expected, str) else expected,
            user=user,
            save=save,
        )

    def force_transition_to(
        self,
        new_status: str,
        *,
        reason: str,
        metadata: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> StateTransition[M]:
        """Move the row to any declared state, whatever the graph and the guards say: for repair and for tests.

        The metadata of the record says that the move was forced, and why. All else is as with `transition_to()`.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError("A forced transition needs a reason, which is kept with its record.")
        read_metadata(metadata)
        facts = {**(metadata or {}), "forced": True, "reason": reason}
        return transition(
            self._bound, self._instance, plain(new_status), facts, update=update, record=record, forced=True
        )

    def wait_for(self, *states: str, timeout: Seconds | None = None) -> StateTransition[M]:
        """Wait until the row has reached one of the states, and return the record of the move that led there.

        That is the first such move after those that the instance knows of, by its `<prefix>_sequence`; also if the row has
        left the state again meanwhile. If there is none and the row is in one of the states already, it is the newest
        record; or, for a row that was created there and has none, a record as `record_initial` would have written it, with
        the number 0, which is not saved. The instance is left as it is: call `refresh_from_db()` to bring it up to the row.

        :param timeout: seconds or a `timedelta`; with 0, look once. Without one there is no limit.
        :raises WaitTimeout: the time is over. It is a `TimeoutError`, too.
        :raises StateMachineError: the row has ended in another state, so that there is nothing to wait for.
        :raises RowMissing: the instance was never saved, or its row is gone.
        :raises UnknownState: one of the states is not declared. `ValueError` if none is named.
        :raises TransactionManagementError: inside a transaction, which may hold the row that others are to move.
        """
        return wait_for(self._bound, self._instance, states, timeout)

    async def await_for(self, *states: str, timeout: Seconds | None = None) -> StateTransition[M]:  # noqa: ASYNC109
        """As `wait_for()`, without blocking the event loop, and without a thread that waits."""
        return await await_for(self._bound, self._instance, states, timeout)

    def deliver(self, name: str, payload: Any = None, *, dedup_key: str | None = None) -> Delivery:
        """Deliver an event to the row, in the caller's transaction, and return what became of it.

        A row that waits for the event is *woken*: it is due, and a worker runs it once this is committed. Otherwise the event is
        *kept* until the row waits for it. The row is not moved here, and the instance is left as it is.

        :param payload: anything `DjangoJSONEncoder` can write; an empty dict if not given.
        :param dedup_key: by which the event is known if it comes again: that is a *duplicate* as long as the row lives, and
            changes nothing.
        :raises EventRefused: the row has ended, or no state of the machine waits for an event of that name.
        :raises RowMissing: the instance was never saved, or its row is gone.
        :raises TypeError: the payload cannot be written as JSON. Nothing is written.
        """
        from statemachine_fields.machine.delivery import Deliverer

        if self._instance.pk is None:
            raise RowMissing(row_label(self._instance), saved=False)
        using = router.db_for_write(type(self._instance), instance=self._instance)
        key = self._bound.key_of(self._instance)
        return Deliverer(self._bound, using).deliver(key, name, payload, dedup_key)

    @property
    def events(self) -> models.QuerySet[StateEvent[M]]:
        """The events that were delivered to this row, in their order. `taken_by` is the number of the move that took each."""
        from statemachine_fields.machine.delivery import events_of

        return events_of(self._bound, self._instance)

    def run_at(self, when: datetime.datetime | None = None) -> None:
        """Make the row due at an instant, sooner or later than its policy says; at once without one. For timed machines.

        A later change of the policy leaves that time alone. It holds until the row moves or an outcome sets another.

        :raises RowLeased: a worker is running the row. `StateMachineError` if nothing is ever due in its state.
        :raises RowMissing: the instance was never saved, or its row is gone.
        """
        RowSchedule(self._bound, self._instance).run_at(when)

    def release(self) -> bool:
        """Take the row away from the worker that held it when the instance was loaded; False if it does not any more.

        The row is due at once, and whatever the worker still says of it is dropped. No crash is counted.
        """
        return RowSchedule(self._bound, self._instance).release()

    def resume(self) -> bool:
        """Put a parked row back on the clock, due at once and with all its tries before it; False if it is not parked."""
        return RowSchedule(self._bound, self._instance).resume()

    adeliver = as_async(deliver)
    arun_at = as_async(run_at)
    arelease = as_async(release)
    aresume = as_async(resume)
    astatus_at = as_async(status_at)
    acan_transition_to = as_async(can_transition_to)
    ablockers = as_async(blockers)
    atransition_to = as_async(transition_to)
    aforce_transition_to = as_async(force_transition_to)


_VERBS = ("transition_to", "force_transition_to", "deliver", "run_at", "release", "resume", "wait_for")

for _verb in _VERBS:  # not for templates
    getattr(StateMachineAccessor, _verb).alters_data = True
    getattr(StateMachineAccessor, f"a{_verb}").alters_data = True


class BoundAttribute(MachineAttribute):
    """What a class with a table has in place of the declaration: gives the class face or the row face."""

    def __init__(self, bound: Binding[Any]) -> None:
        self.bound = self._bound = bound

    def __get__(self, instance: models.Model | None, owner: type[models.Model]) -> Any:
        return self._bound.face_of(owner) if instance is None else StateMachineAccessor(self._bound, instance)

    def __set__(self, instance: models.Model, value: object) -> None:
        raise AttributeError(
            f"{self.bound} is the state machine and cannot be assigned. "
            "Use its transition_to() to move the row to another state."
        )

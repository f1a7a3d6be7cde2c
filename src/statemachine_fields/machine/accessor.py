"""`order.states`: the machine as one row sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import models, router

from statemachine_fields.machine.fields import row_label
from statemachine_fields.machine.graph import plain
from statemachine_fields.machine.transition import Transitioner

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.bound import BoundMachine

M = TypeVar("M", bound=models.Model)


class StateMachineAccessor(Generic[M]):
    """What a row can be asked and told. Questions about moves speak of the instance; moves are judged by the row."""

    __slots__ = ("_bound", "_instance")

    def __init__(self, bound: BoundMachine[M], instance: M) -> None:
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
        records = self._bound.transition_model._base_manager
        if self._instance.pk is None:
            return records.none()
        using = router.db_for_read(self._bound.transition_model, instance=self._instance)
        return records.using(using).filter(instance_id=self._bound.key_of(self._instance)).order_by("-sequence")

    def can_transition_to(self, state: str) -> bool:
        """Say whether the current state has a move to this one."""
        return self._bound.graph.allows(self.current, state)

    def get_valid_transitions(self) -> list[str]:
        """Return the states that a move leads to from the current one, in the order declared."""
        return list(self._bound.graph.targets(self.current))

    def transition_to(
        self,
        new_status: str,
        metadata: Mapping[str, Any] | None = None,
        save: bool = True,
        *,
        record: Mapping[str, Any] | None = None,
    ) -> StateTransition[M]:
        """Move the row to another state and record it, both or neither; return the record.

        The graph is checked against the row in the database, under its lock, so of several that race for one move
        exactly one wins. Written are the status, its counter and time, and the model's `auto_now` fields; other
        unsaved changes stay unsaved. If the call raises, row and instance are as they were.

        :param metadata: facts to keep with the record; anything `DjangoJSONEncoder` can write.
        :param save: with False, the record is written and the status is left to your own `save()` in the same
            transaction, outside of which this is refused.
        :param record: values for the fields that `transition_base` added to the audit table.
        :raises InvalidStateTransition: the row's status has no such move. `UnknownState` if there is no such state.
        :raises RowMissing: the instance was never saved, or its row is gone.
        """
        return Transitioner(self._bound, self._instance, plain(new_status), metadata, record).run(save=save)

    transition_to.alters_data = True  # type: ignore[attr-defined]  # templates must not call it

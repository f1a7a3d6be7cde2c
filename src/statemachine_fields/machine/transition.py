"""The write path: judge, move, record. Judged by the row and not by the instance; both written, or neither.

The common move runs straight: the instance says where the row is, the graph has the move, and one statement compares, sets
and records. What is rare steps out of that into a `Transitioner`: an option of the caller's, somebody who listens or guards,
a database that needs more than one statement, a comparison that missed.

This is the one place where microseconds count: each is paid by every move, and by none of what it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connections, models, router
from django.db.models.base import ModelState

from statemachine_fields.machine import parents
from statemachine_fields.machine.context import loaded, read_facts
from statemachine_fields.machine.ids import uuid7
from statemachine_fields.machine.listeners import tell_rejection
from statemachine_fields.machine.plan import plan_for
from statemachine_fields.machine.transitioner import Transitioner, conflict_behind
from statemachine_fields.machine.watcher import tell_watchers, watchers
from statemachine_fields.schedule.wakeups import wake_after_entry

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.binding import Binding

M = TypeVar("M", bound=models.Model)


def transition(
    bound: Binding[M], instance: M, to_status: str, metadata: Mapping[str, Any] | None = None, **options: Any
) -> StateTransition[M]:
    """Move the row and return the record, or raise and leave row and instance as they were.

    :param options: what a `Transitioner` takes, if there is more to say.
    """
    model, data, assignments = type(instance), vars(instance), bound.field.assignments
    key = data.get(bound.key_name)
    if options or key is None or instance._state.adding or assignments.made(instance):
        return Transitioner(bound, instance, to_status, metadata, **options).run()
    from_status: str = data.get(bound.names.status, "")
    if to_status not in bound.graph.edges.get(from_status, ()):
        return Transitioner(bound, instance, to_status, metadata).run()
    using = router.db_for_write(model, instance=instance)
    connection = connections[using]
    plan = plan_for(bound, model, connection)
    if plan.straight is None:
        return Transitioner(bound, instance, to_status, metadata, routed=using).run()
    facts = read_facts(metadata)
    before = data.copy() if plan.refreshed else None
    given = (to_status, *plan.entries[to_status])
    try:
        for field in plan.refreshed:
            given = (*given, field.get_db_prep_save(field.pre_save(instance, False), connection))
        record_id = uuid7()
        try:
            moved = plan.straight(connection, key, given, (from_status,), (record_id, from_status, to_status, facts))
        except Exception as error:
            conflict = conflict_behind(error, connection, instance, to_status)
            if conflict is None:
                raise
            raise conflict from error
    except BaseException as error:
        _put_back(data, before)
        tell_rejection(error, bound, instance, to_status, facts, using)
        raise
    if moved is None:
        _put_back(data, before)
        return Transitioner(bound, instance, to_status, metadata, routed=using, facts=facts, is_tried=True).run()
    plan.bring_up(instance, to_status, moved)
    if plan.schedule is not None:
        wake_after_entry(
            bound, connection, to_status, moved[2], plan.entries[to_status][-1], data.get(bound.queue_name)
        )
    if watchers:
        tell_watchers(bound, using, key)
    if parents.waiting and bound.joins_as_child != ():
        parents.row_moved(bound, connection, to_status, instance)
    audit: Any = bound.audit_model
    made: Any = audit.__new__(audit)  # what __init__() would do, were it not asked so often
    its_state: Any = ModelState()
    its_state.__dict__ = {"adding": False, "db": using, "fields_cache": {"instance": instance}}
    made.__dict__ = {
        "_state": its_state,
        "id": record_id,
        "instance_id": key,
        "from_status": from_status,
        "to_status": to_status,
        "transitioned_at": moved[1],
        "metadata": loaded(facts),
        "sequence": moved[0],
    }
    record: StateTransition[M] = made
    return record


def _put_back(data: dict[str, Any], before: dict[str, Any] | None) -> None:
    """Put back what `auto_now` fields have assigned."""
    if before is not None:
        data.clear()
        data.update(before)

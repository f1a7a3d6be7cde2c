"""The write path: judge, move, record. Judged by the row and not by the instance; both written, or neither.

First look: the instance says where the row is. If the move is legal from there, compare and set; on PostgreSQL that is
one statement and all there is. Second look, if the comparison missed or the instance cannot be trusted: lock the row,
judge by what it says, and move it.

This is the one place where microseconds count: each is paid by every move, and by none of what it is compared with.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import OperationalError, connections, models, router, transaction
from django.db.transaction import TransactionManagementError

from statemachine_fields.db.dialect import Move, Moved, Row, Shape, dialect_for
from statemachine_fields.exceptions import (
    ConcurrentTransition,
    InvalidStateTransition,
    LeaseLost,
    RowMissing,
    StateMachineError,
    TransitionBlocked,
    UnknownState,
)
from statemachine_fields.machine.context import with_actor, with_context
from statemachine_fields.machine.fields import row_label
from statemachine_fields.machine.guards import Blocker, find_blockers
from statemachine_fields.machine.ids import uuid7
from statemachine_fields.machine.initial import begin_after_kept
from statemachine_fields.machine.kept import newest_records
from statemachine_fields.machine.listeners import has_receivers, is_heard, runs_user_code
from statemachine_fields.machine.metadata import loaded, read_metadata
from statemachine_fields.machine.rows import all_rows
from statemachine_fields.machine.settling import Pending, not_settled, undone, watch
from statemachine_fields.machine.updates import Updates, is_expression
from statemachine_fields.signals import post_transition, pre_transition, transition_committed, transition_rejected

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.bound import BoundMachine

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")


class Transitioner(Generic[M]):
    """One attempt to move one row."""

    # Set on the way, once it is known how the move is written and from where.
    shape: Shape
    values: tuple[Any, ...]
    draft: StateTransition[M] | None
    extras: tuple[Any, ...] | None
    left: Mapping[str, Any]
    from_status: str

    def __init__(
        self,
        bound: BoundMachine[M],
        instance: M,
        to_status: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        record: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        expected: str | int | None = None,
        user: Any = None,
        forced: bool = False,
        save: bool = True,
        lease: int | None = None,
        delay: float | None = None,
        record_id: uuid.UUID | None = None,
        using: str | None = None,
    ) -> None:
        self.bound = bound
        self.instance = instance
        self.to_status = to_status
        self.expected = expected
        self.user = user
        self.forced = forced
        self.save = save
        self.lease = lease
        if lease is None and bound.is_timed and to_status in bound.graph:
            delay = bound.entry_delay(to_status)
        self.delay = delay
        self.given_using = using
        self.using = using or router.db_for_write(type(instance), instance=instance)
        self.connection = connections[self.using]
        self.dialect = dialect_for(self.connection)
        self.metadata = self._read_metadata(metadata)
        self.record = bound.read_record(record)
        self.updates = Updates(bound.model, instance, update)
        self.by_save = save and runs_user_code(type(instance))
        self.record_id = record_id or uuid7()

    def _read_metadata(self, metadata: Mapping[str, Any] | None) -> str:
        given = read_metadata(metadata)  # complains of what the caller passed, before of what surrounds it
        merged = with_context(with_actor(metadata or {}, self.user))
        return given if merged is metadata or not merged else read_metadata(merged)

    def run(self) -> StateTransition[M]:
        """Move the row and return the record, or raise and leave row and instance as they were."""
        restore = self._remember_instance()
        try:
            self._refuse_the_impossible()
            return self._attempt()
        except BaseException as error:
            restore()
            if isinstance(error, InvalidStateTransition | ConcurrentTransition):
                transition_rejected.send_robust(**self._told(getattr(error, "from_status", None)), error=error)
            raise

    def _refuse_the_impossible(self) -> None:
        """Raise what can be told without looking at the row."""
        graph, instance = self.bound.graph, self.instance
        if self.to_status not in graph:
            raise self._unknown(self.to_status)
        if self.expected is not None and (not isinstance(self.expected, str | int) or isinstance(self.expected, bool)):
            raise TypeError(f"expected must be a state or a number of transitions, got {self.expected!r}.")
        if isinstance(self.expected, str) and self.expected not in graph:
            raise self._unknown(self.expected)
        if instance._state.adding or instance.pk is None:
            raise RowMissing(row_label(instance), saved=False)
        if not self.save and not self.connection.in_atomic_block:
            raise TransactionManagementError(
                f"{row_label(instance)}: transition_to(save=False) writes the record now and leaves the status to your "
                "own save(). Wrap both in transaction.atomic(), so that they succeed or fail together."
            )

    def _unknown(self, state: str) -> UnknownState:
        graph = self.bound.graph
        current = getattr(self.instance, self.bound.names.status)
        return UnknownState(row_label(self.instance), state, list(graph.states), current, graph.targets(current))

    def _attempt(self) -> StateTransition[M]:
        if self.bound.keeps_history and not vars(self.instance).get(self.bound.names.sequence):
            key = self.bound.key_of(self.instance)
            if self._ask(lambda: newest_records(self.bound, [key], self.using)):
                with transaction.atomic(using=self.using):  # if the move is refused, the row has not begun
                    self._begin(key)
                    return self._go()
        return self._go()

    def _go(self) -> StateTransition[M]:
        self._choose_the_way()
        watched = is_heard(pre_transition, self.bound.model) or is_heard(post_transition, self.bound.model)
        tried = False
        alone = self.dialect.is_one_statement and self.shape.records and not (watched or self.by_save or self.left)
        if alone and not self._is_committed_by_hand():
            moved = self._compare_and_set()
            if moved is not None:
                return self._conclude(moved)
            tried = True
        # Code of the user's may raise after the record is written, and the caller may catch that and go on.
        asks = bool(self.bound.guards) or (self.user is not None and self.bound.graph.asks_permission(self.to_status))
        runs_code = watched or self.by_save or asks or not self.shape.records
        with transaction.atomic(using=self.using, savepoint=runs_code):
            outcome = self._in_transaction(tried)
            if not isinstance(outcome, StateMachineError):
                self._refuse_to_be_undone()
        if isinstance(outcome, StateMachineError):  # raised out here, so that a caller's transaction stays usable
            raise outcome
        return outcome

    def _begin(self, key: Any) -> None:
        """Let the row begin if it has not: its key has the history of another, and it was inserted past `save()`."""
        for number in self._ask(lambda: begin_after_kept(self.bound, [key], self.using)).values():
            vars(self.instance)[self.bound.names.sequence] = number
            self.expected = number if self.expected == 0 else self.expected
            self.record_id = uuid7()  # above that of the record with which the row has begun

    def _refuse_to_be_undone(self) -> None:
        """Raise if the block is going to be rolled back, which Django would do in silence."""
        if self.connection.needs_rollback:
            raise undone(row_label(self.instance), self.to_status)

    def _is_committed_by_hand(self) -> bool:
        """Say whether a receiver waits for a commit that only the caller makes, which needs a block to wait in."""
        is_waited_for = is_heard(transition_committed, self.bound.model)
        return is_waited_for and not (self.connection.in_atomic_block or self.connection.get_autocommit())

    def _choose_the_way(self) -> None:
        """Decide what our statement carries, and what is left to Django or to the model's own save()."""
        self.updates.assign()
        ours: dict[Any, Any] = {}
        if self.by_save or not self.save:
            self.left = self.updates.expressions()
        else:
            ours, self.left = self.updates.split()
        self.draft, self.extras = self.bound.draft_record(self.record, self.connection)
        self.shape = self.bound.shape(
            moves=self.save and not self.by_save,
            records=self.extras is not None and not has_receivers(self.bound.transition_model),
            compares=self._compared_columns(),
            updates=tuple([field.column for field in ours]),
        )
        self.values = tuple([field.get_db_prep_save(value, self.connection) for field, value in ours.items()])

    def _compared_columns(self) -> tuple[str, ...]:
        """Return what must be as the caller says, besides the status."""
        names = self.bound.names
        sequence = (names.sequence,) if isinstance(self.expected, int) else ()
        return sequence if self.lease is None else (*sequence, names.lease_token)

    def _in_transaction(self, tried: bool) -> StateTransition[M] | StateMachineError:
        moved = None
        if not tried and not is_heard(pre_transition, self.bound.model):  # they are told once, of a locked row
            moved = self._compare_and_set()
        if moved is None:
            key = self.bound.key_of(self.instance)
            row = self._ask(lambda: self.dialect.lock(self.connection, self.bound.table, key))
            if row is None:
                return RowMissing(row_label(self.instance), saved=True)
            refusal = self._judge(row)
            if refusal is not None:
                return refusal
            if is_heard(pre_transition, self.bound.model):
                pre_transition.send(**self._told(row.status))
            moved = self._move(row.status)
            if moved is None:  # a receiver has moved the row, or a trigger of the database's own
                return self._lost_to_another(key)
        return self._conclude(moved)

    def _lost_to_another(self, key: Any) -> StateMachineError:
        """Return the error for a row that was locked, and moved all the same."""
        row = self._ask(lambda: self.dialect.lock(self.connection, self.bound.table, key))
        label = row_label(self.instance)
        if row is None:
            return RowMissing(label, saved=True)
        return ConcurrentTransition(label, self.to_status, self.expected, row.status, row.sequence)

    def _compare_and_set(self) -> Moved | None:
        """Move the row if it is where the instance says, and may go from there; None if that remains to be seen."""
        believed = self._believed_status()
        if isinstance(self.expected, str) and believed != self.expected:
            if self.bound.guards or self.user is not None:  # who must not be asked about a row that is elsewhere
                return None
            believed = self.expected
        if believed is None or not (self.forced or self.bound.graph.allows(believed, self.to_status)):
            return None
        if self._blockers(believed):
            return None
        return self._move(believed)

    def _believed_status(self) -> str | None:
        if self.bound.field.assignments.made(self.instance):
            return None
        status: str | None = vars(self.instance).get(self.bound.names.status)
        return status

    def _judge(self, row: Row) -> StateMachineError | None:
        """Say why the locked row must not move, with the instance brought up to it."""
        label = row_label(self.instance)
        if self.lease is not None and self.lease != row.lease_token:
            return LeaseLost(label, self.lease)
        if self.expected is not None and self.expected not in row[:2]:
            return ConcurrentTransition(label, self.to_status, self.expected, row.status, row.sequence)
        self.bound.field.assignments.write(self.instance, row.status)
        vars(self.instance)[self.bound.names.sequence] = row.sequence
        allowed = self.bound.graph.targets(row.status)
        if not self.forced and self.to_status not in allowed:
            return self.bound.refuse_move(label, row.status, self.to_status)
        blockers = self._blockers(row.status)
        return TransitionBlocked(label, row.status, self.to_status, allowed, blockers) if blockers else None

    def _blockers(self, from_status: str) -> list[Blocker]:
        """Return what guards and permissions have against a move that the graph allows."""
        if self.forced or (self.user is None and not self.bound.guards):
            return []
        return find_blockers(self.bound, self.instance, from_status, self.to_status, self.user)

    def _move(self, from_status: str) -> Moved | None:
        self.from_status = from_status
        compared = (self.expected,) if isinstance(self.expected, int) else ()
        move = Move(
            self.bound.key_of(self.instance),
            from_status,
            self.to_status,
            self.record_id,
            self.metadata,
            compared if self.lease is None else (*compared, self.lease),
            self.values,
            self.extras or (),
            self.delay,
        )
        return self._ask(lambda: self.dialect.move(self.connection, self.shape, move))

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the database; a conflict it gives up on is told as ConcurrentTransition."""
        try:
            return question()
        except Exception as error:
            if self.connection.in_atomic_block:
                transaction.set_rollback(True, using=self.using)
            if isinstance(error, OperationalError) and self.dialect.is_conflict(error):
                label = row_label(self.instance)
                raise ConcurrentTransition(label, self.to_status, self.expected, None, None) from error
            raise

    def _conclude(self, moved: Moved) -> StateTransition[M]:
        """Bring the instance up to the row, let others write and know, and return the record."""
        bound, instance = self.bound, self.instance
        transition = self._load_record(moved)
        if not self.shape.records:
            transition.insert(self.using)
        data = vars(instance)
        data[bound.names.sequence] = moved.sequence
        data[bound.names.changed_at] = moved.changed_at
        if bound.is_timed:
            data.update(bound.free_clock(moved.next_at, moved.lease_token))
        pending = None
        if not self.shape.moves:
            pending = Pending(bound.key_of(instance), self.to_status, moved.sequence, self.record_id)
        bound.field.assignments.write(instance, self.to_status, pending)
        if self.left:
            self._write_left()
        if pending is not None:
            if self.by_save:
                self._settle(pending)
            else:
                watch(pending, bound, row_label(instance), self.using)
        if is_heard(transition_committed, bound.model):  # in the order of the moves, also of those that receivers make
            told = self._told(self.from_status)
            transaction.on_commit(
                lambda: transition_committed.send_robust(**told, transition=transition), using=self.using
            )
        if is_heard(post_transition, bound.model):
            post_transition.send(**self._told(self.from_status), transition=transition)
        return transition

    def _load_record(self, moved: Moved) -> StateTransition[M]:
        values = {
            "id": self.record_id,
            "instance_id": self.bound.key_of(self.instance),
            "from_status": self.from_status,
            "to_status": self.to_status,
            "transitioned_at": moved.changed_at,
            "metadata": loaded(self.metadata),
            "sequence": moved.sequence,
        }
        return self.bound.load_record(self.instance, self.using, values, self.draft, adding=not self.shape.records)

    def _write_left(self) -> None:
        """Let Django write what our statement could not carry, and read back what came of expressions."""
        row = all_rows(type(self.instance), self.using).filter(pk=self.instance.pk)
        row.update(**self.left)
        computed = [field.attname for field in self.updates.fields if is_expression(self.left.get(field.name))]
        if computed:
            # Not by refresh_from_db(): whoever watches for changes would take all that the instance holds for saved.
            for name, value in row.values(*computed).get().items():
                setattr(self.instance, name, value)

    def _settle(self, pending: Pending) -> None:
        """Let the model's own save() and its receivers write the status, and see that they did."""
        using: dict[str, Any] = {} if self.given_using is None else {"using": self.given_using}
        self.instance.save(update_fields=[self.bound.names.status, *self.updates.names], **using)
        self._refuse_to_be_undone()
        # It is ours already. What locks it is a text that is made once, and a query of Django's would take as long as save().
        row = self._ask(lambda: self.dialect.lock(self.connection, self.bound.table, pending.key))
        if not pending.is_reached(row and row[:2], self.bound, self.using):
            raise not_settled(pending, row_label(self.instance))
        if self.bound.field.assignments.pending_of(self.instance) is pending:  # else it has moved on meanwhile
            self.bound.field.assignments.forget(self.instance)

    def _told(self, from_status: str | None) -> dict[str, Any]:
        """Return what every signal says."""
        return {
            "sender": self.bound.model,
            "machine": self.bound,
            "instance": self.instance,
            "from_status": from_status,
            "to_status": self.to_status,
            "metadata": loaded(self.metadata),
            "using": self.using,
        }

    def _remember_instance(self) -> Callable[[], None]:
        """Return what puts the instance back to where it is now, whatever was assigned to it meanwhile.

        All of it: an assignment may write more than one attribute, as that of an amount does which has a currency.
        """
        data, state = vars(self.instance), vars(self.instance._state)
        before, marked = data.copy(), state.copy()
        related = marked.get("fields_cache")
        if related is not None:
            marked["fields_cache"] = related.copy()

        def restore() -> None:
            for place, values in ((data, before), (state, marked)):
                place.clear()
                place.update(values)

        return restore

"""A move that takes more than one statement, or about which there is more to say.

First look: the instance says where the row is. If the move is legal from there, compare and set. Second look, if the
comparison missed or the instance cannot be trusted: lock the row, judge by what it says, and move it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from django.db import OperationalError, connections, models, router, transaction
from django.db.transaction import TransactionManagementError

from statemachine_fields.db.dialect import LockedRow, dialect_for
from statemachine_fields.db.rows import all_rows, row_label
from statemachine_fields.exceptions import (
    ConcurrentTransition,
    LeaseLost,
    RowMissing,
    StateMachineError,
)
from statemachine_fields.machine import parents
from statemachine_fields.machine.context import loaded, read_facts
from statemachine_fields.machine.ids import uuid7
from statemachine_fields.machine.initial_records import begin_after_kept, newest_records
from statemachine_fields.machine.listeners import is_heard, tell_rejection, told
from statemachine_fields.machine.pending import Pending, not_saved, undone, watch
from statemachine_fields.machine.plan import Plan, plan_for
from statemachine_fields.machine.updates import Updates, is_expression
from statemachine_fields.machine.watcher import tell_watchers, watchers
from statemachine_fields.schedule.wakeups import wake_after_entry
from statemachine_fields.signals import post_transition, pre_transition, transition_committed

if TYPE_CHECKING:
    from statemachine_fields.machine.audit import StateTransition
    from statemachine_fields.machine.binding import Binding

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")


class Transitioner(Generic[M]):
    """One attempt to move one row."""

    # Set on the way, once it is known how the move is written and from where.
    plan: Plan
    columns: tuple[str, ...]
    values: tuple[Any, ...]
    draft: StateTransition[M] | None
    extras: tuple[Any, ...] | None
    left: Mapping[str, Any]
    from_status: str

    def __init__(
        self,
        bound: Binding[M],
        instance: M,
        to_status: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        record: Mapping[str, Any] | None = None,
        update: Mapping[str, Any] | None = None,
        expected: str | int | None = None,
        user: Any = None,
        forced: bool = False,
        save: bool = True,
        lease: int | None = None,
        delay: float | None = None,
        seen: int | None = None,
        record_id: uuid.UUID | None = None,
        using: str | None = None,
        routed: str | None = None,
        facts: str | None = None,
        is_tried: bool = False,
    ) -> None:
        self.bound = bound
        self.instance = instance
        self.to_status = to_status
        self.expected = expected
        self.user = user
        self.forced = forced
        self.save = save
        self.lease = lease
        #: Of a worker's move: in how many seconds the row is due.
        self.given_delay = delay
        #: And how many events the worker has seen, if the row waits for some there.
        self.given_seen = seen
        self.given_using = using
        self.using = using or routed or router.db_for_write(type(instance), instance=instance)
        self.connection = connections[self.using]
        self.dialect = dialect_for(self.connection)
        self.metadata = read_facts(metadata, user) if facts is None else facts
        self.record = bound.read_record(record)
        self.updates = Updates(bound.model, instance, update)
        self.record_id = record_id or uuid7()
        #: Whether the row was not where the instance says.
        self.is_tried = is_tried

    def run(self) -> StateTransition[M]:
        """Move the row and return the record, or raise and leave row and instance as they were."""
        restore = self._remember_instance()
        try:
            self._refuse_the_impossible()
            return self._attempt()
        except BaseException as error:
            key, update = self.bound.key, {field.name: value for field, value in self.updates.given.items()}
            refusal = None if key is None else key.refusal(self.instance, error, self.using, update)
            restore()
            raised = refusal or error
            tell_rejection(raised, self.bound, self.instance, self.to_status, self.metadata, self.using)
            if refusal is not None:
                raise refusal from error
            raise

    def _refuse_the_impossible(self) -> None:
        """Raise what can be told without looking at the row."""
        instance, judge = self.instance, self.bound.judge
        if self.to_status not in self.bound.graph:
            judge.require_state(self.to_status, row_label(instance), self._current)
        if self.expected is not None and (not isinstance(self.expected, str | int) or isinstance(self.expected, bool)):
            raise TypeError(f"expected must be a state or a number of transitions, got {self.expected!r}.")
        if isinstance(self.expected, str) and self.expected not in self.bound.graph:
            judge.require_state(self.expected, row_label(instance), self._current)
        if instance._state.adding or instance.pk is None:
            raise RowMissing(row_label(instance), saved=False)
        if not self.save and not self.connection.in_atomic_block:
            raise TransactionManagementError(
                f"{row_label(instance)}: transition_to(save=False) writes the record now and leaves the status to your "
                "own save(). Wrap both in transaction.atomic(), so that they succeed or fail together."
            )

    @property
    def _current(self) -> str:
        status: str = getattr(self.instance, self.bound.names.status)
        return status

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
        plan = self.plan
        takes_key = self._may_take_key()
        is_alone = plan.is_alone and self._records and not takes_key
        if is_alone and not (self.left or self.is_tried or self._is_committed_by_hand()):
            moved = self._compare_and_set()
            if moved is not None:
                return self._conclude(moved)
            self.is_tried = True
        # Code of the user's may raise after the record is written, and the caller may catch that and go on.
        runs_code = plan.tells_before or plan.tells_after or plan.by_save or not self._records
        savepoint = runs_code or takes_key or self.bound.judge.asks(self.to_status, self.user)
        with transaction.atomic(using=self.using, savepoint=savepoint):
            outcome = self._in_transaction()
            if not isinstance(outcome, StateMachineError):
                self._refuse_to_be_undone()
        if isinstance(outcome, StateMachineError):  # raised out here, so that a caller's transaction stays usable
            raise outcome
        return outcome

    def _may_take_key(self) -> bool:
        """Say whether another row may have the key that this one would be live with: no other move gives a row one."""
        key = self.bound.key
        if key is None or not key.is_kept_in(self.to_status):
            return False
        return self.forced or not key.names.isdisjoint(self.updates.names)

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
        is_by_hand = not (self.connection.in_atomic_block or self.connection.get_autocommit())
        return self.plan.tells_committed and is_by_hand

    def _choose_the_way(self) -> None:
        """Decide what our statement carries, and what is left to Django or to the model's own save()."""
        compares = ("sequence",) if isinstance(self.expected, int) else ()
        if self.lease is not None:
            compares = (*compares, "lease_token")
        self.plan = plan_for(self.bound, type(self.instance), self.connection, self.save, compares)
        self.updates.assign()
        ours: dict[Any, Any] = {}
        if self.plan.moves:
            ours, self.left = self.updates.split()
        else:
            self.left = self.updates.expressions()
        self.draft, self.extras = self.bound.draft_record(self.record, self.connection)
        self.columns = tuple([field.column for field in ours])
        self.values = tuple([field.get_db_prep_save(value, self.connection) for field, value in ours.items()])

    @property
    def _records(self) -> bool:
        """Whether our statement inserts the audit row."""
        return self.plan.records and self.extras is not None

    def _in_transaction(self) -> StateTransition[M] | StateMachineError:
        moved = None
        if not self.is_tried and not self.plan.tells_before:  # they are told once, of a locked row
            moved = self._compare_and_set()
        if moved is None:
            key = self.bound.key_of(self.instance)
            row = self._ask(lambda: self.dialect.lock(self.connection, self.bound.table, key))
            if row is None:
                return RowMissing(row_label(self.instance), saved=True)
            refusal = self._judge(row)
            if refusal is not None:
                return refusal
            if is_heard(pre_transition, self.bound.model):  # also by who has been connected since the plan was made
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

    def _compare_and_set(self) -> tuple[Any, ...] | None:
        """Move the row if it is where the instance says, and may go from there; None if that remains to be seen."""
        bound, instance = self.bound, self.instance
        believed = None if bound.field.assignments.made(instance) else vars(instance).get(bound.names.status)
        if isinstance(self.expected, str) and believed != self.expected:
            if bound.guards or self.user is not None:  # who must not be asked about a row that is elsewhere
                return None
            believed = self.expected
        if believed is None:
            return None
        if not self.forced and bound.judge.blockers(instance, believed, self.to_status, self.user):
            return None
        return self._move(believed)

    def _judge(self, row: LockedRow) -> StateMachineError | None:
        """Say why the locked row must not move, with the instance brought up to it."""
        label = row_label(self.instance)
        if self.lease is not None and self.lease != row.lease_token:
            return LeaseLost(label, self.lease)
        if self.expected is not None and self.expected not in row[:2]:
            return ConcurrentTransition(label, self.to_status, self.expected, row.status, row.sequence)
        self.bound.field.assignments.write(self.instance, row.status)
        vars(self.instance)[self.bound.names.sequence] = row.sequence
        if self.forced:
            return None
        return self.bound.judge.refusal(label, self.instance, row.status, self.to_status, self.user)

    def _move(self, from_status: str) -> tuple[Any, ...] | None:
        self.from_status = from_status
        plan, records = self.plan, self._records
        given: tuple[Any, ...] = (self.to_status,) if plan.moves else ()
        if plan.schedule is not None:
            given += self._entry
        compared: tuple[Any, ...] = (from_status,)
        if isinstance(self.expected, int):
            compared += (self.expected,)
        if self.lease is not None:
            compared += (self.lease,)
        record: tuple[Any, ...] = ()
        if records:
            record = (self.record_id, from_status, self.to_status, self.metadata, *(self.extras or ()))
        write, key = plan.write(self.connection, self.columns, records), self.bound.key_of(self.instance)
        return self._ask(lambda: write(self.connection, key, (*given, *self.values), compared, record))

    @property
    def _entry(self) -> tuple[Any, ...]:
        """What the statement is given about when the row is due: see `Binding.entry_values()`."""
        values = self.bound.entry_values(self.to_status)
        return values if self.lease is None else (*([self.given_seen] if len(values) > 1 else []), self.given_delay)

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask the database; a conflict it gives up on is told as ConcurrentTransition."""
        try:
            return question()
        except Exception as error:
            conflict = conflict_behind(error, self.connection, self.instance, self.to_status, self.expected)
            if conflict is None:
                raise
            raise conflict from error

    def _conclude(self, moved: tuple[Any, ...]) -> StateTransition[M]:
        """Bring the instance up to the row, let others write and know, and return the record."""
        bound, instance = self.bound, self.instance
        plan, records = self.plan, self._records
        transition = self._load_record(moved)
        if not records:
            transition.insert(self.using)
        pending = None
        if not plan.moves:
            pending = Pending(bound.key_of(instance), self.to_status, moved[0], self.record_id)
        plan.bring_up(instance, self.to_status, moved, pending)
        if self.left:
            self._write_left()
        if pending is not None:
            if plan.by_save:
                self._save_pending(pending)
            else:
                watch(pending, bound, row_label(instance), self.using)
        if watchers:
            tell_watchers(bound, self.using, bound.key_of(instance))
        if parents.waiting and bound.joins_as_child != ():
            parents.row_moved(bound, self.connection, self.to_status, instance)
        if is_heard(transition_committed, bound.model):  # in the order of the moves, also of those that receivers make
            told = self._told(self.from_status)
            transaction.on_commit(
                lambda: transition_committed.send_robust(**told, transition=transition), using=self.using
            )
        if is_heard(post_transition, bound.model):
            post_transition.send(**self._told(self.from_status), transition=transition)
        if plan.schedule is not None:
            queue = vars(instance).get(bound.queue_name)
            wake_after_entry(bound, self.connection, self.to_status, moved[2], self._entry[-1], queue)
        return transition

    def _load_record(self, moved: tuple[Any, ...]) -> StateTransition[M]:
        values = {
            "id": self.record_id,
            "instance_id": self.bound.key_of(self.instance),
            "from_status": self.from_status,
            "to_status": self.to_status,
            "transitioned_at": moved[1],
            "metadata": loaded(self.metadata),
            "sequence": moved[0],
        }
        return self.bound.load_record(self.instance, self.using, values, self.draft, adding=not self._records)

    def _write_left(self) -> None:
        """Let Django write what our statement could not carry, and read back what came of expressions."""
        row = all_rows(type(self.instance), self.using).filter(pk=self.instance.pk)
        row.update(**self.left)
        computed = [field.attname for field in self.updates.fields if is_expression(self.left.get(field.name))]
        if computed:
            # Not by refresh_from_db(): whoever watches for changes would take all that the instance holds for saved.
            for name, value in row.values(*computed).get().items():
                setattr(self.instance, name, value)

    def _save_pending(self, pending: Pending) -> None:
        """Let the model's own save() and its receivers write the status, and see that they did."""
        using: dict[str, Any] = {} if self.given_using is None else {"using": self.given_using}
        self.instance.save(update_fields=[self.bound.names.status, *self.updates.names], **using)
        self._refuse_to_be_undone()
        # It is ours already. What locks it is a text that is made once, and a query of Django's would take as long as save().
        row = self._ask(lambda: self.dialect.lock(self.connection, self.bound.table, pending.key))
        if not pending.is_reached(row and row[:2], self.bound, self.using):
            raise not_saved(pending, row_label(self.instance))
        if self.bound.field.assignments.pending_of(self.instance) is pending:  # else it has moved on meanwhile
            self.bound.field.assignments.forget(self.instance)

    def _told(self, from_status: str | None) -> dict[str, Any]:
        return told(self.bound, self.instance, from_status, self.to_status, self.metadata, self.using)

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


def conflict_behind(
    error: Exception, connection: Any, instance: models.Model, to_status: str, expected: str | int | None = None
) -> ConcurrentTransition | None:
    """Return the error for a database that gave up because of another transaction; None if it is another matter."""
    if connection.in_atomic_block:
        connection.set_rollback(True)
    if isinstance(error, OperationalError) and dialect_for(connection).is_conflict(error):
        return ConcurrentTransition(row_label(instance), to_status, expected, None, None)
    return None

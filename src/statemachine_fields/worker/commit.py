"""Write what became of leased rows: many in one statement, each compared with its token, none harmed by another.

What the database does not confirm is either locked by somebody at the moment, and tried again later, or no longer ours,
and dropped. A group that cannot be written is cut in two until the row is alone that is to blame. What is told is what was
committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from django.db import models, transaction

from statemachine_fields.db.dialect import is_connection_error, is_scarcity
from statemachine_fields.worker.attempt import Attempts, described
from statemachine_fields.worker.blocks import Block
from statemachine_fields.worker.connections import is_same
from statemachine_fields.worker.events import Events
from statemachine_fields.worker.lanes import Lane
from statemachine_fields.worker.outcomes import Kind, Verdict
from statemachine_fields.worker.writing import (
    IN_TRANSACTION,
    MOST_AT_ONCE,
    STAYING,
    Group,
    NotWritten,
    Write,
    groups_of,
    is_in_the_way,
    pairs,
)

#: So many rows at once are no longer few.
LARGE = 1000
#: After how many tries it is said that a row is locked, and asked whether it really is.
LONG_LOCKED = 4


class ConnectionLost(Exception):
    """The database went away. What was sent may have been written or not: repeat it on a new connection."""

    #: What is to be written besides the verdicts that nothing is told of yet.
    again: list[Verdict]

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.again = []


class Committer:
    """Writes verdicts. Each thread that has one uses its own connection."""

    def __init__(self, attempts: Attempts, events: Events) -> None:
        self.attempts = attempts
        self.events = events
        #: How many rows at once were not too many the last time, where it was too many once.
        self._sizes: dict[tuple[Lane, Write], int] = {}

    def commit(self, verdicts: Iterable[Verdict]) -> list[Verdict]:
        """Write verdicts and tell of each, and return those to be tried again a little later.

        :raises ConnectionLost: the database went away. All that is not yet told of can be committed again.
        """
        again: list[Verdict] = []
        for group, members in groups_of(verdicts).items():
            again += self.write_group(group, members)
        return again

    def write_group(self, group: Group, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Write what can be written together, or as much of it as can, and return what is to be tried again."""
        lane, how, _alone = group
        again: list[Verdict] = []
        waiting = deque(verdicts)
        size = min(self._sizes.get((lane, how), len(waiting)), MOST_AT_ONCE.get(how, len(waiting)))
        while waiting:
            part = [waiting.popleft() for _ in range(min(size, len(waiting)))]
            try:
                again += self._write(lane, how, part)
            except ConnectionLost as lost:
                lost.again += again
                raise
            except BaseException as error:  # noqa: BLE001 - a constraint, a trigger, a receiver: code of the user's
                part = [verdict for verdict in part if not verdict.is_told]
                if is_scarcity(error):  # nothing can be written now, of no row
                    return again + self._set_aside([*part, *waiting], error)
                if not part or lane.dialect.is_statement_lost(error):
                    again += part
                elif len(part) > 1:
                    waiting.extendleft(reversed(part))
                    size = len(part) // 2
                    if is_in_the_way(lane, error):
                        self._sizes[lane, how] = size
                else:
                    again += (
                        self._set_aside(part, error) if is_in_the_way(lane, error) else self._refuse(part[0], error)
                    )
            else:
                size = self._grown(lane, how, size, len(part), len(waiting))
        return again

    def _grown(self, lane: Lane, how: Write, size: int, written: int, waiting: int) -> int:
        """Return how many to write next. What took too long once is not made longer again before the next group."""
        limit = self._sizes.get((lane, how))
        if limit is None:
            return min(size * 2, MOST_AT_ONCE.get(how, size * 2))
        if not waiting and written >= limit:
            self._sizes[lane, how] = limit * 2
            if limit > LARGE:
                del self._sizes[lane, how]
        return size

    def _set_aside(self, verdicts: list[Verdict], error: BaseException) -> list[Verdict]:
        for verdict in verdicts:
            verdict.tries += 1
        self.events.set_aside(verdicts[0], described(error), error)
        return verdicts

    def _refuse(self, verdict: Verdict, error: BaseException) -> list[Verdict]:
        """Write, in place of a verdict that the database will not have, that it would not."""
        if verdict.kind is Kind.PARKED:  # and not even that: so it is not the verdict that is wrong
            return self._set_aside([verdict.instead_of or verdict], error)
        return self._replace(verdict, self.attempts.refuse(verdict, error))

    def _replace(self, verdict: Verdict, other: Verdict) -> list[Verdict]:
        """Write another verdict of the same row."""
        again = self.commit([other])
        verdict.is_told = all(each is not verdict for each in again)
        return again

    def _write(self, lane: Lane, how: Write, verdicts: list[Verdict]) -> list[Verdict]:
        with self._resolving(lane, verdicts), self._guarded(lane):
            written = self._call(lane, how, verdicts)
        missing = [verdict for verdict in verdicts if verdict.lease.key not in written]
        if len(missing) < len(verdicts):
            self.events.written([verdict for verdict in verdicts if verdict.lease.key in written])
        return self._find_out(lane, how, missing) if missing else []

    def _find_out(self, lane: Lane, how: Write, missing: list[Verdict]) -> list[Verdict]:
        """Return what is to be tried again of rows that were not written, and tell of the others what became of them."""
        again: list[Verdict] = []
        with self._resolving(lane, missing):
            held = self._held(lane, missing)
            recorded = self._recorded(
                lane, [each for each in missing if each.is_repeated and each.record_id is not None]
            )
            before = [each for each in missing if each.lease.key not in held and each.is_repeated]
            settled = [each for each in before if self._was_written(lane, each)]
        for verdict in missing:
            if verdict.record_id in recorded or any(verdict is each for each in settled):  # before the connection broke
                self.events.written([verdict])
            elif verdict.lease.key in held:
                again += self._not_written(lane, how, verdict)
            else:
                self.events.dropped(verdict)
        return again

    @contextmanager
    def _resolving(self, lane: Lane, verdicts: list[Verdict]) -> Iterator[None]:
        """Remember of verdicts that they may have been written, if that is not known because the connection was lost."""
        driver = lane.connection.connection
        try:
            yield
        except Exception as error:
            if not is_connection_error(error) or is_scarcity(error) or is_same(lane.connection, driver):
                raise
            for verdict in verdicts:
                verdict.is_repeated = True
            raise ConnectionLost(str(error)) from error

    def _call(self, lane: Lane, how: Write, verdicts: list[Verdict]) -> set[Any]:
        """Write, in a transaction if it takes more than one statement, and return the keys of what was."""
        if how not in IN_TRANSACTION:
            return how(lane, verdicts)
        block = Block(lane.using)
        written: set[Any] = set()
        try:
            with block:
                written = how(lane, verdicts)
        except BaseException as error:
            if not block.is_committed:
                raise
            for verdict in verdicts:
                if verdict.lease.key in written:
                    self.events.raised_after_commit(verdict, error)
        return written

    def _not_written(self, lane: Lane, how: Write, verdict: Verdict) -> list[Verdict]:
        """Return what to do with a row that is ours and was not written: it is locked, or the database would not."""
        verdict.tries += 1
        try:
            if verdict.kind is Kind.SETTLED_ITSELF:
                return self._replace(verdict, self.attempts.not_moved(verdict))
            if verdict.tries < LONG_LOCKED:
                return [verdict]
            return self._write_locked(lane, how, verdict)
        except BaseException as error:  # noqa: BLE001 - code of the user's, again
            if isinstance(error, ConnectionLost) or is_connection_error(error):
                verdict.is_repeated = True
                return [verdict]  # which will find out that it is lost
            return self._set_aside([verdict], error) if is_in_the_way(lane, error) else self._refuse(verdict, error)

    def _write_locked(self, lane: Lane, how: Write, verdict: Verdict) -> list[Verdict]:
        """Lock the row first, and so find out why it is not written."""
        lease, status = verdict.lease, lane.bound.names.status
        rows: models.QuerySet[Any] = models.QuerySet(lane.bound.model, using=lane.using).filter(pk=lease.key)
        block = Block(lane.using)
        is_free = is_elsewhere = is_written = False
        try:
            with block:
                is_free = lane.lock(lease.key, lease.token)
                is_elsewhere = is_free and not rows.filter(**{status: lease.status}).exists()
                is_written = is_free and not is_elsewhere and bool(how(lane, [verdict]))
        except BaseException as error:
            if not block.is_committed:
                raise
            self.events.raised_after_commit(verdict, error)
        if is_written:
            self.events.written([verdict])
            return []
        if not is_free:
            self.events.set_aside(verdict, "Somebody else has the row locked.")
            return [verdict]
        if is_elsewhere:  # moved past the machine, which leaves the lease as it is
            self.events.dropped(verdict)
            return self.commit([Verdict(lease, Kind.RELEASED)])
        raise NotWritten

    def _guarded(self, lane: Lane) -> AbstractContextManager[Any]:
        """Keep a transaction that is not ours usable if a statement fails, as in a test."""
        return transaction.atomic(using=lane.using) if lane.connection.in_atomic_block else nullcontext()

    def _held(self, lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
        keys, tokens = pairs(verdicts)
        return lane.held(keys, tokens)

    def _recorded(self, lane: Lane, verdicts: Sequence[Verdict]) -> set[Any]:
        """Return the ids of records that were written although nobody told us so."""
        if not verdicts:
            return set()
        ids: list[Any] = [verdict.record_id for verdict in verdicts]
        records: models.QuerySet[Any] = models.QuerySet(lane.bound.transition_model, using=lane.using)
        return set(records.filter(pk__in=ids).values_list("pk", flat=True))

    def _was_written(self, lane: Lane, verdict: Verdict) -> bool:
        """Say whether a row is as a verdict would leave it that was sent before."""
        names, lease = lane.bound.names, verdict.lease
        row: models.QuerySet[Any] = models.QuerySet(lane.bound.model, using=lane.using).filter(pk=lease.key)
        if verdict.kind is Kind.DELETED:
            return not row.exists()
        as_it_would_be = {names.lease_token: lease.token + 1, names.status: lease.status, names.lease_owner: ""}
        if verdict.kind is not Kind.RELEASED:
            as_it_would_be |= {names.failures: verdict.failures, names.error: verdict.error, names.crashes: 0}
        return verdict.kind in STAYING and row.filter(**as_it_would_be).exists()

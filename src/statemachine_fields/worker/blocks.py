"""Transactions of which it is known afterwards whether they were committed."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from django.db import connections, transaction

from statemachine_fields.worker.connections import discard


class RolledBack(Exception):
    """A transaction was undone by code that took part in it, and said nothing."""

    def __str__(self) -> str:
        return "Code that took part in the transaction marked it for rollback, so nothing was written."


class LeftOpen(Exception):
    """A transaction was begun within another, and not ended."""

    def __str__(self) -> str:
        return "The handler began a transaction and did not end it, so nothing was written."


class Block:
    """A transaction that knows afterwards whether it was committed, whatever was raised on the way out."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.is_committed = False
        self._atomic = transaction.atomic(using=using)

    def __enter__(self) -> Self:
        connection = connections[self.using]
        if not connection.in_atomic_block and not connection.get_autocommit():
            connection.rollback()
            connection.set_autocommit(True)  # else Django would leave the end of it to us
        self._atomic.__enter__()
        transaction.on_commit(self._note, using=self.using)  # the first of all that are to run then
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection = connections[self.using]
        if connection.atomic_blocks[-1:] != [self._atomic]:  # Django would take the end of ours for the end of that
            discard(connection)
            if kind is None:
                raise LeftOpen
            return
        if kind is None and connection.needs_rollback:  # Django would undo it in silence
            rolled_back = RolledBack()
            self._atomic.__exit__(RolledBack, rolled_back, None)
            raise rolled_back
        self._atomic.__exit__(kind, error, traceback)

    def _note(self) -> None:
        self.is_committed = True

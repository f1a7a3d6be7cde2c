"""Statements of a try that runs in somebody else's transaction, as in a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from django.db import DatabaseError, connections


class TrySavepoint:
    """Notices the first statement of a try, and keeps the transaction usable that it runs in.

    A worker has no transaction around a handler, so what the database refuses fails by itself. In one, as a test has it, nothing
    could be executed any more. So there is a savepoint before the first statement, and a try that has broken the transaction
    is undone to there. What a handler writes that breaks nothing stands, as it would in a worker.

    :param before: to be called before the first statement, and no part of what is undone.
    """

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.has_happened = False
        self._before = before
        self._is_busy = False
        #: By connection, until it is taken None.
        self._points: dict[Any, Any] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                self._points[connection] = None
            self._stack.enter_context(connection.execute_wrapper(partial(self._see, connection)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        for connection, point in self._points.items():
            if point is not None:
                _keep_or_undo(connection, point)

    def _see(self, connection: Any, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if not self._is_busy:
            self._is_busy = True
            try:
                if not self.has_happened:
                    self.has_happened = True
                    self._before()
                if self._points.get(connection, True) is None:
                    self._points[connection] = connection.savepoint()
            finally:
                self._is_busy = False
        return execute(sql, params, many, context)


def _keep_or_undo(connection: Any, point: str) -> None:
    if not connection.needs_rollback:
        try:
            connection.savepoint_commit(point)
        except DatabaseError:  # it has given the transaction up, and Django was not told
            pass
        else:
            return
    connection.needs_rollback = False
    connection.savepoint_rollback(point)
    connection.savepoint_commit(point)

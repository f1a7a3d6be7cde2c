"""A cell of the comparison is a function that finds out what stands in it."""

from __future__ import annotations

from collections.abc import Callable

Cell = Callable[[], str]

#: What was asked of whom: by table, row and column, in the order in which they are written down.
CELLS: dict[str, dict[str, dict[str, Cell]]] = {}

YES, NO, NONE = "yes", "no", "–"


def cell(table: str, row: str, *columns: str) -> Callable[[Cell], Cell]:
    """Register a function as what fills a cell, or the cells of several columns."""

    def register(function: Cell) -> Cell:
        for column in columns:
            CELLS.setdefault(table, {}).setdefault(row, {})[column] = function
        return function

    return register

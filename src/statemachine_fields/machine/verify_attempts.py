"""Find tries that do not fit the row they are kept of, or its history.

Read in the order of their key, in pages, each beside what the row and its records say at the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import OuterRef, Subquery

from statemachine_fields.db.rows import all_rows

if TYPE_CHECKING:
    from statemachine_fields.machine.binding import Binding

#: What an operator can do, by what is wrong.
REMEDIES = {
    "attempt-row-missing": "The row was deleted past Django. Restore it, or delete its tries.",
    "attempt-number-invalid": "The counter of tries was set back, or the try is of another row. Set the counter to the highest "
    "number, with SQL.",
    "attempt-misplaced": "The try or the history was changed, or the try is of another row. Compare with a backup.",
}


class AttemptsReader:
    """Compares the tries of one machine with its rows, page by page.

    :param page_size: how many tries are read with one statement.
    """

    def __init__(self, bound: Binding[Any], using: str, page_size: int) -> None:
        self.bound = bound
        self.page_size = page_size
        names = bound.names
        row: Any = all_rows(bound.model, using).filter(pk=OuterRef("instance_id"))
        records: Any = all_rows(bound.transition_model, using).filter(instance_id=OuterRef("instance_id"))
        record = records.filter(sequence=OuterRef("sequence"))
        after = records.filter(sequence=OuterRef("sequence") + 1)
        self.tries: models.QuerySet[Any] = (
            all_rows(bound.attempt_model, using)
            .order_by("pk")
            .annotate(
                row_attempts=Subquery(row.values(names.attempts)),
                row_sequence=Subquery(row.values(names.sequence)),
                row_status=Subquery(row.values(names.status)),
                entered=Subquery(record.values("to_status")),
                left=Subquery(after.values("from_status")),
            )
        )

    def pages(self) -> Iterator[list[Any]]:
        """Yield pages of tries, each with what is known of its row."""
        page = list(self.tries[: self.page_size])
        while page:
            yield page
            page = list(self.tries.filter(pk__gt=page[-1].pk)[: self.page_size]) if len(page) == self.page_size else []

    def disagreements(self, attempt: Any) -> Iterator[tuple[str, str]]:
        """Yield what is wrong with a try, as code and text."""
        what, attempts, sequence = f"Try {attempt.number}", attempt.row_attempts, attempt.row_sequence
        if attempts is None:
            yield "attempt-row-missing", f"{what} is of a row that is not there."
            return
        if not 1 <= attempt.number <= attempts:
            yield "attempt-number-invalid", f"{what} is kept, but the row counts {attempts}."
        if not 0 <= attempt.sequence <= sequence:
            yield (
                "attempt-misplaced",
                f"{what} is said to be after move {attempt.sequence}, but the row has made {sequence}.",
            )
            return
        # A row may have entered its state before anything was recorded.
        state = attempt.entered or attempt.left or (attempt.row_status if attempt.sequence == sequence else None)
        if state is not None and state != attempt.state:
            yield (
                "attempt-misplaced",
                f"{what} is of {attempt.state!r}, but after move {attempt.sequence} it was {state!r}.",
            )

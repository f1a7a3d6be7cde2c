"""What can be wrong with rows and their histories, by stable names, and what an operator can do about each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from statemachine_fields.machine.verify_attempts import REMEDIES

ERROR, WARNING = "error", "warning"


class Code(NamedTuple):
    """A kind of finding: whether data is damaged or only differs from what is declared, and what an operator can do."""

    severity: str
    remedy: str


#: By name. Names are stable: scripts compare with them.
CODES = {
    "counter-ahead": Code(
        ERROR, "Restore the records from a backup, or insert stand-ins with bulk_create() on the audit model."
    ),
    "counter-behind": Code(
        ERROR,
        "If the row did make these moves, set its counter and status to the latest record's with SQL. If not, delete "
        "the records above the counter.",
    ),
    "records-missing": Code(
        ERROR, "Restore them from a backup, or insert stand-ins with bulk_create() on the audit model."
    ),
    "number-invalid": Code(
        ERROR,
        "Records are numbered 1, 2, 3 and each number is there once. Delete the record, or correct its number with SQL.",
    ),
    "chain-broken": Code(
        ERROR,
        "The row was moved past the machine, or a record was changed. Compare with a backup, and correct the records "
        "with update() on the audit model.",
    ),
    "status-mismatch": Code(
        ERROR,
        "The status was written past the machine, or transition_to(save=False) was never saved. Set the status to the "
        "recorded one with SQL; if the row belongs elsewhere, move it then with force_transition_to().",
    ),
    "time-mismatch": Code(
        ERROR,
        "One of the times was changed, or the record is of another row. Compare with a backup; if the record is right, set "
        "the row's time to its with SQL.",
    ),
    "record-misplaced": Code(
        ERROR,
        "A record's id is made when it is written, so it was written for another row, or its number was changed. Compare with "
        "a backup. If the clocks of the program and the database were set back together, correct the time with update() on "
        "the audit model.",
    ),
    "status-undeclared": Code(
        ERROR,
        "No move leads out of it, and no worker takes the row. Declare the state, or take the row out of it with "
        "force_transition_to().",
    ),
    "event-numbers": Code(
        ERROR, "Events are numbered 1, 2, 3, as many as the row counts. Restore them, or correct the counter with SQL."
    ),
    "event-taker-missing": Code(ERROR, "Restore the record from a backup, or set `taken_by` to NULL with SQL."),
    "event-unseen": Code(ERROR, "Run statemachine_reschedule, which wakes such rows, or run_at() of the row."),
    "row-missing": Code(ERROR, "The row was deleted past Django. Restore it, or delete its records."),
    "state-undeclared": Code(
        WARNING, "Declare the state, or rename it in a data migration, in rows and records alike."
    ),
    "move-undeclared": Code(
        WARNING,
        "The move was legal when it was made, or the record was not written by the machine. Declare the move if it "
        "should be legal; otherwise nothing has to be done.",
    ),
    "time-backwards": Code(
        WARNING,
        "The clock of the database was set back, or a time was changed. Numbers order the history, so nothing else is "
        "wrong.",
    ),
    **{code: Code(ERROR, remedy) for code, remedy in REMEDIES.items()},
    "children-decided": Code(
        WARNING,
        "A worker that serves the state looks every 30 s. Start one; or make the row due with run_at().",
    ),
    "children-parked": Code(WARNING, "See why with Model.states.parked(), and resume() them or move them on."),
    "children-left": Code(WARNING, "A worker that serves the row's machine cancels them. Start one."),
    "time-future": Code(
        WARNING,
        "The clock of the database was ahead when the row moved, or the time was changed. Nothing has to be done if the clock "
        "is right by now; until then the row counts as one that has just moved.",
    ),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with one row or its history."""

    machine: str
    pk: Any
    code: str
    what: str

    @property
    def severity(self) -> str:
        return CODES[self.code].severity

    @property
    def message(self) -> str:
        """What is wrong, and what an operator can do."""
        return f"{self.what} {CODES[self.code].remedy}"

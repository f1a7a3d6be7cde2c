"""What can happen to a row, as what becomes of each column of its machine.

An effect is said once, here. `as_sql()` is what the writers of all databases render, for one row and for many; `as_update()` is
the same for `QuerySet.update()`, and `empties()` for an instance. A column that an effect does not name stays as it is, and one
that a machine does not have is left out.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from statemachine_fields.db.clock import DatabaseClock, due_time
from statemachine_fields.db.columns import EMPTY, Names
from statemachine_fields.db.expressions import Increment, LeftBehind, MachineValue


class Becomes(enum.Enum):
    """What becomes of a column."""

    #: What the caller gives.
    GIVEN = enum.auto()
    #: What the caller gives as seconds from now, by the database's clock; empty if it gives None.
    LATER = enum.auto()
    #: The same; but now, if the row has more events in its inbox than the caller has seen. It is compared in the statement that
    #: lets the row sleep: a look before would miss what comes in after it. Where there is no inbox, and if None were to be seen,
    #: there is nothing to compare.
    DUE = enum.auto()
    #: The same, but no later than some seconds after the row entered its state. Empty if both are None.
    LATER_OR_HORIZON = enum.auto()
    #: The time of the write, by the database's clock.
    NOW = enum.auto()
    #: One more than it was.
    RAISED = enum.auto()
    #: One less.
    LOWERED = enum.auto()
    #: What a new row has.
    EMPTY = enum.auto()
    TRUE = enum.auto()
    #: The number of the move by which the row leaves one of some states, unless it has the number of an earlier one.
    LEFT = enum.auto()
    #: A text of the caller's around the name of who held the row.
    BLAME = enum.auto()


_NEEDS_VALUE = (Becomes.GIVEN, Becomes.LATER, Becomes.DUE, Becomes.LATER_OR_HORIZON, Becomes.BLAME)
#: What is compared with the inbox, where there is one.
COMPARES_INBOX = (Becomes.DUE, Becomes.LATER_OR_HORIZON)


class Terms(NamedTuple):
    """How a database says what time it is, or will be."""

    now: str
    later: str
    no_later: str
    #: In how many seconds: in none if there is something in the inbox that was not seen.
    unseen: str


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """What becomes of the columns of a row, by what each is to the machine."""

    name: str
    changes: Mapping[str, Becomes]

    def __str__(self) -> str:
        return self.name

    def on(self, columns: Collection[str]) -> dict[str, Becomes]:
        """Return what becomes of those columns that there are."""
        return {column: becomes for column, becomes in self.changes.items() if column in columns}

    def wants(self, columns: Collection[str]) -> list[str]:
        """Return the columns for which the caller gives a value, and `seen` before what is compared with the inbox."""
        wanted = []
        for column, becomes in self.on(columns).items():
            if becomes in COMPARES_INBOX and "inbox" in columns:
                wanted.append("seen")
            if becomes in _NEEDS_VALUE:
                wanted.append(column)
        return wanted

    def as_sql(
        self, names: Mapping[str, str], terms: Terms, *, given: str = "%s", row: str = "", also: Iterable[str] = ()
    ) -> str:
        """Return what an UPDATE sets.

        :param names: the columns that there are, quoted.
        :param given: where the values of the caller's are: parameters, or with `{}` for the column a table of them.
        :param row: how the row as it was is called, if it has to be.
        :param also: other columns, quoted, that get parameters.
        """
        changes = []
        for column, becomes in self.on(names).items():
            name, value = names[column], given.format(column)
            if becomes in COMPARES_INBOX and "inbox" in names:
                inbox, seen = row + names["inbox"], given.format("seen")
                value = terms.unseen.format(inbox=inbox, seen=seen, seconds=value)
            if becomes is Becomes.GIVEN:
                to = value
            elif becomes is Becomes.NOW:
                to = terms.now
            elif becomes in (Becomes.LATER, Becomes.DUE):
                to = terms.later.format(seconds=value)
            elif becomes is Becomes.LATER_OR_HORIZON:
                entered = row + names["changed_at"]
                to = terms.no_later.format(seconds=value, entered=entered, horizon=given.format("horizon"))
            elif becomes is Becomes.RAISED:
                to = f"{row}{name} + 1"
            elif becomes is Becomes.LOWERED:
                to = f"{row}{name} - 1"
            elif becomes is Becomes.BLAME:
                to = f"{value} || {row}{names['lease_owner']} || {value}"
            elif becomes is Becomes.TRUE:
                to = "TRUE"
            elif becomes is Becomes.LEFT:
                leaves = f"{row}{name} = 0 AND {row}{names['status']} IN ({names['cancelling']})"
                to = f"CASE WHEN {leaves} THEN {row}{names['sequence']} + 1 ELSE {row}{name} END"
            else:
                to = _literal(EMPTY[column])
            changes.append(f"{name} = {to}")
        return ", ".join([*changes, *[f"{column} = %s" for column in also]])

    def as_update(
        self, names: Names, columns: Collection[str], *, cancelling: Sequence[str] = (), **given: Any
    ) -> dict[str, Any]:
        """Return what `QuerySet.update()` is to write: an instant or a value for what is GIVEN, seconds for what is LATER or DUE,
        and `seen` where there is an inbox.

        :raises TypeError: the effect is worked out from other columns of the row, which a statement of our own does.
        """
        changes: dict[str, Any] = {}
        for column, becomes in self.on(columns).items():
            name = getattr(names, column)
            if becomes in (Becomes.LATER_OR_HORIZON, Becomes.BLAME):
                raise TypeError(f"QuerySet.update() cannot write {name} of the effect {self.name!r}.")
            if becomes is Becomes.NOW:
                changes[name] = DatabaseClock()
            elif becomes in (Becomes.RAISED, Becomes.LOWERED):
                changes[name] = Increment(name, 1 if becomes is Becomes.RAISED else -1)
            elif becomes is Becomes.DUE and "inbox" in columns and given["seen"] is not None:
                changes[name] = due_time(names.inbox, given["seen"], given[column])
            elif becomes in (Becomes.LATER, Becomes.DUE) and given[column] is not None:
                changes[name] = DatabaseClock(given[column])
            elif becomes is Becomes.TRUE:
                changes[name] = MachineValue(True)
            elif becomes is Becomes.LEFT:
                changes[name] = LeftBehind(name, names.status, names.sequence, cancelling)
            else:
                value = EMPTY[column] if becomes is Becomes.EMPTY else given[column]
                changes[name] = value if isinstance(value, DatabaseClock) else MachineValue(value)
        return changes

    def empties(self, names: Names, columns: Collection[str]) -> dict[str, Any]:
        """Return what an instance holds afterwards in the columns that the effect empties."""
        emptied = [column for column, becomes in self.on(columns).items() if becomes is Becomes.EMPTY]
        return {getattr(names, column): EMPTY[column] for column in emptied}


def _literal(empty: Any) -> str:
    return "NULL" if empty is None else "''" if empty == "" else str(empty).upper()


# Whatever ends a lease raises the token, so that nothing its holder sends later is heard, not even a heartbeat that was
# on its way.
_END_OF_LEASE = {
    "lease_owner": Becomes.EMPTY,
    "lease_expires_at": Becomes.EMPTY,
    "lease_token": Becomes.RAISED,
}
_FRESH = {"failures": Becomes.EMPTY, "crashes": Becomes.EMPTY, "error": Becomes.EMPTY}

_COUNTED = {
    "sequence": Becomes.RAISED,
    "changed_at": Becomes.NOW,
    "next_at": Becomes.DUE,
    "next_at_pinned": Becomes.EMPTY,
}
_RECORDED = {**_COUNTED, **_END_OF_LEASE, **_FRESH}
_TAKEN = {
    "lease_token": Becomes.RAISED,
    "lease_owner": Becomes.GIVEN,
    "lease_expires_at": Becomes.LATER,
    "claimed_at": Becomes.NOW,
    "attempts": Becomes.RAISED,
}

#: Before the status and the sequence: some databases set one column after the other.
_LEFT = {"cancels": Becomes.LEFT}

#: The row moves to another state.
ENTER = Effect("enter", {**_LEFT, "status": Becomes.GIVEN, **_RECORDED})
#: The same, but for the status, which is left to a `save()`.
ANNOUNCE = Effect("announce", {**_LEFT, **_RECORDED})
#: A worker is done with the row, which stays in its state.
STAY = Effect(
    "stay",
    {
        **_END_OF_LEASE,
        "crashes": Becomes.EMPTY,
        "failures": Becomes.GIVEN,
        "error": Becomes.GIVEN,
        "next_at": Becomes.LATER_OR_HORIZON,
        "next_at_pinned": Becomes.EMPTY,
    },
)
#: A worker takes the row.
CLAIM = Effect("claim", _TAKEN)
#: A worker moves the row and keeps it, as a new claim. The token is raised, so that nothing is heard any more of what was
#: sent under the old one: neither a heartbeat nor the same move once more.
ENTER_CLAIMED = Effect("enter claimed", {**_LEFT, "status": Becomes.GIVEN, **_COUNTED, **_TAKEN, **_FRESH})
#: It keeps the row.
BEAT = Effect("beat", {"lease_expires_at": Becomes.LATER})
#: It gives the row back as it was: due, and with no crash counted.
RELEASE = Effect("release", _END_OF_LEASE)
#: The same, before its handler has begun: that was no try.
UNCLAIM = Effect("unclaim", {**_END_OF_LEASE, "attempts": Becomes.LOWERED})
#: The row is taken back from a worker that was never heard of again. First the error, which names who held it.
RECOVER = Effect("recover", {"error": Becomes.BLAME, "crashes": Becomes.RAISED, **_END_OF_LEASE})
#: A parked row is due again, with all its tries before it.
RESUME = Effect("resume", {"next_at": Becomes.NOW, "next_at_pinned": Becomes.EMPTY, **_FRESH})
#: The children that a row has left behind are seen to.
CANCELLED = Effect("cancelled", {"cancels": Becomes.EMPTY})
#: What a row waits for has happened: it is due, and whoever takes it finds out what that comes to.
WAKE = Effect("wake", {"next_at": Becomes.NOW})
#: Somebody, and not the policy, says when the row is due.
RUN_AT = Effect("run at", {"next_at": Becomes.GIVEN, "next_at_pinned": Becomes.TRUE})

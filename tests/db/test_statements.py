"""Every statement that a machine can send, by its kind, as text: who reviews a change sees what it costs whom.

The texts are in `statements-postgresql.sql` and `statements-sqlite.sql`, beside this file. This writes them anew, on each:

    SMF_DB=postgresql SMF_STATEMENTS=write pytest tests/db/test_statements.py
    SMF_DB=sqlite SMF_STATEMENTS=write pytest tests/db/test_statements.py
"""

from __future__ import annotations

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.sql import compiler
from django.test.utils import CaptureQueriesContext, override_settings

from lab.models import (
    ByHand,
    ByWorker,
    Car,
    Coupon,
    Deal,
    Dispatch,
    Document,
    Effort,
    Expedition,
    Hooked,
    Kept,
    Lot,
    Reasoned,
    Relay,
    Shipment,
    Stamped,
    Wish,
)
from statemachine_fields import StateMachineError
from statemachine_fields.db.claims import Left, Level, Wanted
from statemachine_fields.db.dialect import dialect_for
from statemachine_fields.db.effects import BEAT, ENTER, ENTER_CLAIMED, RELEASE, STAY, UNCLAIM
from statemachine_fields.db.riders import Taking
from statemachine_fields.machine.ids import uuid7

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="its statements are those of SQLite, with its own clock"),
]

FILE = Path(__file__).with_name(f"statements-{connection.vendor}.sql")
LINE = 120

#: What is compared of a row that moves, and of one that went on.
STATE, OWNER = ("lease_token", "status"), ("lease_token", "lease_owner")

#: Where a statement is broken into lines, and what opens a part of it that is broken, too.
CLAUSE = re.compile(
    r" (?=(?:UPDATE|SET|FROM|WHERE|RETURNING|INSERT INTO|ORDER BY|UNION ALL|CROSS JOIN|SELECT)\b)|(?<=,) (?=\w+ AS (?:MATERIALIZED )?\()"
)
PART = re.compile(r"(?:\bAS|\bMATERIALIZED|\bLATERAL|\bFROM) $")


@dataclass(frozen=True)
class Kind:
    """A kind of machine: a model that has one, a row of it, where that goes, and what `update=` writes on the way."""

    name: str
    model: Any
    to_status: str
    given: dict[str, Any] = field(default_factory=dict)
    update: dict[str, Any] = field(default_factory=dict)
    #: Of a worker's statements, those that are told by what they begin with: the others are as of another kind.
    work: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.model._meta.label}"

    def row(self) -> Any:
        self.model.objects.all().delete()
        return self.model.objects.create(**self.given)


PLAIN = [
    Kind("plain", ByHand, "LAST"),
    Kind("with an auto_now field", Stamped, "DONE", update={"name": "b"}),
    Kind("with fields of its own in the audit table", Reasoned, "DONE"),
    Kind("with a save() of its own", Hooked, "DONE", update={"name": "b"}),
    Kind("with guards", Document, "REVIEW", {"words": 1}, {"words": 2}),
    Kind("whose history outlives its rows", Kept, "DONE"),
    Kind("with a key that is unique while it is live", Shipment, "SENT", {"number": "A"}, {"number": "B"}),
    Kind("of a multi-table child", Car, "MOVING", update={"plate": "X", "doors": 2}),
]
TIMED = [
    Kind("timed", ByWorker, "LAST"),
    Kind("timed, with an auto_now field", Lot, "SOLD", update={"amount": 2}, work="enter"),
    Kind("timed, with a text for a key", Coupon, "DONE", {"code": "abc"}),
    Kind("timed, whose rows run ahead", Relay, "TWO"),
    Kind("timed, whose rows say their queue and priority", Dispatch, "PACKED"),
    Kind("timed, whose rows may say them or not", Wish, "PACKED"),
    Kind("timed, whose tries are kept", Effort, "DONE"),
    Kind("whose rows wait for events", Deal, "DONE", {"code": "abc"}),
    Kind("timed, whose rows leave children behind", Expedition, "WALKING"),
]


@contextmanager
def sent() -> Iterator[list[str]]:
    """Collect the statements that are sent meanwhile: ours as they are, those of Django by what they do to which table."""
    texts: list[str] = []
    found: list[str] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        texts.append(_of_django(sql) if _is_compiled_by_django() else _without_queryset(" ".join(sql.split())))
        return execute(sql, params, many, context)

    with CaptureQueriesContext(connection) as queries, connection.execute_wrapper(note):
        yield found
    waiting = iter(texts)
    for query in queries:
        # BEGIN and COMMIT are logged and are no statements of a cursor.
        is_boundary = query["sql"] in ("BEGIN", "COMMIT", "ROLLBACK")
        found.append(query["sql"] if is_boundary else re.sub(r'(SAVEPOINT) "?s\w+"?', r"\1", next(waiting)))


def _is_compiled_by_django() -> bool:
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_filename == compiler.__file__:
            return True
        frame = frame.f_back
    return False


def _of_django(sql: str) -> str:
    """Say what a statement of Django's does. How it writes that depends on its version."""
    (table,) = re.findall(r'(?:^SELECT .*? FROM|^UPDATE|^INSERT INTO|^DELETE FROM) "(\w+)"', sql)[:1]
    return f"-- Django: {sql.split(maxsplit=1)[0]} {table}"


def _without_queryset(sql: str) -> str:
    """Leave out what Django has compiled of a statement of ours."""
    sql = re.sub(r"^(INSERT INTO \S+) .* (ON CONFLICT .* DO NOTHING) .*", r"\1 ... \2 ...", sql)
    return re.sub(r"MATERIALIZED \(SELECT [^()]* (?=FOR NO KEY UPDATE\), moved)", "MATERIALIZED (... ", sql)


def moves(kind: Kind) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield every way to move a row of such a machine."""
    to = kind.to_status
    yield "a move", lambda row: row.states.transition_to(to)
    yield "a move in a transaction", lambda row: in_transaction(lambda: row.states.transition_to(to))
    if kind.update:
        yield "update=", lambda row: row.states.transition_to(to, update=kind.update)
    yield "expected= a state", lambda row: row.states.transition_to(to, expected=row.status)
    yield "expected= a number", lambda row: row.states.transition_to(to, expected=0)
    yield (
        "save=False and save()",
        lambda row: in_transaction(
            lambda: row.states.transition_to(to, save=False), lambda: row.save(update_fields=["status"])
        ),
    )
    yield "force_transition_to()", lambda row: row.states.force_transition_to(to, reason="a test")
    yield "a move that the graph does not have", lambda row: refused(lambda: row.states.transition_to(row.status))
    yield (
        "a move of an instance that is stale, refused",
        lambda row: refused(lambda: stale(row).states.transition_to(to)),
    )
    yield (
        "bulk_transition()",
        lambda row: kind.model.states.bulk_transition(kind.model.objects.filter(pk=row.pk), to),
    )


def keyed(kind: Kind) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield what is sent of rows whose key is unique while they are live."""
    model: Any = kind.model
    yield "create()", lambda row: model.objects.create(number="C")
    yield "create() in a transaction", lambda row: in_transaction(lambda: model.objects.create(number="C"))
    yield "create(), refused", lambda row: refused(lambda: model.objects.create(number="A"))
    yield "save()", lambda row: row.save()
    yield "save() in a transaction", lambda row: in_transaction(row.save)
    yield "get_or_start(), found", lambda row: model.states.get_or_start(number="A")
    yield "get_or_start(), started", lambda row: model.states.get_or_start(number="C")


def in_transaction(*steps: Callable[[], Any]) -> None:
    with transaction.atomic():
        for step in steps:
            step()


def refused(step: Callable[[], Any]) -> None:
    with suppress(StateMachineError):
        step()


STALE: dict[int, Any] = {}


def stale(row: Any) -> Any:
    return STALE[id(row)]


def work(kind: Kind) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield all that a worker writes and asks of the rows of a timed machine."""
    model: Any = kind.model
    bound = model.states._meta
    table, dialect = bound.table, dialect_for(connection)
    state = bound.graph.initial

    def wanted(crashes: int = 0, **facts: Any) -> Wanted:
        return Wanted([state], [0], 10, "me", 60.0, crashes, tuple(model._meta.concrete_fields), **facts)

    def write(
        effect: Any,
        row: Any,
        updates: Any = (),
        compares: Any = STATE,
        values: Any = (),
        riders: Any = (),
        **given: Any,
    ) -> Any:
        rows = {"key": [row.pk], "was_lease_token": [token_of(row)], "was_status": [state]}
        rows = {name: values for name, values in rows.items() if name == "key" or name[4:] in compares}
        rows |= {name: [value] for name, value in given.items()}
        records = effect is ENTER
        done = dialect.write_rows(
            connection,
            table,
            effect,
            rows,
            compares=compares,
            records=records,
            updates=list(updates),
            values=values,
            riders=riders,
        )
        assert done == {row.pk}

    def read(effect: Any, row: Any, compares: Any, **given: Any) -> Any:
        was: dict[str, Any] = {"lease_token": token_of(row), "lease_owner": "", "status": state}
        rows = {"key": [row.pk], **{f"was_{name}": [was[name]] for name in compares}}
        rows |= {name: [value] for name, value in given.items()}
        fields, records = tuple(model._meta.concrete_fields), effect is ENTER_CLAIMED
        found = dialect.write_and_read_rows(connection, table, effect, rows, fields, compares=compares, records=records)
        assert {*found} == {row.pk}

    def token_of(row: Any) -> int:
        return int(getattr(row, bound.names.lease_token))

    moving: dict[str, Any] = {"status": kind.to_status, "next_at": 60.0, "record": uuid7(), "metadata": "{}"}
    held: dict[str, Any] = {"lease_owner": "me", "lease_expires_at": 60.0}
    staying: dict[str, Any] = {"failures": 1, "error": "no", "next_at": 60.0, "horizon": 600.0}
    if table.has_inbox:
        moving["seen"] = staying["seen"] = 0
    yield "claim what is due", lambda row: dialect.claim(connection, table, wanted())
    yield "claim all but what is set aside", lambda row: dialect.claim(connection, table, wanted(aside=[row.pk]))
    yield "claim what a worker may have died of", lambda row: dialect.claim(connection, table, wanted(1))
    yield "claim one of these", lambda row: dialect.claim(connection, table, wanted(keys=[row.pk]))
    yield "what a claim would take", lambda row: dialect.candidates(connection, table, wanted())
    if bound.queue_field is not None:
        yield from level_by_level(connection, table, dialect, wanted, state)
    yield "enter a state", lambda row: write(ENTER, row, **moving)
    if kind.update:
        yield "enter a state with update=", lambda row: write(ENTER, row, kind.update.items(), **moving)
    if table.has_inbox:
        taking = [Taking([[1]])]
        yield "enter a state and take an event", lambda row: write(ENTER, row, riders=taking, **moving)
        yield "deliver()", lambda row: row.states.deliver("signed", {"a": 1}, dedup_key="x")
        yield (
            "bulk_deliver()",
            lambda row: model.states.bulk_deliver([{"key": row.pk, "name": "signed"}]),
        )
    if bound.machine.run_ahead:
        yield "enter a state and go on there", lambda row: read(ENTER_CLAIMED, row, compares=STATE, **moving, **held)
        yield "find a row that went on unheard", lambda row: read(BEAT, row, compares=OWNER, lease_expires_at=60.0)
    if kind.update:
        given = [(model._meta.get_field(name), [value]) for name, value in kind.update.items()]
        yield "enter a state with values for each row", lambda row: write(ENTER, row, values=given, **moving)
    if bound.records_attempts:
        failed = {"started": 2.0, "ended": 1.0, "outcome": "failed", "traceback": "where"}
        yield "enter a state after a try that failed", lambda row: write(ENTER, row, **moving, error="no", **failed)
        yield "stay after a try", lambda row: write(STAY, row, **staying, **failed)
    yield "stay", lambda row: write(STAY, row, **staying)
    yield "release", lambda row: write(RELEASE, row, compares=("lease_token",))
    yield "release before it was tried", lambda row: write(UNCLAIM, row, compares=("lease_token",))
    yield "beat", lambda row: write(BEAT, row, compares=("lease_token",), lease_expires_at=60.0)
    yield "held", lambda row: dialect.held(connection, table, [row.pk], [token_of(row)])
    yield "lock a held row", lambda row: dialect.lock_held(connection, table, row.pk, token_of(row))
    yield "recover what has run out", lambda row: dialect.recover(connection, table, [state], Left())
    yield "recover what a dead worker held", lambda row: dialect.recover(connection, table, [state], Left("me"))
    yield (
        "give back what was claimed unheard",
        lambda row: dialect.recover(connection, table, [state], Left("me", [row.pk], is_crash=False)),
    )
    yield "a single move under a lease", lambda row: single(bound, row, kind.to_status, token_of(row))
    yield "run_at()", lambda row: row.states.run_at()
    yield "release()", lambda row: row.states.release()
    yield "resume()", lambda row: row.states.resume()


def level_by_level(
    connection: Any, table: Any, dialect: Any, wanted: Callable[..., Wanted], state: str
) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield what a worker asks where rows say how urgent they are, and in which queue: of all queues, and of some."""
    urgent, named = [[Level(state, None, 1)], [Level(state, None, 0)]], [Level(state, "a"), Level(state, "b")]
    both = [[each._replace(priority=0) for each in named]]
    yield "claim by priority", lambda row: dialect.claim(connection, table, wanted(ranks=urgent))
    yield "claim by queue", lambda row: dialect.claim(connection, table, wanted(ranks=both, members=named))
    yield "claim suspects of queues", lambda row: dialect.claim(connection, table, wanted(1, members=named))
    yield "priorities in use", lambda row: dialect.survey(connection, table, [Level(state)])
    yield "priorities in use in queues", lambda row: dialect.survey(connection, table, named)
    yield "the same, for a claim", lambda row: dialect.survey(connection, table, named, later=False)
    yield "recover by priority", lambda row: dialect.recover(connection, table, [state], Left(levels=urgent[0]))
    yield "recover by queue", lambda row: dialect.recover(connection, table, [state], Left(levels=both[0]))


def single(bound: Any, row: Any, to_status: str, token: int) -> None:
    from statemachine_fields.machine.transition import transition

    transition(bound, row, to_status, lease=token, delay=60.0)


def section(kind: Kind) -> str:
    """Return all statements of a machine, each under what sends it."""
    lines = [f"-- {'=' * 100}", f"-- {kind}", f"-- {'=' * 100}"]
    known: dict[str, str] = {}
    working = work(kind) if kind in TIMED else keyed(kind) if kind.model.states._meta.key is not None else ()
    for name, act in [*moves(kind), *(each for each in working if each[0].startswith(kind.work))]:
        row = kind.row()
        if name.endswith("stale, refused"):
            STALE[id(row)] = kind.model.objects.get()
            kind.model.objects.get().states.transition_to(kind.to_status)
        with sent() as statements:
            act(row)
        lines += ["", f"-- {name}"]
        for number, statement in enumerate(statements, 1):
            place = name if len(statements) == 1 else f"{name} ({number})"
            if known.setdefault(statement, place) is place or len(statement) < LINE:
                lines += _broken(statement)
            else:
                lines.append(f"-- again: {known[statement]}")
    return "\n".join(lines)


def _broken(statement: str) -> list[str]:
    """Return a statement as lines, each clause on its own, but for those within an expression."""
    if statement.startswith("--"):
        return [statement]
    lines, parts = [""], [True]
    for place, character in enumerate(f"{statement};"):
        if character == "(":
            parts.append(parts[-1] and PART.search(statement[:place]) is not None)
        elif character == ")":
            parts.pop()
        is_lock = statement[:place].endswith(("FOR", "KEY"))
        if parts[-1] and not is_lock and CLAUSE.match(statement, place):
            lines.append("    " * len(parts))
        else:
            lines[-1] += character
    return [wrapped for line in lines for wrapped in _wrapped(line)]


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.wrap(line, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def written() -> str:
    head = [
        "-- Every statement of each kind of machine. Written by a test, which says how: tests/db/test_statements.py",
        "-- What Django writes itself is named and not shown; what was shown before is named as well.",
    ]
    with override_settings(STATEMACHINE_FIELDS={}):
        return "\n\n".join(["\n".join(head), *map(section, [*PLAIN, *TIMED])]) + "\n"


def test_statements_are_those_that_were_reviewed():
    found = written()
    if os.environ.get("SMF_STATEMENTS") == "write":
        FILE.write_text(found)
    # As lines, of which a failure shows those that differ.
    assert found.splitlines() == FILE.read_text().splitlines()

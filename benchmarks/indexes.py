"""Measure what the indexes of a timed machine cost and give on a table of a million rows, and what more columns cost.

    python benchmarks/indexes.py [terminal|later|columns|all] [--repetitions 8] [--minutes 4] [--quick]

What is measured, and how to read the result, is in README.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # for the server helpers of the tests

from indexes_meter import Cost, Meter, explain, heading, line, proportions  # noqa: E402
from indexes_server import CRASHED, FULL, MIXES, SETS, TABLE, Mix, Server  # noqa: E402
from report import environment, load_average, write  # noqa: E402
from session import rotated, say  # noqa: E402

ORDER = ("terminal", "later", "columns")
PACKAGES = ("Django", "psycopg")

TO_AND_FRO = "claim 500, move to a state with a time"
TO_THE_END = "claim 500, move to the end"
TRY_AGAIN = "claim 500, try again at once"
ONE_BY_ONE = "`transition_to()` the end"
MOVES = (TO_AND_FRO, TO_THE_END, ONE_BY_ONE)
BATCH = 500

#: Columns of the second kind of table, by the model that has them.
WIDER = {
    "Parcel": "as it is",
    "TriedParcel": "time and counter",
    "MarkedParcel": "mark",
    "FullParcel": "all three",
}


@dataclass(frozen=True)
class Size:
    """How much work a repetition is: rows that are claimed and moved to and fro, and to the end; moves one by one; claims."""

    drained: int = 25_000
    ended: int = 4000
    singles: int = 200
    claims: int = 20


QUICK = Size(1000, 1000, 20, 4)

#: Work that is not counted: it has every statement prepared, planned and planned for good.
WARM_UP = Size(3000, 3000, 10, 8)

#: How often a question is asked in a repetition.
ASKED = 3

#: By the name of the work and by contender.
Costs = dict[str, dict[str, list[Cost]]]


@dataclass
class Question:
    """Something that people ask of a table, and what it took in each repetition."""

    name: str
    ask: Callable[[str], Any]
    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)


class Run:
    """One section: the same work for each of the contenders, again and again."""

    def __init__(self, names: dict[str, str], size: Size, repetitions: int, minutes: float) -> None:
        self.names, self.size, self.repetitions, self.minutes = names, size, repetitions, minutes
        self.done = 0
        self.costs: Costs = {}
        self.workers: dict[str, Any] = {}
        self.meters: dict[str, Meter] = {}
        self.moved = 0

    def repeat(self) -> None:
        for contender in self.names:
            self.cells(contender, WARM_UP, 0)
        self.costs = {}
        end = time.monotonic() + self.minutes * 60
        for repetition in range(self.repetitions):
            if time.monotonic() > end:
                say(f"  {self.minutes:g} minutes are over; no further repetition.")
                break
            for position in rotated(list(self.names), repetition):
                self.cells(list(self.names)[position], self.size, repetition)
            self.asked(repetition)
            self.done += 1
            say(f"  repetition {self.done} of {self.repetitions} done, load average {load_average()}")

    def cells(self, contender: str, size: Size, repetition: int) -> None:
        """Claim and give back, and drain: what the worker does."""
        worker = self.workers[contender]
        here, there = ("PENDING", "CHECKED") if repetition % 2 == 0 else ("CHECKED", "PENDING")
        rows = worker.model.objects.using(worker.using)
        made = [[worker.model() for _ in range(200)] for _ in range(size.ended // 200)]
        leases: list[list[Any]] = []

        def claim() -> Iterator[int]:
            for _ in range(size.claims):
                leases.append(worker.claim("PENDING", 50))
                yield 50

        self.measure("claim of 50", contender, claim())
        self.measure("extend 50 leases", contender, (worker.beat(each) for each in leases))
        self.measure("give 50 back", contender, (worker.release(each) for each in leases))
        self.measure(TO_AND_FRO, contender, drain(worker, here, there, 0.0, size.drained))
        self.measure(TO_THE_END, contender, drain(worker, "PENDING", "DONE", None, size.ended))
        self.measure(TRY_AGAIN, contender, retry(worker, "PENDING", size.ended))
        self.measure("`bulk_create()` of 200", contender, (len(rows.bulk_create(each)) for each in made))

    def asked(self, repetition: int) -> None:
        """Nothing is asked of tables whose columns differ."""

    def measure(self, name: str, contender: str, steps: Iterable[int]) -> None:
        cost = self.meters[contender].measure(steps)
        self.costs.setdefault(name, {}).setdefault(contender, []).append(cost)

    def cost_tables(self) -> list[str]:
        """Return what was measured: each contender in proportion to the first."""
        drains = {name: self.costs[name] for name in (TO_AND_FRO, TO_THE_END)}
        return [
            self.table("server CPU, µs a row", self.costs, lambda cost: cost.cpu, ",.1f"),
            self.table("WAL, bytes a row", self.costs, lambda cost: cost.wal, ",.0f"),
            self.table("client CPU, µs a row", drains, lambda cost: cost.client_cpu, ",.1f"),
            self.table("rows/s, client included", drains, lambda cost: cost.rate, ",.0f"),
        ]

    def table(self, title: str, costs: Costs, value: Callable[[Cost], float], form: str) -> str:
        lines = {
            name: {contender: [value(cost) for cost in each] for contender, each in by_contender.items()}
            for name, by_contender in costs.items()
        }
        return proportions(title, self.names, lines, form)


class Indexes(Run):
    """One mix of rows under all sets of indexes."""

    def __init__(self, server: Server, mix: Mix, rows: int, *options: Any) -> None:
        from indexed.models import Parcel
        from indexes_ours import Worker

        super().__init__({each.alias: each.name for each in SETS}, *options)
        self.server, self.mix, self.rows = server, mix, rows
        server.prepare(rows, mix)
        self.workers = {alias: Worker(Parcel, alias) for alias in self.names}
        self.meters = {alias: Meter(alias, TABLE) for alias in self.names}
        self.questions = self._questions()

    def run(self) -> str:
        """Measure, and return the tables."""
        sizes = {alias: [self.server.sizes(alias)] for alias in self.names}
        plans = {alias: [self._claim_pages(alias)] for alias in self.names}
        self.repeat()
        for alias in self.names:
            sizes[alias].append(self.server.sizes(alias))
            plans[alias].append(self._claim_pages(alias))
            self._verify(alias)
        busy, self.questions = self.questions, self._questions()
        for alias in self.names:
            self.server.run(alias, f"VACUUM {TABLE}")
        for repetition in range(self.done):
            self.asked(repetition)
        return "\n\n".join(
            [
                f"{self.rows:,} rows: {self.mix.title}.",
                *self.cost_tables(),
                self._hot_table(),
                self._size_table(sizes, plans),
                self._question_table("ms between the moves", busy),
                self._question_table("ms after a VACUUM", self.questions),
            ]
        )

    def cells(self, contender: str, size: Size, repetition: int) -> None:
        """What the worker does, and what programs do."""
        from indexed.models import Parcel

        super().cells(contender, size, repetition)
        rows = Parcel.objects.using(contender)
        singles = list(rows.filter(status="PENDING").order_by("-pk")[: size.singles])

        self.measure(ONE_BY_ONE, contender, (1 for each in singles if each.states.transition_to("DONE")))
        self.measure("`create()`", contender, (1 for _ in singles if rows.create()))

    def asked(self, repetition: int) -> None:
        for question in self.questions:
            for position in rotated(SETS, repetition):
                self._ask(question, SETS[position].alias)

    def _questions(self) -> list[Question]:
        from indexed.models import Parcel
        from indexes_ours import count_states

        crowd = self.mix.crowd

        def of(alias: str, state: str) -> Any:
            return Parcel.objects.using(alias).filter(status=state)

        def parked(alias: str) -> Any:
            return Parcel.states.parked().using(alias).filter(status="CHECKED")

        def due(alias: str) -> Any:
            return Parcel.states.due().using(alias).filter(status="PENDING")

        return [
            Question("`filter(status=).count()`, few rows", lambda at: of(at, "FAILED").count()),
            Question("the same, most rows", lambda at: of(at, crowd).count()),
            Question("the newest 25 of few", lambda at: list(of(at, "FAILED").order_by("-pk")[:25])),
            Question("the newest 100 of few", lambda at: list(of(at, "FAILED").order_by("-pk")[:100])),
            Question("the newest 25 of most", lambda at: list(of(at, crowd).order_by("-pk")[:25])),
            Question("`in_state()`, all of few", lambda at: list(Parcel.states.in_state("FAILED").using(at))),
            Question("`in_state()`, 1,000 of most", lambda at: list(Parcel.states.in_state(crowd).using(at)[:1000])),
            Question("the admin's count of each state", lambda at: count_states(Parcel, at)),
            Question("parked rows of one state", lambda at: parked(at).count()),
            Question("the first 25 due rows of one state", lambda at: list(due(at)[:25])),
        ]

    def _ask(self, question: Question, alias: str) -> None:
        from django.db import connections

        taken = []
        for _ in range(ASKED):
            began = time.perf_counter()
            question.ask(alias)
            taken.append((time.perf_counter() - began) * 1000)
        question.milliseconds.setdefault(alias, []).append(median(taken))
        question.pages[alias] = explain(connections[alias], lambda: question.ask(alias)).pages

    def _claim_pages(self, alias: str) -> int:
        """Return how many pages a claim of 50 reads, having seen that it walks an index of due rows."""
        from django.db import connections, transaction

        with transaction.atomic(using=alias):
            plan = explain(connections[alias], lambda: self.workers[alias].claim("PENDING", 50), undo=True)
            transaction.set_rollback(True, using=alias)
        if "Seq Scan" in plan.nodes or not plan.indexes & {f"{TABLE}_by_due", f"{TABLE}_by_status_and_due"}:
            raise AssertionError(f"{alias}: a claim does not walk the index of due rows: {plan}")
        return plan.pages

    def _verify(self, alias: str) -> None:
        """Raise unless every move has its record and no lease is left."""
        warm_up = WARM_UP.drained + WARM_UP.ended + WARM_UP.singles
        moves = warm_up + sum(cost.rows for name in MOVES for cost in self.costs[name][alias])
        records = self.server.ask(alias, f"SELECT count(*) FROM {TABLE}statetransition")
        held = self.server.ask(alias, f"SELECT count(*) FROM {TABLE} WHERE status_lease_expires_at IS NOT NULL")
        if (records, held) != (moves, 0):
            raise AssertionError(f"{alias}: {moves} moves, {records} records, {held} leases left.")
        self.moved = moves

    def _hot_table(self) -> str:
        lines = [heading("HOT updates: first repetition → last", *self.names.values())]
        for name, costs in self.costs.items():
            ends = {alias: (each[0], each[-1]) for alias, each in costs.items() if each[0].updates}
            shares = [
                " → ".join(f"{cost.hot / cost.updates:.0%}" for cost in ends[alias]) for alias in self.names if ends
            ]
            lines += [line(name, *shares)] if shares else []
        return "\n".join(lines)

    def _size_table(self, sizes: dict[str, list[dict[str, int]]], plans: dict[str, list[int]]) -> str:
        columns = ("all indexes, MB", "primary key, MB", "table, MB", "pages of a claim of 50")
        lines = [heading(f"after load → after {self.moved:,} moves", *columns)]
        for alias, name in self.names.items():
            before, after = sizes[alias]
            cells = [f"{before[kind] / 2**20:,.1f} → {after[kind] / 2**20:,.1f}" for kind in before]
            lines.append(line(name, *cells, " → ".join(map(str, plans[alias]))))
        return "\n".join(lines)

    def _question_table(self, title: str, questions: list[Question]) -> str:
        values = {question.name: question.milliseconds for question in questions}
        pages = {question.name: question.pages for question in questions}
        return proportions(f"{title}; pages", self.names, values, ",.1f", pages)


class Columns(Run):
    """The same table with more columns, of which ours write some."""

    def __init__(self, server: Server, rows: int, *options: Any) -> None:
        from django.apps import apps
        from indexes_ours import Worker

        super().__init__(WIDER, *options)
        self.rows = rows
        self.models = {name: apps.get_model("indexed", name) for name in WIDER}
        for name, model in self.models.items():
            table = model._meta.db_table
            server.fill(table, rows, MIXES["columns"])
            for statement in (FULL, CRASHED):
                server.run("default", statement.format(table=table))
            server.run("default", f"VACUUM ANALYZE {table}")
            self.workers[name] = Worker(model, "default")
            self.meters[name] = Meter("default", table)

    def run(self) -> str:
        """Measure, and return the tables."""
        from django.db import connection
        from indexes_ours import with_further_columns

        with connection.execute_wrapper(with_further_columns):
            self.repeat()
        for name, model in self.models.items():
            self._verify(name, model)
        return "\n\n".join([f"{self.rows:,} rows: {MIXES['columns'].title}.", *self.cost_tables()])

    def _verify(self, name: str, model: Any) -> None:
        """Raise unless each claim was counted, and the mark of each row that has moved was cleared."""
        from django.db.models import Sum

        if hasattr(model, "more_tries"):
            tries = model.objects.aggregate(sum=Sum("more_tries"))["sum"]
            warm_up = WARM_UP.claims * 50 + WARM_UP.drained + 2 * WARM_UP.ended
            claims = warm_up + sum(
                cost.rows for kind in self.costs if "claim" in kind for cost in self.costs[kind][name]
            )
            if tries != claims:
                raise AssertionError(f"{name}: {tries} tries were counted, and {claims} rows claimed.")
        if hasattr(model, "more_mark") and model.objects.filter(status_sequence__gt=0, more_mark=True).exists():
            raise AssertionError(f"{name}: rows have moved and kept their mark.")


def drain(worker: Any, state: str, to: str, delay: float | None, rows: int) -> Iterator[int]:
    """Claim and move so many rows, 500 at a time."""
    for _ in range(rows // BATCH):
        leases = worker.claim(state, BATCH)
        yield exactly(BATCH, worker.move(leases, to, delay))


def retry(worker: Any, state: str, rows: int) -> Iterator[int]:
    """Claim so many rows, 500 at a time, and make each due again at once."""
    for _ in range(rows // BATCH):
        leases = worker.claim(state, BATCH)
        yield exactly(BATCH, worker.settle(leases, 0.0))


def exactly(wanted: int, found: int) -> int:
    if found != wanted:
        raise AssertionError(f"{found} rows written, not {wanted}.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the indexes and the columns of a timed machine.")
    parser.add_argument("section", nargs="?", default="all", choices=[*ORDER, "all"])
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=4, help="begin no repetition of a section after this long")
    parser.add_argument("--quick", action="store_true", help="try it out: small tables, two repetitions, nothing kept")
    options = parser.parse_args()
    rows, wider, size = (250_000, 50_000, QUICK) if options.quick else (1_000_000, 200_000, Size())
    repetitions = 2 if options.quick else options.repetitions
    server = Server()
    sections = {}
    for name in ORDER if options.section == "all" else [options.section]:
        say(f"{name}: filling …")
        before = load_average()
        run: Any
        if name == "columns":
            run = Columns(server, wider, replace(size, drained=min(size.drained, 10_000)), repetitions, options.minutes)
        else:
            run = Indexes(server, MIXES[name], rows, size, repetitions, options.minutes)
        body = run.run()
        facts = (
            f"{environment(server.version, PACKAGES)} {run.done} repetitions. Load average {before} before and "
            f"{load_average()} after."
        )
        sections[name] = f"{facts}\n\n{body}"
        say(f"\n{sections[name]}\n")
    if not options.quick:
        write(HERE / "results-indexes.md", sections, ORDER, "indexes.py")


if __name__ == "__main__":
    main()

"""One campaign: rows, workers, harm, calm, and the checks."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection, connections
from django.db.models import Q

from lab.models import Entry, Errand, Footprint, Leg
from tests.faults.campaign import checks
from tests.faults.campaign.checks import Broken
from tests.faults.campaign.crew import LEASE, SETTINGS, Crew, Slot, has_pool, make_slots
from tests.faults.campaign.harms import HARMS, PEOPLE, STANDING
from tests.faults.campaign.rows import AT_FIRST, BAD, MODELS, SCRIPTED, Feeder, unfinished
from tests.faults.campaign.timeline import Timeline
from tests.faults.harness import RUN_FOR
from tests.faults.proxy import Proxy
from tests.faults.server import PostgreSQL
from tests.patience import PATIENCE

#: After all harm is over: how much longer than a lease and a poll the rows may take. Many have to be tried again, and
#: those that were left behind by the dead go one at a time.
MARGIN = PATIENCE

#: How many rows are under way when all workers are told to stop.
UNDER_LOAD = 100

#: Rows of the decoy, which nobody may touch.
DECOYS = 500


@dataclass
class Report:
    """What came of a campaign."""

    seed: int
    seconds: float
    kinds: list[str]
    broken: list[Broken] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    timeline: str = ""
    #: What workers said of rows that are not as they should be.
    excerpts: list[str] = field(default_factory=list)
    logs: Path | None = None

    @property
    def codes(self) -> list[str]:
        return sorted({broken.code for broken in self.broken})

    @property
    def command(self) -> str:
        missing = [kind for kind in available() if kind not in self.kinds]
        which = ""
        if missing:
            which = (
                f" --only {','.join(self.kinds)}"
                if len(self.kinds) < len(missing)
                else f" --without {','.join(missing)}"
            )
        return f"python -m tests.faults.campaign --seed {self.seed} --seconds {self.seconds:g}{which}"

    def table(self) -> str:
        width = max(map(len, self.counts), default=0)
        return "\n".join(f"  {what:<{width}}  {number:>8,}" for what, number in self.counts.items())

    def text(self) -> str:
        if not self.broken:
            return f"All invariants hold: seed {self.seed}\n{self.table()}"
        lines = [f"{broken.code}: {broken.text}" for broken in self.broken]
        parts = [
            f"BROKEN with seed {self.seed}: {', '.join(self.codes)}",
            *lines,
            "--- what was on",
            self.timeline,
            "--- what workers said of these rows",
            *self.excerpts,
            "--- counts",
            self.table(),
            f"Logs: {self.logs}",
            f"Again: {self.command}",
        ]
        return "\n".join(parts)


def available() -> list[str]:
    """Return the kinds of harm that can be done here."""
    return [*HARMS, *(kind for kind in STANDING if kind != "pool" or has_pool())]


class Campaign:
    """One database, some workers, and harm of some kinds for some seconds."""

    def __init__(
        self,
        server: PostgreSQL,
        seed: int,
        seconds: float,
        kinds: Iterable[str] | None = None,
        *,
        margin: float = MARGIN,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        wanted = available() if kinds is None else [*kinds]
        self.server, self.seed, self.seconds, self.progress = server, seed, seconds, progress
        self.kinds = [kind for kind in available() if kind in wanted]
        self.within = LEASE + SETTINGS["POLL_SECONDS"] + margin
        self.server_lock = threading.Lock()
        self.timeline = Timeline()
        self.report = Report(seed, seconds, self.kinds)
        self._stop = threading.Event()
        self.crew: Crew
        self.proxy: Proxy
        self.name = ""

    def connect(self, *, autocommit: bool = True, name: str = "") -> Any:
        """Connect to the database directly, past Django and the proxy."""
        place: dict[str, Any] = {"host": str(self.server.directory), "user": "postgres", "application_name": "campaign"}
        return psycopg.connect(dbname=name or self.name, autocommit=autocommit, **place)

    def break_(self, code: str, text: str) -> None:
        """Note that an invariant was seen not to hold."""
        self.report.broken.append(Broken(code, text))

    def run(self) -> Report:
        """Do all harm, wait for calm, check, and leave nothing behind but the logs of a failure."""
        directory = Path(tempfile.mkdtemp(prefix="smf-campaign-", dir="/tmp"))
        chance = random.Random(f"{self.seed} crew")
        log_began = len(self.server.log())
        with ExitStack() as stack:
            decoy = stack.enter_context(self._decoy())
            url = stack.enter_context(self.server.database())
            self.name = str(connection.settings_dict["NAME"])
            self.proxy = stack.enter_context(Proxy(self.server.directory, chance=random.Random(f"{self.seed} proxy")))
            slots = make_slots(chance, self.kinds, self.proxy.place, decoy)
            self.crew = Crew(url, directory, self.timeline, slots, self.break_, run_for=self.seconds + RUN_FOR)
            stack.callback(self.crew.clean_up)
            stack.callback(self._stop.set)
            self.timeline = self.crew.timeline = Timeline()
            feeder = Feeder(
                random.Random(f"{self.seed} rows"), [kind for kind in BAD if kind in self.kinds], self.timeline
            )
            feeder.create(AT_FIRST)
            self.crew.start_all()

            def work() -> None:
                self._harm(feeder)
                self._calm(feeder)
                self._check(decoy, self.server.log()[log_began:])

            self._guarded(work)
            self.report.timeline = self.timeline.text()
        if self.report.broken:
            self.report.logs = directory
        else:
            shutil.rmtree(directory, ignore_errors=True)
        return self.report

    @contextmanager
    def _decoy(self) -> Any:
        """Make another database, in which rows have the same keys."""
        with self.server.database() as url:
            Errand.objects.bulk_create([Errand() for _ in range(DECOYS)])
            yield url

    # Harm.

    def _harm(self, feeder: Feeder) -> None:
        harms = [HARMS[kind](self) for kind in self.kinds if kind in HARMS]
        works: list[Callable[[], None]] = [lambda harm=harm: harm.run(self._stop, self.seed) for harm in harms]  # type: ignore[misc]
        works.append(lambda: feeder.run(self._stop, self.seconds))
        threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        while self.timeline.now < self.seconds:
            time.sleep(0.25)
            self.crew.look()
            on = ", ".join(sorted(self.timeline.on)) or "nothing"
            rows, kills = self.timeline.counts["rows"], self.timeline.counts["kills"]
            self.progress(f"{self.timeline.now:.0f} of {self.seconds:.0f} s · {rows:,} rows · {kills} kills · on: {on}")
        self._stop.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a harm does not end"
        self.proxy.lose_replies(0)
        self.proxy.speak()
        self.timeline.note("calm")

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - whatever a thread of ours meets is told in the end
            self.break_("campaign", traceback.format_exc())

    # Calm.

    def _calm(self, feeder: Feeder) -> None:
        connections["default"].close()  # it may have been cut, too
        began = self.timeline.now
        for model in SCRIPTED:
            model.states.bulk_transition(model.objects.filter(status="HELD"), "NEW", PEOPLE)
        is_drained = self._drain("after the harm")
        self.timeline.counts["seconds until calm"] = round(self.timeline.now - began)
        for slot in self.crew.slots:
            slot.is_stopped = True
        if is_drained:
            self._load(feeder)
        self._stop_crew(self.crew.slots)
        self.crew.wait_for_orphans()
        if is_drained:
            last = Slot("last", ["--processes", "2"], {})
            self.crew.start(last)
            self._drain("after the stop")
            self._stop_crew([last])

    def _load(self, feeder: Feeder) -> None:
        """See that there is much to do, and that it is being done."""
        feeder.create(UNDER_LOAD, harmless=True)
        Errand.objects.bulk_create([Errand(script="slow") for _ in range(UNDER_LOAD // 2)])
        deadline = time.monotonic() + LEASE
        while not self._is_any_leased() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _stop_crew(self, slots: list[Slot]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT now()")
            began = cursor.fetchone()[0]
        self.progress("the workers are told to stop")
        self.crew.stop(slots, in_calm=True)
        self.report.broken += checks.check_leases(began)

    def _is_any_leased(self) -> bool:
        return any(model.objects.exclude(status_lease_owner="").exists() for model in MODELS)

    def _drain(self, when: str) -> bool:
        """Wait until nothing is left to do, and say whether that came about in time."""
        deadline = time.monotonic() + self.within
        while left := unfinished():
            self.progress(f"calm: {sum(left.values()):,} rows left {when}")
            if time.monotonic() > deadline:
                self.break_("I3 late", f"not within {self.within:g} s {when}: {left}")
                return False
            self.crew.look()
            time.sleep(0.1)
        return True

    # The end.

    def _check(self, decoy: str, log: str) -> None:
        self.progress("checks")
        counts, crew, kinds = self.timeline.counts, self.crew, {*self.kinds}
        deaths = crew.deaths() + counts["kills"]
        found = self.report.broken
        found += checks.check_histories()
        found += checks.check_events()
        found += checks.check_calls()
        found += checks.check_families()
        found += checks.check_cancelled()
        found += checks.check_effects()
        # A worker that is frozen, silent or away for longer than its lease is taken for dead.
        found += checks.check_ends(may_be_given_up=bool(deaths or kinds & SEEM_DEAD))
        told = self._told_elsewhere(decoy) if "router" in kinds else Counter()
        found += checks.check_statistics(told, is_exact=not deaths and "stop" not in kinds)
        if "deadlock detected" in log:
            at = log.index("deadlock detected")
            self.break_("deadlock", log[max(0, at - 200) : at + 1500])
        self._tell()

    def _told_elsewhere(self, decoy: str) -> Counter[tuple[str, str]]:
        """Read the decoy: nothing may have happened there, and some statistics may be."""
        name = decoy.partition("?")[0].rpartition("/")[2]
        with self.connect(name=name) as other:
            query = "SELECT (SELECT count(*) FROM lab_errand WHERE status = 'NEW' AND status_lease_token = 0), count(*)"
            untouched, records = other.execute(f"{query} FROM lab_errandstatetransition").fetchone()
            if (untouched, records) != (DECOYS, 0):
                text = f"{DECOYS - untouched} rows of a database that nobody serves were touched, {records} moved"
                self.break_("I1 other database", text)
            told = other.execute(
                "SELECT machine, state, sum(count) FROM statemachine_worker_runstatistics WHERE kind = 'moved' GROUP BY 1, 2"
            )
            return Counter({(machine, state): int(moved) for machine, state, moved in told.fetchall()})

    def _tell(self) -> None:
        counts, report = self.timeline.counts, self.report
        moves = {model: model.states.transition_model.objects for model in MODELS}
        report.counts["seconds"] = round(self.timeline.now)
        report.counts["seconds until calm"] = counts.pop("seconds until calm", 0)
        report.counts["rows"] = counts.pop("rows", 0)
        report.counts["moves"] = sum(records.count() for records in moves.values())
        report.counts["moves by people"] = sum(
            records.filter(metadata__by="people").count() for records in moves.values()
        )
        report.counts["calls of handlers"] = Footprint.objects.count() + Entry.objects.count()
        report.counts["processes that died"] = self.crew.deaths()
        report.counts["replies lost"] = self.proxy.lost
        report.counts["connections through the proxy"] = self.proxy.accepted
        report.counts["time-outs of rows that waited"] = checks.time_outs().count()
        report.counts["time-outs beside an event"] = checks.narrow_time_outs()
        report.counts["children cancelled"] = Leg.objects.filter(status="CALLED_OFF").count()
        report.counts["rows given up for deaths"] = checks.given_up()
        report.counts["poison given up"] = sum(
            model.objects.filter(Q(status="FAILED") | Q(status_next_at=None), script__startswith="exit").count()
            for model in SCRIPTED
        )
        report.counts.update(dict(sorted(counts.items())))
        for label in dict.fromkeys(broken.label for broken in report.broken if broken.label):
            said = self.crew.log_of(f"{label}:") or self.crew.log_of(f"{label} ")
            report.excerpts += said or [f"{label}: nobody said anything"]
        connections["default"].close()


#: Harm after which a worker that lives may be taken for dead: its lease has run out.
SEEM_DEAD = {
    "freeze", "silence", "silence-all", "restart-fast", "restart-immediate", "lock-table", "lock-rows", "cut", "lose",
    "latency", "terminate", "trigger-raises", "trigger-ignores", "trigger-is-slow", "timeouts",
}  # fmt: skip


def show_progress(line: str) -> None:
    """Show a line on a terminal, over the one before."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line[:150]}")
        sys.stderr.flush()

"""Real workers to do harm to, facts to wait for, and the invariants that must hold in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection, connections
from django.db.models import Count, Model, Sum

from lab.models import Chore, Mark, Run
from statemachine_fields.machine.verify import Verifier
from statemachine_fields.worker.models import RunStatistics
from tests.faults.failpoints import VARIABLE
from tests.patience import PATIENCE, eventually
from tests.sessions import sessions

ROOT = Path(__file__).resolve().parent.parent.parent

#: A poll is short, so that a test need not wait long for what happens after it. A lease is so long that a process which gets
#: no time from a busy machine does not lose it.
SETTINGS = {"LEASE_SECONDS": 30.0, "POLL_SECONDS": 0.1, "STOP_SECONDS": 5.0, "MAX_CRASHES": 5}

#: A lease whose end a test waits for.
BRIEF = {"LEASE_SECONDS": 2.0}

#: A lease that is extended every other second, and does not run out before a busy machine has come to it. What the worker asks
#: the database is given up after a second, so that it knows soon what became of a statement whose answer was lost.
EXTENDED = {"LEASE_SECONDS": 6.0}

#: So long that no test would wait for it.
NEVER = 3600.0

#: How often to look for rows that were left behind, and how soon to try those again whose handler had no database.
CONSTANTS = {"claiming.SUSPECTS_EVERY": 0.5, "executor.AWAY_SECONDS": 0.2}

#: Where `mutations.py` has put the code of the library, with a guard taken out.
SOURCES = [os.environ["SMF_SRC"]] if "SMF_SRC" in os.environ else []

#: Where else the tests themselves import from.
OTHERS = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]

#: A worker that nobody cleaned up, because the tests were killed, ends by itself.
RUN_FOR = 1800

#: The script of a row whose handlers leave a mark each time they are called.
MARKED = {"marks": True}

DONE, FAILED = "DONE", "FAILED"


class Worker:
    """One `statemachine_worker` command with its processes, in a process group of their own.

    :param settings: keys of STATEMACHINE_FIELDS that differ from `SETTINGS`.
    :param pause: how many times to wait at a failpoint, as in `{"commit.before": 1}`.
    :param off: calls that are left out, as in `["beat"]`.
    :param lose: how many answers of the database to lose, as in `{"move": 1}`.
    :param fail: how many times a call raises an error that nobody expects, as in `{"extend": 1}`.
    :param constants: values for constants that differ from `CONSTANTS`, as in `{"supervisor.SILENCE": 1}`.
    """

    def __init__(
        self,
        url: str,
        directory: Path,
        *arguments: str,
        labels: Iterable[str] = ("lab.Chore",),
        settings: Mapping[str, Any] | None = None,
        pause: Mapping[str, int] | None = None,
        off: Iterable[str] = (),
        lose: Mapping[str, int] | None = None,
        fail: Mapping[str, int] | None = None,
        constants: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.log_file = directory / "worker.log"
        failpoints = {
            "directory": str(directory),
            "pause": {**(pause or {})},
            "off": [*off],
            "lose": {**(lose or {})},
            "fail": {**(fail or {})},
            "constants": {**CONSTANTS, **(constants or {})},
        }
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.faults.settings",
            "PYTHONPATH": os.pathsep.join([*SOURCES, str(ROOT), str(ROOT / "testproject"), *OTHERS]),
            "SMF_DB": "postgresql",
            "DATABASE_URL": url,
            "SMF_FAULTS_SETTINGS": json.dumps({**SETTINGS, **(settings or {})}),
            VARIABLE: json.dumps(failpoints),
            **(environment or {}),
        }
        command = [sys.executable, "-m", "django", "statemachine_worker", "--skip-checks", *labels]
        if "--run-for" not in arguments:
            command += ["--run-for", str(RUN_FOR)]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The supervisor's process id, and the group's."""
        return self.process.pid

    def members(self) -> list[int]:
        """Return the ids of all processes of the group that live, also of those whose supervisor is gone."""
        return [*self._named_members()]

    def _named_members(self) -> dict[int, str]:
        listed = subprocess.run(
            ["ps", "-A", "-o", "pid=,pgid=,stat=,comm="], capture_output=True, text=True, check=True
        )
        lines = [line.split(maxsplit=3) for line in listed.stdout.splitlines()]
        return {int(pid): name for pid, group, status, name in lines if int(group) == self.pid and status[0] != "Z"}

    def children(self) -> list[int]:
        """Return the ids of the processes that run rows."""
        return [pid for pid, name in self._named_members().items() if pid != self.pid and name != "sm-listener"]

    def listener(self) -> int | None:
        """Return the id of the process that listens."""
        return next((pid for pid, name in self._named_members().items() if name == "sm-listener"), None)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def lines(self) -> list[str]:
        """Return the lines of the log, less those that say every few seconds what was done so far."""
        return [line for line in self.log().splitlines() if " · " not in line]

    def lines_of_status(self) -> list[str]:
        """Return the others."""
        return [line for line in self.log().splitlines() if " · " in line]

    def wait_for_log(self, text: str) -> None:
        eventually(lambda: text in self.log(), f"{text!r} in the log:\n{self.log()[-4000:]}")

    # Failpoints.

    def paused_at(self, point: str, hit: int = 1) -> int:
        """Wait until a process waits at a failpoint for the nth time, and return its id."""
        file = self.directory / f"{point}.{hit}"
        reached = eventually(lambda: file.exists() and file.read_text().strip(), f"{file.name}:\n{self.log()[-4000:]}")
        return int(reached)

    def go(self, point: str, hit: int = 1) -> None:
        """Let it go on."""
        (self.directory / f"{point}.{hit}.go").touch()

    # Harm.

    def kill(self, pid: int | None = None, number: int = signal.SIGKILL) -> None:
        """Send one process a signal, the supervisor if none is named."""
        try:
            os.kill(self.pid if pid is None else pid, number)
        except ProcessLookupError:
            return

    def kill_all(self, number: int = signal.SIGKILL) -> None:
        """Send every process a signal: with SIGKILL, as if the host had gone; with SIGSTOP, as if it hung."""
        for pid in sorted(self.members()):  # the supervisor first, so that it starts nothing meanwhile
            self.kill(pid, number)

    @property
    def has_begun(self) -> bool:
        """Whether the supervisor has said how it goes. Before that it may know nothing of signals."""
        return " moved · " in self.log()

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Send the supervisor a signal that it hears: one that comes before it listens is the system's affair."""
        eventually(lambda: self.has_begun or self.process.poll() is not None, f"it has begun:\n{self.log()[-4000:]}")
        self.kill(number=number)

    def terminate(self) -> int:
        """Stop in good order, and return the exit code."""
        self.ask_to_stop()
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended with all its processes, and return the exit code."""
        eventually(
            lambda: self.process.poll() is not None and not self.members(),
            f"the end of the worker:\n{self.log()[-4000:]}",
        )
        return int(self.process.returncode)

    def clean_up(self) -> None:
        """Leave no process behind."""
        deadline = time.monotonic() + PATIENCE
        while members := self.members():
            for pid in sorted(members):
                self.kill(pid)
            self.process.poll()
            assert time.monotonic() < deadline, f"cannot be killed: {members}"
            time.sleep(0.01)
        self.process.wait(PATIENCE)


def create_chores(number: int, *, status: str = "NEW", script: Callable[[int], Any] | None = None) -> list[int]:
    """Create rows and return their keys. `script` says what the handlers of the nth row do."""
    scripts: list[Any] = [script(place) if script else {} for place in range(number)]
    chores: list[Any] = [Chore(name=str(place), status=status, script=each) for place, each in enumerate(scripts)]
    return [chore.pk for chore in Chore.objects.bulk_create(chores)]


def create_acts(model: Any, *does: str, **values: Any) -> list[int]:
    """Create a row of a model of `lab.models.harm` for each thing to do, and return their keys, the first due first."""
    keys = [row.pk for row in model.objects.bulk_create([model(does=each, **values) for each in does])]
    table = model._meta.db_table
    execute(
        f"UPDATE {table} SET status_next_at = now() - interval '1 hour' + id * interval '1 s' WHERE id = ANY(%s)", keys
    )
    return keys


def eventually_in(status: str, model: Any, keys: Iterable[Any]) -> None:
    """Wait until rows are in a state."""
    left = model.objects.filter(pk__in=[*keys]).exclude(status=status)
    try:
        eventually(lambda: not left.exists(), f"all in {status}")
    except AssertionError as error:
        columns = ["pk", "status", "status_failures", "status_crashes", "status_lease_owner", "status_error"]
        raise AssertionError(f"{error}; of {left.count()} others {list(left.values(*columns)[:5])}") from None


def tally(model: type[Model] = Chore) -> dict[str, int]:
    """Return how many rows there are by status."""
    return dict(model._base_manager.values_list("status").annotate(number=Count("pk")))


def are_all(status: str, model: type[Model] = Chore) -> bool:
    return not model._base_manager.exclude(status=status).exists()


def wait_until_all(status: str, *, model: type[Model] = Chore) -> None:
    try:
        eventually(lambda: are_all(status, model), f"all of {model._meta.label} in {status}")
    except AssertionError as error:
        columns = ["pk", "status", "status_next_at", "status_crashes", "status_lease_owner", "status_error"]
        left = list(model._base_manager.exclude(status=status).values(*columns)[:5])
        raise AssertionError(f"{error}: {tally(model)}, for example {left}") from None


def runs(chore: int, state: str | None = None) -> list[Run]:
    """Return the calls of a row's handlers, in order. Only rows whose script has `marks` leave any."""
    found = Run.objects.filter(chore=chore, **({"state": state} if state else {}))
    return list(found.order_by("pk"))


def wait_for_run(chore: int, number: int = 1) -> Run:
    """Wait until a row's handlers were called for the nth time."""
    found = eventually(
        lambda: list(Run.objects.filter(chore=chore).order_by("pk")[number - 1 : number]),
        f"run {number} of chore {chore}",
    )
    return found[0]


def wait_for_beats(model: Any, key: Any, number: int = 2) -> None:
    """Wait until the lease of a row was extended so many times, and see that it is the same lease still."""

    def lease() -> tuple[int, Any]:
        row = model._base_manager.get(pk=key)
        return row.status_lease_token, row.status_lease_expires_at

    token, expires_at = lease()
    assert expires_at is not None, "it is held"
    for _ in range(number):
        last = expires_at
        now, expires_at = eventually(
            lambda last=last: found if (found := lease()) != (token, last) else None,  # type: ignore[misc]
            f"a heartbeat for {key}",
        )
        assert now == token, "it was lost"
        assert expires_at is not None, "it was given back"


def let_leases_run_out(model: type[Model] = Chore) -> None:
    """Let all leases be over, whatever those who have them think."""
    execute(
        f"UPDATE {model._meta.db_table} SET status_lease_expires_at = now() - interval '1 second'"
        " WHERE status_lease_expires_at IS NOT NULL"
    )


def check_invariants(
    model: Any = Chore,
    *,
    moves: int | None = None,
    terminal: bool = False,
    released: bool = False,
    tokens: bool = True,
) -> None:
    """Check all that holds at any time, and what is to hold at the end.

    I1: no token ran twice. I2: every chain is unbroken and ends in its row's status, with as many records as moves, and
    no number twice. I4, I6: nothing but declared moves, so nothing out of a terminal state.

    :param model: whose rows.
    :param moves: how many moves were made in all.
    :param terminal: that every row is in a terminal state (I3: none was lost).
    :param released: that no lease is held (I8).
    :param tokens: that no token ran twice (I1).
    """
    findings = [f"pk={found.pk} {found.code}: {found.what}" for found in Verifier(model.states._meta).findings()]
    assert findings == [], findings[:10]
    records: Any = model.states.transition_model.objects
    assert not records.filter(metadata__forced=True).exists()
    twice = records.order_by().values("instance", "sequence").annotate(number=Count("pk")).filter(number__gt=1)
    assert list(twice) == []
    calls = Run.objects.values("chore", "token") if model is Chore else marks_of(model).values("key", "token")
    ran_twice = calls.annotate(number=Count("pk")).filter(number__gt=1)
    assert not tokens or list(ran_twice) == [], "one claim, two calls of the handler"
    if moves is not None:
        assert records.count() == moves, f"{records.count()} moves"
    rows: Any = model._base_manager
    if terminal:
        left = rows.exclude(status__in=[state for state in tally(model) if not model.states._meta.graph.targets(state)])
        assert not left.exists(), f"{left.count()} of {tally(model)}"
    if released:
        left = rows.exclude(status_lease_owner="", status_lease_expires_at=None)
        held = list(left.values("pk", "status", "status_lease_owner", "status_lease_expires_at")[:5])
        assert held == [], f"still leased: {held}"


def marks_of(model: type[Model]) -> Any:
    """Return the calls of the handlers of a model that leave marks."""
    return Mark.objects.filter(label=model._meta.label)


def told(model: Any, what: str = "moved") -> int:
    """Return a count of the run statistics of a model, over its states. They are complete when the worker has stopped."""
    rows = RunStatistics.objects.filter(machine=str(model.states), kind=what)
    return int(rows.aggregate(sum=Sum("count"))["sum"] or 0)


def execute(statement: str, *params: Any) -> list[Any]:
    """Run a statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def backends(role: str) -> list[int]:
    """Return the ids of the server's processes that serve a role of the workers: claimer, committer or heartbeat."""
    return sessions(f"statemachine_worker {role}")


def is_gate_held() -> bool:
    """Say whether a listener waits for somebody to tell it of a row."""
    held = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted"
    return bool(execute(held))


@contextmanager
def locking(statement: str, *params: Any) -> Iterator[None]:
    """Hold what a statement locks, in a transaction of somebody else's."""
    other = connections.create_connection("default")
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(statement, params)
        yield
    finally:
        other.close()


def locked_table(table: str) -> Any:
    """Lock a table as a migration does: nobody can read it."""
    return locking(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")


def seed() -> int:
    """Return the seed of this run: `SMF_SEED`, or a new one."""
    if "SMF_SEED" not in os.environ:
        os.environ["SMF_SEED"] = str(random.SystemRandom().randrange(1_000_000))
    return int(os.environ["SMF_SEED"])


def is_long() -> bool:
    """Say whether the long versions are to be run: `python -m tests.faults`."""
    return os.environ.get("SMF_FAULTS") == "long"

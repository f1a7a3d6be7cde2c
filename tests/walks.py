"""Which files of ours a piece of work passes: one move, one claimed row, one declaration.

    python -m tests.walks

A file is passed when a function that is written in it is called, a property, a generator or a lambda among them; or when
it calls another of ours, as the loop of a thread does, which was called long ago. What is loaded or worked out once is
not on the way: each work is done before it is looked at, so modules are imported, texts of statements are written and
connections are open. Methods that `dataclass` writes belong to no file, and code of Django, of the driver and of the
model itself is not ours. A worker looks every few seconds for what others have left behind; it does not do so here. Nothing
else is left out: `conf.py` is passed where a setting is asked for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import django
from django.conf import settings
from django.db import connection
from django.test.utils import get_runner

import statemachine_fields
from tests import database_url
from tests.patience import PATIENCE, eventually

ROOT = Path(__file__).parents[1]
PACKAGE = f"{Path(statemachine_fields.__file__).parent}{os.sep}"

#: The threads of a worker process that a row passes. Beside them others beat, watch, and delete what has grown old.
ON_THE_WAY = ("claimer", "handler 1", "committer")


@dataclass(frozen=True)
class Call:
    """A call of a function of ours, by the nearest function of ours that is under way in its thread."""

    thread: str
    #: The file that calls; none if nothing of ours is under way, and Django or the project calls.
    caller: str | None
    file: str
    function: str


@dataclass
class Walk:
    """The calls of a piece of work, in their order."""

    calls: list[Call] = field(default_factory=list)
    is_watched: bool = True

    @property
    def files(self) -> list[str]:
        """The files that it passes, in the order in which it comes to them."""
        return list(dict.fromkeys(file for call in self.calls for file in (call.caller, call.file) if file is not None))

    @property
    def steps(self) -> list[list[tuple[str | None, str]]]:
        """The ways from file to file of one thread, for each call that comes from outside. Each is told once in a step."""
        steps: list[dict[tuple[str | None, str], None]] = []
        for call in self.calls:
            if call.caller is None or not steps:
                steps.append({})
            if call.caller != call.file:
                steps[-1][call.caller, call.file] = None
        return [list(step) for step in steps]

    @property
    def turns(self) -> list[tuple[str, str]]:
        """The ways that turn back: into a file from which others led here, at once or by way of further files."""
        led: dict[str, set[str]] = {}  # for each file, those from which ways have led to it
        turns: dict[tuple[str, str], None] = {}
        for caller, file in (way for step in self.steps for way in step):
            if caller is None:
                continue
            if file in led.get(caller, ()):
                turns[caller, file] = None
            else:
                before = {caller, *led.get(caller, ())}
                for known in [file, *(later for later, earlier in led.items() if file in earlier)]:
                    led.setdefault(known, set()).update(before)
        return list(turns)

    def by(self, *threads: str) -> Walk:
        """Return what these threads did. Raise if one of them did nothing."""
        missing = set(threads) - {call.thread for call in self.calls}
        if missing:
            raise LookupError(f"Nothing of ours ran in {sorted(missing)}.")
        return Walk([call for call in self.calls if call.thread in threads])

    def note(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take down a call; for `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not self.is_watched or not code.co_filename.startswith(PACKAGE):
            return
        outer = frame.f_back
        while outer is not None and not outer.f_code.co_filename.startswith(PACKAGE):
            outer = outer.f_back
        thread = threading.current_thread().name.removeprefix("statemachine ")
        caller = None if outer is None else outer.f_code.co_filename.removeprefix(PACKAGE)
        self.calls.append(Call(thread, caller, code.co_filename.removeprefix(PACKAGE), code.co_qualname))


@contextmanager
def watched(*, threads: bool = False) -> Iterator[Walk]:
    """Take down every call of ours in this thread, or in those that are started meanwhile."""
    place: Any = threading if threads else sys
    walk, former = Walk(), place.getprofile()
    place.setprofile(walk.note)
    try:
        yield walk
    finally:
        place.setprofile(former)
        walk.is_watched = False


def walk_of(work: Callable[[], object]) -> Walk:
    """Return the calls of a piece of work, done in this thread."""
    with watched() as walk:
        work()
    return walk


def files_of(work: Callable[[], object]) -> list[str]:
    """Return the files that a piece of work passes, in the order in which it comes to them."""
    return walk_of(work).files


def move() -> Walk:
    """Move a row of a plain machine, which nobody listens to, by `transition_to()`."""
    from lab.models import ByHand

    first, second = ByHand.objects.create(), ByHand.objects.create()
    first.states.transition_to("LAST")
    return walk_of(lambda: second.states.transition_to("LAST"))


def claimed_row() -> Walk:
    """Claim a due row, run its handler, which names the next state, and write that, by a worker's own threads.

    Runs in a process of its own, on the database of this one: some threads of a worker end with their process alone.
    """
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url.build(connection.settings_dict),
        "PYTHONPATH": os.pathsep.join([str(Path(PACKAGE).parent), str(ROOT), str(ROOT / "testproject")]),
    }
    command = [sys.executable, "-m", "tests.walks", "claimed_row"]
    told = subprocess.run(
        command, check=True, cwd=ROOT, env=environment, stdout=subprocess.PIPE, timeout=PATIENCE
    ).stdout
    return Walk([Call(**call) for call in json.loads(told)])


def serve_rows() -> Walk:
    """Serve rows by a worker's threads, in this process. It has to end afterwards, and they with it.

    The worker has run a row before. From when the row becomes due, all is taken down until the next one is written: what is
    done after a write belongs to the row as well. So does a claim that finds nothing.
    """
    from lab.models import ByWorker
    from statemachine_fields.db.postgresql_claims import FEW
    from statemachine_fields.worker import claiming
    from statemachine_fields.worker.lease import lanes_for
    from statemachine_fields.worker.options import WorkerOptions
    from statemachine_fields.worker.runner import Runner

    def serve() -> None:
        row = ByWorker.objects.create()
        eventually(lambda: ByWorker.objects.get(pk=row.pk).states.current == "LAST", "the worker has written the row")
        row.delete()

    claiming.SUSPECTS_EVERY = 3600.0
    options = WorkerOptions(machines=("lab.ByWorker.states",), threads=1, poll_seconds=0.05)
    with watched(threads=True) as walk:
        runner = Runner(lanes_for(options), options)
        for number in range(1, FEW + 2):  # each has a text of its own, and more than a few have one
            runner.claiming.claimer.claim(runner.lanes[0], number)
        runner.start()
        serve()
        walk.calls.clear()
        serve()
        serve()
    runner.stop()
    return walk.by(*ON_THE_WAY)


def declaration() -> Walk:
    """Declare a model with a plain machine."""
    from django.db import models
    from django.test.utils import isolate_apps

    from statemachine_fields import StateMachine

    def declare() -> None:
        class Declared(models.Model):
            states = StateMachine(
                states=[("NEW", "New"), ("DONE", "Done")], initial="NEW", transitions={"NEW": ["DONE"]}
            )

            class Meta:
                app_label = "lab"

    isolated = isolate_apps("lab")(declare)
    isolated()
    return walk_of(isolated)


def show() -> None:
    """Print the walks, on a database that is made for it."""
    runner = get_runner(settings)(verbosity=0, interactive=False)
    made = runner.setup_databases()
    try:
        walks = {"One move": move(), "One claimed row": claimed_row(), "One declaration": declaration()}
    finally:
        runner.teardown_databases(made)
    for name, walk in walks.items():
        print(f"\n{name} passes {len(walk.files)} files:")
        for file in walk.files:
            threads = dict.fromkeys(call.thread for call in walk.calls if file in (call.caller, call.file))
            print(f"  {file}" + (f", by {', '.join(threads)}" if name == "One claimed row" else ""))
    for number, step in enumerate(walks["One declaration"].steps, 1):
        print(f"\nStep {number} of the declaration:")
        for caller, file in step:
            turn = "  turns back" if (caller, file) in walks["One declaration"].turns else ""
            print(f"  {caller or 'Django or the project'} → {file}{turn}")


if __name__ == "__main__":
    sys.path.append(str(ROOT / "testproject"))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    if sys.argv[1:] == ["claimed_row"]:
        print(json.dumps([asdict(call) for call in serve_rows().calls]), flush=True)
        os._exit(0)
    show()

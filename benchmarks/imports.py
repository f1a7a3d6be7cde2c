"""What importing the library costs: the time spent in modules of ours, by `python -X importtime`, each time in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from database import Database
from report import Goal, spread

#: Written where the part begins that is measured. Everything before it is Django's.
MARK = "the measured part begins"

# Django is loaded and set up, with models of its own and without us.
DJANGO = f"""
import sys
import django.db.models
from django.apps import apps
from django.conf import settings

APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
settings.configure(INSTALLED_APPS=APPS, USE_TZ=True, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField")
django.setup()
print("{MARK}", file=sys.stderr, flush=True)
"""

# What everybody pays who imports a name of ours.
PACKAGE = f"{DJANGO}import statemachine_fields"

# What a project pays until its models are there: for the app, and for whatever a declaration loads. Django imports apps by
# a function that `-X importtime` does not see, so ours is imported before.
DECLARED = f"""{DJANGO}import statemachine_fields.apps
apps.set_installed_apps([*APPS, "statemachine_fields"])
from statemachine_fields import StateMachine

class Order(django.db.models.Model):
    states = StateMachine(states=[("NEW", "New"), ("DONE", "Done")], initial="NEW", transitions={{"NEW": ["DONE"]}})

    class Meta:
        app_label = "auth"
"""


@dataclass(frozen=True)
class Loaded:
    """What one process loaded: seconds in modules of ours, which ones, and seconds in others that came along."""

    ours: float
    modules: tuple[str, ...]
    others: float


@dataclass
class Imports:
    """One of the two programs, as the code of a checkout runs it in all repetitions."""

    name: str
    database: Database
    cells: list[Loaded] = field(default_factory=list)


def load(program: str, database: Database, cache: str, processes: int) -> Loaded:
    """Run the program so often and return the process of the median, by its time in modules of ours."""
    taken = sorted((_load(program, database, cache) for _ in range(processes)), key=lambda each: each.ours)
    return taken[len(taken) // 2]


def _load(program: str, database: Database, cache: str) -> Loaded:
    # Compiled files in a place of their own: the same for everybody, and nothing is written into a checkout.
    variables = {**os.environ, **database.environment, "PYTHONPYCACHEPREFIX": cache}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-X", "importtime", "-c", program]
    ended = subprocess.run(command, check=False, env=variables, stderr=subprocess.PIPE, text=True)
    told = ended.stderr
    if ended.returncode:
        raise SystemExit(f"A process that was to import the library failed:\n{told[-2000:]}")
    times = dict(_times(told[told.index(MARK) :]))
    modules = tuple(sorted(name for name in times if name.split(".")[0] == "statemachine_fields"))
    ours = sum(times[name] for name in modules)
    return Loaded(ours, modules, sum(times.values()) - ours)


def _times(told: str) -> Iterator[tuple[str, float]]:
    """Yield each module with the seconds spent in it, without those that it imports."""
    for line in told.splitlines():
        if line.startswith("import time:"):
            own, _, name = line.removeprefix("import time:").split("|")
            yield name.strip(), int(own) / 1_000_000


@contextmanager
def compiled() -> Iterator[str]:
    """Yield a directory for compiled files."""
    with tempfile.TemporaryDirectory(prefix="benchmark-imports-") as directory:
        yield directory


def table(title: str, lines: Sequence[Imports], goal: Goal) -> str:
    ours = lines[0].cells
    rows = [
        f"### {title}",
        "",
        "| | ms in modules of ours | modules of ours | ms in others that they load | ours in proportion | goal | |",
        "|-|-|-|-|-|-|-|",
    ]
    for line in lines:
        own, others = ([getattr(cell, name) * 1000 for cell in line.cells] for name in ("ours", "others"))
        count = median(len(cell.modules) for cell in line.cells)
        text = f"| {line.name} | {spread(own, '.1f')} | {count:g} | {spread(others, '.1f')} |"
        if line is lines[0]:
            rows.append(f"{text} | | |")
        else:
            rows.append(
                text + goal.judge([mine.ours / other.ours for mine, other in zip(ours, line.cells, strict=True)])
            )
    return "\n".join(rows)

"""Compare this library with its peers by running all of them, and hold the tables of the documentation to the outcome.

usage: python benchmarks/peers/run.py [--write] [machines|workers ...]

It starts a PostgreSQL of its own. Each cell is a function that does something and looks what came of it; with --write the
tables go to docs/explanation/comparison.md, without it they are compared with what stands there.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from importlib import import_module, metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs/explanation/comparison.md"
STATOR = os.environ.get("PEERS_STATOR", "")
sys.path[:0] = [str(HERE), str(ROOT), STATOR]

#: What each column is of, and the packages whose versions it names.
PACKAGES = {
    "this library": [],
    "django-fsm-2": ["django-fsm-2", "django-fsm-log"],
    "viewflow.fsm": ["django-viewflow"],
    "simple-history": ["django-simple-history"],
    "pghistory": ["django-pghistory"],
    "Stator at ecb1a74": [],
    "Procrastinate": ["procrastinate"],
    "Celery": ["celery", "django-celery-beat"],
}
TABLES = ["machines", "workers"]


def heading(column: str) -> str:
    names = {"django-fsm-2": "django-fsm-2 {} with fsm-log {}", "Celery": "Celery {} with django-celery-beat {}"}
    versions = [metadata.version(package) for package in PACKAGES[column]]
    return names.get(column, column + " {}" * len(versions)).format(*versions)


def table(name: str) -> str:
    """Fill a table, as Markdown. A cell that fails says so, and the run with it."""
    from cells import CELLS

    rows = CELLS[name]
    columns = list(next(iter(rows.values())))
    lines = ["| | " + " | ".join(map(heading, columns)) + " |", "| --- " * (len(columns) + 1) + "|"]
    for row, cells in rows.items():
        found = []
        for column in columns:
            try:
                found.append(cells[column]())
            except Exception:  # noqa: BLE001 - whatever it is, it is no answer
                traceback.print_exc()
                found.append("FAILED")
            print(f"{row:<55} {column:<15} {found[-1]}", file=sys.stderr, flush=True)
        lines.append(f"| {row} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def main() -> int:
    if not Path(STATOR, "django_stator").is_dir():
        sys.exit("PEERS_STATOR has to name a checkout of github.com/andrewgodwin/django-stator, at ecb1a74.")
    with tempfile.TemporaryDirectory(prefix="peers-broker-") as broker:
        os.environ["PEERS_BROKER"] = broker
        return compare()


def compare() -> int:
    from tests import database_url, postgres

    os.environ["PEERS_DATABASE"] = database_url.build(postgres.database())
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)
    call_command("migrate", run_syncdb=True, verbosity=0)  # our own models have no migrations, and refer to others
    call_command("pgtrigger", "install", verbosity=0)

    text = wanted = PAGE.read_text() if PAGE.exists() else ""
    failed = False
    named = [name for name in sys.argv[1:] if not name.startswith("-")]
    for name in named or TABLES:
        import_module(name)
        filled = table(name)
        print(f"\n{filled}\n")
        failed = failed or "FAILED" in filled
        marks = f"<!-- by benchmarks/peers/run.py: {name} -->\n", f"\n<!-- end: {name} -->"
        place = re.search(re.escape(marks[0]) + ".*?" + re.escape(marks[1]), wanted, re.DOTALL)
        if place is None:
            sys.exit(f"{PAGE.relative_to(ROOT)} has no place for {name}: {marks[0].strip()}")
        wanted = wanted[: place.start()] + f"\n{filled}\n".join(marks) + wanted[place.end() :]
    if failed:
        return 1
    if "--write" in sys.argv:
        PAGE.write_text(wanted)
    elif wanted != text:
        print(f"{PAGE.relative_to(ROOT)} says something else. Look at what changed, then run this with --write.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

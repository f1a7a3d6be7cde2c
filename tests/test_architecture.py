"""The shape of the package: imports run one way, and what has one reader has one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import statemachine_fields
from tests.patience import PATIENCE

PACKAGE = Path(statemachine_fields.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


#: The rooms, and those below each: what its modules may import. `exceptions`, `signals` and `conf` are for all.
BELOW = {
    "db": set(),
    "drawing": set(),
    "schedule": {"db"},
    "machine": {"schedule", "db", "drawing"},
    "worker": {"management", "machine", "schedule", "db"},
    "management": {"machine", "schedule", "db", "drawing"},
    "admin": {"machine", "schedule", "db", "drawing"},
}
SHARED = {"exceptions", "signals", "conf"}
#: What tells one database, or its driver, from another.
VENDORS = re.compile(r"\bpsycopg\b|\.vendor\b|\bpgcode\b|\bsqlstate\b", re.IGNORECASE)


def imported(module: Path, *, at_once: bool = False) -> Iterator[str]:
    """Yield what a module imports when it runs, not what only type checkers see; or only what it imports when it is loaded."""
    tree = ast.parse(module.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        or (at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for part in node.body
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            yield from [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def name_of(module: Path) -> str:
    return ".".join([PACKAGE.name, *module.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def modules_loaded_by(module: Path, known: set[str]) -> set[str]:
    """Return those of our modules that are loaded when one is."""
    names = imported(module, at_once=True)
    found = {name if name in known else name.rpartition(".")[0] for name in names}
    return found & known - {name_of(module)}


def rooms_of(names: Iterable[str]) -> set[str]:
    """Return the folders, or the modules beside them, that names of ours are in."""
    return {name.split(".")[1] for name in names if name.startswith(f"{PACKAGE.name}.")}


@pytest.mark.parametrize("room", BELOW)
def test_imports_run_one_way(room):
    for module in (PACKAGE / room).rglob("*.py"):
        above = rooms_of(imported(module)) - BELOW[room] - SHARED - {room}
        assert above == set(), f"{module.relative_to(PACKAGE)} imports from {above}"


def test_no_modules_need_each_other():
    known = {name_of(module) for module in MODULES}
    waiting = {name_of(module): modules_loaded_by(module, known) for module in MODULES}
    # Modules are parts of the package and loaded with it, so what it loads is no cycle.
    waiting = {name: needs - {PACKAGE.name} for name, needs in waiting.items()}
    while ready := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
        for name in ready:
            del waiting[name]
    assert waiting == {}


def test_only_db_knows_databases_apart():
    elsewhere = [module for module in MODULES if "db" not in module.relative_to(PACKAGE).parts]
    assert [name_of(module) for module in elsewhere if VENDORS.search(code_of(module))] == []


def code_of(module: Path) -> str:
    """Return a module without its comments and docstrings."""
    return ast.unparse(WithoutDocstrings().visit(ast.parse(module.read_text())))


class WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.Expr | ast.Pass:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def test_only_the_dialect_reads_the_vendor():
    readers = {module.name for module in MODULES if ".vendor" in module.read_text()}
    assert readers == {"dialect.py"}


def test_no_two_classes_have_one_name():
    names = Counter(
        node.name
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} <= {"Command", "Migration", "Meta"}


def test_what_is_rarely_needed_is_not_loaded_with_the_package():
    code = "import sys, statemachine_fields; print(*(name for name in sys.modules if name.startswith('statemachine_fields.')))"
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert not rooms_of(loaded) & {"admin", "drawing", "management", "worker"}
    rare = ("audit", "bulk", "forms", "history_import", "questions", "raw", "rename", "verify")
    assert not loaded & {f"statemachine_fields.machine.{name}" for name in rare}


def test_only_conf_reads_the_settings():
    readers = {module.name for module in MODULES if any(name.startswith("django.conf.") for name in imported(module))}
    assert readers == {"conf.py"}


def test_the_package_can_be_imported_before_django_is_set_up():
    code = "import statemachine_fields, statemachine_fields.signals, statemachine_fields.exceptions"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=PATIENCE)


def test_the_promise_is_sorted_and_kept():
    assert statemachine_fields.__all__ == sorted(statemachine_fields.__all__)
    for name in statemachine_fields.__all__:
        assert getattr(statemachine_fields, name) is not None


def test_no_module_is_long():
    for module in MODULES:
        assert len(module.read_text().splitlines()) <= 400, f"{module.name}: look for the second concept in it"

"""The shape of the package: imports run one way, and what has one reader has one."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import statemachine_fields

PACKAGE = Path(statemachine_fields.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(module: Path) -> Iterator[str]:
    """Yield what a module imports when it runs, not what only type checkers see."""
    tree = ast.parse(module.read_text())
    for_checkers = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    skipped = {inner for node in for_checkers for part in node.body for inner in ast.walk(part)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(
    ("part", "forbidden"),
    [
        ("db", ["statemachine_fields.machine", "statemachine_fields.worker", "statemachine_fields.admin"]),
        ("machine", ["statemachine_fields.worker", "statemachine_fields.admin"]),
        ("drawing", ["statemachine_fields.worker", "statemachine_fields.admin", "statemachine_fields.db"]),
        ("admin", ["statemachine_fields.worker"]),
    ],
)
def test_imports_run_one_way(part, forbidden):
    for module in (PACKAGE / part).rglob("*.py"):
        wrong = [name for name in imported(module) if name.startswith(tuple(forbidden))]
        assert wrong == [], module.name


def test_only_the_dialect_reads_the_vendor():
    readers = {module.name for module in MODULES if ".vendor" in module.read_text()}
    assert readers == {"dialect.py"}


def test_only_conf_reads_the_settings():
    readers = {module.name for module in MODULES if "django.conf" in list(imported(module))}
    assert readers == {"conf.py"}


def test_the_package_can_be_imported_before_django_is_set_up():
    code = "import statemachine_fields, statemachine_fields.signals, statemachine_fields.exceptions"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_the_promise_is_sorted_and_kept():
    assert statemachine_fields.__all__ == sorted(statemachine_fields.__all__)
    for name in statemachine_fields.__all__:
        assert getattr(statemachine_fields, name) is not None


def test_no_module_is_long():
    for module in MODULES:
        assert len(module.read_text().splitlines()) <= 400, f"{module.name}: look for the second concept in it"

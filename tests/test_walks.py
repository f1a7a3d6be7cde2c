"""How many files of ours one move, one claimed row and one declaration pass, and that they are counted as they should be."""

from __future__ import annotations

import re
import sys

import pytest
from django.db import connection
from django.db.models import Q

from statemachine_fields import InvalidStateTransition
from tests import walks
from tests.walks import Call, Walk, files_of

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="what is counted is the way to PostgreSQL")


def walk(*ways, thread="claimer"):
    return Walk([Call(thread, caller, file, "function") for caller, file in ways])


class TestFiles:
    def test_are_those_whose_functions_are_called(self):
        error = InvalidStateTransition("an order", "NEW", "DONE", [])
        assert files_of(lambda: str(error)) == ["exceptions.py"]

    def test_of_others_are_not_counted(self):
        assert files_of(lambda: Q(status="NEW") | Q(status="DONE")) == []

    def test_are_told_once_and_in_order(self):
        assert walk((None, "b.py"), ("b.py", "a.py"), ("b.py", "b.py"), (None, "a.py")).files == ["b.py", "a.py"]

    def test_of_loops_that_were_called_before_are_counted(self):
        assert walk(("loop.py", "a.py")).files == ["loop.py", "a.py"]

    def test_are_no_longer_watched_when_the_work_fails(self):
        former = sys.getprofile()
        with pytest.raises(ZeroDivisionError):
            files_of(lambda: 1 / 0)
        assert sys.getprofile() is former


class TestTurns:
    def test_a_file_that_calls_the_one_that_called_it_turns_back(self):
        assert walk((None, "a.py"), ("a.py", "b.py"), ("b.py", "a.py")).turns == [("b.py", "a.py")]

    def test_however_long_ago_that_was(self):
        found = walk((None, "a.py"), ("a.py", "b.py"), (None, "b.py"), ("b.py", "a.py"))
        assert found.turns == [("b.py", "a.py")]
        assert len(found.steps) == 2

    def test_and_over_however_many_files(self):
        found = walk(
            (None, "b.py"), ("b.py", "c.py"), (None, "a.py"), ("a.py", "b.py"), (None, "c.py"), ("c.py", "a.py")
        )
        assert found.turns == [("c.py", "a.py")]

    def test_two_that_call_a_third_do_not(self):
        assert walk((None, "a.py"), ("a.py", "b.py"), ("b.py", "c.py"), ("a.py", "c.py"), ("a.py", "a.py")).turns == []


def test_a_thread_that_did_nothing_is_missed():
    with pytest.raises(LookupError, match="committer"):
        walk((None, "a.py")).by("claimer", "committer")


def told(name):
    """Return the files that the page on the way through the code names for a walk."""
    page = (walks.ROOT / "docs/explanation/code.md").read_text().partition(f"<!-- walk: {name} -->")[2]
    listed = page.lstrip().partition("\n\n")[0]
    return re.findall(r"^\d+\. `(\S+)`", listed, re.MULTILINE)


@on_postgresql
@pytest.mark.django_db
def test_one_move_passes_few_files_which_the_page_names():
    files = walks.move().files
    assert len(files) <= 9
    assert files == told("move")


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_one_claimed_row_passes_few_files_which_the_page_names():
    files = walks.claimed_row().files
    assert len(files) <= 18, files
    assert sorted(files) == sorted(told("claimed_row"))


def test_one_declaration_never_turns_back_and_passes_files_which_the_page_names():
    found = walks.declaration()
    assert found.turns == []
    assert sorted(found.files) == sorted(told("declaration"))

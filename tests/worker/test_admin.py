"""The page of the run statistics: a line for each hour of a state, a column for each kind."""

from __future__ import annotations

import datetime
import re

import pytest
from django.urls import reverse
from django.utils import translation

from statemachine_fields.worker.models import RunStatistics

pytestmark = pytest.mark.django_db

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def count(state, seconds=0.0, hour=NOON, machine="lab.Chore.states", **counts):
    for kind, number in counts.items():
        RunStatistics.objects.create(
            machine=machine, state=state, period=hour, kind=kind, count=number, seconds=seconds / len(counts)
        )


def columns(response):
    return re.findall(r'scope="col" class="[^"]*column-(\w+)', response.content.decode())


def cells(response):
    """Return the lines of the page: state, and what is in the columns after it."""
    lines = re.findall(r"<tr>(<td class=.*?)</tr>", response.content.decode(), re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", line)[2:] for line in lines]


@pytest.fixture
def look(admin_client):
    def get(**parameters):
        return admin_client.get(reverse("admin:statemachine_worker_runstatistics_changelist"), parameters)

    return get


def test_an_hour_of_a_state_is_one_line_with_a_column_for_each_kind(look):
    count("NEW", claimed=5, moved=2, spawned_rows=7, seconds=1.5)
    count("NEW", hour=NOON + datetime.timedelta(hours=1), failed=1)
    count("DOING", moved=1234, seconds=0.25)

    page = look()

    kinds = ["claimed", "moved", "failed", "spawned_rows"]
    assert columns(page) == ["period", "machine", "state", *kinds, "seconds_in_handlers"]
    assert "Spawned rows" in page.content.decode()
    assert cells(page) == [
        ["NEW", "0", "0", "1", "0", "0.0"],
        ["DOING", "0", "1234", "0", "0", "0.2"],
        ["NEW", "5", "2", "0", "7", "1.5"],
    ]
    assert page.context["cl"].result_count == 3


@pytest.mark.parametrize(("column", "order"), [("claimed", "BCA"), ("moved", "ABC"), ("seconds_in_handlers", "CAB")])
def test_lines_are_sorted_by_any_column(look, column, order):
    count("A", claimed=1, moved=3, seconds=2.0)
    count("B", claimed=9, moved=2, seconds=1.0)
    count("C", claimed=2, seconds=8.0)  # that none was moved is less than that some were

    number = columns(look()).index(column)

    assert "".join(line[0] for line in cells(look(o=number))) == order[::-1]
    assert "".join(line[0] for line in cells(look(o=-number))) == order


def test_lines_are_those_of_the_filters(look):
    count("A", claimed=1, moved=1)
    count("B", claimed=2)
    count("A", claimed=3, machine="lab.Lot.states")

    assert cells(look(machine="lab.Chore.states", state="A")) == [["A", "1", "1", "0.0"]]


def test_where_nothing_was_counted_there_are_no_lines(look):
    assert cells(look()) == []


def test_the_number_of_queries_does_not_grow_with_the_lines(look, django_assert_max_num_queries):
    for number in range(30):
        count(f"S{number}", claimed=1, moved=1, failed=1)
    with django_assert_max_num_queries(12):
        assert len(cells(look())) == 30


def test_columns_speak_the_language_of_the_reader(look):
    count("NEW", waited=1)
    with translation.override("de"):
        assert "Noch nicht" in look().content.decode()

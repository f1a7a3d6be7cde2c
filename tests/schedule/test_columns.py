"""The columns and indexes of a timed machine."""

from __future__ import annotations

import re

import pytest
from django.db import connection, models
from django.test.utils import isolate_apps

from lab.models import Lot
from statemachine_fields import State, StateMachine
from statemachine_fields.db.counting import OtherValues
from tests.declared import lab_model

pytestmark = pytest.mark.django_db

only_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="plans are read as PostgreSQL writes them"
)


def timed_machine(**options):
    return StateMachine([State("A", "A", timeout_after=60, timeout_to="B"), ("B", "B")], "A", {"A": ["B"]}, **options)


def indexed(model):
    """Return the fields of each index, and whether it is of all rows."""
    return [(index.fields, index.condition is None) for index in model._meta.indexes]


OF_A_CLOCK = [(["status", "status_next_at"], True), (["status_crashes", "status_next_at"], False)]


class TestIndexes:
    def test_are_one_of_all_rows_and_one_of_those_with_crashes(self):
        assert indexed(Lot) == OF_A_CLOCK

    def test_are_in_the_database(self):
        with connection.cursor() as cursor:
            found = connection.introspection.get_constraints(cursor, Lot._meta.db_table)
        columns = [each["columns"] for each in found.values() if each["index"] and "status" in each["columns"]]
        assert columns == [["status", "status_next_at"]]

    @isolate_apps("lab")
    def test_are_there_for_workers_whatever_people_need(self):
        assert indexed(lab_model(states=timed_machine(db_index=False))) == OF_A_CLOCK

    @isolate_apps("lab")
    def test_that_the_model_declares_itself_are_not_made_twice(self):
        own = [models.Index(fields=["status"]), models.Index(fields=["status", "status_next_at"], name="mine")]
        order = lab_model(states=timed_machine(), meta={"indexes": own})
        assert indexed(order) == [(["status"], True), *OF_A_CLOCK]
        assert order._meta.indexes[1].name == "mine"

    @isolate_apps("lab")
    def test_of_some_rows_do_not_stand_for_those_of_all(self):
        own = [models.Index(fields=["status"], name="some", condition=models.Q(status="A"))]
        order = lab_model(states=StateMachine([("A", "A")], "A", {}), meta={"indexes": own})
        assert indexed(order) == [(["status"], False), (["status"], True)]


@only_postgresql
class TestPlans:
    INDEX = r"using lab_lot_status_\w+_idx|Bitmap Index Scan on lab_lot_status_\w+_idx"

    @pytest.fixture(autouse=True)
    def _many_rows(self):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO lab_lot (status, amount, touched_at, status_changed_at, status_next_at, status_error)"
                " SELECT CASE WHEN place <= 50 THEN 'URGENT' ELSE 'OPEN' END, 1, now(), now(),"
                " CASE WHEN place % 500 > 0 THEN now() + place * interval '1 s' END,"
                " CASE WHEN place % 500 = 0 THEN 'x' ELSE '' END FROM generate_series(1, 20000) AS place"
            )
            cursor.execute("ANALYZE lab_lot")

    def plan(self, sql, params=()):
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE) {sql}", params)
            return "\n".join(line for (line,) in cursor.fetchall())

    @pytest.mark.parametrize(
        "rows",
        [
            lambda: Lot.objects.filter(status="URGENT"),
            lambda: Lot.objects.filter(status="URGENT").values("pk")[:10],
            lambda: Lot.states.parked().filter(status="OPEN"),
            lambda: Lot.states.due().filter(status="OPEN"),
        ],
        ids=["a state", "some of a state", "parked", "due"],
    )
    def test_what_people_ask_about_a_state_is_answered_by_the_index(self, rows):
        plan = self.plan(*rows().query.sql_with_params())
        assert re.search(self.INDEX, plan), plan
        assert "Seq Scan" not in plan

    def test_so_is_what_other_values_there_are(self):
        found, most = OtherValues("lab_lot", "status", ["OPEN"]).cte(connection)
        plan = self.plan(f"{found} SELECT * FROM found", most)
        assert plan.count("Index Only Scan using lab_lot_status_") == 2, plan
        assert "Seq Scan" not in plan

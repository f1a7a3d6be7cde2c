"""Rows in states that the machine does not declare: found by the index, named by the check, and moved on by force."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from django.core.management import call_command
from django.db import connection

from lab.models import Car, Dossier, Vehicle
from shop.models import Order
from statemachine_fields.checks import check_rows
from statemachine_fields.db import counting
from statemachine_fields.db.expressions import MachineValue

pytestmark = pytest.mark.django_db


def dossiers(*states):
    """Create dossiers, each in a state as only SQL can put it there."""
    rows = [Dossier.objects.create(title=state) for state in states]
    for row in rows:
        Dossier.objects.filter(pk=row.pk).update(status=MachineValue(row.title))
    return rows


class TestQuestion:
    def test_names_the_states_that_are_not_declared(self, django_assert_num_queries):
        dossiers("OPEN", "zebra", "MISLAID", "MISLAID", "A", "GONE", "")

        with django_assert_num_queries(1):
            assert Dossier.states.undeclared_states() == ["", "A", "MISLAID", "zebra"]

    def test_finds_nothing_in_healthy_rows_nor_in_an_empty_table(self):
        assert Dossier.states.undeclared_states() == []
        dossiers("OPEN", "LOST")
        assert Dossier.states.undeclared_states(using="default") == []

    def test_is_there_for_coroutines(self):
        dossiers("MISLAID")

        assert async_to_sync(Dossier.states.aundeclared_states)() == ["MISLAID"]

    def test_ends_even_if_the_column_is_full_of_them(self, monkeypatch):
        monkeypatch.setattr(counting, "MOST", 3)
        dossiers(*(f"X{number}" for number in range(20)))

        assert len(Dossier.states.undeclared_states()) == len(Dossier.states._meta.graph.states) + 3

    def test_looks_at_the_table_that_has_the_column(self):
        car = Car.objects.create()
        Vehicle.objects.filter(pk=car.pk).update(status=MachineValue("FLYING"))

        assert Car.states.undeclared_states() == ["FLYING"]

    @pytest.mark.skipif(connection.vendor != "postgresql", reason="plans are read as PostgreSQL writes them")
    def test_is_answered_by_the_index(self):
        states = list(Dossier.states._meta.graph.states)
        Dossier.objects.bulk_create(Dossier(status=states[number % len(states)]) for number in range(5000))
        found, most = Dossier.states._meta.questions.other_values().cte(connection)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE lab_dossier")
            cursor.execute(f"EXPLAIN (ANALYZE) {found} SELECT * FROM found", most)
            plan = "\n".join(line for (line,) in cursor.fetchall())

        assert plan.count("Index Only Scan") == 2, plan
        assert "Seq Scan" not in plan


class TestWayOut:
    def test_is_a_forced_move(self):
        (row,) = dossiers("MISLAID")
        row.refresh_from_db()

        assert not row.states.can_transition_to("OPEN")
        row.states.force_transition_to("OPEN", reason="mislaid no more")

        assert (row.status, Dossier.states.undeclared_states()) == ("OPEN", [])
        assert row.states.history.get().from_status == "MISLAID"


class TestCheck:
    def warning(self):
        return checks.Warning(
            "Rows of 'states' are in 'A', 'MISLAID' in the database 'default', which the machine does not declare.",
            hint="No move leads out of such a state, and no worker takes its rows. Declare it again, or move them on with "
            "force_transition_to().",
            obj=Dossier,
            id="statemachine_fields.W006",
        )

    def test_names_model_states_and_the_way_out(self):
        dossiers("OPEN", "MISLAID", "A")

        assert check_rows(None, databases=["default"]) == [self.warning()]

    def test_asks_no_database_unless_it_is_told_to(self, django_assert_num_queries):
        dossiers("MISLAID")

        with django_assert_num_queries(0):
            assert check_rows(None, databases=None) == []
            assert checks.Tags.database in check_rows.tags

    @pytest.mark.django_db(databases=["default", "other"])  # other checks of the command look at both
    def test_is_part_of_the_command(self, capsys):
        dossiers("MISLAID", "A")

        call_command("check", databases=["default"])
        assert "statemachine_fields.W006" in capsys.readouterr().err
        call_command("check")
        assert "statemachine_fields.W006" not in capsys.readouterr().err

    def test_is_about_the_apps_it_is_given(self):
        from django.apps import apps

        dossiers("MISLAID")

        assert check_rows([apps.get_app_config("shop")], databases=["default"]) == []

    def test_is_silent_about_tables_that_are_not_there_yet(self, monkeypatch):
        """`migrate` runs the checks of its database before it makes the tables."""
        monkeypatch.setattr(Dossier._meta, "db_table", "lab_not_yet")

        assert check_rows(None, databases=["default"]) == []
        assert Order.objects.count() == 0  # the transaction around goes on

    def test_is_silent_about_databases_that_do_not_have_the_model(self, monkeypatch):
        dossiers("MISLAID")
        monkeypatch.setattr("django.db.router.allow_migrate_model", lambda alias, model: model is not Dossier)

        assert check_rows(None, databases=["default"]) == []

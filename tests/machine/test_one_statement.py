"""How many statements a move is, and that the query log and execute wrappers see them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
from django.db import ProgrammingError, connection, connections, models, transaction
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext, override_settings

from lab.models import Car, Hooked, Invoice, Parcel, Reasoned, Stamped
from statemachine_fields import InvalidStateTransition

pytestmark = pytest.mark.django_db(transaction=True)

POSTGRESQL = connection.vendor == "postgresql"


def statements(move) -> list[str]:
    """Return the statements of a move, each by its first word."""
    with CaptureQueriesContext(connection) as queries:
        move()
    return [query["sql"].split()[0].upper() for query in queries]


def end_from_elsewhere(pid: int) -> None:
    """Let the server end a connection, and wait until it has."""
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        assert cursor.fetchone() == (True,)
    other.close()


INSIDE = ["WITH"] if POSTGRESQL else ["UPDATE", "INSERT"]
PLAIN = INSIDE if POSTGRESQL else ["BEGIN", *INSIDE, "COMMIT"]
LOCK = ["SELECT"] if connection.features.has_select_for_update else ["UPDATE", "SELECT"]


@pytest.mark.parametrize("prepare", [True, False, "auto"])
def test_a_move_is_one_statement_on_postgresql_and_one_short_transaction_elsewhere(row, prepare):
    with override_settings(STATEMACHINE_FIELDS={"PREPARE": prepare}):
        assert statements(lambda: row.states.transition_to("DONE", metadata={"a": 1})) == PLAIN
        assert statements(lambda: row.states.transition_to("NEW")) == PLAIN


def test_inside_a_transaction_it_is_the_same_without_a_savepoint(row):
    with transaction.atomic():
        assert statements(lambda: row.states.transition_to("DONE")) == INSIDE


def test_update_and_auto_now_travel_along(row):
    assert statements(lambda: row.states.transition_to("DONE", update={"name": "b"})) == PLAIN
    stored = Stamped.objects.get()
    assert (stored.name, stored.status, stored.modified) == ("b", "DONE", row.modified)


def test_an_auto_now_field_that_the_database_computes_is_left_to_django(row, monkeypatch):
    class DatabaseTimeField(models.DateTimeField):
        def pre_save(self, model_instance, add):
            return Now()

    monkeypatch.setattr(Stamped.states._meta, "plans", {})
    monkeypatch.setattr(Stamped._meta.get_field("modified"), "__class__", DatabaseTimeField)
    before = row.modified
    row.states.transition_to("DONE")
    assert row.modified > before
    assert Stamped.objects.get().modified == row.modified
    assert Stamped.states.bulk_transition(Stamped.objects.all(), "NEW").moved == 1
    assert Stamped.objects.get().modified > row.modified


@pytest.mark.parametrize("expected", ["NEW", 0])
def test_expected_costs_nothing(row, expected):
    assert statements(lambda: row.states.transition_to("DONE", expected=expected)) == PLAIN


def test_the_fields_of_a_transition_base_travel_along(django_user_model):
    row = Reasoned.objects.create()
    user = django_user_model.objects.create(username="ada")
    record = {"actor": user, "reason": "a long enough reason"}
    assert statements(lambda: row.states.transition_to("DONE", record=record)) == PLAIN
    assert row.states.history.get().reason == "a long enough reason"


def test_keys_of_other_types_and_second_machines():
    parcel, invoice = Parcel.objects.create(), Invoice.objects.create()
    assert statements(lambda: parcel.states.transition_to("SCANNED")) == PLAIN
    assert statements(lambda: invoice.payment.transition_to("PAID")) == PLAIN


def test_a_stale_instance_pays_for_the_second_look(row):
    stale = Stamped.objects.get()
    row.states.transition_to("DONE")
    assert statements(lambda: stale.states.transition_to("NEW")) == ["BEGIN", *LOCK, *INSIDE, "COMMIT"]


def test_a_refusal_writes_nothing(row):
    with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidStateTransition):
        row.states.transition_to("NEW")
    writes = [query["sql"] for query in queries if query["sql"].startswith(("WITH", "INSERT"))]
    assert writes == []


def test_an_expression_is_left_to_django_in_the_same_transaction(row):
    row.states.transition_to("DONE", update={"name": F("status")})
    assert (row.name, Stamped.objects.get().name) == ("DONE", "DONE")


def test_columns_of_a_multi_table_childs_own_table_are_left_to_django():
    car = Car.objects.create()
    before = car.modified, car.serviced
    car.states.transition_to("MOVING", update={"doors": 2, "plate": "X"})
    stored = Car.objects.get()
    assert (stored.doors, stored.plate, stored.status) == (2, "X", "MOVING")
    assert (stored.modified, stored.serviced) == (car.modified, car.serviced)
    assert stored.modified > before[0]
    assert stored.serviced > before[1]


def test_execute_wrappers_see_the_statement(row):
    seen = []

    def wrapper(execute, sql, params, many, context):
        seen.append(sql.split()[0])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        row.states.transition_to("DONE")
    assert seen[-len(INSIDE) :] == INSIDE


@pytest.mark.skipif(not POSTGRESQL, reason="only PostgreSQL takes more than one statement at once")
@pytest.mark.parametrize("model", [Stamped, Hooked])
def test_an_execute_wrapper_may_put_another_statement_before_it(model):
    """As those of django-pghistory and django-pgtrigger do, the first in each request if its middleware is there."""
    row = model.objects.create(name="50%")
    seen = []

    def wrapper(execute, sql, params, many, context):
        done = execute(f"SELECT set_config('smf.who', %s, true); {sql}", ["Ann; 5%", *(params or ())], many, context)
        while done is not None and done.nextset():
            pass
        seen.append(sql)
        return done

    for block in (nullcontext, transaction.atomic):
        with block(), connection.execute_wrapper(wrapper), CaptureQueriesContext(connection) as queries:
            for state in ("DONE", "NEW"):
                record = row.states.transition_to(state, {"rate": "5%"})
                assert (record.to_status, record.metadata, row.status) == (state, {"rate": "5%"}, state)
        assert any("'Ann; 5%'" in query["sql"] for query in queries)
    row.states.transition_to("DONE")
    assert (model.objects.get().status, model.objects.get().status_sequence) == ("DONE", 5)
    assert [record.sequence for record in row.states.history] == [5, 4, 3, 2, 1]
    assert len(seen) >= 4


def test_the_query_log_shows_the_statement_with_its_values(row):
    for state in ("DONE", "NEW"):
        with CaptureQueriesContext(connection) as queries:
            row.states.transition_to(state)
        assert any(f"'{state}'" in query["sql"] for query in queries)


def test_an_execute_wrapper_may_move_another_row(row):
    other = Stamped.objects.create()
    moved = []

    def wrapper(execute, sql, params, many, context):
        if not moved and "INSERT" in sql:
            moved.append(True)
            other.states.transition_to("FAILED")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        row.states.transition_to("DONE")
    assert sorted(Stamped.objects.values_list("status", flat=True)) == ["DONE", "FAILED"]


@pytest.mark.skipif(not POSTGRESQL, reason="only PostgreSQL has statements that the server prepares")
class TestPreparing:
    def prepared(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%lab_stampedstatetr%'")
            return cursor.fetchone()[0]

    @pytest.mark.parametrize(("prepare", "count"), [("auto", 1), (True, 1), (False, 0)])
    def test_is_as_the_setting_says(self, row, prepare, count):
        connection.close()
        with override_settings(STATEMACHINE_FIELDS={"PREPARE": prepare}):
            for state in ("DONE", "NEW", "DONE"):
                row.states.transition_to(state)
        assert self.prepared() == count

    @pytest.mark.parametrize(
        "options", [{"DISABLE_SERVER_SIDE_CURSORS": True}, {"OPTIONS": {"prepare_threshold": None}}]
    )
    def test_auto_does_not_where_the_options_show_a_pooler(self, row, options, monkeypatch):
        connection.close()
        monkeypatch.setattr(connections["default"], "settings_dict", {**connection.settings_dict, **options})
        row.states.transition_to("DONE")
        assert self.prepared() == 0
        connection.close()

    @pytest.mark.parametrize("way", ["cursor", "_cursor", "create_cursor"])
    @pytest.mark.parametrize("prepare", [True, "auto"])
    def test_leaves_to_a_backend_what_it_does_before_each_cursor(self, row, prepare, way, monkeypatch):
        """As that of django-tenants does, which chooses the schema there."""
        connection.close()
        names, djangos = iter(["first", "second", "third"]), getattr(type(connections["default"]), way)

        def make(self, *name):
            self.connection or self.connect()
            self.connection.execute("SELECT set_config('application_name', %s, false)", [next(names)])
            return djangos(self, *name)

        monkeypatch.setattr(type(connections["default"]), way, make)
        with override_settings(STATEMACHINE_FIELDS={"PREPARE": prepare}):
            row.states.transition_to("DONE")
            row.states.transition_to("NEW")
        with connection.cursor() as cursor:
            cursor.execute("SHOW application_name")
            assert cursor.fetchone() == ("third",)
        connection.close()

    def test_leaves_to_a_tool_what_it_has_put_in_the_place_of_cursor(self, row, monkeypatch):
        """As django-debug-toolbar does, and a TestCase with the databases that it may not ask."""
        row.states.transition_to("DONE")
        monkeypatch.setattr(connection, "cursor", mock.Mock(side_effect=LookupError("not here")), raising=False)
        with pytest.raises(LookupError, match="not here"):
            row.states.transition_to("NEW")
        monkeypatch.undo()
        row.states.transition_to("NEW")

    def test_is_refused_where_a_test_may_not_ask_the_database(self, row, django_db_blocker):
        row.states.transition_to("DONE")
        with django_db_blocker.block(), pytest.raises(RuntimeError, match="not allowed"):
            row.states.transition_to("NEW")

    def test_prepares_nobody_elses_statements(self, row):
        connection.close()
        row.states.transition_to("DONE")
        for _ in range(10):
            Stamped.objects.get(name="a")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_prepared_statements WHERE statement NOT LIKE '%lab_stampedstatetr%'"
            )
            assert cursor.fetchone() == (0,)

    def test_a_statement_that_the_server_lost_is_repeated_plainly(self, row, caplog):
        connection.close()
        row.states.transition_to("DONE")
        with connection.cursor() as cursor:  # what a transaction pooler looks like from here
            cursor.execute("SELECT name FROM pg_prepared_statements")
            for (name,) in cursor.fetchall():
                cursor.execute(f'DEALLOCATE "{name}"')
        row.states.transition_to("NEW")
        row.states.transition_to("FAILED")
        assert [record.sequence for record in row.states.history] == [3, 2, 1]
        assert len(caplog.messages) == 1
        page = Path(__file__).parents[2].joinpath("docs/howto/poolers.md").read_text()
        assert caplog.messages[0] in " ".join(page.replace("  > ", "").split()), "howto/poolers.md quotes it"
        connection.close()

    def test_one_that_an_execute_wrapper_lost_is_the_last_too(self, row):
        connection.close()
        parcel = Parcel.objects.create()
        parcel.states.transition_to("SCANNED")
        row.states.transition_to("DONE")

        def move_another(execute, sql, params, many, context):
            if parcel.status_sequence == 1 and "lab_stamped" in sql:
                with context["connection"].cursor() as cursor:
                    cursor.execute("SELECT name FROM pg_prepared_statements WHERE statement LIKE '%lab_parcel%'")
                    cursor.execute(f'DEALLOCATE "{cursor.fetchone()[0]}"')
                parcel.states.transition_to(parcel.states.get_valid_transitions()[0])
            return execute(sql, params, many, context)

        with connection.execute_wrapper(move_another):
            row.states.transition_to("NEW")
        row.states.transition_to("DONE", update={"name": "b"})
        assert self.prepared() == 1

    def test_a_transaction_that_lost_one_can_be_repeated(self, row):
        connection.close()
        row.states.transition_to("DONE")
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM pg_prepared_statements")
            for (name,) in cursor.fetchall():
                cursor.execute(f'DEALLOCATE "{name}"')
        with pytest.raises(ProgrammingError), transaction.atomic():
            row.states.transition_to("NEW")
        assert row.status == "DONE"
        with transaction.atomic():
            row.states.transition_to("NEW")
        assert row.states.history.count() == 2
        connection.close()

    @pytest.mark.parametrize("prepare", [True, False])
    def test_a_connection_that_the_server_has_ended_is_replaced_where_django_checks_it(self, row, prepare, monkeypatch):
        for name, value in {"CONN_HEALTH_CHECKS": True, "CONN_MAX_AGE": None}.items():
            monkeypatch.setitem(connection.settings_dict, name, value)
        connection.close()
        with override_settings(STATEMACHINE_FIELDS={"PREPARE": prepare}):
            row.states.transition_to("DONE")
            ended = connection.connection
            end_from_elsewhere(ended.info.backend_pid)
            connection.close_if_unusable_or_obsolete()  # as Django does when a request begins
            assert connection.connection is ended
            row.states.transition_to("NEW")
        assert [record.to_status for record in row.states.history] == ["NEW", "DONE"]
        with monkeypatch.context() as patch:
            patch.setattr(connection._connections[connection._alias], "is_usable", lambda: pytest.fail("asked again"))
            row.states.transition_to("DONE")
        connection.close()

    def test_survives_a_new_connection(self, row):
        row.states.transition_to("DONE")
        connection.close()
        row.states.transition_to("NEW")
        assert row.states.history.count() == 2


def test_own_save_runs_between_savepoint_and_release():
    row = Hooked.objects.create()
    with transaction.atomic():
        words = statements(lambda: row.states.transition_to("DONE"))
    assert words[0] == "SAVEPOINT"
    assert words[-1] == "RELEASE"

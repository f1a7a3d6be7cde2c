"""A worker's own connections wait for nothing longer than they may, and belong to nobody else."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from django.db import OperationalError, connection, connections, transaction

from statemachine_fields.db.own import LONGEST_WAIT, SHORTEST, Limits, own_connection
from statemachine_fields.worker.connections import OwnConnections
from tests.patience import PATIENCE, eventually
from tests.worker.rows import elsewhere, only_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), only_postgresql]

LIMITS = Limits(statement=2.0, lock=0.5)

SETTINGS = "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')"


def own(limits=LIMITS):
    """Give the calling thread a connection as a worker has it, in place of the one it has."""
    connections["default"].close()
    connections["default"] = own_connection("default", "tester", limits)
    return connections["default"]


def ask(text, using):
    with using.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchone()


def ask_the_driver(text, using):
    with using.connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchone()


class TestLimits:
    def test_are_far_below_a_lease(self):
        limits = Limits.of_lease(60)
        assert (limits.statement, limits.lock) == (10, LONGEST_WAIT)

    def test_are_never_too_short_to_work_with(self):
        limits = Limits.of_lease(0.1)
        assert (limits.statement, limits.lock) == (SHORTEST, SHORTEST / 2)

    def test_are_set_on_the_server(self):
        assert elsewhere(lambda: ask(SETTINGS, own())) == ("500ms", "1600ms")

    def test_are_set_again_on_a_new_connection(self):
        def program():
            mine = own()
            mine.ensure_connection()
            mine.close()
            return ask(SETTINGS, mine)

        assert elsewhere(program) == ("500ms", "1600ms")

    @pytest.mark.parametrize(
        ("ours", "found"),
        [("100", ("100ms", "1600ms")), ("9000", ("500ms", "1600ms")), ("0", ("500ms", "1600ms"))],
        ids=["shorter", "longer", "none"],
    )
    def test_that_the_project_has_set_are_kept_if_they_are_shorter(self, ours, found, monkeypatch):
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "options", f"-c lock_timeout={ours}")
        given = connections["default"].settings_dict

        def program():
            monkeypatch.setattr(connections["default"], "settings_dict", given)
            return ask(SETTINGS, own())

        assert elsewhere(program) == found

    def test_end_a_statement_that_takes_too_long(self):
        def program():
            with pytest.raises(OperationalError, match="statement timeout"):
                ask(f"SELECT pg_sleep({PATIENCE})", own(Limits(statement=0.5, lock=0.1)))

        elsewhere(program)


class TestBehindAPooler:
    """A pooler gives the server's connection to another client after each transaction."""

    @pytest.fixture
    def pooled(self, monkeypatch):
        def make():
            mine = own()
            mine.ensure_connection()
            with mine.connection.cursor() as cursor:
                cursor.execute("RESET ALL")
            mine.is_direct = False
            return mine

        return make

    def test_limits_are_set_for_a_statement_alone(self, pooled):
        def program():
            mine = pooled()
            return ask(SETTINGS, mine), ask_the_driver(SETTINGS, mine)

        assert elsewhere(program) == (("500ms", "1600ms"), ("0", "0"))

    def test_limits_are_set_for_a_transaction_once(self, pooled):
        def program():
            mine = pooled()
            with transaction.atomic():
                found = [ask(SETTINGS, mine), ask(SETTINGS, mine)]
            with transaction.atomic():
                found.append(ask(SETTINGS, mine))
            return found, ask_the_driver(SETTINGS, mine)

        assert elsewhere(program) == ([("500ms", "1600ms")] * 3, ("0", "0"))

    def test_a_server_whose_process_is_another_is_known_for_a_pooler(self, monkeypatch):
        def program():
            monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda info: 1))
            mine = own()
            return ask(SETTINGS, mine), mine.is_direct, ask_the_driver("SHOW application_name", mine)[0]

        (limits, is_direct, name) = elsewhere(program)
        assert (limits, is_direct) == (("500ms", "1600ms"), False)
        assert "statemachine" not in name


class TestOwn:
    def test_has_a_name_that_operators_see(self):
        assert elsewhere(lambda: ask("SHOW application_name", own())) == ("statemachine_worker tester",)

    def test_is_never_from_a_pool_and_keeps_to_itself(self, monkeypatch):
        given = {
            **connection.settings_dict,
            "OPTIONS": {**connection.settings_dict["OPTIONS"], "pool": True},
            "AUTOCOMMIT": False,
            "CONN_MAX_AGE": 5,
            "CONN_HEALTH_CHECKS": True,
        }

        def program():
            connections["default"].close()
            monkeypatch.setattr(connections["default"], "settings_dict", given)
            mine = own()
            mine.ensure_connection()
            settings = mine.settings_dict
            return "pool" in settings["OPTIONS"], mine.pool, settings["AUTOCOMMIT"], settings["CONN_MAX_AGE"]

        assert elsewhere(program) == (False, None, True, None)

    def test_does_not_change_the_settings_of_the_project(self):
        before = {**connection.settings_dict, "OPTIONS": {**connection.settings_dict["OPTIONS"]}}
        elsewhere(lambda: own().ensure_connection())
        assert connection.settings_dict == before


class TestSilence:
    def test_is_not_heard_while_answers_come(self):
        def program():
            ours = OwnConnections(0.1)
            connections["default"].close()
            ours.use(["default"], "tester")
            ask("SELECT 1", connections["default"])
            time.sleep(0.01)
            return connections["default"].overdue, ours.hang_up_on_the_silent()

        assert elsewhere(program) == (False, [])

    def test_is_ended_when_an_answer_is_overdue(self):
        """The server has lost its own limit, as one that has vanished has."""
        ours, asked, ends = OwnConnections(0.1), threading.Event(), []

        def program():
            connections["default"].close()
            ours.use(["default"], "tester")
            mine = connections["default"]
            mine.ensure_connection()
            with mine.connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 0")
            asked.set()
            try:
                ask(f"SELECT pg_sleep({PATIENCE})", mine)
            except OperationalError as error:
                ends.append(error)

        thread = threading.Thread(target=elsewhere, args=[program])
        thread.start()
        assert asked.wait(PATIENCE)
        assert eventually(ours.hang_up_on_the_silent, "it is hung up on") == ["tester of 'default'"]
        thread.join(PATIENCE)
        assert len(ends) == 1
        assert ours.hang_up_on_the_silent() == []

"""What a handler does to a connection is no concern of those who come after it."""

from __future__ import annotations

import psycopg
import pytest
from django.db import DatabaseError, InterfaceError, OperationalError, connection, connections, transaction

from lab.models import Lot
from statemachine_fields.worker import connections as module
from statemachine_fields.worker.connections import Trouble, diagnose, discard, is_same, tidy_after_handler
from tests.worker.rows import elsewhere, not_mariadb, only_postgresql

pytestmark = [pytest.mark.django_db(transaction=True), not_mariadb]


def enter_atomic():
    transaction.atomic().__enter__()
    Lot.objects.create(amount=100)


def enter_atomic_twice():
    enter_atomic()
    enter_atomic()


def begin_by_hand():
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Lot.objects.create(amount=100)


def turn_autocommit_off():
    transaction.set_autocommit(False)
    Lot.objects.create(amount=100)


def close_in_transaction():
    enter_atomic()
    connection.close()


def break_transaction():
    enter_atomic()
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT nonsense FROM nowhere")


def leave_wrapper():
    def refuse(*args):
        raise AssertionError("a wrapper of somebody who is gone")

    connection.execute_wrappers.append(refuse)


def cut():
    with pytest.raises(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


LEAKS = {
    "a transaction": enter_atomic,
    "a transaction in another": enter_atomic_twice,
    "BEGIN": begin_by_hand,
    "autocommit": turn_autocommit_off,
    "a connection closed in a transaction": close_in_transaction,
    "a transaction with an error": break_transaction,
    "an execute wrapper": leave_wrapper,
}


class TestTidy:
    @pytest.mark.parametrize("leak", LEAKS)
    def test_nothing_is_left_for_those_who_come_after(self, leak):
        def program():
            connection.ensure_connection()
            LEAKS[leak]()
            tidy_after_handler()
            assert not connection.in_atomic_block
            assert connection.get_autocommit()
            Lot.objects.create(amount=7)

        elsewhere(program)
        assert [lot.amount for lot in Lot.objects.all()] == [7]

    @only_postgresql
    def test_a_connection_that_was_cut_is_replaced(self):
        def program():
            connection.ensure_connection()
            cut()
            tidy_after_handler()
            return Lot.objects.count()

        assert elsewhere(program) == 0

    def test_a_connection_that_somebody_may_have_hung_up_on_is_replaced(self):
        def program():
            before = connections["default"]
            before.ensure_connection()
            tidy_after_handler(is_suspect=True)
            return before.connection, connections["default"] is before

        assert elsewhere(program) == (None, False)

    def test_a_clean_connection_is_kept(self):
        def program():
            Lot.objects.count()
            driver = connection.connection
            tidy_after_handler()
            return connection.connection is driver

        assert elsewhere(program)

    def test_the_log_of_queries_does_not_grow(self):
        def program():
            connection.force_debug_cursor = True
            Lot.objects.count()
            before = len(connection.queries_log)
            tidy_after_handler()
            return before > 0, len(connection.queries_log)

        assert elsewhere(program) == (True, 0)

    def test_a_thread_without_a_connection_gets_none(self):
        def program():
            for alias in list(connections):
                discard(connections[alias])
            tidy_after_handler()
            return [each for each in connections.all(initialized_only=True) if each.connection is not None]

        assert elsewhere(program) == []


class TestDiscard:
    def test_undoes_what_is_open_and_gives_the_thread_another(self):
        def program():
            enter_atomic_twice()
            old = connections["default"]
            discard(old)
            discard(old)
            Lot.objects.create(amount=7)
            return old.connection, connections["default"] is old, old.in_atomic_block

        assert elsewhere(program) == (None, False, False)
        assert [lot.amount for lot in Lot.objects.all()] == [7]

    def test_runs_nothing_that_was_to_run_after_a_commit(self):
        ran = []

        def program():
            transaction.atomic().__enter__()
            transaction.on_commit(lambda: ran.append(1))
            discard(connections["default"])
            with transaction.atomic():
                Lot.objects.create()

        elsewhere(program)
        assert (ran, Lot.objects.count()) == ([], 1)


def open_anew():
    connection.close()
    connection.ensure_connection()


class TestIsSame:
    def test_a_connection_that_works_is(self):
        def program():
            connection.ensure_connection()
            return is_same(connections["default"], connection.connection)

        assert elsewhere(program)

    def test_one_that_was_never_open_is_not(self):
        assert not is_same(connection, None)

    @pytest.mark.parametrize("harm", [pytest.param(cut, marks=only_postgresql), open_anew])
    def test_one_that_was_cut_or_opened_anew_is_not(self, harm):
        def program():
            connection.ensure_connection()
            driver = connection.connection
            harm()
            return is_same(connections["default"], driver)

        assert not elsewhere(program)


@only_postgresql
class TestDiagnose:
    @pytest.fixture(autouse=True)
    def believe_nothing(self, monkeypatch):
        monkeypatch.setattr(module, "_away", {})

    @pytest.fixture
    def refuse(self, monkeypatch):
        asked = []

        class Refusing:
            def ensure_connection(self):
                error = OperationalError("connection refused")
                raise error from psycopg.OperationalError("connection refused")

            def close(self):
                pass

        monkeypatch.setattr(module, "own_connection", lambda *args: asked.append(args) or Refusing())
        return asked

    def test_a_database_that_gives_no_connection_is_away(self, refuse):
        assert elsewhere(lambda: diagnose("default")) is Trouble.AWAY

    def test_that_is_believed_for_a_while(self, refuse):
        assert [elsewhere(lambda: diagnose("default")) for _ in range(3)] == [Trouble.AWAY] * 3
        assert len(refuse) == 1

    def test_a_connection_that_was_cut_is_cut(self):
        def program():
            connection.ensure_connection()
            cut()
            return diagnose("default")

        assert elsewhere(program) is Trouble.CUT

    def test_an_error_of_the_handler_s_own_is_neither(self):
        def program():
            cursor = connection.cursor()
            cursor.close()
            with pytest.raises(InterfaceError):
                cursor.execute("SELECT 1")
            return diagnose("default")

        assert elsewhere(program) is Trouble.NONE

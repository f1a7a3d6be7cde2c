"""The proxy that other tests put between worker and server does what it says."""

from __future__ import annotations

import random
import select
import threading
import time

import psycopg
import pytest
from django.db import connection

from tests.faults.proxy import Proxy
from tests.patience import PATIENCE, eventually

#: Long enough for an answer that is on its way, on a busy machine.
A_WHILE = 0.3


@pytest.fixture
def proxy(server, database):
    with Proxy(server.directory, chance=random.Random(1)) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy):
    """A function that connects to the test's database through the proxy."""
    opened = []

    def connect(**options):
        place = {"host": str(proxy.directory), "port": proxy.port, "user": "postgres"}
        opened.append(psycopg.connect(**place, dbname=connection.settings_dict["NAME"], autocommit=True, **options))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def answers(client):
    return client.execute("SELECT 1").fetchone() == (1,)


def ask(client):
    """Send a statement and return at once."""
    client.pgconn.send_query(b"SELECT 1")
    client.pgconn.flush()


def hears_something(client, seconds=A_WHILE):
    return bool(select.select([client.pgconn.socket], [], [], seconds)[0])


def serving():
    """How many backends of the server are there, beside the test's own."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return cursor.fetchone()[0]


def test_what_is_said_is_forwarded_both_ways(connect, proxy):
    client = connect()
    assert answers(client)
    assert client.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)
    assert client.execute("SELECT length(%s)", ["x" * 1_000_000]).fetchone() == (1_000_000,)
    assert proxy.connections() == 1


def test_a_client_that_leaves_leaves_the_server_too(connect, proxy):
    connect().close()
    eventually(lambda: serving() == 0 and proxy.connections() == 0, "nobody is left")


def test_latency_counts_each_way(connect, proxy):
    client = connect()
    proxy.latency(0.1)

    def seconds():
        began = time.monotonic()
        assert answers(client)
        return time.monotonic() - began

    assert seconds() >= 0.2
    proxy.latency(0)
    assert min(seconds() for _ in range(20)) < 0.2


def test_silence_falls_on_the_connections_there_are(connect, proxy):
    old = connect()
    assert proxy.silence() == 1
    ask(old)
    assert not hears_something(old)
    assert answers(connect())
    proxy.speak()
    assert hears_something(old, PATIENCE), "what was said in the silence is forwarded in the end"


def test_in_the_silence_nobody_learns_that_the_other_has_gone(connect, proxy):
    first, second = connect(), connect()
    first.execute("BEGIN")
    first.execute("SELECT pg_advisory_xact_lock(1)")
    proxy.silence()
    first.close()
    other = connect()
    assert other.execute("SELECT pg_try_advisory_xact_lock(1)").fetchone() == (False,)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [second.info.backend_pid])
    assert not hears_something(second)
    proxy.speak()
    eventually(lambda: other.execute("SELECT pg_try_advisory_xact_lock(1)").fetchone() == (True,), "the lock is free")
    with pytest.raises(psycopg.OperationalError):
        answers(second)


def test_connections_that_fell_silent_can_be_forgotten(connect, proxy):
    connect().execute("CREATE TABLE done (n int)")
    silent = connect()
    proxy.silence()
    silent.pgconn.send_query(b"INSERT INTO done VALUES (1)")
    silent.pgconn.flush()
    other = connect()
    assert proxy.forget() == 2
    assert answers(other)
    with pytest.raises(psycopg.OperationalError):
        answers(silent)
    assert other.execute("SELECT count(*) FROM done").fetchone() == (0,), "it was not delivered"


def test_in_the_silence_of_all_new_connections_hang(connect, proxy):
    proxy.silence_all()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        connect(connect_timeout=2)
    proxy.speak()
    assert answers(connect())


def test_a_connection_that_hung_goes_on_after_the_silence(connect, proxy):
    proxy.silence_all()
    found = []
    thread = threading.Thread(target=lambda: found.append(answers(connect())))
    thread.start()
    eventually(lambda: proxy.connections() == 1, "it knocks")
    proxy.speak()
    thread.join(PATIENCE)
    assert found == [True]


def test_a_share_of_the_connections_is_cut(connect, proxy):
    clients = [connect() for _ in range(10)]
    assert proxy.cut(0.3, random.Random(1)) == 3

    def is_alive(client):
        try:
            return answers(client)
        except psycopg.OperationalError:
            return False

    assert [is_alive(client) for client in clients].count(True) == 7
    eventually(lambda: serving() == 7, "the server has noticed")
    assert proxy.cut() == 7
    assert proxy.cut() == 0
    assert proxy.cuts == 10


def test_a_lost_reply_is_one_to_what_was_done(connect, proxy):
    connect().execute("CREATE TABLE done (n int)")
    for number in range(3):
        client = connect()
        proxy.lose_replies(1, containing=b"INSERT")
        assert answers(client), "it is not what was to be lost"
        with pytest.raises(psycopg.OperationalError):
            client.execute("INSERT INTO done VALUES (%s)", [number])
        assert answers(connect())
    assert proxy.lost == 3
    assert connect().execute("SELECT array_agg(n ORDER BY n) FROM done").fetchone() == ([0, 1, 2],)


def test_the_reply_to_a_commit_can_be_lost(connect, proxy):
    connect().execute("CREATE TABLE done (n int)")
    client = connect()
    client.execute("BEGIN")
    client.execute("INSERT INTO done VALUES (1)")
    proxy.lose_replies(1)
    with pytest.raises(psycopg.OperationalError):
        client.execute("COMMIT")
    assert connect().execute("SELECT count(*) FROM done").fetchone() == (1,)


def test_replies_are_lost_by_chance_until_told_otherwise(connect, proxy):
    proxy.lose_replies(share=0.5)
    outcomes = []
    for _ in range(40):
        try:
            outcomes.append(answers(connect()))
        except psycopg.OperationalError:
            outcomes.append(False)
    assert 5 < outcomes.count(False) < 35
    assert proxy.lost == outcomes.count(False)
    proxy.lose_replies(0)
    assert all(answers(connect()) for _ in range(10))


def test_a_server_that_is_away_refuses(connect, proxy, server):
    client = connect()
    server.stop("fast")
    try:
        with pytest.raises(psycopg.OperationalError):
            answers(client)
        with pytest.raises(psycopg.OperationalError):
            connect()
    finally:
        server.start()
    assert answers(connect())


def test_a_proxy_that_is_closed_leaves_nothing(server, database):
    proxy = Proxy(server.directory)
    client = psycopg.connect(proxy.url(connection.settings_dict["NAME"]))
    proxy.close()
    with pytest.raises(psycopg.OperationalError):
        answers(client)
    client.close()
    assert not proxy.directory.exists()
    eventually(lambda: serving() == 0, "nobody is left")
    proxy.close()

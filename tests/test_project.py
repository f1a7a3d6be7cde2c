"""The project's own tools: the package, the databases that the suite runs on, and dev.py."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from django.db import connections

import statemachine_fields
from tests import database_url, postgres
from tests.settings import SMF_DB

ROOT = Path(__file__).resolve().parent.parent
VENDORS = {"postgresql": "postgresql", "sqlite": "sqlite", "mariadb": "mysql"}

only_postgresql = pytest.mark.skipif(SMF_DB != "postgresql", reason="about the PostgreSQL server")


def test_package_is_typed():
    assert Path(statemachine_fields.__file__).with_name("py.typed").exists()


def test_django_is_the_only_runtime_dependency():
    required = [line for line in metadata.requires("django-statemachine-fields") if "extra ==" not in line]

    assert [re.match(r"[\w.-]+", line).group().lower() for line in required] == ["django"]


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("alias", ["default", "other"])
def test_suite_runs_on_the_database_that_was_asked_for(alias):
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)
    assert connection.vendor == VENDORS[SMF_DB]
    assert connection.mysql_is_mariadb if SMF_DB == "mariadb" else True


def test_the_two_databases_are_two():
    assert connections["default"].settings_dict["TEST"]["NAME"] != connections["other"].settings_dict["TEST"]["NAME"]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://postgres@/postgres?host=%2Ftmp%2Fdirectory",
        "postgresql://user:p%40ss@/name?host=db.example&port=5433",
        "mysql://root@/smf?host=%2Ftmp%2Fdirectory%2Fsocket",
        "sqlite:////var/data/db.sqlite3",
    ],
)
def test_database_url_survives_the_way_to_settings_and_back(url):
    assert database_url.build(database_url.parse(url)) == url


def test_database_url_reads_the_usual_form():
    entry = database_url.parse("postgres://user:p%40ss@db.example:5433/name?sslmode=require")

    assert entry == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "name",
        "USER": "user",
        "PASSWORD": "p@ss",
        "HOST": "db.example",
        "PORT": "5433",
        "OPTIONS": {"sslmode": "require"},
    }


def test_database_url_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="not 'oracle'"):
        database_url.parse("oracle://db.example/name")


def test_named_server_is_used_and_none_is_booted(monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://user@db.example/name")
    monkeypatch.setattr(postgres, "boot", lambda: pytest.fail("booted a server although one was named"))

    assert postgres.database()["HOST"] == "db.example"


@only_postgresql
def test_killed_run_leaves_no_server_behind():
    program = "from tests import postgres; print(postgres.database()['HOST'], flush=True); input()"
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    starter = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        directory = Path(starter.stdout.readline().strip())
        postmaster = int((directory / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, 0)
        starter.send_signal(signal.SIGKILL)

    wait_until(lambda: not directory.exists() and not is_running(postmaster))


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "still not so at the deadline"
        time.sleep(0.05)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_dev_help_names_every_command():
    shown = subprocess.run(
        [sys.executable, ROOT / "dev.py", "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert all(command in shown for command in ("test", "lint", "demo", "docs"))


def test_dev_refuses_an_unknown_command():
    refused = subprocess.run([sys.executable, ROOT / "dev.py", "tset"], capture_output=True, text=True, check=False)

    assert refused.returncode == 2
    assert "tset" in refused.stderr

"""The project's own tools: the package, the databases that the suite runs on, and dev.py."""

import ast
import importlib.util
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tomllib
import venv
from contextlib import closing
from http.cookiejar import CookieJar
from importlib import metadata
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

import asgiref
import django
import pytest
import sqlparse
from django.db import connections

import statemachine_fields
from tests import database_url, postgres
from tests.patience import PATIENCE, eventually
from tests.settings import SMF_DB

ROOT = Path(__file__).resolve().parent.parent
VENDORS = {"postgresql": "postgresql", "sqlite": "sqlite", "mariadb": "mysql"}

only_postgresql = pytest.mark.skipif(SMF_DB != "postgresql", reason="about the PostgreSQL server")
only_sqlite = pytest.mark.skipif(
    SMF_DB != "sqlite", reason="the demo has its own SQLite database, so one run is enough"
)


def test_package_is_typed():
    assert Path(statemachine_fields.__file__).with_name("py.typed").exists()


def test_django_is_the_only_runtime_dependency():
    required = [line for line in metadata.requires("django-statemachine-fields") if "extra ==" not in line]

    assert [re.match(r"[\w.-]+", line).group().lower() for line in required] == ["django"]


@only_sqlite
def test_rows_move_without_a_driver_of_postgresql():
    program = """
import sys
sys.modules.update(psycopg=None, psycopg2=None)
import django
from django.conf import settings
settings.DATABASES["default"]["NAME"] = ":memory:"
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from shop.models import Order
from statemachine_fields.testing import drain
order = Order.objects.create(customer="Ada", total=25)
order.states.deliver("paid", {"amount": "25"})
drain(Order)
print(order.states.history.last().to_status)
"""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings", "PYTHONPATH": str(ROOT / "testproject")}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (ran.stdout, ran.stderr) == ("PAID\n", "")


def test_every_pair_of_the_matrix_can_drive_a_browser():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert any(line.startswith("playwright") for line in extras["test"])  # without it, tests/browser is skipped there


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


def test_tests_touch_no_session_of_another_database():
    """Processes of one run share the server. One that ends all listeners would end those of its neighbours' tests."""
    questions = [
        (path.name, node.value)
        for path in Path(__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and re.search(r"\bFROM pg_stat_activity", str(node.value))
    ]
    wide = [found for found in questions if not re.search(r"datname = current_database\(\)|\bpid = ", found[1])]
    assert len(questions) > 5
    assert wide == []


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

    eventually(lambda: not directory.exists() and not is_running(postmaster))


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


@pytest.fixture
def dev(monkeypatch, tmp_path):
    """dev.py, as if it stood in an empty directory, with the commands that it ran."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    dev.ran = []

    def run(command, **options):
        dev.ran.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, returncode=0, stdout="")

    def execute(path, command):
        dev.ran.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setattr(dev.os, "execv", execute)
    monkeypatch.setattr(dev.os, "chdir", lambda path: None)
    for name in ("DEVELOPMENT", "DEMO"):
        directory = tmp_path / getattr(dev, name).name
        directory.mkdir()
        monkeypatch.setattr(dev, name, directory)
    return dev


@pytest.mark.skipif(os.name == "nt", reason="there the demo is a child")
def test_dev_installs_django_alone_for_the_demo(dev):
    with pytest.raises(SystemExit):
        dev.demo(["--orders", "20"])

    installs = [command for command in dev.ran if "install" in command]
    assert [command[-1] for command in installs] == [str(ROOT)]  # and no extra
    assert installs[0][0].startswith(str(dev.DEMO))
    assert dev.ran[-1] == [installs[0][0], "manage.py", "demo", "--orders", "20"]
    assert not any(dev.DEVELOPMENT.iterdir())

    del dev.ran[:]
    with pytest.raises(SystemExit):
        dev.demo([])
    assert not any("install" in command for command in dev.ran), "it was installed already"


@pytest.fixture(scope="session")
def django_alone(tmp_path_factory):
    """The Python of an environment that has Django, what Django needs, and this project; and nothing else."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory / "venv", with_pip=False, symlinks=os.name != "nt")
    packages = directory / "packages"
    packages.mkdir()
    for package in (django, asgiref, sqlparse, statemachine_fields):
        (packages / package.__name__).symlink_to(Path(package.__file__).parent, target_is_directory=True)
    site = next((directory / "venv").rglob("site-packages"))
    (site / "packages.pth").write_text(str(packages))
    return directory / "venv" / "bin" / "python"


class Demo:
    """`manage.py demo` as somebody would run it, on a database of its own."""

    def __init__(self, python, directory, *arguments):
        settings = (
            f"from config.settings import *\nDATABASES['default']['NAME'] = {str(directory / 'demo.sqlite3')!r}\n"
        )
        (directory / "demo_settings.py").write_text(settings)
        environment = {**os.environ, "PYTHONPATH": str(directory), "DJANGO_SETTINGS_MODULE": "demo_settings"}
        self.database = directory / "demo.sqlite3"
        self.output = directory / "output"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [python, "-u", "manage.py", "demo", "--orders", "20", *arguments],
                cwd=ROOT / "testproject",
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self):
        return self.output.read_text()

    def workers(self):
        """The processes of its worker, by what the worker says."""
        return {int(pid) for pid in re.findall(r"(?:INFO|WARNING|ERROR) \[(\d+)\]", self.said())}

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE)


@pytest.fixture
def start_demo(tmp_path, django_alone):
    demos = []

    def start(*arguments):
        demos.append(Demo(django_alone, tmp_path, *arguments))
        return demos[-1]

    yield start
    for demo in demos:
        if demo.process.poll() is None:
            demo.process.kill()
        for pid in filter(is_running, demo.workers()):
            os.kill(pid, signal.SIGKILL)


@only_sqlite
def test_demo_shows_orders_that_move_and_ends(start_demo):
    demo = start_demo("--no-serve", "--run-for", "9")

    assert demo.process.wait(timeout=PATIENCE) == 0, demo.said()
    said = demo.said()
    assert "Made 20 orders of the last 4 weeks" in said
    assert "The history of Order" in said
    assert "Traceback" not in said
    assert re.search(r"^worker │ [\d:]+ INFO .* 0 processes · [\d,]+ moved", said, re.MULTILINE)
    assert "What the worker did" in said
    assert len(demo.workers()) > 0
    assert not any(map(is_running, demo.workers()))


@only_sqlite
def test_demo_goes_on_where_it_was_and_does_not_grow(start_demo):
    first = start_demo("--no-serve", "--run-for", "1")
    assert first.process.wait(timeout=PATIENCE) == 0, first.said()
    again = start_demo("--no-serve", "--run-for", "1")
    assert again.process.wait(timeout=PATIENCE) == 0, again.said()

    assert re.search(
        r"^Found 20 orders, the last of which moved .* ago: \d+ on their way, \d+ done\.$", again.said(), re.MULTILINE
    )
    assert "Made" not in again.said()
    with closing(sqlite3.connect(again.database)) as database:
        assert database.execute("SELECT count(*) FROM shop_order").fetchone() == (20,)

    smaller = start_demo("--no-serve", "--run-for", "1", "--fresh", "--orders", "8")
    assert smaller.process.wait(timeout=PATIENCE) == 0, smaller.said()
    assert "Made 8 orders" in smaller.said()


@only_sqlite
def test_demo_serves_an_admin_in_which_orders_move(start_demo):
    demo = start_demo("--port", "0")
    eventually(lambda: "1 process" in demo.said())
    visitor = Visitor(re.search(r"http://127\.0\.0\.1:\d+", demo.said())[0])
    visitor.log_in()
    before = visitor.statuses()
    assert len(before) == 20

    eventually(lambda: not visitor.statuses().keys() <= before.keys())  # new orders come in
    ordered = {**visitor.statuses()}

    def has_one_moved():
        return any(ordered.get(order, status) != status for order, status in visitor.statuses().items())

    eventually(has_one_moved)  # customers pay when they like
    eventually(lambda: "shop.Order.states" in visitor.get("/admin/statemachine_worker/runstatistics/"))

    assert demo.end() == 0
    assert "What the worker did" in demo.said()
    assert "Traceback" not in demo.said()
    assert "GET" not in demo.said()  # requests would drown what the worker says


@only_sqlite
def test_demo_says_that_its_port_is_taken(start_demo):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = start_demo("--port", str(port), "--run-for", "1")
        assert demo.process.wait(timeout=PATIENCE) == 0, demo.said()

    assert f"Something listens on port {port} already, so this is another one." in demo.said()
    assert re.findall(r"http://127\.0\.0\.1:(\d+)", demo.said())[0] != str(port)


@only_sqlite
def test_demo_shows_requests_if_asked_to_apart_from_what_the_worker_says(start_demo):
    demo = start_demo("--port", "0", "-v", "2")
    eventually(lambda: "1 process" in demo.said())
    visitor = Visitor(re.search(r"http://127\.0\.0\.1:\d+", demo.said())[0])
    visitor.log_in()

    assert demo.end() == 0
    said = demo.said().split("Below is what the worker, the bank and the carriers say.")[1]
    said = said.split("Where everything is now")[0]
    assert re.search(r'^web    │ [\d:]+ "GET /admin/login/', said, re.MULTILINE)
    assert all(re.match("(worker|web   |bank  |DHL   |GLS   |UPS   ) │ ", line) for line in said.splitlines() if line)


@only_sqlite
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_demo_leaves_no_process_behind(start_demo, number):
    demo = start_demo("--port", "0")
    eventually(lambda: "1 process" in demo.said())

    assert demo.end(number) == 0
    assert "The worker stops" in demo.said()
    assert not any(map(is_running, demo.workers()))


@only_sqlite
def test_demo_ends_when_its_time_is_over(start_demo):
    demo = start_demo("--port", "0", "--run-for", "2")

    assert demo.process.wait(timeout=PATIENCE) == 0
    assert "What the worker did" in demo.said()


class Visitor:
    """A browser, logged in to the admin."""

    def __init__(self, address):
        self.address = address
        self.cookies = CookieJar()
        self.opener = build_opener(HTTPCookieProcessor(self.cookies))

    def get(self, path, **data):
        body = urlencode(data).encode() if data else None
        with self.opener.open(self.address + path, body, timeout=PATIENCE) as page:
            return page.read().decode()

    def log_in(self):
        eventually(self.is_answered)
        token = next(cookie.value for cookie in self.cookies if cookie.name == "csrftoken")
        page = self.get("/admin/login/", username="admin", password="admin", csrfmiddlewaretoken=token, next="/admin/")
        assert "Site administration" in page

    def is_answered(self):
        try:
            return bool(self.get("/admin/login/"))
        except OSError:
            return False

    def statuses(self):
        """The status of every order on the first page, by its number."""
        page = self.get("/admin/shop/order/")
        return {
            int(number): status
            for number, status in re.findall(
                r'field-id"><a [^>]*>(\d+)</a>.*?field-status"><span [^>]*>([^<]+)<', page, re.DOTALL
            )
        }

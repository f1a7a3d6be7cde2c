"""The only reader of `django.conf.settings`: one dict, `STATEMACHINE_FIELDS`, whose keys describe a deployment."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver

NAME = "STATEMACHINE_FIELDS"


@dataclass(frozen=True, slots=True)
class Settings:
    """The keys of the dict, with their defaults."""

    #: Whether PostgreSQL prepares our statements. "auto": unless the database's options show a transaction pooler
    #: (`DISABLE_SERVER_SIDE_CURSORS`) or set `prepare_threshold` themselves.
    PREPARE: bool | Literal["auto"] = "auto"
    #: The request header whose value the middleware records as `request_id`.
    REQUEST_ID_HEADER: str = "X-Request-ID"
    #: How long a worker holds a row without extending its lease: how soon another takes over after it died. A statement on
    #: the worker's own connections may take a sixth of it.
    LEASE_SECONDS: float = 60.0
    #: How often an idle worker looks for due rows by itself.
    POLL_SECONDS: float = 1.0
    #: Whether who makes a row due wakes workers that wait for one, and whether workers listen for that. On PostgreSQL only.
    WAKE_UPS: bool = True
    #: How many rows a worker takes at once, at most.
    BATCH_SIZE: int = 1000
    #: How long a handler may run where its state says nothing; None for as long as it likes.
    TIME_LIMIT_SECONDS: float | None = 300.0
    #: How many workers may die of a row before it is moved to `error_to`, or parked.
    MAX_CRASHES: int = 5
    #: How long a stopping worker waits for running handlers before it gives their rows back.
    STOP_SECONDS: float = 30.0
    #: How long run statistics are kept.
    STATISTICS_DAYS: int = 30


#: What was read; None until somebody asks, and again when a test overrides it.
current: Settings | None = None


def settings() -> Settings:
    """Return what the project set, read once."""
    global current  # noqa: PLW0603
    if current is None:
        current = _read(getattr(django_settings, NAME, {}))
    return current


def _read(given: Any) -> Settings:
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"{NAME} must be a dict, got {type(given).__name__}.")
    known = [field.name for field in fields(Settings)]
    for key in given:
        if key not in known:
            guess = get_close_matches(str(key), known, n=1)
            hint = f"Did you mean {guess[0]!r}?" if guess else f"It takes: {', '.join(known)}."
            raise ImproperlyConfigured(f"{NAME} has no key {key!r}. {hint}")
    read = Settings(**given)
    if read.PREPARE not in (True, False, "auto"):
        raise ImproperlyConfigured(f"{NAME}['PREPARE'] must be True, False or 'auto', got {read.PREPARE!r}.")
    if not isinstance(read.WAKE_UPS, bool):
        raise ImproperlyConfigured(f"{NAME}['WAKE_UPS'] must be True or False, got {read.WAKE_UPS!r}.")
    for key in ("LEASE_SECONDS", "POLL_SECONDS", "BATCH_SIZE", "MAX_CRASHES", "STOP_SECONDS", "STATISTICS_DAYS"):
        _refuse_unless_positive(key, getattr(read, key))
    if read.TIME_LIMIT_SECONDS is not None:
        _refuse_unless_positive("TIME_LIMIT_SECONDS", read.TIME_LIMIT_SECONDS)
    return read


def _refuse_unless_positive(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ImproperlyConfigured(f"{NAME}[{key!r}] must be a number above 0, got {value!r}.")


@receiver(setting_changed, dispatch_uid=NAME)
def _forget(*, setting: str, **kwargs: Any) -> None:
    global current  # noqa: PLW0603
    if setting == NAME:
        current = None

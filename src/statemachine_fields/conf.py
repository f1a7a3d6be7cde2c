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


_current: Settings | None = None


def settings() -> Settings:
    """Return what the project set, read once."""
    global _current  # noqa: PLW0603 - read once, and again when a test overrides it
    if _current is None:
        _current = _read(getattr(django_settings, NAME, {}))
    return _current


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
    return read


@receiver(setting_changed, dispatch_uid=NAME)
def _forget(*, setting: str, **kwargs: Any) -> None:
    global _current  # noqa: PLW0603
    if setting == NAME:
        _current = None

"""Times, durations and facts in words."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

MINUTE = dt.timedelta(minutes=1)


def local(time: dt.datetime) -> dt.datetime:
    return timezone.localtime(time) if timezone.is_aware(time) else time


def exact(time: dt.datetime) -> str:
    """Return an instant to the second, in the reader's time zone."""
    return f"{local(time):%Y-%m-%d %H:%M:%S}"


def time_tag(time: dt.datetime, text: str = "") -> str:
    """Return an instant as HTML: in words if there are some, and exactly to those who point at it or whose reader asks."""
    moment = local(time)
    full = f"{moment:%Y-%m-%d %H:%M:%S %Z}".strip()
    shown = text or date_format(moment, "DATETIME_FORMAT")
    return format_html('<time datetime="{}" title="{}" dir="auto">{}</time>', moment.isoformat(), full, shown)


def day(time: dt.datetime) -> str:
    """Return a day as people write it, with its year if that is another one."""
    moment = local(time)
    this_year = local(timezone.now()).year == moment.year
    return date_format(moment, "MONTH_DAY_FORMAT" if this_year else "DATE_FORMAT")


def in_words(duration: dt.timedelta) -> str:
    """Return how long something took: in its two largest units, in seconds below a minute."""
    if duration >= MINUTE:
        start = dt.datetime(2001, 1, 1)  # noqa: DTZ001 - any day does
        return timesince(start, start + duration)
    seconds = max(duration.total_seconds(), 0.0)
    if seconds < 1:
        return _("%(number)d ms") % {"number": round(seconds * 1000)}
    whole = int(seconds)
    return ngettext("%(number)d second", "%(number)d seconds", whole) % {"number": whole}


def since(time: dt.datetime) -> dt.timedelta:
    """Return how long ago an instant was, never less than nothing: two clocks may differ."""
    return max(timezone.now() - time, dt.timedelta(0))


def as_json(value: Any, indent: int | None = None) -> str:
    return as_text(json.dumps(value, ensure_ascii=False, indent=indent))


def as_text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # JSON may hold half a surrogate pair, a page may not


def who(actor: Any) -> str:
    """Return the name of whom a record says that they moved the row: see `transition_context()`."""
    if isinstance(actor, dict) and "text" in actor:
        return as_text(str(actor["text"]))
    return as_text(actor) if isinstance(actor, str) else as_json(actor)

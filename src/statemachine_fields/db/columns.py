"""The columns of a machine, by the feature that brings them: the one list of them. Names of migrations depend on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import models

#: What every machine has, and what its features add, in the order of the table. Each is named after the status column.
FEATURES: dict[str, tuple[str, ...]] = {
    "machine": ("status", "sequence", "changed_at"),
    "schedule": (
        "next_at",
        "next_at_pinned",
        "lease_owner",
        "lease_expires_at",
        "lease_token",
        "claimed_at",
        "attempts",
        "failures",
        "crashes",
        "error",
    ),
    "inbox": ("inbox",),
    "cancels": ("cancels",),
}

#: Those that are times. First the one that may be computed from others, as some databases set one column after the other.
TIMES = ("next_at", "changed_at", "lease_expires_at", "claimed_at")

#: What a column holds of which nothing is to be said: what a new row has.
EMPTY: dict[str, Any] = {
    "next_at": None,
    "next_at_pinned": False,
    "lease_owner": "",
    "lease_expires_at": None,
    "lease_token": 0,
    "claimed_at": None,
    "attempts": 0,
    "failures": 0,
    "crashes": 0,
    "error": "",
    "inbox": 0,
    "cancels": 0,
}

#: The field names for which `<Model>StateTransition` says enough.
PLAIN_FIELDS = ("status", "state")


class Names:
    """The names that follow from the name of the status column.

    `status` gives `status_sequence` and `OrderStateTransition`; `payment_status` gives `payment_sequence` and
    `OrderPaymentStateTransition`; `phase` gives `phase_sequence` and `OrderPhaseStateTransition`. Each column has an
    attribute here, also those of features that the machine does not have.
    """

    def __init__(self, status: str) -> None:
        endings = [f"_{plain}" for plain in PLAIN_FIELDS if status.endswith(f"_{plain}")]
        self.prefix = status.removesuffix(endings[0]) if endings else status
        self.reverse_accessor = f"{status}_transitions"
        self.tries_accessor = f"{status}_tries"  # `<prefix>_attempts` counts them
        self.event_accessor = f"{status}_events"
        self._by_feature: dict[str, tuple[str, ...]] = {}
        for feature, columns in FEATURES.items():
            named = {column: status if column == "status" else f"{self.prefix}_{column}" for column in columns}
            vars(self).update(named)
            self._by_feature[feature] = tuple(named.values())

    if TYPE_CHECKING:

        def __getattr__(self, column: str) -> str: ...

    def of(self, features: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of some features, in the order of the table."""
        return tuple(name for feature in features for name in self._by_feature[feature])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that every machine has."""
        return self._by_feature["machine"]

    @property
    def schedule(self) -> tuple[str, ...]:
        """The columns that a timed machine has besides."""
        return self._by_feature["schedule"]

    def audit_model(self, model_name: str) -> str:
        return self._model(model_name, "StateTransition")

    def attempt_model(self, model_name: str) -> str:
        return self._model(model_name, "StateAttempt")

    def event_model(self, model_name: str) -> str:
        return self._model(model_name, "StateEvent")

    def _model(self, model_name: str, kind: str) -> str:
        """Return the name of a model that belongs to the machine."""
        if self.status in PLAIN_FIELDS:
            return f"{model_name}{kind}"
        words = "".join(word.capitalize() for word in self.prefix.split("_"))
        return f"{model_name}{words}{kind}"


@dataclass(frozen=True, slots=True)
class RowColumn:
    """A column of the model's own by which its rows are claimed: their queue, or their priority."""

    name: str
    #: What counts for a row that has NULL there; nothing, and no question, where it cannot.
    empty: str | None

    def as_sql(self, quote: Callable[[str], str]) -> str:
        """Return what an index has of it."""
        return quote(self.name) if self.empty is None else f"COALESCE({quote(self.name)}, {self.empty})"


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The names, in the database, of a machine's columns and of its further tables."""

    name: str
    key: str
    audit: str
    #: By what each is to the machine: those of its features, and no other.
    columns: Mapping[str, str]
    key_field: models.Field[Any, Any]
    id_field: models.Field[Any, Any]
    time_field: models.Field[Any, Any]
    #: What rows say themselves about who serves them, and how soon.
    queue: RowColumn | None = None
    priority: RowColumn | None = None
    #: The table of tries, of a machine that keeps them.
    tries: str | None = None
    #: Of a machine that has an inbox.
    events: str = ""
    #: The states that a row does not leave without a trace in `cancels`.
    cancelling: tuple[str, ...] = ()

    @property
    def is_timed(self) -> bool:
        return "next_at" in self.columns

    @property
    def has_inbox(self) -> bool:
        return "inbox" in self.columns

    def quoted(self, connection: Any) -> dict[str, str]:
        """Return all names as SQL writes them, for the texts of statements."""
        quote = connection.ops.quote_name
        names = {"name": self.name, "key": self.key, "audit": self.audit, **self.columns}
        if self.tries is not None:
            names["tries"] = self.tries
        if self.events:
            names["events"] = self.events
        quoted = {what: quote(name) for what, name in names.items()}
        if self.cancelling:
            quoted["cancelling"] = ", ".join(map(_literal, self.cancelling))
        return quoted

    def quoted_own(self, connection: Any) -> dict[str, str]:
        """Return how the columns of the row's own are written."""
        own = {"queue": self.queue, "priority": self.priority}
        return {what: each.as_sql(connection.ops.quote_name) for what, each in own.items() if each is not None}


def _literal(state: str) -> str:
    """Return a state as SQL writes it in a text that takes parameters."""
    return "'" + state.replace("'", "''").replace("%", "%%") + "'"

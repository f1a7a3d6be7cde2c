"""What a handler may answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import models

from statemachine_fields.schedule.policy import Seconds, plain, seconds_of


def _refuse_no_mapping(update: object) -> None:
    if update is not None and not isinstance(update, Mapping):
        raise TypeError(f"update must be a dictionary of values by the names of fields, got {update!r}.")


@dataclass(frozen=True, slots=True)
class Move:
    """Move the row to another state.

    :param update: values for other fields of the row, written with the move.
    :param metadata: facts to keep with the record of the move.
    :param after: how long the handler of the new state has to wait, instead of its `start_after`.
    :param take: those of `ctx.events` that the move takes, if not all. The others stay, for a state that waits for them.
    """

    state: str
    update: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    after: Seconds | None = None
    take: Collection[Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.state, str):
            raise TypeError(f"Move needs the name of a state, got {self.state!r}.")
        object.__setattr__(self, "state", plain(self.state))
        seconds_of(self.after, "after")
        _refuse_no_mapping(self.update)


@dataclass(frozen=True, slots=True, init=False)
class Spawn(Move):
    """Move the row and make children of it, all or nothing: neither is there without the other.

    The children are new instances of models that have a state machine, in the database of the row. They are made in the transaction
    of the move, in few statements however many there are; those with a `save()` or receivers of their own are saved one by one.
    What else it says is as of a `Move`.
    """

    children: tuple[models.Model, ...] = ()

    def __init__(
        self,
        state: str,
        children: Iterable[models.Model],
        *,
        update: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        after: Seconds | None = None,
        take: Collection[Any] | None = None,
    ) -> None:
        Move.__init__(self, state, update, metadata, after, take)
        if isinstance(children, models.Model) or not isinstance(children, Iterable):
            raise TypeError(f"Spawn needs a list of the children to make, got {children!r}.")
        made = tuple(children)
        for child in made:
            if not isinstance(child, models.Model):
                raise TypeError(f"Spawn makes instances of models, got {child!r}.")
        if len({id(child) for child in made}) < len(made):
            raise ValueError("Spawn was given the same instance twice, and each is a row of its own.")
        object.__setattr__(self, "children", made)


@dataclass(frozen=True, slots=True)
class Retry:
    """Count a failure and try again: after a while of the handler's choosing, or as the policy says.

    :param error: what went wrong, as a text or an exception, kept on the row.
    :param update: values for other fields of the row, written with what becomes of the try: also if it was the last one, and
        the policy moves or parks the row.
    """

    after: Seconds | None = None
    error: str | BaseException = ""
    update: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        seconds_of(self.after, "after")
        if not isinstance(self.error, str | BaseException):
            raise TypeError(f"error must be a text or an exception, got {self.error!r}.")
        _refuse_no_mapping(self.update)


@dataclass(frozen=True, slots=True)
class Park:
    """Take the row out of the clock, at once, until somebody calls `resume()` or moves it. Counts no failure.

    :param reason: why, as a text or an exception, kept on the row.
    """

    reason: str | BaseException

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str | BaseException):
            raise TypeError(f"reason must be a text or an exception, got {self.reason!r}.")
        if isinstance(self.reason, str) and not self.reason.strip():
            raise ValueError("Park needs a reason: it is what tells a parked row from one of which nothing is due.")


class TryAgainLater(Exception):
    """Raised by a handler that cannot tell yet, from however deep. As quiet as returning None.

    :param after: how long to wait, instead of `retry_after`.
    """

    #: Also of a subclass whose `__init__()` does not call this one.
    after: Seconds | None = None

    def __init__(self, *args: object, after: Seconds | None = None) -> None:
        super().__init__(*args)
        seconds_of(after, "after")
        self.after = after

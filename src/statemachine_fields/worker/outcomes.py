"""What a handler may answer, and what that comes to. Pure Python."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statemachine_fields.schedule.policy import Seconds, plain, seconds_of

if TYPE_CHECKING:
    from statemachine_fields.worker.lease import Lease


@dataclass(frozen=True, slots=True)
class Move:
    """Move the row to another state.

    :param update: values for other fields of the row, written with the move.
    :param metadata: facts to keep with the record of the move.
    :param after: how long the handler of the new state has to wait, instead of its `start_after`.
    """

    state: str
    update: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    after: Seconds | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.state, str):
            raise TypeError(f"Move needs the name of a state, got {self.state!r}.")
        object.__setattr__(self, "state", plain(self.state))
        seconds_of(self.after, "after")


@dataclass(frozen=True, slots=True)
class Retry:
    """Count a failure and try again: after a while of the handler's choosing, or as the policy says.

    :param error: what went wrong, as a text or an exception, kept on the row.
    """

    after: Seconds | None = None
    error: str | BaseException = ""

    def __post_init__(self) -> None:
        seconds_of(self.after, "after")
        if not isinstance(self.error, str | BaseException):
            raise TypeError(f"error must be a text or an exception, got {self.error!r}.")


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


class Kind(enum.StrEnum):
    """What becomes of a leased row. Also the names of the counts."""

    MOVED = "moved"
    #: Not yet: it is asked again.
    WAITED = "waited"
    FAILED = "failed"
    PARKED = "parked"
    #: Given back as it was.
    RELEASED = "released"
    DELETED = "deleted"
    #: Its handler moved it already.
    SETTLED_ITSELF = "settled_itself"
    #: The outcome came too late.
    DROPPED = "dropped"
    #: An atomic handler met somebody else's lock or change, and was undone. Never written: it is run again.
    CONFLICT = "conflict"


@dataclass(slots=True)
class Verdict:
    """What is to be written of one leased row."""

    lease: Lease
    kind: Kind
    #: In how many seconds the row is due; with None only its horizon counts.
    delay: float | None = None
    failures: int = 0
    error: str = ""
    exception: BaseException | None = None
    #: Of a move.
    to_status: str = ""
    update: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    written_metadata: str = "{}"
    record_id: uuid.UUID | None = None
    #: What this one stands for, which the database would not have.
    instead_of: Verdict | None = None
    #: Whether the policy wants the move, not the handler.
    is_by_policy: bool = False
    #: Whether it was sent before, over a connection that broke: it may have been written.
    is_repeated: bool = False
    #: Whether it is known what became of it.
    is_told: bool = False
    #: How often it could not be written, and when to try again, by the monotonic clock.
    tries: int = 0
    again_at: float = 0.0

    @property
    def words(self) -> str:
        """The verdict, for people."""
        return f"move to {self.to_status!r}" if self.kind is Kind.MOVED else _WORDS[self.kind]


_WORDS = {
    Kind.WAITED: "not yet",
    Kind.FAILED: "failure",
    Kind.PARKED: "parking",
    Kind.RELEASED: "release",
    Kind.DELETED: "deletion",
    Kind.SETTLED_ITSELF: "move of its own",
    Kind.DROPPED: "outcome",
    Kind.CONFLICT: "conflict",
}

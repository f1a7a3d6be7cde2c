"""What is kept of tries: of one that did not move its row, all that is known; of one that did, in the record of the move, which
try it was, whose, and how long it took."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from statemachine_fields.worker.errors import cleaned

if TYPE_CHECKING:
    from statemachine_fields.worker.outcomes import RowOutcome, Transitioned

#: How much of a traceback is kept: its end, where the error is.
LONGEST_TRACEBACK = 16_000

#: The key in the metadata of a worker's move under which it says which try it was.
TRY = "try"


def tries_of(outcomes: Sequence[RowOutcome]) -> dict[str, list[Any]]:
    """Return what is kept of the tries of rows, in lists, as `db.tries` wants it: times as seconds ago."""
    now = time.monotonic()
    started = [None if each.lease.started_at is None else now - each.lease.started_at for each in outcomes]
    return {
        "started": started,
        "ended": [
            0.0 if began is None else max(began - each.lease.seconds, 0.0)
            for began, each in zip(started, outcomes, strict=True)
        ],
        "outcome": [came_to(each) for each in outcomes],
        "traceback": [traceback_of(each.exception) for each in outcomes],
    }


def came_to(outcome: RowOutcome) -> str | None:
    """Return what is kept as having come of a try; None if nothing did, and no handler was run."""
    if outcome.is_recorded:  # by the policy, because it failed
        return "failed"
    return outcome.kind if outcome.is_news or outcome.lease.started_at is not None else None


def is_failed_try(outcome: Transitioned) -> bool:
    """Say whether it is the policy that moves the row, because a handler was run and failed, and that is to be kept."""
    lease = outcome.lease
    is_failed = outcome.is_by_policy and bool(outcome.error) and lease.started_at is not None
    return is_failed and lease.lane.bound.records_attempts


def signed(outcome: Transitioned) -> str:
    """Return the metadata of a move, as JSON, with which try made it. What the handler says under that name wins."""
    lease, text = outcome.lease, outcome.written_metadata
    if outcome.metadata and TRY in outcome.metadata:
        return text
    facts = {"number": lease.number, "worker": lease.owner, "seconds": round(lease.seconds, 6)}
    rest = "" if text == "{}" else f", {text[1:-1]}"
    return f'{{"{TRY}": {json.dumps(facts)}{rest}}}'


def traceback_of(error: BaseException | None) -> str:
    """Return the end of a traceback as a text column can keep it; nothing if there is none, or if it cannot be told."""
    if error is None or error.__traceback__ is None:
        return ""
    try:
        text = "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # noqa: BLE001 - in the words of an exception of the user's
        return ""
    text = cleaned(text)
    return text if len(text) <= LONGEST_TRACEBACK else f"…{text[1 - LONGEST_TRACEBACK :]}"

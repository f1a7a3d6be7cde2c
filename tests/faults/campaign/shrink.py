"""Find the smallest set of harms that still breaks an invariant: delta debugging over their kinds."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.faults.campaign.run import Report

#: How long to look for it.
WITHIN = 600.0

#: How long harm is done in each try, at most: long enough for each kind to be done a few times.
SECONDS = 15.0

#: How much longer than a lease and a poll each try waits for calm.
MARGIN = 15.0


def shrink(
    report: Report, repeat: Callable[[float, list[str]], Report], say: Callable[[str], None], within: float = WITHIN
) -> Report:
    """Repeat a campaign with ever fewer kinds of harm, and return the report of the smallest that still fails the same way.

    One of the invariants that broke has to break again. What fails by chance only may be lost on the way: then the report
    is that of the last that did fail.
    """
    deadline = time.monotonic() + within
    wanted = {*report.codes}
    smallest, parts = report, 2
    while len(smallest.kinds) > 1 and time.monotonic() < deadline:
        kinds = smallest.kinds
        for subset in _subsets(kinds, parts):
            if time.monotonic() > deadline:
                break
            again = repeat(min(report.seconds, SECONDS), subset)
            fails = bool(wanted & {*again.codes})
            say(
                f"{'fails' if fails else 'holds'} with {', '.join(subset)}{': ' + ', '.join(again.codes) if fails else ''}"
            )
            if fails:
                smallest, parts = again, 2
                break
        else:
            if parts >= len(kinds):
                break
            parts = min(len(kinds), parts * 2)
    return smallest


def _subsets(kinds: list[str], parts: int) -> list[list[str]]:
    """Cut a list into parts, and return the parts and then what is left without each."""
    size = -(-len(kinds) // parts)
    cut = [kinds[start : start + size] for start in range(0, len(kinds), size)]
    rests = [[kind for kind in kinds if kind not in part] for part in cut] if len(cut) > 2 else []
    return [*cut, *rests]

"""The worker: leases rows of timed machines, runs their handlers and moves them on. An app of its own.

This module holds what handlers use, and may be imported from models.
"""

from __future__ import annotations

from statemachine_fields.exceptions import LeaseLost
from statemachine_fields.schedule.children import ChildCounts
from statemachine_fields.worker.answers import Move, Park, Retry, Spawn, TryAgainLater
from statemachine_fields.worker.handler_context import HandlerContext

__all__ = ["ChildCounts", "HandlerContext", "LeaseLost", "Move", "Park", "Retry", "Spawn", "TryAgainLater"]

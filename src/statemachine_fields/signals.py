"""Every signal. The sender is the model class that has the machine's columns, also for its proxies and children.

All carry `machine` (the `BoundMachine`), `instance`, `from_status`, `to_status`, `metadata` and `using`.
"""

from __future__ import annotations

from django.dispatch import Signal

#: Sent inside the transaction, after the row is locked and judged and before anything is written. A receiver may veto
#: the move by raising, which undoes nothing because nothing was done.
pre_transition = Signal()

#: Sent inside the transaction that moved the row, after the audit row is written. A receiver that raises undoes both.
#: Further argument: `transition` (the audit row).
post_transition = Signal()

#: Sent after the transaction that moved the row has been committed; never for a move that was rolled back. The move
#: stands whatever a receiver does: errors are logged.
#: Further argument: `transition` (the audit row).
transition_committed = Signal()

#: Sent when a move was refused, before the error is raised; errors of receivers are logged. Nothing was written.
#: Further argument: `error` (the `StateMachineError`).
transition_rejected = Signal()

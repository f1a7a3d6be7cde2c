"""Every signal. The sender is the model class that has the machine's columns, also for its proxies and children.

Those that tell of moves carry `machine` (the `BoundMachine`), `instance`, `from_status`, `to_status`, `metadata` and `using`.
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

# What workers tell. The sender is the model class; all carry `machine` and `using`. Errors of receivers are logged.

#: Sent when a worker has taken rows, and when rows that it has go on in another state. Further arguments: `keys`, `owner`.
leases_claimed = Signal()

#: Sent when a worker has taken a row that another held and said nothing of. Further arguments: `instance`, `crashes`
#: (how often that happened in this state), `error` (from whom it was taken).
lease_recovered = Signal()

#: Sent when a try has failed and that is written on the row. Further arguments: `instance`, `error`, `failures`,
#: `exception` (None for a `Retry` with a text, or if the handler was stopped).
handler_failed = Signal()

#: Sent when a row was taken out of the clock. Further arguments: `instance`, `error`.
row_parked = Signal()

#: Sent when an outcome came too late and was dropped. Further arguments: `instance`, `outcome` (in words).
outcome_dropped = Signal()

#: Sent when rows were deleted because their time was up. Further arguments: `keys`, `state`.
rows_deleted = Signal()

"""`StateMachineAdminMixin`, put together.

Each base is one part of what people see. It overrides what Django's `ModelAdmin` has for it, calls `super()`, and calls no
other part; Python asks them in this order:

    MachineColumns    the status as a badge and the schedule in words, wherever a list or a form names their columns
    MachineLists      the graph above the list, with how many rows are in each state
    BulkTransitions   "Move to …" for the rows that are selected, and the page that asks before it
    Schedules         run now, release and resume: on the page of a row, and for the rows that are selected
    DeliveryPages     events that people deliver to a row
    RowPages          the machines on the page of a row, with its buttons, and its story
    TransitionPages   what a button leads to: a question, a form, or the move
    MachinePage       how long rows stay, which moves they make, which are stuck

What they share, `MachineAdmin`, is their base in turn (`base`), and how states, times and facts look is in `display`; what rows wait for, in `waiting`. Imports
run from here to there. Records have an admin of their own (`records`), as have tries
and events (`tries`, `events`).
"""

from __future__ import annotations

from statemachine_fields.admin.bulk import BulkTransitions
from statemachine_fields.admin.changelist import MachineColumns, MachineLists
from statemachine_fields.admin.delivery import DeliveryPages
from statemachine_fields.admin.machine_page import MachinePage
from statemachine_fields.admin.row_page import RowPages
from statemachine_fields.admin.schedule import Schedules
from statemachine_fields.admin.transition import TransitionPages


class StateMachineAdminMixin(
    MachineColumns, MachineLists, BulkTransitions, Schedules, DeliveryPages, RowPages, TransitionPages, MachinePage
):
    """Put before `ModelAdmin`: badges, buttons for moves, a bulk action, the story of a row, and the graph.

    Who may change a row may move it, as far as the permissions of the transitions allow; who may only view it sees all and
    moves nothing. Every move is made by POST, compared with what the person saw, recorded with them as `actor`, and
    logged in the admin's own history.
    """

"""`StateMachineAdminMixin`, put together."""

from __future__ import annotations

from statemachine_fields.admin.actions import MachineActions
from statemachine_fields.admin.columns import MachineColumns
from statemachine_fields.admin.lists import MachineLists
from statemachine_fields.admin.machine_page import MachinePage


class StateMachineAdminMixin(MachineColumns, MachineLists, MachineActions, MachinePage):
    """Put before `ModelAdmin`: badges, buttons for moves, a bulk action, the story of a row, and the graph.

    Who may change a row may move it, as far as the permissions of the transitions allow; who may only view it sees all and
    moves nothing. Every move is made by POST, compared with what the person saw, recorded with them as `actor`, and
    logged in the admin's own history.
    """

"""The admin: pages for rows with a machine, and read-only pages for what was recorded of them.

    @admin.register(Order)
    class OrderAdmin(StateMachineAdminMixin, admin.ModelAdmin): ...

    admin.site.register(Order.states.transition_model, StateTransitionAdmin)

`statemachine_fields` must be in INSTALLED_APPS, for its templates and style.
"""

from statemachine_fields.admin.changelist import StateFilter
from statemachine_fields.admin.events import StateEventAdmin
from statemachine_fields.admin.mixin import StateMachineAdminMixin
from statemachine_fields.admin.records import StateTransitionAdmin, TransitionPaginator, WhenFilter
from statemachine_fields.admin.tries import StateAttemptAdmin

__all__ = [
    "StateAttemptAdmin",
    "StateEventAdmin",
    "StateFilter",
    "StateMachineAdminMixin",
    "StateTransitionAdmin",
    "TransitionPaginator",
    "WhenFilter",
]

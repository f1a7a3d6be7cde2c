"""One order for each peer, as its documentation would have it: it is paid, if there is an address."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django_fsm import ConcurrentTransitionMixin, FSMField, FSMModelMixin, transition
from django_stator.graph import State as StatorState
from django_stator.graph import StateGraph
from django_stator.models import StateField, StatorModel
from simple_history.models import HistoricalRecords
from viewflow import fsm

from statemachine_fields import State, StateMachine

STATES = [("PENDING", "Pending"), ("PAID", "Paid"), ("SHIPPED", "Shipped")]
REASON = "There is no address."


class Order(models.Model):
    address = models.CharField(max_length=100, default="12 St James's Square")

    class Meta:
        abstract = True


class OurOrder(Order):
    states = StateMachine(
        states=STATES, initial="PENDING", transitions={"PENDING": ["PAID"], "PAID": ["SHIPPED"], "SHIPPED": ["PENDING"]}
    )

    @states.guard(to="PAID")
    def has_address(self):
        return bool(self.address) or REASON


class TimedOrder(Order):
    """An order that workers move, and that is made a note of when they do."""

    states = StateMachine(
        states=[
            State("PENDING", retry_after=1),
            State("PAID", timeout_after=3, timeout_to="SHIPPED"),
            State("SHIPPED"),
        ],
        initial="PENDING",
        transitions={"PENDING": ["PAID", "SHIPPED"], "PAID": ["SHIPPED", "PENDING"]},
    )

    @states.handler("PENDING")
    def pay(self):
        from compared.tasks import work

        work(self.pk)
        return "PAID"


class StatorGraph(StateGraph):
    pending = StatorState(retry_after=1, start_after=3, force_initial=True)
    paid = StatorState(externally_progressed=True)
    shipped = StatorState()
    pending.transitions_to(paid)
    paid.transitions_to(pending)
    paid.transitions_to(shipped)

    @classmethod
    def check_pending(cls, order):
        from compared.tasks import work

        work(order.pk)
        return cls.paid


class StatorOrder(Order, StatorModel):
    state = StateField(graph=StatorGraph)


class FailingStatorGraph(StateGraph):
    pending = StatorState(retry_after=0.2 / 86400)  # it takes them for days
    paid = StatorState()
    pending.transitions_to(paid)

    @classmethod
    def check_pending(cls, order):
        from compared.tasks import fail

        fail(order.pk)


class FailingStatorOrder(Order, StatorModel):
    state = StateField(graph=FailingStatorGraph)


class FailingOrder(Order):
    """An order that no try gets on."""

    states = StateMachine(
        states=[State("PENDING", retry_after=0.2, max_attempts=2), State("PAID")],
        initial="PENDING",
        transitions={"PENDING": ["PAID"]},
    )

    @states.handler("PENDING")
    def pay(self):
        from compared.tasks import fail

        fail(self.pk)


def has_address(order):
    return bool(order.address)


class FsmOrder(Order):
    status = FSMField(default="PENDING", choices=STATES)

    @transition(field=status, source="PENDING", target="PAID", conditions=[has_address], custom={"admin": True})
    def pay(self):
        pass


class ProtectedFsmOrder(FSMModelMixin, Order):
    status = FSMField(default="PENDING", choices=STATES, protected=True)

    @transition(field=status, source="PENDING", target="PAID")
    def pay(self):
        pass


class ConcurrentFsmOrder(ConcurrentTransitionMixin, Order):
    status = FSMField(default="PENDING", choices=STATES)

    @transition(field=status, source="PENDING", target="PAID")
    def pay(self):
        pass


class ViewflowOrder(Order):
    status = models.CharField(max_length=20, choices=STATES, default="PENDING")


class ViewflowFlow:
    """viewflow keeps the machine beside the model."""

    stage = fsm.State([state for state, _label in STATES], default="PENDING")

    def __init__(self, order):
        self.order = order

    @stage.setter()
    def _set(self, value):
        self.order.status = value

    @stage.getter()
    def _get(self):
        return self.order.status

    def has_address(self):
        return fsm.State.CONDITION(bool(self.order.address), unmet=REASON)

    @stage.transition(source="PENDING", target="PAID", conditions=[has_address], permission=lambda flow, user: True)
    def pay(self):
        pass

    @stage.on_success()
    def _saved(self, descriptor, source, target, **kwargs):
        self.order.save()


class HistoricOrder(Order):
    status = models.CharField(max_length=20, choices=STATES, default="PENDING")
    history = HistoricalRecords()


if settings.IS_POSTGRESQL:
    import pghistory
    import pgtrigger

    @pghistory.track(pghistory.InsertEvent(), pghistory.UpdateEvent())
    class PgOrder(Order):
        status = models.CharField(max_length=20, choices=STATES, default="PENDING")

    class PgGuardedOrder(Order):
        status = models.CharField(max_length=20, choices=STATES, default="PENDING")

        class Meta:
            triggers = [
                pgtrigger.FSM(name="moves", field="status", transitions=[("PENDING", "PAID"), ("PAID", "SHIPPED")])
            ]


class Note(models.Model):
    """What a worker did with an order, when."""

    order = models.BigIntegerField()
    text = models.CharField(max_length=20)

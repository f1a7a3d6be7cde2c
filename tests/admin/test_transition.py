"""Moving one row in the admin: buttons, questions, forms, races and permissions."""

from __future__ import annotations

import re

import pytest
from django import forms
from django.contrib.admin import site
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from lab.models import Car, Dossier, Invoice, Parcel, Reasoned
from shop.models import Order
from statemachine_fields import Transition
from statemachine_fields.admin.base import MachineAdmin
from statemachine_fields.admin.transition import TransitionRequest
from tests.admin.browsing import MOVER, look, messages_of, page, press, staff, text_of

pytestmark = pytest.mark.django_db


def buttons(response):
    """Return the buttons of moves by the state they lead to: whether each can be pressed."""
    found = re.findall(r'<button[^>]*name="_to" value="([^"]*)"([^>]*)>', response.content.decode())
    return {state: "disabled" not in rest for state, rest in found}


# Buttons


def test_the_page_has_a_button_for_each_move_in_the_order_declared(admin_client, dossier):
    response = look(admin_client, dossier)

    assert list(buttons(response)) == ["CHECK", "LOST", "DONE", "GONE"]
    assert "Give up" in text_of(response)
    assert 'Move to <b>Check</b> & "quotes" 100%' in text_of(response)


def test_a_blocked_move_is_a_disabled_button_that_says_why(admin_client, dossier):
    dossier.states.transition_to("CHECK")

    response = look(admin_client, dossier)

    assert buttons(response) == {"CHECK": True, "DONE": False, "LOST": True}
    why = re.search(r'value="DONE" disabled aria-describedby="([^"]+)"', response.content.decode()).group(1)
    assert re.search(rf'id="{why}">It has no seal\.<', response.content.decode())


def test_a_move_whose_form_writes_the_row_is_blocked_only_by_permissions(admin_client, dossier):
    assert buttons(look(admin_client, dossier))["DONE"]


def test_a_move_without_permission_says_so(client, dossier):
    response = look(staff(client, *MOVER), dossier)

    assert buttons(response) == {"CHECK": True, "LOST": False, "DONE": True, "GONE": False}
    assert text_of(response).count("You do not have the permission for this move.") == 2


def test_a_permission_that_depends_on_the_row_is_asked_of_the_row(client):
    own = Dossier.objects.create(team="ada")

    response = look(staff(client, *MOVER, username="ada"), own)

    assert buttons(response)["GONE"]


def test_who_may_only_look_sees_everything_and_has_no_button(client, dossier):
    dossier.states.transition_to("CHECK", metadata={"why": "it was time"})

    response = look(staff(client, "view_dossier"), dossier)

    assert buttons(response) == {}
    assert "it was time" in text_of(response)
    assert "smf-graph" in response.content.decode()
    assert "You may look at this row, and not move it." in text_of(response)


def test_an_end_says_that_it_is_one(admin_client, dossier):
    dossier.states.force_transition_to("GONE", reason="for the test")

    assert "no move leads out of it" in text_of(look(admin_client, dossier))


def test_a_state_that_is_no_longer_declared_is_shown_by_its_value(admin_client, dossier):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE lab_dossier SET status = 'MISLAID'")

    response = look(admin_client, dossier)

    assert "smf-undeclared" in response.content.decode()
    assert "MISLAID" in text_of(response)


def test_the_page_to_add_a_row_has_no_buttons(admin_client):
    response = admin_client.get(page(Dossier, "add"))

    assert buttons(response) == {}
    assert response.status_code == 200


# Moving


def test_a_button_moves_the_row_records_who_and_logs_it(client, dossier):
    staff(client, *MOVER, username="ada")

    response = press(client, dossier, to="CHECK", beside="looks odd")

    dossier.refresh_from_db()
    record = dossier.states.history.get()
    assert dossier.status == "CHECK"
    assert record.metadata["note"] == "looks odd"
    assert record.metadata["actor"]["text"] == "ada"
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_id, entry.user.username) == (CHANGE, str(dossier.pk), "ada")
    assert entry.change_message == 'Moved from Open to <b>Check</b> & "quotes" 100%.'
    assert messages_of(response) == ['“Case 7” was moved from Open to <b>Check</b> & "quotes" 100%.']
    assert response.redirect_chain == [(page(Dossier, "change", dossier.pk), 302)]


def test_an_empty_note_leaves_no_trace(admin_client, dossier):
    press(admin_client, dossier, to="CHECK", beside="")

    assert set(dossier.states.history.get().metadata) == {"actor"}


def test_a_note_that_is_too_long_is_said_and_nothing_moves(admin_client, dossier):
    response = press(admin_client, dossier, to="CHECK", beside="x" * 1001)

    assert "at most 1000 characters" in text_of(response)
    assert not dossier.states.history.exists()


def test_the_log_entry_and_the_move_are_written_together_or_not_at_all(admin_client, dossier, monkeypatch):
    def broken(*args):
        raise ValidationError("the log is full")

    monkeypatch.setattr("lab.admin.DossierAdmin.log_change", broken)
    response = press(admin_client, dossier, to="CHECK")

    assert messages_of(response) == ["“Case 7” was not moved: the log is full"]
    assert not dossier.states.history.exists()


def test_the_list_is_found_again_as_it_was(admin_client, dossier):
    url = f"{page(Dossier, 'move', dossier.pk, 'states')}?_changelist_filters=status__exact%3DOPEN"

    response = admin_client.post(url, {"_to": "CHECK", "_expected": 0})

    assert response.url == f"{page(Dossier, 'change', dossier.pk)}?_changelist_filters=status__exact%3DOPEN"


def test_a_row_whose_key_has_to_be_quoted_is_moved(admin_client):
    parcel = Parcel.objects.create()

    press(admin_client, parcel, to="SCANNED")

    parcel.refresh_from_db()
    assert parcel.status == "SCANNED"


def test_machines_of_one_model_are_moved_apart(admin_client):
    invoice = Invoice.objects.create()

    press(admin_client, invoice, "payment", to="PAID")

    invoice.refresh_from_db()
    assert (invoice.status, invoice.payment_status) == ("DRAFT", "PAID")
    response = look(admin_client, invoice)
    assert buttons(response) == {"SENT": True, "REFUNDED": True}
    assert response.content.decode().count('class="smf-panel"') == 2


def test_a_child_of_another_table_is_moved_by_both_machines(admin_client):
    car = Car.objects.create()
    response = look(admin_client, car)
    (first, *_rest) = buttons(response)

    response = press(admin_client, car, "fuel", to="EMPTY")

    car.refresh_from_db()
    assert car.fuel.current == "EMPTY"
    assert first in dict(car._meta.get_field(type(car).states._meta.names.status).flatchoices)


def test_the_model_admin_can_add_to_what_is_recorded(client, admin_user, monkeypatch):
    def arguments(self, request, obj, machine, to, form):
        return {**given(self, request, obj, machine, to, form), "record": {"actor": request.user, "reason": "by hand"}}

    given = MachineAdmin.get_transition_arguments
    monkeypatch.setattr(MachineAdmin, "get_transition_arguments", arguments)
    row = Reasoned.objects.create()
    client.force_login(admin_user)

    press(client, row, to="DONE", beside="and a note")

    record = row.states.history.get()
    assert (record.actor, record.reason, record.metadata["note"]) == (admin_user, "by hand", "and a note")


# Questions and forms


def test_a_move_that_asks_for_confirmation_moves_only_after_it(admin_client, dossier):
    asked = press(admin_client, dossier, to="LOST", beside="typed before")

    assert "Are you sure?" in text_of(asked)
    assert 'value="typed before"' in asked.content.decode()
    assert not dossier.states.history.exists()

    press(admin_client, dossier, to="LOST", note="typed before", _confirm="1")

    assert dossier.states.history.get().metadata["note"] == "typed before"


def test_the_question_is_the_one_declared(admin_client):
    order = Order.objects.create(customer="Ada", total=10)

    assert "Cancel this order for good?" in text_of(press(admin_client, order, to="CANCELLED"))


def test_a_form_is_shown_and_its_answers_are_kept_with_the_record(admin_client, dossier):
    dossier.states.transition_to("CHECK")

    asked = press(admin_client, dossier, to="LOST")
    wrong = press(admin_client, dossier, to="LOST", _confirm="1", where="")
    press(admin_client, dossier, to="LOST", _confirm="1", where="in the cellar", when="2026-05-01")

    assert 'name="where"' in asked.content.decode()
    assert "This field is required." in text_of(wrong)
    facts = dossier.states.history.get(to_status="LOST").metadata
    assert (facts["where"], facts["when"]) == ("in the cellar", "2026-05-01")


def test_a_model_form_writes_the_row_with_the_move(admin_client, dossier):
    press(admin_client, dossier, to="DONE", _confirm="1", seal="lead", remark="heavy")

    dossier.refresh_from_db()
    assert (dossier.status, dossier.seal) == ("DONE", "lead")
    assert dossier.states.history.get().metadata["remark"] == "heavy"


@pytest.mark.parametrize(("seal", "said"), [("wax", "Wax is not good enough."), ("", "It has no seal.")])
def test_what_a_form_or_a_guard_refuses_is_said_and_nothing_is_written(admin_client, dossier, seal, said):
    response = press(admin_client, dossier, to="DONE", _confirm="1", seal=seal)

    assert said in text_of(response)
    dossier.refresh_from_db()
    assert (dossier.status, dossier.seal) == ("OPEN", "")
    assert not LogEntry.objects.exists()


# Races


def test_who_comes_too_late_is_told_who_was_faster(admin_client, admin_user, dossier):
    Dossier.objects.get().states.transition_to("CHECK", metadata={"actor": "Grace <i>"})

    response = press(admin_client, dossier, to="CHECK")

    (message,) = messages_of(response)
    assert message.startswith("“Case 7” was not moved: Grace <i> moved it to <b>Check</b>")
    assert "Grace &lt;i&gt;" in response.content.decode()
    assert Dossier.objects.get().status_sequence == 1


def test_a_row_that_went_in_a_circle_is_not_the_row_that_was_seen(admin_client, dossier):
    for state in ("LOST", "OPEN"):
        Dossier.objects.get().states.transition_to(state)

    press(admin_client, dossier, to="CHECK")

    assert Dossier.objects.get().status_sequence == 2


def test_the_same_button_pressed_twice_moves_once(admin_client, dossier):
    dossier.states.transition_to("CHECK")

    press(admin_client, dossier, to="CHECK")
    response = press(admin_client, dossier, to="CHECK")  # a loop: the graph would allow it again

    assert Dossier.objects.get().status_sequence == 2
    assert messages_of(response)[0].startswith("You have moved “Case 7” to")


def test_a_race_that_is_lost_after_the_row_was_loaded_is_said(admin_client, dossier, meanwhile):
    meanwhile(lambda: Dossier.objects.get().states.transition_to("CHECK", metadata={"actor": "Grace"}))

    response = press(admin_client, dossier, to="CHECK")

    assert "Grace moved it" in messages_of(response)[0]
    assert Dossier.objects.get().status_sequence == 1


# What is refused


@pytest.mark.parametrize("name", ["move", "clock"])
@pytest.mark.parametrize("method", ["get", "head", "put", "delete", "patch", "options"])
def test_addresses_do_nothing_unless_posted_to(admin_client, method, name):
    order = Order.objects.create(customer="Ada", total=10)

    response = getattr(admin_client, method)(
        page(Order, name, order.pk, "states") + "?_to=PAID&_expected=0&verb=run_now"
    )

    assert (response.status_code, response["Allow"]) == (405, "POST")
    assert not order.states.history.exists()


def test_the_refusal_leads_back_to_the_row(admin_client, dossier):
    response = admin_client.get(page(Dossier, "move", dossier.pk, "states"))

    assert "never by opening an address" in text_of(response)
    assert f'href="{page(Dossier, "change", dossier.pk)}"' in response.content.decode()


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("NOWHERE", "there is no such state."),
        ("", "there is no such state."),
        ("OPEN", "there is no move from Open to Open."),
    ],
)
def test_what_no_button_says_is_refused_in_words(admin_client, dossier, to, said):
    assert messages_of(press(admin_client, dossier, to=to)) == [f"“Case 7” was not moved: {said}"]


@pytest.mark.parametrize("expected", ["", "x", "-1", "²", "9" * 30])
def test_a_form_that_says_nonsense_moves_nothing(admin_client, dossier, expected):
    press(admin_client, dossier, to="CHECK", expected=expected)

    assert not dossier.states.history.exists()


def test_a_post_without_its_token_is_refused(admin_user, dossier):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)

    response = client.post(page(Dossier, "move", dossier.pk, "states"), {"_to": "CHECK", "_expected": 0})

    assert response.status_code == 403
    assert not dossier.states.history.exists()


@pytest.mark.parametrize("name", ["move", "clock", "story"])
def test_strangers_are_sent_to_log_in(client, dossier, name):
    assert "/login/" in client.post(page(Dossier, name, dossier.pk, "states")).url


@pytest.mark.parametrize("name", ["move", "clock"])
def test_who_may_only_look_cannot_post(client, dossier, name):
    staff(client, "view_dossier")

    assert client.post(page(Dossier, name, dossier.pk, "states"), {"_to": "CHECK", "_expected": 0}).status_code == 403
    assert not dossier.states.history.exists()


@pytest.mark.parametrize("name", ["move", "clock", "story"])
def test_rows_of_others_are_not_there(client, name):
    foreign = Dossier.objects.create(team="grace")
    staff(client, *MOVER, username="ada")

    assert client.post(page(Dossier, name, foreign.pk, "states"), {"_to": "CHECK", "_expected": 0}).status_code == 404
    assert not foreign.states.history.exists()


@pytest.mark.parametrize("name", ["move", "clock", "story"])
def test_machines_and_rows_that_do_not_exist_are_not_found(admin_client, dossier, name):
    assert admin_client.post(page(Dossier, name, dossier.pk, "nonsense")).status_code == 404
    assert admin_client.post(page(Dossier, name, 0, "states")).status_code == 404
    assert admin_client.post(page(Dossier, name, "nonsense", "states")).status_code == 404


def test_a_permission_is_asked_again_when_the_button_is_pressed(client, dossier):
    staff(client, *MOVER)

    response = press(client, dossier, to="LOST", _confirm="1")

    assert "You do not have the permission for this move." in text_of(response)
    assert not dossier.states.history.exists()


# How much is asked


@pytest.mark.parametrize("state", ["LOST", "DONE"])
def test_the_page_that_asks_before_a_move_asks_three_questions_itself(client, admin_user, dossier, state):
    client.force_login(admin_user)
    url = page(Dossier, "move", dossier.pk, "states")

    with CaptureQueriesContext(connection) as captured:
        client.post(url, {"_to": state, "_expected": 0})

    assert len(captured) == 3  # the session, the user, the row


def test_a_move_of_a_plain_row_takes_few_statements(client, admin_user):
    invoice = Invoice.objects.create()
    client.force_login(admin_user)
    look(client, invoice)

    with CaptureQueriesContext(connection) as captured:
        client.post(page(Invoice, "move", invoice.pk, "payment"), {"_to": "PAID", "_expected": 0})

    asked = [query["sql"] for query in captured if not query["sql"].startswith(("SAVEPOINT", "RELEASE", "BEGIN"))]
    one_statement = connection.vendor == "postgresql"
    # The session, the user, the row; the move and its record; the log.
    assert len(asked) == 3 + (1 if one_statement else 2) + 1


# What forms may be like


class OddForm(forms.Form):
    """Names that the page uses for itself, or would like to."""

    to = forms.CharField()
    expected = forms.CharField()
    remark = forms.CharField(required=False)


def test_fields_of_a_form_may_have_any_name(admin_client, dossier, declare):
    declare(("OPEN", Transition("CHECK", form=OddForm)))

    press(admin_client, dossier, to="CHECK", _confirm="1", expected="much")
    assert not dossier.states.history.exists()  # `to` is required
    admin_client.post(
        page(Dossier, "move", dossier.pk, "states"),
        {"_to": "CHECK", "_expected": 0, "_confirm": "1", "to": "Ada", "expected": "much"},
    )

    assert dossier.states.history.get().metadata["to"] == "Ada"


def test_a_note_is_kept_beside_a_form_of_its_own(admin_client, dossier):
    dossier.states.transition_to("CHECK")

    asked = press(admin_client, dossier, to="LOST", beside="by the way")
    assert 'name="_note" value="by the way"' in asked.content.decode()
    press(admin_client, dossier, to="LOST", beside="by the way", _confirm="1", where="in the cellar")

    metadata = dossier.states.history.get(to_status="LOST").metadata
    assert (metadata["note"], metadata["where"]) == ("by the way", "in the cellar")


def test_a_field_of_the_row_called_note_is_the_rows(client, admin_user, declare):
    row = Dossier.objects.create(title="important words")
    form = type("TitleForm", (forms.ModelForm,), {"Meta": type("Meta", (), {"model": Dossier, "fields": ["title"]})})
    form.base_fields["note"] = form.base_fields.pop("title")
    declare(("OPEN", Transition("CHECK", form=form)))
    client.force_login(admin_user)

    move = TransitionRequest(
        site.get_model_admin(Dossier),
        RequestFactory().post("/", {"_to": "CHECK", "_expected": 0, "_note": "beside"}),
        Dossier.states._meta,
        row,
    )

    assert not move.form(filled_in=False).initial.get("note")
    assert move.carried_note(move.form(filled_in=False)) == "beside"


def test_a_record_whose_metadata_is_no_dict_is_met_with_calm(admin_client, dossier):
    Dossier.states.transition_model.objects.bulk_create(
        [
            Dossier.states.transition_model(
                instance=dossier, sequence=1, to_status="CHECK", metadata=["odd"], transitioned_at=timezone.now()
            )
        ]
    )

    response = press(admin_client, dossier, to="CHECK", expected=7)

    assert "somebody else moved it" in messages_of(response)[0]

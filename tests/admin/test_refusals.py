"""A move that is refused after people have filled something in: all of it is there again, with the reason on it."""

from __future__ import annotations

import html
import re

import pytest
from django import forms
from django.contrib.admin.models import LogEntry
from django.core.files.base import ContentFile

from lab.forms import SealForm
from lab.models import Dossier
from statemachine_fields import Transition
from tests.admin.browsing import MOVER, choose, dossiers, messages_of, page, press, staff, veto, words_of

pytestmark = pytest.mark.django_db


def answers(response):
    """Return what the fields of the page that asks hold, by name."""
    form = response.content.decode()
    form = form[form.index("<form data-smf-once") :]
    inputs = re.findall(r"<input[^>]*>", form[: form.index("</form>")])
    found = [(re.search(r'name="([^"]*)"', each), re.search(r'value="([^"]*)"', each)) for each in inputs]
    return {
        name.group(1): html.unescape(value.group(1)) if value else ""
        for name, value in found
        if name and name.group(1) != "csrfmiddlewaretoken"
    }


def reasons(response):
    """Return the note above the form, and what is wrong with the whole of it."""
    content = response.content.decode()
    note = re.search(r'<p class="errornote">(.*?)</p>', content, re.DOTALL)
    listed = re.search(r'<ul class="errorlist nonfield"[^>]*>(.*?)</ul>', content, re.DOTALL)
    texts = re.findall(r"<li>(.*?)</li>", listed.group(1)) if listed else []
    return html.unescape(note.group(1)) if note else "", [html.unescape(text) for text in texts]


def assert_nothing_moved(dossier, state="OPEN", sequence=0):
    fresh = Dossier.objects.get(pk=dossier.pk)
    assert (fresh.status, fresh.status_sequence, fresh.seal) == (state, sequence, "")
    assert not LogEntry.objects.exists()


def test_a_guard_that_refuses_a_form_leaves_what_was_typed(admin_client, dossier):
    response = press(admin_client, dossier, to="DONE", beside="by phone", _confirm="1", seal="", remark='"heavy" <b>')

    assert (response.status_code, response.redirect_chain) == (200, [])
    assert reasons(response) == ("“Case 7” was not moved.", ["It has no seal."])
    assert answers(response) == {
        "_confirm": "1",
        "_to": "DONE",
        "_expected": "0",
        "_note": "by phone",
        "seal": "",
        "remark": '"heavy" <b>',
    }
    assert_nothing_moved(dossier)


def test_what_is_shown_again_can_be_corrected_and_sent(admin_client, dossier):
    shown = press(admin_client, dossier, to="DONE", beside="by phone", _confirm="1", seal="", remark="heavy")

    admin_client.post(page(Dossier, "move", dossier.pk, "states"), {**answers(shown), "seal": "lead"})

    record = dossier.states.history.get()
    assert (record.to_status, record.metadata["remark"], record.metadata["note"]) == ("DONE", "heavy", "by phone")
    assert Dossier.objects.get().seal == "lead"


def test_a_veto_of_a_receiver_leaves_what_was_typed(admin_client, dossier):
    dossier.states.transition_to("CHECK")

    with veto(["Not on a Sunday.", "Nor at night."]):
        response = press(admin_client, dossier, to="LOST", _confirm="1", where="in the cellar", when="2026-05-01")

    assert reasons(response)[1] == ["Not on a Sunday.", "Nor at night."]
    assert (answers(response)["where"], answers(response)["when"]) == ("in the cellar", "2026-05-01")
    assert_nothing_moved(dossier, "CHECK", 1)


def test_a_permission_that_was_taken_away_leaves_the_note(client, dossier):
    staff(client, *MOVER)

    response = press(client, dossier, to="LOST", _confirm="1", note="They called")

    assert reasons(response)[1] == ["You do not have the permission for this move."]
    assert answers(response)["note"] == "They called"
    assert_nothing_moved(dossier)


def test_a_note_beside_a_button_is_not_lost_either(admin_client, dossier):
    with veto("Not on a Sunday."):
        shown = press(admin_client, dossier, to="CHECK", beside="looks odd")

    assert reasons(shown) == ("“Case 7” was not moved.", ["Not on a Sunday."])
    assert answers(shown)["note"] == "looks odd"
    assert_nothing_moved(dossier)
    admin_client.post(page(Dossier, "move", dossier.pk, "states"), answers(shown))
    assert dossier.states.history.get().metadata["note"] == "looks odd"


def test_a_note_that_was_too_long_can_be_shortened(admin_client, dossier):
    shown = press(admin_client, dossier, to="CHECK", beside="x" * 1001)

    admin_client.post(page(Dossier, "move", dossier.pk, "states"), {**answers(shown), "note": "short"})

    assert dossier.states.history.get().metadata["note"] == "short"


def test_where_nothing_was_typed_the_row_says_why(admin_client, dossier):
    with veto("Not on a Sunday."):
        response = press(admin_client, dossier, to="CHECK")

    assert response.redirect_chain == [(page(Dossier, "change", dossier.pk), 302)]
    assert messages_of(response) == ["“Case 7” was not moved: Not on a Sunday."]


def test_the_page_names_the_row_as_it_is_and_not_as_it_was_typed(admin_client, dossier, monkeypatch):
    monkeypatch.setattr(Dossier, "__str__", lambda self: f"{self.title} ({self.seal or 'open'})")
    monkeypatch.setattr(Dossier, "has_seal", lambda self: "The seal is broken.")

    response = press(admin_client, dossier, to="DONE", _confirm="1", seal="lead")

    assert reasons(response) == ("“Case 7 (open)” was not moved.", ["The seal is broken."])
    assert "Case 7 (lead)" not in words_of(response)
    assert answers(response)["seal"] == "lead"


class ScanForm(SealForm):
    scan = forms.FileField(required=False)


@pytest.mark.parametrize(("fields", "why"), [({}, "It has no seal."), ({"seal": "wax"}, "Wax is not good enough.")])
def test_a_file_that_was_sent_is_asked_for_again(admin_client, dossier, declare, fields, why):
    declare(("OPEN", Transition("DONE", form=ScanForm)))

    with_file = press(
        admin_client, dossier, to="DONE", _confirm="1", scan=ContentFile(b"...", name="scan.png"), **fields
    )
    without = press(admin_client, dossier, to="DONE", _confirm="1", **fields)

    asked = [why in words_of(with_file), "Choose the file again: it was not kept." in words_of(with_file)]
    assert asked == [True, True]
    assert "Choose the file again" not in words_of(without)
    assert_nothing_moved(dossier)


def test_templates_of_a_theme_find_the_row_itself(admin_client, dossier):
    """As Unfold does for its way back, which asks the row of a page for its model."""
    asked = press(admin_client, dossier, to="DONE")
    refused = press(admin_client, dossier, to="DONE", _confirm="1", beside="by phone")

    assert [response.context["object"] for response in (asked, refused)] == [dossier, dossier]


# Races


@pytest.mark.parametrize("after_it_was_loaded", [False, True])
def test_who_comes_too_late_keeps_what_they_typed_and_decides_anew(
    admin_client, dossier, meanwhile, after_it_was_loaded
):
    def happen():
        Dossier.objects.get().states.transition_to("CHECK", metadata={"actor": "Grace"})

    if after_it_was_loaded:
        meanwhile(happen)
    else:
        happen()

    shown = press(admin_client, dossier, to="DONE", _confirm="1", seal="lead", beside="by phone")

    (reason,) = reasons(shown)[1]
    assert reason.startswith('Grace moved it to <b>Check</b> & "quotes" 100%')
    assert_nothing_moved(dossier, "CHECK", 1)
    assert (answers(shown)["_expected"], answers(shown)["note"]) == ("1", "by phone")


def test_the_form_of_the_state_that_the_row_is_in_now_has_what_was_typed(admin_client, dossier):
    dossier.states.transition_to("CHECK")
    Dossier.objects.get().states.transition_to("CHECK", metadata={"actor": "Grace"})

    shown = press(admin_client, dossier, to="LOST", _confirm="1", where="in the cellar")
    assert (answers(shown)["_expected"], answers(shown)["where"]) == ("2", "in the cellar")
    admin_client.post(page(Dossier, "move", dossier.pk, "states"), answers(shown))

    assert dossier.states.history.first().metadata["where"] == "in the cellar"


@pytest.mark.parametrize(
    ("path", "pressed", "last"),
    [(["LOST", "OPEN"], {"to": "LOST", "note": ""}, "Open"), (["LOST"], {"to": "DONE", "seal": "lead"}, "Lost")],
    ids=["a mere yes is not asked for again", "a move that is not there any more"],
)
def test_who_has_nothing_to_decide_anew_is_told_on_the_row(admin_client, dossier, path, pressed, last):
    for state in path:
        Dossier.objects.get().states.transition_to(state, metadata={"actor": "Grace"})

    response = press(admin_client, dossier, _confirm="1", **pressed)

    assert response.redirect_chain == [(page(Dossier, "change", dossier.pk), 302)]
    assert messages_of(response)[0].startswith(f"“Case 7” was not moved: Grace moved it to {last}")


def test_who_sends_a_form_twice_is_told_that_it_is_done(admin_client, dossier):
    press(admin_client, dossier, to="DONE", _confirm="1", seal="lead")

    response = press(admin_client, dossier, to="DONE", _confirm="1", seal="lead")

    assert messages_of(response) == ["You have moved “Case 7” to Done already."]


def test_a_row_that_is_deleted_meanwhile_is_told(admin_client, dossier, meanwhile):
    meanwhile(Dossier.objects.all().delete)

    response = press(admin_client, dossier, to="DONE", _confirm="1", seal="lead")

    assert "“Case 7” was not moved: it has been deleted meanwhile." in messages_of(response)


# Many rows


def test_many_rows_that_all_refuse_leave_what_was_typed(admin_client):
    rows = dossiers(3, status="CHECK")

    with veto("Not on a Sunday."):
        response = choose(admin_client, rows, "LOST", _confirm="1", where="in the cellar")

    assert (response.status_code, response.redirect_chain) == (200, [])
    assert reasons(response) == ("No row was moved.", ["Not on a Sunday."])
    assert answers(response)["where"] == "in the cellar"
    assert not Dossier.states.transition_model.objects.exists()
    choose(admin_client, rows, "LOST", _confirm="1", where=answers(response)["where"])
    assert Dossier.states.transition_model.objects.count() == 3


def test_guards_that_refuse_all_of_many_rows_leave_the_note(admin_client):
    rows = dossiers(2, status="CHECK")

    response = choose(admin_client, rows, "DONE", _confirm="1", note="They called")

    assert reasons(response) == ("No row was moved.", ["2 × It has no seal."])
    assert answers(response)["note"] == "They called"
    assert 'value="Yes, move those that can"' in response.content.decode()


def test_many_rows_without_anything_typed_are_told_on_the_list(admin_client):
    rows = dossiers(2, status="CHECK")

    response = choose(admin_client, rows, "DONE", _confirm="1")

    assert messages_of(response) == ["2 rows were not moved: It has no seal."]


def test_rows_of_which_some_moved_are_told_on_the_list(admin_client):
    rows = Dossier.objects.bulk_create(Dossier(status="CHECK", seal=seal) for seal in ("", "lead"))

    response = choose(admin_client, rows, "DONE", _confirm="1", note="They called")

    assert messages_of(response) == ["1 row was moved to Done.", "1 row was not moved: It has no seal."]

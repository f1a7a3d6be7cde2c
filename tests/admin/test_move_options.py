"""Moves of the system's own, which people are not offered, and moves that end badly, which look it."""

from __future__ import annotations

import html
import re

import pytest
from django.contrib import admin

from lab.admin import DossierAdmin
from lab.models import Dossier
from statemachine_fields import Transition
from tests.admin.browsing import choose, look, messages_of, page, press, staff, text_of, words_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def offer_anew(monkeypatch):
    """A function that gives the admin class of dossiers the actions that it would have had with these moves."""

    def offer():
        model_admin = admin.site.get_model_admin(Dossier)
        monkeypatch.setattr(model_admin, "actions", DossierAdmin(Dossier, admin.site).actions)

    return offer


def buttons(response):
    return re.findall(r'<button class="([^"]*)" type="submit" name="_to" value="([^"]*)"', response.content.decode())


def actions(response):
    return re.findall(r'<option value="states_move_to_(\w+)">', response.content.decode())


# Moves of the system's own


def test_a_move_of_the_systems_own_has_no_button(admin_client, dossier, declare):
    declare(("OPEN", Transition("CHECK", button=False)))

    assert [state for _look, state in buttons(look(admin_client, dossier))] == ["LOST", "DONE", "GONE"]


def test_a_state_that_only_the_system_leaves_says_so(admin_client, dossier, declare):
    dossier.states.transition_to("LOST")
    declare(("LOST", Transition("OPEN", button=False)))

    words = words_of(look(admin_client, dossier))

    assert "No move out of this state is made by hand." in words
    assert "This is an end" not in words


@pytest.mark.parametrize("fields", [{}, {"_confirm": "1"}, {"expected": 7}])
def test_the_address_of_such_a_move_is_forbidden(admin_client, dossier, declare, fields):
    declare(("OPEN", Transition("CHECK", button=False)))

    assert press(admin_client, dossier, to="CHECK", **fields).status_code == 403
    url = page(Dossier, "move", dossier.pk, "states")
    assert admin_client.get(url, {"_to": "CHECK"}).status_code == 403
    assert not dossier.states.history.exists()


def test_who_is_overtaken_by_the_system_is_told_so(admin_client, dossier, declare):
    """They pressed a button that they had. That the same move is the system's own from where the row is now is news."""
    declare(("CHECK", Transition("DONE", button=False)))
    Dossier.objects.get().states.transition_to("CHECK", metadata={"actor": "Grace"})

    response = press(admin_client, dossier, to="DONE", _confirm="1", seal="lead")

    assert response.redirect_chain == [(page(Dossier, "change", dossier.pk), 302)]
    assert messages_of(response)[0].startswith("“Case 7” was not moved: Grace moved it to <b>Check</b>")
    assert Dossier.objects.get().status == "CHECK"


def test_programs_make_such_a_move_as_any_other(dossier, declare, django_user_model):
    declare(("OPEN", Transition("CHECK", button=False)))

    assert dossier.states.can_transition_to("CHECK")
    dossier.states.transition_to("CHECK", user=django_user_model.objects.create_superuser("ada"))
    assert Dossier.objects.get().status == "CHECK"


def test_there_is_no_action_if_the_system_alone_leads_there(admin_client, dossier, declare, offer_anew):
    declare(("OPEN", Transition("GONE", button=False)), ("OPEN", Transition("CHECK", button=False)))
    offer_anew()

    response = admin_client.get(page(Dossier))

    assert actions(response) == ["OPEN", "CHECK", "DONE", "LOST"]  # CHECK leads to itself, by hand
    choose(admin_client, [dossier], "GONE", _confirm="1")
    assert not dossier.states.history.exists()


def test_an_action_leaves_rows_alone_that_only_the_system_moves_there(admin_client, dossier, declare, offer_anew):
    declare(("OPEN", Transition("CHECK", button=False)))
    offer_anew()
    checked = Dossier.objects.create(status="CHECK")

    shown = choose(admin_client, [dossier, checked], "CHECK")
    done = choose(admin_client, [dossier, checked], "CHECK", _confirm="1")

    assert "1 of 2 selected rows can move" in words_of(shown)
    assert "1 The system makes this move, not people." in words_of(shown)
    assert messages_of(done)[1] == "1 row was not moved: The system makes this move, not people."
    assert (dossier.states.history.count(), checked.states.history.count()) == (0, 1)


# Moves that end badly


def test_a_dangerous_button_looks_it_and_comes_after_the_others(admin_client, dossier, declare):
    declare(("OPEN", Transition("CHECK", danger=True)))

    assert buttons(look(admin_client, dossier)) == [
        ("button", "LOST"),
        ("button", "DONE"),
        ("button", "GONE"),
        ("button smf-danger", "CHECK"),
    ]


def test_a_dangerous_question_has_no_default_button(admin_client, dossier, declare):
    declare(("OPEN", Transition("CHECK", danger=True, confirm=True)))

    content = press(admin_client, dossier, to="CHECK").content.decode()

    assert re.findall(r'<input type="submit" class="([^"]*)"', content) == ["smf-danger"]
    form = content[content.index("<form data-smf-once") :]
    assert re.search(r"<button[^>]*>", form).group() == '<button type="submit" disabled hidden>'
    assert form.index("<button") < form.index('<input type="submit"')


def test_a_harmless_question_has_one(admin_client, dossier):
    content = press(admin_client, dossier, to="LOST").content.decode()

    assert '<input type="submit" class="default"' in content
    assert "disabled hidden" not in content


@pytest.mark.parametrize(("danger", "shown"), [(True, "smf-danger"), (False, "default")])
def test_many_rows_are_in_danger_if_one_of_them_is(admin_client, dossier, declare, danger, shown):
    declare(("OPEN", Transition("CHECK", danger=danger)))
    checked = Dossier.objects.create(status="CHECK")

    content = choose(admin_client, [dossier, checked], "CHECK").content.decode()

    assert re.findall(r'<input type="submit" class="([^"]*)"', content) == [shown]
    assert ('<button type="submit" disabled hidden>' in content) is danger


def test_who_may_not_make_a_dangerous_move_is_told_as_of_any_other(client, dossier, declare):
    declare(("OPEN", Transition("LOST", permission="lab.lose_dossier", danger=True)))

    response = look(staff(client, "view_dossier", "change_dossier"), dossier)

    assert ("button smf-danger", "LOST") in buttons(response)
    assert "You do not have the permission for this move." in html.unescape(text_of(response))

"""The pages in another language."""

from __future__ import annotations

import ast
import gettext
import re
from pathlib import Path

import pytest
from django.contrib.admin import site
from django.utils import translation
from django.utils.functional import lazy

import statemachine_fields
from lab.models import Dossier
from shop.models import Order
from tests.admin.browsing import messages_of, page, press, words_of

LOCALE = Path(statemachine_fields.__file__).parent / "locale"
LANGUAGES = sorted(path.name for path in LOCALE.iterdir())


def entries(language):
    """Return what a language's file says, by what it translates; the first of several forms."""
    text = (LOCALE / language / "LC_MESSAGES" / "django.po").read_text()
    pattern = r'^(?:msgctxt "(.*)"\n)?msgid (".*")\n(?:msgid_plural .*\n)?msgstr(?:\[0\])? (".*")$'
    return {
        f"{context}\x04{ast.literal_eval(source)}" if context else ast.literal_eval(source): ast.literal_eval(target)
        for context, source, target in re.findall(pattern, text, re.MULTILINE)
        if source != '""'
    }


@pytest.mark.django_db
def test_pages_and_messages_are_in_the_language_of_the_reader(admin_client):
    dossier = Dossier.objects.create(title="Akte 7")
    with translation.override("de"):
        words = words_of(admin_client.get(page(Dossier, "change", dossier.pk)))
        assert "Wechseln zu Gone" in words
        assert "Wechseln zu Gone" in words_of(admin_client.get(page(Dossier)))
        assert "Festsitzende Einträge" in words_of(admin_client.get(page(Dossier, "machine", "states")))
        moved = messages_of(press(admin_client, dossier, to="LOST", _confirm="1"))
    assert moved == ["„Akte 7“ wechselte von Open zu Lost."]


@pytest.mark.django_db
def test_blockers_are_in_the_language_of_the_reader():
    with translation.override("de"):
        (blocker,) = Order(customer="Ada", total=1).states.blockers("SHIPPED")
    assert blocker.message == "Von Pending führt kein Wechsel zu Shipped."


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_compiled_is_what_is_written(language):
    with (LOCALE / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    written = entries(language)
    assert len(written) > 100
    assert {source: compiled.gettext(source) for source in written} == written


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_name_the_same_facts(language):
    for source, target in entries(language).items():
        assert set(re.findall(r"%\(\w+\)[sd]", source)) == set(re.findall(r"%\(\w+\)[sd]", target)), source


@pytest.mark.parametrize("language", LANGUAGES)
def test_short_words_are_translated_for_us_alone(language):
    """Catalogues are shared by all apps of a project, and "State" may be something else to another."""
    assert [
        source for source in entries(language) if len(source.split()) < 3 and not re.search(r"\x04|%", source)
    ] == []


@pytest.mark.django_db
def test_the_name_of_the_column_is_in_the_language_of_each_reader(admin_client, monkeypatch):
    names = {"en": "Progress", "de": "Fortschritt"}
    name = lazy(lambda: names[translation.get_language()[:2]], str)()
    monkeypatch.setattr(Dossier.states._meta.field, "verbose_name", name)
    vars(site.get_model_admin(Dossier)).pop("_columns", None)
    Dossier.objects.create()
    for language, text in names.items():
        with translation.override(language):
            assert f">{text}</a>" in admin_client.get(page(Dossier)).content.decode()
    vars(site.get_model_admin(Dossier)).pop("_columns", None)

"""What people override in a model admin goes on working with the mixin."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured

from lab.admin import DossierAdmin
from lab.models import Dossier
from statemachine_fields.admin import StateMachineAdminMixin
from tests.admin.browsing import look, page

pytestmark = pytest.mark.django_db


def override(monkeypatch, name, function):
    """Override a method of the class, which may call the one that it overrides as `super()` would."""
    given = getattr(DossierAdmin, name)
    monkeypatch.setattr(DossierAdmin, name, lambda self, *args: function(given.__get__(self), *args), raising=False)


@pytest.mark.parametrize("name", ["change", "add"])
@pytest.mark.parametrize("fields", [None, ["title", "status"], [("title", "status"), "status_sequence"]])
def test_readonly_fields_may_be_computed(admin_client, dossier, monkeypatch, fields, name):
    monkeypatch.setattr(DossierAdmin, "fieldsets", None)
    monkeypatch.setattr(DossierAdmin, "fields", fields)
    override(monkeypatch, "get_readonly_fields", lambda given, request, obj=None: ("status", "status_sequence"))

    response = admin_client.get(page(Dossier, name, *([dossier.pk] if name == "change" else [])))

    assert '<div class="readonly"><span class="smf-badge' in "".join(response.content.decode().split("\n"))


def test_readonly_fields_may_be_added_to(admin_client, dossier, monkeypatch):
    monkeypatch.setattr(DossierAdmin, "readonly_fields", ("team",))
    override(monkeypatch, "get_readonly_fields", lambda given, request, obj=None: (*given(request, obj), "seal"))

    assert look(admin_client, dossier).status_code == 200


def test_fieldsets_may_be_computed(admin_client, dossier, monkeypatch):
    monkeypatch.setattr(DossierAdmin, "readonly_fields", ["status"])
    override(monkeypatch, "get_fieldsets", lambda given, request, obj=None: [(None, {"fields": ["title", "status"]})])

    assert "smf-badge" in look(admin_client, dossier).content.decode()


@pytest.mark.parametrize("kind", [list, tuple])
def test_columns_and_filters_may_be_added_to(admin_client, dossier, monkeypatch, kind):
    monkeypatch.setattr(DossierAdmin, "list_display", kind(["title", "status"]))
    monkeypatch.setattr(DossierAdmin, "list_filter", kind(["status"]))
    override(monkeypatch, "get_list_display", lambda given, request: given(request) + kind(["seal"]))
    override(monkeypatch, "get_list_filter", lambda given, request: given(request) + kind(["team"]))

    content = admin_client.get(page(Dossier)).content.decode()

    assert "field-seal" in content
    assert "smf-badge" in content


def test_columns_may_be_taken_away(admin_client, dossier, monkeypatch):
    def without_status(given, request):
        return [name for name in given(request) if name != "status"]

    override(monkeypatch, "get_list_display", without_status)

    assert "field-status" not in admin_client.get(page(Dossier)).content.decode()


def test_the_first_column_is_the_link_and_can_be_sorted_by(admin_client, dossier, monkeypatch):
    override(monkeypatch, "get_list_display", lambda given, request: ["status", "title"])

    content = " ".join(admin_client.get(page(Dossier)).content.decode().split())

    assert f'<a href="{page(Dossier, "change", dossier.pk)}"><span class="smf-badge' in content
    assert "sortable column-status" in content


@pytest.mark.parametrize("whose", ["own", "next"])
def test_templates_of_the_class_are_extended(rf, admin_user, dossier, settings, tmp_path, whose):
    for name, block in (("change_form.html", "form_top"), ("change_list.html", "pagination")):
        text = f'{{% extends "admin/{name}" %}}{{% block {block} %}}OUR OWN{{% endblock %}}'
        (tmp_path / f"own_{name}").write_text(text)
    (templates,) = settings.TEMPLATES
    settings.TEMPLATES = [{**templates, "DIRS": [tmp_path]}]
    named = {"change_form_template": "own_change_form.html", "change_list_template": ["own_change_list.html"]}
    next_class = type("Next", (admin.ModelAdmin,), named if whose == "next" else {})
    own = type("Own", (StateMachineAdminMixin, next_class), named if whose == "own" else {})

    for response in pages_of(own(Dossier, admin.site), rf, admin_user, dossier):
        assert "OUR OWN" in response
        assert "smf-graph" in response


class InClass:
    change_list_template = "own_change_list.html"


class InInit:
    """As django-import-export does it: what is named by then is what it extends."""

    def __init__(self, *args):
        super().__init__(*args)
        self.base = self.change_list_template or "admin/change_list.html"
        self.change_list_template = "own_change_list.html"

    def changelist_view(self, request, extra_context=None):
        return super().changelist_view(request, {**(extra_context or {}), "base": self.base})


class InProperty:
    @property
    def change_list_template(self):
        return "own_change_list.html"


class InView:
    def changelist_view(self, request, extra_context=None):
        response = super().changelist_view(request, extra_context)
        response.template_name = "own_change_list.html"
        return response


@pytest.mark.parametrize("kind", [InClass, InInit, InProperty, InView])
@pytest.mark.parametrize("ours_first", [True, False])
def test_template_of_another_package_is_extended_however_it_is_named(
    rf, admin_user, dossier, settings, tmp_path, kind, ours_first
):
    text = '{% extends base|default:"admin/change_list.html" %}{% block pagination %}OUR OWN{% endblock %}'
    (tmp_path / "own_change_list.html").write_text(text)
    (templates,) = settings.TEMPLATES
    settings.TEMPLATES = [{**templates, "DIRS": [tmp_path]}]
    mixins = (StateMachineAdminMixin, kind) if ours_first else (kind, StateMachineAdminMixin)
    own = type("Own", (*mixins, admin.ModelAdmin), {})

    shown = next(pages_of(own(Dossier, admin.site), rf, admin_user, dossier))

    assert shown.count("OUR OWN") == 1
    # Who sets the template of the finished response has the last word, if it comes after us.
    assert ("smf-graph" in shown) == (ours_first or kind is not InView)


def test_mixin_that_would_never_be_called_is_refused():
    with pytest.raises(ImproperlyConfigured, match="Late has StateMachineAdminMixin after ModelAdmin"):
        type("Late", (admin.ModelAdmin, StateMachineAdminMixin), {})


def pages_of(model_admin, rf, user, row):
    for view, args in ((model_admin.changelist_view, []), (model_admin.change_view, [str(row.pk)])):
        request = rf.get("/")
        request.user = user
        request._messages = []  # what a middleware would have put there
        yield view(request, *args).render().content.decode()

"""`statemachine_graph`: what is drawn for which label, and the file that CI holds to the models."""

import re
from io import StringIO

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.utils import translation

from lab.models import Chore, Invoice, Ticket
from statemachine_fields.management.commands.statemachine_graph import Command

INVOICE = """\
## `lab.Invoice.states`

```mermaid
stateDiagram-v2
    state "Draft" as DRAFT
    state "Sent" as SENT
    [*] --> DRAFT
    DRAFT --> SENT
    SENT --> [*]
```

## `lab.Invoice.payment`

```mermaid
stateDiagram-v2
    state "Due" as DUE
    state "Paid" as PAID
    state "Refunded" as REFUNDED
    [*] --> DUE
    DUE --> PAID
    PAID --> REFUNDED
    REFUNDED --> [*]
```
"""


def run(*arguments, **options):
    out = StringIO()
    call_command("statemachine_graph", *arguments, stdout=out, **options)
    return out.getvalue()


def headings(drawing):
    return re.findall("^## `(.*)`$", drawing, re.MULTILINE)


@pytest.mark.parametrize("kind", ["mermaid", "dot", "markdown", "svg"])
def test_one_machine_is_the_bare_diagram(kind):
    assert run("lab.Invoice.payment", "--format", kind) == Invoice.payment.diagram(kind)


def test_details_are_shown_when_asked_for():
    assert run("lab.Chore", "--details") == Chore.states.diagram(details=True)
    both = run("lab.Chore", "lab.Ticking", "--details")
    assert "    FRESH --> STALE: after 1 minute\n" in both
    assert "    NEW --> FAILED: after 3 tries\n" in both


def test_a_file_with_details_is_compared_with_details(tmp_path):
    path = tmp_path / "states.md"
    run("lab.Chore", "--details", output=str(path))
    assert "up to date" in run("lab.Chore", "--details", check=str(path))
    path.write_text("")
    with pytest.raises(CommandError, match="statemachine_graph lab.Chore --details --output"):
        run("lab.Chore", "--details", check=str(path))


def test_several_machines_are_markdown_with_a_mermaid_block_each():
    assert run("lab.Invoice") == INVOICE


@pytest.mark.parametrize("kind", ["dot", "markdown"])
def test_several_machines_of_other_formats_follow_each_other(kind):
    assert run("lab.Invoice", format=kind) == f"{Invoice.states.diagram(kind)}\n{Invoice.payment.diagram(kind)}"


def test_without_labels_every_machine_is_drawn_once():
    drawn = headings(run())

    assert len(drawn) == len(set(drawn))
    assert {"shop.Order.states", "lab.Vehicle.states", "lab.Car.fuel", "lab.Lamp.states"} <= set(drawn)
    assert not any(name.startswith("lab.RacingCar.") for name in drawn)


def test_app_is_drawn_alone():
    assert headings(run("shop")) == ["shop.Order.states", "shop.Parcel.states"]


def test_labels_are_drawn_in_their_order_and_once():
    drawn = headings(run("shop.Order.states", "lab.Invoice.payment", "lab.Invoice", "shop"))

    assert drawn == ["shop.Order.states", "lab.Invoice.payment", "lab.Invoice.states", "shop.Parcel.states"]


@pytest.mark.parametrize("label", ["lab.Car", "lab.RacingCar"])
def test_child_and_proxy_show_what_they_share_under_the_owners_name(label):
    assert sorted(headings(run(label))) == ["lab.Car.fuel", "lab.Vehicle.states"]


def test_name_of_a_model_is_read_as_django_reads_it():
    assert run("lab.invoice.payment") == Invoice.payment.diagram()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "png"], "png"),
        (
            ["lab.Invoice", "--format", "svg"],
            r"An SVG shows one machine\. Name one of: .*states, lab\.Invoice\.payment\.$",
        ),
        (["--output", "{tmp_path}/missing/states.md"], "^Cannot write .*: No such file or directory"),
        (["--check", "{tmp_path}"], "^Cannot read "),
    ],
    ids=["unknown format", "an SVG of several machines", "output that cannot be written", "check of what is no file"],
)
def test_what_cannot_be_drawn_is_refused(arguments, message, tmp_path):
    with pytest.raises(CommandError, match=message):
        run(*[each.format(tmp_path=tmp_path) for each in arguments])


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("shpo", r"^No app 'shpo' with a state machine\. Did you mean 'shop'\? There are: .*\blab\b"),
        ("auth", r"^No app 'auth' with a state machine\. There are: .*\bshop\b"),
        ("", "^No app '' with a state machine"),
        (
            "lab.Invoce",
            r"^No model 'Invoce' with a state machine in lab\. Did you mean 'Invoice'\? There are: .*Ticket",
        ),
        ("shop.", r"^No model '' with a state machine in shop\. There are: Order, Parcel\.$"),
        (
            "lab.Invoice.paymnt",
            r"^No state machine 'paymnt' on lab\.Invoice\. Did you mean 'payment'\? There are: states, payment\.$",
        ),
        ("lab.Invoice.payment_status", "Did you mean 'payment'"),
        ("lab.Invoice.states.x", r"^No state machine 'states\.x' on lab\.Invoice"),
    ],
)
def test_unknown_label_is_refused_with_what_there_is(label, message):
    with pytest.raises(CommandError, match=message):
        run(label)


def test_project_without_machines_says_so(monkeypatch):
    monkeypatch.setattr(apps, "get_models", list)

    with pytest.raises(CommandError, match=r"^No installed app has a model with a state machine\."):
        run()


def test_labels_are_in_the_language_of_the_settings_whatever_is_active():
    with override_settings(LANGUAGE_CODE="de"), translation.override("fr"):
        assert "Montag" in run("lab.Ticket")
        assert "lundi" in Ticket.states.diagram()
        assert translation.get_language() == "fr"


def test_output_writes_the_file_and_says_so(tmp_path):
    path = tmp_path / "states.md"

    assert run("lab.Invoice", "--output", str(path)) == f"Wrote {path}.\n"
    assert path.read_bytes().decode() == INVOICE


def test_check_passes_for_a_file_that_is_up_to_date(tmp_path):
    path = tmp_path / "states.md"
    run("--output", str(path))

    assert run("--check", str(path)) == f"{path} is up to date.\n"


def test_check_takes_the_line_ends_of_any_system(tmp_path):
    path = tmp_path / "states.md"
    path.write_text(INVOICE, newline="\r\n")

    assert "is up to date" in run("lab.Invoice", "--check", str(path))


def test_check_fails_with_a_diff_and_the_command_to_run(tmp_path):
    path = tmp_path / "my states.md"
    path.write_text(INVOICE.replace("    DRAFT --> SENT\n", ""))
    out = StringIO()

    with pytest.raises(CommandError) as caught:
        call_command("statemachine_graph", "lab.Invoice", "--check", str(path), stdout=out)

    assert caught.value.returncode == 1
    assert str(caught.value) == (
        f"{path} is out of date. Run: manage.py statemachine_graph lab.Invoice --output '{path}'"
    )
    assert "+    DRAFT --> SENT\n     SENT --> [*]\n" in out.getvalue()
    assert out.getvalue().startswith(f"--- {path}\n+++ the models\n@@ ")


def test_check_sees_a_missing_end_of_line(tmp_path):
    path = tmp_path / "states.md"
    path.write_text(INVOICE.rstrip("\n"))

    with pytest.raises(CommandError, match="is out of date"):
        run("lab.Invoice", "--check", str(path))


def test_check_fails_for_a_file_that_is_missing(tmp_path):
    path = tmp_path / "states.dot"
    out = StringIO()

    with pytest.raises(CommandError, match=r"does not exist\. Run: manage\.py .* shop --format dot --output "):
        call_command("statemachine_graph", "shop", "--format", "dot", "--check", str(path), stdout=out)

    assert '+digraph "shop.Order.states" {\n' in out.getvalue()
    assert not path.exists()


def test_output_and_check_exclude_each_other(tmp_path):
    path = tmp_path / "states.md"

    with pytest.raises(CommandError, match="Give one of the two"):
        run("--output", str(path), "--check", str(path))
    assert not path.exists()


def test_project_that_fails_its_checks_can_be_drawn():
    assert Command.requires_system_checks == []


def test_help_shows_examples():
    text = Command().create_parser("manage.py", "statemachine_graph").format_help()

    assert "\n  manage.py statemachine_graph --check docs/states.md  " in text
    assert "app.Model.accessor" in text

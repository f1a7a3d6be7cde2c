"""Every example of the README and the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.docs.pages import Page, all_pages, read_page
from tests.docs.runner import Library, commands, compile_examples, merged
from tests.settings import SMF_DB

PAGES = {page.name: page for page in map(read_page, all_pages())}


def why_not(page: Page) -> str:
    """Return why a page cannot be followed here, or nothing."""
    if page.database != SMF_DB:
        return f"the page makes a project on {page.database}, so one run is enough"
    missing = [name for name in page.needs if find_spec(name) is None]
    return f"{', '.join(missing)} not installed; `nox -s ways_in` installs it" if missing else ""


@pytest.fixture(scope="module")
def library(tmp_path_factory, request, django_db_blocker):
    """All pages that were asked for, under way. A worker of pytest-xdist starts only those that it gets."""
    library = Library(tmp_path_factory.mktemp("docs"))
    with django_db_blocker.unblock():  # to make a database for a page
        if not hasattr(request.config, "workerinput"):
            for item in request.session.items:
                if getattr(item, "originalname", "") == test_page_does_what_it_says.__name__:
                    page = PAGES[item.callspec.params["name"]]
                    if not why_not(page):
                        library.follow(page.path)
        yield library
        library.close()


@pytest.mark.parametrize("name", PAGES)
def test_page_does_what_it_says(name, request):
    if reason := why_not(PAGES[name]):
        compile_examples(PAGES[name])
        pytest.skip(reason)
    request.getfixturevalue("library").follow(PAGES[name].path).result()


def test_commands_are_told_from_their_output():
    text = "$ python manage.py check\nall is well\n\nand so on\n$ cd \\\n  shop\n"

    assert list(commands(text)) == [
        ("python manage.py check", "all is well\n\nand so on"),
        ("cd   shop", ""),
    ]


def test_merging_replaces_what_has_the_same_name_and_adds_the_rest():
    old = "import a\n\nX = [\n    1,\n]\n\n\n@a.b\nclass C:\n    pass\n"

    assert merged(old, "# the file\nimport b\nimport a\nX = 2\n\n@b.c\nclass C:\n    y = 1\n\nZ = 3\n") == (
        "import b\nimport a\n\nX = 2\n\n\n@b.c\nclass C:\n    y = 1\n\nZ = 3\n"
    )

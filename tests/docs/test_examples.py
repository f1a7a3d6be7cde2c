"""Every example of the README and the documentation runs, and prints what the page says it prints."""

from __future__ import annotations

import pytest

from tests.docs.pages import all_pages, read_page
from tests.docs.runner import Library, commands, merged
from tests.settings import SMF_DB

PAGES = {page.name: page.path for page in map(read_page, all_pages())}


@pytest.fixture(scope="module")
def library(tmp_path_factory, request):
    """All pages that were asked for, under way. A worker of pytest-xdist starts only those that it gets."""
    library = Library(tmp_path_factory.mktemp("docs"))
    if not hasattr(request.config, "workerinput"):
        for item in request.session.items:
            if getattr(item, "originalname", "") == test_page_does_what_it_says.__name__:
                library.follow(PAGES[item.callspec.params["name"]])
    yield library
    library.pool.shutdown(cancel_futures=True)


@pytest.mark.skipif(SMF_DB != "sqlite", reason="examples make SQLite projects of their own, so one run is enough")
@pytest.mark.parametrize("name", PAGES)
def test_page_does_what_it_says(name, library):
    library.follow(PAGES[name]).result()


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

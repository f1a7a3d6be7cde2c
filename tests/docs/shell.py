"""What a page types into `manage.py shell`, and whether it answered as the page says. Runs inside that shell."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path
from typing import Any


def run(script: str, page: str, names: dict[str, Any]) -> None:
    """Run the lines of a script in the order they stand, all of them, and exit with 1 if one answered otherwise."""
    test = doctest.DocTestParser().get_doctest(Path(script).read_text(), names, page, page, 0)
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
    sys.exit(1 if result.failed else 0)

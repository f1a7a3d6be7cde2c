"""How Sphinx builds this documentation: `python3 dev.py docs`."""

import os
import sys
from importlib import metadata
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parent.parent

# The reference is made from docstrings, and models can only be imported with settings.
sys.path.insert(0, str(ROOT / "testproject"))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
django.setup()

project = "django-statemachine-fields"
author = "The statemachine_fields contributors"
copyright = "The statemachine_fields contributors"
release = metadata.version("django-statemachine-fields")
version = ".".join(release.split(".")[:2])

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
default_role = "code"  # docstrings write code in single backticks

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # annotations name type variables and aliases; the docstrings say what to pass

smartquotes_action = "D"  # dashes only: messages and states are quoted as the code prints them

html_theme = "furo"
html_title = f"django-statemachine-fields {version}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sphinx = False

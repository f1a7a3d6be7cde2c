"""Settings of the benchmark of pages: the project's own, on the benchmark's database."""

from __future__ import annotations

import os

from config.settings import *  # noqa: F403
from tests import database_url

DATABASES = {"default": database_url.parse(os.environ["BENCHMARK_DATABASE"])}
DEBUG = False
ROOT_URLCONF = "pages_urls"

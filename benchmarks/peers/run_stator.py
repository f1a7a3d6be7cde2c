"""Run Stator until it is ended: what its own command does, with the defaults of the runner."""

import django

django.setup()

from compared.models import FailingStatorOrder, StatorOrder  # noqa: E402
from django_stator.runner import StatorRunner  # noqa: E402

StatorRunner([StatorOrder, FailingStatorOrder]).run()

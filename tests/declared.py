"""Models that a test declares for itself, where a class statement would say no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from django.db import models

NOTHING: Mapping[str, Any] = MappingProxyType({})


def lab_model(*bases: type, name: str = "Order", meta: Mapping[str, Any] = NOTHING, **body: Any) -> Any:
    """Declare a model of the app `lab`, in the registry that is there."""
    options = type("Meta", (), {"app_label": "lab", **meta})
    return type(name, bases or (models.Model,), {"__module__": __name__, "Meta": options, **body})

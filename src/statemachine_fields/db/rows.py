"""The rows of a table, past every manager, and what one is called."""

from __future__ import annotations

from typing import Any

from django.db import models


def all_rows(model: type[models.Model], using: str | None = None) -> models.QuerySet[Any]:
    """Return every row of a model's table. Its managers may leave some out, the base manager too: that of a model whose
    rows are deleted by a mark often does."""
    return models.QuerySet(model, using=using)


def row_label(instance: models.Model) -> str:
    """Name a row in errors and logs."""
    return f"{instance._meta.label} pk={instance.pk!r}"

"""The admin of the reference page, as printed there."""

from django.contrib import admin

from reference.models import TaskExecutionStateTransition  # type: ignore[attr-defined]


@admin.register(TaskExecutionStateTransition)
class TaskExecutionStateTransitionAdmin(admin.ModelAdmin):
    list_display = ["id", "instance", "from_status", "to_status", "transitioned_at"]
    list_filter = ["to_status", "from_status"]
    readonly_fields = ["id", "instance", "from_status", "to_status", "transitioned_at", "metadata"]

"""Record who made a request and which one it was with each transition made while it is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from statemachine_fields.conf import settings
from statemachine_fields.machine.context import transition_context

#: A header is the client's to choose, and is kept with every transition.
LONGEST_REQUEST_ID = 200


class TransitionContextMiddleware:
    """Put the user as `actor` and the request's id as `request_id` into the metadata of transitions.

    Place it below `AuthenticationMiddleware`. The user is looked up only when a transition is made. Works under WSGI and
    ASGI without a switch of threads.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._acall(request)
        with transition_context(**facts_of(request)):
            response: HttpResponseBase = self.get_response(request)
            return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        with transition_context(**facts_of(request)):
            response: HttpResponseBase = await self.get_response(request)
            return response


def facts_of(request: HttpRequest) -> dict[str, Any]:
    """Return what the metadata says of a request."""

    request_id = request.headers.get(settings().REQUEST_ID_HEADER)
    return {
        "actor": lambda: getattr(request, "user", None),
        "request_id": request_id[:LONGEST_REQUEST_ID] if request_id else None,
    }

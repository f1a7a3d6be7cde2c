"""Who and why, merged into the metadata: blocks, callables, model instances, the middleware, and the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.test.utils import override_settings

from lab.models import Document, Stamped
from statemachine_fields import InvalidStateTransition, transition_context
from statemachine_fields.middleware import TransitionContextMiddleware

pytestmark = pytest.mark.django_db


class TestContext:
    def test_joins_the_metadata(self, row):
        with transition_context(actor="cron", job=7):
            record = row.states.transition_to("DONE", metadata={"a": 1})
        assert record.metadata == {"actor": "cron", "job": 7, "a": 1}
        assert row.states.transition_to("NEW").metadata == {}

    def test_what_the_caller_passes_wins(self, row):
        with transition_context(actor="cron"):
            assert row.states.transition_to("DONE", metadata={"actor": "ada"}).metadata == {"actor": "ada"}

    def test_blocks_nest_and_the_inner_one_wins(self, row):
        with transition_context(actor="outer", a=1), transition_context(actor="inner"):
            assert row.states.transition_to("DONE").metadata == {"actor": "inner", "a": 1}

    def test_a_model_instance_is_its_label_key_and_text(self, row, django_user_model):
        user = django_user_model.objects.create_user("ada")
        with transition_context(actor=user):
            record = row.states.transition_to("DONE")
        assert record.metadata == {"actor": {"model": "auth.User", "pk": user.pk, "text": "ada"}}

    def test_a_callable_is_called_for_each_transition_and_none_is_left_out(self, row):
        numbers = iter([1, 2])
        with transition_context(number=lambda: next(numbers), nothing=None):
            assert row.states.transition_to("DONE").metadata == {"number": 1}
            assert row.states.transition_to("NEW").metadata == {"number": 2}

    def test_a_users_own_argument_wins_over_the_block(self, row, django_user_model):
        user = django_user_model.objects.create_user("ada")
        with transition_context(actor="cron"):
            assert row.states.transition_to("DONE", user=user).metadata["actor"]["text"] == "ada"

    def test_ends_with_the_block_even_if_that_fails(self, row):
        with pytest.raises(KeyError), transition_context(actor="cron"):
            raise KeyError
        assert row.states.transition_to("DONE").metadata == {}

    def test_does_not_leak_into_other_threads(self):
        from statemachine_fields.machine.context import with_context

        seen = []
        with transition_context(actor="cron"):
            thread = threading.Thread(target=lambda: seen.append(dict(with_context({}))))
            thread.start()
            thread.join()
        assert seen == [{}]

    def test_that_cannot_be_stored_is_refused(self, row):
        with transition_context(thing=object), pytest.raises(TypeError, match="cannot be written as JSON"):
            row.states.transition_to("DONE")


class TestMiddleware:
    def view(self, row):
        def view(request):
            row.states.transition_to("DONE")
            return HttpResponse("ok")

        return view

    def test_records_user_and_request(self, row, django_user_model):
        request = RequestFactory().get("/", headers={"X-Request-ID": "abc"})
        request.user = django_user_model.objects.create_user("ada")
        assert TransitionContextMiddleware(self.view(row))(request).content == b"ok"
        assert row.states.history.get().metadata == {
            "actor": {"model": "auth.User", "pk": request.user.pk, "text": "ada"},
            "request_id": "abc",
        }

    def test_leaves_out_what_is_not_there(self, row):
        request = RequestFactory().get("/")
        request.user = AnonymousUser()
        TransitionContextMiddleware(self.view(row))(request)
        assert row.states.history.get().metadata == {}

    def test_without_authentication(self, row):
        TransitionContextMiddleware(self.view(row))(RequestFactory().get("/"))
        assert row.states.history.get().metadata == {}

    def test_cuts_a_header_that_is_too_long_and_reads_the_one_configured(self, row):
        request = RequestFactory().get("/", headers={"X-Trace": "x" * 500})
        with override_settings(STATEMACHINE_FIELDS={"REQUEST_ID_HEADER": "X-Trace"}):
            TransitionContextMiddleware(self.view(row))(request)
        assert row.states.history.get().metadata == {"request_id": "x" * 200}

    def test_does_not_look_up_the_user_without_a_transition(self, django_assert_num_queries, admin_client):
        with (
            override_settings(
                MIDDLEWARE=[
                    "django.contrib.sessions.middleware.SessionMiddleware",
                    "django.contrib.auth.middleware.AuthenticationMiddleware",
                    "django.contrib.messages.middleware.MessageMiddleware",
                    "statemachine_fields.middleware.TransitionContextMiddleware",
                ]
            ),
            django_assert_num_queries(0),
        ):
            admin_client.get("/nowhere/")


def run(coroutine):
    """Run on an event loop, and close the connections of the thread that its queries were made in."""

    async def and_close():
        try:
            return await coroutine
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(and_close())


@pytest.mark.django_db(transaction=True)
class TestUnderAnEventLoop:
    async def arow(self) -> Stamped:
        return await Stamped.objects.acreate()

    def test_the_async_twins(self):
        async def main():
            row = await self.arow()
            assert await row.states.acan_transition_to("DONE") is True
            assert await row.states.ablockers("DONE") == []
            with transition_context(actor="loop"):
                record = await row.states.atransition_to("DONE", {"a": 1})
            assert record.metadata == {"actor": "loop", "a": 1}
            with pytest.raises(InvalidStateTransition):
                await row.states.atransition_to("FAILED")
            await row.states.aforce_transition_to("FAILED", reason="test")
            assert [t.to_status async for t in row.states.history] == ["FAILED", "DONE"]

        run(main())

    def test_the_context_of_one_task_is_not_anothers(self):
        async def move(row, name):
            with transition_context(actor=name):
                await asyncio.sleep(0)
                return (await row.states.atransition_to("DONE")).metadata

        async def main():
            rows = [await self.arow() for _ in range(5)]
            return await asyncio.gather(*(move(row, f"task {n}") for n, row in enumerate(rows)))

        assert run(main()) == [{"actor": f"task {n}"} for n in range(5)]

    def test_the_middleware_serves_async_views(self, django_user_model):
        user = django_user_model.objects.create_user("ada")

        async def main():
            row = await self.arow()

            async def view(request):
                await row.states.atransition_to("DONE")
                return HttpResponse("ok")

            request = AsyncRequestFactory().get("/", headers={"X-Request-ID": "abc"})
            request.user = user
            response = await TransitionContextMiddleware(view)(request)
            assert response.content == b"ok"
            return await sync_to_async(lambda: row.states.history.get().metadata)()

        assert run(main())["actor"]["text"] == "ada"

    def test_guards_that_query_run_outside_the_loop(self):
        async def main():
            document = await Document.objects.acreate(words=3)
            await document.states.atransition_to("REVIEW")
            return document.status

        assert run(main()) == "REVIEW"

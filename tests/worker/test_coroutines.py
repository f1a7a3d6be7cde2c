"""Coroutines share an event loop and a few threads, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from lab.models import Ping
from statemachine_fields.worker import coroutines as module
from statemachine_fields.worker.coroutines import CoroutineExecutor, CoroutineThreads, EventLoop
from statemachine_fields.worker.executor import HandlerExecutor
from statemachine_fields.worker.outcomes import Failed, Transitioned
from tests.patience import PATIENCE
from tests.worker.rows import lease_on, not_mariadb

pytestmark = not_mariadb


@pytest.fixture
def is_open(monkeypatch):
    """Say that a thread has something open that only one coroutine may meet."""
    opened = threading.local()
    monkeypatch.setattr(module, "_is_anything_open", lambda: getattr(opened, "is_set", False))

    def leave_open(is_set=True):
        opened.is_set = is_set
        return threading.get_ident()

    return leave_open


@pytest.fixture
def lend():
    """Make executors of a number of threads, which are ended with the test."""
    executors = []

    def make(threads, number):
        shared = CoroutineThreads(threads)
        made = [CoroutineExecutor(shared) for _ in range(number)]
        executors.extend(made)
        return made

    yield make
    for executor in executors:
        executor.finish().result(PATIENCE)


def ident(executor):
    return executor.submit(threading.get_ident).result(PATIENCE)


def wait_until_over(executor):
    """Wait until no call is under way: its result is known a moment before."""
    until = time.monotonic() + 10
    while executor._under_way and time.monotonic() < until:
        time.sleep(0.001)


class TestThreads:
    def test_each_coroutine_keeps_its_own(self, lend):
        first, second = lend(2, 2)
        threads = [ident(executor) for executor in (first, second, first, second)]
        assert threads[:2] == threads[2:]
        assert len({*threads, threading.get_ident()}) == 3

    def test_there_are_no_more_than_allowed(self, lend):
        assert len({ident(executor) for executor in lend(2, 20)}) == 2

    def test_one_with_nothing_open_is_given_up_to_who_waits(self, lend):
        first, second = lend(1, 2)
        assert ident(first) == ident(second) == ident(first)

    def test_one_with_something_open_is_not(self, lend, is_open):
        first, second = lend(1, 2)
        thread = first.submit(is_open).result(PATIENCE)
        wait_until_over(first)
        waiting = second.submit(threading.get_ident)
        assert ident(first) == thread
        assert not waiting.done()
        first.submit(is_open, False).result(PATIENCE)
        assert waiting.result(PATIENCE) == thread

    def test_one_with_a_call_under_way_is_not(self, lend, is_open):
        """The call may open something."""
        first, second = lend(1, 2)
        go = threading.Event()
        running = first.submit(lambda: go.wait(PATIENCE) and is_open())
        waiting = second.submit(threading.get_ident)
        go.set()
        assert ident(first) == running.result(PATIENCE)
        assert not waiting.done()
        first.submit(is_open, False).result(PATIENCE)
        assert waiting.result(PATIENCE) == running.result()

    def test_those_who_wait_longest_come_first(self, lend, is_open):
        first, *others = lend(1, 4)
        first.submit(is_open).result(PATIENCE)
        order = []
        waiting = [other.submit(order.append, number) for number, other in enumerate(others)]
        first.submit(is_open, False)
        for each in waiting:
            each.result(PATIENCE)
        assert order == [0, 1, 2]

    def test_the_end_of_a_coroutine_leaves_its_thread_to_others(self, lend, is_open):
        first, second = lend(1, 2)
        thread = first.submit(is_open).result(PATIENCE)
        waiting = second.submit(is_open, False)
        first.finish().result(PATIENCE)
        assert waiting.result(PATIENCE) == thread


class TestExecutor:
    def test_calls_run_one_after_the_other(self, lend):
        (executor,) = lend(4, 1)
        order = []
        for each in [executor.submit(order.append, number) for number in range(50)]:
            each.result(PATIENCE)
        assert order == list(range(50))

    def test_what_a_call_raises_is_for_who_made_it(self, lend):
        (executor,) = lend(1, 1)
        with pytest.raises(ZeroDivisionError):
            executor.submit(lambda: 1 / 0).result(PATIENCE)
        assert ident(executor)

    def test_a_call_that_was_cancelled_is_not_made(self, lend):
        first, second = lend(1, 2)
        go, made = threading.Event(), []
        first.submit(go.wait, 10)
        second.submit(made.append, 1).cancel()
        go.set()
        second.submit(made.append, 2).result(PATIENCE)
        assert made == [2]

    def test_no_call_is_made_after_the_end(self, lend):
        (executor,) = lend(1, 1)
        executor.finish().result(PATIENCE)
        with pytest.raises(RuntimeError, match="The handler has ended"):
            executor.submit(threading.get_ident)

    def test_a_coroutine_that_made_no_call_ends_without_a_thread(self, lend):
        first, second = lend(1, 2)
        ident(first)
        assert second.finish().done()

    @pytest.mark.django_db(transaction=True)
    def test_what_a_coroutine_leaves_open_is_gone_with_it(self, lend):
        first, second = lend(1, 2)

        def leave_open():
            transaction.atomic().__enter__()
            return connections["default"].in_atomic_block

        assert first.submit(leave_open).result(PATIENCE)
        waiting = second.submit(lambda: connections["default"].in_atomic_block)
        assert not waiting.done()
        first.finish().result(PATIENCE)
        assert waiting.result(PATIENCE) is False
        second.submit(connections.close_all).result(PATIENCE)


class Loop:
    """An event loop in a thread of its own, and what became of the rows it was given."""

    def __init__(self, threads=2):
        self.loop = EventLoop(HandlerExecutor(max_crashes=5), most=10, threads=threads)
        threading.Thread(target=self.loop.run, daemon=True).start()

    def run(self, *leases):
        outcomes, done = {}, threading.Semaphore(0)

        def finish(lease, outcome):
            outcomes[lease] = outcome
            done.release()

        for lease in leases:
            assert self.loop.has_room(10)
            self.loop.start(lease, finish)
        for _ in leases:
            assert done.acquire(timeout=PATIENCE)
        return [outcomes[lease] for lease in leases]


@pytest.fixture
def loop():
    return Loop()


def answer(monkeypatch, program):
    async def handle(ping, ctx):
        await program(ping)
        return "ANSWERED"

    monkeypatch.setattr(Ping, "await_answer", handle)


class TestEventLoop:
    def test_runs_handlers_side_by_side(self, loop, pings, monkeypatch):
        """Each waits for the other."""
        events = {1: asyncio.Event(), 2: asyncio.Event()}

        async def meet(ping):
            events[ping.pk].set()
            await events[3 - ping.pk].wait()

        answer(monkeypatch, meet)
        outcomes = loop.run(lease_on(pings, 1), lease_on(pings, 2))
        assert [type(outcome) for outcome in outcomes] == [Transitioned, Transitioned]

    def test_gives_each_coroutine_a_thread_of_its_own_for_the_orm(self, loop, pings, monkeypatch):
        threads, both = {}, asyncio.Event()

        async def look(ping):
            threads[ping.pk] = {await sync_to_async(threading.get_ident)()}
            if len(threads) == 2:
                both.set()
            await both.wait()
            threads[ping.pk].add(await sync_to_async(threading.get_ident)())

        answer(monkeypatch, look)
        loop.run(lease_on(pings, 1), lease_on(pings, 2))
        assert [len(seen) for seen in threads.values()] == [1, 1]
        assert threads[1] != threads[2]

    @pytest.mark.django_db(transaction=True)
    def test_lets_no_coroutine_meet_a_transaction_of_another(self, pings, monkeypatch):
        loop, seen = Loop(threads=1), []

        async def leave_open(ping):
            seen.append(await sync_to_async(lambda: connections["default"].in_atomic_block)())
            await sync_to_async(transaction.atomic().__enter__)()

        answer(monkeypatch, leave_open)
        loop.run(*[lease_on(pings, key) for key in range(4)])
        assert seen == [False] * 4

    @pytest.mark.parametrize("does", ["stops it", "ends a task of its own"])
    def test_survives_what_a_handler_does_to_it(self, does, loop, pings, monkeypatch):
        async def leave():
            raise SystemExit(3)

        async def harm(ping):
            if does == "stops it":
                asyncio.get_running_loop().stop()
                await asyncio.sleep(0)
            else:
                task = asyncio.create_task(leave())
                await asyncio.sleep(0.01)
                assert isinstance(task.exception(), SystemExit)

        answer(monkeypatch, harm)
        for key in range(2):
            (outcome,) = loop.run(lease_on(pings, key))
            assert type(outcome) is Transitioned

    def test_makes_room_again_whatever_became_of_a_handler(self, loop, pings, monkeypatch):
        async def fail(ping):
            raise ValueError("no")

        answer(monkeypatch, fail)
        for _ in range(3):
            outcomes = loop.run(*[lease_on(pings, key) for key in range(10)])
            assert {type(outcome) for outcome in outcomes} == {Failed}
        assert loop.loop.tasks == {}

    def test_a_handler_that_is_cancelled_because_its_time_is_up_has_no_outcome(self, loop, pings, monkeypatch):
        started = threading.Event()

        async def hang(ping):
            started.set()
            await asyncio.sleep(60)

        answer(monkeypatch, hang)
        lease = lease_on(pings)

        def stop():
            started.wait(PATIENCE)
            lease.stop()
            loop.loop.cancel(lease)

        threading.Thread(target=stop).start()
        assert loop.run(lease) == [None]

    def test_knows_when_it_is_blocked_and_by_whom(self, loop, pings, monkeypatch):
        monkeypatch.setattr(module, "BLOCKED_AFTER", 0.01)
        go, started = threading.Event(), threading.Event()

        async def block(ping):
            started.set()
            go.wait(PATIENCE)

        answer(monkeypatch, block)
        lease, found = lease_on(pings), []

        def ask():
            started.wait(PATIENCE)
            while not loop.loop.is_blocked():
                pass
            found.append(loop.loop.blocked_by())
            go.set()

        thread = threading.Thread(target=ask)
        thread.start()
        loop.run(lease)
        thread.join(PATIENCE)
        assert found == [lease]

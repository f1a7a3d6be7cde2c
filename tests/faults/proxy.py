"""A proxy between workers and PostgreSQL that is slow, falls silent, cuts connections and loses replies.

    with Proxy(server.directory) as proxy:
        start_worker(environment=injected(database=proxy.place))
        proxy.silence()

It listens on a unix socket in a directory of its own, forwards to the server's socket, and runs in a thread of the test, so
that it can be told what to do at any time. What it does holds from the next bytes on.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.patience import PATIENCE

PORT = 5432

CHUNK = 2**16

#: The end of a reply: ReadyForQuery, with any of the states idle, in a transaction, in a failed transaction.
READY = tuple(b"Z\0\0\0\5" + status for status in (b"I", b"T", b"E"))

Answer = TypeVar("Answer")


class Proxy:
    """One socket that leads to a server, with switches for all that can go wrong on the way.

    :param directory: where the server's socket is.
    :param port: the server's port, and the proxy's.
    :param chance: the source of random numbers, so that a test can be repeated.
    """

    def __init__(self, directory: Path | str, port: int = PORT, *, chance: random.Random | None = None) -> None:
        # Below /tmp by name: a unix socket path holds about 100 bytes, and TMPDIR may be longer than that.
        self.directory = Path(tempfile.mkdtemp(prefix="smf-proxy-", dir="/tmp"))
        self.port = port
        self.target = Path(directory) / f".s.PGSQL.{port}"
        self.chance = chance or random.Random()
        #: How many connections were made, cut, and cut in place of a reply.
        self.accepted = self.cuts = self.lost = 0
        self._delay = 0.0
        self._speaks_to_new = True
        self._losing = _Losing(0)
        self._open: set[_Connection] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server = self._await(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def place(self) -> dict[str, str]:
        """What differs in `DATABASES` for those who go through the proxy."""
        return {"HOST": str(self.directory), "PORT": str(self.port)}

    def url(self, name: str, user: str = "postgres") -> str:
        """Return the URL of one of the server's databases, through the proxy."""
        return f"postgresql://{user}@/{name}?host={self.directory}&port={self.port}"

    def connections(self) -> int:
        """Return how many connections are open."""
        return self._do(lambda: len(self._open))

    # What can go wrong.

    def latency(self, seconds: float) -> None:
        """Let all that is said take so long, each way."""
        self._delay = seconds

    def silence(self) -> int:
        """Forward nothing more on the connections there are, and return their number. They stay open, and neither side
        learns that the other has gone. New ones work."""
        return self._do(self._silence)

    def silence_all(self) -> int:
        """Forward nothing more, on new connections neither: they are accepted, and hang."""

        def silence() -> int:
            self._speaks_to_new = False
            return self._silence()

        return self._do(silence)

    def speak(self) -> None:
        """Forward again, and all that was said during the silence, goodbyes too."""

        def speak() -> None:
            self._speaks_to_new = True
            for connection in self._open:
                connection.speaks.set()

        self._do(speak)

    def forget(self) -> int:
        """Close the connections that are silent without delivering anything, and return their number."""

        def forget() -> int:
            silent = [connection for connection in self._open if not connection.speaks.is_set()]
            for connection in silent:
                connection.cut()
            return len(silent)

        return self._do(forget)

    def cut(self, share: float = 1.0, chance: random.Random | None = None) -> int:
        """Close a random share of the connections, at least one if there is any and a share; return how many."""

        def cut() -> int:
            there = sorted(self._open, key=lambda connection: connection.number)
            number = min(len(there), max(1, round(len(there) * share))) if share else 0
            for connection in (chance or self.chance).sample(there, number):
                connection.cut()
            self.cuts += number
            return number

        return self._do(cut)

    def lose_replies(self, number: int | None = None, *, share: float = 1.0, containing: bytes = b"") -> None:
        """Cut connections in place of a reply: the server has done what it was asked to, and nobody learns of it.

        :param number: how many replies to lose; without one, until told otherwise, and 0 for no more.
        :param share: the probability for each request.
        :param containing: only of requests with these bytes. A statement that is prepared is not sent again.
        """
        self._losing = _Losing(number, share, containing)

    def close(self) -> None:
        """Cut all connections, and listen no more."""
        if self._thread.is_alive():
            self._await(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE)
        shutil.rmtree(self.directory, ignore_errors=True)

    # In the thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _do(self, act: Callable[[], Answer]) -> Answer:
        """Act in the thread, where nothing else happens meanwhile, and return what came of it."""

        async def coroutine() -> Answer:
            return act()

        return self._await(coroutine())

    def _await(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    async def _listen(self) -> asyncio.Server:
        path = self.directory / f".s.PGSQL.{self.port}"
        server = await asyncio.start_unix_server(self._accept, path, limit=CHUNK)
        path.chmod(0o777)
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        connection = _Connection(self, self.accepted, reader, writer)
        self._open.add(connection)
        await connection.run()

    def _silence(self) -> int:
        for connection in self._open:
            connection.speaks.clear()
        return len(self._open)

    async def _close(self) -> None:
        self._server.close()
        for connection in [*self._open]:
            connection.cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Losing:
    """Which replies to lose."""

    def __init__(self, number: int | None, share: float = 1.0, containing: bytes = b"") -> None:
        self.number, self.share, self.containing = number, share, containing

    def takes(self, request: bytes, chance: random.Random) -> bool:
        if self.number == 0 or self.containing not in request or chance.random() >= self.share:
            return False
        if self.number is not None:
            self.number -= 1
        return True


class _Connection:
    """One client, and its connection to the server."""

    def __init__(self, proxy: Proxy, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy, self.number = proxy, number
        self._reader, self._writer = reader, writer
        self._to_server: asyncio.StreamWriter | None = None
        self.speaks = asyncio.Event()
        if proxy._speaks_to_new:
            self.speaks.set()
        #: The client has had a reply to all it has said, and the next it says is a request.
        self._is_idle = False
        self._loses_reply = self._is_cut = False

    async def run(self) -> None:
        try:
            await self.speaks.wait()
            if self._is_cut:
                return
            from_server, self._to_server = await asyncio.open_unix_connection(self.proxy.target, limit=CHUNK)
            ways = [self._forward_requests(from_server), self._forward_replies(from_server)]
            await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.ALL_COMPLETED)
        except OSError:  # the server is away: the client meets a closed connection
            pass
        finally:
            self.cut()

    def cut(self) -> None:
        """Close both sides at once. What was not forwarded is lost."""
        self._is_cut = True
        for writer in (self._writer, self._to_server):
            if writer is not None:
                writer.transport.abort()
        self.speaks.set()
        self.proxy._open.discard(self)

    async def _forward_requests(self, from_server: asyncio.StreamReader) -> None:
        assert self._to_server is not None
        while said := await self._hear(self._reader):
            if self._is_idle:
                self._loses_reply = self.proxy._losing.takes(said, self.proxy.chance)
            self._is_idle = False
            if not await self._say(self._to_server, said):
                break
        self.cut()

    async def _forward_replies(self, from_server: asyncio.StreamReader) -> None:
        while said := await self._hear(from_server):
            is_whole = said.endswith(READY)
            if self._loses_reply:
                if is_whole:
                    self.proxy.lost += 1
                    break
                continue
            self._is_idle = is_whole  # before it is said: the next request may be here by the time we look again
            if not await self._say(self._writer, said):
                break
        self.cut()

    async def _hear(self, reader: asyncio.StreamReader) -> bytes:
        """Return what is said next, when it is to be forwarded; nothing at the end."""
        try:
            said = await reader.read(CHUNK)
        except OSError:
            said = b""
        if self.proxy._delay:
            await asyncio.sleep(self.proxy._delay)
        await self.speaks.wait()
        return b"" if self._is_cut else said

    @staticmethod
    async def _say(writer: asyncio.StreamWriter, said: bytes) -> bool:
        try:
            writer.write(said)
            await writer.drain()
        except (OSError, RuntimeError):  # the other side is gone, or was cut
            return False
        return True

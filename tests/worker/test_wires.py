"""Pipes that are waited for, whatever their numbers are."""

import fcntl
import os
import resource

import pytest

from statemachine_fields.worker.inflight import Wake
from statemachine_fields.worker.wires import is_writable
from tests.patience import PATIENCE

#: What `select()` refuses.
ABOVE = 1500


@pytest.fixture(params=[0, ABOVE], ids=["low", "high"])
def pipe(request):
    """The two ends of a pipe, with low or with high numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * ABOVE)), hard))
    low = os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, request.param) for end in low]
    assert all(end >= request.param for end in ends)
    for end in low:
        os.close(end)
    with os.fdopen(ends[0], "rb", buffering=0) as reader, os.fdopen(ends[1], "wb", buffering=0) as writer:
        yield reader, writer
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_can_be_read_ends_a_wait(pipe):
    reader, writer = pipe
    wake = Wake()
    assert wake.wait(0, reader) == []
    writer.write(b"!")
    assert wake.wait(PATIENCE, reader) == [reader]


def test_says_what_can_be_written(pipe):
    _reader, writer = pipe
    assert is_writable(writer)
    os.set_blocking(writer.fileno(), False)
    while writer.write(b"!" * 65536):
        continue
    assert not is_writable(writer)
    assert not is_writable(writer, 0.001)

"""The client of a bucket: what it reads, lists and writes, and that conditions hold though answers are lost."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from penstock._src.system.files import open_source, refresh
from penstock._src.system.files.remote import client as clients
from penstock._src.system.files.remote.client import client_of, split_url
from penstock._src.system.files.remote.held import held
from penstock._src.system.files.remote.requests import RequestPool, pool
from penstock._src.system.files.remote.settings import configure, settings
from penstock.errors import (
    ConfigError,
    MissingExtra,
    RemoteChanged,
    RemoteDenied,
    RemoteError,
    RemoteMissing,
    RemoteTaken,
    RemoteUnavailable,
)
from tests.remote.server import CUT, LOST, Answer, RangeServer, Request

DATA = bytes(range(256)) * 200


def test_urls_are_split_into_place_and_key() -> None:
    assert split_url("s3://robots/day 1/run.bag") == ("s3://robots", "day 1/run.bag")
    assert split_url("https://host:8000/a/") == ("https://host:8000", "a")
    assert split_url("s3://robots") == ("s3://robots", "")
    signed = "https://host/a?X-Sig=1"
    assert split_url(signed) == (signed, "")


def test_reading_and_listing(server: RangeServer) -> None:
    stored = server.put("b", "d/x.bin", DATA)
    server.put("b", "d/e/y.bin", b"y")
    client, key = client_of("s3://b/d/x.bin")
    info = client.head(key)
    assert (info.key, info.size_bytes, info.etag) == ("d/x.bin", len(DATA), stored.etag)
    assert client.read(key, 10, 500, info.etag) == DATA[10:500]
    tail, same = client.tail(key, 1000)
    assert tail == DATA[-1000:] and same.size_bytes == len(DATA)
    assert client.tail(key, 1 << 20)[0] == DATA
    assert client.read_all(key)[0] == DATA
    assert [each.key for each in client.list_objects("d")] == ["d/e/y.bin", "d/x.bin"]
    directories, objects = client.list_directory("d")
    assert (directories, [each.key for each in objects]) == (["e"], ["d/x.bin"])
    assert client_of("s3://b/other")[0] is client


def test_a_thousand_and_more_names_come_in_pages(server: RangeServer) -> None:
    for number in range(2300):
        server.put("b", f"many/{number:05}.bin", b"")
    client, _ = client_of("s3://b")
    assert len(client.list_objects("many")) == 2300
    assert len(client.list_directory("many")[1]) == 2300


def test_a_list_that_is_cut_is_asked_for_again(server: RangeServer) -> None:
    for name in ("d/x.bin", "d/e/y.bin"):
        server.put("b", name, b"")
    client, _ = client_of("s3://b")
    for is_deep in (True, False):
        left = [CUT, CUT]
        server.fault = lambda _, left=left: left.pop() if left else None  # type: ignore[misc]
        found = client.list_objects("d") if is_deep else client.list_directory("d")[1]
        assert [each.key for each in found] == (["d/e/y.bin", "d/x.bin"] if is_deep else ["d/x.bin"]) and not left
    server.fault = lambda _: CUT
    with pytest.raises(RemoteUnavailable, match="the answer was cut at every attempt"):
        client.list_objects("d")


def test_writing_and_deleting(server: RangeServer) -> None:
    client, key = client_of("s3://b/out.bin")
    etag = client.put(key, b"one")
    assert server.buckets["b"]["out.bin"].etag == etag
    with client.writer("big.bin", buffer_bytes=5 << 20) as writer:
        for _ in range(12):
            writer.write(b"x" * (1 << 20))
        assert "big.bin" not in server.buckets["b"]
    assert server.buckets["b"]["big.bin"].data == b"x" * (12 << 20)
    with pytest.raises(ValueError, match="boom"), client.writer("half.bin") as writer:
        writer.write(b"x")
        raise ValueError("boom")
    client.delete(["out.bin", "big.bin", "never.bin"])
    client.delete([])
    assert server.buckets["b"] == {}


def test_conditional_writes(server: RangeServer) -> None:
    client, key = client_of("s3://b/meta/info.json")
    first = client.put(key, b"by me", if_absent=True)
    with pytest.raises(RemoteTaken, match=r"s3://b/meta/info\.json: somebody else wrote it first"):
        client.put(key, b"by you", if_absent=True)
    second = client.put(key, b"by me, again", if_match=first)
    with pytest.raises(RemoteTaken):
        client.put(key, b"late", if_match=first)
    assert client.head(key).etag == second


def test_a_lost_answer_to_a_conditional_write_is_no_defeat(server: RangeServer) -> None:
    puts = []

    def lose_the_first(request: object) -> str | None:
        if getattr(request, "method", "") == "PUT":
            puts.append(request)
            return LOST if len(puts) == 1 else None
        return None

    server.fault = lose_the_first
    client, key = client_of("s3://b/k")
    etag = client.put(key, b"token 7", if_absent=True)
    assert len(puts) == 2 and server.buckets["b"]["k"].etag == etag


@pytest.mark.parametrize("is_there", [True, False])
def test_an_upload_whose_end_was_not_answered_is_there(server: RangeServer, is_there: bool) -> None:
    ends = []

    def lose_the_first(request: Request) -> str | None:
        if request.method == "POST" and "uploadId" in request.query:
            ends.append(request)
            if not is_there:  # a lifecycle rule removed what was sent
                server._uploads.clear()
            return LOST if len(ends) == 1 else None
        return None

    server.fault = lose_the_first
    client, _ = client_of("s3://b")
    with contextlib.ExitStack() as refused:
        if not is_there:
            refused.enter_context(pytest.raises(RemoteMissing))
        with client.writer("big.bin", buffer_bytes=5 << 20) as writer:
            writer.write(DATA * 150)
    assert len(ends) == 2 and ("big.bin" in server.buckets["b"]) == is_there


def test_a_weak_etag_names_a_version_too(server: RangeServer) -> None:
    stored = server.put("b", "x", DATA)
    stored.etag = f"W/{stored.etag}"
    client, key = client_of("s3://b/x")
    assert client.read(key, 10, 500, stored.etag) == DATA[10:500]
    server.put("b", "x", DATA + b"more").etag = 'W/"another"'
    with pytest.raises(RemoteChanged):
        client.read(key, 10, 500, stored.etag)


@pytest.mark.parametrize("fault", [429, 503, 500, CUT, LOST])
def test_passing_faults_are_not_seen(server: RangeServer, fault: int | str) -> None:
    server.put("b", "x", DATA)
    server.fault = lambda request: fault if request.number % 2 == 0 else None
    client, key = client_of("s3://b/x")
    for begin in range(0, 2000, 100):
        assert client.read(key, begin, begin + 5000) == DATA[begin : begin + 5000]


def test_explicit_options_are_those_of_the_longest_beginning(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("b", "x", DATA)
    environment = server.environment
    for name in environment:
        monkeypatch.delenv(name)
    configure("s3://b", access_key_id="test-key", secret_access_key="test-secret", endpoint=server.url)
    client, key = client_of("s3://b/x")
    assert client.head(key).size_bytes == len(DATA)
    assert settings().options_of("s3://bucket") == {}
    configure("s3://b/private", access_key_id="other-key", secret_access_key="s", endpoint=server.url)
    server.put("b", "private/x", DATA)
    with pytest.raises(RemoteDenied):
        client_of("s3://b/private/x")[0].head("private/x")
    assert client_of("s3://b/x")[0].head("x").size_bytes == len(DATA)


def test_options_given_after_a_refusal_are_used(server: RangeServer) -> None:
    server.put("b", "x", DATA)
    configure("s3://b", access_key_id="other-key", secret_access_key="s")
    with pytest.raises(RemoteDenied):
        open_source("s3://b/x")
    configure("s3://b", access_key_id="test-key", secret_access_key="test-secret")
    assert open_source("s3://b/x").read(0, 10) == DATA[:10]


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="in_flight is 0"):
        configure(in_flight=0)
    with pytest.raises(ConfigError, match="there are in_flight"):
        configure(inflight=3)
    monkeypatch.setenv("PENSTOCK_REMOTE_IN_FLIGHT", "many")
    with pytest.raises(ConfigError, match="PENSTOCK_REMOTE_IN_FLIGHT"):
        settings()


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(MissingExtra, match=r"pip install 'penstock\[remote\]'"):
        client_of("s3://nothing/x")


def _child(queue: multiprocessing.Queue[str], use: Callable[[], object]) -> None:
    try:
        use()
    except RemoteError as error:
        queue.put(str(error))
    else:
        queue.put("")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("what", ["address", "client", "source"])
def test_a_fork_after_the_first_use_is_refused(what: str, server: RangeServer) -> None:
    """Also where the child uses what its parent opened: it would wait for ever."""
    server.put("b", "x", DATA)
    client, key = client_of("s3://b/x")
    client.head(key)
    source = open_source("s3://b/x")
    held.clear()
    uses: dict[str, Callable[[], object]] = {
        "address": lambda: client_of("s3://b/x"),
        "client": lambda: client.head(key),
        "source": lambda: source.read(0, 100),
    }
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_child, args=(queue, uses[what]))
    process.start()
    text = queue.get(timeout=240)
    process.join()
    assert "forked process" in text and "spawn" in text


def test_ctrl_c_is_heard_while_a_request_waits(server: RangeServer, request: pytest.FixtureRequest) -> None:
    asked, heard = threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def press() -> None:
        """Until it is heard: a signal just before the main thread begins to wait does not wake it."""
        asked.wait()
        while not heard.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            heard.wait(0.05)

    before = signal.signal(signal.SIGINT, interrupt)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    server.put("b", "x", DATA)
    server.gate = 2  # no answer comes
    server.fault = lambda _: asked.set()
    client, key = client_of("s3://b/x")
    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        client.head(key)
    pressing.join()
    assert len(server.requests) == 1, "it was not tried again"


def test_the_pool_keeps_order_and_bounds() -> None:
    three = RequestPool(3)
    peak, now, lock = 0, 0, threading.Lock()

    def call(number: int) -> int:
        nonlocal peak, now
        with lock:
            now += 1
            peak = max(peak, now)
        time.sleep(0.002)
        with lock:
            now -= 1
        if number == 13:
            raise ValueError("13")
        return number

    assert three.run_all([lambda n=n: call(n) for n in range(12)]) == list(range(12))  # type: ignore[misc]
    assert peak <= 3
    with pytest.raises(ValueError, match="13"):
        three.run_all([lambda n=n: call(n) for n in range(30)])  # type: ignore[misc]


def test_what_is_not_there_is_a_missing_file(server: RangeServer) -> None:
    client, key = client_of("s3://b/nothing")
    with pytest.raises(RemoteMissing) as caught:
        client.head(key)
    assert isinstance(caught.value, FileNotFoundError) and caught.value.url == "s3://b/nothing"
    assert clients.split_url(caught.value.url)[1] == "nothing"


def test_a_file_without_etag_is_read_anew_when_it_is_opened_again(
    server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, server.access_key = server._get, None

    def without_etag(bucket: str, key: str, request: Request) -> Answer:
        answer = before(bucket, key, request)
        del answer.headers["etag"]
        return answer

    monkeypatch.setattr(server, "_get", without_etag)
    for hour, data in enumerate((b"old " * 20_000, b"new " * 20_000)):
        server.put("b", "x", data).modified_s = 3600.0 * hour
        refresh(f"{server.url}/b/x")
        with open_source(f"{server.url}/b/x") as source:
            assert source.read(0, 8) == data[:8] and source.read(79_990, 8) == data[79_990:79_998]


def test_a_server_without_ranges_is_named(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m http.server` answers."""
    server.put("b", "x", DATA)
    server.access_key = None
    modified = {"last-modified": "Thu, 01 Jan 1970 00:00:00 GMT"}
    monkeypatch.setattr(server, "_get", lambda *_: Answer(200, DATA, modified))
    with pytest.raises(RemoteError, match=r"/b/x: the server gives whole files only"):
        open_source(f"{server.url}/b/x")


def test_ten_thousand_requests_with_one_failure_in_a_hundred(server: RangeServer) -> None:
    stored = server.put("b", "x", DATA)
    kinds = (429, 503, 500, CUT, LOST)
    failed: set[tuple[str, str, str]] = set()

    def fault(request: Request) -> int | str | None:
        """One range in a hundred fails, at the first attempt: that all of its attempts fail is no matter of luck."""
        number = int(request.headers["range"].removeprefix("bytes=").partition("-")[0])
        if number % 100 or request.target in failed:
            return None
        failed.add(request.target)
        return kinds[number // 100 % len(kinds)]

    server.fault = fault
    client, key = client_of("s3://b/x")

    def read(number: int) -> bool:
        begin = number % (len(DATA) - 300)
        return bytes(client.read_here(key, begin, begin + 256, stored.etag)) == DATA[begin : begin + 256]

    assert all(pool().run_all([partial(read, number) for number in range(10_000)]))
    assert len(failed) == 100 and len(server.requests) >= 10_100


def test_expired_credentials_are_named(server: RangeServer) -> None:
    server.put("b", "x", DATA)
    client, key = client_of("s3://b/x")
    server._refused = lambda _: server._error(400, "ExpiredToken")  # type: ignore[method-assign]
    with pytest.raises(RemoteDenied, match=r"credentials are refused \(ExpiredToken\)") as caught:
        client.read(key, 0, 10)
    assert "AWS_SESSION_TOKEN" in (caught.value.hint or "")


def test_what_was_asked_for_ahead_and_forgotten_is_dropped(server: RangeServer) -> None:
    from penstock._src.system.files.remote.prefetch import prefetcher

    server.put("b", "big", bytes(4 << 20))
    with open_source("s3://b/big") as source:
        source.prefetch([(0, 1 << 20)])
        again = source.prefetch([(1 << 20, 1 << 20)])
        assert prefetcher().held_bytes == 1 << 20
        again.close()
    assert prefetcher().held_bytes == 0

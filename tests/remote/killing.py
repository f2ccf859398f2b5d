"""A conversion into a bucket that is killed at its N-th request: before the store gets it, or once it is done.

The conversion runs in a child of `tests.faults.injection`, which forks; requests are seen by the server of the test, or
by a proxy before a real one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

_HEAD = b" HTTP/1.1\r\n"


class Killing:
    """Counts requests; the one with the number `number` kills the conversion. `after`: once it is done."""

    def __init__(self, server_id: int) -> None:
        self.server_id = server_id  # the process whose children convert
        self._lock = threading.Lock()
        self.arm(0, after=False)

    def arm(self, number: int, *, after: bool) -> None:
        """Count anew; 0 kills nobody."""
        with self._lock:
            self.seen, self.number, self.after = 0, number, after

    def hits(self, requests: int = 1) -> bool:
        """Count; whether the request that kills is among them."""
        with self._lock:
            before, self.seen = self.seen, self.seen + requests
            return before < self.number <= self.seen

    def kill(self) -> None:
        for number in Path(f"/proc/{self.server_id}/task/{self.server_id}/children").read_text().split():
            os.kill(int(number), signal.SIGKILL)


class Proxy:
    """Passes bytes on to a server on loopback, and counts the requests among them."""

    def __init__(self, url: str, killing: Killing) -> None:
        self._target = ("127.0.0.1", int(url.rpartition(":")[2]))
        self._killing = killing
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """After its clients have ended."""
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._pass_on, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, client: socket.socket) -> None:
        """One connection, until one side ends it or the conversion is killed."""
        kills = False
        with client, socket.create_connection(self._target) as server, suppress(OSError):
            while True:
                for each in select.select([client, server], [], [])[0]:
                    data = each.recv(1 << 16)
                    if not data:
                        return
                    if each is client:
                        kills = kills or self._killing.hits(data.count(_HEAD))
                    if kills and (each is server or not self._killing.after):
                        self._killing.kill()
                        return
                    (server if each is client else client).sendall(data)

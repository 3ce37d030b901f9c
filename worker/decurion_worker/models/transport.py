"""Connections to one model endpoint: an `httpx` transport whose cost per call does not grow with the calls in flight.

The pool that comes with `httpx` walks over all of its connections for every request: 2,000 concurrent calls of 1 s took
it 100 s of processor time (measured). Here idle connections lie on a stack. An exchange is one request and one whole
response over HTTP/1.1, read by `h11`; no redirects, cookies or retries.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import select
import time
from collections.abc import Callable
from typing import cast
from urllib.request import getproxies, proxy_bypass

import h11
import httpx

from decurion_worker.errors import OutputTooLarge

MAX_CONNECTIONS = 2048
SPARE_FILES = 256
"""Open files left to the rest of the process when its limit is lower than what `MAX_CONNECTIONS` needs."""
KEEP_ALIVE = 4.0
"""Seconds that an idle connection is kept: less than the 5 s after which a server run by uvicorn closes its end, so
that a request is seldom sent into a connection that is being closed."""
CONNECT_TIMEOUT = 10.0
MAX_CONNECTING = 256
"""How many connections are being made at a time: in a larger burst each would spend its time-out on the others."""
MAX_BODY = 32 * 1024 * 1024
MAX_HEAD = 100 * 1024


def open_transport(url: httpx.URL) -> httpx.AsyncBaseTransport:
    """The transport for calls to `url`, through a proxy where the environment (`HTTPS_PROXY`, …) names one for it.

    Certificates are checked against `SSL_CERT_FILE` or `SSL_CERT_DIR` where set, else against the bundle of `certifi`.
    """
    connections = _connections()
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and not _is_loopback(url.host) and not proxy_bypass(url.netloc.decode()):
        limits = httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=KEEP_ALIVE
        )
        return httpx.AsyncHTTPTransport(proxy=proxy, limits=limits)
    return EndpointTransport(url, max_connections=connections)


class EndpointTransport(httpx.AsyncBaseTransport):
    """Up to `max_connections` connections to the origin of `url`; requests beyond them wait in line.

    Raises what `httpx` raises, and `OutputTooLarge` for a response of more than `max_body` bytes. Only connecting has a
    time-out of its own: a caller that stops waiting (cancellation) drops the connection.
    """

    def __init__(
        self,
        url: httpx.URL,
        *,
        max_connections: int = MAX_CONNECTIONS,
        keep_alive: float = KEEP_ALIVE,
        max_body: int = MAX_BODY,
    ) -> None:
        self._host = url.host
        self._tls = httpx.create_ssl_context() if url.scheme == "https" else None
        self._port = url.port or (443 if self._tls else 80)
        # Racing addresses costs as much as connecting; an address literal has nothing to race.
        self._stagger = None if _is_address(url.host) else 0.25
        self._keep_alive = keep_alive
        self._max_body = max_body
        self._slots = asyncio.Semaphore(max_connections)
        self._connecting = asyncio.Semaphore(MAX_CONNECTING)
        self._idle: dict[_Connection, float] = {}
        self._busy: set[_Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async with self._slots:
            connection = self._reuse() or await self._open(request)
            self._busy.add(connection)
            try:
                response = await connection.exchange(request)
            except BaseException:
                connection.close()
                raise
            finally:
                self._busy.discard(connection)
            self._keep(connection)
            return response

    async def aclose(self) -> None:
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    def _reuse(self) -> _Connection | None:
        while self._idle:
            connection, since = self._idle.popitem()
            if time.monotonic() - since < self._keep_alive and connection.is_quiet():
                return connection
            connection.close()
        return None

    def _keep(self, connection: _Connection) -> None:
        if self._closed or not connection.usable:
            connection.close()
            return
        self._idle[connection] = time.monotonic()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(self._keep_alive, self._drop_stale)

    def _drop_stale(self) -> None:
        self._sweep = None
        newest_stale = time.monotonic() - self._keep_alive
        for connection, since in list(self._idle.items()):
            if since > newest_stale:
                break
            del self._idle[connection]
            connection.close()
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(self._keep_alive, self._drop_stale)

    async def _open(self, request: httpx.Request) -> _Connection:
        async with self._connecting:
            return self._reuse() or await self._connect(request)

    async def _connect(self, request: httpx.Request) -> _Connection:
        if self._closed:
            raise httpx.ConnectError("the model was closed", request=request)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._max_body, on_lost=self._forget),
                    self._host,
                    self._port,
                    ssl=self._tls,
                    server_hostname=self._host if self._tls else None,
                    happy_eyeballs_delay=self._stagger,
                )
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_TIMEOUT:g} s", request=request) from None
        except OSError as error:
            raise httpx.ConnectError(_said(error), request=request) from error
        return connection

    def _forget(self, connection: _Connection) -> None:
        self._idle.pop(connection, None)


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time. `usable` says that it can carry a (further) exchange."""

    def __init__(self, max_body: int, *, on_lost: Callable[[_Connection], None]) -> None:
        self._max_body = max_body
        self._on_lost = on_lost
        self._http = h11.Connection(our_role=h11.CLIENT, max_incomplete_event_size=MAX_HEAD)
        self._transport: asyncio.Transport | None = None
        self._request: httpx.Request | None = None
        self._answer: asyncio.Future[httpx.Response] | None = None
        self._head: h11.Response | None = None
        self._body: list[bytes] = []
        self._size = 0
        self.usable = False

    async def exchange(self, request: httpx.Request) -> httpx.Response:
        if self._transport is None or not self.usable:
            raise httpx.ConnectError("the connection was closed", request=request)
        self._request, self._head, self._body, self._size = request, None, [], 0
        self._answer = asyncio.get_running_loop().create_future()
        http = self._http
        head = h11.Request(method=request.method, target=request.url.raw_path, headers=request.headers.raw)
        sent = [http.send(head), http.send(h11.Data(data=request.content)), http.send(h11.EndOfMessage())]
        self._transport.write(b"".join(filter(None, sent)))
        try:
            return await self._answer
        finally:
            self._answer = None

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer; what comes then, mostly the end of the connection, may still lie
        unread in the socket while the loop is busy.
        """
        if self._transport is None or not self.usable:
            return False
        waiting = select.poll()
        waiting.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not waiting.poll(0)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            # What nobody asked for would be taken for the next answer.
            self.close()
            return
        self._http.receive_data(data)
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._on_lost(self)
        if self._answer is None or self._answer.done():
            return
        if exc is not None:
            self._fail(httpx.ReadError(_said(exc), request=self._request))
            return
        # A body without a length ends here; anything else is incomplete.
        if self._head is not None:
            self._http.receive_data(b"")
            self._read()
        if not self._answer.done():
            self._fail(httpx.RemoteProtocolError("the connection was closed without an answer"))

    def _read(self) -> None:
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.Data):
                    self._add(event.data)
                elif isinstance(event, h11.Response):
                    self._head = event
                elif isinstance(event, h11.EndOfMessage):
                    self._finish()
                    return
        except h11.RemoteProtocolError as error:
            self._fail(httpx.RemoteProtocolError(str(error), request=self._request))

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_body and self._request is not None:
            self._fail(OutputTooLarge(f"{self._request.method} {self._request.url.host}", self._max_body))
            self.close()
        elif self.usable:
            self._body.append(bytes(data))

    def _finish(self) -> None:
        if self._answer is None or self._answer.done() or self._head is None:
            return
        http = self._http
        if http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]:
            http.start_next_cycle()
        else:
            self.usable = False
        head = self._head
        try:
            response = httpx.Response(
                head.status_code,
                headers=head.headers.raw_items(),
                content=b"".join(self._body),
                request=self._request,
            )
        except httpx.DecodingError as error:
            self._answer.set_exception(error)
        else:
            self._answer.set_result(response)

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, min(MAX_CONNECTIONS, soft - SPARE_FILES))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__

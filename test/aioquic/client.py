"""An HTTP/3 client that moves, made with aioquic: the stranger among the clients of the lab's tests.

client.py ADDRESS PORT [--from ADDRESS,…] [--names N]

It downloads over one connection without end and does what lines of standard input say, as `shunt lab-quic` does and with the same JSON lines for answers:
  move    goes on from another port and the next address, with a new connection id (RFC 9000 section 9)
  rebind  goes on from another port and the next address with the same one, as behind a NAT that forgot it
  end     ends when the download that is under way is complete
A download that is broken, or comes from another server than the first, is an error.
"""
import argparse
import asyncio
import json
import socket
import ssl
import sys

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated

BODY = 1 << 18
PATH = b"/bytes/262144?every=20ms"
PATIENCE = 60.0
PATTERN = bytes(i % 251 for i in range(251)) * (BODY // 251 + 1)


class Broken(Exception):
    """What must not happen to a connection."""


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.server = None
        self.downloads = 0
        self.bodies = {}
        self.progress = asyncio.Condition()
        self.failed = None

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            self.fail(f"the connection ended: {event.error_code} {event.reason_phrase}")
        for e in self.http.handle_event(event):
            body = self.bodies.get(getattr(e, "stream_id", None))
            if body is None:
                continue
            if isinstance(e, HeadersReceived):
                self.answered(dict(e.headers))
            if isinstance(e, DataReceived):
                if e.data != PATTERN[len(body):len(body) + len(e.data)]:
                    self.fail(f"a body is wrong somewhere after byte {len(body)}")
                body += e.data
            if getattr(e, "stream_ended", False):
                self.completed(e.stream_id)

    def answered(self, headers):
        if headers.get(b":status") != b"200":
            self.fail(f"status {headers.get(b':status')}")
        server = headers.get(b"server", b"").decode()
        self.server = self.server or server
        if not server or server != self.server:
            self.fail(f"{server!r} answers, before it was {self.server!r}")

    def completed(self, stream):
        if len(self.bodies.pop(stream)) != BODY:
            self.fail("a body is too short")
        self.downloads += 1
        self.ask()
        asyncio.ensure_future(self.tell())

    def fail(self, why):
        self.failed = self.failed or why
        asyncio.ensure_future(self.tell())

    async def tell(self):
        async with self.progress:
            self.progress.notify_all()

    def ask(self):
        stream = self._quic.get_next_available_stream_id()
        self.bodies[stream] = bytearray()
        headers = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"lab"), (b":path", PATH)]
        self.http.send_headers(stream, headers, end_stream=True)
        self.transmit()

    async def more(self, n):
        """Waits for n downloads more than now; of two the second began after it was asked for."""
        want = self.downloads + n

        async def wait():
            async with self.progress:
                await self.progress.wait_for(lambda: self.failed or self.downloads >= want)

        try:
            await asyncio.wait_for(wait(), PATIENCE)
        except asyncio.TimeoutError:
            raise Broken(f"no download is complete within {PATIENCE:.0f} s") from None
        if self.failed:
            raise Broken(self.failed)

    def source(self):
        return "%s:%d" % self._transport.get_extra_info("sockname")[:2]


def say(client, event, **more):
    report = {"event": event, "server": client.server or "", "from": client.source(), "downloads": client.downloads}
    print(json.dumps({**report, **more}), flush=True)


def opened(address):
    """A socket of another port, which speaks both families as aioquic does."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind((mapped(address), 0, 0, 0))
    return sock


def mapped(address):
    return address if ":" in address else "::ffff:" + address


async def move(client, address):
    """Puts another socket under the connection."""
    before = client._transport
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: client, sock=opened(address))
    before.close()
    client._quic.send_ping(0)
    client.transmit()


async def obey(client, addresses, commands):
    client.ask()
    await client.more(1)
    say(client, "connected")
    turn = 0
    while True:
        command = (await commands.readline()).decode().strip()
        if command in ("", "end"):
            await client.more(1)
            say(client, "ended")
            return
        if command not in ("move", "rebind"):
            raise Broken(f"command: {command!r}: must be move, rebind or end")
        turn += 1
        if command == "move":
            client._quic.change_connection_id()
        await move(client, addresses[turn % len(addresses)])
        await client.more(2)
        say(client, "moved")


async def run(o):
    loop = asyncio.get_running_loop()
    configuration = QuicConfiguration(is_client=True, verify_mode=ssl.CERT_NONE, server_name="lab", idle_timeout=30.0,
                                      alpn_protocols=H3_ALPN + [f"padding-of-the-client-hello-{i:04d}" for i in range(o.names)])
    addresses = o.source.split(",") if o.source else ["::" if ":" in o.address else "0.0.0.0"]
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    _, client = await loop.create_datagram_endpoint(lambda: Client(QuicConnection(configuration=configuration)), sock=opened(addresses[0]))
    try:
        client.connect((mapped(o.address), o.port, 0, 0))
        await asyncio.wait_for(client.wait_connected(), PATIENCE)
        await obey(client, addresses, commands)
        status = 0
    except (Broken, ConnectionError, asyncio.TimeoutError) as e:
        say(client, "failed", error=client.failed or str(e) or type(e).__name__)
        status = 1
    client.close()
    return status


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("address")
parser.add_argument("port", type=int)
parser.add_argument("--from", dest="source", default="", help="the client's own addresses, taken in turn")
parser.add_argument("--names", type=int, default=0, help="ALPN protocols to offer beside h3, for a long ClientHello")
sys.exit(asyncio.run(run(parser.parse_args())))

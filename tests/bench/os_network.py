"""Two network namespaces: joined by a link that is as long as it is told to be, or one with 3,000 addresses.

A packet that one side sends over the link comes to this program through a TUN interface, waits, and leaves
through the other's: real TCP of this kernel on both sides, over a link that nobody else uses.
"""

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tests.lab.process import run

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
#: Their addresses are 10.254.1.1 and 10.254.1.2.
SIDES = ("temper-bench-1", "temper-bench-2")
LINK_BITS_S = 1e9
#: So long a packet may wait for the link, as in the queue of a switch; what would wait longer is lost.
QUEUE_S = 0.1
MTU = 9000
TRANSFER_BYTES = 256 << 20
#: The receiver prints bytes a second.
RECEIVE = f"""
import socket, time
server = socket.create_server(("", 5001))
print("ready", flush=True)
connection = server.accept()[0]
began_s, received = time.perf_counter(), 0
while part := connection.recv(1 << 20):
    received += len(part)
assert received == {TRANSFER_BYTES}, received
print(received / (time.perf_counter() - began_s))
"""
SEND = f"""
import socket
with socket.create_connection(("10.254.1.2", 5001)) as connection:
    for _ in range({TRANSFER_BYTES} >> 20):
        connection.sendall(bytes(1 << 20))
"""
ADDRESSES = 3000
#: Asks all addresses three times, as nodes do that talk with all others, and prints how many answers came.
ASK = f"""
import socket, threading
def count(asking):
    global answers
    while True:
        try:
            asking.recv(9)
        except TimeoutError:
            return
        answers += 1
answers = 0
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    asking.settimeout(3)
    counting = threading.Thread(target=count, args=(asking,))
    counting.start()
    for number in [*range({ADDRESSES})] * 3:
        try:
            asking.sendto(b"?", (f"10.253.{{number >> 8}}.{{number & 255}}", 5001))
        except OSError:
            pass  # the table of neighbours is full
    counting.join()
print(answers)
"""
#: Answers from the address that was asked, which IP_PKTINFO names.
ANSWER = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.setsockopt(socket.IPPROTO_IP, 8, 1)
    server.bind(("", 5001))
    print("ready", flush=True)
    while True:
        data, notes, _, asking = server.recvmsg(9, 64)
        server.sendmsg([data], [(socket.IPPROTO_IP, 8, note) for _, _, note in notes], 0, asking)
"""


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """Both, with nothing in them yet."""
    for name in SIDES:
        if Path("/run/netns", name).exists():  # of a run that was killed
            run(["ip", "netns", "delete", name])
        run(["ip", "netns", "add", name])
    try:
        for name in SIDES:
            run(["ip", "-netns", name, "link", "set", "lo", "up"])
        yield
    finally:
        for name in SIDES:
            run(["ip", "netns", "delete", name])


def inside(side: int, program: str) -> list[str]:
    """The command of a Python program in one of them."""
    return ["ip", "netns", "exec", SIDES[side], sys.executable, "-c", program]


@contextlib.contextmanager
def serving(program: str) -> Iterator[subprocess.Popen[str]]:
    """A program in the second one, once it has said that it is ready."""
    with subprocess.Popen(inside(1, program), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "ready\n"
        try:
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def link(round_trip_s: float) -> Iterator[None]:
    """Join both; half of the round trip passes on each way."""
    ends = []
    for number, name in enumerate(SIDES, 1):
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        ends.append(end)
        interface = f"temper-bench{number}"
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH14x", interface.encode(), IFF_TUN | IFF_NO_PI))
        run(["ip", "link", "set", interface, "netns", name, "mtu", str(MTU), "txqueuelen", "10000"])
        run(["ip", "-netns", name, "address", "add", f"10.254.1.{number}/24", "dev", interface])
        run(["ip", "-netns", name, "link", "set", interface, "up"])
    ended = threading.Event()
    carrying = threading.Thread(target=_carry, args=(ends, round_trip_s / 2, ended))
    carrying.start()
    try:
        yield
    finally:
        ended.set()
        carrying.join()
        for end in ends:
            os.close(end)


def _carry(ends: list[int], delay_s: float, ended: threading.Event) -> None:
    """Take packets at each end, and hand each on at the other when it would have arrived there."""
    under_way: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    free_s = dict.fromkeys(ends, 0.0)
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    while not ended.is_set():
        now_s = time.monotonic()
        next_s = min((queue[0][0] for queue in under_way.values() if queue), default=now_s + 0.1)
        for end in select.select(ends, [], [], max(next_s - now_s, 0))[0]:
            to, now_s = other[end], time.monotonic()
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(end, MTU)
                    begins_s = max(now_s, free_s[to])
                    if begins_s - now_s < QUEUE_S:
                        free_s[to] = begins_s + len(packet) * 8 / LINK_BITS_S
                        under_way[to].append((free_s[to] + delay_s, packet))
        now_s = time.monotonic()
        for end, queue in under_way.items():
            while queue and queue[0][0] <= now_s:
                os.write(end, queue.popleft()[1])


def transfers(largest_mib: int) -> dict[str, float]:
    """Bytes a second of 256 MiB over a short and a long link, where TCP's buffers grow to so many MiB.

    6 stands for the kernel's own: 6 MiB to receive, 4 to send.
    """
    sending = 4 if largest_mib == 6 else largest_mib
    rates = {}
    for round_trip_ms in (0.5, 100):
        with namespaces(), link(round_trip_ms / 1e3):
            for name in SIDES:
                values = {
                    "tcp_rmem": f"4096 131072 {largest_mib << 20}",
                    "tcp_wmem": f"4096 16384 {sending << 20}",
                }
                words = [f"net.ipv4.{key}={value}" for key, value in values.items()]
                run(["ip", "netns", "exec", name, "sysctl", "-qw", *words])
            with serving(RECEIVE) as receiver:
                run(inside(0, SEND))
                rates[f"256 MiB over a round trip of {round_trip_ms:g} ms, bytes/s"] = float(
                    receiver.communicate()[0]
                )
    return rates


def reached() -> dict[str, float]:
    """How many answers come of 3,000 addresses of a network that are each asked three times."""
    with namespaces():
        first, second = SIDES
        ends = ["netns", first, "type", "veth", "peer", "name", "eth0", "netns", second]
        run(["ip", "link", "add", "eth0", *ends])
        for number, name in enumerate(SIDES, 1):
            run(["ip", "-netns", name, "address", "add", f"10.253.255.{number}/16", "dev", "eth0"])
            run(["ip", "-netns", name, "link", "set", "eth0", "up"])
        # The second answers for all of them but the first's own.
        run(["ip", "-netns", second, "route", "add", "local", "10.253.0.0/17", "dev", "lo"])
        with serving(ANSWER):
            return {f"answers of {ADDRESSES * 3}": float(run(inside(0, ASK)))}

"""Gain of sends without a copy (`MSG_ZEROCOPY`) between two network namespaces: `sudo python3 benches/zerocopy.py`.

A sender on core 0 and a receiver on core 1, joined by a pair of virtual interfaces, and then by loopback. Prints the
sender's CPU time for a MiB, and how many of its sends the kernel copied all the same, as its notifications say.
"""

import os
import socket
import struct
import subprocess
import time

SO_ZEROCOPY, MSG_ZEROCOPY, MSG_ERRQUEUE, COPIED = 60, 0x4000000, 0x2000, 1
SPACE, PORT, TOTAL = "deuteron-zerocopy", 9000, 1 << 31
RECEIVER = f"""
import socket
listener = socket.create_server(("0.0.0.0", {PORT}))
print("ready", flush=True)
connection, buffer = listener.accept()[0], bytearray(1 << 20)
while connection.recv_into(buffer):
    pass
"""


class Sender:
    def __init__(self, address):
        self.socket = socket.create_connection((address, PORT))
        self.socket.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        self.told = self.copied = 0

    def send(self, data, flags):
        while data:
            data = data[self.socket.send(data, flags) :]
            self.read_notifications()

    def read_notifications(self):
        """Each tells of a range of sends (`struct sock_extended_err`)."""
        while True:
            try:
                _, controls, _, _ = self.socket.recvmsg(0, 256, MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            for _, _, content in controls:
                _, _, _, code, _, first, last = struct.unpack("IBBBBII", content[:16])
                self.told += last - first + 1
                self.copied += (last - first + 1) * (code == COPIED)


def measure(place, address, size, flags):
    receiver = subprocess.Popen([*place, "taskset", "-c", "1", "python3", "-c", RECEIVER], stdout=subprocess.PIPE)
    receiver.stdout.readline()
    sender, data = Sender(address), memoryview(os.urandom(size))
    begin = time.process_time()
    for _ in range(TOTAL // size):
        sender.send(data, flags)
    cpu = (time.process_time() - begin) * 1e6 / (TOTAL >> 20)
    time.sleep(0.2)
    sender.read_notifications()
    sender.socket.close()
    receiver.wait()
    name = f"without a copy: {sender.copied} of {sender.told} copied" if flags else "with a copy"
    print(f"{address}, {size >> 10} KiB, {name}: {cpu:.0f} µs of CPU a MiB", flush=True)


def ip(words):
    subprocess.run(["ip", *words.split()], check=True)


os.sched_setaffinity(0, {0})
ip(f"netns add {SPACE}")
try:
    ip(f"link add zerocopy0 type veth peer name zerocopy1 netns {SPACE}")
    for inside, name, address in ("", "zerocopy0", "10.99.0.1"), (f"-n {SPACE} ", "zerocopy1", "10.99.0.2"):
        ip(f"{inside}addr add {address}/24 dev {name}")
        ip(f"{inside}link set {name} up")
    for place, address in (["ip", "netns", "exec", SPACE], "10.99.0.2"), ([], "127.0.0.1"):
        for size in 1 << 16, 1 << 20, 1 << 24:
            for flags in 0, MSG_ZEROCOPY, 0, MSG_ZEROCOPY:
                measure(place, address, size, flags)
finally:
    ip(f"netns delete {SPACE}")

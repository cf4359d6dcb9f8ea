#!/usr/bin/env python3
"""Time from the start of a server to ready, of several programs in turns.

    python3 benches/start.py PROGRAM[,PROGRAM…] ROUNDS REPOSITORY [FLAG…]

Prints the median and the least of each program, its CPU time with that of its children, and the ratio to the first program:
the median of the rounds' ratios."""

import os
import socket
import statistics
import subprocess
import sys
import time

PORT = 18_800


def is_ready():
    try:
        with socket.create_connection(("127.0.0.1", PORT), timeout=5) as connection:
            connection.sendall(b"GET /v2/health/ready HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(100)
    except OSError:
        return False


def start(program, arguments):
    """Seconds from the start to ready, and of CPU until the end."""
    ports = [f"--{name}-port={PORT + index}" for index, name in enumerate(("http", "grpc", "metrics"))]
    before, begun = os.times(), time.perf_counter()
    server = subprocess.Popen([program, "serve", *arguments, *ports], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not is_ready():
        if server.poll() is not None:
            sys.exit(f"{program} ended with status {server.returncode}")
        time.sleep(0.001)
    took = time.perf_counter() - begun
    server.terminate()
    server.wait()
    after = os.times()
    return took, after.children_user + after.children_system - before.children_user - before.children_system


def main():
    programs, rounds, arguments = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3:]
    starts = [[] for _ in programs]
    for program in programs:
        start(program, arguments)
    for index in range(rounds):
        turns = list(zip(programs, starts))
        for program, own in turns if index % 2 == 0 else reversed(turns):
            own.append(start(program, arguments))
    for program, own in zip(programs, starts):
        times, cpu = zip(*own)
        ratio = statistics.median(time / first for time, (first, _) in zip(times, starts[0]))
        milliseconds = [1000 * value for value in (statistics.median(times), min(times), statistics.median(cpu))]
        print("{}: median {:.1f} ms, least {:.1f} ms, CPU {:.0f} ms, ratio {:.2f}".format(program, *milliseconds, ratio))


main()

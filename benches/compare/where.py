"""Where the CPU time of a request goes in two servers, for one client: `benches/compare/run where`.

Each server answers the same client while perf samples its process. The samples are sorted by the function
they hit; system calls and switches are counted. Needs perf, root, and two cores."""

import collections
import os
import re
import subprocess
import sys
import tempfile

# The first that matches the function counts; all but the first are the kernel's.
KINDS = [
    ("program", None),
    ("TCP/IP and sockets", r"tcp|^_*ip_|ipv4|inet|skb|sock|^_*dev_|net_|napi|loopback|nf_|qdisc|dst_|csum|lock_sock|"
                           r"process_backlog|rx_action|kmem_cache|kfree|kmalloc|copy_(to|from)|_copy_|iov|import_ubuf"),
    ("sleeping and waking", r"sched|futex|wake|epoll|ep_|io_|eventfd|switch|enqueue|dequeue|rq|wait|hrtimer|timer|clock|idle|"
                            r"update_|pick_next|poll|_raw_spin|mutex|ktime|select_task"),
    ("the rest of the kernel", r""),
]
REQUESTS = os.environ.get("REQUESTS", "50000")


def cpu_micros(pid):
    """User and system time of a process in microseconds."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return [int(ticks) * 1e6 / os.sysconf("SC_CLK_TCK") for ticks in fields[11:13]]


def load(program, port):
    """Runs the client."""
    subprocess.run(["taskset", "-c", "1", program, "bench", "-m", "identity", "-u", f"localhost:{port}", "--concurrency=1",
                    f"--request-count={REQUESTS}"], stdout=subprocess.DEVNULL, check=True)


def perf(words, program, port):
    with subprocess.Popen(["perf", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        load(program, port)
        running.send_signal(2)
        return running.communicate()[1]


def kind_of(symbol, is_kernel):
    if not is_kernel:
        return "program"
    return next(name for name, pattern in KINDS[1:] if re.search(pattern, symbol))


def shares(pid, program, port, folder):
    """The share of each kind of the samples of a process."""
    data = os.path.join(folder, "perf.data")
    perf(["record", "-q", "-e", "cpu-clock", "-F", "4000", "-p", str(pid), "-o", data], program, port)
    text = subprocess.run(["perf", "script", "-i", data, "-F", "ip,sym,dso"], capture_output=True, text=True).stdout
    counts = collections.Counter()
    for line in text.splitlines():
        found = re.match(r"\s*[0-9a-f]+ (.*) \((.*)\)$", line)
        if found:
            counts[kind_of(found[1], "kernel" in found[2] or found[2] == "[guest.kernel]")] += 1
    total = sum(counts.values())
    return {name: counts[name] / total for name, _ in KINDS}


def main():
    program, *servers = sys.argv[1:]
    rows = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for server in servers:
            name, port, pid, metrics = server.split(",")

            def served():
                page = subprocess.run(["curl", "-s", f"localhost:{metrics}/metrics"], capture_output=True, text=True).stdout
                return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith("nv_inference_request_success{"))

            rows[""].append(name)
            before, count = cpu_micros(pid), served()
            text = perf(["stat", "-x,", "-e", "raw_syscalls:sys_enter,context-switches", "-p", pid], program, port)
            used, count = [now - was for now, was in zip(cpu_micros(pid), before)], served() - count
            events = {line.split(",")[2]: float(line.split(",")[0]) for line in text.splitlines() if line.count(",") > 3}
            rows["CPU, µs"].append(f"{sum(used) / count:.1f}")
            rows["in the program, µs"].append(f"{used[0] / count:.1f}")
            rows["in the kernel, µs"].append(f"{used[1] / count:.1f}")
            for event, title in (("raw_syscalls:sys_enter", "system calls"), ("context-switches", "switches of threads")):
                rows[title].append(f"{events[event] / count:.2f}")
            for kind, share in shares(pid, program, port, folder).items():
                rows[f"samples: {kind}"].append(f"{share * 100:.0f} %")
    for title, values in rows.items():
        print(f"| {title} | {' | '.join(values)} |")


main()

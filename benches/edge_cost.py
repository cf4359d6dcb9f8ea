"""Cost of TLS and keys at the edge: CPU time for a small request, and for a new connection, of a server that is asked plainly, with
keys, over TLS, over TLS with keys, and behind nginx and HAProxy that end TLS in front of it, whose CPU is counted too.
All in turns: servers and proxies on core 0, the client on core 1. Plain Python; needs h2load, openssl, taskset, and
nginx and haproxy for their rows. Use: python3 benches/edge_cost.py BINARY [ROUNDS] [REQUESTS]"""

import glob
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

CONFIG = """backend: "identity"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
"""
JSON = '{"inputs":[{"name":"INPUT0","shape":[1,16],"datatype":"FP32","data":[%s]}]}' % ",".join(["1.5"] * 16)
CONNECTIONS, HANDSHAKE_SECONDS, KEYS = 64, 3, 10
# Both proxies end a connection after some requests by default, which would count handshakes as requests.
NGINX = """worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/nginx-body; proxy_temp_path {folder}/nginx-proxy;
  fastcgi_temp_path {folder}/nginx-f; uwsgi_temp_path {folder}/nginx-u; scgi_temp_path {folder}/nginx-s;
  keepalive_requests 100000000;
  ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem; ssl_protocols TLSv1.3;
  upstream rest {{ server 127.0.0.1:{plain_http}; keepalive 64; keepalive_requests 100000000; }}
  upstream rpc {{ server 127.0.0.1:{plain_grpc}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{http} ssl;
    location / {{ proxy_pass http://rest; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
  server {{ listen 127.0.0.1:{grpc} ssl http2; location / {{ grpc_pass grpc://rpc; }} }}
}}
"""
HAPROXY = """global
  nbthread 1
  maxconn 1000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend rest
  bind 127.0.0.1:{http} ssl crt {folder}/both.pem ssl-min-ver TLSv1.3 alpn http/1.1
  default_backend rest
backend rest
  server one 127.0.0.1:{plain_http}
frontend rpc
  bind 127.0.0.1:{grpc} ssl crt {folder}/both.pem ssl-min-ver TLSv1.3 alpn h2
  default_backend rpc
backend rpc
  server one 127.0.0.1:{plain_grpc} proto h2
"""


class Front:
    """A way in: its ports, and the processes that work for it."""

    def __init__(self, index, processes, is_tls, key=None):
        self.http, self.grpc, self.processes, self.is_tls, self.key = 18700 + 2 * index, 18701 + 2 * index, processes, is_tls, key

    def cpu(self):
        """Seconds of user and system time of the processes and their children."""
        return sum(cpu(one) for process in self.processes for one in family(process.pid))


def family(process):
    children = [int(child) for path in glob.glob(f"/proc/{process}/task/*/children") for child in open(path).read().split()]
    return [process] + [one for child in children for one in family(child)]


def cpu(process):
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(*command):
    return subprocess.Popen(["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def message():
    """A `ModelInferRequest` of one row, framed: model name, one input and its raw contents."""
    field = lambda number, value: bytes([number << 3 | 2, len(value)]) + value
    tensor = field(1, b"INPUT0") + field(2, b"FP32") + field(3, bytes([1, 16]))
    request = field(1, b"identity") + field(5, tensor) + field(7, struct.pack("<16f", *[1.5] * 16))
    return b"\0" + struct.pack(">I", len(request)) + request


def serve(folder, binary, index, is_tls, keys):
    front = Front(index, [], is_tls, keys)
    flags = ["--shards=1", "--allow-metrics=false", f"--http-port={front.http}", f"--grpc-port={front.grpc}"]
    for port in ("http", "grpc") if is_tls else ():
        flags += [f"--{port}-use-ssl=true", f"--{port}-server-cert={folder}/cert.pem", f"--{port}-server-key={folder}/key.pem"]
    flags += [f"--api-keys-file={folder}/keys.toml"] if keys else []
    front.processes.append(start(binary, "serve", f"{folder}/models", *flags))
    return front


def make_keys(folder, binary):
    """A file of keys; the last of them, which a look-up finds last."""
    with open(f"{folder}/keys.toml", "w") as file:
        for index in range(KEYS):
            made = subprocess.run([binary, "key", f"team-{index}", "--class=infer"], capture_output=True, text=True)
            file.write(made.stdout)
        key = re.search(r"dt_\S+", made.stderr)[0]
    os.chmod(f"{folder}/keys.toml", 0o600)
    return key


def load(front, protocol, folder, requests):
    """Sends the requests; CPU in microseconds for each."""
    scheme, port = "https" if front.is_tls else "http", front.http if protocol == "HTTP" else front.grpc
    path, form = ("/v2/models/identity/infer", ["--h1", "-d", f"{folder}/body.json"]) if protocol == "HTTP" else (
        "/inference.GRPCInferenceService/ModelInfer",
        ["-d", f"{folder}/body.grpc", "-H", "content-type: application/grpc", "-H", "te: trailers"])
    key = ["-H", f"authorization: Bearer {front.key}"] if front.key else []
    before = front.cpu()
    said = run("taskset", "-c", "1", "h2load", "-t1", f"-c{CONNECTIONS}", "-m1", f"-n{requests}", *form, *key, f"{scheme}://127.0.0.1:{port}{path}")
    assert f"{requests} 2xx" in said, said
    return (front.cpu() - before) / requests * 1e6


def connect(front):
    """New connections, one after the other, each with a full handshake; CPU in microseconds for each."""
    before = front.cpu()
    said = run("taskset", "-c", "1", "openssl", "s_time", "-connect", f"127.0.0.1:{front.http}", "-new", "-tls1_3",
               "-time", str(HANDSHAKE_SECONDS))
    count = int(re.findall(r"(\d+) connections in \d+ real", said)[0])
    return (front.cpu() - before) / count * 1e6


def main(binary, rounds=3, requests=60_000):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.makedirs(f"{folder}/models/identity/1")
        for name, text in {"models/identity/config.pbtxt": CONFIG, "body.json": JSON}.items():
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
        with open(f"{folder}/body.grpc", "wb") as file:
            file.write(message())
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem")
        with open(f"{folder}/both.pem", "w") as file:
            file.write(open(f"{folder}/cert.pem").read() + open(f"{folder}/key.pem").read())
        key = make_keys(folder, binary)
        fronts = {"plain": serve(folder, binary, 0, False, None), f"{KEYS} keys": serve(folder, binary, 1, False, key),
                  "TLS 1.3": serve(folder, binary, 2, True, None), f"TLS 1.3, {KEYS} keys": serve(folder, binary, 3, True, key)}
        plain = fronts["plain"]
        for index, (name, form) in enumerate({"nginx": NGINX, "haproxy": HAPROXY}.items(), 4):
            if not (program := shutil.which(name) or shutil.which(name, path="/usr/sbin")):
                print(f"{name} is not there: no row")
                continue
            front = Front(index, [plain.processes[0]], True)
            with open(f"{folder}/{name}.conf", "w") as file:
                file.write(form.format(folder=folder, http=front.http, grpc=front.grpc, plain_http=plain.http, plain_grpc=plain.grpc))
            front.processes.append(start(program, *(["-c"] if name == "nginx" else ["-db", "-f"]), f"{folder}/{name}.conf"))
            fronts[f"TLS 1.3 by {name}"] = front
        rows = {}
        try:
            time.sleep(2)
            urllib.request.urlopen(f"http://127.0.0.1:{plain.http}/v2/health/ready")
            for _ in range(rounds):
                for name, front in fronts.items():
                    for protocol in ("HTTP", "gRPC"):
                        rows.setdefault((name, protocol), []).append(load(front, protocol, folder, requests))
                    if front.is_tls:
                        rows.setdefault((name, "connection"), []).append(connect(front))
        finally:
            for process in {process for front in fronts.values() for process in front.processes}:
                process.terminate()
                process.wait()
    print(f"CPU, us: median (least to most) of {rounds} rounds, {requests} requests on {CONNECTIONS} connections each")
    print("| | HTTP, JSON | gRPC | new connection |\n|---|---|---|---|")
    for name in fronts:
        cells = [rows.get((name, what)) for what in ("HTTP", "gRPC", "connection")]
        texts = [f"{statistics.median(cell):.1f} ({min(cell):.1f} to {max(cell):.1f})" if cell else "–" for cell in cells]
        print(f"| {name} | {' | '.join(texts)} |")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))

"""1500 connections that never become requests (silent, half a head, half a body) against a running server, by hand:

    (ulimit -n 1024; halyard serve --port 8100 --model tests/fixtures/models/llama --kv-cache-memory-bytes 4MiB --api-key key12345) &
    python3 tests/e2e/connection_flood.py 8100 key12345

Prints how health and a keyed request fare meanwhile, what the server counts, and when the last of the connections was closed.
tests/connections.rs asserts the same.
"""

import resource
import socket
import sys
import time
import urllib.request

PORT, KEY = int(sys.argv[1]), sys.argv[2]
HALF_BODY = (
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + KEY
    + '\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"prompt": '
).encode()


def ask(path, data=None):
    """Status, seconds and body of one request on a connection of its own."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    start = time.time()
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, headers), timeout=30) as answer:
        body = answer.read().decode()
        return answer.status, round(time.time() - start, 3), body


def counts():
    """The server's lines about connections."""
    return "\n".join(line for line in ask("/metrics")[2].splitlines() if line.startswith("halyard:http"))


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = []
    for index in range(1500):
        connection = socket.create_connection(("127.0.0.1", PORT))
        connection.sendall([b"", b"GET /health HTTP/1.1\r\nHost: loc", HALF_BODY][index % 3])
        opened.append((time.time(), connection))
    for _ in range(3):
        print("health", ask("/health")[:2], "completion", ask("/v1/completions", b'{"prompt": [5], "max_tokens": 2}')[:2])
    print(counts())
    last = 0.0
    for start, connection in opened:
        connection.settimeout(120)
        try:
            while connection.recv(4096):
                pass
        except ConnectionResetError:
            pass
        last = max(last, time.time() - start)
    print(f"all closed, the last one {last:.1f} s after it was opened")
    print(counts())


main()

"""A listener of KV cache events as a router is one: libzmq (pyzmq), and msgspec with vLLM's classes.

    python kv_events.py URL EVENTS REPLAY TOPIC [FILE]

FILE is vLLM's own vllm/distributed/kv_events.py. Without it the classes below stand for it: the same fields in the same
order with the same options, as vLLM 0.33 has them (the file's own import of vLLM is too large for a test).
"""

import itertools
import json
import sys
import time
import types
import urllib.request

import msgspec
import zmq

Hash = bytes | int


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True, forbid_unknown_fields=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[Hash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def of_vllm(path):
    """vLLM's own module; what it imports from the rest of vLLM, and the classes do not use, is empty."""
    names = ["", ".config", ".v1", ".v1.core", ".utils", ".distributed"]
    sys.modules.update({f"vllm{name}": types.ModuleType(f"vllm{name}") for name in names})
    given = {
        "vllm.config.kv_events": {"KVEventsConfig": object},
        "vllm.logger": {"init_logger": lambda name: None},
        "vllm.utils.network_utils": dict.fromkeys(
            ["get_ip", "get_tcp_uri", "is_valid_ipv6_address", "split_zmq_path"]
        ),
        "vllm.v1.core.kv_cache_utils": {"ExternalBlockHash": Hash},
    }
    for name, values in given.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(values)
    module = types.ModuleType("vllm.distributed.kv_events")
    sys.modules[module.__name__] = module
    exec(compile(open(path).read(), path, "exec"), module.__dict__)
    return module


URL, EVENTS, REPLAY, TOPIC = sys.argv[1:5]
kinds = of_vllm(sys.argv[5]) if len(sys.argv) > 5 else sys.modules[__name__]
decoder = msgspec.msgpack.Decoder(type=kinds.KVEventBatch)
context = zmq.Context()
WAIT_MS = 60_000


def post(path, body):
    request = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def complete(prompt, **fields):
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    return post("/v1/completions", body)


def metric(name):
    with urllib.request.urlopen(f"{URL}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith(name + " ")][0]


def subscriber(topic):
    socket = context.socket(zmq.SUB)
    socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(EVENTS)
    return socket


def receive(socket):
    assert socket.poll(WAIT_MS), "a batch comes"
    topic, seq, payload = socket.recv_multipart()
    assert topic == TOPIC.encode(), topic
    assert len(seq) == 8, seq
    batch = decoder.decode(payload)
    assert abs(batch.ts - time.time()) < 3600, batch.ts
    assert batch.data_parallel_rank == 0, batch
    return int.from_bytes(seq, "big"), batch.events, payload


def replayed(socket, start):
    """What is kept from number `start` on: {number: payload}."""
    socket.send_multipart((b"", start.to_bytes(8, "big")))
    found = {}
    while True:
        assert socket.poll(WAIT_MS), "an answer comes"
        empty, topic, seq, payload = socket.recv_multipart()
        assert empty == b""
        if seq == b"\xff" * 8:
            assert payload == b"" and topic == b""
            return found
        assert topic == TOPIC.encode()
        found[int.from_bytes(seq, "big")] = payload


class Cache:
    """What a router knows: the blocks that are there, and the tokens of each."""

    def __init__(self):
        self.blocks, self.salts, self.next_seq = {}, set(), 0

    def apply(self, seq, events):
        assert seq == self.next_seq, (seq, self.next_seq)
        self.next_seq = seq + 1
        for event in events:
            if isinstance(event, kinds.BlockStored):
                size = event.block_size
                assert len(event.token_ids) == len(event.block_hashes) * size, event
                assert len(event.extra_keys) == len(event.block_hashes), event
                assert (event.medium, event.group_idx) == ("GPU", 0), event
                assert event.kv_cache_spec_kind == "full_attention", event
                assert (event.lora_id, event.lora_name) == (None, None), event
                parent = event.parent_block_hash
                assert parent is None or parent in self.blocks, "parents come before their children"
                for at, name in enumerate(event.block_hashes):
                    assert name not in self.blocks, "stored twice"
                    self.blocks[name] = (parent, event.token_ids[at * size : (at + 1) * size])
                    self.salts.update(event.extra_keys[at] or ())
                    parent = name
            elif isinstance(event, kinds.BlockRemoved):
                for name in event.block_hashes:
                    del self.blocks[name]
            else:
                self.blocks.clear()

    def holds(self, tokens):
        """Whether a sequence of blocks from the beginning has these tokens."""
        size = len(next(iter(self.blocks.values()))[1])
        parents = {None}
        for at in range(0, len(tokens) - len(tokens) % size, size):
            part = tokens[at : at + size]
            parents = {name for name, (parent, held) in self.blocks.items() if parent in parents and held == part}
        return bool(parents)


listener, deaf = subscriber(TOPIC), subscriber("another topic")
while metric("halyard:kv_event_subscribers") < 2:
    time.sleep(0.02)
late = context.socket(zmq.DEALER)
late.connect(REPLAY)
# A subscription follows its handshake: prompts until it is heard.
deadline = time.monotonic() + WAIT_MS / 1000
for token in itertools.cycle(range(212, 412)):
    complete([token] * 70)
    if listener.poll(200):
        break
    assert time.monotonic() < deadline, "a batch comes"
cache, seen = Cache(), {}


def listen_until(done):
    while not done():
        seq, events, payload = receive(listener)
        seen[seq] = payload
        if len(seen) == 1:
            for missed, before in sorted(replayed(late, 0).items())[:seq]:
                cache.apply(missed, decoder.decode(before).events)
        cache.apply(seq, events)


def named():
    """The blocks that are there, but for those of the beginning, which have one token all along."""
    return {name for name, (_, tokens) in cache.blocks.items() if len(set(tokens)) > 1}


first = [3 + at % 200 for at in range(70)]
complete(first)
listen_until(lambda: cache.blocks and cache.holds(first))
known = named()

# Equal tokens under another salt are other blocks; the first of them says so.
salted = [9 + at % 150 for at in range(40)]
complete(salted, cache_salt="tenant")
listen_until(lambda: cache.holds(salted))
assert cache.salts == {"tenant"}, cache.salts
under_salt = named() - known
complete(salted)
listen_until(lambda: len(named()) >= len(known) + 2 * len(under_salt))
assert len({tuple(tokens) for _, tokens in cache.blocks.values()}) < len(cache.blocks)

# The cache is small: the oldest blocks go, and the router learns it.
for start in range(12):
    last = [start * 17 % 211 + at % 40 for at in range(100)]
    complete(last)
listen_until(lambda: cache.holds(last) and not cache.holds(first))
assert not known <= set(cache.blocks)

# A router that comes late asks for what it missed, and knows the same.
kept = replayed(late, 0)
assert {seq: kept[seq] for seq in seen} == seen, "what is replayed is what was sent"
newcomer = Cache()
for seq in sorted(kept):
    newcomer.apply(seq, decoder.decode(kept[seq]).events)
listen_until(lambda: cache.next_seq == newcomer.next_seq)
assert newcomer.blocks == cache.blocks
assert sorted(replayed(late, 3)) == sorted(seq for seq in kept if seq >= 3)
assert replayed(late, 1 << 40) == {}
assert not deaf.poll(200), "it asked for another topic"
assert metric("halyard:kv_event_batches_total") == cache.next_seq
assert metric("halyard:kv_event_batches_dropped_total") == 0
print("agrees", json.dumps(sorted(map(repr, known))))

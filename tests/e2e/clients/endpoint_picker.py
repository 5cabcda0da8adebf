"""Reads /metrics as the endpoint picker of llm-d and of the Gateway API inference extension does for the engine `vllm`:
one gauge a name, numbers and names of adapters in its labels. Prometheus' own library parses the text.

    python endpoint_picker.py URL ADAPTER

The server has 2 rows, 3 adapter slots and 64 blocks of 16 tokens.
"""

import json
import sys
import threading
import time
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

URL, ADAPTER = sys.argv[1:3]


def scrape():
    """Samples of all gauges by name. The picker names no format it would like, and reads Prometheus' text."""
    with urllib.request.urlopen(f"{URL}/metrics", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/plain"), answer.headers
        families = list(text_string_to_metric_families(answer.read().decode()))
    names = [family.name for family in families]
    assert len(set(names)) == len(names), "each family once"
    return {family.name: family.samples for family in families if family.type == "gauge"}


def pick():
    """What the picker knows of this server after a scrape."""
    gauges = scrape()

    def value(name):
        (sample,) = gauges[name]
        return sample.value

    (cache,) = gauges["vllm:cache_config_info"]
    assert cache.value == 1
    labels = ("running_lora_adapters", "waiting_lora_adapters", "max_lora")
    # The newest one counts, where there are several; its value is its time.
    lora = max(gauges.get("vllm:lora_requests_info", []), key=lambda sample: sample.value, default=None)
    return {
        "waiting": value("vllm:num_requests_waiting"),
        "running": value("vllm:num_requests_running"),
        "usage": value("vllm:kv_cache_usage_perc"),
        "block_size": int(cache.labels["block_size"]),
        "num_blocks": int(cache.labels["num_gpu_blocks"]),
        "lora": lora and {key: lora.labels[key] for key in labels},
    }


def generate(model):
    body = {"model": model, "prompt": "a" * 40, "max_tokens": 150, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(
        f"{URL}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def until(what, holds):
    begun = time.time()
    while not holds(seen := pick()):
        assert time.time() - begun < 60, (what, seen)
    return seen


idle = pick()
assert (idle["waiting"], idle["running"], idle["usage"]) == (0, 0, 0), idle
assert (idle["block_size"], idle["num_blocks"]) == (16, 64), idle

stop = threading.Event()


def keep_busy(model):
    while not stop.is_set():
        generate(model)


threads = [threading.Thread(target=keep_busy, args=(model,)) for model in ["tiny", "tiny", ADAPTER, ADAPTER]]
for thread in threads:
    thread.start()
try:
    busy = until("two run and others wait", lambda seen: seen["running"] == 2 and seen["waiting"] >= 1)
    until("blocks are in use", lambda seen: 0 < seen["usage"] <= 1)
    adapters = until("the adapter runs", lambda seen: seen["lora"] and ADAPTER in seen["lora"]["running_lora_adapters"])
    assert adapters["lora"]["max_lora"] == "3", adapters
    until("the adapter waits", lambda seen: ADAPTER in seen["lora"]["waiting_lora_adapters"].split(","))
finally:
    stop.set()
    for thread in threads:
        thread.join()
until("it rests again", lambda seen: (seen["waiting"], seen["running"]) == (0, 0))
print("agrees", busy, adapters)

"""Checks the Helm chart and the example: Helm's own engine lints and renders it with the values below, and every object
is validated against Kubernetes' schemas. A PodMonitor is validated by models that were generated from Prometheus
operator's own (CustomResourceDefinition). No package has LeaderWorkerSet's: of the example's fields outside the pod only
those that the check names are looked at. No cluster is asked."""

import pathlib
import re
import sys

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor
from helm_python import chart
from helm_python.errors import HelmError

HERE = pathlib.Path(__file__).parent
CHART = HERE / "helm" / "halyard"
KUBERNETES = "1.27"
# Kinds that Kubernetes' schemas do not have, with what validates them.
FOREIGN = {"PodMonitor": PodMonitor, "LeaderWorkerSet": None}

ALL = {
    "model": "org/repo",
    "platform": "cuda",
    "gpu": {"count": 2},
    "apiKeys": {"existingSecret": "keys"},
    "hubToken": {"existingSecret": "hub"},
    "autoscaling": {"enabled": True, "kvCacheUsagePercent": 80},
    "cache": {"size": "200Gi", "accessMode": "ReadWriteMany"},
    "ingress": {"enabled": True, "host": "llm.example", "tlsSecret": "tls"},
    "podMonitor": {"enabled": True, "key": "prometheus"},
    "resources": {"requests": {"cpu": "4"}, "limits": {"memory": "32Gi"}},
    "nodeSelector": {"gpu": "yes"},
    "args": ["--max-model-len=8K"],
    "drainSeconds": 20,
    "shutdownSeconds": 120,
}
# What a pod needs beyond draining and its answers' time: stopping threads, giving devices back.
END_SECONDS = 30
GOOD = {"the defaults": {}, "three replicas": {"replicas": 3}, "all of it": ALL}
REFUSED = {
    "needs gpu.count": {"platform": "cuda"},
    "ReadWriteMany": {"replicas": 2, "cache": {"size": "1Gi"}},
    "ingress.host": {"ingress": {"enabled": True}},
    "podMonitor.key": {"apiKeys": {"existingSecret": "keys"}, "podMonitor": {"enabled": True}},
    "neither waitingRequests": {"autoscaling": {"enabled": True, "waitingRequests": 0}},
}


def objects(texts):
    """The objects of rendered files."""
    return [one for text in texts for one in yaml.safe_load_all(text) if one]


def check(name, found):
    """Validates objects; how many."""
    for one in found:
        model = FOREIGN.get(one["kind"])
        if model is not None:
            # What the model does not know is gone after reading.
            read = model.model_validate(one).model_dump(by_alias=True, exclude_none=True)
            assert read == one, f"{name}: {one['kind']} has fields that its schema lacks: {one}, read as {read}"
        elif one["kind"] not in FOREIGN:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    print(f"{name}: {len(found)} objects ({', '.join(one['kind'] for one in found)})")
    return {one["kind"]: one for one in found}


def check_end(name, pod):
    """A pod that is to go stays open while endpoints list it, and is killed after nothing that it was promised; its
    seconds of draining."""
    seconds = {}
    for flag in ("drain-delay", "shutdown-timeout"):
        found = [re.fullmatch(f"--{flag}=([0-9]+)", arg) for arg in pod["containers"][0]["args"]]
        seconds[flag] = [int(match.group(1)) for match in found if match]
        assert len(seconds[flag]) == 1, f"{name}: not one --{flag}"
    [drain], [shutdown] = seconds.values()
    grace = pod["terminationGracePeriodSeconds"]
    assert drain >= 10, f"{name}: --drain-delay is {drain}: the port closes while endpoints still list the pod"
    assert grace == drain + shutdown + END_SECONDS, f"{name}: terminationGracePeriodSeconds is {grace}"
    return drain


def main():
    """Runs the checks."""
    report = chart.lint(str(CHART), strict=True)
    wrong = [message["error"] for message in report["messages"] if message["severity"] > 1] + report["errors"]
    if wrong:
        sys.exit(f"helm lint: {wrong}")
    loaded = chart.Chart.load(str(CHART))
    for name, values in GOOD.items():
        rendered = loaded.render(values=values, name="demo")
        kinds = check(name, objects(text for path, text in rendered.items() if path.endswith(".yaml")))
        drain = check_end(name, kinds["Deployment"]["spec"]["template"]["spec"])
        assert drain == values.get("drainSeconds", 10), f"{name}: --drain-delay is {drain}"
    container = kinds["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": 2}, container["resources"]
    assert {"--tensor-parallel-size=2", "--model=org/repo", "--max-model-len=8K"} <= set(container["args"])
    metrics = [metric["pods"]["metric"]["name"] for metric in kinds["HorizontalPodAutoscaler"]["spec"]["metrics"]]
    shown = "".join(path.read_text() for path in pathlib.Path("plugins/stat-logger-prometheus/src").rglob("*.rs"))
    for metric in metrics:
        assert f'"{metric}"' in shown, f"no metric {metric} is shown: the chart scales by nothing"
    assert kinds["PodMonitor"]["spec"]["selector"] == kinds["Deployment"]["spec"]["selector"]
    for words, values in REFUSED.items():
        try:
            loaded.render(values=values, name="demo")
        except HelmError as error:
            assert words in str(error), f"{values}: {error}"
        else:
            sys.exit(f"{values} was not refused")
    version = re.search(r'^version = "(.*)"', pathlib.Path("Cargo.toml").read_text(), re.M).group(1)
    assert loaded.metadata["appVersion"] == version, f"Chart.yaml has another appVersion than {version}"
    example = objects([(HERE / "kubernetes" / "leaderworkerset.yaml").read_text()])
    check("kubernetes/leaderworkerset.yaml", example)
    assert example[0]["apiVersion"] == "leaderworkerset.x-k8s.io/v1", example[0]["apiVersion"]
    assert set(example[0]["spec"]) == {"replicas", "rolloutStrategy", "leaderWorkerTemplate"}, example[0]["spec"]
    template = example[0]["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 1, "several hosts for one model are not offered"
    pod = template["workerTemplate"]
    check_end("kubernetes/leaderworkerset.yaml", pod["spec"])
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": pod["spec"]}, KUBERNETES, strict=True
    )


if __name__ == "__main__":
    main()

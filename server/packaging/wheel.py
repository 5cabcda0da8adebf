"""Lays out the wheel and has PyPA's `wheel` pack it: `wheel.py STAGE LIBRARY VERSION PLATFORM_TAG OUT`.

The module and the Python files go into the package; programs into `scripts` (pip puts them on the PATH); platforms and
plugins into `data/lib/halyard`, which is `../lib/halyard` of the programs, where they look. The description is that of
runtime/python/pyproject.toml. Why cargo's own build and not maturin's: docs/decisions/0073.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import tomllib
except ImportError:  # before Python 3.11; pip brings one
    from pip._vendor import tomli as tomllib

LIMIT_MB = 60
PYTHON_TAG = "cp310-abi3"
# Programs of the other packages: Python's users write no platforms.
NOT_HERE = ["halyard-conformance"]
LICENCES = ["LICENSE", "THIRD-PARTY-LICENSES"]


def metadata(project: dict, version: str, folder: pathlib.Path) -> str:
    """The METADATA file, version 2.4."""
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}"]
    lines += [f"Summary: {project['description']}", f"Keywords: {','.join(project['keywords'])}"]
    lines += [f"Classifier: {one}" for one in project["classifiers"]]
    lines += [f"License-Expression: {project['license']}"]
    lines += [f"License-File: {name}" for name in LICENCES]
    lines += [f"Requires-Python: {project['requires-python']}"]
    for extra, needed in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}"]
        lines += [f"Requires-Dist: {one} ; extra == '{extra}'" for one in needed]
    lines += ["Description-Content-Type: text/markdown", ""]
    return "\n".join(lines) + "\n" + (folder / project["readme"]).read_text()


def main() -> None:
    """Packs the wheel and holds it to its limit."""
    stage, library, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[5])
    version, platform_tag = sys.argv[3], sys.argv[4]
    sources = pathlib.Path("runtime/python")
    project = tomllib.loads((sources / "pyproject.toml").read_text())["project"]
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        info, data = root / f"halyard-{version}.dist-info", root / f"halyard-{version}.data"
        (info / "licenses").mkdir(parents=True)
        python = sources / "python" / "halyard"
        shutil.copytree(python, root / "halyard", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        shutil.copy(library, root / "halyard" / "_halyard.abi3.so")
        shutil.copytree(stage / "bin", data / "scripts", ignore=shutil.ignore_patterns(*NOT_HERE))
        shutil.copytree(stage / "lib", data / "data" / "lib")
        shutil.copytree(stage / "share" / "man", data / "data" / "share" / "man")
        (info / "METADATA").write_text(metadata(project, version, sources))
        tag = f"{PYTHON_TAG}-{platform_tag}"
        (info / "WHEEL").write_text(
            f"Wheel-Version: 1.0\nGenerator: halyard-packaging ({version})\nRoot-Is-Purelib: false\nTag: {tag}\n\n"
        )
        for file in LICENCES:
            shutil.copy(stage / "share" / "doc" / "halyard" / file, info / "licenses")
        for path in root.rglob("*"):
            executable = path.is_dir() or path.parent.name == "scripts" or path.suffix == ".so"
            path.chmod(0o755 if executable else 0o644)
        subprocess.run([sys.executable, "-m", "wheel", "pack", "--dest-dir", out, root], check=True)
    wheel = out / f"halyard-{version}-{tag}.whl"
    size = os.path.getsize(wheel) / 1e6
    print(f"{wheel.name}: {size:.1f} MB")
    if not platform_tag.startswith("linux_"):
        if size > LIMIT_MB:
            sys.exit(f"the wheel has {size:.1f} MB, more than {LIMIT_MB}")
        shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], check=True, capture_output=True)
        words = shown.stdout.decode()
        # The oldest tag that its symbols allow; ours promises no less.
        found = re.search(r'"manylinux_(\d+)_(\d+)_', words)
        promised = re.fullmatch(r"manylinux_(\d+)_(\d+)_.*", platform_tag)
        if not found or [int(n) for n in found.groups()] > [int(n) for n in promised.groups()]:
            sys.exit(f"auditwheel finds that the wheel is no {platform_tag}:\n{words}")


if __name__ == "__main__":
    main()

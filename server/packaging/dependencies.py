"""What the packages contain of others: `dependencies.py licences|sbom MACHINE PACKAGE...`, on standard output.

Both read `cargo metadata`: what the named packages link on Linux for MACHINE, without build scripts, macros and tests.
`licences`: every licence text that the crates ship, each once, with the crates under it. `sbom`: CycloneDX 1.6 as JSON,
made and validated by cyclonedx-python-lib.
"""

import hashlib
import json
import pathlib
import re
import subprocess
import sys
import uuid
from collections import defaultdict

NAMES = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)([-_.][^/]*)?$")
# Below a crate's folder: sources in C and C++ that it brings have licences of their own.
DEPTH = 4
# What a crate without a text of its own is taken under, the first of these that its expression offers, and words by
# which the licence's whole text is known.
PREFERRED = {
    "Apache-2.0": ["terms and conditions for use, reproduction, and distribution", "end of terms and conditions"],
    "MIT": ["permission is hereby granted, free of charge, to any person", "this permission notice shall be included"],
    "BSD-3-Clause": ["redistributions in binary form", "neither the name", "this software is provided by"],
    "Zlib": ["this software is provided 'as-is'", "altered source versions must be plainly marked"],
    "ISC": ["permission to use, copy, modify, and", "the software is provided \"as is\" and the author"],
}


def cargo_metadata(machine: str) -> dict:
    """Cargo's answer."""
    target = f"{machine}-unknown-linux-gnu"
    line = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(line, check=True, capture_output=True).stdout)


def linked(metadata: dict, roots: list[str]) -> tuple[list[dict], dict[str, list[str]]]:
    """Packages that the roots link, by name and version, and what each uses."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    names = {package["name"]: package["id"] for package in metadata["packages"] if package["source"] is None}
    if missing := [root for root in roots if root not in names]:
        sys.exit(f"no package {', '.join(missing)} in the workspace")
    is_macro = {
        key for key, package in packages.items() if any("proc-macro" in target["kind"] for target in package["targets"])
    }
    uses: dict[str, list[str]] = {}
    waiting = [names[root] for root in roots]
    while waiting:
        key = waiting.pop()
        if key in uses:
            continue
        used = [
            dep["pkg"]
            for dep in nodes[key]["deps"]
            if dep["pkg"] not in is_macro and any(kind["kind"] is None for kind in dep["dep_kinds"])
        ]
        uses[key] = sorted(set(used))
        waiting += used
    ordered = sorted((packages[key] for key in uses), key=lambda package: (package["name"], package["version"]))
    return ordered, uses


def taken_under(package: dict, texts: list[str]) -> str:
    """The licence under which a crate without a text is taken; ends where its text is not among those that are there."""
    named = f"{package['name']} {package['version']} ships no licence text and is under {package['license']}"
    if not package["license"] or " AND " in package["license"]:
        sys.exit(f"{named}: of several at once none can be chosen; add their texts to the packages")
    offered = re.split(r" OR |/", package["license"].replace(" / ", "/"))
    choice = next((name for name in PREFERRED if name in offered), None)
    if choice is None:
        sys.exit(f"{named}: none of {', '.join(PREFERRED)}; add its words to PREFERRED, or its text to the packages")
    plain = (re.sub(r"\s+", " ", text).lower() for text in texts)
    if not any(all(word in text for word in PREFERRED[choice]) for text in plain):
        sys.exit(f"{named}: no other crate brings the text of {choice}; add it to the packages")
    return choice


def licences(packages: list[dict]) -> str:
    """Every licence text once, with its crates."""
    crates_of: dict[str, list[str]] = defaultdict(list)
    texts: dict[str, str] = {}
    without: list[dict] = []
    foreign = [package for package in packages if package["source"] is not None]
    for package in foreign:
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(
            path
            for path in folder.rglob("*")
            if NAMES.match(path.name) and path.is_file() and path.suffix not in {".rs", ".html", ".cfg"}
            if len(path.relative_to(folder).parts) <= DEPTH
        )
        if not any(path.parent == folder for path in files):
            without.append(package)
        for path in files:
            text = path.read_text(errors="replace").strip()
            key = hashlib.sha256(re.sub(r"\s+", " ", text).encode()).hexdigest()
            texts.setdefault(key, text)
            crates_of[key].append(f"{package['name']} {package['version']}")
    lines = [
        "Halyard's packages contain these crates, all under licences that permit it. Texts follow, each once.",
        "",
    ]
    lines += [f"  {p['name']} {p['version']}  ({p['license'] or 'see its file'})" for p in foreign]
    for key, crates in sorted(crates_of.items(), key=lambda item: (item[1], item[0])):
        lines += ["", "=" * 120, "", "Of " + ", ".join(sorted(set(crates))) + ":", "", texts[key]]
    if without:
        lines += ["", "=" * 120, "", "These crates ship no file with their licence; their manifests name it:", ""]
        for p in without:
            choice = taken_under(p, list(texts.values()))
            lines += [f"  {p['name']} {p['version']}, by {', '.join(p['authors']) or 'its authors'}: {p['license']}"]
            lines += [f"    taken under {choice}; its text is among those above; source: {p['repository']}"]
    return "\n".join(lines) + "\n"


def sbom(packages: list[dict], uses: dict[str, list[str]], version: str) -> str:
    """A CycloneDX bill of materials without anything of this machine or hour."""
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from packageurl import PackageURL

    lock = pathlib.Path("Cargo.lock").read_text()
    by_version = re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]+)"', lock)
    checksums = {(name, number): checksum for name, number, checksum in by_version}
    if not checksums:
        sys.exit("Cargo.lock is not as it was: no checksum was found in it")
    factory = LicenseFactory()
    components = {}
    for package in packages:
        name, number = package["name"], package["version"]
        checksum = checksums.get((name, number))
        links = [(ExternalReferenceType.VCS, package["repository"]), (ExternalReferenceType.WEBSITE, package["homepage"])]
        components[package["id"]] = Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=number,
            bom_ref=f"{name}@{number}",
            purl=PackageURL("cargo", None, name, number) if package["source"] else None,
            licenses=[factory.make_with_expression(package["license"].replace("/", " OR "))] if package["license"] else [],
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
            external_references=[ExternalReference(type=kind, url=XsUri(url)) for kind, url in links if url],
        )
    bom = Bom(components=components.values())
    bom.metadata.component = Component(type=ComponentType.APPLICATION, name="halyard", version=version, bom_ref="halyard")
    # The serial number stands for the contents; the time of making would be the only thing that differs.
    contents = "\n".join(sorted(f"{component.bom_ref.value}" for component in components.values()))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, contents)
    for key, used in uses.items():
        bom.register_dependency(components[key], [components[one] for one in used])
    used = {one for all_used in uses.values() for one in all_used}
    tops = [component for key, component in components.items() if key not in used]
    bom.register_dependency(bom.metadata.component, tops)
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    if errors := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the SBOM is no CycloneDX 1.6: {errors}")
    return text


def main() -> None:
    """Reads the arguments."""
    kind, machine, roots = sys.argv[1], sys.argv[2], sys.argv[3:]
    packages, uses = linked(cargo_metadata(machine), roots)
    if kind == "licences":
        sys.stdout.write(licences(packages))
        return
    version = next(package["version"] for package in packages if package["name"] == "halyard")
    sys.stdout.write(sbom(packages, uses, version))


if __name__ == "__main__":
    main()

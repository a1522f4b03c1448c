# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials of a bundle (CycloneDX 1.6, JSON): the packages that put bytes into it. No clocks, no serial number."""

from __future__ import annotations

from importlib import metadata
from typing import Any, Mapping

SPEC_VERSION = "1.6"

#: What a package contributes to the bundle.
ROLES = {
    "nvidia-cutlass-dsl": "traces the kernels to PTX", "nvidia-cutlass-dsl-libs-base": "traces the kernels to PTX",
    "nvidia-cutlass-dsl-libs-core": "traces the kernels to PTX", "nvidia-cutlass-dsl-libs-cu12": "traces the kernels to PTX",
    "cuda-bindings": "used while tracing", "cuda-core": "used while tracing", "numpy": "used while tracing",
    "nvidia-cuda-nvcc-cu12": "assembles cubins", "nvidia-cuda-nvcc": "assembles cubins for SM 110",
    "ziglang": "compiles the libraries",
}


def _licences(name: str) -> list[dict[str, Any]]:
    """What the package's own metadata says about its licence."""
    found = metadata.metadata(name)
    expression = found.get("License-Expression")
    if expression:
        return [{"expression": expression}]
    text = (found.get("License") or "").strip().splitlines()
    classifiers = [value.rpartition(" :: ")[2] for value in found.get_all("Classifier") or () if value.startswith("License ::")]
    names = [text[0]] if text and len(text[0]) <= 100 else classifiers
    return [{"license": {"name": value}} for value in names]


def _component(name: str, described: Mapping[str, str]) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "application" if name.startswith("nvidia-cuda-nvcc") or name == "ziglang" else "library",
        "bom-ref": f"pkg:pypi/{name}@{described['version']}",
        "purl": f"pkg:pypi/{name}@{described['version']}",
        "name": name,
        "version": described["version"],
        "description": ROLES.get(name, "used by the build"),
        "properties": [{"name": "fmhaforge:files-sha256", "value": described["digest"]}],
    }
    licences = _licences(name)
    if licences:
        component["licenses"] = licences
    return component


def document(version: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The bill of materials of the bundle `version`, from its provenance."""
    tools = {name: described for name, described in provenance["tools"].items() if name != "python"}
    product = f"pkg:generic/fmhaforge@{version}"
    components = [_component(name, tools[name]) for name in sorted(tools)]
    commit = provenance["commit"]
    properties = [{"name": "fmhaforge:python", "value": provenance["tools"]["python"]["version"]}]
    if commit:
        properties.append({"name": "fmhaforge:commit", "value": f"{commit}{' with changes' if provenance['dirty'] else ''}"})
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": {
            "component": {"type": "library", "bom-ref": product, "purl": product, "name": "fmhaforge", "version": version,
                          "licenses": [{"license": {"id": "Apache-2.0"}}]},
            "properties": properties,
        },
        "components": components,
        "dependencies": [{"ref": product, "dependsOn": [component["bom-ref"] for component in components]}],
    }

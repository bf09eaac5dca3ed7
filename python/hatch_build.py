"""Adds the program in TICKFLEET_BINARY and the licenses of its dependencies in TICKFLEET_LICENSES to the wheel.
Without TICKFLEET_BINARY, the wheel has only Python code, and fits every platform."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Processor numbers in the headers of programs for Linux (ELF) and macOS (Mach-O), with the platform names.
_LINUX = {0x3E: "x86_64", 0xB7: "aarch64"}
_MACOS = {0x01000007: "macosx_10_12_x86_64", 0x0100000C: "macosx_11_0_arm64"}


class BinaryHook(BuildHookInterface[Any]):
    """The build hook of the package. pyproject.toml names this class."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        binary = os.environ.get("TICKFLEET_BINARY")
        if not binary or version == "editable":
            return
        # A relative path would be relative to this folder instead of the caller's.
        if not os.path.isabs(binary):
            raise ValueError(f"TICKFLEET_BINARY is {binary!r}: expected an absolute path")
        build_data["shared_scripts"][binary] = "tickfleet"
        if licenses := os.environ.get("TICKFLEET_LICENSES"):
            build_data["shared_data"][licenses] = "share/doc/tickfleet/THIRD-PARTY-LICENSES.txt"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platforms(Path(binary).read_bytes())}"


def platforms(program: bytes) -> str:
    """Returns the platforms on which the program runs, in the format of a wheel's name."""
    if program[:4] == b"\xcf\xfa\xed\xfe":
        return _MACOS[int.from_bytes(program[4:8], "little")]
    if program[:4] != b"\x7fELF":
        raise ValueError("TICKFLEET_BINARY names a file that is no program for Linux or macOS")
    machine = _LINUX[int.from_bytes(program[18:20], "little")]
    versions = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)\x00", program)]
    if not versions or b"/ld-" not in program:
        # A static program needs no C library.
        return f"manylinux_2_17_{machine}.manylinux2014_{machine}.musllinux_1_1_{machine}"
    return f"manylinux_2_{max(versions)}_{machine}"

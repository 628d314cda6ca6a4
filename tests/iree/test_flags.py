"""Flags of IREE's compiler: which stand, what they run on, and what its help says of them."""

from __future__ import annotations

import pytest

from buddy.compiler.iree.catalogue import parsed_help
from buddy.compiler.iree.flags import DEFAULTS, driver, merged, problem, targets

HELP = """OVERVIEW: IREE compilation driver

OPTIONS:

General options:

  --compress-srci=<value>                   - Choose SCRI part compression:
    =none                                   -   No compression
    =zlib                                   -   Use zlib
  -o=<filename>                             - Specify output filename
  --iree-cuda-use-ptxas                     - Whether to use the ptxas tool
  --iree-opt-level=<optimization level>     - Global optimization level
                                             At optimization level O0 the default is false
"""


def test_what_is_given_takes_the_place_of_a_default() -> None:
    assert merged(()) == list(DEFAULTS)
    assert merged(("--iree-opt-level=O3",)).count("--iree-opt-level=O3") == 1
    assert not any(flag == "--iree-opt-level=O2" for flag in merged(("--iree-opt-level=O3",)))


def test_a_device_takes_the_place_of_the_default_target() -> None:
    assert targets(merged(("--iree-hal-target-device=hip[0]",))) == ["hip"]


@pytest.mark.parametrize(
    ("flags", "threads", "expected"),
    [
        ((), 1, "local-sync"),
        ((), 2, "local-task"),
        (("--iree-hal-target-backends=vmvx",), 1, "local-sync"),
        (("--iree-hal-target-backends=cuda",), 2, "cuda"),
        (("--iree-hal-target-backends=vulkan-spirv",), 1, "vulkan"),
        (("--iree-hal-target-device=amdgpu",), 1, "hip"),
    ],
)
def test_the_driver_is_that_of_the_target(flags: tuple[str, ...], threads: int, expected: str) -> None:
    assert driver(merged(flags), threads) == expected


@pytest.mark.parametrize("flag", ["--compile-to=vm", "-o", "--output-format=vm-c", "model.mlir", "--", "", "--a\nb"])
def test_what_cannot_be_passed_on_is_refused_by_name(flag: str) -> None:
    assert problem(flag)


def test_the_help_is_read_with_kinds_values_and_summaries() -> None:
    found = {flag.name: flag for flag in parsed_help(HELP)}
    assert found["compress-srci"].values == ("none", "zlib")
    assert found["iree-cuda-use-ptxas"].kind == ""
    assert (found["iree-opt-level"].kind, found["iree-opt-level"].summary) == (
        "optimization level",
        "Global optimization level",
    )

"""Files made to reach beyond themselves: other files, more memory than they are long, a recipe's plug-ins."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from buddy.app.reports.reproducer import (
    DESCRIPTION_FILE,
    ReproducerDescription,
    StageFile,
    external_python,
    read_description,
)
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.importers.sources import SourceError, load_program
from buddy.compiler.protocol import compatibility
from buddy.compiler.protocol.recipe import PassStep, PluginFile, Recipe, required_permissions, to_toml
from buddy.compiler.protocol.run_report import InputChoice
from buddy.compiler.protocol.source_files import archive_too_large, kind_of
from buddy.compiler.runtime.captured import InputError, _read_file

# ---- ONNX ------------------------------------------------------------------------------------------------------------

OUTSIDE = ("../secret", "{folder}/secret", "link", "linked/secret", "./../m/../secret", "a/../../secret")


@pytest.mark.parametrize("location", OUTSIDE)
def test_weights_of_an_onnx_model_lie_beside_it_or_it_is_refused(tmp_path: Path, location: str) -> None:
    onnx = pytest.importorskip("onnx")
    place = tmp_path / "m"
    place.mkdir()
    (tmp_path / "secret").write_bytes(bytes(64))
    (place / "link").symlink_to(tmp_path / "secret")
    (place / "linked").symlink_to(tmp_path)
    weight = onnx.TensorProto(name="w", data_type=1, dims=[16], data_location=onnx.TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=location.format(folder=tmp_path))
    values = [onnx.helper.make_tensor_value_info(name, 1, [16]) for name in "xy"]
    add = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([add], "g", values[:1], values[1:], [weight])
    (place / "m.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(SourceError, match="cannot be used"):
        load_program(str(place / "m.onnx"))


# ---- archives --------------------------------------------------------------------------------------------------------


def bomb(names: tuple[str, ...], each: int) -> bytes:
    """An archive of members that say that they hold `each` bytes, and hold less."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, bytes(10_000))
    whole = bytearray(data.getvalue())
    for sign, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        at = whole.find(sign)
        while at >= 0:
            whole[at + place : at + place + 4] = each.to_bytes(4, "little")
            at = whole.find(sign, at + 4)
    return bytes(whole)


@pytest.mark.parametrize("names", [("m/data.pkl",), ("m/models/m.json",), ("m/constants.pkl", "m/code/a.py")])
def test_an_archive_that_unpacks_to_far_more_than_its_length_is_not_read(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(bomb(names, (4 << 30) - 2))
    assert kind_of(path).kind == "other"
    with pytest.raises(SourceError, match=r"claims to unpack to 4,29|claims to unpack to 8,58"):
        load_program(str(path))
    with pytest.raises(InputError, match="claims to unpack to"):
        _read_file(InputChoice("file", title="x.npz", content=bomb(("x.npy",), (4 << 30) - 2)))


def test_a_small_file_may_hold_much_all_the_same() -> None:
    data = io.BytesIO()
    np.savez_compressed(data, x=np.zeros(1 << 22, np.float32))
    assert len(data.getvalue()) * 100 < 4 << 22
    assert _read_file(InputChoice("file", title="x.npz", content=data.getvalue()))["x"].shape == (1 << 22,)
    with zipfile.ZipFile(io.BytesIO(data.getvalue())) as archive:
        assert not archive_too_large(archive, len(data.getvalue()))


def test_names_that_lead_out_of_an_archive_write_nothing(tmp_path: Path) -> None:
    """Nothing unpacks: a member called so is read in memory, or not at all."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    torch.save({"x": torch.ones(2)}, inner / "w.pt")
    with zipfile.ZipFile(inner / "w.pt", "a") as archive:
        archive.writestr("../../escaped", "x")
        archive.writestr("/escaped", "x")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SourceError):
        load_program(str(inner / "w.pt"))
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/escaped").exists()


# ---- recipes ---------------------------------------------------------------------------------------------------------

HARMFUL = {
    "plug-in /tmp/x.py": Recipe(plugins=(PluginFile("/tmp/x.py"),)),
    "names a file": Recipe(steps=(PassStep("snapshot-op-locations", options=(("filename", "out.mlir"),)),)),
    "toolkit=/tmp/evil": Recipe(steps=(PassStep("gpu-module-to-binary", options=(("toolkit", "/tmp/evil"),)),)),
    "opts=-o x": Recipe(steps=(PassStep("gpu-module-to-binary", options=(("opts", "-o x"),)),)),
    "extra-library": Recipe(steps=(PassStep("torch-reduce-op-variants", options=(("extra-library", "a"),)),)),
    "whatever=../a": Recipe(steps=(PassStep("some-pass", options=(("whatever", "../a"),), enabled=False),)),
    "list={a=1 toolkit=/tmp/evil} of": Recipe(
        steps=(PassStep("a-pass", options=(("list", "{a=1 toolkit=/tmp/evil}"),)),)
    ),
    "toolkit=evil": Recipe(steps=(PassStep("gpu-module-to-binary", options=(("format", "bin toolkit=evil"),)),)),
    "filename=out": Recipe(steps=(PassStep("snapshot-op-locations", options=(("tag", "a\n filename=out"),)),)),
    "opts={x}": Recipe(steps=(PassStep("fixed-point", options=(("pipeline", "any(gpu-to-binary{opts={x}})"),)),)),
    "with 'gpu-module": Recipe(steps=(PassStep("gpu-module-to-binary{toolkit=evil}"),)),
    "with 'any(cse),any'": Recipe(steps=(PassStep("cse", anchor="any(cse),any"),)),
    "with 'format=bin toolkit'": Recipe(steps=(PassStep("gpu-pass", options=(("format=bin toolkit", "evil"),)),)),
    "system-linker-path": Recipe(backend="iree", backend_flags=("--iree-llvmcpu-system-linker-path=evil",)),
    "sources-to": Recipe(backend="iree", backend_flags=("--iree-hal-dump-executable-sources-to=here",)),
    "--iree-some-new=/etc/x": Recipe(backend="iree", backend_flags=("--iree-some-new=/etc/x",)),
}


@pytest.mark.parametrize("what", HARMFUL)
def test_what_a_recipe_asks_for_beyond_computing_is_named(what: str) -> None:
    (claim,) = required_permissions(HARMFUL[what])
    assert what in claim


def test_plain_recipes_ask_for_nothing() -> None:
    from buddy.compiler.codegen.iree.options import DEFAULT_FLAGS
    from buddy.compiler.protocol.presets import default_recipe, presets

    text = "// a comment\nmodule {\n  // /tmp/x\n}\n"
    steps = (PassStep("replace-ir", options=(("ir", text),)), PassStep("one-shot-bufferize", options=(("copy", True),)))
    ours = (preset.recipe for preset in presets().values())
    for recipe in (default_recipe(), *ours, Recipe(steps=steps), Recipe(backend="iree", backend_flags=DEFAULT_FLAGS)):
        assert required_permissions(recipe) == []
    assert required_permissions(HARMFUL["plug-in /tmp/x.py"], ["/tmp/x.py"]) == []


def test_torch_compile_takes_no_such_recipe_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "theirs.toml").write_text(to_toml(HARMFUL["names a file"]))
    with pytest.raises(ValueError, match="snapshot-op-locations"):
        BackendSettings.of({"recipe": str(tmp_path / "theirs.toml")})


# ---- reproducers -----------------------------------------------------------------------------------------------------


def described(folder: Path, script: str, source: str = "model.py") -> Path:
    folder.mkdir(exist_ok=True)
    stages = (StageFile("fx", "stages/00-fx.txt", "0" * 64),)
    found = ReproducerDescription(compatibility.REPRODUCER.latest, source, (), script, 0, "", "", {}, "", stages)
    (folder / DESCRIPTION_FILE).write_text(json.dumps({name: getattr(found, name) for name in found.__struct_fields__
                                                  if name != "stages"} | {"stages": []}))  # fmt: skip
    return folder


@pytest.mark.parametrize("script", ["../evil.py", "script/../../evil.py", "{folder}/evil.py", "script/link.py", "loop"])
def test_a_reproducer_names_no_script_outside_of_its_folder(tmp_path: Path, script: str) -> None:
    (tmp_path / "evil.py").write_text("")
    folder = described(tmp_path / "r", script.format(folder=tmp_path))
    (folder / "script").mkdir()
    (folder / "script" / "link.py").symlink_to(tmp_path / "evil.py")
    os.symlink("loop", folder / "loop")
    with pytest.raises(ValueError, match=r"which is not in the folder"):
        read_description(folder)


def test_what_a_reproducer_would_run_elsewhere_is_known(tmp_path: Path) -> None:
    cases = {
        "os:system": True,
        "/home/you/x.py": True,
        "/home/you/w.onnx:d/x.py": True,
        "model.mlir:main": False,
        "model.pt2": False,
    }
    for source, runs in cases.items():
        assert bool(external_python(read_description(described(tmp_path, "", source)))) == runs
    assert not external_python(read_description(described(tmp_path, "script/x.py")))

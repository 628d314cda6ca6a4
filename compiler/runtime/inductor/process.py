"""Runs Inductor's code in a forked process, because its OpenMP runtime would compete with torch's threads."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import IO

import torch

from buddy.compiler.protocol.recipe import INDUCTOR
from buddy.compiler.runtime.forked_program import ForkedProgram
from buddy.compiler.runtime.inductor import libraries
from buddy.compiler.runtime.inductor.compiling import InductorArtifact
from buddy.compiler.runtime.inductor.program import InductorError


class InductorProcess(ForkedProgram):
    """An artifact of Inductor on the tensors of one call. Every method may raise `InductorError`."""

    def __init__(self, artifact: InductorArtifact, tensors: Sequence[torch.Tensor], threads: int) -> None:
        self._threads = threads
        super().__init__(lambda: LoadedArtifact(artifact, tensors, threads), _make_error)

    @property
    def backend(self) -> str:
        return INDUCTOR

    def notes(self) -> list[str]:
        return [f"Inductor's code is that of torch {torch.__version__}, in its own process"]

    def _read(self, file: IO[bytes], shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        results = torch.load(file, weights_only=True)
        assert isinstance(results, list)
        return results


def _make_error(what: str) -> InductorError:
    return InductorError(what, "Inductor's code, while it ran", "change the recipe's backend_flags, or run again")


class LoadedArtifact:
    """The Python module that Inductor has generated, loaded here; its kernels are in Inductor's cache."""

    def __init__(self, artifact: InductorArtifact, tensors: Sequence[torch.Tensor], threads: int) -> None:
        from torch._inductor import config
        from torch._inductor.codecache import PyCodeCache

        torch.set_num_threads(threads)
        self._tensors = tensors
        constants = torch.load(BytesIO(artifact.constants), weights_only=True)
        with config.patch(artifact.settings), libraries.recording():
            key, path = PyCodeCache.write(artifact.source)
            self.module = PyCodeCache.load_by_key_path(key, path, attrs=constants)

    def call(self) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return self.module.call(list(self._tensors))

    def write(self, results: Sequence[torch.Tensor], file: IO[bytes]) -> tuple[tuple[int, ...], ...]:
        torch.save([result.contiguous() for result in results], file)
        return tuple(tuple(result.shape) for result in results)

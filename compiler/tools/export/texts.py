"""The build file and the README of an export."""

from __future__ import annotations

from collections.abc import Collection

from buddy.compiler.codegen.machines import Machine
from buddy.compiler.tools.export.interface import ProgramInterface


def cmake(interface: ProgramInterface, code: str) -> str:
    """A CMakeLists.txt for the loader and the programs in C and C++; `code` is the file with the compiled code."""
    name = interface.name
    assembly = code.endswith(".s")
    openmp = (
        f"find_package(OpenMP)\nif(OpenMP_C_FOUND)\n  target_link_libraries({name} PRIVATE OpenMP::OpenMP_C)\nendif()\n"
    )
    return f"""cmake_minimum_required(VERSION 3.16)
project({name} LANGUAGES C CXX{" ASM" if assembly else ""})

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_C_STANDARD 11)
set(CMAKE_CXX_STANDARD 17)
option(BUILD_SHARED_LIBS "a shared library rather than a static one" ON)

add_library({name} {name}.c {code})
{_object_property(code)}set_target_properties({name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
target_include_directories({name} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})
target_link_libraries({name} PUBLIC m)
{openmp if interface.threads > 1 else ""}
add_executable({name}-c main.c)
target_link_libraries({name}-c {name})
add_executable({name}-cpp main.cpp)
target_link_libraries({name}-cpp {name})
"""


def _object_property(code: str) -> str:
    return f"set_source_files_properties({code} PROPERTIES EXTERNAL_OBJECT TRUE)\n" if code.endswith(".o") else ""


def readme(interface: ProgramInterface, origin: str, machine: Machine, files: Collection[str], command: str) -> str:
    """The README of an export: its files, and how to build and run it."""
    name = interface.name
    known = _descriptions(name)
    listed = [f"| `{file}` | {known.get(file, _other(file))} |" for file in files]
    parts = [
        f"# {name}\n\nCompiled by buddy-tui from `{origin}` for {machine}:\n\n```sh\n{command}\n```\n",
        "\n".join(["| file | what it is |", "|---|---|", *listed, ""]),
    ]
    code = next((file for file in (f"{name}.o", f"{name}.s") if file in files), "")
    if f"{name}.c" in files and code:
        parts.append(_building(interface, code))
    for library in (f"lib{name}.so", f"lib{name}.a"):
        if library in files:
            parts.append(_linking(interface, library))
    if any(file.endswith(".whl") for file in files):
        parts.append(_installing(name))
    return "\n".join(parts)


def _descriptions(name: str) -> dict[str, str]:
    return {
        f"{name}.h": "the functions, with the shapes and element types of all inputs and outputs",
        f"{name}.c": "the loader: maps and packs the weights, calls the compiled code",
        f"{name}.o": "the compiled code, relocatable, position-independent",
        f"{name}.s": "the compiled code as assembly",
        f"{name}.ll": "LLVM IR, before LLVM's own passes",
        f"{name}.mlir": "MLIR as text",
        f"{name}.mlirbc": "the same in MLIR's bytecode",
        f"lib{name}.a": "compiled code and loader as a static library",
        f"lib{name}.so": "compiled code and loader as a shared library",
        f"{name}.safetensors": "the weights, in the model's format and with its names",
        "main.c": "runs the program on files, compares, times",
        "main.cpp": "the same, smaller, in C++",
        "npy.h": "tensors in files, for both",
        "CMakeLists.txt": "builds the library and both programs",
    }


def _other(file: str) -> str:
    if file.startswith("example/"):
        return "the inputs of the capture" if "input" in file else "the results of eager PyTorch for these inputs"
    return "a Python package of the program, which needs NumPy alone" if file.endswith(".whl") else ""


def _building(interface: ProgramInterface, code: str) -> str:
    name = interface.name
    openmp = " -fopenmp" if interface.threads > 1 else ""
    threads = f"\nWithout `-fopenmp` it runs on one thread, with it on {interface.threads}.\n" if openmp else ""
    inputs = " ".join(f"example/input{i}.npy" for i in range(len(interface.inputs)))
    expected = " ".join(f"--expect example/output{i}.npy" for i in range(len(interface.outputs)))
    return f"""## Build

With any C compiler (C11, POSIX):

```sh
cc -std=c11 -O2{openmp} main.c {name}.c {code} -lm -o {name}-c
cc -std=c11 -O2{openmp} -c {name}.c -o loader.o
c++ -std=c++17 -O2{openmp} main.cpp loader.o {code} -lm -o {name}-cpp
```

or with CMake:

```sh
cmake -S . -B build && cmake --build build
```
{threads}
## Run

```sh
./{name}-c {inputs} {expected}
```

It prints each output's range, the largest difference from what eager PyTorch computed, and times.
"""


def _linking(interface: ProgramInterface, library: str) -> str:
    openmp = " -fopenmp" if interface.threads > 1 and library.endswith(".a") else ""
    where = " -Wl,-rpath,'$ORIGIN'" if library.endswith(".so") else ""
    return f"""## With {library}

```sh
cc -std=c11 -O2{openmp} main.c {library} -lm{where} -o {interface.name}-c
```
"""


def _installing(name: str) -> str:
    return f"""## In Python

```python
import {name}

outputs = {name}.load()(*inputs)  # NumPy arrays
```
"""

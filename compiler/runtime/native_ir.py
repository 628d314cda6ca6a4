"""The LLVM IR of the function that makes the calls of compiled code, and the records that the function reads.

The function checks the form of each input, allocates the results, calls the entry of a program, and returns the
results. It calls Python for each argument or result that it does not handle: an input of another form or class, a
weight that is packed or that has moved, a large result whose memory may be reused. The function is compiled once per
process. It reads tensors through the C interface that PyTorch keeps stable for models that are compiled ahead of time
(`aoti_torch_*`).
"""

from __future__ import annotations

import ctypes
import sys
import time
from dataclasses import dataclass

import torch

# In nanoseconds. If a call takes longer, the next call releases the interpreter lock. Shorter calls keep it, because a
# thread may wait several milliseconds to take the lock again.
_LONG_CALL = 10_000
# Values of `ArgumentRecord.address`: with `ANY_ADDRESS`, a tensor is passed whatever its address; with `NO_ADDRESS`,
# every tensor goes through `take`.
ANY_ADDRESS, NO_ADDRESS = -2, -1


class ArgumentRecord(ctypes.Structure):
    """An argument of the entry: input number `input`, or the tensor at `constant` if that is not null.

    The tensor is passed unchanged if it is dense, has this element type and these sizes, and is at `address`, or at any
    address if that is `ANY_ADDRESS`. If `copy` is not null, it is the address of a `CopyRecord`, whose copy is passed
    instead if it is a copy of this tensor. Otherwise the Python function `take` is called with the tensor; it returns
    the tensor to pass, and its address.
    """

    _fields_ = (
        ("input", ctypes.c_int64),
        ("constant", ctypes.c_void_p),
        ("dtype", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("address", ctypes.c_int64),
        ("take", ctypes.c_void_p),
        ("copy", ctypes.c_void_p),
    )


class CopyRecord(ctypes.Structure):
    """The packed copy of a weight, at `address` in the Python object `tensor`.

    The copy is passed for a tensor that has the form and the address of `source`, and whose version counter is still
    `version`: PyTorch has counted no write to it. If `source.address` is `NO_ADDRESS`, there is no copy.
    """

    _fields_ = (
        ("source", ArgumentRecord),
        ("version", ctypes.c_int64),
        ("address", ctypes.c_int64),
        ("tensor", ctypes.c_void_p),
    )


class ResultRecord(ctypes.Structure):
    """A result of the entry, whose address is passed if `passed` is not 0.

    Unless it is `small`, the Python function `make` allocates it; it returns a tensor and its address.
    """

    _fields_ = (
        ("dtype", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("small", ctypes.c_int64),
        ("passed", ctypes.c_int64),
        ("make", ctypes.c_void_p),
    )


class CallRecord(ctypes.Structure):
    """The data of one program that the native function reads.

    `arena` is null or the address of `WorkArena.words`; the Python function `make_arena` allocates other memory if that
    of `words` is in use. If an op in eager fails, it changes the number at `failures`, and the Python function `finish`
    is called with the inputs: it raises, returns the value of the call, or returns `None` if the results are valid.
    `is_long` is not 0 if the last call took longer than `_LONG_CALL`.
    """

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("n_inputs", ctypes.c_int64),
        ("n_arguments", ctypes.c_int64),
        ("arguments", ctypes.c_void_p),
        ("n_results", ctypes.c_int64),
        ("results", ctypes.c_void_p),
        ("arena", ctypes.c_void_p),
        ("make_arena", ctypes.c_void_p),
        ("failures", ctypes.c_void_p),
        ("finish", ctypes.c_void_p),
        ("is_long", ctypes.c_int64),
    )


# ---- the native function ---------------------------------------------------------------------------------------------

# The functions that the native function calls, with their types in LLVM IR, by library.
# Python 3.10 has `PyObject_CallOneArg` and `PyObject_Vectorcall` in its headers alone, but `PyObject_VectorcallDict` as
# a symbol.
PYTHON = {
    "PyList_New": "ptr (i64)", "PyList_SetItem": "i32 (ptr, i64, ptr)", "PyList_GetItem": "ptr (ptr, i64)",
    "PyList_Append": "i32 (ptr, ptr)", "PyTuple_GetItem": "ptr (ptr, i64)", "PyLong_AsLongLong": "i64 (ptr)",
    "Py_IncRef": "void (ptr)", "Py_DecRef": "void (ptr)", "PyErr_SetString": "void (ptr, ptr)",
    "PyErr_Clear": "void ()", "PyObject_GetAttr": "ptr (ptr, ptr)",
    "PyObject_CallNoArgs": "ptr (ptr)", "PyObject_VectorcallDict": "ptr (ptr, ptr, i64, ptr)",
    "PyEval_SaveThread": "ptr ()", "PyEval_RestoreThread": "void (ptr)",
}  # fmt: skip
TORCH = {
    "aoti_torch_get_dtype": "i32 (ptr, ptr)", "aoti_torch_get_dim": "i32 (ptr, ptr)",
    "aoti_torch_get_sizes": "i32 (ptr, ptr)", "aoti_torch_is_contiguous": "i32 (ptr, ptr)",
    "aoti_torch_get_data_ptr": "i32 (ptr, ptr)", "aoti_torch_delete_tensor_object": "i32 (ptr)",
    "aoti_torch_empty_strided": "i32 (i64, ptr, ptr, i32, i32, i32, ptr)",
}  # fmt: skip
# PyTorch's function that makes a Python object of a tensor, `THPVariable_Wrap`, in two versions of PyTorch. Both take a
# pointer to a tensor; the second one may move the contents out of it, and the caller deletes it.
WRAP_SYMBOLS = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")
WRAP = "buddy_wrap"
LIBC = {"clock_gettime": "i32 (i32, ptr)", "memcmp": "i32 (ptr, ptr, i64)"}
NATIVE_FUNCTION = "buddy_native_call"
_ARITY_ERROR = "the compiled graph has more inputs"
# The offset in bytes of the class in a Python object; `native_calls` checks it.
TYPE_OFFSET = 8

# The name of a tensor's version counter. It is interned, so that the string lives as long as the process.
_VERSION = sys.intern("_version")
_RECORDS = {"argument": ArgumentRecord, "copy": CopyRecord, "result": ResultRecord, "call": CallRecord}


@dataclass(frozen=True)
class TensorLayout:
    """The memory layout of CPython's and PyTorch's objects, as far as the native function reads them.

    `tensor_offset` is the offset in bytes of the tensor in a Python object, `keys_offset` that of the dispatch keys in
    a tensor. `plain` and `base` are sets of dispatch keys, as bits: a dense tensor on the CPU has only keys in `plain`,
    and all keys in `base`.
    """

    tensor_offset: int
    keys_offset: int
    plain: int
    base: int


def _declarations() -> str:
    """Returns the declarations of the functions that the native function calls."""
    functions = {**PYTHON, **TORCH, **LIBC, WRAP: "ptr (ptr)"}
    return "\n".join(f"declare {type_.replace(' (', f' @{name}(')}" for name, type_ in functions.items())


def _load_field(result: str, record: str, field: str, type_: str = "i64") -> str:
    """Returns IR that loads a field of the record at `%record` to `%result`; `record` is a key of `_RECORDS`."""
    offset = getattr(_RECORDS[record], field).offset
    return f"%{result}.at = getelementptr i8, ptr %{record}, i64 {offset}\n  %{result} = load {type_}, ptr %{result}.at"


def native_ir(layout: TensorLayout) -> str:
    """Returns the IR of the native function and of the functions that it calls."""
    return f"""
{_declarations()}

@arity = private constant [{len(_ARITY_ERROR) + 1} x i8] c"{_ARITY_ERROR}\\00"

{_argument_functions(layout)}
{_ask_python_function()}
{_allocate_function()}
{_run_functions()}
{_native_function()}"""


def _argument_functions(layout: TensorLayout) -> str:
    """Returns the functions that find the address to pass for a tensor: that of its elements, or of its packed copy."""
    return f"""\
; Returns whether the tensor at %tensor is a plain dense CPU tensor: not sparse, quantised, lazily conjugated, fake, ...
define private i1 @is_plain(ptr %tensor) {{
  %impl = load ptr, ptr %tensor
  %keys.at = getelementptr i8, ptr %impl, i64 {layout.keys_offset}
  %keys = load i64, ptr %keys.at
  %others = and i64 %keys, {~layout.plain}
  %base = and i64 %keys, {layout.base}
  %has_no_other = icmp eq i64 %others, 0
  %has_base = icmp eq i64 %base, {layout.base}
  %is_plain = and i1 %has_no_other, %has_base
  ret i1 %is_plain
}}

; Returns the address of the elements of %object, or -1 if it does not match %argument and has to be passed to Python.
define private i64 @address_of(ptr %object, ptr %argument) {{
  %slot = alloca i64
  store i64 0, ptr %slot
  %type.at = getelementptr i8, ptr %object, i64 {TYPE_OFFSET}
  %type = load i64, ptr %type.at
  %is_tensor = icmp eq i64 %type, {id(torch.Tensor)}
  %is_parameter = icmp eq i64 %type, {id(torch.nn.Parameter)}
  %has_class = or i1 %is_tensor, %is_parameter
  br i1 %has_class, label %keys, label %miss
keys:
  %tensor = getelementptr i8, ptr %object, i64 {layout.tensor_offset}
  %is_plain = call i1 @is_plain(ptr %tensor)
  br i1 %is_plain, label %element, label %miss
element:
  {_load_field("wanted_dtype", "argument", "dtype")}
  call i32 @aoti_torch_get_dtype(ptr %tensor, ptr %slot)
  %dtype.32 = load i32, ptr %slot
  %dtype = zext i32 %dtype.32 to i64
  %has_dtype = icmp eq i64 %dtype, %wanted_dtype
  br i1 %has_dtype, label %dims, label %miss
dims:
  {_load_field("wanted_rank", "argument", "rank")}
  call i32 @aoti_torch_get_dim(ptr %tensor, ptr %slot)
  %rank = load i64, ptr %slot
  %has_rank = icmp eq i64 %rank, %wanted_rank
  br i1 %has_rank, label %shape, label %miss
shape:
  {_load_field("wanted_sizes", "argument", "sizes", "ptr")}
  call i32 @aoti_torch_get_sizes(ptr %tensor, ptr %slot)
  %sizes = load ptr, ptr %slot
  %bytes = shl i64 %rank, 3
  %difference = call i32 @memcmp(ptr %sizes, ptr %wanted_sizes, i64 %bytes)
  %has_shape = icmp eq i32 %difference, 0
  br i1 %has_shape, label %order, label %miss
order:
  store i64 0, ptr %slot
  call i32 @aoti_torch_is_contiguous(ptr %tensor, ptr %slot)
  %dense.8 = load i8, ptr %slot
  %is_dense = icmp ne i8 %dense.8, 0
  br i1 %is_dense, label %data, label %miss
data:
  %error = call i32 @aoti_torch_get_data_ptr(ptr %tensor, ptr %slot)
  %has_address = icmp eq i32 %error, 0
  br i1 %has_address, label %compare, label %miss
compare:
  {_load_field("wanted_address", "argument", "address")}
  %address = load i64, ptr %slot
  %is_any = icmp eq i64 %wanted_address, {ANY_ADDRESS}
  %is_same = icmp eq i64 %wanted_address, %address
  %fits = or i1 %is_any, %is_same
  br i1 %fits, label %hit, label %miss
hit:
  ret i64 %address
miss:
  ret i64 {NO_ADDRESS}
}}

; Keeps %object in the list at %kept, which lives until the end of the call.
define private void @keep(ptr %kept, ptr %object) {{
  %list = load ptr, ptr %kept
  %has_no_list = icmp eq ptr %list, null
  br i1 %has_no_list, label %new, label %append
new:
  %new_list = call ptr @PyList_New(i64 0)
  store ptr %new_list, ptr %kept
  br label %append
append:
  %target = load ptr, ptr %kept
  call i32 @PyList_Append(ptr %target, ptr %object)
  ret void
}}

; Returns the address of the packed copy of %object that %copy has, or -1 if %object has to be passed to Python.
define private i64 @copy_of(ptr %object, ptr %copy, ptr %kept) {{
  %source = getelementptr i8, ptr %copy, i64 {CopyRecord.source.offset}
  %found = call i64 @address_of(ptr %object, ptr %source)
  %is_found = icmp ne i64 %found, {NO_ADDRESS}
  br i1 %is_found, label %counted, label %miss
counted:
  %number = call ptr @PyObject_GetAttr(ptr %object, ptr inttoptr (i64 {id(_VERSION)} to ptr))
  %is_uncounted = icmp eq ptr %number, null
  br i1 %is_uncounted, label %clear, label %compare
clear:
  call void @PyErr_Clear()
  br label %miss
compare:
  %version = call i64 @PyLong_AsLongLong(ptr %number)
  call void @Py_DecRef(ptr %number)
  {_load_field("wanted_version", "copy", "version")}
  %is_same = icmp eq i64 %version, %wanted_version
  br i1 %is_same, label %hit, label %miss
hit:
  {_load_field("tensor", "copy", "tensor", "ptr")}
  {_load_field("address", "copy", "address")}
  call void @keep(ptr %kept, ptr %tensor)
  ret i64 %address
miss:
  ret i64 {NO_ADDRESS}
}}
"""


def _ask_python_function() -> str:
    """Returns the function that calls Python for a tensor, and keeps the answer."""
    return f"""\
; Calls a Python function that returns a tensor and its address, with %object or, if that is null, without arguments.
; Appends the answer to the list at %kept; returns the address, or -1 with a Python error. The tensor is at %answer.
define private i64 @ask_python(ptr %function, ptr %object, ptr %kept, ptr %answer) {{
  %arguments = alloca ptr
  store ptr %object, ptr %arguments
  %has_no_object = icmp eq ptr %object, null
  br i1 %has_no_object, label %without, label %with
without:
  %made = call ptr @PyObject_CallNoArgs(ptr %function)
  br label %called
with:
  %taken = call ptr @PyObject_VectorcallDict(ptr %function, ptr %arguments, i64 1, ptr null)
  br label %called
called:
  %pair = phi ptr [ %made, %without ], [ %taken, %with ]
  %has_failed = icmp eq ptr %pair, null
  br i1 %has_failed, label %failed, label %keep
keep:
  call void @keep(ptr %kept, ptr %pair)
  call void @Py_DecRef(ptr %pair)
  %tensor = call ptr @PyTuple_GetItem(ptr %pair, i64 0)
  store ptr %tensor, ptr %answer
  %number = call ptr @PyTuple_GetItem(ptr %pair, i64 1)
  %address = call i64 @PyLong_AsLongLong(ptr %number)
  ret i64 %address
failed:
  ret i64 {NO_ADDRESS}
}}
"""


def _allocate_function() -> str:
    """Returns the function that allocates a small result."""
    return f"""\
; Makes a new tensor for %result, as an object at %answer; returns its address, or -1 if Python has to allocate it.
define private i64 @allocate(ptr %result, ptr %answer) {{
  %slot = alloca ptr
  {_load_field("small", "result", "small")}
  %is_small = icmp ne i64 %small, 0
  br i1 %is_small, label %empty, label %miss
empty:
  {_load_field("rank", "result", "rank")}
  {_load_field("sizes", "result", "sizes", "ptr")}
  {_load_field("strides", "result", "strides", "ptr")}
  {_load_field("dtype.64", "result", "dtype", "i64")}
  %dtype = trunc i64 %dtype.64 to i32
  %error = call i32 @aoti_torch_empty_strided(
    i64 %rank, ptr %sizes, ptr %strides, i32 %dtype, i32 0, i32 0, ptr %slot)
  %has_tensor = icmp eq i32 %error, 0
  br i1 %has_tensor, label %check, label %miss
check:
  %tensor = load ptr, ptr %slot
  %is_plain = call i1 @is_plain(ptr %tensor)
  br i1 %is_plain, label %wrap, label %drop
wrap:
  call i32 @aoti_torch_get_data_ptr(ptr %tensor, ptr %slot)
  %address = load i64, ptr %slot
  %object = call ptr @{WRAP}(ptr %tensor)
  call i32 @aoti_torch_delete_tensor_object(ptr %tensor)
  store ptr %object, ptr %answer
  ret i64 %address
drop:
  call i32 @aoti_torch_delete_tensor_object(ptr %tensor)
  br label %miss
miss:
  ret i64 {NO_ADDRESS}
}}
"""


def _run_functions() -> str:
    """Returns the function that calls the entry, and the one that reads the clock for it."""
    return f"""\
define private i64 @nanoseconds() {{
  %time = alloca [2 x i64]
  call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %rest.at = getelementptr i64, ptr %time, i64 1
  %rest = load i64, ptr %rest.at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}}

; Calls the entry, without the interpreter lock if the last call took long.
define private void @run(ptr %call, ptr %words) {{
  {_load_field("entry", "call", "entry", "ptr")}
  {_load_field("is_long", "call", "is_long")}
  %releases = icmp ne i64 %is_long, 0
  br i1 %releases, label %long, label %short
long:
  %thread = call ptr @PyEval_SaveThread()
  %long_start = call i64 @nanoseconds()
  call void %entry(ptr %words)
  %long_end = call i64 @nanoseconds()
  call void @PyEval_RestoreThread(ptr %thread)
  br label %done
short:
  %short_start = call i64 @nanoseconds()
  call void %entry(ptr %words)
  %short_end = call i64 @nanoseconds()
  br label %done
done:
  %start = phi i64 [ %long_start, %long ], [ %short_start, %short ]
  %end = phi i64 [ %long_end, %long ], [ %short_end, %short ]
  %taken = sub i64 %end, %start
  %was_long = icmp sgt i64 %taken, {_LONG_CALL}
  %next = zext i1 %was_long to i64
  store i64 %next, ptr %is_long.at
  ret void
}}
"""


def _native_function() -> str:
    """Returns the native function: it collects the arguments and results, and calls the entry."""
    return f"""\
; METH_FASTCALL: %self is a tuple whose first item is the address of the call's record.
define ptr @{NATIVE_FUNCTION}(ptr %self, ptr %inputs, i64 %n) {{
  %kept = alloca ptr
  store ptr null, ptr %kept
  %answer = alloca ptr
  %number = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %record = call i64 @PyLong_AsLongLong(ptr %number)
  %call = inttoptr i64 %record to ptr
  {_load_field("n_inputs", "call", "n_inputs")}
  {_load_field("n_arguments", "call", "n_arguments")}
  {_load_field("arguments", "call", "arguments", "ptr")}
  {_load_field("n_results", "call", "n_results")}
  {_load_field("results", "call", "results", "ptr")}
  {_load_field("arena", "call", "arena", "ptr")}
  {_load_field("failures", "call", "failures", "ptr")}
  {_load_field("finish", "call", "finish", "ptr")}
  %has_inputs = icmp sge i64 %n, %n_inputs
  br i1 %has_inputs, label %enter, label %arity
arity:
  call void @PyErr_SetString(ptr inttoptr (i64 {id(TypeError)} to ptr), ptr @arity)
  ret ptr null
enter:
  %tensors = add i64 %n_arguments, %n_results
  %n_words = add i64 %tensors, 1
  %words = alloca i64, i64 %n_words
  %list = call ptr @PyList_New(i64 %n_results)
  br label %next_argument

next_argument:
  %i = phi i64 [ 0, %enter ], [ %i.1, %store_argument ]
  %has_arguments = icmp eq i64 %i, %n_arguments
  br i1 %has_arguments, label %next_result, label %argument_object
argument_object:
  %argument.from = mul i64 %i, {ctypes.sizeof(ArgumentRecord)}
  %argument = getelementptr i8, ptr %arguments, i64 %argument.from
  {_load_field("constant", "argument", "constant", "ptr")}
  %is_input = icmp eq ptr %constant, null
  br i1 %is_input, label %load_input, label %take_argument
load_input:
  {_load_field("input_number", "argument", "input")}
  %input.at = getelementptr ptr, ptr %inputs, i64 %input_number
  %input = load ptr, ptr %input.at
  br label %take_argument
take_argument:
  %object = phi ptr [ %constant, %argument_object ], [ %input, %load_input ]
  {_load_field("copy", "argument", "copy", "ptr")}
  %has_no_copy = icmp eq ptr %copy, null
  br i1 %has_no_copy, label %find_argument, label %find_copy
find_argument:
  %itself = call i64 @address_of(ptr %object, ptr %argument)
  br label %found_argument
find_copy:
  %its_copy = call i64 @copy_of(ptr %object, ptr %copy, ptr %kept)
  br label %found_argument
found_argument:
  %found = phi i64 [ %itself, %find_argument ], [ %its_copy, %find_copy ]
  %is_found = icmp ne i64 %found, {NO_ADDRESS}
  br i1 %is_found, label %store_argument, label %ask_argument
ask_argument:
  {_load_field("take", "argument", "take", "ptr")}
  %asked = call i64 @ask_python(ptr %take, ptr %object, ptr %kept, ptr %answer)
  %has_failed_argument = icmp eq i64 %asked, {NO_ADDRESS}
  br i1 %has_failed_argument, label %failed, label %store_argument
store_argument:
  %word = phi i64 [ %found, %found_argument ], [ %asked, %ask_argument ]
  %word.at = getelementptr i64, ptr %words, i64 %i
  store i64 %word, ptr %word.at
  %i.1 = add i64 %i, 1
  br label %next_argument

next_result:
  %r = phi i64 [ 0, %next_argument ], [ %r.1, %count_result ]
  %w = phi i64 [ %i, %next_argument ], [ %w.1, %count_result ]
  %has_results = icmp eq i64 %r, %n_results
  br i1 %has_results, label %borrow, label %make_result
make_result:
  %result.from = mul i64 %r, {ctypes.sizeof(ResultRecord)}
  %result = getelementptr i8, ptr %results, i64 %result.from
  %made = call i64 @allocate(ptr %result, ptr %answer)
  %is_made = icmp ne i64 %made, {NO_ADDRESS}
  br i1 %is_made, label %store_result, label %ask_result
ask_result:
  {_load_field("make", "result", "make", "ptr")}
  %asked_result = call i64 @ask_python(ptr %make, ptr null, ptr %kept, ptr %answer)
  %is_unmade = icmp eq i64 %asked_result, {NO_ADDRESS}
  br i1 %is_unmade, label %failed, label %share_result
share_result:
  %shared = load ptr, ptr %answer
  call void @Py_IncRef(ptr %shared)
  br label %store_result
store_result:
  %result_word = phi i64 [ %made, %make_result ], [ %asked_result, %share_result ]
  %result_object = load ptr, ptr %answer
  call i32 @PyList_SetItem(ptr %list, i64 %r, ptr %result_object)
  {_load_field("passed", "result", "passed")}
  %is_passed = icmp ne i64 %passed, 0
  br i1 %is_passed, label %pass_result, label %count_result
pass_result:
  %result_word.at = getelementptr i64, ptr %words, i64 %w
  store i64 %result_word, ptr %result_word.at
  br label %count_result
count_result:
  %w.1 = add i64 %w, %passed
  %r.1 = add i64 %r, 1
  br label %next_result

borrow:
  %needs_no_arena = icmp eq ptr %arena, null
  br i1 %needs_no_arena, label %enter_code, label %own_arena
own_arena:
  %own = load i64, ptr %arena
  %busy.at = getelementptr i64, ptr %arena, i64 1
  %busy = load i64, ptr %busy.at
  %has_own = icmp ne i64 %own, 0
  %is_idle = icmp eq i64 %busy, 0
  %is_free = and i1 %has_own, %is_idle
  br i1 %is_free, label %mark_busy, label %ask_arena
mark_busy:
  store i64 1, ptr %busy.at
  br label %store_arena
ask_arena:
  {_load_field("make_arena", "call", "make_arena", "ptr")}
  %asked_arena = call i64 @ask_python(ptr %make_arena, ptr null, ptr %kept, ptr %answer)
  %has_no_arena = icmp eq i64 %asked_arena, {NO_ADDRESS}
  br i1 %has_no_arena, label %failed, label %store_arena
store_arena:
  %arena_word = phi i64 [ %own, %mark_busy ], [ %asked_arena, %ask_arena ]
  %arena_word.at = getelementptr i64, ptr %words, i64 %w
  store i64 %arena_word, ptr %arena_word.at
  br label %enter_code

enter_code:
  %failures_before = load i64, ptr %failures
  call void @run(ptr %call, ptr %words)
  %failures_after = load i64, ptr %failures
  br i1 %needs_no_arena, label %check, label %compare_arena
compare_arena:
  %used.at = getelementptr i64, ptr %words, i64 %w
  %used = load i64, ptr %used.at
  %own_after = load i64, ptr %arena
  %is_own = icmp eq i64 %used, %own_after
  br i1 %is_own, label %mark_idle, label %check
mark_idle:
  %idle.at = getelementptr i64, ptr %arena, i64 1
  store i64 0, ptr %idle.at
  br label %check
check:
  %has_no_failure = icmp eq i64 %failures_before, %failures_after
  br i1 %has_no_failure, label %leave, label %report
report:
  %finished = call ptr @PyObject_VectorcallDict(ptr %finish, ptr %inputs, i64 %n, ptr null)
  %is_none = icmp eq ptr %finished, inttoptr (i64 {id(None)} to ptr)
  br i1 %is_none, label %go_on, label %drop
go_on:
  call void @Py_DecRef(ptr %finished)
  br label %leave
failed:
  br label %drop
drop:
  %no_results = phi ptr [ %finished, %report ], [ null, %failed ]
  call void @Py_DecRef(ptr %list)
  br label %leave
leave:
  %value = phi ptr [ %no_results, %drop ], [ %list, %check ], [ %list, %go_on ]
  %kept_list = load ptr, ptr %kept
  %has_kept = icmp ne ptr %kept_list, null
  br i1 %has_kept, label %release, label %return
release:
  call void @Py_DecRef(ptr %kept_list)
  br label %return
return:
  ret ptr %value
}}
"""

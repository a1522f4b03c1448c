# SPDX-License-Identifier: Apache-2.0
"""The Edge-LLM consumer through ctypes, and calls of its wrappers made from argument values as the contract lays them out."""

import ctypes
import random
import shutil
import tempfile
from pathlib import Path

from arguments import random_values
from stub import NOT_FOUND, Stub


class Consumer:
    """A fresh copy of the consumer's shared library."""

    def __init__(self, path):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy.so"
            shutil.copyfile(path, copy)
            self._dll = ctypes.CDLL(str(copy))
        self._dll.entry_name.restype = self._dll.reason.restype = ctypes.c_char_p
        self._dll.entry_call.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.names = [self._dll.entry_name(index).decode() for index in range(self._dll.entry_count())]

    def load(self, name):
        """(loaded, the CUDA error that the hook was given)"""
        return bool(self._dll.entry_load(self.names.index(name))), self._dll.first_error()

    def unload(self, name):
        return bool(self._dll.entry_unload(self.names.index(name)))

    def call(self, name, tensors, ints, floats, stream=0):
        """(result, reason); `tensors` are (data, shapes, strides) triples"""
        words = [word for data, shapes, strides in tensors for word in (data, *shapes, *strides)]
        code = self._dll.entry_call(self.names.index(name), (ctypes.c_int64 * len(words))(*words), (ctypes.c_int32 * 8)(*ints),
                                    (ctypes.c_float * 8)(*floats), stream)
        return code, self._dll.reason().decode() if code else ""


SCALES = (0.5, 0.25, 2.0, 7.0, 9.0)
"""attention_scale, scale_q, scale_k, scale_v, inv_scale_o: the product of the first three counts, 0.25."""


def _dense(values, name, seqlen, heads):
    return values[name], (values["batch"], values[seqlen], values[heads]), (values[f"{name}_stride_batch"], values[f"{name}_stride_seq"])


def _packed(values, name, total, heads):
    return values[name], (values[total], values[heads]), (values[f"{name}_stride_seq"],)


def _offsets(values, name):
    return values[name], (values["batch"] + 1,), ()


def _qkv(values):
    return [_dense(values, "q", "seqlen_q", "num_q_heads"), _dense(values, "k", "seqlen_kv", "num_kv_heads"),
            _dense(values, "v", "seqlen_kv", "num_kv_heads"), _dense(values, "o", "seqlen_q", "num_q_heads")]


def _pool(values, head_dim):
    strides = values["pool_stride_page"], values["pool_stride_head"], values["pool_stride_token"]
    pages = values["page_list_stride_batch"], values["page_list_stride_plane"]
    return [(values["kv_pool"], (values["num_flat_pages"], values["num_kv_heads"], 128, head_dim), strides),
            (values["page_list"], (values["batch"], 2, values["max_pages"]), pages)]


def wrapper_arguments(abi_class, values, head_dim):
    """(tensors, ints, floats) of a wrapper call, in the contract's order, for the values of our operation."""
    window, sm_count = values.get("window_size_left"), 17
    if abi_class == "L14":
        return [*_qkv(values), _offsets(values, "cu_kv_seqlens")], (window, sm_count), SCALES
    if abi_class == "B16":
        blocks = [(values[name], (values["batch"], values["seqlen_q"]), (values["block_stride_batch"],)) for name in ("block_begin", "block_end")]
        return [*_qkv(values), _offsets(values, "cu_kv_seqlens"), *blocks], (window, sm_count), SCALES
    if abi_class == "N10":
        offsets = [_offsets(values, "cu_q_seqlens"), _offsets(values, "cu_kv_seqlens")]
        return [*_qkv(values), *offsets], (values["num_kv_heads"],), (0.25,)
    if abi_class == "V12":
        heads = {"q": "num_q_heads", "k": "num_kv_heads", "v": "num_kv_heads", "o": "num_q_heads"}
        tensors = [_packed(values, name, "total_seqlen", heads[name]) for name in "qkvo"]
        return [*tensors, _offsets(values, "cu_seqlens")], (values["max_seqlen"], sm_count), (values["scale_log2"], 3.0, 1.0)
    offsets = [_offsets(values, "cu_q_seqlens"), _offsets(values, "cu_kv_seqlens")]
    if abi_class == "P11":
        q, _, _, o = _qkv({**values, "k": 0, "v": 0, "seqlen_kv": 0, **dict.fromkeys(
            ("k_stride_batch", "k_stride_seq", "v_stride_batch", "v_stride_seq"), 0)})
        return [q, *_pool(values, head_dim), o, *offsets], (window, sm_count), (0.25,)
    q, o = (_packed(values, name, "total_seqlen_q", "num_q_heads") for name in "qo")
    return [q, *_pool(values, head_dim), o, *offsets], (values["max_seqlen_q"], window, sm_count), (0.25,)


def call_all(stub_path, consumer_path, metadata, device_sm, row_sm, scale_log2, seed):
    """Load and call every variant's wrapper with random strides: [(row index, values, launch)] of the rows of `row_sm`."""
    stub, consumer, rng = Stub(stub_path, device_sm), Consumer(consumer_path), random.Random(seed)
    stream, found = stub.dll.stub_new_stream(0), []
    for index, row in enumerate(metadata.rows):
        if row.sm != row_sm:
            continue
        values = {**random_values(metadata.operations[row.operation], rng), "scale_log2": scale_log2}
        assert consumer.load(row.variant) == (True, 0)
        loads = stub.calls("cuLibraryLoadData")
        result = consumer.call(row.variant, *wrapper_arguments(row.raw["abi_class"], values, row.head_dim), stream)
        assert result == (0, ""), result
        assert stub.calls("cuLibraryLoadData") == loads
        found.append((index, values, stream, stub.launches()[-1]))
    return consumer.names, found


def without_context(stub_path, consumer_path, metadata, variant, sms):
    """Call a wrapper from a thread that has no context, in a stream of the last device: its result, and (device, symbol) of the launches."""
    stub, consumer = Stub(stub_path, *sms), Consumer(consumer_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    values = random_values(metadata.operations[row.operation], random.Random(1))
    stream = stub.dll.stub_new_stream(len(sms) - 1)
    stub.dll.stub_use_device(-1)
    result = consumer.call(variant, *wrapper_arguments(row.raw["abi_class"], values, row.head_dim), stream)
    return result, [(launch.device, launch.symbol) for launch in stub.launches()]


def wrong_descriptors(stub_path, consumer_path, metadata, sm, variant, changes):
    """Call a wrapper with descriptors changed at [(tensor, part, index)]: (result, reason), launches."""
    stub, consumer = Stub(stub_path, sm), Consumer(consumer_path)
    row = next(row for row in metadata.rows if (row.variant, row.sm) == (variant, sm))
    values = random_values(metadata.operations[row.operation], random.Random(1))
    tensors, ints, floats = wrapper_arguments(row.raw["abi_class"], values, row.head_dim)
    for tensor, part, index, value in changes:
        if part == 0:
            tensors[tensor] = (value, *tensors[tensor][1:])
        else:
            parts = [list(piece) if isinstance(piece, tuple) else piece for piece in tensors[tensor]]
            parts[part][index] = value
            tensors[tensor] = tuple(parts)
    return consumer.call(variant, tensors, ints, floats), len(stub.launches())


def windows(stub_path, consumer_path, metadata, sm, given):
    """Call every wrapper that takes a window with each of these: [(row index, values, window given, result, launch)]."""
    stub, consumer, found = Stub(stub_path, sm), Consumer(consumer_path), []
    for index, row in enumerate(metadata.rows):
        operation = metadata.operations[row.operation]
        if row.sm != sm or "window_size_left" not in operation.arguments:
            continue
        for window in given:
            values = {**random_values(operation, random.Random(4)), "window_size_left": window}
            result = consumer.call(row.variant, *wrapper_arguments(row.raw["abi_class"], values, row.head_dim))
            found.append((index, values, window, result, stub.launches()[-1]))
    return found


def loading(stub_path, consumer_path, variant, sms):
    """Loading under difficulties: [(what, outcome)]."""
    stub, consumer = Stub(stub_path, *sms), Consumer(consumer_path)
    steps = []
    stub.fail("cuLibraryGetKernel", NOT_FOUND)
    steps.append(("no kernel", consumer.load(variant)))
    stub.fail("cuLibraryLoadData", 2)
    steps.append(("driver fails", consumer.load(variant)))
    stub.dll.stub_use_device(1)
    steps.append(("foreign device", consumer.load(variant)))
    stub.dll.stub_use_device(0)
    stub.dll.stub_set_legacy_stream(906)
    steps.append(("another stream captures", consumer.load(variant)))
    steps.append(("again", consumer.load(variant)))
    steps.append(("unload", consumer.unload(variant)))
    steps.append(("after unload", consumer.load(variant)))
    return steps, stub.calls("cuLibraryLoadData"), stub.calls("cuLibraryUnload")

# SPDX-License-Identifier: Apache-2.0
"""What the tests let happen in a process with the stub driver. Each function gets the stub's path and gives back plain data."""

import ctypes
import os
import random
import select
import signal
import threading
import time

from arguments import random_values
from fmhaforge.clib import CLibraryError, make_args, problem
from stub import CAPTURE_IMPLICIT, NOT_FOUND, Stub, fresh_library


def outcome(function, *arguments):
    """("OK", "") or the status and reason of the failure."""
    try:
        function(*arguments)
    except CLibraryError as error:
        return error.status, error.reason
    return "OK", ""


def launch_rows(stub_path, library_path, metadata, sm, seed):
    """Launch every row that serves `sm` with random values: [(row index, values, recorded launch)]."""
    stub, library, rng = Stub(stub_path, sm), fresh_library(library_path), random.Random(seed)
    found = []
    for index, row in enumerate(metadata.rows):
        if row.sm != sm:
            continue
        operation = metadata.operations[row.operation]
        values = random_values(operation, rng)
        library.launch(row.operation, library.find_row(row.variant), make_args(operation, values))
        found.append((index, values, stub.launches()[-1]))
    return found


def plain_values(operation, changes):
    """Valid values but for `changes`."""
    return {**random_values(operation, random.Random(3)), **changes}


def launch_once(stub_path, library_path, metadata, variant, sm, changes, stream=0):
    """Launch a variant with valid values but for `changes`: (status, reason, number of driver launches, of loads)."""
    stub, library = Stub(stub_path, sm), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    operation = metadata.operations[row.operation]
    args = make_args(operation, plain_values(operation, {}))
    for name, value in changes.items():
        ctypes.Structure.__setattr__(args, name, value)  # unchecked, as a C program stores it
    status, reason = outcome(library.launch, row.operation, library.find_row(variant), args, stream)
    return status, reason, stub.dll.stub_launch_count(), stub.calls("cuLibraryLoadData")


def launch_in_turn(stub_path, library_path, metadata, variant, sm, call, rounds):
    """Launch a variant once for each dict of changed values: after each launch, its driver parameters and how often `call` was made so far."""
    stub, library = Stub(stub_path, sm), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    operation, handle = metadata.operations[row.operation], library.find_row(variant)
    values, steps = random_values(operation, random.Random(3)), []
    for changes in rounds:
        library.launch(row.operation, handle, make_args(operation, {**values, **changes}))
        steps.append((stub.launches()[-1].params, stub.calls(call)))
    return steps


def _args(metadata, row):
    operation = metadata.operations[row.operation]
    return make_args(operation, random_values(operation, random.Random(5)))


def first_use_by_threads(stub_path, library_path, metadata, variant, sms, threads):
    """Launch a variant for the first time from many threads, device by device in turn: statuses, calls and launches by device."""
    stub, library = Stub(stub_path, *sms), fresh_library(library_path)
    stub.dll.stub_set_load_delay(20000)
    row = next(row for row in metadata.rows if row.variant == variant)
    args = _args(metadata, row)
    barrier, statuses = threading.Barrier(threads), [None] * threads

    def work(number):
        stub.dll.stub_use_device(number % len(sms))
        barrier.wait()
        statuses[number] = outcome(lambda: library.launch(row.operation, library.find_row(variant), args))
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    calls = {name: stub.calls(name) for name in ("cuInit", "cuLibraryLoadData", "cuKernelSetAttribute")}
    return statuses, calls, sorted((launch.device, launch.symbol) for launch in stub.launches())


def capture(stub_path, library_path, metadata, variant, sm):
    """First use while capturing, on a stream and on the default stream, then preload and use: outcomes and the number of loads."""
    stub, library = Stub(stub_path, sm), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    args, stream, handle = _args(metadata, row), stub.dll.stub_new_stream(0), library.find_row(variant)
    steps = []

    def step(function, *arguments):
        steps.append((*outcome(function, *arguments), stub.calls("cuLibraryLoadData"), stub.dll.stub_launch_count()))
    stub.dll.stub_set_capturing(stream, 1)
    step(library.launch, row.operation, handle, args, stream)
    step(library.preload, handle, stream)
    stub.dll.stub_set_legacy_stream(CAPTURE_IMPLICIT)
    step(library.preload, handle, 0)
    stub.dll.stub_set_legacy_stream(0)
    stub.dll.stub_set_capturing(stream, 0)
    step(library.preload, handle, stream)
    stub.dll.stub_set_capturing(stream, 1)
    step(library.launch, row.operation, handle, args, stream)
    return steps, stub.dll.stub_relaxed_loads(), stub.dll.stub_capture_mode()


def second_context(stub_path, library_path, metadata, variant, sm):
    """Use a row in one context, then make it ready and capture it in another one of the device: outcomes, loads, launches, capture mode."""
    stub, library = Stub(stub_path, sm), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    args, handle, stream = _args(metadata, row), library.find_row(variant), stub.dll.stub_new_stream(0)
    steps = [outcome(library.launch, row.operation, handle, args, stream)]
    stub.dll.cuCtxCreate_v2(ctypes.byref(ctypes.c_void_p()), 0, 0)
    stub.fail("cuKernelGetFunction", 700)
    steps += [outcome(library.preload, handle, stream), outcome(library.preload, handle, stream)]
    stub.dll.stub_set_capturing(stream, 1)
    steps += [outcome(library.launch, row.operation, handle, args, stream), outcome(library.preload, handle, stream)]
    return steps, stub.calls("cuLibraryLoadData"), stub.dll.stub_launch_count(), stub.dll.stub_capture_mode()


def failing_call(stub_path, library_path, metadata, variant, sm, call, code):
    """Let a driver call fail once during first use, then try again: two outcomes, and loads and unloads."""
    stub, library = Stub(stub_path, sm), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    args, handle = _args(metadata, row), library.find_row(variant, sm)
    stub.fail(call, code)
    first = outcome(library.launch, row.operation, handle, args)
    second = outcome(library.launch, row.operation, handle, args)
    return first, second, stub.calls("cuLibraryLoadData"), stub.calls("cuLibraryUnload"), stub.dll.stub_launch_count()


def no_kernel(stub_path, library_path, metadata, variant, sm):
    """A library that the driver accepts and finds no kernel in."""
    return failing_call(stub_path, library_path, metadata, variant, sm, "cuLibraryGetKernel", NOT_FOUND)


def wrong_device(stub_path, library_path, variant, row_sm, device_sm):
    """Preload a row on a device that it does not serve: the outcome and the number of loads."""
    stub, library = Stub(stub_path, device_sm), fresh_library(library_path)
    handle = library.find_row(variant, row_sm)
    return (*outcome(library.preload, handle), stub.calls("cuLibraryLoadData"))


def without_context(stub_path, library_path, metadata, variant, sms, stream_device):
    """Launch from a thread that has no context, in the default stream or in one of a device: launch and the device current after."""
    stub, library = Stub(stub_path, *sms), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    args = _args(metadata, row)
    stream = 0 if stream_device is None else stub.dll.stub_new_stream(stream_device)
    stub.dll.stub_use_device(-1)
    peeked = library.find_row(variant).contents.sm
    context_after_query = stub.dll.stub_current_device()
    handle = library.find_row(variant, sms[stream_device or 0])
    library.launch(row.operation, handle, args, stream)
    launch = stub.launches()[0]
    return peeked, context_after_query, launch.device, launch.symbol, stub.dll.stub_current_device()


def variant_without_context(stub_path, program_path, metadata, variant, sms):
    """Load and launch by a variant's header from a thread that has no context, in a stream of the last device: statuses, (device, symbol)."""
    stub, program = Stub(stub_path, *sms), ctypes.CDLL(str(program_path))
    args = _args(metadata, next(row for row in metadata.rows if row.variant == variant))
    stream = ctypes.c_void_p(stub.dll.stub_new_stream(len(sms) - 1))
    stub.dll.stub_use_device(-1)
    statuses = program.load(stream), program.launch(ctypes.byref(args), stream)
    return statuses, [(launch.device, launch.symbol) for launch in stub.launches()]


def forked(stub_path, library_path, metadata, variant, sm):
    """Use CUDA, fork, and use it in the child: the child's outcomes of launch and of a query that needs no driver."""
    Stub(stub_path, sm)
    library = fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    args, handle = _args(metadata, row), library.find_row(variant)
    library.launch(row.operation, handle, args)
    return in_child(lambda: (outcome(library.launch, row.operation, handle, args), outcome(library.query, problem("llm", "causal", 64, sm))))


def forked_during_first_use(stub_path, library_path, sm):
    """Fork while another thread opens the driver: the child's outcome, or "hangs"; and the thread's."""
    stub, library = Stub(stub_path, sm), fresh_library(library_path)
    handle, found = library.find_row("fmha_v2_d64", sm), []
    stub.dll.stub_set_load_delay(400000)
    thread = threading.Thread(target=lambda: found.append(outcome(library.preload, handle)))
    thread.start()
    while not stub.calls("cuInit"):
        time.sleep(0.001)
    child = in_child(lambda: outcome(library.preload, handle))
    thread.join()
    return child, found[0]


def in_child(function, seconds=5):
    """What a function gives in a child of fork(), as text; "hangs" when it does not end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, repr(function()).encode())
        os._exit(0)
    ready, _, _ = select.select([reader], [], [], seconds)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return os.read(reader, 65536).decode() if ready else "hangs"


def sizes(stub_path, library_path, metadata, variant, given):
    """The outcome of a launch and of a query whose structs say that they have `given` bytes."""
    Stub(stub_path, 90)
    library = fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    args, asked = _args(metadata, row), problem("llm", "causal", 64, 90)
    args.size = asked.size = given
    return outcome(library.launch, row.operation, library.find_row(variant), args), outcome(library.query, asked)


def last_bytes(stub_path, library_path, metadata, sm):
    """For each operation, launch with something in the last four bytes of the struct, which are no argument: {operation: outcome}."""
    Stub(stub_path, sm)
    library, found = fresh_library(library_path), {}
    for row in metadata.rows:
        if row.operation in found or row.sm != sm:
            continue
        args = _args(metadata, row)
        ctypes.memset(ctypes.addressof(args) + ctypes.sizeof(args) - 4, 1, 4)
        found[row.operation] = outcome(library.launch, row.operation, library.find_row(row.variant), args)
    return found


def wrong_operation(stub_path, library_path, metadata, variant, operation):
    """Launch a row with the function of another operation: the outcome."""
    Stub(stub_path, 90)
    library = fresh_library(library_path)
    args = make_args(metadata.operations[operation], random_values(metadata.operations[operation], random.Random(5)))
    return outcome(library.launch, operation, library.find_row(variant), args)


def foreign_row(stub_path, library_path, metadata, variant, sm):
    """Hand the row of one copy of the library to another copy: the outcome."""
    Stub(stub_path, sm)
    one, other = fresh_library(library_path), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    return outcome(other.launch, row.operation, one.find_row(variant), _args(metadata, row))


def two_devices(stub_path, library_path, metadata, variant, sms):
    """Launch on one device and then on the other, twice: recorded launches, and loads."""
    stub, library = Stub(stub_path, *sms), fresh_library(library_path)
    row = next(row for row in metadata.rows if row.variant == variant)
    args = _args(metadata, row)
    for device in (0, 1, 0, 1):
        stub.dll.stub_use_device(device)
        library.launch(row.operation, library.find_row(variant), args)
    return [(launch.device, launch.symbol) for launch in stub.launches()], stub.calls("cuLibraryLoadData")


def no_driver(stub_path, library_path, variant):
    """cuInit fails (no device), later succeeds: outcomes of asking for the current device's row."""
    stub, library = Stub(stub_path), fresh_library(library_path)
    first = outcome(library.find_row, variant)
    stub.dll.stub_add_device(90, 232448)
    stub.dll.stub_use_device(0)
    return first, outcome(library.find_row, variant)

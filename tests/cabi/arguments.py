# SPDX-License-Identifier: Apache-2.0
"""Random argument values that an operation accepts, made from its limits, and what the Python plan makes of them."""

from fmhaforge.launch import compiled

MAX_EXTENT = 5000
MAX_STRIDE = 1 << 38
"""Elements; tensor maps take strides of less than 2^40 bytes."""


def random_values(operation, rng):
    """One value for every argument: addresses aligned, integers within their limits, heads divisible."""
    values = {}
    for argument in operation.arguments.values():
        if argument.type == "ptr":
            values[argument.name] = (rng.getrandbits(46) + 1) * argument.alignment
        elif argument.type == "f32":
            values[argument.name] = rng.choice((0.125, 0.5, 1.4375, 2.0))
        else:
            most = MAX_EXTENT if argument.type == "i32" else MAX_STRIDE
            low = max(argument.minimum, 1) if argument.name != "window_size_left" else argument.minimum
            steps = rng.randint(-(-low // argument.multiple_of), min(most, argument.maximum) // argument.multiple_of)
            values[argument.name] = steps * argument.multiple_of
    values["num_kv_heads"] = rng.randint(1, 16)
    values["num_q_heads"] = values["num_kv_heads"] * rng.randint(1, 9)
    return values


MAP_BASE = 16
"""Where the base address stands in a tensor map of the stub driver."""


def encoded_map(dtype, base, dims, strides_bytes, box, swizzle, l2_promotion):
    """A tensor map as the stub driver encodes it, its arguments one after the other; words are the driver's numbers."""
    encoded = bytearray(128)
    for at, size, items in ((0, 4, (dtype, len(dims), swizzle, l2_promotion)), (MAP_BASE, 8, (base,)), (24, 8, dims), (64, 8, strides_bytes),
                            (96, 4, box)):
        for index, item in enumerate(items):
            encoded[at + index * size:at + (index + 1) * size] = int(item).to_bytes(size, "little")
    return bytes(encoded)


class TensorMaps:
    """Encodes a tensor map as the stub driver does."""

    def tensor_map(self, dtype, base, dims, strides_bytes, box, swizzle, l2_promotion):
        swizzles, promotions = (0, 32, 64, 128), (0, 64, 128, 256)
        return encoded_map({"float16": 6, "int32": 3}[dtype], base, dims, strides_bytes, box, swizzles.index(swizzle),
                           promotions.index(l2_promotion))


def expected_launch(row, values, device, sm_count, stream=0):
    """The fields of `stub.Launch` that the Python plan of a row gives for these values."""
    launch = compiled(row.plan).evaluate({**values, "sm_count": sm_count}, TensorMaps())
    return {"symbol": f"{row.symbol}@{row.sm}", "grid": tuple(launch.grid), "block": tuple(row.plan.block),
            "cluster": tuple(row.plan.cluster), "smem_bytes": row.plan.smem_bytes, "device": device, "stream": stream,
            "params": launch.parameters}

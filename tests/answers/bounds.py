"""Whether an approximate result lies within the documented error of the card's."""

import math
import struct

import operands

def decoder(kind, size):
    """Bytes of one result to the floats in it, with their format."""
    if kind.startswith("bf16"):
        return lambda data: [(struct.unpack("<f", b"\0\0" + data[at:at + 2])[0], operands.BFLOAT)
                             for at in range(0, size, 2)]
    if kind.startswith("f16"):
        return lambda data: [(struct.unpack("<e", data[at:at + 2])[0], operands.HALF)
                             for at in range(0, size, 2)]
    if kind == "f64":
        return lambda data: [(struct.unpack("<d", data)[0], operands.DOUBLE)]
    return lambda data: [(value, operands.SINGLE)
                         for value in struct.unpack(f"<{size // 4}f", data)]


def unit(value, form):
    """The distance between two neighbours at the value."""
    if value == 0:
        return 2.0 ** (1 - form.bias - form.fraction)
    return 2.0 ** (max(math.frexp(value)[1] - 1, 1 - form.bias) - form.fraction)


def allowed(bound, value, form):
    """The documented error, and a unit for the rounding of both sides."""
    kind, size = bound
    rounding = unit(value, form)
    if kind == "ulp":
        return (size + 1) * unit(value, form)
    if kind == "relative":
        return size * abs(value) + rounding
    if kind == "logarithm":  # Absolute between 0.5 and 2, relative elsewhere.
        return size * max(abs(value), 1.0) + rounding
    return size + rounding


def within(bound, card, soft, form):
    if math.isnan(card) or math.isnan(soft):
        return math.isnan(card) and math.isnan(soft)
    if card == soft:
        return card != 0 or bound[0] == "absolute" or \
            math.copysign(1, card) == math.copysign(1, soft)
    if math.isinf(card) or math.isinf(soft):
        finite = soft if math.isinf(card) else card
        most = (2 - 2.0 ** -form.fraction) * 2.0 ** form.bias
        return not math.isinf(finite) and math.copysign(1, card) == math.copysign(1, soft) \
            and most - abs(finite) <= allowed(bound, finite, form)
    return abs(card - soft) <= allowed(bound, card, form)


# Bytes, infinity, the largest magnitude.
NANS = {"f16": (2, 0x7c00, 0x7fff), "bf16": (2, 0x7f80, 0x7fff),
        "f32": (4, 0x7f800000, 0x7fffffff), "tf32": (4, 0x7f800000, 0x7fffffff),
        "f64": (8, 0x7ff << 52, (1 << 63) - 1)}
LETTERS = {2: "H", 4: "I", 8: "Q"}


def with_one_nan(kernel, data):
    """The results with every NaN the same, where PTX does not say which it is."""
    if kernel.any_nan not in NANS:
        return data
    size, inf, magnitude = NANS[kernel.any_nan]
    form = f"<{len(data) // size}{LETTERS[size]}"
    return struct.pack(form, *[magnitude if word & magnitude > inf else word
                               for word in struct.unpack(form, data)])


def threads_outside(kernel, card, soft):
    """The threads whose result is further away from the card's than is documented."""
    kind = kernel.float_kind
    decode = decoder(kind, kernel.stride)
    outside = []
    for thread in range(kernel.count):
        at = slice(thread * kernel.stride, (thread + 1) * kernel.stride)
        if card[at] != soft[at] and not all(
                within(kernel.bound, one, other, form)
                for (one, form), (other, _) in zip(decode(card[at]), decode(soft[at]))):
            outside.append(thread)
    return outside

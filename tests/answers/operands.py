"""Operands: special values first, then seeded random ones, the same on every machine.

A pool is COUNT values of one kind for one operand place. The first places hold the special values
of the kind, each against each; what follows mixes special and random values. The random numbers are
xorshift64*'s, so they depend on nothing but the seed.
"""

import functools
import struct

COUNT = 4096
MASK = (1 << 64) - 1


class Random:
    """xorshift64* (Vigna, 2016)."""

    def __init__(self, seed):
        self.state = (seed * 0x9E3779B97F4A7C15 + 1) & MASK or 1

    def next(self):
        x = self.state
        x ^= x >> 12
        x ^= (x << 25) & MASK
        x ^= x >> 27
        self.state = x
        return ((x * 0x2545F4914F6CDD1D) & MASK) >> 1 | (x & 1) << 63

    def below(self, limit):
        return (self.next() >> 16) % limit


class Float:
    """A binary format: how many bits of exponent and fraction."""

    def __init__(self, exponent, fraction):
        self.exponent, self.fraction = exponent, fraction
        self.bits = 1 + exponent + fraction
        self.sign = 1 << self.bits - 1
        self.bias = (1 << exponent - 1) - 1
        self.inf = ((1 << exponent) - 1) << fraction

    def specials(self):
        """+-: zero, one ulp, denormals, one and beside it, powers, halves, max, inf, nans."""
        one, frac = self.bias << self.fraction, self.fraction
        quiet = 1 << frac - 1
        positive = [0, 1, quiet, (1 << frac) - 1, 1 << frac, (1 << frac) + 1,
                    one - (1 << frac), one - 1, one, one + 1, one + quiet,
                    one + (1 << frac) + quiet, one + (5 << frac) + (1 << frac - 2),
                    one + (frac << frac), one + (frac << frac) + 1,
                    self.inf - 1, self.inf, self.inf | quiet, self.inf | 1,
                    self.inf | quiet | 5]
        return [v for value in positive for v in (value, value | self.sign)]

    def random(self, random):
        """Any bits; near one; few fraction bits (ties); denormal; near an integer's range."""
        way = random.below(8)
        bits = random.next()
        value = bits & ((1 << self.bits) - 1)
        exponent = None
        if way in (1, 2, 3):
            exponent = self.bias - 4 + random.below(9)
        elif way == 4:
            exponent = self.bias + random.below(min(68, self.bias))
        elif way == 5:
            exponent = 0
        if exponent is not None:
            value = value & ~self.inf | exponent << self.fraction
        if way in (3, 4, 6):
            keep = 1 + random.below(max(2, min(self.fraction, 12)))
            value &= ~((1 << self.fraction - keep) - 1) if keep < self.fraction else ~0
        return value


HALF, BFLOAT = Float(5, 10), Float(8, 7)
SINGLE, DOUBLE = Float(8, 23), Float(11, 52)


# One above and one below what lies between two neighbours of bf16, f32 and f64.
TIES = tuple(tie + step for tie in (0x4080000000000000, 0x4000004000000000, 0x4000000000000200)
             for step in (-1, 1))


def integers(bits):
    top, mask = 1 << bits - 1, (1 << bits) - 1
    return sorted({value & mask for value in (
        0, 1, 2, 3, 7, 0x80, 0xff, 0x7f, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa, top, top - 1,
        top + 1, mask, mask - 1, mask - 6, top >> 1, 1 << bits // 2, (1 << bits // 2) - 1, 24, 31,
        32, 33, 0x00ffffff, 0xff000000, 0x0123456789abcdef) + TIES})


def random_integer(bits):
    def draw(random):
        """Uniform in the number of its bits, one in two negative."""
        value = random.next() >> (64 - 1 - random.below(bits))
        return (value if random.below(2) else -value) & ((1 << bits) - 1)
    return draw


def bits_of(width):
    return lambda random: random.next() & ((1 << width) - 1)


def below(limit):
    return lambda random: random.below(limit)


def pairs(values):
    """The first of a pair of halves is any of `values`, the second runs along."""
    return [value | values[(7 * i + 3) % len(values)] << 16 for i, value in enumerate(values)]


def two(draw):
    return lambda random: draw(random) | draw(random) << 16


def angle(turns):
    """A float within +-turns * 2 pi, and small ones."""
    def draw(random):
        value = (random.below(1 << 24) / (1 << 23) - 1) * turns * 6.283185307179586
        value /= 1 << random.below(8)
        return struct.unpack("<I", struct.pack("<f", value))[0]
    return draw


def float_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def coordinate(random):
    """In -1.5..2.5: any, and whole eighths, sixteenths and their neighbours."""
    way = random.below(4)
    if way == 0:
        return float_bits((random.below(1 << 22) / (1 << 20)) - 1.5)
    if way == 1:
        return float_bits(random.below(1 << 22) / (1 << 22))
    whole = float_bits((random.below(128) - 48) / 32)
    return whole + random.below(3) - 1 if way == 3 and whole else whole


COORDINATES = [float_bits(v) for v in (0.0, 0.5, 1.0, -1.0, 0.0625, 0.25, 0.75, 0.9999999, 2.0,
                                       -0.25, 1.25, 0.03125)]


SMALL_FLOATS = [0, 1, 2, 3, 7, 8, 9, 0x38, 0x3c, 0x40, 0x44, 0x70, 0x77, 0x78, 0x79, 0x7b, 0x7c,
                0x7d, 0x7e, 0x7f]
SMALL_FLOATS = SMALL_FLOATS + [value | 0x80 for value in SMALL_FLOATS]

# Kind: bytes in memory, special values, draw of a random one.
KINDS = {
    "i16": (2, integers(16), random_integer(16)),
    "i32": (4, integers(32), random_integer(32)),
    "i64": (8, integers(64), random_integer(64)),
    "i16x2": (4, pairs(integers(16)), two(random_integer(16))),
    "f16": (2, HALF.specials(), HALF.random),
    "bf16": (2, BFLOAT.specials(), BFLOAT.random),
    "f16x2": (4, pairs(HALF.specials()), two(HALF.random)),
    "bf16x2": (4, pairs(BFLOAT.specials()), two(BFLOAT.random)),
    "f32": (4, SINGLE.specials(), SINGLE.random),
    "f64": (8, DOUBLE.specials(), DOUBLE.random),
    "f8x2": (2, [v | v << 8 for v in SMALL_FLOATS], bits_of(16)),
    "f8x4": (4, [v * 0x01010101 for v in SMALL_FLOATS], bits_of(32)),
    "b32": (4, integers(32), bits_of(32)),
    "b64": (8, integers(64), bits_of(64)),
    "shift": (4, [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 255, 256, 1 << 31,
                  (1 << 32) - 1], below(70)),
    "byte": (4, [0, 1, 2, 8, 31, 32, 33, 63, 64, 65, 127, 128, 255], below(66)),
    "few": (4, [0, 1, 2, 3], below(3)),
    "few64": (8, [0, 1, 1 << 32, 1 << 63], lambda random: random.below(3) << 31),
    "pred": (4, [0, 1], below(2)),
    "mostly": (4, [1], lambda random: 1 if random.below(40) else 0),
    "lane": (4, list(range(0, 40)), below(40)),
    "segment": (4, [0x1f, 0, 0x1800, 0x181f, 0x1c1f, 0x1c03, 0x1e01, 0x101f, 0x1007, 0x1010],
                lambda random: random.below(32) | random.below(32) << 8),
    "angle": (4, [0, 1 << 31], angle(1)),
    "far_angle": (4, [0, 1 << 31], angle(50)),
    "coordinate": (4, COORDINATES, coordinate),
    "direction": (4, [float_bits(v) for v in (1.0, -1.0, 0.5, -0.5, 0.25)],
                  lambda random: float_bits(random.below(4001) / 1000 - 2)),
    "index": (4, [0, 1, 7, 8, (1 << 32) - 1], lambda random: (random.below(24) - 4) & 0xffffffff),
    "level": (4, [float_bits(v) for v in (0.0, 1.0, 2.0, 0.5, -1.0, 5.0)],
              lambda random: float_bits(random.below(449) / 64 - 2)),
    "slope": (4, [float_bits(v) for v in (0.0, 0.125, 0.25, 0.0625, -0.125)],
              lambda random: float_bits((random.below(513) - 256) / 1024)),
}


def size_of(kind):
    return KINDS[kind][0]


@functools.lru_cache(maxsize=None)
def values(kind, place):
    _, specials, draw = KINDS[kind]
    random = Random(sum(ord(c) << 5 * i for i, c in enumerate(kind)) * 8 + place)
    count = len(specials)
    crossed = min(count * count, COUNT // 2)
    made = []
    for i in range(COUNT):
        if i < crossed:
            index = (i, i // count, i * 7 // 5 + i // count)[place] if place < 3 else i // 3
            made.append(specials[index % count])
        elif random.below(6) == 0:
            made.append(specials[random.below(count)])
        else:
            made.append(draw(random))
    return made


@functools.lru_cache(maxsize=None)
def pool(kind, place):
    """COUNT values of the kind for operand `place`, as bytes."""
    letter = {2: "H", 4: "I", 8: "Q"}[size_of(kind)]
    return struct.pack(f"<{COUNT}{letter}", *values(kind, place))

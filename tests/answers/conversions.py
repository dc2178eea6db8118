"""Kernels of conversions, comparisons and selections."""

from arithmetic import FLOATS, dots, instruction, integer, width
from kernel import Kernel

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
TESTS = ("eq", "ne", "lt", "le", "gt", "ge")
UNSIGNED_TESTS = ("lo", "ls", "hi", "hs")
FLOAT_TESTS = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def held(kind):
    """(pool, bytes) of the register that holds a value of the kind."""
    if kind in ("u8", "s8"):
        return "i16", 2
    return (kind, FLOATS[kind]) if kind in FLOATS else (integer(kind), width(kind))


def conversions():
    floats = ("f16", "bf16", "f32", "f64")
    for to in INTEGERS + floats:
        for source in INTEGERS + floats:
            if to in floats and source in floats:
                ways = ("", "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi")
            elif to in floats:
                ways = ("rn", "rz", "rm", "rp")
            elif source in floats:
                ways = ("rni", "rzi", "rmi", "rpi")
            else:
                ways = ("",)
            for way in ways:
                for flush in ("", "ftz") if "f32" in (to, source) else ("",):
                    for sat in ("", "sat"):
                        pool, _ = held(source)
                        size = held(to)[1]
                        spelling = dots("cvt", way, flush, sat, to, source)
                        if to in ("u8", "s8"):
                            # The register's upper bits are not the result's.
                            yield Kernel(spelling, (pool,), (2,),
                                         f"{spelling} %h0, %a; and.b16 %d0, %h0, 255;")
                        else:
                            yield instruction(spelling, size, pool)


def packed_conversions():
    for to, size in (("f16", 2), ("bf16", 2), ("tf32", 4)):
        for way in ("rn", "rz", "rna"):
            for tail in ("", "relu", "satfinite", "relu.satfinite", "satfinite.relu"):
                if to != "tf32" and not tail:
                    continue
                yield instruction(dots("cvt", way, tail, to, "f32"), size, "f32")
    for to in ("f16x2", "bf16x2"):
        for way in ("rn", "rz"):
            for tail in ("", "relu", "satfinite", "relu.satfinite"):
                yield instruction(dots("cvt", way, tail, to, "f32"), 4, "f32", "f32")
    for to in ("e4m3x2", "e5m2x2"):
        for relu in ("", "relu"):
            yield instruction(dots("cvt.rn.satfinite", relu, to, "f32"), 2, "f32", "f32")
            yield instruction(dots("cvt.rn.satfinite", relu, to, "f16x2"), 2, "f16x2")
            yield instruction(dots("cvt.rn", relu, "f16x2", to), 4, "f8x2")
    for to in ("u16", "s16"):
        yield instruction(f"cvt.pack.sat.{to}.s32", 4, "i32", "i32")
    for to in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield instruction(f"cvt.pack.sat.{to}.s32.b32", 4, "i32", "i32", "b32")


def pools_of(kind):
    return (kind,) * 2 if kind in FLOATS else (integer(kind),) * 2


def tests_of(kind):
    if kind[0] == "b" and kind not in FLOATS:
        return ("eq", "ne")
    if kind in FLOATS:
        return TESTS + FLOAT_TESTS
    return TESTS + (UNSIGNED_TESTS if kind[0] == "u" else ())


def comparisons():
    kinds = ("b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64") + tuple(FLOATS)
    for kind in kinds:
        packed = kind.endswith("x2")
        for test in tests_of(kind):
            for flush in ("", "ftz") if kind in ("f32", "f16", "f16x2") else ("",):
                pools = pools_of(kind)
                for combine, c in (("", ""), ("and", "%pc"), ("or", "!%pc"), ("xor", "%pc")):
                    spelling = dots("setp", test, combine, flush, kind)
                    third = f", {c}" if c else ""
                    both = packed or combine == "xor"
                    target = "%p0|%p1" if both else "%p0"
                    more = "selp.u32 %t1, 2, 0, %p1; or.b32 %d0, %d0, %t1;" if both else ""
                    yield Kernel(spelling, pools + ("pred",), (4,),
                                 f"{spelling} {target}, %a, %b{third};\n"
                                 f"selp.u32 %d0, 1, 0, %p0; {more}", count=2048)
                yield from sets(kind, test, flush, pools)


def sets(kind, test, flush, pools):
    if kind in ("f16", "bf16"):
        results = (("u16", 2), ("s16", 2), ("u32", 4), ("s32", 4), (kind, 2))
    elif kind.endswith("x2"):
        results = ((kind, 4), ("u32", 4), ("s32", 4))
    else:
        results = (("u32", 4), ("s32", 4), ("f32", 4))
    for result, size in results:
        for combine, c in (("", ""), ("xor", "!%pc")):
            spelling = dots("set", test, combine, flush, result, kind)
            third = f", {c}" if c else ""
            yield Kernel(spelling, pools + ("pred",), (size,),
                         f"{spelling} %d0, %a, %b{third};", count=2048)


def selections():
    for kind in ("b16", "b32", "b64", "u16", "s16", "u32", "s32", "u64", "s64", "f32", "f64"):
        pool, size = held(kind)
        yield instruction(dots("selp", kind), size, pool, pool, "pred")
        yield instruction(dots("slct", kind, "s32"), size, pool, pool, "i32")
        for flush in ("", "ftz"):
            yield instruction(dots("slct", flush, kind, "f32"), size, pool, pool, "f32")


def kernels():
    for part in (conversions, packed_conversions, comparisons, selections):
        yield from part()

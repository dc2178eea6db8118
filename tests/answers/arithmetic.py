"""Kernels of integer, floating and bit instructions."""

from kernel import Kernel, PLACES

FLOATS = {"f16": 2, "f16x2": 4, "bf16": 2, "bf16x2": 4, "f32": 4, "f64": 8}
ROUNDINGS = ("rn", "rz", "rm", "rp")


def dots(*parts):
    return ".".join(part for part in parts if part)


def bits(kind):
    return int("".join(c for c in kind.split("x")[0] if c.isdigit())) * (2 if "x2" in kind else 1)


def width(kind):
    return bits(kind) // 8


def instruction(spelling, result, *kinds, bound=(), suffix="", operands=None):
    """`spelling d, a, b, ...;`: one result of `result` bytes."""
    given = operands or ", ".join("%p" + p if k in ("pred", "mostly") else "%" + p
                                  for p, k in zip(PLACES, kinds))
    return Kernel(spelling + suffix, tuple(kinds), (result,), f"{spelling} %d0, {given};",
                  bound=bound, float_kind=spelling.rsplit(".", 1)[1],
                  any_nan=any_nan(spelling))


def any_nan(spelling):
    """The kind of the results, where a NaN's payload is not said to be the canonical one."""
    words = spelling.split(".")
    if words[0] in ("selp", "slct", "copysign"):
        return ""
    if words[0] == "cvt":
        to, source = words[-2:]
        return to if source == "f64" or to in ("f64", "tf32") or to == source == "f32" else ""
    return "f64" if words[-1] == "f64" else ""


def integer(kind):
    return "i" + kind[1:]


def integers():
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        pool, size = integer(kind), width(kind)
        for name in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"):
            yield instruction(dots(name, kind), size, pool, pool)
        for name in ("mad.lo", "mad.hi", "sad"):
            yield instruction(dots(name, kind), size, pool, pool, pool)
        if size < 8:
            wide = "i" + str(16 * size)
            yield instruction(dots("mul.wide", kind), 2 * size, pool, pool)
            yield instruction(dots("mad.wide", kind), 2 * size, pool, pool, wide)
        if kind[0] == "s":
            yield instruction(dots("abs", kind), size, pool)
            yield instruction(dots("neg", kind), size, pool)
        yield instruction(dots("shr", kind), size, pool, "shift")
    for kind in ("u32", "s32"):
        for part in ("lo", "hi"):
            yield instruction(dots("mul24", part, kind), 4, "i32", "i32")
            yield instruction(dots("mad24", part, kind), 4, "i32", "i32", "i32")
    for name in ("add.sat.s32", "sub.sat.s32"):
        yield instruction(name, 4, "i32", "i32")
    for name in ("mad.hi.sat.s32", "mad24.hi.sat.s32"):
        yield instruction(name, 4, "i32", "i32", "i32")
    for name in ("add.u16x2", "add.s16x2", "min.u16x2", "min.s16x2", "max.u16x2", "max.s16x2",
                 "min.relu.s16x2", "max.relu.s16x2"):
        yield instruction(name, 4, "i16x2", "i16x2")
    for name in ("min.relu.s32", "max.relu.s32"):
        yield instruction(name, 4, "i32", "i32")


def carries():
    """Each carry-out is read by an addc or subc beside it."""
    for kind in ("u32", "s32", "u64", "s64"):
        pool, size = integer(kind), width(kind)
        zero = "%t15" if size == 4 else "%q7"
        clear = f"mov.b{8 * size} {zero}, 0;"
        for first, then in (("add.cc", "addc"), ("sub.cc", "subc")):
            yield Kernel(f"{first}.{kind} {then}.cc.{kind} {then}.{kind}", (pool,) * 4,
                         (size,) * 3,
                         f"{clear} {first}.{kind} %d0, %a, %b; {then}.cc.{kind} %d1, %c, %e;\n"
                         f"{then}.{kind} %d2, {zero}, {zero};")
        for part in ("lo", "hi"):
            for next_part in ("lo", "hi"):
                yield Kernel(f"mad.{part}.cc.{kind} madc.{next_part}.cc.{kind} addc.{kind}",
                             (pool,) * 4, (size,) * 3,
                             f"{clear} mad.{part}.cc.{kind} %d0, %a, %b, %c;\n"
                             f"madc.{next_part}.cc.{kind} %d1, %b, %c, %e;\n"
                             f"addc.{kind} %d2, {zero}, {zero};")
            yield Kernel(f"mad.{part}.cc.{kind} madc.{part}.{kind}", (pool,) * 4, (size,) * 2,
                         f"mad.{part}.cc.{kind} %d0, %a, %b, %c;\n"
                         f"madc.{part}.{kind} %d1, %b, %c, %e;")


def bit_instructions():
    for kind in ("b16", "b32", "b64"):
        pool, size = integer(kind), width(kind)
        for name in ("and", "or", "xor"):
            yield instruction(dots(name, kind), size, pool, pool)
        for name in ("not", "cnot"):
            yield instruction(dots(name, kind), size, pool)
        yield instruction(dots("shl", kind), size, pool, "shift")
        yield instruction(dots("shr", kind), size, pool, "shift")
    for name in ("and", "or", "xor"):
        yield Kernel(dots(name, "pred"), ("pred", "pred"), (4,),
                     f"{name}.pred %p0, %pa, %pb; selp.u32 %d0, 1, 0, %p0;")
    yield Kernel("not.pred", ("pred",), (4,), "not.pred %p0, %pa; selp.u32 %d0, 1, 0, %p0;")
    for kind in ("b32", "b64"):
        pool, size = integer(kind), width(kind)
        yield instruction(dots("popc", kind), 4, pool)
        yield instruction(dots("clz", kind), 4, pool)
        yield instruction(dots("brev", kind), size, pool)
        yield instruction(dots("bfi", kind), size, pool, pool, "byte", "byte")
    for kind in ("u32", "s32", "u64", "s64"):
        pool, size = integer(kind), width(kind)
        yield instruction(dots("bfind", kind), 4, pool)
        yield instruction(dots("bfind.shiftamt", kind), 4, pool)
        yield instruction(dots("bfe", kind), size, pool, "byte", "byte")
    for mode in ("clamp", "wrap"):
        yield instruction(dots("bmsk", mode, "b32"), 4, "byte", "byte")
        for kind in ("u32", "s32"):
            yield instruction(dots("szext", mode, kind), 4, "i32", "byte")
        for way in ("l", "r"):
            yield instruction(dots("shf", way, mode, "b32"), 4, "i32", "i32", "shift")
    for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield instruction(dots("prmt.b32", mode), 4, "i32", "i32", "b32")
    yield Kernel("fns.b32", ("b32", "lane", "few"), (4,),
                 "and.b32 %b, %b, 31; sub.s32 %c, %c, 1; fns.b32 %d0, %a, %b, %c;")
    for first in range(0, 256, 8):
        yield Kernel(f"lop3.b32 tables {first} to {first + 7}", ("i32", "b32", "b32"), (4,) * 8,
                     "\n".join(f"lop3.b32 %d{i}, %a, %b, %c, {first + i};" for i in range(8)),
                     count=512)
    for combine in ("or", "and"):
        for negated in ("", "!"):
            yield Kernel(f"lop3.{combine}.b32 {negated}q", ("i32", "i32", "i32", "pred"), (4, 4),
                         f"lop3.{combine}.b32 %d0|%p0, %a, %b, %c, 0xe2, {negated}%pe;\n"
                         "selp.u32 %d1, 1, 0, %p0;")
    for a in ("u32", "s32"):
        for b in ("u32", "s32"):
            yield instruction(dots("dp4a", a, b), 4, "i32", "b32", "i32")
            for part in ("lo", "hi"):
                yield instruction(dots("dp2a", part, a, b), 4, "i32", "b32", "i32")


def float_arithmetic():
    for flush in ("", "ftz"):
        for rounding in ("",) + ROUNDINGS:
            for name in ("add", "sub", "mul"):
                for sat in ("", "sat"):
                    yield instruction(dots(name, rounding, flush, sat, "f32"), 4, "f32", "f32")
        for rounding in ROUNDINGS:
            for name in ("fma", "mad"):
                for sat in ("", "sat"):
                    yield instruction(dots(name, rounding, flush, sat, "f32"), 4, *["f32"] * 3)
            yield instruction(dots("div", rounding, flush, "f32"), 4, "f32", "f32")
            for name in ("rcp", "sqrt"):
                yield instruction(dots(name, rounding, flush, "f32"), 4, "f32")
        for name in ("abs", "neg"):
            yield instruction(dots(name, flush, "f32"), 4, "f32")
    for rounding in ("",) + ROUNDINGS:
        for name in ("add", "sub", "mul"):
            yield instruction(dots(name, rounding, "f64"), 8, "f64", "f64")
    for rounding in ROUNDINGS:
        for name in ("fma", "mad"):
            yield instruction(dots(name, rounding, "f64"), 8, *["f64"] * 3)
        yield instruction(dots("div", rounding, "f64"), 8, "f64", "f64")
        for name in ("rcp", "sqrt"):
            yield instruction(dots(name, rounding, "f64"), 8, "f64")
    for name in ("abs", "neg"):
        yield instruction(dots(name, "f64"), 8, "f64")
    for kind in ("f16", "f16x2", "bf16", "bf16x2"):
        size = FLOATS[kind]
        flushes = ("", "ftz") if kind[0] == "f" else ("",)
        for flush in flushes:
            for rounding in ("", "rn"):
                for sat in ("", "sat") if kind[0] == "f" else ("",):
                    for name in ("add", "sub", "mul"):
                        yield instruction(dots(name, rounding, flush, sat, kind), size, kind, kind)
            for sat in ("", "sat", "relu") if kind[0] == "f" else ("", "relu"):
                yield instruction(dots("fma.rn", flush, sat, kind), size, kind, kind, kind)
            for name in ("abs", "neg"):
                yield instruction(dots(name, flush, kind), size, kind)
        for relu in ("", "relu"):
            yield instruction(dots("fma.rn.oob", relu, kind), size, kind, kind, kind)
    for kind in FLOATS:
        size = FLOATS[kind]
        for flush in ("", "ftz") if kind in ("f32", "f16", "f16x2") else ("",):
            for nan in ("", "NaN") if kind != "f64" else ("",):
                for sign in ("", "xorsign.abs") if kind != "f64" else ("",):
                    for name in ("min", "max"):
                        yield instruction(dots(name, flush, nan, sign, kind), size, kind, kind)
    for kind in ("f32", "f64"):
        yield instruction(dots("copysign", kind), FLOATS[kind], kind, kind)
        for name in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield Kernel(f"testp.{name}.{kind}", (kind,), (4,),
                         f"testp.{name}.{kind} %p0, %a; selp.u32 %d0, 1, 0, %p0;")


def approximate():
    """The bounds are the PTX documentation's."""
    for flush in ("", "ftz"):
        yield instruction(dots("div.approx", flush, "f32"), 4, "f32", "f32", bound=("ulp", 2))
        yield instruction(dots("div.full", flush, "f32"), 4, "f32", "f32", bound=("ulp", 2))
        yield instruction(dots("rcp.approx", flush, "f32"), 4, "f32", bound=("ulp", 1))
        yield instruction(dots("sqrt.approx", flush, "f32"), 4, "f32",
                          bound=("relative", 2**-23))
        yield instruction(dots("rsqrt.approx", flush, "f32"), 4, "f32",
                          bound=("relative", 2**-22.9))
        yield instruction(dots("ex2.approx", flush, "f32"), 4, "f32", bound=("relative", 2**-22))
        yield instruction(dots("lg2.approx", flush, "f32"), 4, "f32", bound=("logarithm", 2**-22))
        for name in ("sin", "cos"):
            spelling = dots(name, "approx", flush, "f32")
            yield instruction(spelling, 4, "angle", bound=("absolute", 2**-20.5))
            yield instruction(spelling, 4, "far_angle", bound=("absolute", 2**-14.7),
                              suffix=" to 100 pi")
            yield Kernel(spelling + " specials", ("f32",), (4,),
                         "abs.f32 %t0, %a; setp.gtu.f32 %p0, %t0, 0f7f7fffff; "
                         "setp.lt.f32 %p1, %t0, 0f00800000; or.pred %p0, %p0, %p1;\n"
                         f"selp.f32 %a, %a, 0f00000000, %p0; {spelling} %d0, %a;",
                         bound=("absolute", 2**-20.5))
    yield instruction("tanh.approx.f32", 4, "f32", bound=("relative", 2**-11))
    yield instruction("rcp.approx.ftz.f64", 8, "f64", bound=("relative", 2**-20))
    yield instruction("rsqrt.approx.f64", 8, "f64", bound=("relative", 2**-22.9))
    yield instruction("rsqrt.approx.ftz.f64", 8, "f64", bound=("relative", 2**-20))
    for kind in ("f16", "f16x2"):
        yield instruction(f"ex2.approx.{kind}", FLOATS[kind], kind, bound=("relative", 2**-9.9))
        yield instruction(f"tanh.approx.{kind}", FLOATS[kind], kind,
                          bound=("absolute", 2**-10.987))
    for kind in ("bf16", "bf16x2"):
        yield instruction(f"ex2.approx.ftz.{kind}", FLOATS[kind], kind, bound=("relative", 2**-7))
        yield instruction(f"tanh.approx.{kind}", FLOATS[kind], kind, bound=("absolute", 2**-8))


def video():
    types = ("u32", "s32")
    scalar = ["vadd", "vsub", "vabsdiff", "vmin", "vmax"]
    selectors = (("", ""), (".b1", ".h1"), (".b3", ".b0"), (".h0", ".b2"))
    for name in scalar:
        for d in types:
            for a in types:
                for b in types:
                    for sat in ("", "sat"):
                        for second in ("", "add", "min", "max"):
                            at = selectors[len(name + d + a + sat + second) % 4]
                            third = ", %c" if second else ""
                            spelling = dots(name, d, a, b, sat, second)
                            yield Kernel(spelling + f" a{at[0]} b{at[1]}", ("i32",) * 3, (4,),
                                         f"{spelling} %d0, %a{at[0]}, %b{at[1]}{third};",
                                         count=512)
    for name in ("vshl", "vshr"):
        for d in types:
            for a in types:
                for mode in ("clamp", "wrap"):
                    for sat in ("", "sat"):
                        for second in ("", "add", "min", "max"):
                            spelling = dots(name, d, a, "u32", sat, mode, second)
                            third = ", %c" if second else ""
                            yield Kernel(spelling, ("i32", "shift", "i32"), (4,),
                                         f"{spelling} %d0, %a, %b{third};", count=512)
    for d in types:
        for a in types:
            for b in types:
                for tail in ("", "sat", "shr7", "shr15", "sat.shr7"):
                    for signs in (("", ""), ("-", "")) if not tail else (("", ""),):
                        spelling = dots("vmad", d, a, b, tail)
                        yield Kernel(f"{spelling} {signs[0]}ab", ("i32",) * 3, (4,),
                                     f"{spelling} %d0, {signs[0]}%a.h0, %b.h1, %c;", count=512)
    for a in types:
        for b in types:
            for test in ("eq", "ne", "lt", "le", "gt", "ge"):
                for second in ("", "add", "min", "max"):
                    third = ", %c" if second else ""
                    yield Kernel(dots("vset", a, b, test, second), ("i32",) * 3, (4,),
                                 f"{dots('vset', a, b, test, second)} %d0, %a, %b{third};",
                                 count=512)
    for parts in "24":
        for a in types:
            for b in types:
                for d in types:
                    for name in ("vadd", "vsub", "vabsdiff", "vavrg", "vmin", "vmax"):
                        for tail in ("", "sat", "add"):
                            spelling = dots(name + parts, d, a, b, tail)
                            yield Kernel(spelling, ("b32",) * 3, (4,),
                                         f"{spelling} %d0, %a, %b, %c;", count=512)
                for test in ("eq", "ne", "lt", "le", "gt", "ge"):
                    for tail in ("", "add"):
                        spelling = dots("vset" + parts, a, b, test, tail)
                        yield Kernel(spelling, ("b32",) * 3, (4,),
                                     f"{spelling} %d0, %a, %b, %c;", count=512)


def kernels():
    for part in (integers, carries, bit_instructions, float_arithmetic, approximate, video):
        yield from part()

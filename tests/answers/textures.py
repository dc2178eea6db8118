"""Kernels that sample textures and access surfaces.

Where texels are chosen and not blended the results are compared bit for bit. A blend has weights
of 8 bits of fraction, and how they are rounded is the card's own: within BLEND, one step, of the
texels' range for each axis and for the level.
"""

import struct

from images import CUBE, GATHER, LAYERED, NORMALIZED, READ_AS_INTEGER, SRGB, SURFACE, Setup
from kernel import Kernel

SIZES = {"1d": (16, 0, 0), "2d": (16, 8, 0), "3d": (8, 8, 4), "a1d": (16, 0, 3), "a2d": (16, 8, 3),
         "cube": (8, 8, 6), "acube": (8, 8, 12)}
FLAGS = {"a1d": LAYERED, "a2d": LAYERED, "cube": CUBE, "acube": LAYERED | CUBE}
AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2, "cube": 3, "acube": 3}
MODES = ("wrap", "clamp", "mirror", "border")
BLEND = 2.0 ** -8
SRGB_STEP = 2.0 ** -8  # The card's table of linear values for sRGB.
COUNT = 1024


def coordinates(geometry, scaled=None):
    """(kinds of the operands, lines, the coordinate list)"""
    axes = AXES[geometry]
    kind = "direction" if "cube" in geometry else "coordinate"
    names = [f"%{letter}" for letter in "abc"[:axes]]
    lines = ""
    if scaled:
        lines = "".join(f"mul.f32 {name}, {name}, 0f{size:08x};"
                        for name, size in zip(names, scaled))
    kinds = (kind,) * axes
    if geometry in FLAGS and geometry != "cube":
        kinds += ("few",)
        layer = "%" + "abcef"[axes]
        if geometry == "acube":
            lines += f"and.b32 {layer}, {layer}, 1;"
        names = [layer] + names
    if len(names) == 3:
        names.append(names[-1])
    return kinds, lines, names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def float_word(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def is_float(setup):
    return setup.format[0] == "f" or not setup.flags & READ_AS_INTEGER


def sampler(name, geometry, setup, level="", more="", kinds_more=(), opcode="tex", component=""):
    size = SIZES[geometry]
    scaled = None
    if not setup.flags & NORMALIZED and "cube" not in geometry:
        scaled = [float_word(float(each)) for each in size[:AXES[geometry]]]
    kinds, lines, listed = coordinates(geometry, scaled)
    operands = "abcefghi"[len(kinds):]
    for i in range(len(kinds_more)):
        more = more.replace(f"#{i}", "%" + operands[i])
    kind = "f32" if is_float(setup) else "s32" if setup.format[0] == "s" else "u32"
    parts = [opcode] + ([component] if component else []) + ([level] if level else [])
    spelling = ".".join(parts + [geometry, "v4", kind, "f32"])
    blends = setup.linear or setup.mip_linear
    if setup.flags & SRGB:
        bound = ("absolute", SRGB_STEP + (BLEND if blends else 0.0))
    else:
        blended = (AXES[geometry] if setup.linear else 0) + int(setup.mip_linear)
        reach = (8.0 if setup.format[0] == "f" else 1.0) * blended
        bound = ("absolute", BLEND * reach) if blends else ()
    return Kernel(f"{spelling} {name}", kinds + kinds_more, (4,) * 4,
                  f"ld.param.u64 %q0, [object]; {lines}\n"
                  f"{spelling} {{%d0, %d1, %d2, %d3}}, [%q0, {listed}]{more};",
                  count=COUNT, setup=setup,
                  bound=bound, float_kind="f32x4")


def formats():
    """Every format and number of channels, chosen and blended, as numbers and as floats."""
    for form in ("u8", "s8", "u16", "s16", "u32", "s32", "f16", "f32"):
        for channels in (1, 2, 4):
            for geometry in ("1d", "2d", "a2d"):
                base = dict(size=SIZES[geometry], array_flags=FLAGS.get(geometry, 0), format=form,
                            channels=channels)
                whole = form[0] != "f"
                if whole:
                    yield sampler(f"{form} x{channels} as integers", geometry,
                                  Setup(flags=NORMALIZED | READ_AS_INTEGER, **base))
                if not whole or form[1:] != "32":
                    for linear in (False, True):
                        yield sampler(f"{form} x{channels} {'linear' if linear else 'point'}",
                                      geometry, Setup(linear=linear, **base))
    for linear in (False, True):
        for geometry in ("1d", "2d", "a2d"):
            yield sampler(f"u8 x4 sRGB {'linear' if linear else 'point'}", geometry,
                          Setup(size=SIZES[geometry], array_flags=FLAGS.get(geometry, 0),
                                format="u8", flags=NORMALIZED | SRGB, linear=linear))


def modes():
    for geometry in SIZES:
        for linear in (False, True):
            for mode, name in enumerate(MODES):
                for flags in (NORMALIZED, 0):
                    if "cube" in geometry and (flags == 0 or mode == 3):
                        continue
                    text = f"{name}{' linear' if linear else ''}{'' if flags else ' in texels'}"
                    yield sampler(text, geometry,
                                  Setup(size=SIZES[geometry], format="f32", linear=linear,
                                        array_flags=FLAGS.get(geometry, 0), flags=flags,
                                        address=(mode, (mode + 1) % 4 if AXES[geometry] == 2
                                                 else mode, mode)))
    for form in ("u8", "s8", "u16", "s16", "u32", "s32"):
        for channels in (1, 4):
            yield sampler(f"{form} x{channels} border of integers", "2d",
                          Setup(size=SIZES["2d"], format=form, address=(3, 3, 3),
                                channels=channels, flags=NORMALIZED | READ_AS_INTEGER))
            if form[1:] != "32":
                yield sampler(f"{form} x{channels} border", "2d",
                              Setup(size=SIZES["2d"], format=form, address=(3, 3, 3),
                                    channels=channels))
    for geometry, axes in (("2d", 2), ("3d", 3)):
        listed = "{" + ", ".join(["%a", "%b", "%c", "%c"][:2 if axes == 2 else 4]) + "}"
        for mode, name in enumerate(MODES):
            yield Kernel(f"tex.{geometry}.v4.f32.s32 {name}", ("index",) * axes, (4,) * 4,
                         "ld.param.u64 %q0, [object];"
                         f"tex.{geometry}.v4.f32.s32 {{%d0, %d1, %d2, %d3}}, [%q0, {listed}];",
                         count=COUNT, setup=Setup(size=SIZES[geometry], flags=0,
                                                  address=(mode,) * 3))


def memory_textures():
    for form in ("u8", "s16", "u32", "f16", "f32"):
        for channels in (1, 4):
            whole = form[0] != "f"
            kind = "u32" if form[0] == "u" else "s32" if whole else "f32"
            yield Kernel(f"tex.1d.v4.{kind}.s32 of memory {form} x{channels}", ("index",), (4,) * 4,
                         "ld.param.u64 %q0, [object];"
                         f"tex.1d.v4.{kind}.s32 {{%d0, %d1, %d2, %d3}}, [%q0, %a];", count=COUNT,
                         setup=Setup(source="linear", size=(16, 0, 0), format=form,
                                     channels=channels, flags=READ_AS_INTEGER if whole else 0))
            if form[1:] != "32" or not whole:
                for linear in (False, True):
                    yield sampler(f"of rows {form} x{channels} {'linear' if linear else 'point'}",
                                  "2d", Setup(source="pitch", size=(16, 8, 0), format=form,
                                              channels=channels, linear=linear))


def mipmaps():
    for geometry in ("1d", "2d", "3d", "a1d", "a2d", "cube", "acube"):
        for linear, mip_linear in ((False, False), (True, False), (False, True), (True, True)):
            for bias, clamp in ((0.0, (0.0, 10.0)), (0.75, (0.0, 10.0)), (-0.5, (0.5, 1.5))):
                setup = Setup(source="mipmap", size=SIZES[geometry], levels=3,
                              array_flags=FLAGS.get(geometry, 0), linear=linear,
                              mip_linear=mip_linear, bias=bias, clamp=clamp)
                text = (f"mipmap{' linear' if linear else ''}{' between' if mip_linear else ''} "
                        f"bias {bias} from {clamp[0]} to {clamp[1]}")
                yield sampler(text, geometry, setup, level="level", more=", #0",
                              kinds_more=("level",))
                if bias or clamp[0]:
                    yield sampler("base " + text, geometry, setup)
                if not bias and geometry in ("1d", "2d", "3d", "a2d"):
                    axes = AXES[geometry]
                    first = ["#0", "#1", "#0", "#0"][:{1: 1, 2: 2, 3: 4}[axes]]
                    second = ["#1", "#0", "#1", "#1"][:{1: 1, 2: 2, 3: 4}[axes]]
                    braces = ("{", "}") if axes > 1 else ("", "")
                    more = "".join(f", {braces[0]}{', '.join(each)}{braces[1]}"
                                   for each in (first, second))
                    yield sampler(text, geometry, setup, level="grad", more=more,
                                  kinds_more=("slope", "slope"))


def gathers():
    for form in ("f32", "u8", "s16", "u32", "f16"):
        for component in "rgba":
            for mode in (0, 1, 2, 3):
                whole = form == "u32"
                flags = NORMALIZED | (READ_AS_INTEGER if whole else 0)
                yield sampler(f"{form} {MODES[mode]}", "2d",
                              Setup(size=SIZES["2d"], format=form, array_flags=GATHER,
                                    flags=flags, address=(mode,) * 3), opcode="tld4",
                              component=component)


def surfaces():
    for geometry in ("1d", "2d", "3d", "a1d", "a2d"):
        axes = AXES[geometry]
        size = SIZES[geometry]
        total = max(size[0], 1) * max(size[1], 1) * max(size[2], 1)
        flags = SURFACE | FLAGS.get(geometry, 0)
        names = ["%t5", "%t6", "%t7"][:axes]
        if geometry in FLAGS:
            names = ["%t8"] + names
        if len(names) == 3:
            names.append(names[-1])
        listed = "{" + ", ".join(names) + "}" if len(names) > 1 else names[0]
        for kind, vector, form, channels in (("b8", "", "u8", 1), ("b16", "", "u16", 1),
                                             ("b32", "", "f32", 1), ("b64", "", "u32", 2),
                                             ("b8", "v2", "u8", 2), ("b8", "v4", "u8", 4),
                                             ("b16", "v2", "f16", 2), ("b16", "v4", "u16", 4),
                                             ("b32", "v2", "u32", 2), ("b32", "v4", "f32", 4),
                                             ("b64", "v2", "u32", 4)):
            count = int(vector[1]) if vector else 1
            bytes_of = int(kind[1:]) // 8
            texel = bytes_of * count
            held = {1: "h", 2: "h", 4: "t", 8: "q"}[bytes_of]
            parts = [f"%{held}{9 + i if held != 'q' else 3 + i}" for i in range(count)]
            register = "{" + ", ".join(parts) + "}" if count > 1 else parts[0]
            setup = Setup(size=size, format=form, channels=channels, array_flags=flags,
                          surface=True)
            for bounds in ("clamp", "zero"):
                # Coordinates lie outside, too, along each axis.
                places = (f"ld.param.u64 %q0, [object]; mul.lo.s32 %t5, %a, {texel};"
                          "mov.u32 %t6, %b; mov.u32 %t7, %c; and.b32 %t8, %c, 3;")
                spelling = ".".join(p for p in ("suld.b", geometry, vector, kind, bounds) if p)
                take = "".join(
                    f"mov.b64 %d{i}, {part};" if held == "q" else
                    f"cvt.u32.u16 %d{i}, {part};" if held == "h" else f"mov.b32 %d{i}, {part};"
                    for i, part in enumerate(parts))
                yield Kernel(spelling, ("index",) * 3, (8 if held == "q" else 4,) * count,
                             f"{places} {spelling} {register}, [%q0, {listed}]; {take}",
                             count=COUNT, setup=setup)
            # One thread a texel; every third one stays as it was.
            split = (f"ld.param.u64 %q0, [object]; rem.u32 %t5, %i, {size[0]};"
                     f"div.u32 %t6, %i, {size[0]}; div.u32 %t7, %t6, {max(size[1], 1)};"
                     f"rem.u32 %t6, %t6, {max(size[1], 1)}; mov.u32 %t8, %t7;"
                     f"mul.lo.u32 %t5, %t5, {texel}; rem.u32 %t9, %i, 3;"
                     "setp.ne.u32 %p0, %t9, 0;")
            values = "".join(
                f"mov.b64 {part}, %{'ab'[i]};" if held == "q" else
                f"cvt.u16.u64 {part}, %{'abce'[i]};" if held == "h" else
                f"cvt.u32.u64 {part}, %{'abce'[i]};" for i, part in enumerate(parts))
            results = {1: None, 2: (2,), 4: (4,), 8: (8,), 16: (8, 8)}[texel]
            if results:
                for bounds in ("trap", "clamp", "zero"):
                    spelling = ".".join(p for p in ("sust.b", geometry, vector, kind, bounds) if p)
                    yield Kernel(spelling, ("b64",) * 4, results,
                                 f"{split} {values} @%p0 {spelling} [%q0, {listed}], {register};",
                                 count=total, block=total, setup=setup, writes_array=True)
    for form, channels in (("f32", 4), ("f32", 1), ("f16", 4), ("f16", 2), ("u32", 2), ("s32", 4),
                           ("u8", 4), ("s8", 4), ("u16", 4), ("s16", 2)):
        width = {"u8": 1, "s8": 1, "u16": 2, "s16": 2, "f16": 2}.get(form, 4) * channels
        results = {4: (4,), 8: (8,), 16: (8, 8)}[width]
        vector = {1: "", 2: "v2.", 4: "v4."}[channels]
        names = ", ".join(["%a", "%b", "%c", "%e"][:channels])
        register = "{" + names + "}" if channels > 1 else names
        kind = "f32" if form[0] == "f" else "b32"
        yield Kernel(f"sust.p.2d.{vector}b32.clamp {form} x{channels}", (kind,) * 4, results,
                     "ld.param.u64 %q0, [object]; and.b32 %t5, %i, 15; shr.u32 %t6, %i, 4;"
                     f"sust.p.2d.{vector}b32.clamp [%q0, {{%t5, %t6}}], {register};", count=128,
                     block=128, setup=Setup(size=(16, 8, 0), format=form, channels=channels,
                                            array_flags=SURFACE, surface=True), writes_array=True)


def queries():
    for name in ("width", "height", "depth", "array_size", "num_mipmap_levels"):
        for geometry in ("1d", "2d", "3d", "a1d", "a2d"):
            yield Kernel(f"txq.{name}.b32 {geometry}", ("few",), (4,),
                         f"ld.param.u64 %q0, [object]; txq.{name}.b32 %d0, [%q0];", count=256,
                         setup=Setup(source="mipmap", levels=3, size=SIZES[geometry],
                                     array_flags=FLAGS.get(geometry, 0)))
            if name != "num_mipmap_levels":
                yield Kernel(f"suq.{name}.b32 {geometry}", ("few",), (4,),
                             f"ld.param.u64 %q0, [object]; suq.{name}.b32 %d0, [%q0];", count=256,
                             setup=Setup(size=SIZES[geometry], surface=True,
                                         array_flags=SURFACE | FLAGS.get(geometry, 0)))


def kernels():
    for part in (formats, modes, memory_textures, mipmaps, gathers, surfaces, queries):
        yield from part()

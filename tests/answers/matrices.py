"""Kernels of matrix instructions, on small whole numbers: their sums are exact in every type, while
the order and rounding of other float sums are the card's own."""

from kernel import Kernel

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "e4m3": 8, "e5m2": 8, "s8": 8,
        "u8": 8, "s4": 4, "u4": 4, "s32": 32, "b1": 1}
# Small whole numbers of each type, by a table of their bits: prmt chooses.
WHOLE = {"f16": (0x0000, 0x3c00, 0x4000, 0xbc00), "bf16": (0x0000, 0x3f80, 0x4000, 0xbf80),
         "e4m3": (0x00, 0x38, 0x40, 0xb8), "e5m2": (0x00, 0x3c, 0x40, 0xbc)}


def registers(elements, kind):
    return elements // 32 if BITS[kind] >= 32 else max(1, elements * BITS[kind] // 1024)


def fragment(name, count, kind, source):
    """Lines that fill %name0.. with whole numbers (exact) drawn from the word `source`."""
    lines = []
    size = 64 if kind == "f64" else 32
    lines.append(f".reg .b{size} %{name}<{count}>;")
    for i in range(count):
        lines.append(f"mad.lo.u32 %t8, {source}, {2 * (ord(name[0]) * 37 + i * 101) + 1}, "
                     f"{i * 7919 + 13}; shr.u32 %t9, %t8, 11; xor.b32 %t8, %t8, %t9;")
        if kind in ("s8", "u8", "s4", "u4"):
            lines.append(f"mov.b32 %{name}{i}, %t8;")
        elif kind in ("s32",):
            lines.append(f"shr.s32 %{name}{i}, %t8, 8;")
        elif kind in ("f32", "tf32"):
            lines.append(f"shr.s32 %t9, %t8, 28; cvt.rn.f32.s32 %{name}{i}, %t9;")
        elif kind == "f64":
            lines.append(f"shr.s32 %t9, %t8, 24; cvt.rn.f64.s32 %{name}{i}, %t9;")
        else:
            wide = BITS[kind] == 16
            parts = 2 if wide else 4
            table = WHOLE[kind]
            lines.append(f"mov.b32 %{name}{i}, 0;")
            for part in range(parts):
                lines.append(f"shr.u32 %t9, %t8, {3 + 7 * part}; and.b32 %t9, %t9, 3;"
                             "setp.eq.u32 %p0, %t9, 1; setp.eq.u32 %p1, %t9, 2;"
                             "setp.eq.u32 %p2, %t9, 3; mov.b32 %t10, 0;"
                             f"@%p0 mov.b32 %t10, {table[1]}; @%p1 mov.b32 %t10, {table[2]};"
                             f"@%p2 mov.b32 %t10, {table[3]}; shl.b32 %t10, %t10, "
                             f"{part * BITS[kind]}; or.b32 %{name}{i}, %{name}{i}, %t10;")
    return "\n".join(lines)


def vector(name, count):
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def product(spelling, shape, types):
    m, n, k = shape
    d, a, b, c = types
    counts = [registers(m * n, d), registers(m * k, a), registers(k * n, b), registers(m * n, c)]
    size = 8 if d == "f64" else 4
    lines = [fragment("va", counts[1], a, "%a"), fragment("vb", counts[2], b, "%b"),
             fragment("vc", counts[3], c, "%c"), f".reg .b{size * 8} %vd<{counts[0]}>;",
             f"{spelling} {vector('vd', counts[0])}, {vector('va', counts[1])}, "
             f"{vector('vb', counts[2])}, {vector('vc', counts[3])};"]
    lines += [f"mov.b{size * 8} %d{i}, %vd{i};" for i in range(counts[0])]
    return Kernel(spelling, ("b32", "b32", "b32"), (size,) * counts[0], "\n".join(lines), count=512)


def mma():
    for shape in ((16, 8, 16), (16, 8, 8)):
        for kind, sums in (("f16", ("f16", "f32")), ("bf16", ("f32",))):
            for d in sums:
                for c in sums:
                    text = "m%dn%dk%d" % shape
                    spelling = f"mma.sync.aligned.{text}.row.col.{d}.{kind}.{kind}.{c}"
                    yield product(spelling, shape, (d, kind, kind, c))
    for k in (4, 8):
        spelling = f"mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32"
        yield product(spelling, (16, 8, k), ("f32", "tf32", "tf32", "f32"))
    for k in (16, 32):
        for a in ("e4m3", "e5m2"):
            for b in ("e4m3", "e5m2"):
                for d in ("f16", "f32"):
                    spelling = f"mma.sync.aligned.m16n8k{k}.row.col.{d}.{a}.{b}.{d}"
                    yield product(spelling, (16, 8, k), (d, a, b, d))
    for shape in ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)):
        text = "m%dn%dk%d" % shape
        spelling = f"mma.sync.aligned.{text}.row.col.f64.f64.f64.f64"
        yield product(spelling, shape, ("f64",) * 4)
    for shape, kinds in (((8, 8, 16), ("s8", "u8")), ((16, 8, 16), ("s8", "u8")),
                         ((16, 8, 32), ("s8", "u8")), ((8, 8, 32), ("s4", "u4")),
                         ((16, 8, 32), ("s4", "u4")), ((16, 8, 64), ("s4", "u4"))):
        for a in kinds:
            for b in kinds:
                for sat in ("", ".satfinite"):
                    text = "m%dn%dk%d" % shape
                    spelling = f"mma.sync.aligned.{text}.row.col{sat}.s32.{a}.{b}.s32"
                    yield product(spelling, shape, ("s32", a, b, "s32"))


def wmma():
    """Whole: load, multiply, store, through memory of the block, so that layouts show."""
    for shape in ((16, 16, 16), (8, 32, 16), (32, 8, 16)):
        m, n, k = shape
        text = f"m{m}n{n}k{k}"
        cases = [("f16", d, c) for d in ("f16", "f32") for c in ("f16", "f32")]
        cases += [("bf16", "f32", "f32"), ("s8", "s32", "s32"), ("u8", "s32", "s32")]
        count_of = {"f16": 4, "f32": 8, "s32": 8}
        for kind, d, c in cases:
            for layouts in (("row", "col"), ("col", "row"), ("row", "row"), ("col", "col")):
                a_count = 8 if kind == "f16" else max(1, m * k * BITS[kind] // 1024)
                b_count = 8 if kind == "f16" else max(1, n * k * BITS[kind] // 1024)
                yield wmma_kernel(text, shape, kind, d, c, layouts, a_count, b_count,
                                  count_of[d], count_of[c])
    for layouts in (("row", "col"), ("col", "row")):
        yield wmma_kernel("m16n16k8", (16, 16, 8), "tf32", "f32", "f32", layouts, 4, 4, 8, 8)
        yield wmma_kernel("m8n8k4", (8, 8, 4), "f64", "f64", "f64", layouts, 1, 1, 2, 2)


def wmma_kernel(text, shape, kind, d, c, layouts, a_count, b_count, d_count, c_count):
    m, n, k = shape
    a_layout, b_layout = layouts
    a_size, c_size, d_size = BITS[kind] // 8, BITS[c] // 8, BITS[d] // 8
    areas = [m * k * a_size, k * n * a_size, m * n * c_size, m * n * d_size]
    at = [sum(areas[:i]) for i in range(4)]
    total = sum(areas)
    lines = [".reg .b64 %w<4>; mov.u64 %w0, area; mov.u32 %t11, 0;"]
    reg = {"f64": "b64"}.get(kind, "b32")
    creg = {"f64": "b64"}.get(c, "b32")
    # Each lane fills what is its own, one element at a time.
    for i, (area, elem, count) in enumerate(((at[0], kind, m * k), (at[1], kind, k * n),
                                             (at[2], c, m * n))):
        size = BITS[elem] // 8
        lines.append(f"mov.u32 %t11, %lane;\nFILL{i}: mad.lo.u32 %t12, %t11, {size}, {area};"
                     "cvt.u64.u32 %w1, %t12; add.u64 %w1, %w1, %w0;"
                     f"mad.lo.u32 %t13, %t11, {2654435761 + 2 * i}, %t2; shr.u32 %t14, %t13, 13;"
                     "xor.b32 %t13, %t13, %t14; mul.lo.u32 %t13, %t13, 2246822519;"
                     "shr.u32 %t13, %t13, 29; sub.s32 %t13, %t13, 3;")
        lines.append({
            "f16": "cvt.rn.f16.s32 %h5, %t13; st.shared.b16 [%w1], %h5;",
            "bf16": "cvt.rn.bf16.s32 %h5, %t13; st.shared.b16 [%w1], %h5;",
            "tf32": "cvt.rn.f32.s32 %t13, %t13; st.shared.b32 [%w1], %t13;",
            "f32": "cvt.rn.f32.s32 %t13, %t13; st.shared.b32 [%w1], %t13;",
            "f64": "cvt.rn.f64.s32 %q5, %t13; st.shared.b64 [%w1], %q5;",
            "s8": "st.shared.b8 [%w1], %t13;", "u8": "st.shared.b8 [%w1], %t13;",
            "s32": "st.shared.b32 [%w1], %t13;"}[elem])
        lines.append(f"add.u32 %t11, %t11, 32; setp.lt.u32 %p0, %t11, {count}; @%p0 bra FILL{i};")
    lines.append("bar.sync 0;")
    for name, count, r in (("va", a_count, reg), ("vb", b_count, reg), ("vc", c_count, creg),
                           ("vd", d_count, {"f64": "b64"}.get(d, "b32"))):
        lines.append(f".reg .{r} %{name}<{count}>;")
    lda = k if a_layout == "row" else m
    ldb = n if b_layout == "row" else k
    for i in range(3):
        lines.append(f"add.u64 %w{i + 1}, %w0, {at[i]};")
    lines.append(f"wmma.load.a.sync.aligned.{a_layout}.{text}.shared.{kind} "
                 f"{vector('va', a_count)}, [%w1], {lda};")
    lines.append(f"wmma.load.b.sync.aligned.{b_layout}.{text}.shared.{kind} "
                 f"{vector('vb', b_count)}, [%w2], {ldb};")
    lines.append(f"wmma.load.c.sync.aligned.{a_layout}.{text}.shared.{c} "
                 f"{vector('vc', c_count)}, [%w3], {n if a_layout == 'row' else m};")
    if kind == "f16":
        types = f"{d}.{c}"
    else:
        types = f"{d}.{kind}.{kind}.{c}"
    rounding = ".rn" if kind == "f64" else ""
    lines.append(f"wmma.mma.sync.aligned.{a_layout}.{b_layout}.{text}{rounding}.{types} "
                 f"{vector('vd', d_count)}, {vector('va', a_count)}, {vector('vb', b_count)}, "
                 f"{vector('vc', c_count)};")
    lines.append(f"add.u64 %w1, %w0, {at[3]}; wmma.store.d.sync.aligned.{b_layout}.{text}.shared."
                 f"{d} [%w1], {vector('vd', d_count)}, {n if b_layout == 'row' else m}; "
                 "bar.sync 0;")
    per_lane = areas[3] // 32 // 4
    lines.append(f"mad.wide.u32 %w2, %lane, {per_lane * 4}, %w1;")
    lines += [f"ld.shared.b32 %d{i}, [%w2+{4 * i}];" for i in range(per_lane)]
    return Kernel(f"wmma {text} {a_layout} {b_layout} {kind} {d} {c}", ("few",), (4,) * per_lane,
                  "\n".join(lines), shared=total, count=32, block=32)


def fragments():
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            names = ", ".join(f"%d{i}" for i in range(count))
            yield Kernel(f"ldmatrix.x{count}{trans}", ("b64", "b64"), (4,) * count,
                         "mov.u64 %q3, area; mov.u32 %t3, %tid.x; mad.wide.u32 %q3, %t3, 16, %q3;"
                         "st.shared.b64 [%q3], %a; st.shared.b64 [%q3+8], %b; bar.sync 0;"
                         f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 "
                         f"{{{names}}}, [%q3];",
                         shared=16 * 256, count=1024)
            pool = ", ".join(f"%{letter}" for letter in "abce"[:count])
            yield Kernel(f"stmatrix.x{count}{trans}", ("b32",) * 4, (8, 8),
                         "mov.u64 %q3, area; mov.u32 %t3, %tid.x; mad.wide.u32 %q3, %t3, 16, %q3;"
                         "mov.b64 %q0, 0; st.shared.b64 [%q3], %q0; st.shared.b64 [%q3+8], %q0;"
                         "bar.sync 0;"
                         f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%q3], {{{pool}}};"
                         "bar.sync 0; ld.shared.b64 %d0, [%q3]; ld.shared.b64 %d1, [%q3+8];",
                         shared=16 * 256, count=1024)
    yield Kernel("movmatrix", ("b32",), (4,), "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a;")


def kernels():
    for part in (mma, wmma, fragments):
        yield from part()

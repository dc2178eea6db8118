"""Kernels of instructions that work across a warp or a block, of atomics, memory and control flow.

Results do not depend on the order of threads: each thread works on memory of its own, or the
operation commutes and only its end is looked at.
"""

from arithmetic import dots, integer, width
from kernel import Kernel

ALL = "0xffffffff"
# The lanes fall into two halves, by a predicate of the lane, each with its own mask.
HALVES = """and.b32 %t3, %lane, 5; setp.eq.b32 %p7, %t3, 4;
{vote} @%p7 bra DONE_FIRST;
not.b32 %t4, %t4;
DONE_FIRST: @!%p7 bra SECOND;
{body} bra END;
SECOND: {body}
END:"""


def in_halves(body):
    """The body, once by the lanes of mask %t4 and once by the others, with theirs."""
    return HALVES.format(vote="vote.sync.ballot.b32 %t4, %p7, 0xffffffff;",
                         body=body.replace("MASK", "%t4"))


def both(name, kinds, results, body):
    yield Kernel(name, kinds, results, body.replace("MASK", ALL))
    yield Kernel(name + " in two halves", kinds, results, in_halves(body))


def shuffles():
    for mode in ("up", "down", "bfly", "idx"):
        yield from both(f"shfl.sync.{mode}.b32 with predicate", ("i32", "lane", "segment"), (4, 4),
                        f"shfl.sync.{mode}.b32 %d0|%p0, %a, %b, %c, MASK; selp.u32 %d1, 1, 0, %p0;"
                        "selp.b32 %d0, %d0, 0, %p0;")
        yield Kernel(f"shfl.sync.{mode}.b32", ("i32", "lane", "segment"), (4,),
                     f"shfl.sync.{mode}.b32 %d0, %a, %b, %c, {ALL};")
        for segment in (0x1f, 0x181f, 0x1c1f, 0x1e03, 0x001c, 0x1800):
            yield Kernel(f"shfl.sync.{mode}.b32 segment {segment:#x}", ("i32", "lane"), (4, 4),
                         f"shfl.sync.{mode}.b32 %d0|%p0, %a, %b, {segment}, {ALL};"
                         "selp.u32 %d1, 1, 0, %p0;")


def votes():
    for mode in ("all", "any", "uni"):
        for kind in ("pred", "mostly"):
            for sign in ("", "!"):
                yield from both(f"vote.sync.{mode}.pred {sign}{kind}", (kind,), (4,),
                                f"vote.sync.{mode}.pred %p0, {sign}%pa, MASK; "
                                "selp.u32 %d0, 1, 0, %p0;")
    for sign in ("", "!"):
        yield from both(f"vote.sync.ballot.b32 {sign}p", ("pred",), (4,),
                        f"vote.sync.ballot.b32 %d0, {sign}%pa, MASK;")
    for kind, size in (("b32", "few"), ("b64", "few64")):
        yield from both(f"match.any.sync.{kind}", (size,), (4,),
                        f"match.any.sync.{kind} %d0, %a, MASK;")
        equal = "and.b32 %t5, %i, 0xffffffe0; add.u32 %t5, %t5, %t5;"
        value = "%t6" if kind == "b32" else "%q0"
        wide = "cvt.u64.u32 %q0, %t6;" if kind == "b64" else ""
        yield from both(f"match.all.sync.{kind}", ("mostly",), (4, 4),
                        f"{equal} add.u32 %t6, %t5, %a; {wide} "
                        f"match.all.sync.{kind} %d0|%p0, {value}, MASK; selp.u32 %d1, 1, 0, %p0;")
    for name, kinds in (("add", ("u32", "s32")), ("min", ("u32", "s32")), ("max", ("u32", "s32")),
                        ("and", ("b32",)), ("or", ("b32",)), ("xor", ("b32",))):
        for kind in kinds:
            yield from both(f"redux.sync.{name}.{kind}", ("i32",), (4,),
                            f"redux.sync.{name}.{kind} %d0, %a, MASK;")
    # Which lane is elected is the implementation's choice: it is one, and all know it.
    yield Kernel("elect.sync", ("few",), (4, 4),
                 f"elect.sync %t5|%p0, {ALL}; vote.sync.ballot.b32 %t6, %p0, {ALL};"
                 "popc.b32 %d0, %t6; bfind.u32 %t7, %t6; setp.eq.u32 %p1, %t7, %t5;"
                 "selp.u32 %d1, 1, 0, %p1;")
    yield from both("activemask.b32", ("few",), (4,), "activemask.b32 %d0;")


SPECIALS = ("tid.x", "ntid.x", "ctaid.x", "nctaid.x", "tid.y", "ntid.y", "ctaid.y", "nctaid.y",
            "tid.z", "ntid.z", "ctaid.z", "nctaid.z", "laneid", "lanemask_eq", "lanemask_le",
            "lanemask_lt", "lanemask_ge", "lanemask_gt", "dynamic_smem_size", "clusterid.x",
            "nclusterid.x", "cluster_ctaid.x", "cluster_nctaid.x", "cluster_ctarank",
            "cluster_nctarank")


def specials():
    for name in SPECIALS:
        yield Kernel(f"mov.u32 %{name}", ("few",), (4,), f"mov.u32 %d0, %{name};", count=1024)
    yield Kernel("mov.pred %is_explicit_cluster", ("few",), (4,),
                 "mov.pred %p0, %is_explicit_cluster; selp.u32 %d0, 1, 0, %p0;", count=1024)


def moves():
    yield Kernel("mov.b32 {b16, b16}", ("b32",), (4, 4),
                 "mov.b32 {%h0, %h1}, %a; mov.b32 %d0, {%h1, %h0}; cvt.u32.u16 %d1, %h1;")
    yield Kernel("mov.b64 {b32, b32}", ("b64",), (8, 4),
                 "mov.b64 {%t3, %t4}, %a; mov.b64 %d0, {%t4, %t3}; mov.b32 %d1, %t4;")
    yield Kernel("mov.b64 {b16, b16, b16, b16}", ("b64",), (8,),
                 "mov.b64 {%h0, %h1, %h2, %h3}, %a; mov.b64 %d0, {%h2, %h3, %h1, %h0};")
    yield Kernel("mov.b32 {b8, b8, b8, b8}", ("b32",), (4,),
                 ".reg .b8 %x<4>; mov.b32 {%x0, %x1, %x2, %x3}, %a;"
                 "mov.b32 %d0, {%x2, %x3, %x1, %x0};")
    yield Kernel("mov.b16 {b8, b8}", ("i16",), (2,),
                 ".reg .b8 %x<2>; mov.b16 {%x0, %x1}, %a; mov.b16 %d0, {%x1, %x0};")
    yield Kernel("mov.b128 {b64, b64}", ("b64", "b64"), (8, 8),
                 ".reg .b128 %x; mov.b128 %x, {%a, %b}; mov.b128 {%d1, %d0}, %x;")
    for space, define in (("global", ".global .align 16 .b8 NAME[64];"),
                          ("shared", ""), ("local", ""),
                          ("const", ".const .align 16 .b8 NAME[64];")):
        yield Kernel(f"cvta and isspacep {space}", ("few",), (4, 4),
                     (".local .align 16 .b8 NAME[64];" if space == "local" else "").replace(
                         "NAME", "l_area")
                     + f"mov.u64 %q0, {'area' if space == 'shared' else space[0] + '_area@@'};"
                     f"cvta.{space}.u64 %q1, %q0; cvta.to.{space}.u64 %q2, %q1;"
                     "setp.eq.u64 %p0, %q0, %q2; selp.u32 %d0, 1, 0, %p0; mov.u32 %d1, 0;"
                     + "".join(f"isspacep.{each} %p1, %q1; selp.u32 %t5, {1 << i}, 0, %p1;"
                               "or.b32 %d1, %d1, %t5;" for i, each in enumerate(
                                   ("global", "shared", "local", "const"))),
                     module=define.replace("NAME", space[0] + "_area@@"),
                     shared=64 if space == "shared" else 0, count=1024)


def memory():
    """Loads and stores of each type, width and space; a value goes in by bytes and out by type."""
    spaces = {"global": "%own", "shared": "%q3", "local": "%q4", "generic": "%own"}
    for space, at in spaces.items():
        prefix = "" if space == "generic" else space
        setup = (".local .align 16 .b8 l_area[64]; mov.u64 %q4, l_area;" if space == "local" else
                 "mov.u64 %q3, area; mov.u32 %t3, %tid.x; mad.wide.u32 %q3, %t3, 64, %q3;"
                 if space == "shared" else "")
        shared = 64 * 256 if space == "shared" else 0
        store = f"st.{prefix}.b64".replace("..", ".")
        for kind in ("b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64",
                     "u64", "s64", "f64"):
            size = 4 if width(kind) < 8 else 8
            for order in ("", "volatile", "relaxed.gpu", "acquire.sys"):
                if order and space == "local" or order == "acquire.sys" and space == "shared":
                    continue
                spelling = dots("ld", order, prefix, kind)
                reg = "%t5" if size == 4 else "%d0"
                narrow = "mov.b32 %d0, %t5;" if size == 4 else ""
                yield Kernel(spelling + f" of {space}", ("b64",), (size,),
                             f"{setup} {store} [{at}], %a; {spelling} {reg}, [{at}]; {narrow}",
                             shared=shared, own=True, count=1024)
            back = "%t6" if size == 4 else "%a"
            cut = "cvt.u32.u64 %t6, %a;" if size == 4 else ""
            for order in ("", "volatile", "relaxed.gpu", "release.sys"):
                if order and space == "local" or order == "release.sys" and space == "shared":
                    continue
                spelling = dots("st", order, prefix, kind)
                yield Kernel(spelling + f" of {space}", ("b64", "b64"), (8,),
                             f"{setup} {cut} {store} [{at}], %b; {spelling} [{at}], {back};"
                             f"{store.replace('st', 'ld', 1)} %d0, [{at}];",
                             shared=shared, own=True, count=1024)
        for count, kind, regs in ((2, "b8", "t"), (4, "b8", "t"), (2, "b16", "h"), (4, "b16", "h"),
                                  (2, "b32", "t"), (4, "b32", "t"), (2, "b64", "q")):
            names = [f"%{regs}{5 + i}" for i in range(count)]
            listed = ", ".join(names)
            turned = ", ".join(reversed(names))
            yield Kernel(f"ld and st v{count}.{kind} of {space}", ("b64", "b64"), (8, 8),
                         f"{setup} {store} [{at}], %a; {store} [{at}+8], %b;"
                         f"{dots('ld', prefix, f'v{count}', kind)} {{{listed}}}, [{at}];"
                         f"{dots('st', prefix, f'v{count}', kind)} [{at}], {{{turned}}};"
                         f"{store.replace('st', 'ld', 1)} %d0, [{at}];"
                         f"{store.replace('st', 'ld', 1)} %d1, [{at}+8];",
                         shared=shared, own=True, count=1024)
    for hint in ("ca", "cg", "cs", "cv", "nc"):
        yield Kernel(f"ld.global.{hint}.u32", ("b32",), (4,),
                     "ld.param.u64 %q0, [in_a]; mad.wide.u32 %q0, %i, 4, %q0;"
                     f"ld.global.{hint}.u32 %d0, [%q0];", count=1024)
    yield Kernel("ldu.global.u32", ("b32",), (4,),
                 "ld.param.u64 %q0, [in_a]; ldu.global.u32 %d0, [%q0+64];", count=1024)
    table = ", ".join(str((i * 2654435761) & 0xffffffff) for i in range(64))
    yield Kernel("ld.const.u32", ("few",), (4,),
                 "and.b32 %t3, %i, 63; mov.u64 %q0, table@@; mad.wide.u32 %q0, %t3, 4, %q0;"
                 "ld.const.u32 %d0, [%q0];",
                 module=f".const .align 4 .u32 table@@[64] = {{{table}}};")
    for name in ("membar.cta", "membar.gl", "membar.sys", "fence.sc.gpu", "fence.acq_rel.cta"):
        yield Kernel(name, ("b32",), (4,), f"st.global.b32 [%own], %a; {name};"
                     "ld.global.b32 %d0, [%own];", own=True, count=1024)
    for size in (4, 8, 16):
        for part in ("", f", {size // 2}", ", %t7"):
            cache = "cg" if size == 16 else "ca"
            yield Kernel(f"cp.async.{cache} {size}{part}", ("b64", "b64"), (8, 8),
                         "mov.u64 %q3, area; mov.u32 %t3, %tid.x; mad.wide.u32 %q3, %t3, 16, %q3;"
                         "mov.b64 %q5, -1; st.shared.b64 [%q3], %q5; st.shared.b64 [%q3+8], %q5;"
                         "st.global.b64 [%own], %a; st.global.b64 [%own+8], %b; membar.gl;"
                         f"and.b32 %t7, %i, {size - 1};"
                         f"cp.async.{cache}.shared.global [%q3], [%own], {size}{part};"
                         "cp.async.commit_group; cp.async.wait_group 0; ld.shared.b64 %d0, [%q3];"
                         "ld.shared.b64 %d1, [%q3+8];", shared=16 * 256, own=True, count=1024)
    yield Kernel("mbarrier init, expect_tx, cp.async.bulk, try_wait", ("b64",), (8,),
                 ".reg .b32 %s0; mov.u32 %s0, area; mov.u64 %q0, area; mov.u32 %t3, %tid.x;"
                 "setp.ne.u32 %p0, %t3, 0; @%p0 bra READY;"
                 "mbarrier.init.shared.b64 [%q0], 1; fence.proxy.async; ld.param.u64 %q2, [in_a];"
                 "mov.u32 %t4, %ctaid.x; mad.wide.u32 %q2, %t4, 2048, %q2;"
                 "mbarrier.arrive.expect_tx.shared.b64 %q3, [%q0], 2048;"
                 "add.u64 %q5, %q0, 16;"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%q5], [%q2], 2048, [%q0];\n"
                 "READY: bar.sync 0;\nAGAIN: mbarrier.try_wait.parity.shared.b64 %p1, [%q0], 0;"
                 "@!%p1 bra AGAIN; mad.wide.u32 %q4, %t3, 8, %q0; ld.shared.b64 %d0, [%q4+16];",
                 shared=2048 + 16)
    yield Kernel("mbarrier.arrive and test_wait", ("few",), (4, 4),
                 "mov.u64 %q0, area; mov.u32 %t3, %tid.x; setp.ne.u32 %p0, %t3, 0;"
                 "@%p0 bra READY; mbarrier.init.shared.b64 [%q0], 256;\nREADY: bar.sync 0;"
                 "mbarrier.test_wait.parity.shared.b64 %p1, [%q0], 0; selp.u32 %d0, 1, 0, %p1;"
                 "bar.sync 0; mbarrier.arrive.shared.b64 %q3, [%q0]; bar.sync 0;"
                 "mbarrier.test_wait.shared.b64 %p1, [%q0], %q3; selp.u32 %d1, 1, 0, %p1;",
                 shared=16)
    yield Kernel("mapa and getctarank", ("few",), (4, 4),
                 "mov.u64 %q0, area; cvta.shared.u64 %q0, %q0; mapa.u64 %q1, %q0, 0;"
                 "setp.eq.u64 %p0, %q0, %q1; selp.u32 %d0, 1, 0, %p0;"
                 "getctarank.u64 %d1, %q0;", shared=16, count=1024)


OPERATIONS = [(name, kind) for name, kinds in (
    ("add", ("u32", "s32", "u64", "f32", "f64")), ("min", ("u32", "s32", "u64", "s64")),
    ("max", ("u32", "s32", "u64", "s64")), ("and", ("b32", "b64")), ("or", ("b32", "b64")),
    ("xor", ("b32", "b64")), ("exch", ("b32", "b64")), ("cas", ("b16", "b32", "b64")),
    ("inc", ("u32",)), ("dec", ("u32",)), ("add.noftz", ("f16", "f16x2", "bf16", "bf16x2")),
    ) for kind in kinds]
SUMS = {"f32": "f32", "f64": "f64", "f16": "f16", "f16x2": "f16x2", "bf16": "bf16",
        "bf16x2": "bf16x2"}


def size_of_type(kind):
    return {"f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4}.get(kind) or width(kind)


def atomics():
    """One thread's operation on memory of its own: what it returns and what it leaves."""
    for name, kind in OPERATIONS:
        size, pool = size_of_type(kind), SUMS.get(kind, integer(kind))
        word = f"b{8 * size}"
        for space in ("global", "shared", "generic"):
            at = "%q3" if space == "shared" else "%own"
            prefix = "" if space == "generic" else space
            setup = ("mov.u64 %q3, area; mov.u32 %t3, %tid.x; mad.wide.u32 %q3, %t3, 8, %q3;"
                     if space == "shared" else "")
            plain = f"{dots('st', prefix, word)} [{at}], %a;"
            load = f"{dots('ld', prefix, word)} %d1, [{at}];"
            scopes = ("", "cta", "gpu", "sys", "cluster")
            orders = ("", "relaxed", "acquire", "release", "acq_rel")
            pairs = [("", "")] + [(o, s) for o in orders[1:] for s in scopes[1:]] \
                if space == "global" else [("", ""), ("relaxed", "cta"), ("acq_rel", "gpu")]
            given = "%b, %c" if name == "cas" else "%b"
            # Half of all compare-and-swaps find what they expect.
            equal = f"and.b32 %t4, %i, 1; setp.eq.b32 %p0, %t4, 0; selp.{word} %b, %a, %b, %p0;" \
                if name == "cas" and size > 2 else \
                "and.b32 %t4, %i, 1; setp.eq.b32 %p0, %t4, 0; selp.b16 %b, %a, %b, %p0;" \
                if name == "cas" else ""
            kinds = (pool, pool, pool) if name == "cas" else (pool, pool)
            for order, scope in pairs:
                spelling = dots("atom", order, scope, prefix, name, kind)
                yield Kernel(spelling + f" of {space}", kinds, (size, size),
                             f"{setup} {equal} {plain} {spelling} %d0, [{at}], {given}; {load}",
                             any_nan="f64" if kind == "f64" else "",
                             shared=8 * 256 if space == "shared" else 0, own=True,
                             count=2048 if not order else 256)
                if name in ("exch", "cas") or order in ("acquire", "acq_rel"):
                    continue
                spelling = dots("red", order, scope, prefix, name, kind)
                yield Kernel(spelling + f" of {space}", kinds, (size,),
                             f"{setup} {plain} {spelling} [{at}], %b; "
                             + load.replace("%d1", "%d0"),
                             any_nan="f64" if kind == "f64" else "",
                             shared=8 * 256 if space == "shared" else 0, own=True,
                             count=1024 if not order else 256)
    for name in ("exch", "cas"):
        then = ", %y" if name == "cas" else ""
        yield Kernel(f"atom.global.{name}.b128", ("i64", "i64"), (8, 8, 8, 8),
                     ".reg .b128 %x, %y, %z; st.global.b64 [%own], %a; st.global.b64 [%own+8], %b;"
                     "and.b32 %t4, %i, 1; cvt.u64.u32 %q0, %t4; add.u64 %q1, %b, %q0;"
                     "mov.b128 %x, {%a, %q1}; mov.b128 %y, {%q1, %a};"
                     f"atom.global.{name}.b128 %z, [%own], %x{then}; mov.b128 {{%d0, %d1}}, %z;"
                     "ld.global.b64 %d2, [%own]; ld.global.b64 %d3, [%own+8];", own=True)
    for op, kind, count in [("add", "f32", 2), ("add", "f32", 4)] + [
            (op, kind, count) for op in ("add.noftz", "min.noftz", "max.noftz")
            for kind in ("f16x2", "bf16x2") for count in (2, 4)]:
        kinds = (SUMS[kind],) * 2
        listed = ", ".join(["%b", "%a", "%b", "%a"][:count])
        out = ", ".join(f"%t{5 + i}" for i in range(count))
        yield Kernel(f"atom.global.v{count}.{kind}.{op}", kinds, (4,) * (2 * count),
                     "".join(f"st.global.b32 [%own+{4 * i}], %a;" for i in range(count))
                     + f"atom.global.{op.partition('.')[0]}"
                     + f"{'.noftz' if 'noftz' in op else ''}.v{count}.{kind} "
                     f"{{{out}}}, [%own], {{{listed}}};"
                     + "".join(f"mov.b32 %d{i}, %t{5 + i};"
                               f"ld.global.b32 %d{count + i}, [%own+{4 * i}];"
                               for i in range(count)), own=True, count=2048)


def crowds():
    """Many threads on one word, by operations that commute."""
    for name, kind in OPERATIONS:
        if name in ("exch", "cas") or kind[0] in "fb" and kind[1] == "f" or kind[0] == "f":
            continue
        size, pool = width(kind), integer(kind)
        for space in ("global", "shared"):
            at = "%q3" if space == "shared" else "%q4"
            target = ("mov.u64 %q3, area;" if space == "shared" else
                      "mov.u32 %t3, %ctaid.x; mul.lo.u32 %t3, %t3, 256; "
                      "mad.wide.u32 %q4, %t3, 64, %base0;").replace("%base0", "%q6")
            begin = "ld.param.u64 %q6, [memory];" if space == "global" else ""
            first = "mov.u32 %t4, %tid.x; setp.ne.u32 %p0, %t4, 0;"
            cut = "and.b32 %b, %b, 1023;" if name in ("inc", "dec") else ""
            yield Kernel(f"atom.{space}.{name}.{kind} by a block", (pool, pool), (size,),
                         f"{begin} {target} {first} {cut}\n@%p0 bra READY;\n"
                         f"st.{space}.b{8 * size} [{at}], %a;\nREADY: bar.sync 0;\n"
                         + ("mov.u32 %b, 200;" if name in ("inc", "dec") else "")
                         + f"red.{space}.{name}.{kind} [{at}], %b; bar.sync 0;"
                         f"ld.{space}.b{8 * size} %d0, [{at}];",
                         shared=16 if space == "shared" else 0, own=True)
    for kind, one in (("f32", "cvt.rn.f32.u32 %t5, %t4;"), ("f64", "cvt.rn.f64.u32 %q5, %t4;")):
        size = width(kind)
        value = "%t5" if size == 4 else "%q5"
        yield Kernel(f"atom.shared.add.{kind} of whole numbers by a block", ("few",), (size,),
                     f"mov.u64 %q3, area; mov.u32 %t4, %tid.x; mov.b64 %q1, 0;\n"
                     "setp.ne.u32 %p0, %t4, 0; @%p0 bra READY; st.shared.b64 [%q3], %q1;\n"
                     f"READY: bar.sync 0; and.b32 %t4, %i, 1023; {one}\n"
                     f"red.shared.add.{kind} [%q3], {value}; bar.sync 0;\n"
                     f"ld.shared.b{8 * size} %d0, [%q3];", shared=16)


def barriers():
    for op, kind in (("popc", "u32"), ("and", "pred"), ("or", "pred")):
        for source in ("pred", "mostly"):
            for sign in ("", "!"):
                for name in ("bar", "barrier"):
                    out = "%d0" if kind == "u32" else "%p0"
                    take = "" if kind == "u32" else "selp.u32 %d0, 1, 0, %p0;"
                    yield Kernel(f"{name}.red.{op}.{kind} {sign}{source}", (source,), (4,),
                                 f"{name}.red.{op}.{kind} {out}, 1, {sign}%pa; {take}")
    yield Kernel("bar.arrive and bar.sync of half the warps", ("b32",), (4,),
                 "mov.u64 %q3, area; mov.u32 %t3, %tid.x; mad.wide.u32 %q3, %t3, 4, %q3;"
                 "mov.u32 %d0, 0; and.b32 %t4, %t3, 32; setp.eq.u32 %p0, %t4, 0;\n@%p0 bra GIVE;\n"
                 "bar.sync 2, 256; ld.shared.b32 %d0, [%q3+-128]; bra END;\n"
                 "GIVE: st.shared.b32 [%q3], %a; membar.cta; bar.arrive 2, 256;\nEND:",
                 shared=1024)
    yield Kernel("bar.warp.sync", ("b32",), (4,),
                 "mov.u64 %q3, area; mov.u32 %t3, %tid.x; mad.wide.u32 %q3, %t3, 4, %q3;"
                 "st.shared.b32 [%q3], %a; bar.warp.sync 0xffffffff; xor.b32 %t4, %t3, 1;"
                 "mov.u64 %q4, area; mad.wide.u32 %q4, %t4, 4, %q4; ld.shared.b32 %d0, [%q4];",
                 shared=1024)


CALLED = """.func (.reg .b32 r) twice@@(.reg .b32 x) { add.u32 r, x, x; ret; }
.func (.reg .b32 r) square@@(.reg .b32 x) { mul.lo.u32 r, x, x; ret; }
.func (.param .b64 r) sum@@(.param .b64 x, .param .b32 y) { .reg .b64 %a<3>; .reg .b32 %b;
ld.param.b64 %a0, [x]; ld.param.b32 %b, [y]; cvt.u64.u32 %a1, %b; add.u64 %a2, %a0, %a1;
st.param.b64 [r], %a2; ret; }
"""


def control():
    yield Kernel("call of functions", ("b32", "b64"), (8, 4),
                 "{ .param .b64 r; .param .b64 x; .param .b32 y; st.param.b64 [x], %b;"
                 "st.param.b32 [y], %a; call.uni (r), sum@@, (x, y); ld.param.b64 %d0, [r]; }\n"
                 "setp.lt.u32 %p0, %a, 0x80000000; mov.u32 %d1, 7; @%p0 call (%d1), twice@@, (%a);"
                 "@!%p0 call (%d1), square@@, (%a);", module=CALLED)
    yield Kernel("call by address", ("b32",), (4,),
                 "mov.u64 %q0, twice@@; mov.u64 %q1, square@@; setp.lt.u32 %p0, %a, 0x80000000;"
                 "selp.b64 %q2, %q0, %q1, %p0;\n"
                 "proto: .callprototype (.reg .b32 _) _ (.reg .b32 _);\n"
                 "call (%d0), %q2, (%a), proto;", module=CALLED)
    yield Kernel("brx.idx", ("b32",), (4,),
                 "and.b32 %t3, %a, 3; mov.u32 %d0, 0;\n"
                 "labels: .branchtargets ZERO, ONE, TWO, THREE;\n"
                 "brx.idx %t3, labels;\nZERO: add.u32 %d0, %d0, 1; bra END;\n"
                 "ONE: add.u32 %d0, %a, %a;\nTWO: xor.b32 %d0, %d0, 0x55; bra END;\n"
                 "THREE: not.b32 %d0, %a;\nEND:")
    yield Kernel("bra in a loop of unlike lengths", ("b32",), (4,),
                 "and.b32 %t3, %a, 63; mov.u32 %d0, 1;\nLOOP: setp.eq.u32 %p0, %t3, 0;\n"
                 "@%p0 bra END; sub.u32 %t3, %t3, 1; mad.lo.u32 %d0, %d0, 31, %t3;"
                 "and.b32 %t4, %d0, 3; setp.ne.u32 %p1, %t4, 0; @%p1 bra LOOP;\n"
                 "add.u32 %d0, %d0, 17; bra.uni LOOP;\nEND:")
    for name in ("ret", "exit"):
        yield Kernel(f"{name} of some lanes", ("pred", "b32"), (4,),
                     f"mov.b32 %d0, %b; st.global.b32 [%out], %d0; @%pa {name}; not.b32 %d0, %b;")
    yield Kernel("stacksave, alloca, stackrestore", ("b32",), (4,),
                 "stacksave.u64 %q0; and.b32 %t3, %a, 15; "
                 "cvt.u64.u32 %q1, %t3; add.u64 %q1, %q1, 1;"
                 "shl.b64 %q1, %q1, 4; alloca.u64 %q2, %q1, 16; st.local.b32 [%q2+12], %a;"
                 "ld.local.b32 %d0, [%q2+12]; stackrestore.u64 %q0;")


def kernels():
    for part in (shuffles, votes, specials, moves, memory, atomics, crowds, barriers, control):
        yield from part()

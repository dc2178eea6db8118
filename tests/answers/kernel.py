"""One kernel: an instruction, where its operands come from, and how its results are compared."""

import dataclasses

import operands

HEADER = ".version 9.0\n.target sm_90\n.address_size 64\n"
PLACES = "abcefghi"


@dataclasses.dataclass(frozen=True)
class Kernel:
    """`body` reads %a, %b, ... (predicates %pa, %pb, ...) and writes %d0, %d1, ...

    It may use %p0..7 (predicates), %h0..7 (16 bits), %t0..15 (32), %q0..7 (64); %i is the thread's
    index in the grid, %lane the one in its warp, %own the address of 64 bytes of global memory that
    are its own.
    """

    name: str
    operands: tuple      # Kinds.
    results: tuple       # Bytes of each.
    body: str
    bound: tuple = ()    # ("relative", 2**-22) and the like: empty where PTX defines every bit.
    shared: int = 0      # Bytes of .shared memory `area`.
    count: int = operands.COUNT
    module: str = ""     # Text at the module's level; "@@" in names makes them this kernel's own.
    own: bool = False
    block: int = 256
    float_kind: str = "f32"  # Of the results, where there is a bound.
    setup: object = None  # The object that the host makes: see textures.py.
    any_nan: str = ""    # Results of this kind: PTX does not say which NaN they are.
    writes_array: bool = False  # The results are the texels of the object's array.

    @property
    def stride(self):
        """Bytes of one thread's results, the largest of which stand first."""
        widest = max(self.results)
        return (sum(self.results) + widest - 1) // widest * widest

    @property
    def memory_bytes(self):
        return 64 * self.count if self.own else 0


BITS = {2: "b16", 4: "b32", 8: "b64"}


def text_of(kernel, index):
    """The PTX of the kernel `k<index>`."""
    places = [(PLACES[i], kind) for i, kind in enumerate(kernel.operands)]
    lines = [f"// {kernel.name}", kernel.module,
             f".visible .entry k{index}(.param .u64 out, .param .u64 memory, "
             ".param .u64 object"
             + "".join(f", .param .u64 in_{place}" for place, _ in places) + ")", "{"]
    for letter, size in (("h", 2), ("t", 4), ("q", 8)):
        lines.append(f".reg .{BITS[size]} %{letter}<16>;")
    lines.append(".reg .pred %p<8>; .reg .b32 %i, %lane; .reg .b64 %base, %own, %out;")
    for place, kind in places:
        lines.append(f".reg .{BITS[operands.size_of(kind)]} %{place}; .reg .pred %p{place};")
    for i, size in enumerate(kernel.results):
        lines.append(f".reg .{BITS[size]} %d{i};")
    if kernel.shared:
        lines.append(f".shared .align 16 .b8 area[{kernel.shared}];")
    lines += ["mov.u32 %t0, %ctaid.x;", "mov.u32 %t1, %ntid.x;", "mov.u32 %t2, %tid.x;",
              "mad.lo.u32 %i, %t0, %t1, %t2;", "mov.u32 %lane, %laneid;"]
    if kernel.own:
        lines += ["ld.param.u64 %base, [memory];", "mad.wide.u32 %own, %i, 64, %base;"]
    for place, kind in places:
        size = operands.size_of(kind)
        lines += [f"ld.param.u64 %base, [in_{place}];", f"mad.wide.u32 %base, %i, {size}, %base;",
                  f"ld.global.{BITS[size]} %{place}, [%base];"]
        if kind in ("pred", "mostly"):
            lines.append(f"setp.ne.b32 %p{place}, %{place}, 0;")
    lines += ["ld.param.u64 %base, [out];", f"mad.wide.u32 %out, %i, {kernel.stride}, %base;",
              kernel.body.strip()]
    offset = 0
    for i, size in enumerate(() if kernel.writes_array else kernel.results):
        lines.append(f"st.global.{BITS[size]} [%out+{offset}], %d{i};")
        offset += size
    return ("\n".join(line for line in lines if line) + "\nret;\n}\n").replace("@@", str(index))

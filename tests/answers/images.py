"""The arrays, textures and surfaces that a kernel's setup asks for, made by the driver API."""

import ctypes
import dataclasses
import struct

import operands

FORMATS = {"u8": (0x01, 1), "u16": (0x02, 2), "u32": (0x03, 4), "s8": (0x08, 1), "s16": (0x09, 2),
           "s32": (0x0a, 4), "f16": (0x10, 2), "f32": (0x20, 4)}
LAYERED, SURFACE, CUBE, GATHER = 1, 2, 4, 8
READ_AS_INTEGER, NORMALIZED, SRGB = 1, 2, 16
HOST, ARRAY = 1, 3
ANY = ctypes.c_size_t


@dataclasses.dataclass(frozen=True)
class Setup:
    """An array or memory of texels, and how it is sampled; `object` texture, surface or both."""

    source: str = "array"        # array, mipmap, linear, pitch
    size: tuple = (16, 8, 0)     # As cuArray3DCreate has it: layers and faces are the depth.
    format: str = "f32"
    channels: int = 4
    array_flags: int = 0
    levels: int = 1
    surface: bool = False
    address: tuple = (1, 1, 1)   # 0 wrap, 1 clamp, 2 mirror, 3 border
    linear: bool = False
    mip_linear: bool = False
    flags: int = NORMALIZED
    bias: float = 0.0
    clamp: tuple = (0.0, 10.0)
    border: tuple = (0.25, 0.5, -1.0, 2.0)

    @property
    def texel_bytes(self):
        return FORMATS[self.format][1] * self.channels


class ArrayDescriptor(ctypes.Structure):
    _fields_ = [("width", ANY), ("height", ANY), ("depth", ANY), ("format", ctypes.c_int),
                ("channels", ctypes.c_uint), ("flags", ctypes.c_uint)]


class CopySide(ctypes.Structure):
    _fields_ = [("x", ANY), ("y", ANY), ("z", ANY), ("lod", ANY), ("type", ctypes.c_int),
                ("host", ctypes.c_void_p), ("device", ctypes.c_uint64), ("array", ctypes.c_void_p),
                ("reserved", ctypes.c_void_p), ("pitch", ANY), ("height", ANY)]


class Copy(ctypes.Structure):
    _fields_ = [("source", CopySide), ("target", CopySide), ("width_bytes", ANY), ("height", ANY),
                ("depth", ANY)]


class Linear(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("format", ctypes.c_int), ("channels", ctypes.c_uint),
                ("bytes", ANY)]


class Pitched(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("format", ctypes.c_int), ("channels", ctypes.c_uint),
                ("width", ANY), ("height", ANY), ("pitch", ANY)]


class Where(ctypes.Union):
    _fields_ = [("array", ctypes.c_void_p), ("linear", Linear), ("pitched", Pitched),
                ("reserved", ctypes.c_int * 32)]


class Resource(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("where", Where), ("flags", ctypes.c_uint)]


class Sampling(ctypes.Structure):
    _fields_ = [("address", ctypes.c_int * 3), ("filter", ctypes.c_int), ("flags", ctypes.c_uint),
                ("anisotropy", ctypes.c_uint), ("mip_filter", ctypes.c_int),
                ("bias", ctypes.c_float), ("low", ctypes.c_float), ("high", ctypes.c_float),
                ("border", ctypes.c_float * 4), ("reserved", ctypes.c_int * 12)]


def texels(form, size):
    """`size` bytes: any integers; floats are multiples of 1/64 between -4 and 4."""
    random = operands.Random(size * 31 + len(form))
    if form in ("f16", "f32"):
        letter, width = ("e", 2) if form == "f16" else ("f", 4)
        return struct.pack(f"<{size // width}{letter}",
                           *[(random.below(513) - 256) / 64 for _ in range(size // width)])
    return b"".join(random.next().to_bytes(8, "little") for _ in range(size // 8 + 1))[:size]


class Image:
    def __init__(self, card, setup):
        self.card, self.setup = card, setup
        self.array = self.mipmap = None
        self.memory = 0
        self.handle = 0
        resource = Resource()
        {"array": self.make_array, "mipmap": self.make_mipmap, "linear": self.make_linear,
         "pitch": self.make_pitch}[setup.source](resource)
        handle = ctypes.c_uint64()
        if setup.surface:
            card.call("cuSurfObjectCreate", ctypes.byref(handle), ctypes.byref(resource))
        else:
            sampling = Sampling((ctypes.c_int * 3)(*setup.address), int(setup.linear), setup.flags,
                                0, int(setup.mip_linear), setup.bias, *setup.clamp,
                                (ctypes.c_float * 4)(*setup.border))
            card.call("cuTexObjectCreate", ctypes.byref(handle), ctypes.byref(resource),
                      ctypes.byref(sampling), None)
        self.handle = handle.value

    def descriptor(self):
        return ArrayDescriptor(*self.setup.size, FORMATS[self.setup.format][0],
                               self.setup.channels, self.setup.array_flags)

    def extent(self, level=0):
        width, height, depth = self.setup.size
        kept = self.setup.array_flags & (LAYERED | CUBE)
        return (max(width >> level, 1), max(height >> level, 1),
                max(depth if kept else depth >> level, 1))

    def copy(self, array, level, data, into):
        width, height, depth = self.extent(level)
        row = width * self.setup.texel_bytes
        host = CopySide(type=HOST, host=ctypes.addressof(data), pitch=row, height=height)
        device = CopySide(type=ARRAY, array=array)
        copy = Copy(host, device, row, height, depth) if into else Copy(device, host, row, height,
                                                                        depth)
        self.card.call("cuMemcpy3D_v2", ctypes.byref(copy))

    def fill(self, array, level=0):
        width, height, depth = self.extent(level)
        size = width * height * depth * self.setup.texel_bytes
        data = ctypes.create_string_buffer(texels(self.setup.format, size), size)
        self.copy(array, level, data, into=True)

    def make_array(self, resource):
        self.array = ctypes.c_void_p()
        self.card.call("cuArray3DCreate_v2", ctypes.byref(self.array),
                       ctypes.byref(self.descriptor()))
        self.fill(self.array)
        resource.type, resource.where.array = 0, self.array

    def make_mipmap(self, resource):
        self.mipmap = ctypes.c_void_p()
        self.card.call("cuMipmappedArrayCreate", ctypes.byref(self.mipmap),
                       ctypes.byref(self.descriptor()), self.setup.levels)
        for level in range(self.setup.levels):
            array = ctypes.c_void_p()
            self.card.call("cuMipmappedArrayGetLevel", ctypes.byref(array), self.mipmap, level)
            self.fill(array, level)
        resource.type, resource.where.array = 1, self.mipmap

    def make_linear(self, resource):
        size = self.setup.size[0] * self.setup.texel_bytes
        self.memory = self.card.upload(texels(self.setup.format, size))
        resource.type = 2
        resource.where.linear = Linear(self.memory, FORMATS[self.setup.format][0],
                                       self.setup.channels, size)

    def make_pitch(self, resource):
        width, height, _ = self.setup.size
        pitch = 512
        self.memory = self.card.upload(texels(self.setup.format, pitch * height))
        resource.type = 3
        resource.where.pitched = Pitched(self.memory, FORMATS[self.setup.format][0],
                                         self.setup.channels, width, height, pitch)

    def download(self):
        width, height, depth = self.extent()
        data = ctypes.create_string_buffer(width * height * depth * self.setup.texel_bytes)
        self.copy(self.array, 0, data, into=False)
        return data.raw

    def close(self):
        self.card.call("cuSurfObjectDestroy" if self.setup.surface else "cuTexObjectDestroy",
                       ctypes.c_uint64(self.handle))
        if self.array:
            self.card.call("cuArrayDestroy", self.array)
        if self.mipmap:
            self.card.call("cuMipmappedArrayDestroy", self.mipmap)
        if self.memory:
            self.card.free(self.memory)

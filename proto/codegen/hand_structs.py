"""Reads the structures of proto/cuda/wire_hand.h, so that trace and fuzz grammar know their fields.

The header keeps to one member per line: `type name;`, `type name[N];`. Sizes and offsets found here
are asserted against the compiler's by the generated code.
"""

import re

SIZES = {"std::uint8_t": 1, "std::uint16_t": 2, "std::uint32_t": 4, "std::int32_t": 4,
         "float": 4, "std::uint64_t": 8}


class Structs:
    def __init__(self, text):
        text = re.sub(r"//[^\n]*", "", text)
        self.constants = {name: int(value) for name, value in
                          re.findall(r"constexpr std::uint32_t (\w+) = (\d+);", text)}
        self.enums = {name: base for name, base in
                      re.findall(r"enum class (\w+) : ([\w:]+)", text)}
        self.bodies = dict(re.findall(r"^struct (\w+) \{(.*?)^\};", text, flags=re.S | re.M))

    def fields(self, name):
        """(path, C++ scalar type, offset, size) of every scalar, nested ones included."""
        return self._walk(name)[0]

    def bytes(self, name):
        return self._walk(name)[1]

    def _walk(self, name):
        found, offset, widest = [], 0, 1
        for line in self.bodies[name].splitlines():
            match = re.match(r"\s*([\w:]+) (\w+)(?:\[(\w+)\])?(?: = [^;]*)?;", line)
            if not match:
                continue
            ctype, member, length = match.groups()
            count = self.constants.get(length) or int(length or 1)
            inner, size, align = self._type(ctype)
            offset += -offset % align
            widest = max(widest, align)
            for index in range(count):
                path = f"{member}[{index}]" if length else member
                for sub, scalar, at, width in inner:
                    found.append((f"{path}.{sub}" if sub else path, scalar, offset + at, width))
                offset += size
        return found, offset + -offset % widest, widest

    def _type(self, ctype):
        ctype = self.enums.get(ctype, ctype)
        if ctype in SIZES:
            size = SIZES[ctype]
            return [("", ctype, 0, size)], size, size
        fields, size, align = self._walk(ctype)
        return fields, size, align

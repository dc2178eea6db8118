"""Every opcode of the soft GPU's decoder has a kernel, or a reason why none can have one."""

import pathlib
import re

DECODER = (pathlib.Path(__file__).resolve().parents[2] /
           "host-daemon/softgpu/engine/decode/decoder.cc")
OPCODE = re.compile(r'\{"(\w+)",\s*\{?\s*&D::op_\w+')

# These have no result of their own, or one that depends on time.
WITHOUT_RESULT = {
    "prefetch": "a hint", "prefetchu": "a hint", "discard": "a hint", "applypriority": "a hint",
    "griddepcontrol": "a hint", "pmevent": "a hint", "createpolicy": "a hint",
    "setmaxnreg": "a hint", "nanosleep": "a hint",
    "trap": "ends the program", "brkpt": "ends the program",
}


def opcodes(text):
    return OPCODE.findall(text)


def not_asked(kernels):
    known = opcodes(DECODER.read_text(encoding="utf-8"))
    if len(known) < 100:
        return ["the decoder's table was not found"]
    asked = {word.partition(".")[0] for kernel in kernels
             for word in re.findall(r"[a-z][\w]*(?:\.[\w:]+)*", kernel.body + kernel.module)}
    return [name for name in known if name not in asked and name not in WITHOUT_RESULT]

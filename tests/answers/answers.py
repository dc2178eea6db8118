"""The kept answers: a file of xz, first a line of JSON, then what is kept of each kernel.

The line says which card, driver and generator the answers came from, and lists the kernels: a
print of the kernel's text and operands, and how its results are kept. "raw": all of them.
"groups": the first GROUP results and for each GROUP results an 8-byte hash, so that a difference
is found to within GROUP threads. "refused": the card's driver does not compile the kernel.
"""

import dataclasses
import hashlib
import json
import lzma
import pathlib
import zlib

import bounds
import kernel as kernels
import operands

GROUP = 32
HASH_BYTES = 8
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]


def print_of(kernel):
    """Changes with the kernel's text or operands: then the card must be asked again."""
    made = hashlib.sha256(kernels.text_of(kernel, 0).encode())
    made.update(repr((kernel.count, kernel.setup)).encode())
    for place, kind in enumerate(kernel.operands):
        made.update(operands.pool(kind, place))
    return made.hexdigest()[:16]


def group_hashes(data, stride):
    size = GROUP * stride
    return b"".join(hashlib.blake2b(data[at:at + size], digest_size=HASH_BYTES).digest()
                    for at in range(0, len(data), size))


@dataclasses.dataclass(frozen=True)
class Answer:
    kind: str
    print: str
    data: bytes

    def groups_that_differ(self, data, stride):
        if self.kind == "raw":
            size = GROUP * stride
            return [at // size for at in range(0, len(data), size)
                    if data[at:at + size] != self.data[at:at + size]]
        mine, kept = group_hashes(data, stride), self.data[GROUP * stride:]
        return [at // HASH_BYTES for at in range(0, len(mine), HASH_BYTES)
                if mine[at:at + HASH_BYTES] != kept[at:at + HASH_BYTES]]

    def result(self, thread, stride):
        """The bytes of one thread's results, or None where only the hash is kept."""
        if self.kind == "raw" or thread < GROUP:
            return self.data[thread * stride:(thread + 1) * stride]
        return None


def kept(kernel, data):
    """(kind, bytes) of what is kept."""
    data = bounds.with_one_nan(kernel, data)
    hashed = data[:GROUP * kernel.stride] + group_hashes(data, kernel.stride)
    whole = len(zlib.compress(data, 6))
    raw = kernel.bound or whole < len(hashed) or kernel.count <= GROUP
    return ("raw", data) if raw else ("groups", hashed)


def write(path, source, wanted, outcomes):
    listed, blobs = [], []
    for kernel in wanted:
        outcome = outcomes[kernel.name]
        kind, data = kept(kernel, outcome) if isinstance(outcome, bytes) else ("refused", b"")
        listed.append([kernel.name, print_of(kernel), kind, len(data)])
        blobs.append(data)
    head = json.dumps({"source": source, "kernels": listed}, separators=(",", ":"))
    with lzma.open(path, "wb", filters=FILTERS, format=lzma.FORMAT_XZ) as file:
        file.write(head.encode() + b"\n" + b"".join(blobs))


def read(path):
    """(source, {kernel's name: Answer})"""
    head, _, rest = lzma.decompress(pathlib.Path(path).read_bytes()).partition(b"\n")
    said = json.loads(head)
    found, at = {}, 0
    for name, printed, kind, size in said["kernels"]:
        found[name] = Answer(kind, printed, rest[at:at + size])
        at += size
    return said["source"], found

"""Named float32/int32 arrays in one small file; tests/golden/golden.h reads it from C.

"FSTGOLD1", u32 count, then per array: u32 name length, name, u32 type (0 float32, 1 int32), u32
number of dims, u32 dims[], zero bytes up to a multiple of 4, data.  Little-endian.
"""
import struct

import numpy as np


def write(path, arrays):
    out = bytearray(b"FSTGOLD1" + struct.pack("<I", len(arrays)))
    for name, a in arrays.items():
        a = np.asarray(a)
        ints = a.dtype.kind in "iub"
        a = a.astype("<i4" if ints else "<f4")
        out += struct.pack("<I", len(name)) + name.encode()
        out += struct.pack(f"<II{a.ndim}I", int(ints), a.ndim, *a.shape)
        out += b"\0" * (-len(out) % 4) + a.tobytes()
    with open(path, "wb") as f:
        f.write(out)


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    assert data[:8] == b"FSTGOLD1", path
    (count,), at, out = struct.unpack_from("<I", data, 8), 12, {}
    for _ in range(count):
        (n,) = struct.unpack_from("<I", data, at)
        name = data[at + 4 : at + 4 + n].decode()
        ints, ndim = struct.unpack_from("<II", data, at + 4 + n)
        shape = struct.unpack_from(f"<{ndim}I", data, at + 12 + n)
        at += 12 + n + 4 * ndim
        at += -at % 4
        size = int(np.prod(shape)) * 4
        out[name] = np.frombuffer(data[at : at + size], "<i4" if ints else "<f4").reshape(shape)
        at += size
    return out

#!/usr/bin/env python3
"""A copy of a checkpoint whose BF16 tensors are stored in another type, for what GPUs do with it.

    retype_checkpoint.py FROM TO F16|F32 [ENDING...]

ENDINGs are those of the names of the tensors to be changed; without any it is all of BF16. The numbers stay what
they are, but for those below the smallest normal number of half precision, which are rounded.
"""
import array
import json
import pathlib
import shutil
import struct
import sys


def retyped(data, to):
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    if to == "F32":
        return bytes(wide)
    values = array.array("f", wide)
    return struct.pack(f"<{len(values)}e", *values)


def rewrite(source, target, to, endings):
    file = source.read_bytes()
    begin = 8 + int.from_bytes(file[:8], "little")
    header, out, changed = json.loads(file[8:begin]), {}, 0
    parts, at = [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            out[name] = tensor
            continue
        first, last = tensor["data_offsets"]
        data, dtype = file[begin + first : begin + last], tensor["dtype"]
        if dtype == "BF16" and (not endings or name.endswith(endings)):
            data, dtype = retyped(data, to), to
            changed += 1
        out[name] = {"dtype": dtype, "shape": tensor["shape"], "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    return changed


def main():
    if len(sys.argv) < 4 or sys.argv[3] not in ("F16", "F32"):
        sys.exit(__doc__)
    source, target, to = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    target.mkdir()
    changed = 0
    for file in sorted(source.iterdir()):
        if file.suffix == ".safetensors":
            changed += rewrite(file, target / file.name, to, tuple(sys.argv[4:]))
        else:
            shutil.copy(file, target / file.name)
    if not changed:
        sys.exit(f"retype_checkpoint.py: no tensor of {source} was changed")
    print(f"{changed} tensors are {to} now")


main()

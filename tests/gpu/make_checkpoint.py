#!/usr/bin/env python3
"""Writes a checkpoint with the names, shapes, dtypes and files of Qwen3.6-35B-A3B and random contents: NVFP4 (23 GB) or block
FP8 (37 GB), to measure and to check at full size where the published one is not at hand. Needs numpy only.

  make_checkpoint.py DIR                                         NVFP4, full size
  make_checkpoint.py DIR --format fp8                            block FP8, full size
  make_checkpoint.py DIR --layers 4 --experts 8 --vocab 4096     the same model cut small, for a CPU
  make_checkpoint.py DIR --names-only                            headers without data (sparse files), to look at names
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import shutil
import struct
import sys
import time

import numpy as np

from checkpoint_contents import Contents
from checkpoint_files import write_files
from checkpoint_tensors import Geometry, Inventory, shards_of

PIECE_ROWS = 8192      # rows of a large tensor that are drawn from one random stream
JOB_BYTES = 32 << 20   # written at once by one process


def header_of(tensors):
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for t in tensors:
        entries[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [at, at + t.bytes]}
        at += t.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def jobs_of(path, tensors, start):
    """(file, offset, [(tensor, piece, bytes), ...]): consecutive bytes of one file, about JOB_BYTES of them."""
    jobs, parts, offset, size = [], [], start, 0
    for t in tensors:
        rows = t.elements // t.shape[-1] if len(t.shape) > 1 else 1
        row_bytes = t.bytes // max(rows, 1)
        for piece in range(0, rows, PIECE_ROWS):
            n = min(PIECE_ROWS, rows - piece) * row_bytes
            if parts and size + n > JOB_BYTES:
                jobs.append((path, offset, parts))
                parts, offset, size = [], offset + size, 0
            parts.append((t, piece // PIECE_ROWS, n))
            size += n
    if parts:
        jobs.append((path, offset, parts))
    return jobs


contents = None  # made before the workers are forked, so that all share its tables
room = np.empty(0, np.uint8)  # of this worker, kept from job to job


def write_job(job):
    global room
    path, offset, parts = job
    size, at = sum(n for _, _, n in parts), 0
    if len(room) < size:
        room = np.empty(max(size, JOB_BYTES), np.uint8)
    buffer = room[:size]
    for tensor, piece, n in parts:
        out = buffer[at:at + n]
        if at % 8:
            out = np.empty(n, np.uint8)  # whole words are written; a scalar before this tensor moved it off their grid
        contents.fill(tensor, piece, out)
        if at % 8:
            buffer[at:at + n] = out
        at += n
    with open(path, "r+b", buffering=0) as file:
        view, done = memoryview(buffer), 0
        while done < at:
            done += os.pwrite(file.fileno(), view[done:], offset + done)
    return at


def write_tensors(directory, shards, names_only, processes):
    jobs, weight_map, total = {}, {}, 0
    for name, tensors in shards.items():
        header, size = header_of(tensors)
        with open(directory / name, "wb") as file:
            file.write(header)
            file.truncate(len(header) + size)
        weight_map.update({t.name: name for t in tensors})
        total += size
        jobs[name] = jobs_of(directory / name, tensors, len(header))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    if names_only:
        return total
    # In turn from each file, so that the processes do not all wait for one file's lock.
    order = [j for turn in range(max(map(len, jobs.values()))) for j in (q[turn] for q in jobs.values() if turn < len(q))]
    began, done, said = time.monotonic(), 0, 0
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        for n in pool.imap_unordered(write_job, order):
            done += n
            if done * 10 // total > said:
                said, seconds = done * 10 // total, time.monotonic() - began
                print(f"  {100 * done / total:3.0f}%  {done / 1e9:6.2f} GB  {seconds:6.1f} s  {done / 1e9 / seconds:5.2f} GB/s",
                      file=sys.stderr, flush=True)
    return total


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory", type=pathlib.Path)
    p.add_argument("--format", choices=["nvfp4", "fp8"], default="nvfp4")
    p.add_argument("--layers", type=int, default=40, help="the first N layers (every fourth is attention)")
    p.add_argument("--experts", type=int, default=256)
    p.add_argument("--vocab", type=int, default=248320, help="rows of embedding and head, at least 1024, a multiple of 16")
    p.add_argument("--vision-depth", type=int, default=27, help="blocks of the vision tower, which is never run")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--names-only", action="store_true", help="sparse files: every tensor reads as zeros")
    p.add_argument("--processes", type=int, default=0, help="0: as many as cores")
    p.add_argument("--overwrite", action="store_true", help="replace the checkpoint in DIR")
    a = p.parse_args()
    if a.layers < 1 or a.experts < 1 or a.vision_depth < 1 or a.vocab < 1024 or a.vocab % 16:
        p.error("--layers, --experts and --vision-depth are at least 1, --vocab at least 1024 and a multiple of 16")
    geometry = Geometry(a.layers, a.experts, a.vocab, a.vision_depth)
    tensors = Inventory(a.format, geometry).tensors
    need = sum(t.bytes for t in tensors)

    a.directory.mkdir(parents=True, exist_ok=True)
    old = list(a.directory.iterdir())
    if old and not a.overwrite:
        p.error(f"{a.directory} is not empty; --overwrite replaces the checkpoint in it")
    for file in old:
        if file.suffix in (".safetensors", ".json", ".jinja"):
            file.unlink()
    free = shutil.disk_usage(a.directory).free
    if not a.names_only and free < need + (256 << 20):
        sys.exit(f"make_checkpoint: {need / 1e9:.1f} GB are needed in {a.directory}, {free / 1e9:.1f} GB are free")

    began = time.monotonic()
    global contents
    if not a.names_only:
        contents = Contents(a.seed)
        for t in tensors:
            if t.kind == "bf16":
                contents.pools.bf16_blocks(t.spread)
    write_files(a.directory, a.format, geometry, a.seed)
    total = write_tensors(a.directory, shards_of(a.format, tensors), a.names_only, a.processes or os.cpu_count())
    print(f"{a.directory}: {a.format}, {len(tensors)} tensors, {total} bytes, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main()

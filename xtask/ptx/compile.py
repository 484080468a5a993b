"""Compiles CUDA C to PTX with NVRTC: compile.py LIBRARY SOURCE > PTX."""

import ctypes
import pathlib
import sys

# The least compute capability that the PTX runs on.
OPTIONS = [
    "--gpu-architecture=compute_70",
    "--std=c++17",
    # Every rounding is that of the host: what is fused says so.
    "--fmad=false",
]


def main(library, source):
    nvrtc = ctypes.CDLL(library)
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    source = pathlib.Path(source)
    options = [option.encode() for option in [*OPTIONS, f"--include-path={source.parent}"]]
    program = ctypes.c_void_p()

    def check(code):
        if code:
            sys.exit(f"NVRTC: {nvrtc.nvrtcGetErrorString(code).decode()}")

    def text(size_of, fill):
        size = ctypes.c_size_t()
        check(size_of(program, ctypes.byref(size)))
        room = ctypes.create_string_buffer(size.value)
        check(fill(program, room))
        return room.value.decode()

    check(nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None))
    compiled = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options))
    log = text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
    if log.strip():
        print(log, file=sys.stderr)
    check(compiled)
    print(text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX), end="")


main(*sys.argv[1:])

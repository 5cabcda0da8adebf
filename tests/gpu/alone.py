"""Kernels of this tree alone on a Hopper GPU: compiled by nvcc, launched through the driver. Needs nvcc and PyTorch."""
import ctypes
import hashlib
import pathlib
import subprocess
import sys
import tempfile

import torch

KERNELS = pathlib.Path(__file__).resolve().parents[2] / "kernels/gpu"
SHARED_BYTES_ATTRIBUTE = 8
CHAINED_ATTRIBUTE = 6
MOST_SHARED = 232448

driver = ctypes.CDLL("libcuda.so.1")
folder = tempfile.TemporaryDirectory()
loaded = {}


def call(name, *args):
    status = getattr(driver, name)(*args)
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        sys.exit(f"{name}: {(text.value or b'unknown').decode()}")


def compiled(kernel, defines, tree=KERNELS):
    """The cubin of a kernel's file under its definitions."""
    of = hashlib.sha256(f"{kernel} {tree} {defines}".encode()).hexdigest()
    image = pathlib.Path(folder.name) / f"{of}.cubin"
    if not image.exists():
        includes = [f"-I{tree}/cuda/include", f"-I{tree}/shared"]
        source = f"{tree}/cuda/ops/{kernel}.cu"
        options = ["-arch=sm_90a", "-cubin", "-std=c++17", *includes, *(f"-D{define}" for define in defines)]
        subprocess.run(["nvcc", *options, source, "-o", image], check=True)
    return image


def function(kernel, defines, tree=KERNELS):
    """The kernel of that name in its file, with all of the shared memory."""
    image = compiled(kernel, defines, tree)
    if image not in loaded:
        module, made = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoad", ctypes.byref(module), str(image).encode())
        call("cuModuleGetFunction", ctypes.byref(made), module, kernel.encode())
        call("cuFuncSetAttribute", made, SHARED_BYTES_ATTRIBUTE, MOST_SHARED)
        loaded[image] = made
    return loaded[image]


class Attribute(ctypes.Structure):
    _fields_ = [("which", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


def launch(made, grid, threads, shared, params, chained=False):
    """Whole numbers are words, tensors addresses, None a null address. `chained`: it may start while its predecessor
    ends."""
    values = []
    for param in params:
        if param is None or isinstance(param, torch.Tensor):
            values.append(ctypes.c_uint64(0 if param is None else param.data_ptr()))
        elif isinstance(param, float):
            values.append(ctypes.c_float(param))
        else:
            values.append(ctypes.c_uint32(param & 0xFFFFFFFF) if isinstance(param, int) else param)
    addresses = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
    attribute = Attribute(CHAINED_ATTRIBUTE, 0, (ctypes.c_int * 16)(int(chained)))
    stream = torch.cuda.current_stream().cuda_stream
    config = Config(grid, (threads, 1, 1), shared, stream, ctypes.addressof(attribute), 1)
    call("cuLaunchKernelEx", ctypes.byref(config), made, addresses, None)

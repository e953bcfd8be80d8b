"""Cards that are not there, as they are described to cuDNN, and what its libraries ask of a driver that is not there."""

from __future__ import annotations

from typing import Any

__all__ = ["CARDS", "DESCRIPTION", "FUNCTIONS", "NO_DEVICE"]

NO_DEVICE = 100  # what each of the functions returns
FUNCTIONS = (
    "cuInit", "cuCtxGetCurrent", "cuCtxGetLimit", "cuCtxPushCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent",
    "cuCtxPopCurrent_v2", "cuDeviceGet", "cuDeviceGetCount", "cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction",
    "cuLibraryLoadData", "cuLibraryLoadFromFile", "cuLibraryUnload", "cuLibraryGetKernel", "cuKernelGetAttribute",
    "cuKernelSetAttribute", "cuKernelGetFunction", "cuLinkCreate", "cuLinkCreate_v2", "cuLinkAddData", "cuLinkAddData_v2",
    "cuLinkComplete", "cuLinkDestroy", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel",
    "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuStreamGetCtx", "cuStreamGetCtx_v2",
    "cuOccupancyMaxPotentialClusterSize",
)  # fmt: skip

# Of an H100; what other cards have otherwise is below.
DESCRIPTION: dict[str, Any] = {
    "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000, "deviceName": "H100", "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "multiProcessorCount": 132, "smCountOrigin": 0, "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024,
    "oversizedSharedMemoryPerBlock": 0, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "totalGlobalMem": 85028765696,
    "smClockRateKHz": 1980000, "memClockRateKHz": 2619000, "memoryBusWidth": 5120, "l2CacheSize": 52428800,
}  # fmt: skip
CARDS: dict[str, dict[str, Any]] = {
    "H100": {}, "A100": {"deviceVer": 800, "multiProcessorCount": 108, "maxSharedMemoryPerBlockOptin": 166912},
    "T4": {"deviceVer": 750, "multiProcessorCount": 40, "maxSharedMemoryPerBlockOptin": 65536},
    "B200": {"deviceVer": 1000, "multiProcessorCount": 148},
    "A10": {"deviceVer": 860, "multiProcessorCount": 72, "maxSharedMemoryPerBlockOptin": 101376},
    "L4": {"deviceVer": 890, "multiProcessorCount": 58, "maxSharedMemoryPerBlockOptin": 101376},
    "RTX 5090": {"deviceVer": 1200, "multiProcessorCount": 170, "maxSharedMemoryPerBlockOptin": 101376},
}  # fmt: skip

#!/usr/bin/env python3
"""Promises of the real table: all rows named, numbers append-only, classes where they must be."""

import collections
import pathlib
import re
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import emit_common
import layout
import table

DIRECTORY = HERE.parent.parent / "cuda" / "driver_api"

# What every nvcc-built program may call: none of it may be refused by the table.
TIER_1 = """
cuInit cuDriverGetVersion cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetUuid
cuDeviceGetUuid_v2 cuDeviceGetLuid cuDeviceTotalMem_v2 cuDeviceGetAttribute cuDeviceGetProperties
cuDeviceComputeCapability cuDeviceGetByPCIBusId cuDeviceGetPCIBusId cuDeviceCanAccessPeer
cuDeviceGetP2PAttribute cuDeviceGetTexture1DLinearMaxWidth cuDevicePrimaryCtxRetain
cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxSetFlags
cuDevicePrimaryCtxSetFlags_v2 cuDevicePrimaryCtxGetState cuDevicePrimaryCtxReset
cuDevicePrimaryCtxReset_v2 cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy
cuCtxDestroy_v2 cuCtxPushCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent cuCtxPopCurrent_v2
cuCtxSetCurrent cuCtxGetCurrent cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetFlags cuCtxSetFlags
cuCtxSynchronize cuCtxSynchronize_v2 cuCtxSetLimit cuCtxGetLimit cuCtxGetCacheConfig
cuCtxSetCacheConfig cuCtxGetSharedMemConfig cuCtxSetSharedMemConfig cuCtxGetApiVersion
cuCtxGetStreamPriorityRange cuCtxResetPersistingL2Cache cuCtxAttach cuCtxDetach cuCtxGetId
cuGetProcAddress cuGetProcAddress_v2 cuGetExportTable cuGetErrorString cuGetErrorName
cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuModuleUnload
cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleGetLoadingMode cuModuleGetFunctionCount
cuModuleEnumerateFunctions cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload
cuLibraryGetKernel cuLibraryGetModule cuLibraryGetKernelCount cuLibraryEnumerateKernels
cuLibraryGetGlobal cuLibraryGetManaged cuKernelGetFunction cuKernelGetLibrary cuKernelGetAttribute
cuKernelSetAttribute cuKernelSetCacheConfig cuKernelGetName cuKernelGetParamInfo cuFuncGetAttribute
cuFuncSetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig cuFuncGetModule cuFuncGetName
cuFuncGetParamInfo cuFuncIsLoaded cuFuncLoad cuLinkCreate cuLinkCreate_v2 cuLinkAddData
cuLinkAddData_v2 cuLinkAddFile cuLinkAddFile_v2 cuLinkComplete cuLinkDestroy
cuMemGetInfo_v2 cuMemAlloc_v2 cuMemAllocPitch_v2 cuMemFree_v2 cuMemGetAddressRange_v2
cuMemAllocHost_v2 cuMemFreeHost cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemHostGetFlags
cuMemHostRegister cuMemHostRegister_v2 cuMemHostUnregister cuMemAllocManaged cuPointerGetAttribute
cuPointerGetAttributes cuPointerSetAttribute cuMemAdvise cuMemAdvise_v2 cuMemPrefetchAsync
cuMemPrefetchAsync_v2 cuMemRangeGetAttribute cuMemRangeGetAttributes
cuMemcpy cuMemcpyAsync cuMemcpyPeer cuMemcpyPeerAsync cuMemcpyHtoD_v2 cuMemcpyDtoH_v2
cuMemcpyDtoD_v2 cuMemcpyDtoA_v2 cuMemcpyAtoD_v2 cuMemcpyHtoA_v2 cuMemcpyAtoH_v2 cuMemcpyAtoA_v2
cuMemcpyHtoAAsync_v2 cuMemcpyAtoHAsync_v2 cuMemcpy2D_v2 cuMemcpy2DUnaligned_v2 cuMemcpy3D_v2
cuMemcpy3DPeer cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpy2DAsync_v2
cuMemcpy3DAsync_v2 cuMemcpy3DPeerAsync cuMemsetD8_v2 cuMemsetD16_v2 cuMemsetD32_v2 cuMemsetD2D8_v2
cuMemsetD2D16_v2 cuMemsetD2D32_v2 cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async
cuMemsetD2D8Async cuMemsetD2D16Async cuMemsetD2D32Async
cuArrayCreate_v2 cuArrayGetDescriptor_v2 cuArrayDestroy cuArray3DCreate_v2
cuArray3DGetDescriptor_v2 cuMipmappedArrayCreate cuMipmappedArrayGetLevel cuMipmappedArrayDestroy
cuTexObjectCreate cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetTextureDesc
cuTexObjectGetResourceViewDesc cuSurfObjectCreate cuSurfObjectDestroy cuSurfObjectGetResourceDesc
cuStreamCreate cuStreamCreateWithPriority cuStreamGetPriority cuStreamGetFlags cuStreamGetId
cuStreamGetDevice cuStreamGetCtx cuStreamGetCtx_v2 cuStreamDestroy cuStreamDestroy_v2
cuStreamWaitEvent cuStreamAddCallback cuStreamAttachMemAsync cuStreamQuery cuStreamSynchronize
cuStreamCopyAttributes cuStreamGetAttribute cuStreamSetAttribute cuEventCreate cuEventRecord
cuEventRecordWithFlags cuEventQuery cuEventSynchronize cuEventDestroy cuEventDestroy_v2
cuEventElapsedTime cuEventElapsedTime_v2 cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel
cuLaunchHostFunc cuOccupancyMaxActiveBlocksPerMultiprocessor
cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxPotentialBlockSize
cuOccupancyMaxPotentialBlockSizeWithFlags cuOccupancyAvailableDynamicSMemPerBlock
cuOccupancyMaxPotentialClusterSize cuOccupancyMaxActiveClusters
cuProfilerInitialize cuProfilerStart cuProfilerStop
""".split()


class Table(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.calls = table.load(DIRECTORY)
        cls.by_symbol = {call.symbol: call for call in cls.calls}

    def test_all_673_rows_of_cuda_13_are_named(self):
        rows = [row for call in self.calls for row in call.rows]
        self.assertEqual(len(rows), 673)
        self.assertEqual(len({(row.name, row.version, row.stream) for row in rows}), 673)
        self.assertEqual(len({row.symbol for row in rows}), 673)
        self.assertEqual(len({row.name for row in rows}), 479)
        self.assertEqual(collections.Counter(row.stream for row in rows),
                         {"": 574, "ptsz": 78, "ptds": 21})

    def test_symbols_follow_from_rank(self):
        """The k-th version of a name is exported as name, name_v2, name_v3, ..."""
        versions = collections.defaultdict(list)
        for call in self.calls:
            versions[call.rows[0].name].append((call.rows[0].version, call.symbol))
        for name, pairs in versions.items():
            for rank, (_, symbol) in enumerate(sorted(pairs), 1):
                self.assertEqual(symbol, name if rank == 1 else f"{name}_v{rank}")

    def test_numbers_are_append_only(self):
        locked = []
        for line in (DIRECTORY / "numbers.lock").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                number, symbol = line.split()
                locked.append((int(number), symbol))
        self.assertEqual([n for n, _ in locked], sorted({n for n, _ in locked}))
        numbers = {call.number: call.symbol for call in self.calls}
        for number, symbol in locked:
            self.assertIn(numbers.get(number, symbol), (symbol,),
                          f"number {number} was {symbol}'s and may not be given to another call")
        unlocked = [call.symbol for call in self.calls if (call.number, call.symbol) not in locked]
        self.assertEqual(unlocked, [], "append new calls to numbers.lock")

    def test_every_kind_of_handle_is_described_as_the_header_numbers_it(self):
        text = (DIRECTORY.parent / "handle_kinds.h").read_text(encoding="utf-8")
        numbers = {name: int(number) for name, number in re.findall(r"(k\w+) = (\d+)", text)}
        self.assertEqual(set(self.calls.kinds), set(table.HANDLE_KINDS))
        for kind in self.calls.kinds.values():
            name = emit_common.enum_kind(kind.name).partition("::")[2]
            self.assertEqual(kind.number, numbers[name], kind.name)

    def test_tier_1_is_not_refused(self):
        for symbol in TIER_1:
            call = self.by_symbol[symbol]
            target = self.by_symbol[call.same_as] if call.same_as else call
            self.assertNotEqual(target.cls, "refused", symbol)

    def test_same_as_has_the_same_signature(self):
        for call in self.calls:
            if call.same_as:
                target = self.by_symbol[call.same_as]
                self.assertEqual([p.ctype for p in call.params], [p.ctype for p in target.params],
                                 call.symbol)
                self.assertEqual(call.twin, target.twin, call.symbol)

    def test_via_appends_the_stream(self):
        for call in self.calls:
            if call.via:
                target = self.by_symbol[call.via]
                types = [p.ctype for p in call.params] + ["CUstream"]
                self.assertEqual(types, [p.ctype for p in target.params], call.symbol)
                self.assertEqual(call.twin, "ptds", call.symbol)

    def test_objects_that_are_created_can_be_destroyed_or_follow_their_owner(self):
        made = {c.effect_kind for c in self.calls if c.effect == "creates" and c.cls != "refused"}
        gone = {c.effect_kind for c in self.calls if c.effect == "destroys" and c.cls != "refused"}
        # Kernels, functions and globals end with their module; user objects by their count.
        self.assertEqual(made - gone, {"kernel", "function", "global", "user_object"})

    def test_created_objects_have_a_migration_rule(self):
        for call in self.calls:
            if call.effect in ("creates", "configures", "destroys") and call.cls != "refused":
                self.assertNotEqual(call.migration, "none", call.symbol)

    def test_blocking_calls_are_never_asynchronous(self):
        for call in self.calls:
            if "blocking" in call.flags:
                self.assertIn(call.cls, ("sync", "bulk"), call.symbol)

    def test_replies_fit_a_reply_page(self):
        for call in self.calls:
            if call.forwarded:
                self.assertLessEqual(layout.layout_of(call).reply_bytes, 4032, call.symbol)


if __name__ == "__main__":
    unittest.main()

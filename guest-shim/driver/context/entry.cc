// cuInit, versions, entry-point lookup, export tables, and calls that are refused by name.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/code/code.h"
#include "guest-shim/driver/context/own_table.h"
#include "guest-shim/driver/core/objects.h"
#include "guest-shim/session/base/report.h"
#include "guest-shim/session/base/trace.h"
#include "guest-shim/session/profile.h"
#include "proto/cuda/dark/dark.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_table.h"
#include "proto/cuda/gen/opcodes.h"
#include "proto/cuda/gen/proc_table.h"
#include "proto/cuda/gen/trace.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::session {

std::uint64_t table_hash() noexcept { return cuda::kTableHash; }

}  // namespace gantry::session

namespace gantry::shim {
namespace {

// The driver API that this library implements. Asked before cuInit and part of the runtime's
// start-up digest, so it cannot depend on what a worker says, nor change with a migration.
constexpr std::uint32_t kDriverVersion = 13000;

std::uint32_t answered_driver_version() { return kDriverVersion; }

int dark_device_count() { return static_cast<int>(session::device_count()); }

int dark_identity(int ordinal, dark::DeviceIdentity* out) {
    const wire::DeviceFacts* facts = session::device_facts(ordinal);
    GANTRY_REFUSE_IF(facts == nullptr, CUDA_ERROR_INVALID_DEVICE);
    std::memcpy(out->uuid, facts->uuid, sizeof(out->uuid));
    out->pci_domain = facts->attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID];
    out->pci_bus = facts->attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID];
    out->pci_device = facts->attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID];
    return CUDA_SUCCESS;
}

int dark_primary_context(void** context, int ordinal) {
    GANTRY_REFUSE_IF(context == nullptr || session::device_facts(ordinal) == nullptr,
                     CUDA_ERROR_INVALID_DEVICE);
    *context = reinterpret_cast<void*>(primary_context(ordinal)->handle);
    return CUDA_SUCCESS;
}

int dark_current_context(void** context) {
    *context = reinterpret_cast<void*>(session::current_context());
    return CUDA_SUCCESS;
}

int dark_load_module(void** module, const void* image) {
    return cuda_impl::cuModuleLoadData(reinterpret_cast<CUmodule*>(module), image);
}

int dark_create_context(void** context, unsigned flags, int ordinal) {
    return cuda_impl::cuCtxCreate_v2(reinterpret_cast<CUcontext*>(context), flags, ordinal);
}

const void* dark_own_table(const std::uint8_t* wanted) {
    static constexpr OwnTable kTable = {
        sizeof(OwnTable),   session::programs,    session::end,      session::push_range,
        session::pop_range, session::start_range, session::end_range};
    return std::memcmp(wanted, kOwnTableId, sizeof(kOwnTableId)) == 0 ? &kTable : nullptr;
}

const char* name_of_command(std::uint16_t op) {
    constexpr const char* kControl[] = {
        "invalid",       "pad",          "hello",        "device_facts",  "confirm",
        "stage_image",   "drop_image",   "write_device", "read_device",   "wait_callback",
        "callback_done", "drain_output", "goodbye",      "look_at_event", "write_from_bulk",
        "read_to_bulk",  "look_at_bulk", "find_memory",  "profile"};
    if (op >= cuda::kFirstOp) {
        return cuda::op_info(static_cast<cuda::Op>(op)).name;
    }
    return op < sizeof(kControl) / sizeof(kControl[0]) ? kControl[op] : "unknown";
}

int format_command(char* out, std::size_t capacity, std::uint16_t op, const void* args,
                   std::size_t bytes) {
    if (op >= cuda::kFirstOp) {
        return cuda::trace_format(out, capacity, static_cast<cuda::Op>(op), args, bytes);
    }
    return std::snprintf(out, capacity, "%s", name_of_command(op));
}

/// The tables' component gets its callbacks before anyone can ask for a table.
__attribute__((constructor)) void configure_tables() {
    dark::Callbacks callbacks{};
    callbacks.driver_version = answered_driver_version;
    callbacks.device_count = dark_device_count;
    callbacks.device_identity = dark_identity;
    callbacks.primary_context = dark_primary_context;
    callbacks.current_context = dark_current_context;
    callbacks.load_module = dark_load_module;
    callbacks.visit_functions = visit_functions;
    callbacks.create_context = dark_create_context;
    callbacks.own_table = dark_own_table;
    dark::configure(callbacks);
    session::set_trace_format(format_command);
    session::set_name_of_command(name_of_command);
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::cuda_impl {

CUresult refused(cuda::Op) noexcept {  // leave() counts it by name.
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuInit(unsigned int Flags) noexcept {
    GANTRY_REFUSE_IF(Flags != 0, CUDA_ERROR_INVALID_VALUE);
    return session::start();
}

CUresult cuDriverGetVersion(int* driverVersion) noexcept {
    GANTRY_REFUSE_IF(driverVersion == nullptr, CUDA_ERROR_INVALID_VALUE);
    *driverVersion = static_cast<int>(shim::answered_driver_version());
    return CUDA_SUCCESS;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int driverVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolFound) noexcept {
    cuda::ProcStatus status = cuda::ProcStatus::kFound;
    const int result = cuda::get_proc_address(symbol, pfn, driverVersion, flags, &status,
                                              static_cast<int>(shim::answered_driver_version()));
    if (result == CUDA_SUCCESS && symbolFound != nullptr) {
        *symbolFound = static_cast<CUdriverProcAddressQueryResult>(status);
    }
    return static_cast<CUresult>(result);
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int driverVersion,
                          cuuint64_t flags) noexcept {
    // This ABI has no fifth argument: nothing may be read or written there. Whoever asked by it
    // for cuGetProcAddress expects the same ABI back.
    return static_cast<CUresult>(cuda::get_proc_address_v1(
        symbol, pfn, driverVersion, flags, static_cast<int>(shim::answered_driver_version())));
}

CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) noexcept {
    return static_cast<CUresult>(dark::get_export_table(ppExportTable, pExportTableId));
}

CUresult cuProfilerInitialize(const char*, const char*, CUoutput_mode) noexcept {
    return CUDA_ERROR_NOT_SUPPORTED;  // Documented to be the one answer since CUDA 12.0.
}

CUresult cuProfilerStart() noexcept { return CUDA_SUCCESS; }

CUresult cuProfilerStop() noexcept {
    session::write_report();
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl

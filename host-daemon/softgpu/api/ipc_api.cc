// Memory and events between processes that use this driver: a handle names a file of its giver's
// process (the arena, or the page of its events), which the taker opens under /proc. So both must
// be of one user, as with a card.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "host-daemon/softgpu/core/context.h"
#include "host-daemon/softgpu/core/errors.h"
#include "host-daemon/softgpu/core/peer_process.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/engine/reach.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/memory/map.h"
#include "host-daemon/softgpu/streams/event.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/gen/impl.h"

namespace gantry::cuda_impl {
namespace {

using softgpu::Event;
using softgpu::MemoryKind;
using softgpu::MemoryMap;
using softgpu::MemoryRange;
using softgpu::Scheduler;
using softgpu::SharedEvent;

constexpr std::uint64_t kIpcMagic = 0x4950'4354'464f'5347;  // "GSOFTCPI"

struct IpcHandle {
    std::uint64_t magic = kIpcMagic;
    std::uint64_t started = 0;  ///< Tells the process from a later one of its number.
    std::int32_t process = 0;
    std::int32_t file = -1;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t reserved[3] = {};
};
static_assert(sizeof(IpcHandle) == sizeof(CUipcMemHandle_v1));

struct OpenedMemory {
    IpcHandle handle;
    void* mapped = nullptr;
    std::uint64_t mapped_bytes = 0;
    unsigned uses = 0;
};

struct OpenedBook {
    std::mutex mutex;
    std::map<std::uint64_t, OpenedMemory> opened;  ///< By the address given out.
};

OpenedBook& opened_book() {
    static auto* book = new OpenedBook;
    return *book;
}

bool is_sound(const IpcHandle& handle) {
    return handle.magic == kIpcMagic && handle.process > 0 && handle.file >= 0 &&
           handle.address >= softgpu::kArenaBase && handle.bytes != 0 &&
           handle.bytes <= softgpu::kArenaBytes &&
           handle.address - softgpu::kArenaBase <= softgpu::kArenaBytes - handle.bytes;
}

/// Maps the pages that the allocation lies in.
bool map_opened(OpenedMemory* memory) {
    const IpcHandle& handle = memory->handle;
    const int file = softgpu::open_peer_file(handle.process, handle.started, handle.file,
                                             softgpu::kArenaFileName);
    if (file < 0) {
        return false;
    }
    constexpr std::uint64_t kPage = 4096;
    const std::uint64_t offset = handle.address - softgpu::kArenaBase;
    const std::uint64_t first = offset / kPage * kPage;
    memory->mapped_bytes = (offset + handle.bytes + kPage - 1) / kPage * kPage - first;
    memory->mapped = mmap(nullptr, memory->mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                          static_cast<off_t>(first));
    close(file);
    if (memory->mapped == MAP_FAILED) {
        return false;
    }
    madvise(memory->mapped, memory->mapped_bytes, MADV_DONTFORK);
    return true;
}

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle_v1* pHandle, CUdeviceptr dptr) noexcept {
    GANTRY_CURRENT(context);
    const auto range = MemoryMap::instance().find(dptr);
    GANTRY_REFUSE_IF(pHandle == nullptr || !range || range->kind != MemoryKind::kDevice,
                     CUDA_ERROR_INVALID_VALUE);
    IpcHandle handle;
    handle.process = getpid();
    handle.started = softgpu::own_start();
    handle.file = softgpu::Arena::instance().file();
    handle.address = range->base;
    handle.bytes = range->bytes;
    std::memcpy(pHandle, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle_v1 given,
                               unsigned int Flags) noexcept {
    GANTRY_CURRENT(context);
    OpenedMemory memory;
    std::memcpy(static_cast<void*>(&memory.handle), &given, sizeof(given));
    if (pdptr == nullptr || (Flags & ~CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0 ||
        !is_sound(memory.handle)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GANTRY_REFUSE_IF(memory.handle.process == getpid(), CUDA_ERROR_INVALID_CONTEXT);
    OpenedBook& book = opened_book();
    const std::lock_guard lock(book.mutex);
    for (auto& [address, opened] : book.opened) {
        if (std::memcmp(&opened.handle, &memory.handle, sizeof(memory.handle)) == 0) {
            ++opened.uses;
            *pdptr = address;
            return CUDA_SUCCESS;
        }
    }
    GANTRY_REFUSE_IF(!map_opened(&memory), CUDA_ERROR_INVALID_VALUE);
    MemoryRange range;
    range.base = reinterpret_cast<std::uint64_t>(memory.mapped) + memory.handle.address % 4096;
    range.bytes = memory.handle.bytes;
    range.kind = MemoryKind::kImported;
    range.device = context->device.ordinal;
    range.context = context->handle();
    if (!MemoryMap::instance().insert(range)) {
        munmap(memory.mapped, memory.mapped_bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memory.uses = 1;
    book.opened.emplace(range.base, memory);
    *pdptr = range.base;
    return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) noexcept {
    GANTRY_CURRENT(context);
    OpenedBook& book = opened_book();
    const std::lock_guard lock(book.mutex);
    const auto opened = book.opened.find(dptr);
    GANTRY_REFUSE_IF(opened == book.opened.end(), CUDA_ERROR_INVALID_VALUE);
    if (--opened->second.uses == 0) {
        Scheduler::instance().wait(Scheduler::instance().points_of(*context));
        MemoryMap::instance().erase(dptr, MemoryKind::kImported);
        softgpu::Reach::await_kernels();
        munmap(opened->second.mapped, opened->second.mapped_bytes);
        book.opened.erase(opened);
    }
    return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle_v1* pHandle, CUevent hEvent) noexcept {
    GANTRY_CURRENT(context);
    const auto event = softgpu::find<Event>(hEvent);
    GANTRY_REFUSE_IF(event == nullptr, CUDA_ERROR_INVALID_HANDLE);
    GANTRY_REFUSE_IF(pHandle == nullptr, CUDA_ERROR_INVALID_VALUE);
    // Made for one process, or another process's to give.
    GANTRY_REFUSE_IF(event->shared == nullptr || !event->shared->is_own(),
                     CUDA_ERROR_INVALID_HANDLE);
    const SharedEvent::Handle handle = event->shared->handle();
    std::memcpy(pHandle, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle_v1 given) noexcept {
    GANTRY_CURRENT(context);
    GANTRY_REFUSE_IF(phEvent == nullptr, CUDA_ERROR_INVALID_VALUE);
    SharedEvent::Handle handle;
    std::memcpy(static_cast<void*>(&handle), &given, sizeof(given));
    std::shared_ptr<SharedEvent> shared;
    GANTRY_CU(SharedEvent::open(handle, shared));
    *phEvent = softgpu::publish<CUevent>(std::make_shared<Event>(
        context, unsigned{CU_EVENT_DISABLE_TIMING} | CU_EVENT_INTERPROCESS, std::move(shared)));
    return CUDA_SUCCESS;
}

}  // namespace gantry::cuda_impl

#include "host-daemon/state/parts/blocking_features.h"

#include <fmt/format.h>

#include <map>
#include <span>

#include "host-daemon/execution/code/image_variables.h"
#include "proto/base/mutex.h"

namespace gantry::state {
namespace {

/// Images whose kernels allocate from the device's heap. A driver of its own accord saves no heap,
/// so this is asked where there is no extension that does. Looked into once an image.
std::uint64_t heap_users(worker::GuestProcess& process) {
    static Mutex mutex;
    static std::map<Sha256, bool> known GANTRY_GUARDED_BY(mutex);
    const auto major =
        process.device.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR).value_or(0);
    const MutexLock lock(mutex);
    std::uint64_t count = 0;
    for (const worker::LoadedImage& loaded : process.code.modules.list()) {
        const auto [entry, is_new] = known.try_emplace(loaded.image->sha256, false);
        for (std::size_t i = 0; is_new && !entry->second && i < loaded.parts.size(); ++i) {
            entry->second = worker::uses_device_heap(
                std::span<const std::byte>(loaded.image->bytes)
                    .subspan(loaded.parts[i].offset, loaded.parts[i].bytes),
                static_cast<unsigned>(major));
        }
        count += entry->second ? 1 : 0;
    }
    return count;
}

}  // namespace

std::vector<engine::BlockingFeature> blocking_features(worker::GuestProcess& process,
                                                       std::uint64_t part_id) {
    std::map<std::string, std::uint64_t> counts;
    if (process.is_broken()) {
        return {};  // None of it is carried (process/error_ledger.h).
    }
    if (process.graphs.captures.any()) {
        counts["stream.capture"] = process.graphs.captures.count();
    }
    for (const worker::Object& object :
         process.objects.list([](const worker::Object&) { return true; })) {
        switch (object.kind()) {
            case cuda::HandleKind::kExternalMemory:
            case cuda::HandleKind::kExternalSemaphore: ++counts["external"]; break;
            case cuda::HandleKind::kGraphicsResource:
            case cuda::HandleKind::kEglConnection: ++counts["graphics"]; break;
            case cuda::HandleKind::kGraphExec: {
                const auto exec = process.graphs.book.find(object.handle);
                const bool is_gone = !exec && !process.objects.contains(object.handle);
                counts["graph.node"] += is_gone || (exec && exec->is_whole()) ? 0 : 1;
                break;
            }
            default: break;
        }
    }
    counts["ipc.memory"] = process.shares.memory.open_count();
    counts["ipc.events"] = process.shares.events.open_count();
    if (process.device.extension() == nullptr) {
        counts["device_heap"] = heap_users(process);
    }
    std::vector<engine::BlockingFeature> features;
    for (const auto& [id, count] : counts) {
        if (count == 0) {
            continue;
        }
        features.push_back({engine::PartId{part_id}, id, fmt::format("{} in use", count)});
    }
    return features;
}

}  // namespace gantry::state

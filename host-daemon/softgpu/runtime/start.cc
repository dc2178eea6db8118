#include "host-daemon/softgpu/runtime/start.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "host-daemon/softgpu/core/driver.h"
#include "host-daemon/softgpu/core/settings.h"
#include "host-daemon/softgpu/core/thread_state.h"
#include "host-daemon/softgpu/graph/capture.h"
#include "host-daemon/softgpu/memory/arena.h"
#include "host-daemon/softgpu/runtime/context_life.h"
#include "host-daemon/softgpu/streams/stream.h"
#include "proto/cuda/settings.h"

namespace gantry::softgpu {
namespace {

/// Ends the default streams of a thread that ends.
void end_streams_of(ThreadState& thread) {
    for (const auto& [context, stream] : thread.default_streams) {
        abandon_capture(stream);
        if (const auto alive = stream->context()) {
            Scheduler::instance().remove(*alive, stream);
        }
    }
}

/// Leaves the devices that CUDA_VISIBLE_DEVICES shows, in its order.
CUresult choose_visible(std::vector<GpuProfile>& profiles) {
    std::vector<CUuuid> uuids(profiles.size());
    std::vector<unsigned> shown(profiles.size());
    for (std::size_t i = 0; i < profiles.size(); ++i) {
        std::memcpy(uuids[i].bytes, profiles[i].uuid.data(), sizeof(uuids[i].bytes));
    }
    const cuda::VisibleDevices visible =
        cuda::visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), uuids.data(),
                              static_cast<unsigned>(uuids.size()), shown.data());
    std::vector<GpuProfile> chosen;
    for (unsigned i = 0; i < visible.count; ++i) {
        chosen.push_back(std::move(profiles[shown[i]]));
    }
    profiles = std::move(chosen);
    return visible.result;
}

CUresult start(Driver& driver) {
    if (const auto settings = check_settings(environ); !settings.ok()) {
        report(settings.error().to_string());
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto profiles = load_profiles();
    if (!profiles.ok()) {
        report(profiles.error().to_string());
        return CUDA_ERROR_NO_DEVICE;
    }
    GANTRY_CU(choose_visible(*profiles));
    const bool foreign = std::any_of(profiles->begin(), profiles->end(),
                                     [](const GpuProfile& each) { return each.foreign != 0; });
    if (!Arena::instance().reserve(foreign)) {
        report(std::string("The address window of device memory (0x200000000000, 8 TiB) cannot be "
                           "reserved: ") +
               std::strerror(errno) + ". Lift RLIMIT_AS, or unmap what lies there.");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    set_capture_builder(graph_captures());
    set_thread_end(end_streams_of);
    for (GpuProfile& profile : *profiles) {
        const auto ordinal = static_cast<int>(driver.devices.size());
        auto device = std::make_unique<Device>(ordinal, std::move(profile));
        device->primary = std::make_shared<Context>(*device, 0, true);
        HandleTable::instance().publish(device->primary);
        start_context(*device->primary);
        driver.devices.push_back(std::move(device));
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult initialise() { return start_once(start); }

}  // namespace gantry::softgpu

// Functions that every CUDA program may call without defining them: vprintf, __assertfail,
// malloc and free; and the device runtime's (device_runtime.cc).
#include "host-daemon/softgpu/engine/exec/builtin.h"

#include <cstring>
#include <string>

#include "host-daemon/softgpu/engine/exec/format.h"
#include "host-daemon/softgpu/engine/exec/handlers.h"
#include "host-daemon/softgpu/engine/kernel_code.h"
#include "host-daemon/softgpu/engine/run/launch_state.h"
#include "host-daemon/softgpu/engine/warp.h"

namespace gantry::softgpu::exec {
namespace {

void print(Warp& warp, const Inst* inst, const CallSite& site, std::uint32_t lane) {
    // A kernel's memory is read before anything is held: no destructor may be pending then.
    thread_local std::string format;
    thread_local std::string text;
    format.clear();
    text.clear();
    const LaneMemory memory(warp, inst, lane);
    const std::uint64_t address = argument(warp, site, 0, lane);
    if (address != 0) {
        memory.append_text(address, format);
    }
    const int converted = format_printf(text, address != 0 ? format.c_str() : nullptr, memory,
                                        argument(warp, site, 1, lane));
    const ServiceCall call(warp);
    call.services().print(text);
    set_result(warp, site, lane, static_cast<std::uint32_t>(converted));
}

void report_assertion(Warp& warp, const Inst* inst, const CallSite& site, std::uint32_t lane) {
    thread_local std::string message;
    thread_local std::string file;
    thread_local std::string function;
    const LaneMemory memory(warp, inst, lane);
    const auto take = [&](std::size_t index, std::string& out) {
        out.clear();
        memory.append_text(argument(warp, site, index, lane), out);
    };
    take(0, message);
    take(1, file);
    take(3, function);
    const auto line = static_cast<std::uint32_t>(argument(warp, site, 2, lane));
    const ServiceCall call(warp);
    const Block& block = *warp.block;
    const Dim3& size = block.launch->config->block;
    const std::uint32_t thread = warp.index * kLanes + lane;
    std::string text;
    text += file;
    text += ":" + std::to_string(line) + ": " + function + ": block: [" + std::to_string(block.x) +
            "," + std::to_string(block.y) + "," + std::to_string(block.z) + "], thread: [" +
            std::to_string(thread % size.x) + "," + std::to_string(thread / size.x % size.y) + "," +
            std::to_string(thread / size.x / size.y) + "] Assertion `" + message + "` failed.\n";
    call.services().assertion_failed(text);
}

const Inst* do_builtin(Warp& warp, const Inst* inst) {
    const auto& site = *static_cast<const CallSite*>(inst->table);
    warp.thread->inst = inst;
    for (std::uint32_t mask = warp.mask; mask != 0; mask &= mask - 1) {
        const auto lane = static_cast<std::uint32_t>(__builtin_ctz(mask));
        switch (site.builtin) {
            case Builtin::kVprintf: print(warp, inst, site, lane); break;
            case Builtin::kAssertFail:
                // Every failing lane of the warp has its line, as on hardware.
                report_assertion(warp, inst, site, lane);
                if ((mask & (mask - 1)) == 0) {
                    raise_fault(warp, inst, LaunchError::kAssert, lane, 0, "device-side assert");
                }
                break;
            case Builtin::kMalloc: {
                std::uint64_t address = 0;
                {
                    const std::uint64_t size = argument(warp, site, 0, lane);
                    const ServiceCall call(warp);
                    address = call.services().heap_allocate(size);
                }
                set_result(warp, site, lane, address);
                break;
            }
            case Builtin::kFree: {
                const std::uint64_t address = argument(warp, site, 0, lane);
                if (address != 0) {
                    const ServiceCall call(warp);
                    call.services().heap_free(address);
                }
                break;
            }
            case Builtin::kSetCondition: {
                const std::uint64_t condition = argument(warp, site, 0, lane);
                const auto value = static_cast<std::uint32_t>(argument(warp, site, 1, lane));
                const ServiceCall call(warp);
                call.services().set_condition(condition, value);
                break;
            }
            case Builtin::kNone: break;
            default: call_device_runtime(warp, inst, site, lane); break;
        }
    }
    return inst + 1;
}

}  // namespace

Handler call_builtin() { return &do_builtin; }

}  // namespace gantry::softgpu::exec

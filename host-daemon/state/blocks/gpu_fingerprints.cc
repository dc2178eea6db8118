#include "host-daemon/state/blocks/gpu_fingerprints.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace gantry::state {
namespace {

using snapshot::Fingerprint;
using snapshot::kBlockBytes;

constexpr unsigned kThreads = 256;  // As in fingerprint.ptx, the next one too.
constexpr std::size_t kBlocksPerGroup = 4;

GpuFingerprints::Found into(std::span<Fingerprint> out) {
    return [out](std::size_t at, std::span<const Fingerprint> fingerprints) {
        std::copy(fingerprints.begin(), fingerprints.end(),
                  out.begin() + static_cast<std::ptrdiff_t>(at));
    };
}

}  // namespace

Error GpuFingerprints::failed(CUresult result, const char* what) const {
    return driver::to_error(device_.api(), result, "state.gpu", what);
}

Result<std::unique_ptr<GpuFingerprints>> GpuFingerprints::make(const worker::Device& device,
                                                               std::chrono::seconds patience) {
    std::unique_ptr<GpuFingerprints> made(new GpuFingerprints(device, patience));
    GANTRY_TRY(made->open());
    return made;
}

Result<void> GpuFingerprints::open() {
    const driver::DriverApi& api = device_.api();
    void* cancel = nullptr;
    CUresult result = api.cuModuleLoadData(&module_, kFingerprintPtx);
    if (result == CUDA_SUCCESS) {
        result = api.cuModuleGetFunction(&function_, module_, "gantry_fingerprint");
    }
    if (result == CUDA_SUCCESS) {
        result = api.cuModuleGetFunction(&gate_, module_, "gantry_fingerprint_gate");
    }
    if (result == CUDA_SUCCESS) {
        result = api.cuMemAlloc_v2(&key_, snapshot::kKeyWords * sizeof(std::uint32_t));
    }
    if (result == CUDA_SUCCESS) {
        result = api.cuMemHostAlloc(&cancel, sizeof(*cancel_), CU_MEMHOSTALLOC_PORTABLE);
    }
    if (result != CUDA_SUCCESS) {
        return failed(result, "loading the kernel for fingerprints");
    }
    cancel_ = static_cast<std::uint32_t*>(cancel);
    *cancel_ = 0;
    int least = 0;
    int greatest = 0;
    api.cuCtxGetStreamPriorityRange(&least, &greatest);
    for (Lane& lane : lanes_) {
        GANTRY_TRY(open_lane(lane, least));
    }
    return {};
}

Result<void> GpuFingerprints::open_lane(Lane& lane, int priority) {
    const driver::DriverApi& api = device_.api();
    CUresult result = CUDA_SUCCESS;
    const auto keep = [&result](CUresult now) { result = result == CUDA_SUCCESS ? now : result; };
    const auto host = [&](auto*& pointer, std::size_t bytes) {
        void* got = nullptr;
        keep(api.cuMemHostAlloc(&got, bytes, CU_MEMHOSTALLOC_PORTABLE));
        pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(got);
    };
    keep(api.cuStreamCreateWithPriority(&lane.stream, CU_STREAM_NON_BLOCKING, priority));
    keep(api.cuMemAlloc_v2(&lane.addresses, kLaunchBlocks * sizeof(std::uint64_t)));
    keep(api.cuMemAlloc_v2(&lane.stage, kStageBlocks * kBlockBytes));
    keep(api.cuMemAlloc_v2(&lane.gate, 2 * sizeof(std::uint64_t)));
    host(lane.host_addresses, std::max(kLaunchBlocks * sizeof(std::uint64_t),
                                       snapshot::kKeyWords * sizeof(std::uint32_t)));
    host(lane.fingerprints, kLaunchBlocks * sizeof(Fingerprint));
    host(lane.bounce, kStageBlocks * kBlockBytes);
    if (result != CUDA_SUCCESS) {
        return failed(result, "memory and streams for fingerprints");
    }
    return {};
}

GpuFingerprints::~GpuFingerprints() {
    const driver::DriverApi& api = device_.api();
    device_.bind_thread();
    if (cancel_ != nullptr && !ready()) {
        return;  // It would wait for a guest's kernel; the context's end gives all of it back.
    }
    for (Lane& lane : lanes_) {
        if (lane.stream != nullptr) {
            api.cuStreamSynchronize(lane.stream);
            api.cuStreamDestroy_v2(lane.stream);
        }
        for (const CUdeviceptr memory : {lane.addresses, lane.stage, lane.gate}) {
            if (memory != 0) {
                api.cuMemFree_v2(memory);
            }
        }
        for (void* memory :
             {static_cast<void*>(lane.host_addresses), static_cast<void*>(lane.fingerprints),
              static_cast<void*>(lane.bounce)}) {
            if (memory != nullptr) {
                api.cuMemFreeHost(memory);
            }
        }
    }
    if (cancel_ != nullptr) {
        api.cuMemFreeHost(cancel_);
    }
    if (key_ != 0) {
        api.cuMemFree_v2(key_);
    }
    if (module_ != nullptr) {
        api.cuModuleUnload(module_);
    }
}

bool GpuFingerprints::ready() {
    if (behind_) {
        const auto& query = device_.api().cuStreamQuery;
        behind_ = std::any_of(lanes_.begin(), lanes_.end(), [&query](const Lane& lane) {
            return query(lane.stream) == CUDA_ERROR_NOT_READY;
        });
    }
    if (!behind_) {
        __atomic_store_n(cancel_, 0U, __ATOMIC_SEQ_CST);
    }
    return !behind_;
}

void GpuFingerprints::call_off() {
    behind_ = true;
    __atomic_store_n(cancel_, 1U, __ATOMIC_SEQ_CST);
    for (Lane& lane : lanes_) {
        if (lane.crossing) {  // Its copy would write to memory that is the caller's again.
            device_.api().cuStreamSynchronize(lane.stream);
        }
    }
    // Blocks of threads that begin in time after their launch was let go on do not see the word,
    // and are through long before; the others see it.
    std::this_thread::sleep_for(2 * kLate);
    for (Lane& lane : lanes_) {
        lane.begin_anew();
    }
}

Result<void> GpuFingerprints::send_key(const snapshot::FingerprintKey& key) {
    const auto words = key.words();
    if (std::equal(words.begin(), words.end(), key_words_.begin(), key_words_.end())) {
        return {};
    }
    // Both lanes are idle here. Not the plain copy: of pageable memory it may return while the
    // bytes are still on their way, and the lanes' streams wait for no other.
    key_words_.clear();
    Lane& lane = lanes_.front();
    std::memcpy(lane.host_addresses, words.data(), words.size_bytes());
    CUresult result = device_.api().cuMemcpyHtoDAsync_v2(key_, lane.host_addresses,
                                                         words.size_bytes(), lane.stream);
    if (result == CUDA_SUCCESS) {
        result = device_.api().cuStreamSynchronize(lane.stream);
    }
    if (result != CUDA_SUCCESS) {
        return failed(result, "sending the key of the fingerprints");
    }
    key_words_.assign(words.begin(), words.end());
    return {};
}

CUresult GpuFingerprints::queue_sums(Lane& lane, std::span<const std::uint64_t> addresses,
                                     bool copies) {
    const driver::DriverApi& api = device_.api();
    const std::size_t count = addresses.size();
    std::copy(addresses.begin(), addresses.end(), lane.host_addresses);
    CUresult result = api.cuMemcpyHtoDAsync_v2(lane.addresses, lane.host_addresses,
                                               count * sizeof(std::uint64_t), lane.stream);
    auto blocks = static_cast<std::uint32_t>(count);
    CUdeviceptr stage = copies ? lane.stage : 0;
    auto cancel = reinterpret_cast<CUdeviceptr>(cancel_);
    std::uint64_t late_ns = kLate.count();
    void* gate_arguments[] = {&cancel, &lane.gate};
    auto fingerprints = reinterpret_cast<CUdeviceptr>(lane.fingerprints);
    void* arguments[] = {&lane.addresses, &key_,      &fingerprints, &stage,
                         &cancel,         &lane.gate, &late_ns,      &blocks};
    const auto groups = static_cast<unsigned>((count + kBlocksPerGroup - 1) / kBlocksPerGroup);
    if (result == CUDA_SUCCESS) {
        result =
            api.cuLaunchKernel(gate_, 1, 1, 1, 1, 1, 1, 0, lane.stream, gate_arguments, nullptr);
    }
    if (result == CUDA_SUCCESS) {
        result = api.cuLaunchKernel(function_, groups, 1, 1, kThreads, 1, 1, 0, lane.stream,
                                    arguments, nullptr);
    }
    return result;
}

Result<bool> GpuFingerprints::advance(Lane& lane, bool direct) {
    if (lane.count == 0 || lane.crossing) {
        return true;
    }
    const auto& query = device_.api().cuStreamQuery;
    const auto begun = std::chrono::steady_clock::now();
    CUresult state = query(lane.stream);
    while (state == CUDA_ERROR_NOT_READY) {
        const auto waited = std::chrono::steady_clock::now() - begun;
        if (waited > patience_) {
            call_off();
            return false;
        }
        if (waits_ == Waits::kCalm) {
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        } else if (waited > std::chrono::milliseconds(5)) {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        } else {
            std::this_thread::yield();
        }
        state = query(lane.stream);
    }
    if (state != CUDA_SUCCESS) {
        return failed(state, "fingerprints on the device");
    }
    if (!lane.to.empty()) {
        const CUresult result = device_.api().cuMemcpyDtoHAsync_v2(
            direct ? lane.to.data() : lane.bounce, lane.stage, lane.to.size(), lane.stream);
        if (result != CUDA_SUCCESS) {
            return failed(result, "copying blocks to the host");
        }
        lane.crossing = true;
    }
    return true;
}

Result<bool> GpuFingerprints::finish(Lane& lane, bool direct, const Found& found) {
    if (lane.count == 0) {
        return true;
    }
    GANTRY_ASSIGN(const bool summed, advance(lane, direct));
    if (!summed) {
        return false;
    }
    if (lane.crossing) {  // No kernel can hold this up, and it must not write to `to` later.
        const CUresult result = device_.api().cuStreamSynchronize(lane.stream);
        if (result != CUDA_SUCCESS) {
            return failed(result, "copying blocks to the host");
        }
        if (!direct) {
            std::memcpy(lane.to.data(), lane.bounce, lane.to.size());
        }
    }
    found(lane.at, {lane.fingerprints, lane.count});
    lane.begin_anew();
    return true;
}

Result<bool> GpuFingerprints::run(const snapshot::FingerprintKey& key,
                                  std::span<const std::uint64_t> addresses, std::span<std::byte> to,
                                  bool direct, const Found& found) {
    if (!ready()) {
        return false;
    }
    for (Lane& lane : lanes_) {
        lane.begin_anew();  // An error may have left something.
    }
    GANTRY_TRY(send_key(key));
    const std::size_t step = to.empty() ? kLaunchBlocks : kStageBlocks;
    for (std::size_t at = 0, turn = 0; at < addresses.size(); at += step, ++turn) {
        Lane& lane = lanes_[turn % 2];
        // The other lane's copy starts its way before this lane waits; sums alone are collected
        // when their lane's turn comes, so that two launches are always queued.
        GANTRY_ASSIGN(const bool other_summed,
                      to.empty() ? Result<bool>(true) : advance(lanes_[(turn + 1) % 2], direct));
        GANTRY_ASSIGN(const bool finished,
                      other_summed ? finish(lane, direct, found) : Result<bool>(false));
        if (!finished) {
            return false;
        }
        lane.at = at;
        lane.count = std::min(step, addresses.size() - at);
        lane.to = to.empty() ? to : to.subspan(at * kBlockBytes, lane.count * kBlockBytes);
        if (const CUresult result =
                queue_sums(lane, addresses.subspan(at, lane.count), !lane.to.empty());
            result != CUDA_SUCCESS) {
            return failed(result, "queueing fingerprints");
        }
    }
    // The lane whose turn it would be was queued before the other.
    const std::size_t turns = (addresses.size() + step - 1) / step;
    for (std::size_t turn = turns; turn < turns + lanes_.size(); ++turn) {
        GANTRY_ASSIGN(const bool finished, finish(lanes_[turn % 2], direct, found));
        if (!finished) {
            return false;
        }
    }
    return true;
}

Result<bool> GpuFingerprints::look(const snapshot::FingerprintKey& key,
                                   std::span<const std::uint64_t> addresses, const Found& found,
                                   Waits waits) {
    waits_ = waits;
    return run(key, addresses, {}, true, found);
}

Result<bool> GpuFingerprints::look(const snapshot::FingerprintKey& key,
                                   std::span<const std::uint64_t> addresses,
                                   std::span<Fingerprint> out, Waits waits) {
    return look(key, addresses, into(out), waits);
}

Result<bool> GpuFingerprints::copy(const snapshot::FingerprintKey& key,
                                   std::span<const std::uint64_t> addresses,
                                   std::span<std::byte> to, bool direct,
                                   std::span<Fingerprint> out) {
    waits_ = Waits::kKeen;
    return run(key, addresses, to.first(addresses.size() * kBlockBytes), direct, into(out));
}

}  // namespace gantry::state

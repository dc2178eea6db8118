// GpuFingerprints: fingerprints of 64 KiB blocks by a kernel on the device (fingerprint.ptx), and
// copies to the host whose fingerprints are taken from the copy.
//
// Two lanes, each with a stream of lowest priority and buffers of its own, so that one lane's
// copies cross to the host while the other's blocks are gathered and summed. What is copied goes
// through memory on the device: the kernel stores there the words that it sums.
//
// A guest's kernel may keep the whole device for as long as it likes: a sum that is not done within
// the patience given is called off (then it touches the guest's memory no more, which may be
// freed), comes back as false, and until the device has caught up nothing more is put on it. The
// caller then goes another way.
//
// Made before the guest's first module, always: what a driver allocates for us moves what it
// allocates afterwards, and the target's has to lie where the source's did.
// Threads: one caller at a time, with the context bound. Failure: reasons `state.gpu`.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "host-daemon/execution/device/device.h"
#include "proto/base/result.h"
#include "proto/snapshot/fingerprint.h"

namespace gantry::state {

extern const char kFingerprintPtx[];  ///< Zero-terminated.

class GpuFingerprints {
public:
    static constexpr std::chrono::seconds kPatience{2};
    static Result<std::unique_ptr<GpuFingerprints>> make(const worker::Device& device,
                                                         std::chrono::seconds patience = kPatience);
    ~GpuFingerprints();
    GpuFingerprints(const GpuFingerprints&) = delete;
    GpuFingerprints& operator=(const GpuFingerprints&) = delete;

    /// How its end is waited for: kKeen asks the driver without a break at first, whose lock the
    /// guest's launches need too.
    enum class Waits : std::uint8_t { kKeen, kCalm };
    /// The fingerprints of the addresses from the `at`-th on; the caller's once it returns.
    using Found = std::function<void(std::size_t at, std::span<const snapshot::Fingerprint>)>;
    /// Of whole blocks that lie at these device addresses now; one for each, told in their order
    /// while the device is busy with those behind them. False: the device is busy otherwise, and no
    /// more are told.
    Result<bool> look(const snapshot::FingerprintKey& key, std::span<const std::uint64_t> addresses,
                      const Found& found, Waits waits = Waits::kKeen);
    /// The same into `out`, of which nothing counts where it is false.
    Result<bool> look(const snapshot::FingerprintKey& key, std::span<const std::uint64_t> addresses,
                      std::span<snapshot::Fingerprint> out, Waits waits = Waits::kKeen);

    /// Copies whole blocks to `to`, packed, with the fingerprints of the copies. `direct`: the
    /// driver may copy to `to` itself (page-locked). False: the device is busy, `to` is undefined.
    Result<bool> copy(const snapshot::FingerprintKey& key, std::span<const std::uint64_t> addresses,
                      std::span<std::byte> to, bool direct, std::span<snapshot::Fingerprint> out);

private:
    static constexpr std::size_t kLaunchBlocks = 8192;  ///< Of one launch: 512 MiB.
    static constexpr std::size_t kStageBlocks = 128;    ///< Of one gathered copy: 8 MiB.
    /// How long after its launch was let go on a block of threads may begin without asking again.
    static constexpr std::chrono::nanoseconds kLate{2'000'000};

    struct Lane {
        CUstream stream = nullptr;
        CUdeviceptr addresses = 0;                ///< kLaunchBlocks.
        CUdeviceptr stage = 0;                    ///< kStageBlocks.
        CUdeviceptr gate = 0;                     ///< Two u64.
        std::uint64_t* host_addresses = nullptr;  ///< These three page-locked.
        /// Written by the kernel: a copy back would stand behind the other lane's blocks.
        snapshot::Fingerprint* fingerprints = nullptr;
        std::byte* bounce = nullptr;
        /// What is under way: `count` blocks from the `at`-th on, and where they are copied.
        std::size_t at = 0;
        std::size_t count = 0;
        std::span<std::byte> to;  ///< Empty: no copy.
        bool crossing = false;    ///< Summed; the copy is on its way to the host.

        void begin_anew() {
            count = 0;
            to = {};
            crossing = false;
        }
    };

    GpuFingerprints(const worker::Device& device, std::chrono::seconds patience)
        : device_(device), patience_(patience) {}
    Result<void> open();
    Result<void> open_lane(Lane& lane, int priority);
    Result<void> send_key(const snapshot::FingerprintKey& key);
    /// Launches over addresses; `copies`: into the lane's stage too.
    CUresult queue_sums(Lane& lane, std::span<const std::uint64_t> addresses, bool copies);
    /// Waits for the sums, and starts the copy's way to the host. False: called off.
    Result<bool> advance(Lane& lane, bool direct);
    /// Waits for all of it and hands the results out. False: called off.
    Result<bool> finish(Lane& lane, bool direct, const Found& found);
    /// The blocks, lane by lane; `to` empty: no copies.
    Result<bool> run(const snapshot::FingerprintKey& key, std::span<const std::uint64_t> addresses,
                     std::span<std::byte> to, bool direct, const Found& found);
    void call_off();
    /// The device has caught up with what it was given before.
    bool ready();
    Error failed(CUresult result, const char* what) const;

    const worker::Device& device_;
    const std::chrono::seconds patience_;
    Waits waits_ = Waits::kKeen;
    CUmodule module_ = nullptr;
    CUfunction function_ = nullptr;
    CUfunction gate_ = nullptr;
    CUdeviceptr key_ = 0;
    std::vector<std::uint32_t> key_words_;  ///< What lies at key_; empty: nothing yet.
    std::array<Lane, 2> lanes_;
    std::uint32_t* cancel_ = nullptr;  ///< Page-locked; the kernel looks at it.
    bool behind_ = false;              ///< Sums were called off, and are still queued.
};

}  // namespace gantry::state

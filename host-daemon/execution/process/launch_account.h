// LaunchAccount: which kernels the guest launches, how often, and how long they take.
//
// WHAT. Every launch is counted, by kernel and shape. The first few launches of each, one in kOften
// of the first kOftenUntil and one in kEvery from then on are measured: an event in front, an event
// behind. The first one of all also loads code: it counts for itself, the others' mean for each
// other launch. Where its stream has nothing to do, the time also has what the launch itself
// takes: a few microseconds.
//
// NOT. Kernels of the guest's own CUDA graphs; what is launched while a stream is captured or a
// host callback is open is counted, and not measured.
//
// Off until begin(). Owner: GuestProcess. Threads: any. Failure: what cannot be measured is
// counted. Cost: off, a load for each launch; on, a lock and a look-up, and two records for each
// sample.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "host-daemon/execution/code/module_registry.h"
#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/objects/objects.h"
#include "host-daemon/execution/process/captures.h"
#include "host-daemon/execution/process/held_work.h"
#include "host-daemon/execution/process/launch_batcher.h"
#include "proto/base/mutex.h"
#include "proto/base/sha256.h"

namespace gantry::worker {

class LaunchAccount {
public:
    struct Needs {
        Device& device;
        const ObjectTable& objects;
        const ModuleRegistry& modules;
        const Captures& captures;
        const HeldWork& held;
    };
    /// A launch record: one kernel in one shape.
    struct Kernel {
        Sha256 image{};     ///< Zeros: not known.
        std::string entry;  ///< As the image has it; empty: not known.
        KernelShape shape;
        std::uint64_t launches = 0;
        std::uint64_t samples = 0;
        double first_us = 0;    ///< Its first sample.
        double sampled_us = 0;  ///< The others.
        double summed_us = 0;   ///< Of gpu_us(), in the account's sum.
        void add_sample(double us) { (samples++ == 0 ? first_us : sampled_us) += us; }
        [[nodiscard]] double gpu_us() const {
            const auto all = static_cast<double>(launches);
            if (samples < 2) {
                return first_us * all;
            }
            return first_us + sampled_us / static_cast<double>(samples - 1) * (all - 1);
        }
    };

    explicit LaunchAccount(const Needs& needs) : needs_(needs) {}
    ~LaunchAccount();
    LaunchAccount(const LaunchAccount&) = delete;
    LaunchAccount& operator=(const LaunchAccount&) = delete;

    /// From now on. Before the guest is served: nothing of the driver's is made later.
    void begin();
    [[nodiscard]] bool is_on() const { return is_on_.load(std::memory_order_relaxed); }
    /// Whether one of these has to be measured, and so launched by itself.
    [[nodiscard]] bool wants_singly(LaunchBatcher::Launches launches);
    /// Counts launches that go to the driver together.
    void note_batch(LaunchBatcher::Launches launches);
    [[nodiscard]] std::vector<Kernel> list();
    /// All kernels' GPU time so far; 0 while off.
    [[nodiscard]] std::uint64_t gpu_ns();

    /// Around one launch into the stream.
    class Launch {
    public:
        Launch(LaunchAccount& account, const KernelShape& shape, CUstream stream)
            : account_(account.is_on() ? &account : nullptr), stream_(stream) {
            if (account_ != nullptr) {
                number_ = account_->begin_launch(shape, stream);
            }
        }
        ~Launch() {
            if (account_ != nullptr) {
                account_->end_launch(number_, stream_);
            }
        }
        Launch(const Launch&) = delete;
        Launch& operator=(const Launch&) = delete;

    private:
        LaunchAccount* account_;
        CUstream stream_;
        std::size_t number_ = kNoPair;
    };

private:
    static constexpr std::size_t kPairs = 16;
    static constexpr std::size_t kNoPair = kPairs;
    static constexpr std::size_t kKernelsMax = 16384;
    static constexpr std::uint64_t kFirst = 4;
    static constexpr std::uint64_t kOften = 8;
    static constexpr std::uint64_t kOftenUntil = 512;
    static constexpr std::uint64_t kEvery = 64;

    struct Hash {
        std::size_t operator()(const KernelShape& shape) const;
    };
    struct Pair {
        CUevent before = nullptr;
        CUevent behind = nullptr;
        Kernel* kernel = nullptr;
    };

    Kernel* find(const KernelShape& shape) GANTRY_REQUIRES(mutex_);
    void identify(Kernel& kernel) const;
    static bool is_due(const Kernel& kernel);
    void collect() GANTRY_REQUIRES(mutex_);
    void sum_up(Kernel& kernel) GANTRY_REQUIRES(mutex_);
    std::size_t begin_launch(const KernelShape& shape, CUstream stream);
    void end_launch(std::size_t number, CUstream stream);

    Needs needs_;
    std::atomic<bool> is_on_{false};
    Mutex mutex_;
    /// Elements stay where they are.
    std::unordered_map<KernelShape, Kernel, Hash> kernels_ GANTRY_GUARDED_BY(mutex_);
    double sum_us_ GANTRY_GUARDED_BY(mutex_) = 0;
    std::array<Pair, kPairs> pairs_;  ///< Each is used by one thread at a time.
    std::vector<std::size_t> free_ GANTRY_GUARDED_BY(mutex_);
    std::deque<std::size_t> queued_ GANTRY_GUARDED_BY(mutex_);  ///< Both are behind each other.
};

}  // namespace gantry::worker

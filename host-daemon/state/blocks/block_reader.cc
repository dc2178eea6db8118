#include "host-daemon/state/blocks/block_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/state/blocks/block_ranges.h"

namespace gantry::state {
namespace {

/// Blocks looked at in one go: frees of the guest wait meanwhile. A GPU does 4 GiB in 1 ms.
constexpr std::uint64_t kLookBlocks = 4096;
constexpr std::uint64_t kGpuLookBlocks = 65536;
/// Blocks of one piece of the pool's work.
constexpr std::size_t kPieceBlocks = 8;

void to_addresses(std::span<const std::uint64_t> blocks, std::vector<std::uint64_t>* out) {
    out->resize(blocks.size());
    std::transform(blocks.begin(), blocks.end(), out->begin(),
                   [](std::uint64_t block) { return block * kBlockBytes; });
}

const std::byte* pointer_to(BlockAddress block) {
    return reinterpret_cast<const std::byte*>(block.index * kBlockBytes);
}

}  // namespace

void add_fingerprints(const BlockRange& range, std::span<const Fingerprint> fingerprints,
                      engine::BlockSetDigest* digest) {
    for (std::uint64_t i = 0; i < range.count; ++i) {
        digest->add(static_cast<std::uint32_t>(range.space), range.first + i, fingerprints[i]);
    }
}

Result<std::unique_ptr<GpuFingerprints>> make_gpu_fingerprints(const worker::Device& device,
                                                               FingerprintBy by) {
    if (by == FingerprintBy::kCpu || (by == FingerprintBy::kAuto && device.is_host_addressable())) {
        return std::unique_ptr<GpuFingerprints>();
    }
    device.bind_thread();
    return GpuFingerprints::make(device);
}

BlockReader::BlockReader(worker::GuestProcess& process, MemoryImage& memory, FingerprintBy by,
                         std::unique_ptr<GpuFingerprints> made)
    : process_(process), memory_(memory), gpu_(std::move(made)) {
    if (gpu_ != nullptr) {
        return;
    }
    auto gpu = make_gpu_fingerprints(process.device, by);
    if (gpu) {
        gpu_ = std::move(*gpu);
    } else if (by == FingerprintBy::kGpu) {
        usable_ = gpu.error();
    } else {
        worker::log_line("fingerprints are made on the CPU: %s", gpu.error().text.c_str());
    }
}

void BlockReader::show(const BlockRange& range, std::span<const std::uint64_t> blocks,
                       std::span<const Fingerprint> fingerprints, const Visit& visit) {
    for (std::size_t i = 0; i < blocks.size();) {
        std::size_t run = 1;
        while (i + run < blocks.size() && blocks[i + run] == blocks[i] + run) {
            ++run;
        }
        std::fill_n(seen_.begin() + static_cast<std::ptrdiff_t>(blocks[i] - range.first), run, 1);
        visit({range.space, blocks[i], run}, fingerprints.subspan(i, run));
        i += run;
    }
}

Result<bool> BlockReader::look_by_gpu(const snapshot::FingerprintKey& key, const BlockRange& range,
                                      std::span<const std::uint64_t> whole, const Visit& visit) {
    to_addresses(whole, &addresses_);
    if (!pace_.rests()) {
        return gpu_->look(
            key, addresses_, [&](std::size_t at, std::span<const Fingerprint> fingerprints) {
                show(range, whole.subspan(at, fingerprints.size()), fingerprints, visit);
            });
    }
    const auto begin = std::chrono::steady_clock::now();
    fingerprints_.resize(addresses_.size());
    GANTRY_ASSIGN(const bool done,
                  gpu_->look(key, addresses_, fingerprints_, GpuFingerprints::Waits::kCalm));
    worked_ += std::chrono::steady_clock::now() - begin;
    if (done) {
        show(range, whole, fingerprints_, visit);
    }
    return done;
}

Result<void> BlockReader::look_at_whole(const snapshot::FingerprintKey& key,
                                        const BlockRange& range, const Visit& visit) {
    const auto hold = process_.memory.device.hold_layout();
    std::vector<std::uint64_t> whole;
    whole.reserve(range.count);
    for (const BlockRange& part : memory_.whole_in(range)) {
        for (std::uint64_t i = 0; i < part.count; ++i) {
            whole.push_back(part.first + i);
        }
    }
    if (gpu_ != nullptr) {
        GANTRY_ASSIGN(const bool done, look_by_gpu(key, range, whole, visit));
        if (done) {
            return {};
        }
        std::erase_if(whole, [&](std::uint64_t block) { return seen_[block - range.first] != 0; });
    }
    if (process_.device.is_host_addressable()) {
        to_addresses(whole, &addresses_);
        fingerprints_.resize(whole.size());
        look_in_place(key, addresses_, fingerprints_);
        show(range, whole, fingerprints_, visit);
    }
    return {};
}

Result<void> BlockReader::look_at_copies(const snapshot::FingerprintKey& key,
                                         const BlockRange& range, const Visit& visit) {
    for (std::uint64_t at = 0; at < range.count;) {
        if (seen_[at] != 0) {
            ++at;
            continue;
        }
        std::uint64_t count = 1;
        while (at + count < range.count && count < MemoryImage::kBatchBlocks &&
               seen_[at + count] == 0) {
            ++count;
        }
        const BlockRange some{range.space, range.first + at, count};
        const auto bytes = memory_.buffer().first(count * kBlockBytes);
        const auto begin = std::chrono::steady_clock::now();
        GANTRY_ASSIGN(const bool present, memory_.read(some, bytes));
        worked_ += std::chrono::steady_clock::now() - begin;
        if (present) {
            fingerprints_.resize(count);
            snapshot::fingerprints(key, bytes, fingerprints_);
            visit(some, fingerprints_);
        }
        at += count;
    }
    return {};
}

void BlockReader::look_in_place(const snapshot::FingerprintKey& key,
                                std::span<const std::uint64_t> addresses,
                                std::span<Fingerprint> out) {
    const std::size_t pieces = (addresses.size() + kPieceBlocks - 1) / kPieceBlocks;
    memory_.threads().run(pieces, [&](std::size_t piece) {
        const std::size_t begin = piece * kPieceBlocks;
        const std::size_t count = std::min(addresses.size() - begin, kPieceBlocks);
        std::array<const std::byte*, kPieceBlocks> blocks{};
        for (std::size_t i = 0; i < count; ++i) {
            blocks[i] = reinterpret_cast<const std::byte*>(addresses[begin + i]);
        }
        snapshot::fingerprints(key, std::span<const std::byte* const>(blocks).first(count),
                               out.subspan(begin, count));
    });
}

Result<std::vector<Fingerprint>> BlockReader::fingerprints_of(const snapshot::FingerprintKey& key,
                                                              std::span<const BlockRange> whole) {
    GANTRY_TRY(usable_);
    process_.device.bind_thread();
    GANTRY_TRY(memory_.settle());
    std::vector<std::uint64_t> addresses;
    for (const BlockRange& range : whole) {
        for (std::uint64_t i = 0; i < range.count; ++i) {
            addresses.push_back((range.first + i) * kBlockBytes);
        }
    }
    std::vector<Fingerprint> fingerprints(addresses.size());
    if (gpu_ != nullptr) {
        GANTRY_ASSIGN(const bool done, gpu_->look(key, addresses, fingerprints));
        if (done) {
            return fingerprints;
        }
    }
    if (process_.device.is_host_addressable()) {
        look_in_place(key, addresses, fingerprints);
        return fingerprints;
    }
    std::size_t at = 0;
    for (const BlockRange& range : whole) {
        seen_.assign(range.count, 0);
        GANTRY_TRY(look_at_copies(
            key, range, [&](const BlockRange& some, std::span<const Fingerprint> found) {
                std::copy(found.begin(), found.end(),
                          fingerprints.begin() +
                              static_cast<std::ptrdiff_t>(at + (some.first - range.first)));
                std::fill_n(seen_.begin() + static_cast<std::ptrdiff_t>(some.first - range.first),
                            some.count, 1);
            }));
        if (std::find(seen_.begin(), seen_.end(), 0) != seen_.end()) {
            return Error{Code::kInternal, "state.read", "a block vanished from the arena"};
        }
        at += range.count;
    }
    return fingerprints;
}

Result<void> BlockReader::look(const snapshot::FingerprintKey& key, const BlockRange& range,
                               const Visit& visit) {
    seen_.assign(range.count, 0);
    if (range.space == MemorySpace::kDevice) {
        GANTRY_TRY(look_at_whole(key, range, visit));
    }
    return look_at_copies(key, range, visit);
}

Result<void> BlockReader::for_each_fingerprint(const snapshot::FingerprintKey& key,
                                               const Visit& visit, std::vector<BlockRange> known) {
    process_.memory.refresh_private_ranges();
    return for_each_fingerprint_of(without(memory_.ranges(), std::move(known)), key, visit);
}

Result<void> BlockReader::for_each_fingerprint_of(std::span<const BlockRange> ranges,
                                                  const snapshot::FingerprintKey& key,
                                                  const Visit& visit) {
    GANTRY_TRY(usable_);
    process_.device.bind_thread();
    GANTRY_TRY(memory_.settle());
    const bool rests = gpu_ != nullptr && pace_.rests();
    const std::uint64_t step = rests             ? RateLimiter::kPortionBlocks
                               : gpu_ != nullptr ? kGpuLookBlocks
                                                 : kLookBlocks;
    for (const BlockRange& range : ranges) {
        for (std::uint64_t done = 0; done < range.count; done += step) {
            const BlockRange some{range.space, range.first + done,
                                  std::min(range.count - done, step)};
            worked_ = {};
            GANTRY_TRY(look(key, some, visit));
            if (rests) {
                pace_.rest(some.count, worked_);
            }
        }
    }
    return {};
}

Result<std::vector<CopiedBlock>> BlockReader::copy_in_place(const snapshot::FingerprintKey& key,
                                                            std::span<const BlockAddress> blocks,
                                                            std::span<std::byte> out) {
    std::vector<CopiedBlock> copied(blocks.size());
    const std::size_t pieces = (blocks.size() + kPieceBlocks - 1) / kPieceBlocks;
    memory_.threads().run(pieces, [&](std::size_t piece) {
        const std::size_t end = std::min(blocks.size(), (piece + 1) * kPieceBlocks);
        for (std::size_t begin = piece * kPieceBlocks; begin < end; begin += 2) {
            const std::size_t count = std::min<std::size_t>(2, end - begin);
            const auto to = out.subspan(begin * kBlockBytes, count * kBlockBytes);
            for (std::size_t i = 0; i < count; ++i) {
                std::memcpy(&to[i * kBlockBytes], pointer_to(blocks[begin + i]), kBlockBytes);
            }
            std::array<Fingerprint, 2> fingerprints;  // From the cache.
            snapshot::fingerprints(key, to, std::span(fingerprints).first(count));
            for (std::size_t i = 0; i < count; ++i) {
                copied[begin + i] = {blocks[begin + i], fingerprints[i]};
            }
        }
    });
    return copied;
}

Result<std::optional<std::vector<CopiedBlock>>> BlockReader::copy_by_gpu(
    const snapshot::FingerprintKey& key, std::span<const BlockAddress> blocks,
    std::span<std::byte> out) {
    std::vector<std::uint64_t> addresses;
    for (const BlockAddress& block : blocks) {
        addresses.push_back(block.index * kBlockBytes);
    }
    std::vector<Fingerprint> fingerprints(blocks.size());
    const auto to = out.first(blocks.size() * kBlockBytes);
    GANTRY_ASSIGN(
        const bool done,
        gpu_->copy(key, addresses, to, memory_.is_direct(to.data(), to.size()), fingerprints));
    if (!done) {
        return std::optional<std::vector<CopiedBlock>>();
    }
    std::vector<CopiedBlock> copied;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        copied.push_back({blocks[i], fingerprints[i]});
    }
    return std::optional(std::move(copied));
}

Result<std::vector<CopiedBlock>> BlockReader::copy_through_driver(
    const snapshot::FingerprintKey& key, std::span<const BlockAddress> blocks,
    std::span<std::byte> out) {
    std::vector<CopiedBlock> copied;
    for (std::size_t i = 0; i < blocks.size();) {
        std::size_t run = 1;  // Neighbours are copied together.
        while (i + run < blocks.size() && run < MemoryImage::kBatchBlocks &&
               blocks[i + run].space == blocks[i].space &&
               blocks[i + run].index == blocks[i].index + run) {
            ++run;
        }
        const auto bytes = out.subspan(copied.size() * kBlockBytes, run * kBlockBytes);
        GANTRY_ASSIGN(const bool present,
                      memory_.read({blocks[i].space, blocks[i].index, run}, bytes));
        if (present) {
            fingerprints_.resize(run);
            snapshot::fingerprints(key, bytes, fingerprints_);
        }
        for (std::size_t k = 0; present && k < run; ++k) {
            copied.push_back({blocks[i + k], fingerprints_[k]});
        }
        i += run;
    }
    return copied;
}

Result<std::vector<CopiedBlock>> BlockReader::copy(const snapshot::FingerprintKey& key,
                                                   std::span<const BlockAddress> blocks,
                                                   std::span<std::byte> out) {
    GANTRY_TRY(usable_);
    process_.device.bind_thread();
    GANTRY_TRY(memory_.settle());
    if (gpu_ != nullptr || process_.device.is_host_addressable()) {
        const auto hold = process_.memory.device.hold_layout();
        const bool whole = memory_.are_whole(blocks);
        if (whole && gpu_ != nullptr) {
            GANTRY_ASSIGN(auto copied, copy_by_gpu(key, blocks, out));
            if (copied) {
                return std::move(*copied);
            }
        }
        if (whole && process_.device.is_host_addressable()) {
            return copy_in_place(key, blocks, out);
        }
    }
    return copy_through_driver(key, blocks, out);
}

}  // namespace gantry::state

// A worker with known bytes on the device, and a file for them, for tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <vector>

#include "host-daemon/state/parts/part.h"
#include "tests/unit/worker/guest_fixture.h"

namespace gantry::worker {

using engine::MemorySpace;
using snapshot::kBlockBytes;
using state::FileRun;

inline constexpr snapshot::Seed kSeed{0x1122334455667788, 0x99aabbccddeeff00};
inline constexpr std::uint64_t kBlocks = 1100;      // More than there are slots for (copy_slots.h).
inline constexpr std::uint64_t kFileBegin = 12288;  // Where the contents lie in the file.

/// A worker without a guest and `kBlocks` of memory with known bytes.
struct Holder : Host {
    Holder() : part(*execution, 1), bytes(kBlocks * kBlockBytes) {
        device->bind_thread();
        first = process->memory.device.allocate(bytes.size()).value().value / kBlockBytes;
        std::mt19937_64 random(7);
        for (std::size_t i = 0; i < bytes.size(); i += 8) {
            const std::uint64_t word = random();
            std::memcpy(&bytes[i], &word, 8);
        }
        write(bytes);
        part.source.begin_precopy(kSeed);
        file = control::UniqueFd(memfd_create("blocks", MFD_CLOEXEC));
        EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(kFileBegin + bytes.size())), 0);
    }
    void write(std::span<const std::byte> content) {
        EXPECT_EQ(
            device->api().cuMemcpyHtoD_v2(first * kBlockBytes, content.data(), content.size()),
            CUDA_SUCCESS);
    }
    std::vector<std::byte> memory() {
        std::vector<std::byte> content(bytes.size());
        EXPECT_EQ(
            device->api().cuMemcpyDtoH_v2(content.data(), first * kBlockBytes, content.size()),
            CUDA_SUCCESS);
        return content;
    }
    FileRun run(std::uint64_t at, std::uint64_t count, std::uint64_t place) const {
        return {{MemorySpace::kDevice, first + at, count},
                FileRun::Form::kBytes,
                kFileBegin + place * kBlockBytes,
                0};
    }

    state::Part part;
    std::vector<std::byte> bytes;
    std::uint64_t first = 0;
    control::UniqueFd file;
};

}  // namespace gantry::worker

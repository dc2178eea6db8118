// A guest's side of a ring, for tests of the loop without a worker around it.
#pragma once

#include <cstring>
#include <memory>
#include <thread>

#include "host-daemon/execution/ring/channel_memory.h"
#include "proto/wire/ring.h"

namespace gantry::worker {

struct LoopRing {
    static constexpr std::uint64_t kStart = 1ull << wire::kGenerationShift;

    LoopRing() {
        constexpr std::uint64_t kRegionBytes = 16ull << 20;
        auto region = ChannelMemory::create_region(kRegionBytes);
        auto mapped = ChannelMemory::map(std::move(region).value(), {0, kRegionBytes});
        memory = std::move(mapped).value();
        producer.attach(const_cast<std::byte*>(memory->ring()), memory->layout().ring_bytes,
                        &memory->host_words().head, kStart);
        memory->host_words().head.store(kStart);
    }
    /// A command whose arguments are one word; `trailing` bytes of the word's lowest. Its position.
    std::uint64_t send(std::uint16_t op, std::uint64_t argument, std::uint32_t trailing = 0,
                       std::uint32_t flags = 0) {
        wire::RingRecord record;
        while (!producer.try_reserve(op, 3, sizeof(argument), trailing, &record)) {
            std::this_thread::yield();
        }
        record.header->flags = flags;
        std::memcpy(record.args(), &argument, sizeof(argument));
        std::memset(record.trailing(), static_cast<int>(argument), trailing);
        record.publish();
        memory->guest_words().doorbell.fetch_add(1);
        wire::futex_wake_all(&memory->guest_words().doorbell);
        return record.position;
    }

    std::unique_ptr<ChannelMemory> memory;
    wire::RingProducer producer;
};

}  // namespace gantry::worker

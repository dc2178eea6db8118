// Hostile ring content: whatever a guest writes into its ring, the consumer stays inside it and
// always comes to an end. The same bytes are then offered to the mirror's host end as frames.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "proto/base/assert.h"
#include "proto/wire/mirror/mirror.h"
#include "proto/wire/ring.h"

namespace {

using namespace gantry::wire;

constexpr std::uint64_t kRingBytes = 1 << 14;

struct AlignedRing {
    AlignedRing() : bytes(new (std::align_val_t{64}) std::byte[kRingBytes]()) {}
    ~AlignedRing() { ::operator delete[](bytes, std::align_val_t{64}); }
    std::byte* bytes;
};

void consume(const std::uint8_t* data, std::size_t size) {
    AlignedRing ring;
    std::memcpy(ring.bytes, data, size < kRingBytes ? size : kRingBytes);
    // The first records get publication words that fit, so that fuzzing gets past them.
    std::uint64_t position = 0;
    for (int i = 0; i < 8 && position + sizeof(CommandHeader) <= kRingBytes; ++i) {
        auto* header = reinterpret_cast<CommandHeader*>(ring.bytes + position);
        header->publish.store(position + 1);
        if (header->bytes == 0 || header->bytes % kRecordAlign != 0) {
            break;
        }
        position += header->bytes;
    }
    RingConsumer consumer;
    consumer.attach(ring.bytes, kRingBytes, 0);
    CommandView view;
    const char* reason = nullptr;
    std::uint64_t sum = 0;
    while (consumer.peek(&view, &reason) == PeekStatus::kReady) {
        GANTRY_ASSERT(view.args >= ring.bytes &&
                          view.trailing + view.trailing_bytes <= ring.bytes + kRingBytes,
                      "a record at %llu leads out of the ring",
                      static_cast<unsigned long long>(view.position));
        for (std::uint32_t i = 0; i < view.args_bytes; ++i) {
            sum += static_cast<std::uint64_t>(view.args[i]);
        }
        for (std::uint32_t i = 0; i < view.trailing_bytes; ++i) {
            sum += static_cast<std::uint64_t>(view.trailing[i]);
        }
        consumer.advance(view);
        GANTRY_ASSERT(consumer.next() > view.position, "no progress");
    }
    volatile std::uint64_t keep = sum;
    (void)keep;
}

struct Region {
    static constexpr std::uint64_t kBytes = kMinChannelBytes + 2 * kPageBytes;
    Region() : memory(new (std::align_val_t{kPageBytes}) std::byte[kBytes]) {
        channel.region = memory;
        GANTRY_ASSERT(compute_layout(kBytes, 1, 0, &channel.layout), "layout");
    }
    std::byte* memory;
    MappedChannel channel;
};

void mirror(const std::uint8_t* data, std::size_t size) {
    static Region region;  // Large: cleared in part below instead of made anew.
    std::memset(static_cast<void*>(region.memory), 0, 4 * kPageBytes);
    HostMirror host(region.channel, 0, [](std::span<const std::byte>) { return true; });
    const auto bytes = std::as_bytes(std::span(data, size));
    const std::size_t half = size / 2;
    if (host.receive(bytes.first(half))) {
        host.pump();
        host.receive(bytes.subspan(half));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    consume(data, size);
    mirror(data, size);
    return 0;
}

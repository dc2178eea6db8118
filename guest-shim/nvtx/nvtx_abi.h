// The part of NVTX 3's binary interface that an injected library needs. Facts of the interface, in
// our own words; tests/programs/ranges.cu is built with NVIDIA's header and holds them against it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gantry::nvtx {

enum Module : std::uint32_t { kCore = 1, kCore2 = 5 };
inline constexpr std::uint32_t kCallbacksTable = 1;

/// Numbers of functions within their module.
enum CoreFunction : unsigned {
    kRangeStartEx = 4,
    kRangeStartA = 5,
    kRangeStartW = 6,
    kRangeEnd = 7,
    kRangePushEx = 8,
    kRangePushA = 9,
    kRangePushW = 10,
    kRangePop = 11,
};
enum Core2Function : unsigned {
    kDomainRangeStartEx = 2,
    kDomainRangeEnd = 3,
    kDomainRangePushEx = 4,
    kDomainRangePop = 5,
    kDomainRegisterStringA = 10,
    kDomainRegisterStringW = 11,
    kDomainCreateA = 12,
    kDomainCreateW = 13,
};

enum MessageType : std::int32_t { kNone = 0, kAscii = 1, kUnicode = 2, kRegistered = 3 };

struct EventAttributes {
    std::uint16_t version;
    std::uint16_t size;
    std::uint32_t category;
    std::int32_t color_type;
    std::uint32_t color;
    std::int32_t payload_type;
    std::int32_t reserved;
    std::uint64_t payload;
    std::int32_t message_type;
    const void* message;
};
static_assert(offsetof(EventAttributes, message) == 40);

using Function = void (*)();

struct CallbacksTable {
    std::size_t bytes;
    /// `out`: the module's functions, as pointers to where their addresses are kept.
    int (*module_functions)(std::uint32_t module, Function*** out, unsigned* count);
};

using GetTable = const void* (*)(std::uint32_t table);

}  // namespace gantry::nvtx

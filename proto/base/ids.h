// Strong types for the addresses and ids that cross module borders. Header-only, libc only.
#pragma once

#include <compare>
#include <cstdint>

namespace gantry {

/// A distinct integer type per tag: two of them never convert into each other silently.
template <typename Tag, typename Rep = std::uint64_t>
struct StrongId {
    Rep value{};
    friend constexpr auto operator<=>(const StrongId&, const StrongId&) = default;
};

/// Device virtual address, the same number in guest, source worker and target worker.
using DeviceVa = StrongId<struct DeviceVaTag>;
/// What the guest holds for an object; minted in the guest, unchanged by a migration.
using Handle = StrongId<struct HandleTag>;
/// Position of a command in its process's ring, in bytes since the channel opened.
using CommandSeq = StrongId<struct CommandSeqTag>;
/// Ownership generation of a session; exactly one host owns each (see migration/engine).
using Epoch = StrongId<struct EpochTag>;

}  // namespace gantry

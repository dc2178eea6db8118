// Command: one command of the guest, as it was taken from the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "proto/wire/ring.h"

namespace gantry::worker {

/// `args` and `trailing` are the worker's own copies, unless trailing_is_shared: then the trailing
/// bytes may change at any time and are data only.
struct Command {
    wire::CommandView header;
    std::span<const std::byte> args;
    std::span<const std::byte> trailing;
    bool trailing_is_shared = false;

    [[nodiscard]] bool wants_reply() const {
        return (header.flags & wire::kCommandWantsReply) != 0;
    }
    /// The fixed arguments; nullopt when the command is shorter.
    template <typename T>
    [[nodiscard]] std::optional<T> arguments() const {
        if (args.size() < sizeof(T)) {
            return std::nullopt;
        }
        T value;
        std::memcpy(&value, args.data(), sizeof(T));
        return value;
    }
};

}  // namespace gantry::worker

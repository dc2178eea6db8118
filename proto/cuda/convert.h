// Conversions between ABI values (handles, addresses, enumerations) and their integers on the wire.
#pragma once

#include <cstdint>
#include <type_traits>

namespace gantry::cuda {

template <typename To, typename From>
To convert(From value) noexcept {
    if constexpr (std::is_pointer_v<From> && std::is_pointer_v<To>) {
        return reinterpret_cast<To>(value);
    } else if constexpr (std::is_pointer_v<From>) {
        return static_cast<To>(reinterpret_cast<std::uintptr_t>(value));
    } else if constexpr (std::is_pointer_v<To>) {
        return reinterpret_cast<To>(static_cast<std::uintptr_t>(value));
    } else {
        return static_cast<To>(value);
    }
}

/// Stores a wire value where the ABI wants it.
template <typename To, typename From>
void store(To* target, From value) noexcept {
    *target = convert<To>(value);
}

}  // namespace gantry::cuda

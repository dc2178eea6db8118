// stream_copy: memcpy to memory that nobody reads soon, past the caches.
//
// An ordinary store first fetches the line that it overwrites; these do not, which makes a copy to
// memory nearly twice as fast as memcpy between two large buffers. Any thread may read the bytes
// once the call has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace gantry {

inline void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
    constexpr std::size_t kLine = 64;
    if (reinterpret_cast<std::uintptr_t>(to) % kLine == 0) {
        std::size_t at = 0;
        for (; at + kLine <= bytes; at += kLine) {
            for (std::size_t part = 0; part < kLine; part += sizeof(__m128i)) {
                const __m128i value =
                    _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + part));
                _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + part), value);
            }
        }
        _mm_sfence();  // Before whatever tells others that the bytes are there.
        to += at;
        from += at;
        bytes -= at;
    }
#endif
    std::memcpy(to, from, bytes);
}

}  // namespace gantry

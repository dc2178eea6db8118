// A copy of pageable bytes that several threads work at, slice by slice. All of them post in the
// name of the calling thread's lane; only copies.cc, reads.cc and writes.cc include this.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "guest-shim/session/connection.h"
#include "guest-shim/session/crew.h"

namespace gantry::session {

struct Copy {
    std::byte* host = nullptr;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t slice = 0;
    std::uint64_t stream = 0;
    std::uint32_t lane = 0;
    std::uint64_t context = 0;
    bool is_shared = false;      ///< The host sees this process's extents and shows ends of copies.
    std::uint32_t announce = 0;  ///< As they were at the start: nothing was announced since then
    std::uint64_t epoch = 0;     ///< while these two are unchanged.
    std::atomic<std::uint64_t> next{0};
    std::atomic<std::uint64_t> end{0};  ///< Ring position behind its last command.
    std::atomic<std::uint32_t> result{0};
    std::atomic<bool> is_late{false};    ///< An end was not shown in time.
    std::atomic<bool> was_shown{false};  ///< Bytes were used without an answer.

    void begin(const Thread& self) noexcept;
    [[nodiscard]] bool is_unannounced() const noexcept;
    /// The next slice that nobody has begun; false behind the last one and after an error.
    bool claim(std::uint64_t* offset, std::uint64_t* count) noexcept;
    void note_result(CUresult outcome) noexcept;
    void note_end(std::uint64_t position) noexcept;
    CUresult post(wire::ControlOp op, const void* args, std::uint32_t args_bytes,
                  const void* trailing, std::uint64_t trailing_bytes,
                  std::uint64_t* position) noexcept;
};

/// Half or a quarter of the copy, so that work at both ends overlaps, between 64 KiB and `most`.
std::uint64_t slice_for(std::uint64_t bytes, std::uint64_t most) noexcept;

/// What help a copy is worth.
Help help_for(std::uint64_t bytes, unsigned most_threads) noexcept;

}  // namespace gantry::session

// Copies of a graph from and to pageable memory. The device's side of such a copy reads or writes a
// page-locked extent, and a host function of the graph moves the bytes between the extent and the
// application's pages whenever the graph runs, so that they are those of the moment of the run.
//
// An extent lives as long as a graph or an executable graph that may use it: each owns the copies
// it contains, and passes them on to what is made from it. Owners are known by their handles.
//
// Threads: every function may be called from any thread. Failure: CUDA_ERROR_OUT_OF_MEMORY when the
// pinned pool is full. Cost: nothing until the first such copy; then a walk over all owned copies
// for each graph that is made or destroyed.
#pragma once

#include "guest-shim/driver/memory/shaped_copy.h"

namespace gantry::shim {

struct StagedCopy;

/// Describes `copy` in `call`, and makes the extent if an end is pageable: then *staged is not
/// null, and is either given an owner or dropped.
CUresult stage_copy(const ShapedCopy& copy, cuda::wire_hand::GraphCopyNodeCall* call,
                    StagedCopy** staged) noexcept;
/// The node was not made.
void drop_copy(StagedCopy* staged) noexcept;

void own_copy(std::uint64_t owner, StagedCopy* staged) noexcept;
/// `heir` was made from `owner`, or contains it: what one runs the other may run.
void inherit_copies(std::uint64_t heir, std::uint64_t owner) noexcept;
/// For a graph whose content is not known here.
void inherit_all_copies(std::uint64_t heir) noexcept;
void disown_copies(std::uint64_t owner) noexcept;
/// The copy whose host function has this user data, as the application gave it; false if there is
/// none.
bool find_staged(std::uint64_t user_data, ShapedCopy* out) noexcept;

/// A copy with a pageable end on a stream that captures.
CUresult capture_copy(const ShapedCopy& copy, CUstream stream) noexcept;

}  // namespace gantry::shim

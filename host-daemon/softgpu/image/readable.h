// How much of this process's memory may be read: for images that come without a size.
//
// A kernel image's length stands in its own headers, and those may lie. Before the bytes that a
// header claims are touched, their pages are probed with a system call that fails instead of
// faulting. Cost: one write() of one byte per 4 KiB page. Thread-safe.
#pragma once

#include <cstddef>

namespace gantry::softgpu::image {

/// The number of bytes from `address` on, at most `wanted`, that can be read without a fault.
std::size_t readable_bytes(const void* address, std::size_t wanted);

/// Length of the NUL-terminated text at `address`, or `limit` when no NUL comes within `limit`
/// readable bytes. Never reads a byte behind the NUL.
std::size_t text_bytes(const char* address, std::size_t limit);

}  // namespace gantry::softgpu::image

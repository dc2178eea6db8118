// What a kernel image tells about itself: the names of its variables, and which of the device's
// services its kernels use.
//
// A driver tells a variable's address only to who knows its name, and an application need not have
// asked: its kernels may keep counters, tables and pointers in variables that no host code ever
// names. What they hold must move all the same, so the names are read from the image.
// Pure functions; hostile bytes give fewer names, and count as bytes that may print.
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>

namespace gantry::worker {

/// Names in a fatbin, an ELF file or PTX text; of a fatbin's entries those that a device of compute
/// capability `major`.x runs: its ELF entries of that major number, without any its PTX entries.
/// The list may name what the driver does not load; asking the driver tells.
std::set<std::string> variable_names(std::span<const std::byte> image, unsigned major);

/// May kernels of the image print? True also when that cannot be told.
bool may_print(std::span<const std::byte> image, unsigned major);

/// Both at once, for an image that is expensive to decompress.
struct ImageContents {
    std::set<std::string> variables;
    bool prints = false;
};
ImageContents contents_of(std::span<const std::byte> image, unsigned major);

/// Do kernels of the image allocate from the device's heap? Only a driver that says so can save it.
bool uses_device_heap(std::span<const std::byte> image, unsigned major);

}  // namespace gantry::worker

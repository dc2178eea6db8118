// Gives code to the CUDA driver and takes it back.
//
// The driver gets an image as the application gave it: a fatbin's header, an ELF, a PTX text, or
// for a prelinked (-rdc) program a wrapper with all its parts. It is given a pointer and no length:
// each part is checked first (code/image_check.h), whoever sent it.
//
// Threads: those that may call the driver with the code's context current.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "host-daemon/execution/code/image_store.h"
#include "host-daemon/execution/code/jit_options.h"
#include "host-daemon/execution/process/guest_process.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

/// Asked before the driver is, with the bytes that an image's variables take: anything but
/// CUDA_SUCCESS is the load's result.
using Afford = std::function<CUresult(std::uint64_t variable_bytes)>;

/// Loads the image's parts as a module or as a library; `native`: the driver's handle.
/// CUDA_ERROR_INVALID_IMAGE, and the reason in the log, when no driver may have one of them.
CUresult hand_to_driver(GuestProcess& process, const Image& image,
                        std::span<const cuda::wire_hand::ImagePart> parts, bool is_library,
                        JitOptions& options, std::uint64_t* native, const Afford& afford = {});
void unload_image(const driver::DriverApi& api, bool library, std::uint64_t native);

}  // namespace gantry::worker

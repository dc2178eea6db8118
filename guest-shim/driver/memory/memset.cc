// Fills. Range and alignment are checked here, as native does before it queues anything.
#include "guest-shim/driver/core/call_rules.h"
#include "guest-shim/driver/core/objects.h"
#include "guest-shim/driver/core/ranges.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

struct Rows {
    std::uint64_t address;
    std::uint64_t pitch;
    std::uint64_t width;  ///< Elements.
    std::uint64_t height;
    std::uint64_t element_bytes;
};

/// `address`: what the device calls the first row's.
CUresult check(const Rows& rows, CUstream stream, std::uint64_t* address) {
    GANTRY_REFUSE_IF(!is_stream(stream), CUDA_ERROR_INVALID_HANDLE);
    if (rows.width == 0 || rows.height == 0) {
        return CUDA_SUCCESS;
    }
    constexpr std::uint64_t kMost = 1ull << 46;
    if (rows.width > kMost / rows.element_bytes || rows.height > kMost || rows.pitch > kMost ||
        rows.address % rows.element_bytes != 0 ||
        (rows.height > 1 && rows.pitch % rows.element_bytes != 0) ||
        (rows.height > 1 && rows.pitch < rows.width * rows.element_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto span = static_cast<unsigned __int128>(rows.pitch) * (rows.height - 1) +
                      rows.width * rows.element_bytes;
    Place place{};
    const bool fine = span <= kMost && rows.address != 0 &&
                      place_on_device(rows.address, static_cast<std::uint64_t>(span), &place);
    *address = place.address;
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// The forms without a stream wait, as native does, where the memory is the host's too: page-locked
/// or managed. Else a program that reads or writes it next would be too early.
template <typename Fill>
CUresult fill_and_wait(CUdeviceptr target, std::uint64_t elements, CUstream stream, Fill fill) {
    Place place{};
    const bool waits = elements != 0 && !is_in_arena(target) && place_of(target, 1, &place) &&
                       is_in_pool(place.address);
    if (waits) {
        session::wait_follows();
    }
    const CUresult result = fill();
    return result == CUDA_SUCCESS && waits ? synchronize_stream(bits(stream)) : result;
}

}  // namespace
}  // namespace gantry::shim

namespace gantry::shim::rules {

Answer fill_rows(CUstream stream, CUdeviceptr* address, std::uint64_t pitch, std::uint64_t width,
                 std::uint64_t height, std::uint64_t element_bytes) noexcept {
    std::uint64_t on_device = *address;
    const CUresult result =
        check({*address, pitch, width, height, element_bytes}, stream, &on_device);
    if (result != CUDA_SUCCESS || width == 0 || height == 0) {
        return result;
    }
    *address = on_device;
    return {};
}

}  // namespace gantry::shim::rules

namespace gantry::cuda_impl {

using namespace gantry::shim;

CUresult cuMemsetD8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned char uc,
                       size_t N) noexcept {
    const CUstream stream = default_stream_handle(default_stream);
    return fill_and_wait(dstDevice, N, stream,
                         [&] { return cuMemsetD8Async(dstDevice, uc, N, stream); });
}

CUresult cuMemsetD16_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned short us,
                        size_t N) noexcept {
    const CUstream stream = default_stream_handle(default_stream);
    return fill_and_wait(dstDevice, N, stream,
                         [&] { return cuMemsetD16Async(dstDevice, us, N, stream); });
}

CUresult cuMemsetD32_v2(DefaultStream default_stream, CUdeviceptr dstDevice, unsigned int ui,
                        size_t N) noexcept {
    const CUstream stream = default_stream_handle(default_stream);
    return fill_and_wait(dstDevice, N, stream,
                         [&] { return cuMemsetD32Async(dstDevice, ui, N, stream); });
}

CUresult cuMemsetD2D8_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                         unsigned char uc, size_t Width, size_t Height) noexcept {
    const CUstream stream = default_stream_handle(default_stream);
    return fill_and_wait(dstDevice, Width * Height, stream, [&] {
        return cuMemsetD2D8Async(dstDevice, dstPitch, uc, Width, Height, stream);
    });
}

CUresult cuMemsetD2D16_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                          unsigned short us, size_t Width, size_t Height) noexcept {
    const CUstream stream = default_stream_handle(default_stream);
    return fill_and_wait(dstDevice, Width * Height, stream, [&] {
        return cuMemsetD2D16Async(dstDevice, dstPitch, us, Width, Height, stream);
    });
}

CUresult cuMemsetD2D32_v2(DefaultStream default_stream, CUdeviceptr dstDevice, size_t dstPitch,
                          unsigned int ui, size_t Width, size_t Height) noexcept {
    const CUstream stream = default_stream_handle(default_stream);
    return fill_and_wait(dstDevice, Width * Height, stream, [&] {
        return cuMemsetD2D32Async(dstDevice, dstPitch, ui, Width, Height, stream);
    });
}

}  // namespace gantry::cuda_impl

// What generated dispatch uses to take a command apart. Input is hostile: every length is checked
// against what is there before anything is multiplied, allocated or read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "proto/cuda/convert.h"
#include "proto/cuda/dispatch_interface.h"
#include "proto/cuda/gen/wire_structs.h"

namespace gantry::worker {

/// More elements than fit a reply page are answered by hand-written handlers.
inline constexpr std::uint64_t kMostReplyElements = 4096;

/// Copies the fixed arguments once; false when their size is not the structure's.
template <typename Call>
bool copy_args(std::span<const std::byte> args, Call* call) {
    if (args.size() != cuda::wire::kWireBytes<Call>) {
        return false;
    }
    if constexpr (cuda::wire::kWireBytes<Call> != 0) {
        std::memcpy(call, args.data(), sizeof *call);
    }
    return true;
}

/// The bytes of a call's fixed arguments, for a Recipe.
template <typename Call>
std::span<const std::byte> args_of(const Call& call) {
    return {reinterpret_cast<const std::byte*>(&call), cuda::wire::kWireBytes<Call>};
}

/// Hands out the trailing items in order, each padded to 8 bytes.
class TrailingReader {
public:
    explicit TrailingReader(std::span<const std::byte> bytes) : rest_(bytes) {}

    /// Start of `count` elements, or null when they are not all there. Never null for no elements.
    const std::byte* take(std::uint64_t count, std::uint64_t element_bytes) {
        static constexpr std::byte kNothing[8] = {};
        if (count == 0) {
            return kNothing;
        }
        if (count > rest_.size() / element_bytes) {
            return nullptr;
        }
        const std::uint64_t padded = (count * element_bytes + 7) & ~std::uint64_t{7};
        if (padded > rest_.size()) {
            return nullptr;
        }
        const std::byte* const start = rest_.data();
        rest_ = rest_.subspan(padded);
        return start;
    }

    [[nodiscard]] bool empty() const { return rest_.empty(); }

private:
    std::span<const std::byte> rest_;
};

/// Puts the driver's device number into a place of memory that names one.
template <typename Location>
CUresult map_location(CallContext& context, Location* location) {
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE
               ? context.device(location->id, &location->id)
               : CUDA_SUCCESS;
}

/// Puts the driver's handles into the description of what a texture or surface reads.
inline CUresult to_native(CallContext& context, CUDA_RESOURCE_DESC_v1* resource) {
    auto& res = resource->res;
    std::uint64_t native = 0;
    CUresult result = CUDA_SUCCESS;
    switch (resource->resType) {
        case CU_RESOURCE_TYPE_ARRAY:
            result = context.resolve(cuda::HandleKind::kArray,
                                     cuda::convert<std::uint64_t>(res.array.hArray), &native);
            res.array.hArray = cuda::convert<CUarray>(native);
            return result;
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
            result =
                context.resolve(cuda::HandleKind::kMipmappedArray,
                                cuda::convert<std::uint64_t>(res.mipmap.hMipmappedArray), &native);
            res.mipmap.hMipmappedArray = cuda::convert<CUmipmappedArray>(native);
            return result;
        case CU_RESOURCE_TYPE_LINEAR:
        case CU_RESOURCE_TYPE_PITCH2D:
            return CUDA_SUCCESS;  // Device addresses are the same on both sides.
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/// The guest's handles in the driver's description; null for an object that has none.
inline void to_guest(CallContext& context, CUDA_RESOURCE_DESC_v1* resource) {
    auto& res = resource->res;
    std::uint64_t handle = 0;
    if (resource->resType == CU_RESOURCE_TYPE_ARRAY) {
        static_cast<void>(context.guest_handle(
            cuda::HandleKind::kArray, cuda::convert<std::uint64_t>(res.array.hArray), &handle));
        res.array.hArray = cuda::convert<CUarray>(handle);
    } else if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        static_cast<void>(context.guest_handle(
            cuda::HandleKind::kMipmappedArray,
            cuda::convert<std::uint64_t>(res.mipmap.hMipmappedArray), &handle));
        res.mipmap.hMipmappedArray = cuda::convert<CUmipmappedArray>(handle);
    }
}

/// Translates an array of guest handles whose length was checked.
template <typename Native>
CUresult resolve_all(CallContext& context, cuda::HandleKind kind, const std::byte* handles,
                     std::uint64_t count, std::vector<Native>* out) {
    out->reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        std::uint64_t handle = 0;
        std::memcpy(&handle, handles + i * sizeof handle, sizeof handle);
        std::uint64_t native = 0;
        if (const CUresult status = context.resolve(kind, handle, &native);
            status != CUDA_SUCCESS) {
            return status;
        }
        out->push_back(cuda::convert<Native>(native));
    }
    return CUDA_SUCCESS;
}

}  // namespace gantry::worker

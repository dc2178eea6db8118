#include "host-daemon/state/blocks/arrays.h"

#include <algorithm>
#include <cstring>

#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry::worker {
namespace {

std::uint64_t channel_bytes(CUarray_format format) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return 1;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return 2;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return 4;
        default:
            return 0;  // Block-compressed and planar formats: not captured, see blocked features.
    }
}

std::optional<ArrayShape> shape_of(const driver::DriverApi& api, CUarray native,
                                   std::uint64_t order) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 descriptor{};
    if (api.cuArray3DGetDescriptor_v2 == nullptr ||
        api.cuArray3DGetDescriptor_v2(&descriptor, native) != CUDA_SUCCESS) {
        return std::nullopt;
    }
    const std::uint64_t element = channel_bytes(descriptor.Format) * descriptor.NumChannels;
    if (element == 0) {
        return std::nullopt;
    }
    ArrayShape shape;
    shape.order = order;
    shape.native = native;
    shape.width_bytes = descriptor.Width * element;
    shape.height = std::max<std::uint64_t>(descriptor.Height, 1);
    shape.depth = std::max<std::uint64_t>(descriptor.Depth, 1);
    shape.linear_bytes = shape.width_bytes * shape.height * shape.depth;
    return shape;
}

void add_levels(GuestProcess& process, const Object& object, std::vector<ArrayShape>* out) {
    wire::cuMipmappedArrayCreate_call create{};
    const driver::DriverApi& api = process.device.api();
    if (object.creation.args.size() < sizeof(create) || api.cuMipmappedArrayGetLevel == nullptr) {
        return;
    }
    std::memcpy(&create, object.creation.args.data(), sizeof(create));
    for (std::uint64_t level = 0; level < create.numMipmapLevels && level < kLevelsMax; ++level) {
        CUarray native = nullptr;
        if (api.cuMipmappedArrayGetLevel(&native, reinterpret_cast<CUmipmappedArray>(object.native),
                                         static_cast<unsigned int>(level)) != CUDA_SUCCESS) {
            return;
        }
        if (auto shape = shape_of(api, native, object.order * kLevelsMax + level)) {
            out->push_back(*shape);
        }
    }
}

}  // namespace

std::vector<ArrayShape> list_arrays(GuestProcess& process) {
    std::vector<ArrayShape> shapes;
    const auto objects = process.objects.list([](const Object& object) {
        return (object.kind() == HandleKind::kArray && object.parent == 0) ||
               object.kind() == HandleKind::kMipmappedArray;
    });
    for (const Object& object : objects) {
        if (object.kind() == HandleKind::kMipmappedArray) {
            add_levels(process, object, &shapes);
        } else if (auto shape =
                       shape_of(process.device.api(), reinterpret_cast<CUarray>(object.native),
                                object.order * kLevelsMax)) {
            shapes.push_back(*shape);
        }
    }
    return shapes;
}

std::optional<ArrayShape> find_array(GuestProcess& process, std::uint64_t order) {
    for (const ArrayShape& shape : list_arrays(process)) {
        if (shape.order == order) {
            return shape;
        }
    }
    return std::nullopt;
}

CUresult copy_array(GuestProcess& process, const ArrayShape& array, std::span<std::byte> linear,
                    ArrayCopy direction, CUstream stream) {
    const driver::DriverApi& api = process.device.api();
    if (api.cuMemcpy3DAsync_v2 == nullptr || linear.size() != array.linear_bytes) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUDA_MEMCPY3D_v2 copy{};
    copy.WidthInBytes = array.width_bytes;
    copy.Height = array.height;
    copy.Depth = array.depth;
    if (direction == ArrayCopy::kOut) {
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.srcArray = array.native;
        copy.dstMemoryType = CU_MEMORYTYPE_HOST;
        copy.dstHost = linear.data();
        copy.dstPitch = array.width_bytes;
        copy.dstHeight = array.height;
    } else {
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        copy.dstArray = array.native;
        copy.srcMemoryType = CU_MEMORYTYPE_HOST;
        copy.srcHost = linear.data();
        copy.srcPitch = array.width_bytes;
        copy.srcHeight = array.height;
    }
    const CUresult result = api.cuMemcpy3DAsync_v2(&copy, stream);
    return result == CUDA_SUCCESS ? api.cuStreamSynchronize(stream) : result;
}

}  // namespace gantry::worker

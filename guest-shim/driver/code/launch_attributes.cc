// Which launches are sure to be accepted. The others wait for the host, so that what its driver
// finds wrong with an attribute is the launch's own result, whatever driver that is; but what it
// has accepted of a kernel is not asked again.
#include <cstdlib>
#include <cstring>

#include "guest-shim/driver/code/launch.h"
#include "proto/cuda/refuse_if.h"

namespace gantry::shim {
namespace {

constexpr std::uint64_t kPortableCluster = 8;
constexpr unsigned kMostCarveout = 100;

struct Cluster {
    std::uint64_t blocks[3];
};

/// The clusters that the kernel was compiled for or told to have; no axis is 0 then.
bool kernels_cluster(const Kernel& kernel, Cluster* out) noexcept {
    bool any = false;
    for (int axis = 0; axis < 3; ++axis) {
        const std::int32_t blocks =
            kernel.attributes[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH + axis];
        any = any || blocks > 0;
        out->blocks[axis] = blocks > 0 ? static_cast<std::uint64_t>(blocks) : 1;
    }
    return any;
}

/// Clusters that divide the grid and that every device that has clusters can hold.
bool cluster_fits(const Cluster& cluster, const Shape& shape) noexcept {
    std::uint64_t blocks = 1;
    for (int axis = 0; axis < 3; ++axis) {
        const std::uint64_t along = cluster.blocks[axis];
        if (along == 0 || along > kPortableCluster || shape.grid[axis] % along != 0) {
            return false;
        }
        blocks *= along;
    }
    const wire::DeviceFacts* facts = session::device_facts(current_device());
    const bool has_clusters =
        facts != nullptr && facts->attributes[CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH] != 0;
    return blocks == 1 || (has_clusters && blocks <= kPortableCluster);
}

bool is_priority(int priority) noexcept {
    const wire::DeviceFacts* facts = session::device_facts(current_device());
    return facts != nullptr && priority <= facts->least_stream_priority &&
           priority >= facts->greatest_stream_priority;
}

/// Attributes that stand for themselves; clusters are looked at beside these.
bool is_plain_value(const CUlaunchAttribute& attribute) noexcept {
    const CUlaunchAttributeValue& value = attribute.value;
    switch (static_cast<int>(attribute.id)) {
        case CU_LAUNCH_ATTRIBUTE_IGNORE:
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:  // Its grid is looked at before.
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: return true;
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            return value.clusterSchedulingPolicyPreference >= 0 &&
                   value.clusterSchedulingPolicyPreference <=
                       CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING;
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            return value.programmaticStreamSerializationAllowed == 0 ||
                   value.programmaticStreamSerializationAllowed == 1;
        case CU_LAUNCH_ATTRIBUTE_PRIORITY: return is_priority(value.priority);
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            return value.sharedMemCarveout <= kMostCarveout;
        default: return false;
    }
}

constexpr std::uint64_t kNothing = 0xcbf29ce484222325;

/// FNV-1a. It tells launches of one kernel from each other; nobody gains by making two meet.
std::uint64_t digest(std::uint64_t from, const void* bytes, std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; ++i) {
        from = (from ^ static_cast<const unsigned char*>(bytes)[i]) * 0x100000001b3;
    }
    return from;
}

}  // namespace

bool is_plain_launch(const Kernel& kernel, const Shape& shape, const CUlaunchAttribute* attributes,
                     unsigned count) noexcept {
    Cluster cluster{};
    const bool kernel_has = kernels_cluster(kernel, &cluster);
    bool plain = true;
    for (unsigned i = 0; i < count; ++i) {
        plain = plain && is_plain_value(attributes[i]);
        if (attributes[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto& dim = attributes[i].value.clusterDim;
            const Cluster given{{dim.x, dim.y, dim.z}};
            plain = plain && (!kernel_has || std::memcmp(&given, &cluster, sizeof(given)) == 0);
            cluster = given;
        }
    }
    return plain && cluster_fits(cluster, shape);
}

CUresult launch_asking(cuda::Op op, const void* call, std::uint32_t call_bytes, const Shape& shape,
                       const void* attributes, std::uint32_t attribute_bytes, Kernel* kernel,
                       const Arguments& arguments, std::uint32_t param_bytes) noexcept {
    const std::uint64_t wanted =
        digest(digest(kNothing, &shape, sizeof(shape)), attributes, attribute_bytes);
    std::uint64_t& place = kernel->accepted[wanted % 2];
    const bool is_known = __atomic_load_n(&place, __ATOMIC_RELAXED) == wanted;
    const std::uint32_t bytes = attribute_bytes + param_bytes;
    auto* trailing = static_cast<std::byte*>(std::malloc(bytes != 0 ? bytes : 1));
    GANTRY_REFUSE_IF(trailing == nullptr, CUDA_ERROR_OUT_OF_MEMORY);
    if (attribute_bytes != 0) {
        std::memcpy(trailing, attributes, attribute_bytes);
    }
    pack(*kernel, arguments, trailing + attribute_bytes, param_bytes);
    CUresult result = CUDA_SUCCESS;
    if (is_known) {
        session::Record record;
        result = session::reserve(static_cast<std::uint16_t>(op), call_bytes, bytes, &record);
        if (result == CUDA_SUCCESS) {
            std::memcpy(record.args, call, call_bytes);
            std::memcpy(record.trailing, trailing, bytes);
            result = session::finish(record);
        }
    } else {
        result =
            session::call(op, call, call_bytes, trailing, bytes, nullptr, 0, nullptr, 0, nullptr);
        if (result == CUDA_SUCCESS) {
            __atomic_store_n(&place, wanted, __ATOMIC_RELAXED);
        }
    }
    std::free(trailing);
    return result;
}

void forget_accepted(Kernel* kernel) noexcept {
    for (std::uint64_t& place : kernel->accepted) {
        __atomic_store_n(&place, 0, __ATOMIC_RELAXED);
    }
}

}  // namespace gantry::shim

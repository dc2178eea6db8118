// Both generated ends of the wire against each other: marshalling in the guest, a session that
// hands the bytes straight to dispatch, and a driver that writes down what it was called with. Then
// damaged commands: nothing of them may reach the driver.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "guest-shim/session/session.h"
#include "proto/cuda/gen/driver_api_table.h"
#include "proto/cuda/gen/fuzz_grammar.h"
#include "proto/cuda/gen/impl.h"
#include "proto/cuda/gen/op_flags.h"
#include "proto/cuda/gen/shim_marshal.h"
#include "proto/cuda/gen/trace.h"
#include "proto/cuda/gen/worker_dispatch.h"

namespace gantry {
namespace {

using cuda::HandleKind;
using cuda::Op;

struct Bytes : worker::Reply {
    std::vector<std::byte> fixed_part;
    std::vector<std::byte> trailing_part;

    void fixed(std::span<const std::byte> bytes) override {
        fixed_part.assign(bytes.begin(), bytes.end());
    }
    void trailing(std::span<const std::byte> bytes) override {
        trailing_part.insert(trailing_part.end(), bytes.begin(), bytes.end());
    }
};

/// The one handle that the guest's tables do not know.
constexpr std::uint64_t kDeadHandle = 0x4700'dead;

/// What the driver calls the guest's device 0.
constexpr std::int32_t kDriverDevice = 3;

/// Knows the handles that were bound; the driver's value is the handle plus one.
struct Context : worker::CallContext {
    driver::DriverApi api;
    std::map<std::pair<HandleKind, std::uint64_t>, std::uint64_t> objects;
    std::vector<Op> recipes;
    int malformed_count = 0;
    int unsupported_count = 0;

    const driver::DriverApi& driver() override { return api; }
    CUresult resolve(HandleKind kind, std::uint64_t handle, std::uint64_t* native) override {
        if (kind == HandleKind::kStream && handle <= 2) {
            *native = handle;
            return CUDA_SUCCESS;
        }
        const auto found = objects.find({kind, handle});
        if (found == objects.end()) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        *native = found->second;
        return CUDA_SUCCESS;
    }
    CUresult guest_handle(HandleKind kind, std::uint64_t native, std::uint64_t* handle) override {
        for (const auto& [key, value] : objects) {
            if (key.first == kind && value == native) {
                *handle = key.second;
                return CUDA_SUCCESS;
            }
        }
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult device(std::int32_t guest, std::int32_t* native) override {
        *native = guest == 0 ? kDriverDevice : guest;
        return guest > 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    }
    CUresult reserve(HandleKind kind, std::uint64_t handle) override {
        return objects.contains({kind, handle}) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    CUresult bind(HandleKind kind, std::uint64_t handle, std::uint64_t native,
                  const worker::Recipe& recipe) override {
        objects[{kind, handle}] = native;
        recipes.push_back(recipe.op);
        return CUDA_SUCCESS;
    }
    CUresult name(HandleKind kind, std::uint64_t new_handle, std::uint64_t native,
                  const worker::Recipe& recipe, std::uint64_t* handle) override {
        *handle = new_handle;
        return guest_handle(kind, native, handle) == CUDA_SUCCESS
                   ? CUDA_SUCCESS
                   : bind(kind, new_handle, native, recipe);
    }
    void unbind(HandleKind kind, std::uint64_t handle) override { objects.erase({kind, handle}); }
    void configured(HandleKind, std::uint64_t, const worker::Recipe& recipe) override {
        recipes.push_back(recipe.op);
    }
    CUresult unsupported(Op) override {
        ++unsupported_count;
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUresult malformed(Op, const char*) override {
        ++malformed_count;
        return CUDA_ERROR_INVALID_VALUE;
    }
};

Context* g_context = nullptr;
std::uint64_t g_next_handle = 0x4700'0000;
std::string g_trace;
std::vector<std::byte> g_last_args;
std::vector<std::byte> g_last_trailing;
Op g_last_op = Op::kNone;
std::string g_driver_saw;

CUresult deliver(Op op, const void* args, std::uint32_t args_bytes, const void* trailing,
                 std::uint32_t trailing_bytes, Bytes* answer) {
    char line[512];
    cuda::trace_format(line, sizeof line, op, args, args_bytes);
    g_trace = line;
    const auto* const first = static_cast<const std::byte*>(args);
    g_last_args.assign(first, first + args_bytes);
    const auto* const behind = static_cast<const std::byte*>(trailing);
    g_last_trailing.assign(behind, behind + trailing_bytes);
    g_last_op = op;
    return worker::dispatch(*g_context, op, g_last_args, g_last_trailing, *answer);
}

}  // namespace

namespace session {

CUresult post(Op op, const void* args, std::uint32_t args_bytes, const void* trailing,
              std::uint32_t trailing_bytes) noexcept {
    Bytes answer;
    return deliver(op, args, args_bytes, trailing, trailing_bytes, &answer);
}

CUresult call(Op op, const void* args, std::uint32_t args_bytes, const void* trailing,
              std::uint32_t trailing_bytes, void* reply, std::uint32_t reply_bytes,
              void* reply_trailing, std::uint32_t reply_trailing_capacity,
              std::uint32_t* reply_trailing_bytes) noexcept {
    Bytes answer;
    const CUresult status = deliver(op, args, args_bytes, trailing, trailing_bytes, &answer);
    if (status == CUDA_SUCCESS) {
        EXPECT_EQ(answer.fixed_part.size(), reply_bytes);
        if (reply_bytes != 0) {
            std::memcpy(reply, answer.fixed_part.data(), reply_bytes);
        }
        const auto bytes = static_cast<std::uint32_t>(answer.trailing_part.size());
        EXPECT_LE(bytes, reply_trailing_capacity);
        if (bytes != 0) {
            std::memcpy(reply_trailing, answer.trailing_part.data(), bytes);
            *reply_trailing_bytes = bytes;
        }
    }
    return status;
}

std::uint64_t mint(HandleKind) noexcept { return g_next_handle++; }

}  // namespace session

namespace marshal {

bool is_known(HandleKind, std::uint64_t handle) noexcept { return handle != kDeadHandle; }

}  // namespace marshal

std::size_t g_described = 0;

namespace worker::served {

CUresult cuMemPoolSetAccess(CallContext&, CUmemoryPool, const CUmemAccessDesc* descriptions,
                            std::size_t count) {
    g_described = count;
    for (std::size_t i = 0; i < count; ++i) {
        EXPECT_EQ(descriptions[i].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
    return CUDA_SUCCESS;
}

}  // namespace worker::served

namespace cuda_impl {

CUresult refused(Op) noexcept { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace cuda_impl

namespace {

template <typename Handle>
Handle handle_of(std::uint64_t value) {
    return reinterpret_cast<Handle>(value);
}

class WireRoundTrip : public testing::Test {
protected:
    void SetUp() override {
        g_context = &context_;
        g_driver_saw.clear();
    }

    /// Puts an object behind a guest handle.
    void own(HandleKind kind, std::uint64_t handle, std::uint64_t native) {
        context_.objects[{kind, handle}] = native;
    }

    Context context_;
};

TEST_F(WireRoundTrip, CreatesAnObjectUnderTheHandleTheGuestChose) {
    context_.api.cuGraphCreate = [](CUgraph* graph, unsigned int) {
        *graph = handle_of<CUgraph>(0xabc0);
        return CUDA_SUCCESS;
    };
    CUgraph graph = nullptr;
    ASSERT_EQ(cuda_impl::cuGraphCreate(&graph, 0), CUDA_SUCCESS);
    const auto minted = reinterpret_cast<std::uint64_t>(graph);
    EXPECT_EQ(context_.objects.at({HandleKind::kGraph, minted}), 0xabc0u);
    EXPECT_EQ(context_.recipes, std::vector<Op>{Op::cuGraphCreate});
}

TEST_F(WireRoundTrip, ADestroyedObjectIsForgotten) {
    own(HandleKind::kGraph, 0x4701, 0xabc0);
    context_.api.cuGraphDestroy = [](CUgraph native) {
        EXPECT_EQ(native, handle_of<CUgraph>(0xabc0));
        return CUDA_SUCCESS;
    };
    auto* const graph = handle_of<CUgraph>(0x4701);
    ASSERT_EQ(marshal::cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT_TRUE(context_.objects.empty());
    EXPECT_EQ(marshal::cuGraphDestroy(graph), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(WireRoundTrip, ADeadHandleIsRefusedBeforeAnythingCrosses) {
    g_last_op = Op::kNone;
    auto* const dead = handle_of<CUstream>(kDeadHandle);
    auto* const event = handle_of<CUevent>(kDeadHandle);
    EXPECT_EQ(marshal::cuStreamWaitEvent(dead, handle_of<CUevent>(0x4701), 0),
              CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(marshal::cuStreamWaitEvent(nullptr, event, 0), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(marshal::cuCtxRecordEvent(handle_of<CUcontext>(kDeadHandle), event),
              CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(marshal::cuGraphUpload(handle_of<CUgraphExec>(kDeadHandle), nullptr),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(
        marshal::cuMemcpyPeerAsync(8, handle_of<CUcontext>(kDeadHandle), 16, nullptr, 4, nullptr),
        CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(g_last_op, Op::kNone);
}

TEST_F(WireRoundTrip, HandWrittenShimCodeNamesTheHandle) {
    context_.api.cuStreamCreate = [](CUstream* stream, unsigned int flags) {
        EXPECT_EQ(flags, 1u);
        *stream = handle_of<CUstream>(0x5550);
        return CUDA_SUCCESS;
    };
    ASSERT_EQ(marshal::cuStreamCreate(0x999, 1), CUDA_SUCCESS);
    EXPECT_EQ(context_.objects.at({HandleKind::kStream, 0x999}), 0x5550u);
    EXPECT_EQ(g_trace, "cuStreamCreate(phStream=0x999, Flags=1)");
    EXPECT_EQ(marshal::cuStreamCreate(0x99a, 2), CUDA_ERROR_INVALID_VALUE) << "flag out of mask";
    EXPECT_EQ(marshal::cuStreamCreate(0x999, 1), CUDA_ERROR_INVALID_VALUE) << "handle in use";
}

TEST_F(WireRoundTrip, DeviceNumbersBecomeTheDrivers) {
    static std::vector<int> seen;
    seen.clear();
    context_.api.cuDeviceGetTexture1DLinearMaxWidth = [](size_t* width, CUarray_format, unsigned,
                                                         CUdevice device) {
        seen.push_back(device);
        *width = 4096;
        return CUDA_SUCCESS;
    };
    context_.api.cuMemAdvise = [](CUdeviceptr, size_t, CUmem_advise, CUdevice device) {
        seen.push_back(device);
        return CUDA_SUCCESS;
    };
    context_.api.cuMemAdvise_v2 = [](CUdeviceptr, size_t, CUmem_advise, CUmemLocation location) {
        seen.push_back(location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -100);
        return CUDA_SUCCESS;
    };
    size_t width = 0;
    EXPECT_EQ(marshal::cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 1, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(width, 4096u);
    EXPECT_EQ(marshal::cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 1, 1),
              CUDA_ERROR_INVALID_DEVICE);
    // A worker refuses these two as a whole; what the generator makes of them can be asked for.
    const auto advise = [&](std::int32_t device) {
        cuda::wire::cuMemAdvise_call call{};
        call.device = device;
        Bytes reply;
        return worker::generated::on_cuMemAdvise(context_, call, {}, reply);
    };
    EXPECT_EQ(advise(0), CUDA_SUCCESS);
    EXPECT_EQ(advise(CU_DEVICE_CPU), CUDA_SUCCESS);
    const auto advise_at = [&](CUmemLocation location) {
        cuda::wire::cuMemAdvise_v2_call call{};
        std::memcpy(&call.location, &location, sizeof location);
        Bytes reply;
        return worker::generated::on_cuMemAdvise_v2(context_, call, {}, reply);
    };
    EXPECT_EQ(advise_at({CU_MEM_LOCATION_TYPE_DEVICE, 0}), CUDA_SUCCESS);
    EXPECT_EQ(advise_at({CU_MEM_LOCATION_TYPE_HOST, 0}), CUDA_SUCCESS);
    EXPECT_EQ(advise_at({CU_MEM_LOCATION_TYPE_DEVICE, 1}), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(seen,
              (std::vector<int>{kDriverDevice, kDriverDevice, CU_DEVICE_CPU, kDriverDevice, -100}));
}

TEST_F(WireRoundTrip, ScalarsAndStreamsArrive) {
    own(HandleKind::kStream, 0x47aa, 0x1230);
    context_.api.cuMemsetD2D16Async = [](CUdeviceptr address, size_t pitch, unsigned short value,
                                         size_t width, size_t height, CUstream stream) {
        EXPECT_EQ(address, 0x3000'0000'1000u);
        EXPECT_EQ(pitch, 512u);
        EXPECT_EQ(value, 0xbeef);
        EXPECT_EQ(width, 100u);
        EXPECT_EQ(height, 3u);
        g_driver_saw = std::to_string(reinterpret_cast<std::uint64_t>(stream));
        return CUDA_SUCCESS;
    };
    ASSERT_EQ(marshal::cuMemsetD2D16Async(0x3000'0000'1000, 512, 0xbeef, 100, 3,
                                          handle_of<CUstream>(0x47aa)),
              CUDA_SUCCESS);
    EXPECT_EQ(g_driver_saw, std::to_string(0x1230));
}

TEST_F(WireRoundTrip, StructuresAndOutputsCrossBothWays) {
    context_.api.cuArrayCreate_v2 = [](CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
        EXPECT_EQ(descriptor->Width, 640u);
        EXPECT_EQ(descriptor->Height, 480u);
        EXPECT_EQ(descriptor->Format, CU_AD_FORMAT_FLOAT);
        EXPECT_EQ(descriptor->NumChannels, 4u);
        *array = handle_of<CUarray>(0x777);
        return CUDA_SUCCESS;
    };
    context_.api.cuArrayGetDescriptor_v2 = [](CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray array) {
        EXPECT_EQ(array, handle_of<CUarray>(0x777));
        *descriptor = {640, 480, CU_AD_FORMAT_FLOAT, 4};
        return CUDA_SUCCESS;
    };
    const CUDA_ARRAY_DESCRIPTOR wanted = {640, 480, CU_AD_FORMAT_FLOAT, 4};
    CUarray array = nullptr;
    ASSERT_EQ(cuda_impl::cuArrayCreate_v2(&array, &wanted), CUDA_SUCCESS);
    CUDA_ARRAY_DESCRIPTOR got = {};
    ASSERT_EQ(marshal::cuArrayGetDescriptor_v2(&got, array), CUDA_SUCCESS);
    EXPECT_EQ(got.Width, 640u);
    EXPECT_EQ(got.NumChannels, 4u);
    EXPECT_EQ(cuda_impl::cuArrayCreate_v2(nullptr, &wanted), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(marshal::cuArrayGetDescriptor_v2(&got, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(WireRoundTrip, ArraysAndTheirLengthsCross) {
    context_.api.cuTensorMapEncodeTiled =
        [](CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
           const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
           const cuuint32_t* element, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
            EXPECT_EQ(type, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
            EXPECT_EQ(rank, 3u);
            EXPECT_EQ(address, reinterpret_cast<void*>(0x3000'0000'2000));
            EXPECT_EQ(dims[2], 30u);
            EXPECT_EQ(strides[1], 2048u);
            EXPECT_EQ(box[2], 3u);
            EXPECT_EQ(element[0], 1u);
            EXPECT_EQ(swizzle, CU_TENSOR_MAP_SWIZZLE_128B);
            map->opaque[15] = 0x1234;
            return CUDA_SUCCESS;
        };
    const cuuint64_t dims[3] = {10, 20, 30};
    const cuuint64_t strides[2] = {1024, 2048};
    const cuuint32_t box[3] = {1, 2, 3};
    const cuuint32_t element[3] = {1, 1, 1};
    CUtensorMap map = {};
    ASSERT_EQ(
        marshal::cuTensorMapEncodeTiled(
            &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 3, reinterpret_cast<void*>(0x3000'0000'2000),
            dims, strides, box, element, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        CUDA_SUCCESS);
    EXPECT_EQ(map.opaque[15], 0x1234u);
}

TEST_F(WireRoundTrip, ArraysOfHandlesAreTranslated) {
    own(HandleKind::kGraph, 0x4701, 0x10);
    own(HandleKind::kGraphNode, 0x4702, 0x20);
    own(HandleKind::kGraphNode, 0x4703, 0x30);
    context_.api.cuGraphAddEmptyNode = [](CUgraphNode* node, CUgraph graph,
                                          const CUgraphNode* dependencies, size_t count) {
        EXPECT_EQ(graph, handle_of<CUgraph>(0x10));
        EXPECT_EQ(count, 2u);
        EXPECT_EQ(dependencies[1], handle_of<CUgraphNode>(0x30));
        *node = handle_of<CUgraphNode>(0x40);
        return CUDA_SUCCESS;
    };
    const CUgraphNode dependencies[2] = {handle_of<CUgraphNode>(0x4702),
                                         handle_of<CUgraphNode>(0x4703)};
    CUgraphNode node = nullptr;
    ASSERT_EQ(cuda_impl::cuGraphAddEmptyNode(&node, handle_of<CUgraph>(0x4701), dependencies, 2),
              CUDA_SUCCESS);
    EXPECT_EQ(context_.objects.at({HandleKind::kGraphNode, reinterpret_cast<std::uint64_t>(node)}),
              0x40u);
}

TEST_F(WireRoundTrip, ExistingObjectsComeBackAsGuestHandles) {
    own(HandleKind::kGraphNode, 0x4702, 0x20);
    own(HandleKind::kEvent, 0x4709, 0x90);
    context_.api.cuGraphEventRecordNodeGetEvent = [](CUgraphNode node, CUevent* event) {
        EXPECT_EQ(node, handle_of<CUgraphNode>(0x20));
        *event = handle_of<CUevent>(0x90);
        return CUDA_SUCCESS;
    };
    CUevent event = nullptr;
    ASSERT_EQ(marshal::cuGraphEventRecordNodeGetEvent(handle_of<CUgraphNode>(0x4702), &event),
              CUDA_SUCCESS);
    EXPECT_EQ(event, handle_of<CUevent>(0x4709));
}

TEST_F(WireRoundTrip, AnObjectThatNeedNotBeThereComesBackOrNull) {
    own(HandleKind::kStream, 0x4703, 0x30);
    own(HandleKind::kGreenContext, 0x4704, 0x40);
    context_.api.cuStreamGetGreenCtx = [](CUstream stream, CUgreenCtx* context) {
        *context = stream == handle_of<CUstream>(0x30) ? handle_of<CUgreenCtx>(0x40) : nullptr;
        return CUDA_SUCCESS;
    };
    CUgreenCtx context = nullptr;
    ASSERT_EQ(cuda_impl::cuStreamGetGreenCtx(handle_of<CUstream>(0x4703), &context), CUDA_SUCCESS);
    EXPECT_EQ(context, handle_of<CUgreenCtx>(0x4704));
    ASSERT_EQ(cuda_impl::cuStreamGetGreenCtx(nullptr, &context), CUDA_SUCCESS);
    EXPECT_EQ(context, nullptr);
}

TEST_F(WireRoundTrip, AnObjectWithoutANameGetsTheOneThatTheGuestOffers) {
    own(HandleKind::kGraphNode, 0x4702, 0x20);
    context_.api.cuGraphChildGraphNodeGetGraph = [](CUgraphNode, CUgraph* graph) {
        *graph = handle_of<CUgraph>(0x50);
        return CUDA_SUCCESS;
    };
    CUgraph first = nullptr;
    CUgraph second = nullptr;
    const auto node = handle_of<CUgraphNode>(0x4702);
    ASSERT_EQ(marshal::cuGraphChildGraphNodeGetGraph(node, &first), CUDA_SUCCESS);
    ASSERT_EQ(marshal::cuGraphChildGraphNodeGetGraph(node, &second), CUDA_SUCCESS);
    EXPECT_EQ(first, second);
    EXPECT_EQ(context_.objects.at({HandleKind::kGraph, reinterpret_cast<std::uint64_t>(first)}),
              0x50u);
}

/// 12 bytes of description are padded to 16: the worker takes as many as are meant.
TEST_F(WireRoundTrip, ArraysOfStructuresThatNeedPaddingCross) {
    own(HandleKind::kMemPool, 0x4705, 0x4705);
    CUmemAccessDesc description{};
    description.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    description.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
        const CUmemAccessDesc descriptions[] = {description, description};
        g_described = 99;
        EXPECT_EQ(marshal::cuMemPoolSetAccess(handle_of<CUmemoryPool>(0x4705), descriptions, count),
                  CUDA_SUCCESS);
        EXPECT_EQ(g_described, count);
    }
    EXPECT_EQ(context_.malformed_count, 0);
}

TEST_F(WireRoundTrip, OutputArraysComeBack) {
    context_.api.cuDeviceGetHostAtomicCapabilities = [](unsigned int* capabilities,
                                                        const CUatomicOperation* operations,
                                                        unsigned int count, CUdevice device) {
        EXPECT_EQ(device, kDriverDevice);
        for (unsigned int i = 0; i < count; ++i) {
            capabilities[i] = static_cast<unsigned int>(operations[i]) + 100;
        }
        return CUDA_SUCCESS;
    };
    const CUatomicOperation operations[3] = {CU_ATOMIC_OPERATION_INTEGER_ADD,
                                             CU_ATOMIC_OPERATION_INTEGER_MIN,
                                             CU_ATOMIC_OPERATION_EXCHANGE};
    unsigned int capabilities[3] = {};
    ASSERT_EQ(marshal::cuDeviceGetHostAtomicCapabilities(capabilities, operations, 3, 0),
              CUDA_SUCCESS);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(capabilities[i], static_cast<unsigned int>(operations[i]) + 100);
    }
}

TEST_F(WireRoundTrip, ACallTheDriverLacksIsNotSupported) {
    EXPECT_EQ(marshal::cuCtxSynchronize(), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(context_.unsupported_count, 1);
}

class HostileCommands : public WireRoundTrip {
protected:
    CUresult send(Op op, std::size_t args_bytes, std::size_t trailing_bytes) {
        const std::vector<std::byte> args(args_bytes, std::byte{0xff});
        const std::vector<std::byte> trailing(trailing_bytes, std::byte{0xff});
        Bytes answer;
        return worker::dispatch(context_, op, args, trailing, answer);
    }
};

TEST_F(HostileCommands, WrongSizesAreRefused) {
    for (const cuda::CommandGrammar& command : cuda::kCommands) {
        SCOPED_TRACE(cuda::op_name(command.op));
        context_.malformed_count = 0;
        EXPECT_EQ(send(command.op, command.call_bytes + 8u, 0), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(context_.malformed_count, 1);
        if (command.call_bytes != 0) {
            EXPECT_EQ(send(command.op, command.call_bytes - 1u, 0), CUDA_ERROR_INVALID_VALUE);
            EXPECT_EQ(context_.malformed_count, 2);
        }
        if (!command.has_trailing) {
            EXPECT_EQ(send(command.op, command.call_bytes, 8), CUDA_ERROR_INVALID_VALUE);
        }
    }
}

TEST_F(HostileCommands, NumbersThatNeverCrossAreRefused) {
    for (unsigned number = 0; number < 0x10000; ++number) {
        const auto op = static_cast<Op>(number);
        if ((cuda::op_flags(op) & cuda::kOpForwarded) == 0) {
            ASSERT_EQ(send(op, 0, 0), CUDA_ERROR_INVALID_VALUE) << number;
        }
    }
    EXPECT_GT(context_.malformed_count, 0xfe00);
}

TEST_F(HostileCommands, LengthsBeyondWhatIsThereAreRefused) {
    own(HandleKind::kGraph, 0x4701, 0x10);
    context_.api.cuGraphAddEmptyNode = [](CUgraphNode*, CUgraph, const CUgraphNode*, size_t) {
        ADD_FAILURE() << "the driver was called";
        return CUDA_SUCCESS;
    };
    worker::wire::cuGraphAddEmptyNode_call call{};
    call.phGraphNode = 0x4710;
    call.hGraph = 0x4701;
    Bytes answer;
    const std::vector<std::byte> trailing(16);
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{1} << 32,
                                      std::uint64_t{1} << 61, ~std::uint64_t{0}}) {
        call.numDependencies = count;
        EXPECT_EQ(worker::dispatch(context_, Op::cuGraphAddEmptyNode,
                                   std::as_bytes(std::span(&call, 1)), trailing, answer),
                  count == 1 ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE)
            << count;
    }
}

TEST_F(HostileCommands, AttributesThatHoldPointersAreRefused) {
    own(HandleKind::kGraphNode, 0x4702, 0x20);
    context_.api.cuGraphKernelNodeSetAttribute = [](CUgraphNode, CUkernelNodeAttrID,
                                                    const CUkernelNodeAttrValue*) {
        ADD_FAILURE() << "the driver was called";
        return CUDA_SUCCESS;
    };
    worker::wire::cuGraphKernelNodeSetAttribute_call call{};
    call.hNode = 0x4702;
    Bytes answer;
    for (const std::uint32_t attribute : {7u, 12u, 13u, 0u, 15u, 0xffffffffu}) {
        call.attr = attribute;
        EXPECT_EQ(worker::dispatch(context_, Op::cuGraphKernelNodeSetAttribute,
                                   std::as_bytes(std::span(&call, 1)), {}, answer),
                  CUDA_ERROR_INVALID_VALUE);
    }
}

TEST(Trace, CutsToTheCapacityAndReportsTheLength) {
    char line[8];
    const std::uint64_t bytes = 4096;
    EXPECT_EQ(cuda::trace_format(line, sizeof line, Op::cuMemAlloc_v2, &bytes, sizeof bytes),
              static_cast<int>(std::strlen("cuMemAlloc_v2(bytesize=4096)")));
    EXPECT_STREQ(line, "cuMemAl");
    char whole[64];
    cuda::trace_format(whole, sizeof whole, static_cast<Op>(63), nullptr, 5);
    EXPECT_STREQ(whole, "op 63 (5 bytes)");
    cuda::trace_format(whole, sizeof whole, Op::cuMemAlloc_v2, &bytes, 3);
    EXPECT_STREQ(whole, "cuMemAlloc_v2(3 bytes, 8 expected)");
}

}  // namespace
}  // namespace gantry

// Trap: what a program can set, one thing at a time and seldom, is set here to a value that is no
// default, beside an object of the same kind that is left as it was: contexts, streams, functions,
// kernels, arrays, textures, surfaces, memory, pools, graphs, their nodes and execs.
// nothing_lost asks the driver for all of it, before and after moves.
#include "driver_entry.h"

enum { kWords = 64 };

__global__ void add(unsigned* data, unsigned amount) { data[threadIdx.x] += amount; }
__global__ void plain(unsigned* data) { data[threadIdx.x] = 1; }
__device__ unsigned g_total;

static const char kPtx[] =
    ".version 8.0\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .u32 word = 7;\n"
    ".visible .entry first(.param .u64 data) .maxntid 128, 1, 1\n{\n"
    "    .reg .b32 %r<3>;\n    .reg .b64 %d<3>;\n    .shared .align 4 .b8 room[256];\n"
    "    .local .align 4 .b8 own[64];\n"
    "    ld.param.u64 %d1, [data];\n    mov.u32 %r1, 5;\n    st.shared.u32 [room], %r1;\n"
    "    ld.shared.u32 %r2, [room];\n    st.global.u32 [%d1], %r2;\n    ret;\n}\n"
    ".visible .entry second()\n{\n    ret;\n}\n";

static void CUDART_CB called(void*) {}

struct Device {
    unsigned *words, *others, *pinned;
    cudaStream_t stream, plain_stream;
    cudaEvent_t event, other_event;
    cudaArray_t array;
    CUfunction function;
};

// ---- the context, streams, code -----------------------------------------------------------------

static void set_context() {
    ENTRY(cuCtxSetFlags, 12010);
    ENTRY(cuCtxSetLimit, 3010);
    ENTRY(cuCtxSetCacheConfig, 3020);
    OK(cuCtxSetFlags_(CU_CTX_SCHED_YIELD | CU_CTX_MAP_HOST));
    OK(cuCtxSetLimit_(CU_LIMIT_STACK_SIZE, 8192));
    OK(cuCtxSetLimit_(CU_LIMIT_PRINTF_FIFO_SIZE, 3 << 20));
    OK(cuCtxSetLimit_(CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
    OK(cuCtxSetLimit_(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 32));
    OK(cuCtxSetCacheConfig_(CU_FUNC_CACHE_PREFER_SHARED));
    auto shared = entry<CUresult (*)(int)>("cuCtxSetSharedMemConfig", 4020);
    OK(shared(2));
}

static void set_streams(Device* d) {
    int lowest = 0, highest = 0;
    CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CHECK(cudaStreamCreateWithPriority(&d->stream, cudaStreamNonBlocking, highest));
    CHECK(cudaStreamCreate(&d->plain_stream));
    cudaStreamAttrValue value;
    memset(&value, 0, sizeof value);
    value.syncPolicy = cudaSyncPolicyBlockingSync;
    CHECK(cudaStreamSetAttribute(d->stream, cudaStreamAttributeSynchronizationPolicy, &value));
    memset(&value, 0, sizeof value);
    value.memSyncDomain = cudaLaunchMemSyncDomainRemote;
    CHECK(cudaStreamSetAttribute(d->stream, cudaLaunchAttributeMemSyncDomain, &value));
    memset(&value, 0, sizeof value);
    value.memSyncDomainMap.default_ = 1;
    value.memSyncDomainMap.remote = 0;
    CHECK(cudaStreamSetAttribute(d->stream, cudaLaunchAttributeMemSyncDomainMap, &value));
    cudaStream_t copy;
    CHECK(cudaStreamCreateWithPriority(&copy, cudaStreamNonBlocking, -1));
    CHECK(cudaStreamCopyAttributes(copy, d->stream));
    CHECK(cudaEventCreateWithFlags(&d->event, cudaEventBlockingSync));
    CHECK(cudaEventCreateWithFlags(&d->other_event, cudaEventDisableTiming));
    CHECK(cudaEventRecordWithFlags(d->event, d->stream, cudaEventRecordDefault));
}

/// A link that is complete, of an input with options.
static void set_link() {
    ENTRY(cuLinkCreate, 6050);
    ENTRY(cuLinkAddData, 6050);
    ENTRY(cuLinkComplete, 5050);
    CUlinkState link;
    CUjit_option option = CU_JIT_MAX_REGISTERS;
    void* value = (void*)48;
    OK(cuLinkCreate_(1, &option, &value, &link));
    OK(cuLinkAddData_(link, CU_JIT_INPUT_PTX, (void*)kPtx, sizeof kPtx, "named", 1, &option,
                      &value));
    void* image;
    size_t bytes;
    OK(cuLinkComplete_(link, &image, &bytes));
}

static CUfunction set_code() {
    ENTRY(cuLibraryLoadData, 12000);
    ENTRY(cuLibraryGetKernel, 12000);
    ENTRY(cuLibraryGetModule, 12000);
    ENTRY(cuLibraryEnumerateKernels, 12040);
    ENTRY(cuKernelSetAttribute, 12000);
    ENTRY(cuKernelSetCacheConfig, 12000);
    ENTRY(cuModuleLoadDataEx, 2010);
    ENTRY(cuModuleGetFunction, 2000);
    ENTRY(cuModuleEnumerateFunctions, 12040);
    ENTRY(cuFuncSetAttribute, 9000);
    ENTRY(cuFuncSetCacheConfig, 3000);
    CUlibrary library;
    CUkernel kernel, kernels[2];
    CUmodule module;
    CUfunction first, second, functions[2];
    OK(cuLibraryLoadData_(&library, kPtx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel_(&kernel, library, "first"));
    OK(cuLibraryEnumerateKernels_(kernels, 2, library));
    OK(cuKernelSetAttribute_(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 20000, kernel, 0));
    OK(cuKernelSetAttribute_(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50, kernel, 0));
    OK(cuKernelSetAttribute_(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel, 0));
    OK(cuKernelSetAttribute_(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 1, kernel, 0));
    OK(cuKernelSetCacheConfig_(kernel, CU_FUNC_CACHE_PREFER_L1, 0));
    OK(cuLibraryGetModule_(&module, library));
    CUjit_option options[] = {CU_JIT_MAX_REGISTERS, CU_JIT_OPTIMIZATION_LEVEL};
    void* values[] = {(void*)32, (void*)2};
    OK(cuModuleLoadDataEx_(&module, kPtx, 2, options, values));
    OK(cuModuleGetFunction_(&first, module, "first"));
    OK(cuModuleGetFunction_(&second, module, "second"));
    OK(cuModuleEnumerateFunctions_(functions, 2, module));
    OK(cuFuncSetAttribute_(first, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 30000));
    OK(cuFuncSetAttribute_(first, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 25));
    OK(cuFuncSetAttribute_(first, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    OK(cuFuncSetAttribute_(first, CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, 2));
    OK(cuFuncSetCacheConfig_(first, CU_FUNC_CACHE_PREFER_EQUAL));
    auto shared = entry<CUresult (*)(CUfunction, int)>("cuFuncSetSharedMemConfig", 4020);
    OK(shared(first, 2));
    return first;
}

// ---- memory -------------------------------------------------------------------------------------

static void set_virtual_memory() {
    ENTRY(cuMemCreate, 10020);
    ENTRY(cuMemAddressReserve, 10020);
    ENTRY(cuMemMap, 10020);
    ENTRY(cuMemSetAccess, 10020);
    ENTRY(cuMemRetainAllocationHandle, 11000);
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.allocFlags.gpuDirectRDMACapable = 1;
    CUmemGenericAllocationHandle memory, again;
    CUdeviceptr place;
    const size_t bytes = 2 << 20;
    OK(cuMemCreate_(&memory, bytes, &properties, 0));
    OK(cuMemAddressReserve_(&place, bytes, 0, 0, 0));
    OK(cuMemMap_(place, bytes, 0, memory, 0));
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemSetAccess_(place, bytes, &access, 1));
    OK(cuMemRetainAllocationHandle_(&again, (void*)place));
}

static void set_memory(Device* d) {
    CHECK(cudaMalloc((void**)&d->words, kWords * 4));
    CHECK(cudaMalloc((void**)&d->others, 1 << 20));
    CHECK(cudaMallocHost((void**)&d->pinned, 4096));
    void* pitched;
    size_t pitch;
    CHECK(cudaMallocPitch(&pitched, &pitch, 100, 10));
    static char pages[8192] __attribute__((aligned(4096)));
    CHECK(cudaHostRegister(pages, sizeof pages, cudaHostRegisterMapped));
    unsigned* managed;
    CHECK(cudaMallocManaged((void**)&managed, 1 << 16));
    auto advise =
        entry<CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUdevice)>("cuMemAdvise", 8000);
    OK(advise((CUdeviceptr)managed, 1 << 16, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    set_virtual_memory();
    cudaMemLocation location = {};
    location.type = cudaMemLocationTypeDevice;
    CHECK(cudaMemAdvise(managed, 1 << 16, cudaMemAdviseSetPreferredLocation, location));
    CHECK(cudaMemset(d->words, 0, kWords * 4));
}

static cudaArray_t array_of(cudaChannelFormatDesc format, size_t width, size_t height, size_t depth,
                            unsigned flags) {
    cudaArray_t array;
    CHECK(cudaMalloc3DArray(&array, &format, make_cudaExtent(width, height, depth), flags));
    return array;
}

static void set_images(Device* d) {
    ENTRY(cuArrayCreate, 3020);
    CUDA_ARRAY_DESCRIPTOR flat = {};
    flat.Width = 24;
    flat.Height = 12;
    flat.Format = CU_AD_FORMAT_SIGNED_INT16;
    flat.NumChannels = 2;
    CUarray simple;
    OK(cuArrayCreate_(&simple, &flat));
    cudaArray_t layered = array_of(cudaCreateChannelDesc<float4>(), 16, 8, 6, cudaArrayLayered);
    cudaArray_t stored =
        array_of(cudaCreateChannelDesc<unsigned>(), 32, 16, 0, cudaArraySurfaceLoadStore);
    cudaArray_t layered_store = array_of(cudaCreateChannelDesc<short2>(), 8, 4, 2,
                                         cudaArrayLayered | cudaArraySurfaceLoadStore);
    cudaArray_t solid =
        array_of(cudaCreateChannelDesc<unsigned char>(), 8, 8, 8, cudaArraySurfaceLoadStore);
    cudaMipmappedArray_t levels;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocMipmappedArray(&levels, &format, make_cudaExtent(64, 32, 0), 4,
                                   cudaArraySurfaceLoadStore));
    cudaMipmappedArray_t other_levels;
    cudaChannelFormatDesc other_format = cudaCreateChannelDesc<short2>();
    CHECK(cudaMallocMipmappedArray(&other_levels, &other_format, make_cudaExtent(16, 8, 4), 3,
                                   cudaArrayLayered));
    cudaArray_t level;
    CHECK(cudaGetMipmappedArrayLevel(&level, levels, 1));
    d->array = stored;
    for (cudaArray_t array : {stored, solid, layered_store}) {
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray;
        resource.res.array.array = array;
        cudaSurfaceObject_t surface;
        CHECK(cudaCreateSurfaceObject(&surface, &resource));
    }
    cudaTextureDesc sampling = {};
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = layered;
    cudaTextureObject_t texture;
    CHECK(cudaCreateTextureObject(&texture, &resource, &sampling, NULL));
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = levels;
    for (int i = 0; i < 3; ++i) {
        sampling.addressMode[i] = i == 0 ? cudaAddressModeMirror : cudaAddressModeBorder;
    }
    sampling.filterMode = cudaFilterModeLinear;
    sampling.normalizedCoords = 1;
    sampling.maxAnisotropy = 4;
    sampling.mipmapFilterMode = cudaFilterModeLinear;
    sampling.mipmapLevelBias = 0.5f;
    sampling.minMipmapLevelClamp = 1;
    sampling.maxMipmapLevelClamp = 2;
    for (int i = 0; i < 4; ++i) {
        sampling.borderColor[i] = 0.25f * (float)(i + 1);
    }
    cudaResourceViewDesc view = {};
    view.format = cudaResViewFormatFloat1;
    view.width = 32;
    view.height = 16;
    view.firstMipmapLevel = 1;
    view.lastMipmapLevel = 2;
    CHECK(cudaCreateTextureObject(&texture, &resource, &sampling, &view));
    resource.res.mipmap.mipmap = other_levels;
    view.format = cudaResViewFormatSignedShort2;
    view.width = 16;
    view.depth = 4;
    view.height = 8;
    view.firstMipmapLevel = 0;
    view.lastMipmapLevel = 1;
    view.firstLayer = 1;
    view.lastLayer = 3;
    sampling.filterMode = sampling.mipmapFilterMode = cudaFilterModePoint;
    sampling.readMode = cudaReadModeElementType;
    CHECK(cudaCreateTextureObject(&texture, &resource, &sampling, &view));
    resource = {};
    sampling = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = d->others;
    resource.res.linear.desc = cudaCreateChannelDesc<short2>();
    resource.res.linear.sizeInBytes = 4096;
    CHECK(cudaCreateTextureObject(&texture, &resource, &sampling, NULL));
    resource.res.linear.devPtr = (char*)d->others + 4096;
    resource.res.linear.desc = cudaCreateChannelDesc<float>();
    resource.res.linear.sizeInBytes = 8192;
    CHECK(cudaCreateTextureObject(&texture, &resource, &sampling, NULL));
}

// ---- graphs -------------------------------------------------------------------------------------

static cudaKernelNodeParams kernel_params(void* function, void** arguments, dim3 grid, dim3 block) {
    cudaKernelNodeParams params = {};
    params.func = function;
    params.gridDim = grid;
    params.blockDim = block;
    params.kernelParams = arguments;
    return params;
}

static cudaMemsetParams memset_params(void* to, unsigned value, unsigned element, size_t width,
                                      size_t height) {
    cudaMemsetParams params = {};
    params.dst = to;
    params.value = value;
    params.elementSize = element;
    params.width = width;
    params.height = height;
    params.pitch = 256;
    return params;
}

static cudaMemcpy3DParms copy_params(void* to, void* from, size_t width, size_t height,
                                     cudaMemcpyKind kind) {
    cudaMemcpy3DParms params = {};
    params.srcPtr = make_cudaPitchedPtr(from, 256, 256, 16);
    params.dstPtr = make_cudaPitchedPtr(to, 256, 256, 16);
    params.extent = make_cudaExtent(width, height, 1);
    params.kind = kind;
    return params;
}

static void set_node_attributes(cudaGraphNode_t node, cudaGraphNode_t copied, void* memory) {
    cudaKernelNodeAttrValue value;
    memset(&value, 0, sizeof value);
    value.priority = -3;
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value));
    memset(&value, 0, sizeof value);
    value.accessPolicyWindow.base_ptr = memory;
    value.accessPolicyWindow.num_bytes = 2048;
    value.accessPolicyWindow.hitRatio = 0.75f;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeAccessPolicyWindow, &value));
    memset(&value, 0, sizeof value);
    value.memSyncDomain = cudaLaunchMemSyncDomainRemote;
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeMemSyncDomain, &value));
    memset(&value, 0, sizeof value);
    value.memSyncDomainMap.default_ = 1;
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeMemSyncDomainMap, &value));
    memset(&value, 0, sizeof value);
    value.cooperative = 1;
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeCooperative, &value));
    CHECK(cudaGraphKernelNodeCopyAttributes(copied, node));
}

/// A grid that has to be resident at once, as a smaller device could not have it.
static void set_grid(Device* d) {
    void* arguments[] = {&d->others};
    CHECK(cudaLaunchCooperativeKernel((void*)plain, dim3(3), dim3(kWords), arguments, 2048,
                                      d->stream));
    CHECK(cudaStreamSynchronize(d->stream));
}

/// A node whose kernel is a module's function.
static void add_function_node(Device* d, cudaGraph_t graph) {
    ENTRY(cuGraphAddKernelNode, 12000);
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = d->function;
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = 32;
    params.blockDimY = params.blockDimZ = 1;
    params.sharedMemBytes = 512;
    void* arguments[] = {&d->others};
    params.kernelParams = arguments;
    CUgraphNode node;
    OK(cuGraphAddKernelNode_(&node, (CUgraph)graph, NULL, 0, &params));
}

/// A graph that allocates and frees.
static void set_memory_graph() {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.bytesize = 4096;
    cudaGraphNode_t allocate, release;
    CHECK(cudaGraphAddMemAllocNode(&allocate, graph, NULL, 0, &params));
    CHECK(cudaGraphAddMemFreeNode(&release, graph, &allocate, 1, params.dptr));
}

static cudaGraphExec_t set_graphs(Device* d) {
    cudaGraph_t graph, child;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphCreate(&child, 0));
    unsigned one = 1, two = 2;
    void* add_one[] = {&d->words, &one};
    void* add_two[] = {&d->words, &two};
    void* plainly[] = {&d->others};
    cudaKernelNodeParams once = kernel_params((void*)add, add_one, dim3(1), dim3(kWords));
    cudaKernelNodeParams again = kernel_params((void*)add, add_two, dim3(2, 2, 2), dim3(8, 2, 2));
    cudaKernelNodeParams other = kernel_params((void*)plain, plainly, dim3(1), dim3(kWords));
    cudaGraphNode_t kernel, copied, third, inner, nested, set, copy, host, record, waits, empty;
    CHECK(cudaGraphAddKernelNode(&inner, child, NULL, 0, &once));
    CHECK(cudaGraphKernelNodeSetParams(inner, &once));
    CHECK(cudaGraphAddKernelNode(&kernel, graph, NULL, 0, &once));
    CHECK(cudaGraphAddKernelNode(&copied, graph, NULL, 0, &once));
    CHECK(cudaGraphAddKernelNode(&third, graph, NULL, 0, &other));
    CHECK(cudaGraphKernelNodeSetParams(copied, &again));
    set_node_attributes(kernel, copied, d->others);
    CHECK(cudaGraphAddEmptyNode(&empty, graph, NULL, 0));
    cudaMemsetParams bytes = memset_params(d->others, 7, 1, 100, 1);
    cudaMemsetParams rows = memset_params(d->others, 9, 4, 20, 5);
    CHECK(cudaGraphAddMemsetNode(&set, graph, NULL, 0, &bytes));
    CHECK(cudaGraphMemsetNodeSetParams(set, &rows));
    cudaGraphNode_t plain_set;
    CHECK(cudaGraphAddMemsetNode(&plain_set, graph, NULL, 0, &bytes));
    cudaMemcpy3DParms inside =
        copy_params(d->others, d->others + 4096, 64, 4, cudaMemcpyDeviceToDevice);
    cudaMemcpy3DParms out = copy_params(d->pinned, d->others, 32, 2, cudaMemcpyDeviceToHost);
    CHECK(cudaGraphAddMemcpyNode(&copy, graph, NULL, 0, &inside));
    cudaGraphNode_t other_copy;
    CHECK(cudaGraphAddMemcpyNode(&other_copy, graph, NULL, 0, &inside));
    CHECK(cudaGraphMemcpyNodeSetParams(other_copy, &out));
    cudaMemcpy3DParms deep =
        copy_params(d->others, d->others + 4096, 16, 2, cudaMemcpyDeviceToDevice);
    deep.srcPos = make_cudaPos(16, 1, 0);
    deep.dstPos = make_cudaPos(32, 2, 0);
    deep.extent.depth = 2;
    cudaMemcpy3DParms to_array = copy_params(NULL, d->others, 8, 4, cudaMemcpyDeviceToDevice);
    to_array.dstPtr = {};
    to_array.dstArray = d->array;
    cudaMemcpy3DParms from_array = copy_params(d->others, NULL, 8, 4, cudaMemcpyDeviceToDevice);
    from_array.srcPtr = {};
    from_array.srcArray = d->array;
    for (cudaMemcpy3DParms* each : {&deep, &to_array, &from_array}) {
        cudaGraphNode_t added;
        CHECK(cudaGraphAddMemcpyNode(&added, graph, NULL, 0, each));
    }
    cudaHostNodeParams call = {called, d};
    cudaHostNodeParams call_other = {called, NULL};
    CHECK(cudaGraphAddHostNode(&host, graph, NULL, 0, &call));
    CHECK(cudaGraphHostNodeSetParams(host, &call_other));
    CHECK(cudaGraphAddEventRecordNode(&record, graph, NULL, 0, d->event));
    CHECK(cudaGraphEventRecordNodeSetEvent(record, d->other_event));
    CHECK(cudaGraphAddEventWaitNode(&waits, graph, NULL, 0, d->event));
    CHECK(cudaGraphEventWaitNodeSetEvent(waits, d->other_event));
    CHECK(cudaGraphAddChildGraphNode(&nested, graph, NULL, 0, child));
    cudaGraphNodeParams anyhow = {};
    anyhow.type = cudaGraphNodeTypeMemset;
    anyhow.memset.dst = d->words;
    anyhow.memset.value = 3;
    anyhow.memset.elementSize = 2;
    anyhow.memset.width = 10;
    anyhow.memset.height = 1;
    cudaGraphNode_t any;
    CHECK(cudaGraphAddNode(&any, graph, NULL, NULL, 0, &anyhow));
    anyhow.memset.value = 4;
    CHECK(cudaGraphNodeSetParams(any, &anyhow));
    ENTRY(cuGraphRemoveDependencies, 12030);
    auto add_plainly = entry<CUresult (*)(CUgraph, const CUgraphNode*, const CUgraphNode*, size_t)>(
        "cuGraphAddDependencies", 10000);
    auto remove_plainly =
        entry<CUresult (*)(CUgraph, const CUgraphNode*, const CUgraphNode*, size_t)>(
            "cuGraphRemoveDependencies", 10000);
    cudaGraphNode_t from[] = {set, copy, kernel}, to[] = {copy, host, nested};
    OK(add_plainly(graph, from, to, 3));
    OK(remove_plainly(graph, &from[1], &to[1], 1));
    cudaGraphEdgeData data = {};
    data.type = cudaGraphDependencyTypeProgrammatic;
    data.from_port = cudaGraphKernelNodePortProgrammatic;
    CHECK(cudaGraphAddDependencies(graph, &kernel, &copied, &data, 1));
    CHECK(cudaGraphAddDependencies(graph, &copied, &third, NULL, 1));
    CHECK(cudaGraphAddDependencies(graph, &empty, &third, NULL, 1));
    OK(cuGraphRemoveDependencies_(graph, &empty, &third, NULL, 1));
    add_function_node(d, graph);
    cudaGraphExec_t exec, other_exec, with_params;
    CHECK(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority));
    CHECK(cudaGraphInstantiate(&other_exec, graph, 0));
    cudaGraphInstantiateParams how = {};
    how.flags = cudaGraphInstantiateFlagAutoFreeOnLaunch;
    CHECK(cudaGraphInstantiateWithParams(&with_params, graph, &how));
    CHECK(cudaGraphExecKernelNodeSetParams(exec, third, &other));
    CHECK(cudaGraphExecMemsetNodeSetParams(exec, plain_set, &bytes));
    CHECK(cudaGraphExecMemcpyNodeSetParams(exec, copy, &inside));
    CHECK(cudaGraphExecHostNodeSetParams(exec, host, &call));
    CHECK(cudaGraphExecEventRecordNodeSetEvent(exec, record, d->event));
    CHECK(cudaGraphExecEventWaitNodeSetEvent(exec, waits, d->event));
    CHECK(cudaGraphExecNodeSetParams(exec, any, &anyhow));
    CHECK(cudaGraphNodeSetEnabled(exec, plain_set, 0));
    CHECK(cudaGraphNodeSetEnabled(exec, set, 0));
    cudaGraphExecUpdateResultInfo info;
    CHECK(cudaGraphExecUpdate(other_exec, graph, &info));
    return exec;
}

static void expect_adds(Device* d, cudaGraphExec_t exec, unsigned before) {
    unsigned words[kWords];
    CHECK(cudaGraphLaunch(exec, d->plain_stream));
    CHECK(cudaStreamSynchronize(d->plain_stream));
    CHECK(cudaMemcpy(words, d->words, sizeof words, cudaMemcpyDeviceToHost));
    EXPECT(words[20] > before);  // What a memset leaves alone: kernels and their children add.
}

int main() {
    CHECK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    CHECK(cudaFree(NULL));
    static Device device;
    set_context();
    set_streams(&device);
    device.function = set_code();
    set_link();
    set_memory(&device);
    set_grid(&device);
    set_memory_graph();
    set_images(&device);
    cudaGraphExec_t exec = set_graphs(&device);
    CHECK(cudaDeviceSynchronize());
    midpoint();
    expect_adds(&device, exec, 0);
    return pass("every_setting");
}

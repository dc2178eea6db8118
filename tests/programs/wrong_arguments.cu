// Trap: what is told of memory, functions, graphs and pools, and the codes of calls that are given
// nothing, something unknown, or no room.
#include "driver_entry.h"

__global__ void nothing() {}

static void names() {
    ENTRY(cuFuncGetName, 12030);
    ENTRY(cuKernelGetName, 12030);
    const char* name = nullptr;
    EXPECT_STATUS(cuFuncGetName_(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuKernelGetName_(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
    cudaFunction_t function;
    CHECK(cudaGetFuncBySymbol(&function, (const void*)nothing));
    EXPECT_STATUS(cuFuncGetName_(nullptr, function), CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncGetName_(&name, function));
    EXPECT(strstr(name, "nothing") != nullptr);
}

static unsigned memops_of(CUdeviceptr memory) {
    ENTRY(cuPointerGetAttribute, 12000);
    unsigned is_on[2] = {0xeeeeeeee, 0xeeeeeeee};
    OK(cuPointerGetAttribute_(is_on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory));
    EXPECT(is_on[1] == 0xeeeeeeee);
    return is_on[0];
}

static void attributes(CUdeviceptr memory, const void* pageable) {
    ENTRY(cuPointerGetAttribute, 12000);
    ENTRY(cuPointerGetAttributes, 12000);
    const CUpointer_attribute unknown = (CUpointer_attribute)99;
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS};
    unsigned type = 7, is_on = 7;
    void* data[] = {&type, &is_on};
    EXPECT_STATUS(cuPointerGetAttribute_(&type, unknown, memory), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttributes_(2, wanted, data, memory));
    EXPECT(type == CU_MEMORYTYPE_DEVICE && is_on <= 1);
    is_on = 0x07070707;
    OK(cuPointerGetAttributes_(2, wanted, data, (CUdeviceptr)pageable));
    EXPECT(type == 0 && is_on == 0);
    wanted[1] = unknown;
    EXPECT_STATUS(cuPointerGetAttributes_(2, wanted, data, memory), CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuPointerGetAttributes_(2, wanted, data, (CUdeviceptr)pageable),
                  CUDA_ERROR_INVALID_VALUE);
}

/// A list is told without an array, or given into one that has room.
static void lists() {
    ENTRY(cuGraphGetNodes, 12000);
    ENTRY(cuGraphGetRootNodes, 12000);
    ENTRY(cuGraphGetEdges, 12030);
    ENTRY(cuGraphNodeGetDependencies, 12030);
    ENTRY(cuGraphNodeGetDependentNodes, 12030);
    cudaGraph_t graph;
    cudaGraphNode_t first, second;
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphAddEmptyNode(&first, graph, nullptr, 0));
    CHECK(cudaGraphAddEmptyNode(&second, graph, &first, 1));
    const CUgraphNode mark = (CUgraphNode)0x1230;
    CUgraphNode nodes[] = {mark, mark}, others[] = {mark, mark};
    size_t none = 0;
    EXPECT_STATUS(cuGraphGetNodes_(graph, nodes, &none), CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuGraphGetRootNodes_(graph, nodes, &none), CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuGraphGetEdges_(graph, nodes, others, nullptr, &none), CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuGraphNodeGetDependencies_(second, nodes, nullptr, &none),
                  CUDA_ERROR_INVALID_VALUE);
    EXPECT_STATUS(cuGraphNodeGetDependentNodes_(first, nodes, nullptr, &none),
                  CUDA_ERROR_INVALID_VALUE);
    EXPECT(none == 0 && nodes[0] == mark && others[0] == mark);
    size_t room = 2;
    OK(cuGraphNodeGetDependencies_(second, nodes, nullptr, &room));
    EXPECT(room == 1 && nodes[0] == first && nodes[1] == nullptr);
    OK(cuGraphNodeGetDependentNodes_(first, nullptr, nullptr, &none));
    EXPECT(none == 1);
    CHECK(cudaGraphDestroy(graph));
}

/// One description is twelve bytes, two are twenty-four.
static void access_of_pool() {
    ENTRY(cuMemPoolSetAccess, 12000);
    CUmemPoolProps props = {};
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    cudaMemPool_t pool;
    CHECK(cudaMemPoolCreate(&pool, (const cudaMemPoolProps*)&props));
    CUmemAccessDesc access[2] = {};
    access[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    access[1] = access[0];
    OK(cuMemPoolSetAccess_(pool, access, 1));
    OK(cuMemPoolSetAccess_(pool, access, 2));
    access[0].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    EXPECT_STATUS(cuMemPoolSetAccess_(pool, access, 1), CUDA_ERROR_INVALID_DEVICE);
    CHECK(cudaMemPoolDestroy(pool));
}

int main() {
    ENTRY(cuPointerSetAttribute, 12000);
    void *memory, *other;
    static int pageable[16];
    CHECK(cudaMalloc(&memory, 1 << 20));
    CHECK(cudaMalloc(&other, 1 << 20));
    const CUdeviceptr address = (CUdeviceptr)memory;
    EXPECT(memops_of(address) == 0);
    unsigned on = 1, off = 0;
    OK(cuPointerSetAttribute_(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address + 4096));
    EXPECT(memops_of(address) == 1 && memops_of((CUdeviceptr)other) == 0);

    for (int half = 0; half < 2; ++half) {
        names();
        attributes(address, pageable);
        lists();
        access_of_pool();
        if (half == 0) {
            midpoint();
            EXPECT(memops_of(address) == 1 && memops_of((CUdeviceptr)other) == 0);
        }
    }
    OK(cuPointerSetAttribute_(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
    EXPECT(memops_of(address) == 0);
    CHECK(cudaFree(memory));
    CHECK(cudaFree(other));
    return pass("wrong_arguments");
}

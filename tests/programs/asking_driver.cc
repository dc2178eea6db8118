// The soft GPU's driver, which tells what it holds: a program that cannot ask the driver under its
// worker, as the shim answers from what it knows, asks it by way of memory. A 2D memset of kAsk
// fills its row of memory with text instead, a line for each object of the driver, with every
// property that the driver tells of that kind: `stream flags=1 priority=-2 ...`. A property that a
// driver refuses to tell is none. All that is not here is found in the soft GPU's, which it is
// linked with.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "proto/cuda/abi.h"
#include "proto/cuda/gen/exports.h"

namespace {

constexpr unsigned kAsk = 0xa5c0ffee;
constexpr CUtexObject kTexturesMax = 1024;  // The soft driver's are small numbers.

struct Objects {
    std::mutex mutex;
    std::set<CUstream> streams;
    std::set<CUgraph> graphs;
    std::set<CUgraphExec> execs;
    std::set<CUfunction> functions;
    std::set<CUkernel> kernels;
    std::set<CUarray> arrays;
    std::set<CUmipmappedArray> mipmapped;
};

Objects& objects() {
    static Objects all;
    return all;
}

template <typename Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) next<decltype(&name)>(#name)

template <typename Set, typename Key>
CUresult born(CUresult status, Set Objects::*set, const Key* made) {
    if (status == CUDA_SUCCESS && made != nullptr) {
        const std::lock_guard lock(objects().mutex);
        (objects().*set).insert(*made);
    }
    return status;
}

template <typename Set, typename Key>
void gone(Set Objects::*set, Key object) {
    const std::lock_guard lock(objects().mutex);
    (objects().*set).erase(object);
}

// ---- text ---------------------------------------------------------------------------------------

template <typename Value>
std::string number(Value value) {
    if constexpr (std::is_floating_point_v<Value>) {
        return std::to_string(value);
    } else if constexpr (std::is_pointer_v<Value>) {
        return std::to_string(reinterpret_cast<std::uintptr_t>(value));
    } else {
        return std::to_string(static_cast<long long>(value));
    }
}

template <typename Value>
void tell(std::string& line, const char* name, Value value) {
    line += std::string(" ") + name + "=" + number(value);
}

template <typename Value>
void tell(std::string& line, const std::string& name, CUresult status, Value value) {
    if (status == CUDA_SUCCESS) {
        tell(line, name.c_str(), value);
    }
}

/// Which bytes they are, not what they mean.
void tell_bytes(std::string& line, const std::string& name, const void* bytes, std::size_t count) {
    line += " " + name + "=";
    char two[3];
    for (std::size_t i = 0; i < count; ++i) {
        std::snprintf(two, sizeof(two), "%02x", static_cast<const unsigned char*>(bytes)[i]);
        line += two;
    }
}

// ---- what the driver tells of each kind ---------------------------------------------------------

/// The worker has a kernel of its own, and graphs that its launches go through.
bool is_workers(const char* kernel) { return std::strncmp(kernel, "gantry_", 7) == 0; }

std::string of_context() {
    std::string line = "context";
    for (int limit = 0; limit < CU_LIMIT_MAX; ++limit) {
        std::size_t value = 0;
        const CUresult known = cuCtxGetLimit(&value, static_cast<CUlimit>(limit));
        tell(line, "limit" + std::to_string(limit), known, value);
    }
    unsigned flags = 0;
    CUresult status = cuCtxGetFlags(&flags);
    tell(line, "flags", status, flags);
    CUfunc_cache cache{};
    status = cuCtxGetCacheConfig(&cache);
    tell(line, "cache", status, cache);
    return line;
}

std::string of_stream(CUstream stream) {
    std::string line = "stream";
    unsigned flags = 0;
    CUresult status = cuStreamGetFlags(stream, &flags);
    tell(line, "flags", status, flags);
    int priority = 0;
    status = cuStreamGetPriority(stream, &priority);
    tell(line, "priority", status, priority);
    for (int id = 1; id < CU_LAUNCH_ATTRIBUTE_MAX; ++id) {
        CUstreamAttrValue_v1 value{};
        if (cuStreamGetAttribute(stream, static_cast<CUstreamAttrID>(id), &value) == CUDA_SUCCESS) {
            tell_bytes(line, "attribute" + std::to_string(id), &value, 32);
        }
    }
    return line;
}

std::string of_function(CUfunction function) {
    const char* name = nullptr;
    if (cuFuncGetName(&name, function) != CUDA_SUCCESS || is_workers(name)) {
        return {};
    }
    std::string line = std::string("function name=") + name;
    for (int id = 0; id < CU_FUNC_ATTRIBUTE_MAX; ++id) {
        int value = 0;
        const CUresult status =
            cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(id), function);
        tell(line, "attribute" + std::to_string(id), status, value);
    }
    return line;
}

std::string of_kernel(CUkernel kernel) {
    const char* name = nullptr;
    if (cuKernelGetName(&name, kernel) != CUDA_SUCCESS) {
        return {};
    }
    std::string line = std::string("kernel name=") + name;
    for (int id = 0; id < CU_FUNC_ATTRIBUTE_MAX; ++id) {
        int value = 0;
        const CUresult status =
            cuKernelGetAttribute(&value, static_cast<CUfunction_attribute>(id), kernel, 0);
        tell(line, "attribute" + std::to_string(id), status, value);
    }
    return line;
}

void tell_array(std::string& line, CUarray array) {
    CUDA_ARRAY3D_DESCRIPTOR_v2 array_desc{};
    if (array == nullptr || cuArray3DGetDescriptor_v2(&array_desc, array) != CUDA_SUCCESS) {
        return;
    }
    tell(line, "width", array_desc.Width);
    tell(line, "height", array_desc.Height);
    tell(line, "depth", array_desc.Depth);
    tell(line, "format", array_desc.Format);
    tell(line, "channels", array_desc.NumChannels);
    tell(line, "array_flags", array_desc.Flags);
}

std::string of_mipmapped(CUmipmappedArray array) {
    std::string line = "mipmapped";
    unsigned levels = 0;
    CUarray level = nullptr;
    while (levels < 32 && cuMipmappedArrayGetLevel(&level, array, levels) == CUDA_SUCCESS) {
        if (levels++ == 0) {
            tell_array(line, level);
        }
    }
    tell(line, "levels", levels);
    return line;
}

void tell_resource(std::string& line, const CUDA_RESOURCE_DESC& resource) {
    tell(line, "type", resource.resType);
    switch (resource.resType) {
        case CU_RESOURCE_TYPE_ARRAY: tell_array(line, resource.res.array.hArray); break;
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
            const std::string inside = of_mipmapped(resource.res.mipmap.hMipmappedArray);
            line += inside.substr(inside.find(' '));
            break;
        }
        case CU_RESOURCE_TYPE_LINEAR:
            tell(line, "address", resource.res.linear.devPtr);
            tell(line, "bytes", resource.res.linear.sizeInBytes);
            tell(line, "format", resource.res.linear.format);
            tell(line, "channels", resource.res.linear.numChannels);
            break;
        case CU_RESOURCE_TYPE_PITCH2D:
            tell(line, "address", resource.res.pitch2D.devPtr);
            tell(line, "pitch", resource.res.pitch2D.pitchInBytes);
            tell(line, "width", resource.res.pitch2D.width);
            tell(line, "height", resource.res.pitch2D.height);
            tell(line, "format", resource.res.pitch2D.format);
            tell(line, "channels", resource.res.pitch2D.numChannels);
            break;
        default: break;
    }
}

std::string of_texture(CUtexObject texture) {
    CUDA_TEXTURE_DESC_v1 desc{};
    CUDA_RESOURCE_DESC resource{};
    if (cuTexObjectGetTextureDesc(&desc, texture) != CUDA_SUCCESS ||
        cuTexObjectGetResourceDesc(&resource, texture) != CUDA_SUCCESS) {
        return {};
    }
    std::string line = "texture";
    tell(line, "handle", texture);
    tell_resource(line, resource);
    for (int i = 0; i < 3; ++i) {
        tell(line, "address_mode" + std::to_string(i), CUDA_SUCCESS, desc.addressMode[i]);
    }
    tell(line, "filter", desc.filterMode);
    tell(line, "flags", desc.flags);
    tell(line, "anisotropy", desc.maxAnisotropy);
    tell(line, "mipmap_filter", desc.mipmapFilterMode);
    tell(line, "level_bias", desc.mipmapLevelBias);
    tell(line, "level_least", desc.minMipmapLevelClamp);
    tell(line, "level_most", desc.maxMipmapLevelClamp);
    for (int i = 0; i < 4; ++i) {
        tell(line, "border" + std::to_string(i), CUDA_SUCCESS, desc.borderColor[i]);
    }
    CUDA_RESOURCE_VIEW_DESC_v1 view{};
    if (cuTexObjectGetResourceViewDesc(&view, texture) == CUDA_SUCCESS) {
        tell(line, "view_format", view.format);
        tell(line, "view_width", view.width);
        tell(line, "view_height", view.height);
        tell(line, "view_depth", view.depth);
        tell(line, "view_level_first", view.firstMipmapLevel);
        tell(line, "view_level_last", view.lastMipmapLevel);
        tell(line, "view_layer_first", view.firstLayer);
        tell(line, "view_layer_last", view.lastLayer);
    }
    return line;
}

std::string of_surface(CUsurfObject surface) {
    CUDA_RESOURCE_DESC resource{};
    if (cuSurfObjectGetResourceDesc(&resource, surface) != CUDA_SUCCESS) {
        return {};
    }
    std::string line = "surface";
    tell(line, "handle", surface);
    tell_resource(line, resource);
    return line;
}

std::string of_graph(CUgraph graph);

std::string of_node(CUgraphNode node) {
    CUgraphNodeType type{};
    cuGraphNodeGetType(node, &type);
    std::string line;
    tell(line, "type", type);
    switch (type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            CUDA_KERNEL_NODE_PARAMS_v2 params{};
            if (cuGraphKernelNodeGetParams_v2(node, &params) == CUDA_SUCCESS) {
                const char* name = "";
                if (params.func != nullptr) {
                    cuFuncGetName(&name, params.func);
                } else if (params.kern != nullptr) {
                    cuKernelGetName(&name, params.kern);
                }
                line += std::string(" kernel=") + name;
                const unsigned shape[] = {params.gridDimX,  params.gridDimY,  params.gridDimZ,
                                          params.blockDimX, params.blockDimY, params.blockDimZ};
                const char* names[] = {"grid_x",  "grid_y",  "grid_z",
                                       "block_x", "block_y", "block_z"};
                for (int i = 0; i < 6; ++i) {
                    tell(line, names[i], shape[i]);
                }
                tell(line, "shared", params.sharedMemBytes);
            }
            for (int id = 1; id < CU_LAUNCH_ATTRIBUTE_MAX; ++id) {
                CUkernelNodeAttrValue_v1 value{};
                const auto attribute = static_cast<CUkernelNodeAttrID>(id);
                if (attribute != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT &&
                    attribute != CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT &&
                    cuGraphKernelNodeGetAttribute(node, attribute, &value) == CUDA_SUCCESS) {
                    tell_bytes(line, "attribute" + std::to_string(id), &value, 32);
                }
            }
            break;
        }
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            CUDA_MEMSET_NODE_PARAMS_v1 params{};
            if (cuGraphMemsetNodeGetParams(node, &params) == CUDA_SUCCESS) {
                tell(line, "target", params.dst);
                tell(line, "pitch", params.height > 1 ? params.pitch : 0);
                tell(line, "value", params.value);
                tell(line, "element", params.elementSize);
                tell(line, "width", params.width);
                tell(line, "height", params.height);
            }
            break;
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY: {
            CUDA_MEMCPY3D_v2 params{};
            if (cuGraphMemcpyNodeGetParams(node, &params) == CUDA_SUCCESS) {
                tell(line, "from_type", params.srcMemoryType);
                tell(line, "from", params.srcDevice);
                tell(line, "from_x", params.srcXInBytes);
                tell(line, "from_y", params.srcY);
                tell(line, "to_type", params.dstMemoryType);
                tell(line, "to", params.dstDevice);
                tell(line, "to_x", params.dstXInBytes);
                tell(line, "to_y", params.dstY);
                tell(line, "width", params.WidthInBytes);
                tell(line, "height", params.Height);
                tell(line, "depth", params.Depth);
            }
            break;
        }
        case CU_GRAPH_NODE_TYPE_GRAPH: {
            CUgraph child = nullptr;
            if (cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
                line += " {" + of_graph(child) + " }";
            }
            break;
        }
        default: break;
    }
    return line;
}

std::string of_graph(CUgraph graph) {
    std::size_t count = 0;
    if (cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) {
        return {};
    }
    std::vector<CUgraphNode> nodes(count);
    cuGraphGetNodes(graph, nodes.data(), &count);
    std::map<CUgraphNode, std::size_t> places;
    std::string line = "graph";
    for (std::size_t i = 0; i < count; ++i) {
        places[nodes[i]] = i;
        line += " [" + std::to_string(i) + of_node(nodes[i]) + " ]";
    }
    std::size_t edges = 0;
    cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &edges);
    std::vector<CUgraphNode> from(edges), to(edges);
    std::vector<CUgraphEdgeData> data(edges);
    cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &edges);
    std::vector<std::string> told;
    for (std::size_t i = 0; i < edges; ++i) {
        std::string edge =
            " " + std::to_string(places[from[i]]) + "->" + std::to_string(places[to[i]]);
        tell_bytes(edge, "edge", &data[i], sizeof(data[i]));
        told.push_back(edge);
    }
    std::sort(told.begin(), told.end());
    for (const std::string& edge : told) {
        line += edge;
    }
    return line;
}

std::string of_exec(CUgraphExec exec, const std::set<CUgraph>& graphs) {
    std::string line = "exec";
    cuuint64_t flags = 0;
    const CUresult status = cuGraphExecGetFlags(exec, &flags);
    tell(line, "flags", status, flags);
    for (CUgraph graph : graphs) {
        std::size_t count = 0;
        cuGraphGetNodes(graph, nullptr, &count);
        std::vector<CUgraphNode> nodes(count);
        cuGraphGetNodes(graph, nodes.data(), &count);
        for (std::size_t i = 0; i < count; ++i) {
            unsigned enabled = 0;
            if (cuGraphNodeGetEnabled(exec, nodes[i], &enabled) == CUDA_SUCCESS) {
                tell(line, "enabled", enabled);
            }
        }
    }
    // One that was never configured says nothing: the worker has such, and a driver tells of its
    // nodes only while the graph it was made of is as it was.
    const bool says = flags != 0 || line.find("enabled=0") != std::string::npos;
    return says ? line : std::string();
}

std::string all() {
    Objects& known = objects();
    const std::lock_guard lock(known.mutex);
    std::vector<std::string> lines{of_context()};
    const auto add = [&](const auto& set, auto of) {
        for (const auto& one : set) {
            lines.push_back(of(one));
        }
    };
    add(known.streams, of_stream);
    add(known.functions, of_function);
    add(known.kernels, of_kernel);
    add(known.mipmapped, of_mipmapped);
    std::set<CUgraph> graphs;
    for (CUgraph graph : known.graphs) {
        std::string line = of_graph(graph);
        if (line.find("kernel=gantry_") == std::string::npos) {
            lines.push_back(std::move(line));
            graphs.insert(graph);
        }
    }
    add(known.execs, [&](CUgraphExec exec) { return of_exec(exec, graphs); });
    add(known.arrays, [](CUarray array) {
        std::string line = "array";
        tell_array(line, array);
        return line;
    });
    for (CUtexObject handle = 0; handle < kTexturesMax; ++handle) {
        lines.push_back(of_texture(handle));
        lines.push_back(of_surface(handle));
    }
    std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) {
        text += line.empty() ? "" : line + "\n";
    }
    return text;
}

}  // namespace

extern "C" {

CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width,
                            size_t height, CUstream stream) noexcept {
    if (value != kAsk) {
        return NEXT(cuMemsetD2D32Async)(to, pitch, value, width, height, stream);
    }
    std::string text = all();
    text.resize(std::min(text.size() + 1, width * 4), '\0');
    return cuMemcpyHtoD_v2(to, text.data(), text.size());
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) noexcept {
    return born(NEXT(cuStreamCreate)(stream, flags), &Objects::streams, stream);
}
CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) noexcept {
    const CUresult status = NEXT(cuStreamCreateWithPriority)(stream, flags, priority);
    return born(status, &Objects::streams, stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) noexcept {
    gone(&Objects::streams, stream);
    return NEXT(cuStreamDestroy_v2)(stream);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) noexcept {
    const CUresult status = NEXT(cuModuleGetFunction)(function, module, name);
    return born(status, &Objects::functions, function);
}
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) noexcept {
    const CUresult status = NEXT(cuKernelGetFunction)(function, kernel);
    return born(status, &Objects::functions, function);
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) noexcept {
    const CUresult status = NEXT(cuLibraryGetKernel)(kernel, library, name);
    return born(status, &Objects::kernels, kernel);
}
CUresult cuGraphCreate(CUgraph* graph, unsigned flags) noexcept {
    return born(NEXT(cuGraphCreate)(graph, flags), &Objects::graphs, graph);
}
CUresult cuGraphClone(CUgraph* clone, CUgraph original) noexcept {
    return born(NEXT(cuGraphClone)(clone, original), &Objects::graphs, clone);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) noexcept {
    return born(NEXT(cuStreamEndCapture)(stream, graph), &Objects::graphs, graph);
}
CUresult cuGraphDestroy(CUgraph graph) noexcept {
    gone(&Objects::graphs, graph);
    return NEXT(cuGraphDestroy)(graph);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                     unsigned long long flags) noexcept {
    return born(NEXT(cuGraphInstantiateWithFlags)(exec, graph, flags), &Objects::execs, exec);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params) noexcept {
    return born(NEXT(cuGraphInstantiateWithParams)(exec, graph, params), &Objects::execs, exec);
}
CUresult cuGraphExecDestroy(CUgraphExec exec) noexcept {
    gone(&Objects::execs, exec);
    return NEXT(cuGraphExecDestroy)(exec);
}
CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR_v2* of) noexcept {
    return born(NEXT(cuArrayCreate_v2)(array, of), &Objects::arrays, array);
}
CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR_v2* of) noexcept {
    return born(NEXT(cuArray3DCreate_v2)(array, of), &Objects::arrays, array);
}
CUresult cuArrayDestroy(CUarray array) noexcept {
    gone(&Objects::arrays, array);
    return NEXT(cuArrayDestroy)(array);
}
CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR_v2* of,
                                unsigned levels) noexcept {
    return born(NEXT(cuMipmappedArrayCreate)(array, of, levels), &Objects::mipmapped, array);
}
CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) noexcept {
    gone(&Objects::mipmapped, array);
    return NEXT(cuMipmappedArrayDestroy)(array);
}

}  // extern "C"

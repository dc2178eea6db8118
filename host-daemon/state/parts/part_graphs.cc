// PartTarget: the program's CUDA graphs and what was instantiated from them.
#include <algorithm>

#include "host-daemon/state/cuda_graphs/cuda_graph_content.h"
#include "host-daemon/state/parts/part_target.h"

namespace gantry::state {
namespace {

/// An exec that can be made only once the guest's region is mapped, or whose graph can.
bool is_late(const snapshot::ObjectGraph& graph, const snapshot::GraphExec& exec) {
    return exec.graph().names_pinned_memory() || exec.updated().names_pinned_memory() ||
           std::any_of(exec.changes().begin(), exec.changes().end(),
                       [](const auto& each) { return each.child().names_pinned_memory(); }) ||
           std::any_of(graph.graphs().begin(), graph.graphs().end(), [&](const auto& each) {
               return each.handle() == exec.source_graph() && each.names_pinned_memory();
           });
}

}  // namespace

void PartTarget::drop_graph(std::uint64_t handle) {
    if (const auto object = process_.objects.get(handle)) {
        process_.destroy_object(*object);
    }
    built_graphs_.erase(handle);
}

Result<void> PartTarget::build_graphs(const snapshot::ObjectGraph& graph, bool late) {
    std::map<std::uint64_t, std::string> wanted;
    for (const snapshot::Graph& each : graph.graphs()) {
        wanted[each.handle()] = each.SerializeAsString();
    }
    for (const snapshot::GraphExec& each : graph.graph_execs()) {
        const auto source = wanted.find(each.source_graph());
        // Its nodes lead to those of the graph: both are made in one go.
        wanted[each.handle()] =
            each.SerializeAsString() + (source == wanted.end() ? "" : source->second);
    }
    const auto built = built_graphs_;
    for (const auto& [handle, description] : built) {
        const auto now = wanted.find(handle);
        if (now == wanted.end() || now->second != description) {
            drop_graph(handle);
        }
    }
    const driver::DriverApi& api = process_.device.api();
    for (const snapshot::UserObject& described : graph.user_objects()) {
        // What the restore itself holds keeps it alive meanwhile.
        worker::UserObjectBook& book = process_.graphs.user_objects;
        const CUuserObject object = book.native_of(described.handle());
        const int more = book.set_count(described.handle(), described.count());
        if (object != nullptr && more > 0) {
            api.cuUserObjectRetain(object, static_cast<unsigned>(more));
        } else if (object != nullptr && more < 0) {
            api.cuUserObjectRelease(object, static_cast<unsigned>(-more));
        }
    }
    CudaGraphWriter writer(process_);
    for (const snapshot::Graph& each : graph.graphs()) {
        if (each.names_pinned_memory() && !late) {
            continue;
        }
        const bool has_exec = std::any_of(graph.graph_execs().begin(), graph.graph_execs().end(),
                                          [&](const auto& exec) {
                                              return exec.source_graph() == each.handle() &&
                                                     !built_graphs_.contains(exec.handle());
                                          });
        if (built_graphs_.contains(each.handle())) {
            if (!has_exec) {
                continue;
            }
            for (const snapshot::GraphExec& exec : graph.graph_execs()) {
                if (exec.source_graph() == each.handle()) {
                    drop_graph(exec.handle());
                }
            }
            drop_graph(each.handle());
        }
        GANTRY_TRY(writer.make_guest_graph(each));
        built_graphs_[each.handle()] = wanted[each.handle()];
    }
    for (const snapshot::GraphExec& each : graph.graph_execs()) {
        if (!built_graphs_.contains(each.handle()) && (late || !is_late(graph, each))) {
            GANTRY_TRY(writer.make_exec(each));
            built_graphs_[each.handle()] = wanted[each.handle()];
        }
    }
    return {};
}

}  // namespace gantry::state

// Between a live guest process and its serialised object graph (proto/snapshot/object_graph.proto).
//
// Every object travels as the commands that made and configured it (OtherObject, kind
// kCommandObject); contexts, modules, images, streams, events and memory are listed in the typed
// messages as well, for preflight, for people and for the parts of a restore that are not commands.
//
// A graph from elsewhere is hostile: decode() checks every size and handle and refuses with reason
// `snapshot.*`. Threads: the worker's control thread. Cost: proportional to the live objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "host-daemon/execution/dispatch/channel_state.h"
#include "host-daemon/execution/process/guest_process.h"
#include "proto/snapshot/object_graph.pb.h"

namespace gantry::state {

/// Version 2 has memory nodes of CUDA graphs, version 3 images on their way; a process without is
/// written as the version that suffices.
inline constexpr std::uint32_t kGraphVersion = 5;  // A poisoned context: nothing but its error.
inline constexpr std::uint32_t kGraphVersionMirror = 4;  // A guest over TCP.
inline constexpr std::uint32_t kGraphVersionStagedImages = 3;
inline constexpr std::uint32_t kGraphVersionMemoryNodes = 2;
inline constexpr char kCommandObject[] = "gantry.command_object.1";
inline constexpr char kPendingOutput[] = "gantry.pending_output";
inline constexpr char kSoftDriverState[] = "gantry-soft-ext1";

/// A graph in the worker's own terms.
struct DecodedGraph {
    snapshot::ObjectGraph message;
    std::vector<worker::Object> objects;  ///< In creation order; native values are the source's.
    std::vector<worker::ExtentRecord> extents;
    std::vector<worker::AllocationRecord> allocations;
    std::vector<worker::AllocationRecord> reservations;
    std::vector<worker::VirtualMemory::Physical> physicals;
    std::vector<worker::VirtualMemory::Mapping> mappings;
    std::vector<worker::PinnedRange> pinned;
    std::vector<worker::LoadedImage> images;  ///< Without bytes: image is null.
    std::vector<Sha256> image_hashes;         ///< By position of `images`.
    std::vector<worker::StagedImage> staged;  ///< Without bytes: part is null.
    std::vector<Sha256> staged_hashes;        ///< By position of `staged`.
    worker::ChannelState channel;
    worker::EventTimes::State event_times;
};

/// `channel`: of a frozen process; with it comes what else is only consistent then. Null: it runs.
Result<snapshot::ObjectGraph> encode(worker::GuestProcess& process, std::uint64_t part_id,
                                     const worker::ChannelState* channel);

Result<DecodedGraph> decode(std::string_view bytes);

/// What the guest was told of its device.
void take_facts(const snapshot::DeviceFacts& from, wire::DeviceFacts* facts);

}  // namespace gantry::state

// What a session needs of a target, and what a target can give: the two inputs of preflight.
//
// Plain data, filled by the host daemon from its workers (needs) and its GPUs (capabilities); it
// travels between the two engines, so the target treats needs, and the source capabilities, as
// claims: the worst a lie can do is a migration that fails before its commit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/ids.h"

namespace gantry::engine {

/// One guest process, hence one worker, of a session. Unique in its session; survives migrations.
using PartId = StrongId<struct PartIdTag>;

/// Compute capability as CUDA counts it: 9.0 is {9, 0}.
struct ComputeCapability {
    std::uint32_t major = 0;
    std::uint32_t minor = 0;
    friend constexpr auto operator<=>(const ComputeCapability&, const ComputeCapability&) = default;
};

/// Which targets can run a cubin besides those of its own major version with an equal or higher
/// minor.
enum class CodeScope {
    kPortable = 1,      ///< sm_XY: same major, minor not below.
    kFamily = 2,        ///< sm_XYf: the family of its major version, minor not below.
    kArchSpecific = 3,  ///< sm_XYa: exactly this compute capability.
};

struct CodeEntry {
    ComputeCapability cc;
    CodeScope scope = CodeScope::kPortable;
    bool is_ptx = false;                ///< PTX runs on every cc not below (scope permitting).
    std::uint32_t ptx_isa_version = 0;  ///< PTX only, as 10 * major + minor (90 for ISA 9.0).
};

/// One loaded module (fatbin, cubin or PTX) and the code it carries.
struct ModuleNeed {
    PartId part;
    std::string image_sha256;  ///< 64 hex digits.
    std::string name;          ///< First kernel or file name: for people.
    std::vector<CodeEntry> code;
    /// Globals must reappear at their addresses; some drivers cannot promise it for this image.
    bool has_address_bound_globals = false;
};

/// A feature in use that cannot move, as the API table's migration rule says.
struct BlockingFeature {
    PartId part;
    std::string id;      ///< Lower case, dotted, for example "ipc.memory" or "graphics.interop".
    std::string detail;  ///< What and how many, for people: "2 imported IPC allocations".
};

/// Device attribute the application may have read: it must stay true after the move.
struct AttributeNeed {
    std::uint32_t attribute = 0;  ///< CUdevice_attribute number.
    std::string name;             ///< "max_shared_memory_per_block_optin": for people.
    std::int64_t value_min = 0;   ///< The target must offer at least this much.
};

struct PartNeed {
    PartId part;
    std::string process_name;
    std::uint32_t guest_pid = 0;
    std::uint64_t resident_bytes = 0;  ///< Device memory, in whole blocks.
    std::uint64_t pinned_bytes = 0;    ///< Host memory that the worker registered or gave out.
    /// Of the region of a guest over TCP, which the target makes anew. 0: of another kind.
    std::uint64_t mirror_region_bytes = 0;
    std::uint64_t table_hash = 0;  ///< Of the API table its commands follow; 0: not told.
    /// Device memory that has no content to move: contexts, their heaps and stacks.
    std::uint64_t beside_bytes = 0;
};

enum class ProfileKind {
    kMovable = 1,   ///< Facts that real cards can honour.
    kSoftOnly = 2,  ///< Facts that only the CPU driver gives: never to a real card.
};

struct SessionNeeds {
    std::string session_id;  ///< The VM's UUID.
    std::vector<PartNeed> parts;
    std::uint64_t memory_quota_bytes = 0;  ///< What the VM was promised: reserved in full.
    ComputeCapability cc_seen;             ///< What the application was told it runs on.
    ComputeCapability cc_min;              ///< Lowest that code and baseline allow.
    ProfileKind profile = ProfileKind::kMovable;
    std::string profile_name;
    std::vector<ModuleNeed> modules;
    std::vector<AttributeNeed> attributes;
    std::vector<BlockingFeature> blocking;
    std::uint32_t driver_version = 0;      ///< The source's cuDriverGetVersion (13000 for 13.0).
    std::uint32_t driver_version_min = 0;  ///< Lowest that the application's calls need.
    std::uint32_t snapshot_version = 0;    ///< Format the source writes.

    [[nodiscard]] std::uint64_t resident_bytes() const;
    /// What is in use of the device now, moved as bytes or made anew.
    [[nodiscard]] std::uint64_t device_bytes() const;
};

enum class PeerReach { kReachable = 1, kUnreachable = 2, kCertificateInvalid = 3 };

struct TargetCapabilities {
    std::string host;
    std::string gpu_name;  ///< Empty: no GPU that Gantry may use.
    std::string gpu_uuid;
    ComputeCapability cc;
    std::uint64_t memory_total_bytes = 0;
    std::uint64_t memory_free_bytes = 0;  ///< After reservations of other sessions.
    bool takes_any_profile = false;       ///< Also one whose facts no real GPU can keep.
    bool can_place_globals = false;       ///< Driver extension, or the load-order rule was proven.
    std::uint32_t driver_version = 0;
    std::uint32_t ptx_isa_version_max = 0;   ///< As 10 * major + minor; 0: unknown, not judged.
    std::uint32_t snapshot_version_min = 0;  ///< Oldest and newest formats it reads.
    std::uint32_t snapshot_version_max = 0;
    std::uint64_t table_hash = 0;  ///< Of the API table its workers serve; 0: not told.
    std::vector<std::pair<std::uint32_t, std::int64_t>> attributes;  ///< (number, value).
    PeerReach reach = PeerReach::kReachable;  ///< As seen by whoever evaluates.
    std::string reach_detail;
    double link_bytes_per_second = 0.0;  ///< 0: not measured yet.
};

}  // namespace gantry::engine

// The forms in which a profile is written (proto/decisions/0039-profile-of-operations.md). Each is
// one text that needs nothing else: no file, no network, no script.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/control/gantryd.pb.h"

namespace gantry::cli {

/// What an operation's time is made of; they sum to its wall time.
struct PartOfTime {
    const char* name;
    const char* colour;  ///< The same in light and in dark.
    std::uint64_t (control::Operation::*ns)() const;
};
inline constexpr std::array<PartOfTime, 7> kPartsOfTime = {{
    {"program", "#8a93a6", &control::Operation::guest_ns},
    {"shim", "#e0a458", &control::Operation::shim_ns},
    {"transport", "#3b82c4", &control::Operation::transport_ns},
    {"scheduler", "#7a5cc0", &control::Operation::scheduler_ns},
    {"GPU", "#4f9a3c", &control::Operation::gpu_ns},
    {"both", "#2f9e8f", &control::Operation::overlapped_ns},
    {"move", "#d1603d", &control::Operation::pause_ns},
}};

/// An operation within its enclosing ones.
struct OperationNode {
    const control::Operation* self = nullptr;
    std::vector<std::size_t> inner;  ///< Numbers of nodes.
    std::size_t depth = 0;
    std::uint64_t whole_ns = 0;  ///< Wall time with that of all inner ones.
};

/// By the list's order: parents are before what they enclose. What names a parent that is not there
/// is a thread's own.
[[nodiscard]] std::vector<OperationNode> operation_nodes(const control::Profile& profile);
/// The same, each followed by what it encloses.
[[nodiscard]] std::vector<std::size_t> in_depth(const std::vector<OperationNode>& nodes);

/// For a terminal.
[[nodiscard]] std::string profile_text(const control::ProfileReply& reply);
/// For Perfetto or chrome://tracing: the Trace Event Format's JSON. Of level 2.
[[nodiscard]] std::string profile_chrome(const control::ProfileReply& reply);
/// The page's pictures, one below the other.
[[nodiscard]] std::string profile_svg(const control::ProfileReply& reply);
/// A page with flames, a timeline of level 2's ranges, and the table.
[[nodiscard]] std::string profile_html(const control::ProfileReply& reply);

}  // namespace gantry::cli

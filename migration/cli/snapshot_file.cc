#include "migration/cli/snapshot_file.h"

#include <array>
#include <ctime>
#include <filesystem>
#include <map>

#include "migration/cli/print.h"
#include "migration/engine/state.h"
#include "proto/control/gantryd.pb.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/object_graph.pb.h"

namespace gantry::cli {
namespace {

using engine::MemorySpace;

std::string utc_text(std::uint64_t unix_seconds) {
    const auto seconds = static_cast<std::time_t>(unix_seconds);
    std::tm parts{};
    std::array<char, 64> text{};
    if (::gmtime_r(&seconds, &parts) == nullptr ||
        std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts) == 0) {
        return std::to_string(unix_seconds) + " s after 1970";
    }
    return text.data();
}

std::string padded(const std::string& text, std::size_t width) {
    return text.size() < width ? text + std::string(width - text.size(), ' ') : text;
}

std::string padded_left(const std::string& text, std::size_t width) {
    return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

/// "a, b, c" of what there is at least one of.
std::string counts_text(std::initializer_list<std::pair<int, const char*>> counts) {
    std::string text;
    for (const auto& [count, name] : counts) {
        if (count != 0) {
            text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + name +
                    (count == 1 ? "" : "s");
        }
    }
    return text.empty() ? "none" : text;
}

std::string objects_text(const snapshot::ObjectGraph& graph) {
    return counts_text({{graph.contexts_size(), "context"},
                        {graph.modules_size(), "module"},
                        {graph.streams_size(), "stream"},
                        {graph.events_size(), "event"},
                        {graph.pools_size(), "pool"},
                        {graph.allocations_size(), "allocation"},
                        {graph.arrays_size(), "array"},
                        {graph.textures_size(), "texture"},
                        {graph.surfaces_size(), "surface"},
                        {graph.graphs_size(), "graph"},
                        {graph.graph_execs_size(), "executable graph"}});
}

/// Counts what passes; keeps no contents.
class Summary : public snapshot::SnapshotVisitor {
public:
    explicit Summary(const std::string& path) : path_(path) {}

    void on_version(std::uint32_t version) override { version_ = version; }
    Result<void> on_header(const snapshot::SnapshotHeader& header) override {
        header_ = header;
        if (!needs_.ParseFromString(header.needs())) {
            return malformed("what the header says of the session's needs");
        }
        return {};
    }
    Result<void> on_graph(std::uint64_t part, std::string_view bytes) override {
        if (!parts_[part].graph.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
            return malformed("the object graph of part " + std::to_string(part));
        }
        return {};
    }
    Result<void> on_image(std::span<const std::byte, 32>,
                          std::span<const std::byte> bytes) override {
        image_bytes_ += bytes.size();
        return {};
    }
    Result<void> on_blocks(std::span<const snapshot::StoredBlock> blocks) override {
        for (const snapshot::StoredBlock& block : blocks) {
            Part& part = parts_[block.ref.part];
            (block.ref.space == static_cast<std::uint32_t>(MemorySpace::kPinnedHost)
                 ? part.pinned_bytes
                 : part.device_bytes) += snapshot::kBlockBytes;
        }
        return {};
    }
    Result<void> on_end(const snapshot::SnapshotSummary& summary) override {
        summary_ = summary;
        return {};
    }

    [[nodiscard]] std::string text(std::uint64_t file_bytes) const {
        return "Snapshot:  " + path_ + ", whole, format version " + std::to_string(version_) +
               ", " + bytes_text(file_bytes) + "\nSession:   " + session() + ", epoch " +
               std::to_string(header_.epoch()) +
               "\nWritten:   " + utc_text(header_.created_unix_seconds()) + " by " +
               header_.producer() + "\nDevice:    " + device() +
               "\nImages:    " + std::to_string(summary_.image_count()) + ", " +
               bytes_text(image_bytes_) + "\nMemory:    " + memory() + "\n\n" + programs();
    }

private:
    struct Part {
        snapshot::ObjectGraph graph;
        std::uint64_t device_bytes = 0;
        std::uint64_t pinned_bytes = 0;
    };

    [[nodiscard]] Error malformed(const std::string& what) const {
        return {Code::kDataLoss, "snapshot.malformed",
                path_ + ": " + what + " does not parse; take another copy of the snapshot"};
    }
    [[nodiscard]] std::string session() const {
        return needs_.vm_name().empty() ? header_.session_id()
                                        : needs_.vm_name() + " (" + header_.session_id() + ")";
    }
    [[nodiscard]] std::string device() const {
        for (const auto& [id, part] : parts_) {
            if (const auto& device = part.graph.device(); !device.name().empty()) {
                return device.name() + ", compute capability " +
                       std::to_string(device.compute_major()) + "." +
                       std::to_string(device.compute_minor()) + ", " +
                       bytes_text(device.total_memory_bytes());
            }
        }
        return "not named";
    }
    [[nodiscard]] std::string memory() const {
        const std::uint64_t empty = summary_.zero_block_count() + summary_.copy_block_count();
        return bytes_text(summary_.block_count() * snapshot::kBlockBytes) + " in " +
               std::to_string(summary_.block_count()) +
               " blocks: " + std::to_string(summary_.block_count() - empty) + " stored in " +
               bytes_text(summary_.stored_bytes()) + ", " +
               std::to_string(summary_.zero_block_count()) + " zero, " +
               std::to_string(summary_.copy_block_count()) + " like another";
    }
    [[nodiscard]] std::string programs() const {
        std::string text =
            " Part  Program                   PID    GPU memory        Pinned  "
            "Objects\n" +
            std::string(92, '-') + "\n";
        for (const auto& [id, part] : parts_) {
            const auto& process = part.graph.process();
            text += " " + padded(std::to_string(id), 4) + "  " +
                    padded(process.process_name(), 20) +
                    padded_left(std::to_string(process.guest_pid()), 9) +
                    padded_left(bytes_text(part.device_bytes), 14) +
                    padded_left(bytes_text(part.pinned_bytes), 14) + "  " +
                    objects_text(part.graph) + "\n";
        }
        return text;
    }

    const std::string& path_;
    std::uint32_t version_ = 0;
    snapshot::SnapshotHeader header_;
    control::SessionNeeds needs_;
    snapshot::SnapshotSummary summary_;
    std::uint64_t image_bytes_ = 0;
    std::map<std::uint64_t, Part> parts_;
};

std::optional<std::string> needs_json(std::string_view bytes) {
    control::SessionNeeds needs;
    if (!needs.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
        return std::nullopt;
    }
    return to_json(needs, true);
}

}  // namespace

bool names_snapshot_file(const std::string& text) {
    std::error_code ignored;
    return text.find('/') != std::string::npos || text.ends_with(".gsnap") ||
           std::filesystem::is_regular_file(text, ignored);
}

Result<std::string> snapshot_file_text(const std::string& path) {
    Summary summary(path);
    GANTRY_ASSIGN(const std::uint64_t bytes, snapshot::read_snapshot(path, summary));
    return summary.text(bytes);
}

Result<std::string> snapshot_file_json(const std::string& path) {
    return snapshot::snapshot_json(path, snapshot::JsonDetail::kGraphs, needs_json);
}

}  // namespace gantry::cli

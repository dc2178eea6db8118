#include "migration/cli/snapshot_file.h"

#include <fmt/format.h>

#include <array>
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "migration/cli/print.h"
#include "migration/engine/state.h"
#include "proto/base/hex.h"
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

/// "a, b, c" of what there is at least one of.
std::string counts_text(std::initializer_list<std::pair<int, const char*>> counts) {
    std::string text;
    for (const auto& [count, name] : counts) {
        if (count != 0) {
            text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", count, name,
                                count == 1 ? "" : "s");
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

Error malformed(const std::string& path, const std::string& what) {
    return {Code::kDataLoss, "snapshot.malformed",
            path + ": " + what + " does not parse; take another copy of the snapshot"};
}

/// Counts what passes; keeps no contents.
class Summary : public snapshot::SnapshotVisitor {
public:
    explicit Summary(const std::string& path) : path_(path) {}

    void on_version(std::uint32_t version) override { version_ = version; }
    Result<void> on_header(const snapshot::SnapshotHeader& header) override {
        header_ = header;
        if (!needs_.ParseFromString(header.needs())) {
            return malformed(path_, "what the header says of the session's needs");
        }
        return {};
    }
    Result<void> on_graph(std::uint64_t part, std::string_view bytes) override {
        if (!parts_[part].graph.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
            return malformed(path_, fmt::format("the object graph of part {}", part));
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
        return fmt::format(
            "Snapshot:  {}, whole, format version {}, {}\nSession:   {}, epoch {}\n"
            "Written:   {} by {}\nDevice:    {}\nImages:    {}, {}\nMemory:    {}\n\n{}",
            path_, version_, bytes_text(file_bytes), session(), header_.epoch(),
            utc_text(header_.created_unix_seconds()), header_.producer(), device(),
            summary_.image_count(), bytes_text(image_bytes_), memory(), programs());
    }

private:
    struct Part {
        snapshot::ObjectGraph graph;
        std::uint64_t device_bytes = 0;
        std::uint64_t pinned_bytes = 0;
    };

    [[nodiscard]] std::string session() const {
        return needs_.vm_name().empty()
                   ? header_.session_id()
                   : fmt::format("{} ({})", needs_.vm_name(), header_.session_id());
    }
    [[nodiscard]] std::string device() const {
        for (const auto& [id, part] : parts_) {
            if (const auto& device = part.graph.device(); !device.name().empty()) {
                return fmt::format("{}, compute capability {}.{}, {}", device.name(),
                                   device.compute_major(), device.compute_minor(),
                                   bytes_text(device.total_memory_bytes()));
            }
        }
        return "not named";
    }
    [[nodiscard]] std::string memory() const {
        const std::uint64_t zero = summary_.zero_block_count();
        const std::uint64_t copies = summary_.copy_block_count();
        return fmt::format("{} in {} blocks: {} stored in {}, {} zero, {} like another",
                           bytes_text(summary_.block_count() * snapshot::kBlockBytes),
                           summary_.block_count(), summary_.block_count() - zero - copies,
                           bytes_text(summary_.stored_bytes()), zero, copies);
    }
    [[nodiscard]] std::string programs() const {
        std::string text = fmt::format(" {:<4}  {:<20}{:>9}{:>14}{:>14}  {}\n{:-<92}\n", "Part",
                                       "Program", "PID", "GPU memory", "Pinned", "Objects", "");
        for (const auto& [id, part] : parts_) {
            const auto& process = part.graph.process();
            text += fmt::format(" {:<4}  {:<20}{:>9}{:>14}{:>14}  {}\n", id, process.process_name(),
                                process.guest_pid(), bytes_text(part.device_bytes),
                                bytes_text(part.pinned_bytes), objects_text(part.graph));
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

/// The file as JSON. Of images and memory it has the sizes, not the contents.
class JsonReport : public snapshot::SnapshotVisitor {
public:
    explicit JsonReport(const std::string& path) : path_(path) {}

    void on_version(std::uint32_t version) override { json_["format_version"] = version; }
    Result<void> on_header(const snapshot::SnapshotHeader& header) override {
        snapshot::SnapshotHeader shown = header;
        control::SessionNeeds needs;
        const bool has_needs = !header.needs().empty() && needs.ParseFromString(header.needs());
        if (has_needs) {
            shown.clear_needs();  // The bytes of a message, which is printed as one below.
        }
        json_["header"] = json_of(shown, Zeros::kLeftOut);
        if (has_needs) {
            json_["needs"] = json_of(needs);
        }
        return {};
    }
    Result<void> on_graph(std::uint64_t part, std::string_view bytes) override {
        snapshot::ObjectGraph graph;
        if (!graph.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
            return malformed(path_, fmt::format("the object graph of part {}", part));
        }
        graphs_.push_back(json_of(graph, Zeros::kLeftOut));
        return {};
    }
    Result<void> on_image(std::span<const std::byte, 32> sha256,
                          std::span<const std::byte> bytes) override {
        images_.push_back({{"sha256", to_hex(sha256)}, {"size_bytes", bytes.size()}});
        return {};
    }
    Result<void> on_blocks(std::span<const snapshot::StoredBlock> blocks) override {
        for (const snapshot::StoredBlock& block : blocks) {
            ++spaces_[{block.ref.part, block.ref.space}];
        }
        return {};
    }
    Result<void> on_end(const snapshot::SnapshotSummary& summary) override {
        json_["summary"] = json_of(summary, Zeros::kLeftOut);
        return {};
    }

    [[nodiscard]] std::string text() {
        nlohmann::ordered_json spaces = nlohmann::ordered_json::array();
        for (const auto& [key, count] : spaces_) {
            spaces.push_back(
                {{"part_id", key.first}, {"space", key.second}, {"block_count", count}});
        }
        json_["spaces"] = std::move(spaces);
        json_["images"] = std::move(images_);
        json_["graphs"] = std::move(graphs_);
        return json_text(json_, true);
    }

private:
    const std::string& path_;
    nlohmann::ordered_json json_;
    nlohmann::ordered_json images_ = nlohmann::ordered_json::array();
    nlohmann::ordered_json graphs_ = nlohmann::ordered_json::array();
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint64_t> spaces_;
};

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
    JsonReport report(path);
    GANTRY_TRY(snapshot::read_snapshot(path, report));
    return report.text();
}

}  // namespace gantry::cli

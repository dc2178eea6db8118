// A snapshot as JSON, for `gantry inspect`.
#include <google/protobuf/util/json_util.h>

#include <map>

#include "proto/base/hex.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/container.pb.h"
#include "proto/snapshot/object_graph.pb.h"

namespace gantry::snapshot {
namespace {

std::string without_line_end(std::string text) {
    while (!text.empty() && text.back() == '\n') {
        text.pop_back();
    }
    return text;
}

Result<std::string> to_json(const google::protobuf::Message& message) {
    google::protobuf::util::JsonPrintOptions options;
    options.add_whitespace = true;
    options.preserve_proto_field_names = true;
    std::string text;
    const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
    if (!status.ok()) {
        return Error{Code::kInternal, "snapshot.json", std::string(status.message())};
    }
    return without_line_end(std::move(text));
}

class JsonVisitor : public SnapshotVisitor {
public:
    JsonVisitor(const std::string& path, JsonDetail detail, NeedsJson needs)
        : path_(path), detail_(detail), needs_json_(needs) {}

    void on_version(std::uint32_t version) override { version_ = version; }
    Result<void> on_header(const SnapshotHeader& header) override {
        SnapshotHeader shown = header;
        if (needs_json_ != nullptr && !header.needs().empty()) {
            if (auto needs = needs_json_(header.needs())) {
                needs_ = without_line_end(*std::move(needs));
                shown.clear_needs();
            }
        }
        GANTRY_ASSIGN(header_, to_json(shown));
        return {};
    }
    Result<void> on_graph(std::uint64_t part, std::string_view bytes) override {
        ObjectGraph graph;
        if (!graph.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
            return Error{Code::kDataLoss, "snapshot.malformed",
                         path_ + ": the object graph of part " + std::to_string(part) +
                             " does not parse; take another copy of the snapshot"};
        }
        if (detail_ == JsonDetail::kGraphs) {
            GANTRY_ASSIGN(const std::string text, to_json(graph));
            graphs_ += (graphs_.empty() ? "" : ",\n") + text;
        }
        return {};
    }
    Result<void> on_image(std::span<const std::byte, 32> sha256,
                          std::span<const std::byte> bytes) override {
        images_ += std::string(images_.empty() ? "" : ",") + "\n  {\"sha256\": \"" +
                   to_hex(sha256) + "\", \"size_bytes\": " + std::to_string(bytes.size()) + "}";
        return {};
    }
    Result<void> on_blocks(std::span<const StoredBlock> blocks) override {
        for (const StoredBlock& block : blocks) {
            ++spaces_[{block.ref.part, block.ref.space}];
        }
        return {};
    }
    Result<void> on_end(const SnapshotSummary& summary) override {
        GANTRY_ASSIGN(summary_, to_json(summary));
        return {};
    }

    [[nodiscard]] std::string text() const {
        std::string spaces;
        for (const auto& [key, count] : spaces_) {
            spaces += std::string(spaces.empty() ? "" : ",") +
                      "\n  {\"part_id\": " + std::to_string(key.first) +
                      ", \"space\": " + std::to_string(key.second) +
                      ", \"block_count\": " + std::to_string(count) + "}";
        }
        std::string text =
            "{\n\"format_version\": " + std::to_string(version_) + ",\n\"header\": " + header_ +
            (needs_.empty() ? "" : ",\n\"needs\": " + needs_) + ",\n\"summary\": " + summary_ +
            ",\n\"spaces\": [" + spaces + "],\n\"images\": [" + images_ + "]";
        if (detail_ == JsonDetail::kGraphs) {
            text += ",\n\"graphs\": [" + graphs_ + "]";
        }
        return text + "\n}\n";
    }

private:
    const std::string& path_;
    JsonDetail detail_;
    NeedsJson needs_json_;
    std::uint32_t version_ = 0;
    std::string header_;
    std::string needs_;
    std::string summary_;
    std::string graphs_;
    std::string images_;
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint64_t> spaces_;
};

}  // namespace

Result<std::string> snapshot_json(const std::string& path, JsonDetail detail, NeedsJson needs) {
    JsonVisitor visitor(path, detail, needs);
    GANTRY_TRY(read_snapshot(path, visitor));
    return visitor.text();
}

}  // namespace gantry::snapshot

// Hostile snapshot files, starting from the golden ones: read to the end or refused with a reason.
//
// Whoever writes a hostile file writes its checksums, too. So a file is mutated section by section,
// and most are given checksums that fit, many also fingerprints and a summary that do: what is then
// refused is refused by what the sections say. At its end the fuzzer prints how far its files came.
#include <google/protobuf/stubs/logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "proto/base/assert.h"
#include "proto/snapshot/container.h"
#include "proto/snapshot/object_graph.pb.h"
#include "tests/fuzz/snapshot_parts.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

namespace {

using namespace gantry::snapshot;
using gantry::fuzz::Refit;
using gantry::fuzz::SnapshotBytes;
using gantry::fuzz::SnapshotParts;
using gantry::fuzz::SnapshotSection;
using Random = std::minstd_rand;

/// How far the files came.
struct Reached {
    std::uint64_t files = 0, headers = 0, graphs = 0, parsed_graphs = 0, tables = 0, memories = 0;
    std::uint64_t ends = 0, checksum_refusals = 0, malformed_refusals = 0;
} g_reached;

void print_reached() {
    const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
    std::fprintf(stderr,
                 "snapshot_fuzzer: of %llu files %llu had a header that was read, %llu a whole "
                 "file; graphs handed out %llu, of them parsed %llu; block tables %llu; memory "
                 "tables %llu; refused by a checksum %llu, as malformed %llu\n",
                 number(g_reached.files), number(g_reached.headers), number(g_reached.ends),
                 number(g_reached.graphs), number(g_reached.parsed_graphs),
                 number(g_reached.tables), number(g_reached.memories),
                 number(g_reached.checksum_refusals), number(g_reached.malformed_refusals));
}

/// Takes everything and looks at both ends of what it gets and in between.
class Reader : public SnapshotVisitor {
public:
    gantry::Result<void> on_header(const SnapshotHeader&) override {
        ++g_reached.headers;
        return {};
    }
    gantry::Result<void> on_graph(std::uint64_t, std::string_view graph) override {
        ++g_reached.graphs;
        ObjectGraph parsed;
        g_reached.parsed_graphs +=
            parsed.ParseFromArray(graph.data(), static_cast<int>(graph.size())) ? 1 : 0;
        look_at(std::as_bytes(std::span(graph)));
        return {};
    }
    gantry::Result<void> on_image(std::span<const std::byte, 32>,
                                  std::span<const std::byte> bytes) override {
        look_at(bytes);
        return {};
    }
    gantry::Result<bool> on_memory(const StoredMemory& memory) override {
        ++g_reached.memories;
        sum_ = sum_ + memory.blocks.size();
        return false;
    }
    gantry::Result<void> on_blocks(std::span<const StoredBlock> blocks) override {
        ++g_reached.tables;
        for (const StoredBlock& block : blocks) {
            look_at(block.bytes);
        }
        return {};
    }
    gantry::Result<void> on_end(const SnapshotSummary&) override {
        ++g_reached.ends;
        return {};
    }

private:
    void look_at(std::span<const std::byte> bytes) {
        constexpr std::size_t kStep = 64;
        std::uint64_t sum = 0;
        for (std::size_t at = 0; at < bytes.size(); at += kStep) {
            sum += std::to_integer<unsigned char>(bytes[at]);
        }
        sum_ = sum_ + (bytes.empty() ? 0 : sum + std::to_integer<unsigned char>(bytes.back()));
    }
    volatile std::uint64_t sum_ = 0;
};

std::string read_file_of(std::span<const std::byte> bytes) {
    const int file = ::memfd_create("snapshot", MFD_CLOEXEC);
    GANTRY_ASSERT(file >= 0 && ::write(file, bytes.data(), bytes.size()) ==
                                   static_cast<ssize_t>(bytes.size()),
                  "memfd");
    GANTRY_ASSERT(::lseek(file, 0, SEEK_SET) == 0, "seek");
    Reader reader;
    const auto outcome = read_snapshot(file, "fuzz", reader);
    ::close(file);
    if (outcome.ok()) {
        return "";
    }
    GANTRY_ASSERT(!outcome.error().reason.empty(), "a refusal without a reason");
    return std::string(outcome.error().reason);
}

void mutate_bytes(SnapshotBytes* bytes, std::size_t more) {
    const std::size_t size = bytes->size();
    bytes->resize(size + more);
    if (bytes->empty()) {
        return;
    }
    bytes->resize(
        LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes->data()), size, bytes->size()));
}

/// One field of one entry: another entry's, a small number, or one that is at the end of its range.
void mutate_entry(SnapshotSection& section, Random& random) {
    constexpr struct {
        std::size_t at, bytes;
    } kFields[] = {{0, 8},  {8, 8},  {16, 4}, {20, 4}, {24, 8},
                   {40, 8}, {48, 8}, {56, 4}, {60, 3}, {63, 1}};
    const auto entries = gantry::fuzz::entries_of(section);
    const std::size_t count = entries.size() / layout::kEntryBytes;
    if (count == 0) {
        return;
    }
    const auto field = kFields[random() % std::size(kFields)];
    std::byte* const to = &entries[random() % count * layout::kEntryBytes + field.at];
    const std::uint64_t values[] = {random() % 4, ~std::uint64_t{0}, kBlockBytes, random()};
    const void* from = &values[random() % std::size(values)];
    if (random() % 2 == 0) {
        from = &entries[random() % count * layout::kEntryBytes + field.at];
    }
    std::memmove(to, from, field.bytes);
}

void mutate_entries(SnapshotSection& section, Random& random) {
    const auto entries = gantry::fuzz::entries_of(section);
    if (entries.empty()) {
        return;
    }
    std::byte* const count_at = section.payload.data();
    const bool is_memory = section.kind == layout::Kind::kMemory;
    if (random() % 4 != 0) {
        mutate_entry(section, random);
    } else if (random() % 2 != 0) {  // One less.
        const auto first = section.payload.begin() + (entries.data() - section.payload.data());
        section.payload.erase(first, first + layout::kEntryBytes);
        section.count -= is_memory ? 1 : 0;
        section.table_bytes -= is_memory ? layout::kEntryBytes : 0;
        if (!is_memory) {
            layout::put(count_at, layout::get<std::uint32_t>(count_at) - 1);
        }
    } else if (is_memory) {
        section.count = static_cast<std::uint32_t>(random() % 5);
    } else {
        layout::put(count_at, static_cast<std::uint32_t>(random() % 5));
    }
}

void mutate_parts(SnapshotParts& parts, std::size_t more, Random& random) {
    auto& sections = parts.sections;
    if (sections.empty()) {
        return;
    }
    const std::size_t which = random() % sections.size();
    const auto at = sections.begin() + static_cast<std::ptrdiff_t>(which);
    switch (random() % 16) {
        case 0: sections.erase(at); break;
        case 1: std::swap(*at, sections[random() % sections.size()]); break;
        case 2:
            if (at->payload.size() + 4096 < more) {
                sections.insert(at, SnapshotSection(*at));
            }
            break;
        case 3: at->kind = static_cast<layout::Kind>(random() % 9); break;
        case 4: at->part = random() % 4; break;
        case 5: mutate_bytes(&parts.preamble, 0); break;
        case 6:
        case 7:
        case 8:
        case 9: mutate_entries(*at, random); break;
        default:
            mutate_bytes(&at->payload, more / 2);
            at->table_bytes = std::min(
                at->table_bytes, at->payload.size() / layout::kEntryBytes * layout::kEntryBytes);
            break;
    }
    parts.preamble.resize(layout::kPreambleBytes);
}

/// The golden files come out of the mutator's hands as they went in when nothing is changed, and a
/// change in any section gets past the checksums: else they no longer fit the format.
void check_golden_files() {
    for (const auto& entry : std::filesystem::directory_iterator(GANTRY_GOLDEN_SNAPSHOTS)) {
        std::ifstream in(entry.path(), std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(in), {}};
        const auto bytes = std::as_bytes(std::span(text));
        const SnapshotBytes file(bytes.begin(), bytes.end());
        for (const Refit refit : {Refit::kChecksums, Refit::kChecksumsAndContents}) {
            auto parts = SnapshotParts::take_apart(file);
            GANTRY_ASSERT(parts.has_value() && parts->put_together(refit) == file,
                          "%s does not come out as it went in", entry.path().c_str());
        }
        const std::size_t count = SnapshotParts::take_apart(file)->sections.size();
        for (std::size_t i = 0; i < count; ++i) {
            auto parts = *SnapshotParts::take_apart(file);
            SnapshotSection& section = parts.sections[i];
            if (section.kind == layout::Kind::kEnd) {
                continue;
            }
            section.payload[section.payload.size() / 2] ^= std::byte{1};
            const std::string reason =
                read_file_of(parts.put_together(Refit::kChecksumsAndContents));
            GANTRY_ASSERT(reason != "snapshot.checksum",
                          "%s: a change in section %zu is refused "
                          "by a checksum",
                          entry.path().c_str(), i);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    google::protobuf::SetLogHandler(nullptr);  // It would print a line for most files.
    check_golden_files();
    g_reached = {};
    std::atexit(print_reached);
    return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
    Random random(seed);
    auto parts = SnapshotParts::take_apart(std::as_bytes(std::span(data, size)));
    if (!parts || random() % 16 == 0) {
        return LLVMFuzzerMutate(data, size, most);
    }
    const std::size_t more = most > size ? most - size : 0;
    for (std::size_t i = random() % 3 + 1; i > 0; --i) {
        mutate_parts(*parts, more / 4, random);
    }
    const SnapshotBytes file =
        parts->put_together(random() % 4 == 0 ? Refit::kChecksums : Refit::kChecksumsAndContents);
    if (file.size() > most) {
        return LLVMFuzzerMutate(data, size, most);
    }
    std::memcpy(data, file.data(), file.size());
    return file.size();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string reason = read_file_of(std::as_bytes(std::span(data, size)));
    ++g_reached.files;
    g_reached.checksum_refusals += reason == "snapshot.checksum" ? 1 : 0;
    g_reached.malformed_refusals += reason == "snapshot.malformed" ? 1 : 0;
    return 0;
}

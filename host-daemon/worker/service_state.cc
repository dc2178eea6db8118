// Service: requests about state (precopy, freeze, restore).
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "host-daemon/state/blocks/block_ranges.h"
#include "host-daemon/state/blocks/block_runs.h"
#include "host-daemon/worker/fingerprint_list.h"
#include "host-daemon/worker/service.h"
#include "proto/base/hex.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::worker {
namespace {

constexpr std::size_t kArenasMax = 8;
constexpr std::size_t kInlineRunsMax = 2000;  // Keeps a reply well below a packet's size.
constexpr std::size_t kInlineModulesMax = 100;

/// Away from where a driver takes device addresses: see channel_memory.cc.
void* const kArenaHint = reinterpret_cast<void*>(0x6400'0000'0000);

}  // namespace

Result<void> Service::describe(control::FromWorker* reply, Descriptors* out) {
    const state::PartFacts facts = part_->source.describe();
    control::DescribeReply* body = reply->mutable_describe();
    const GuestProgram program = process_->channel.program();
    body->set_process_name(program.name);
    body->set_guest_pid(program.pid);
    body->set_resident_bytes(facts.resident_bytes);
    body->set_beside_bytes(facts.beside_bytes);
    body->set_pinned_bytes(facts.pinned_bytes);
    body->set_object_count(facts.object_count);
    body->set_image_bytes(facts.image_bytes);
    if (const ChannelMemory* channel = process_->channel.memory();
        channel != nullptr && is_mirrored(*channel)) {
        body->set_mirror_region_bytes(channel->where().region_bytes);
    }
    control::DeviceDescription device;
    describe_device(&device);
    body->set_cc_seen_major(device.compute_capability_major());
    body->set_cc_seen_minor(device.compute_capability_minor());
    body->set_soft_only(device.soft_only());
    body->set_profile_name(device.profile_name());
    body->set_driver_version(device.driver_version());
    body->set_driver_version_min(driver::kDriverVersionMin);
    body->set_snapshot_version(state::kGraphVersion);
    body->set_table_hash(cuda::kTableHash);
    for (const engine::BlockingFeature& feature : facts.blocking) {
        control::Feature* blocking = body->add_blocking();
        blocking->set_id(feature.id);
        blocking->set_detail(feature.detail);
    }
    for (const engine::AttributeNeed& need : facts.attributes) {
        control::AttributeNeed* attribute = body->add_attributes();
        attribute->set_attribute(need.attribute);
        attribute->set_name(need.name);
        attribute->set_value_min(need.value_min);
    }
    control::ModuleList modules;
    for (const state::ModuleFacts& module : facts.modules) {
        control::Module* listed = modules.add_modules();
        listed->set_image_sha256(module.image_sha256);
        listed->set_name(module.name);
        listed->set_has_address_bound_globals(module.has_address_bound_globals);
        for (const engine::CodeEntry& entry : module.code) {
            control::ModuleCode* code = listed->add_code();
            code->set_major(entry.cc.major);
            code->set_minor(entry.cc.minor);
            code->set_scope(static_cast<std::uint32_t>(entry.scope));
            code->set_is_ptx(entry.is_ptx);
            code->set_ptx_isa_version(entry.ptx_isa_version);
        }
    }
    if (facts.modules.size() <= kInlineModulesMax) {
        *body->mutable_modules() = std::move(*modules.mutable_modules());
        return {};
    }
    const std::string bytes = modules.SerializeAsString();
    GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(bytes));
    body->set_modules_bytes(bytes.size());
    out->push_back(std::move(blob));
    return {};
}

Result<void> Service::attach_arena(const control::AttachArena& attach, Descriptors& in) {
    struct stat status {};
    if (in.size() != 1 || fstat(in[0].get(), &status) != 0 || attach.bytes() == 0 ||
        static_cast<std::uint64_t>(status.st_size) < attach.bytes()) {
        return Error{
            Code::kInvalidArgument, "worker.arena",
            fmt::format("an arena of {} bytes needs a file at least as long", attach.bytes())};
    }
    if (arenas_.contains(attach.arena_id()) || arenas_.size() >= kArenasMax) {
        return wrong_state("the arena exists, or there are too many");
    }
    const int protection = attach.read_only() ? PROT_READ : PROT_READ | PROT_WRITE;
    void* base = mmap(kArenaHint, attach.bytes(), protection,
                      attach.read_only() ? MAP_PRIVATE : MAP_SHARED, in[0].get(), 0);
    if (base == MAP_FAILED) {
        return Error{Code::kInternal, "worker.arena",
                     fmt::format("cannot map the arena: {}", std::strerror(errno))};
    }
    arenas_[attach.arena_id()] = {static_cast<std::byte*>(base), attach.bytes(),
                                  attach.read_only()};
    if (!attach.read_only() && !attach.pageable()) {
        (void)part_->content.memory.add_staging(
            std::span(static_cast<std::byte*>(base), attach.bytes()));
    }
    return {};
}

Result<void> Service::detach_arena(std::uint32_t id) {
    const auto arena = arenas_.find(id);
    if (arena != arenas_.end()) {
        retired_arenas_.push_back(arena->second);
        arenas_.erase(arena);
    }
    // A driver may wait for the device before it gives page-locked memory back, and a device with
    // an open host callback never comes to rest.
    if (process_ != nullptr && process_->held.active()) {
        return {};
    }
    for (const Arena& old : retired_arenas_) {
        if (part_ != nullptr) {
            part_->content.memory.remove_staging(std::span(old.base, old.bytes));
        }
        munmap(old.base, old.bytes);
    }
    retired_arenas_.clear();
    return {};
}

Result<std::span<std::byte>> Service::arena_part(std::uint32_t id, std::uint64_t offset,
                                                 std::uint64_t bytes, bool for_writing) {
    const auto arena = arenas_.find(id);
    if (arena == arenas_.end() || offset > arena->second.bytes ||
        bytes > arena->second.bytes - offset || (for_writing && arena->second.read_only)) {
        return Error{Code::kInvalidArgument, "worker.arena",
                     fmt::format("{} bytes at {} of arena {} cannot be used", bytes, offset, id)};
    }
    return std::span(arena->second.base + offset, bytes);
}

Result<void> Service::scan(const control::Scan& scan, control::FromWorker* reply,
                           Descriptors* out) {
    const auto begin = std::chrono::steady_clock::now();
    engine::BlockSetDigest digest;
    GANTRY_ASSIGN(const engine::ScanResult result,
                  scan.look() ? part_->source.scan_all(&digest, scan.share_percent())
                              : part_->source.scan(scan.share_percent()));
    control::ScanReply* body = reply->mutable_scan();
    if (scan.look()) {
        state::set_digest(digest, body->mutable_digest());
    }
    control::BlockRunList list;
    state::append_runs(result.changed, list.mutable_runs());
    body->set_scanned_block_count(result.scanned_block_count);
    body->set_resident_bytes(result.scanned_block_count * state::kBlockBytes);
    body->set_elapsed_us(
        static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                       std::chrono::steady_clock::now() - begin)
                                       .count()));
    body->set_rest_us(static_cast<std::uint64_t>(result.rested.count()));
    if (static_cast<std::size_t>(list.runs_size()) <= kInlineRunsMax) {
        *body->mutable_runs() = std::move(*list.mutable_runs());
        return {};
    }
    const std::string bytes = list.SerializeAsString();
    GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(bytes));
    body->set_runs_bytes(bytes.size());
    out->push_back(std::move(blob));
    return {};
}

Result<void> Service::read_blocks(const control::ReadBlocks& read, control::FromWorker* reply) {
    GANTRY_ASSIGN(const auto blocks, state::expand_runs(read.runs()));
    if (blocks.size() > engine::StateSource::kReadBlocksMax) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("{} blocks in one request", blocks.size())};
    }
    GANTRY_ASSIGN(const auto target, arena_part(read.arena_id(), read.offset(),
                                                blocks.size() * state::kBlockBytes, true));
    GANTRY_ASSIGN(const auto copied, part_->source.read_blocks(blocks, target));
    control::ReadBlocksReply* body = reply->mutable_read_blocks();
    std::vector<engine::BlockAddress> addresses;
    std::string fingerprints;
    for (const state::CopiedBlock& block : copied) {
        addresses.push_back(block.address);
        state::append_fingerprint(block.fingerprint, &fingerprints);
    }
    state::append_runs(addresses, body->mutable_runs());
    body->set_fingerprints(std::move(fingerprints));
    return {};
}

Result<void> Service::get_digest(const control::GetDigest& get, control::FromWorker* reply,
                                 Descriptors* out) {
    if (get.after_copies()) {
        GANTRY_ASSIGN(const engine::BlockSetDigest all, part_->content.digest_after_copies());
        state::set_digest(all, reply->mutable_digest());
        return {};
    }
    if (get.first_count() != 0) {
        FingerprintList first;
        GANTRY_ASSIGN(const state::PartSource::Looked looked,
                      part_->source.look_at_first(get.first_count(), first.visit()));
        return put_looked(looked, std::move(first), reply->mutable_digest(), out);
    }
    FingerprintList fingerprints;
    GANTRY_ASSIGN(const engine::BlockSetDigest all,
                  get.with_fingerprints() ? part_->content.digest(fingerprints.visit())
                                          : part_->content.digest());
    state::set_digest(all, reply->mutable_digest());
    return std::move(fingerprints).put(reply->mutable_digest(), out);
}

Result<void> Service::get_images(const control::GetImages& get, control::FromWorker* reply,
                                 Descriptors* out) {
    // Image by image: all of them are hundreds of MiB, and a heap that grows and shrinks by so much
    // holds up the guest's commands, which need it too.
    control::BlobWriter blob;
    for (const ImagePtr& image : part_->content.images()) {
        const std::string sha(reinterpret_cast<const char*>(image->sha256.data()),
                              image->sha256.size());
        if (std::find(get.known_sha256().begin(), get.known_sha256().end(), sha) !=
            get.known_sha256().end()) {
            continue;
        }
        control::ImageList list;  // Serialised repeated fields join by concatenation.
        control::ImageBytes* bytes = list.add_images();
        bytes->set_sha256(sha);
        bytes->set_content(image->bytes.data(), image->bytes.size());
        GANTRY_TRY(blob.add(list.SerializeAsString()));
    }
    reply->mutable_images()->set_bytes(blob.size());
    if (blob.size() != 0) {
        GANTRY_ASSIGN(control::UniqueFd sealed, std::move(blob).seal());
        out->push_back(std::move(sealed));
    }
    return {};
}

Result<void> Service::freeze(const control::Freeze& freeze, control::FromWorker* reply) {
    control::FreezeReply* body = reply->mutable_freeze();
    if (execution_->frozen()) {
        if (fenced_) {
            return wrong_state("the session was granted away; its token stands");
        }
        frozen_ = freeze.token();  // whatever the old one promised is void
    } else {
        GANTRY_ASSIGN(const auto drain,
                      execution_->freeze(std::chrono::microseconds(freeze.deadline_us())));
        body->set_drain_us(static_cast<std::uint64_t>(drain.count()));
        frozen_ = freeze.token();
    }
    return {};
}

Result<void> Service::final_part(control::FromWorker* reply, Descriptors* out) {
    GANTRY_ASSIGN(const std::string graph, part_->source.final_graph());
    const engine::BlockSetDigest digest = part_->source.sent_digest();
    GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(graph));
    control::FinalPartReply* body = reply->mutable_final_part();
    body->set_graph_bytes(graph.size());
    state::set_digest(digest, body->mutable_digest());
    out->push_back(std::move(blob));
    return {};
}

Result<void> Service::fence(bool guest_is_here) {
    if (!fenced_ && !execution_->frozen()) {
        return wrong_state("only a frozen worker can be fenced");
    }
    fenced_ = true;
    execution_->disown(guest_is_here);
    return {};
}

Result<void> Service::unfence(std::uint64_t epoch) {
    if (!execution_->frozen()) {
        return wrong_state("only a frozen worker can be given its session back");
    }
    if (fenced_) {
        execution_->own_again();
    }
    fenced_ = false;
    epoch_ = epoch;
    return {};
}

Result<void> Service::release(const control::Release& release, control::FromWorker* reply,
                              Descriptors* out) {
    if (release.lend()) {
        return lend_guest(reply, out);
    }
    if (release.return_guest()) {
        if (!execution_->frozen()) {
            return wrong_state("only a frozen worker gives its guest away");
        }
        auto memory = execution_->detach();
        process_->memory.device.share().set_counting(
            false);  // Whoever has the guest now counts it.
        control::ReleaseReply* body = reply->mutable_release();
        *body->mutable_guest() = guest_;
        const int file = fcntl(memory->file(), F_DUPFD_CLOEXEC, 3);
        if (file < 0) {
            return Error{Code::kInternal, "worker.release", std::strerror(errno)};
        }
        out->emplace_back(file);
        if (guest_socket_.valid()) {
            out->push_back(std::move(guest_socket_));
        }
        frozen_.reset();
    } else if (execution_->serving()) {
        execution_->disown(true);  // Wherever it went, its memory is there.
        execution_->detach();
    }
    fenced_ = true;
    return {};
}

Result<void> Service::check_graph(std::uint64_t bytes, Descriptors& in,
                                  control::FromWorker* reply) {
    GANTRY_ASSIGN(const control::MappedBlob blob, control::take_blob(in, 0, bytes));
    GANTRY_ASSIGN(const state::DecodedGraph graph, state::decode(blob.text()));
    control::CheckGraphReply* body = reply->mutable_check_graph();
    for (const state::Problem& problem : part_->target.check(graph)) {
        control::Problem* listed = body->add_problems();
        listed->set_refusal(problem.refusal);
        listed->set_reason(problem.reason);
        listed->set_text(problem.text);
    }
    return {};
}

Result<void> Service::take_images(Descriptors& in, std::size_t index, std::uint64_t bytes) {
    if (bytes == 0) {
        return {};
    }
    GANTRY_ASSIGN(const control::MappedBlob blob, control::take_blob(in, index, bytes));
    control::ImageList list;
    if (!blob.parse(&list)) {
        return Error{Code::kInvalidArgument, "snapshot.images", "the list of images is damaged"};
    }
    for (const control::ImageBytes& image : list.images()) {
        const auto* raw = reinterpret_cast<const std::byte*>(image.content().data());
        std::vector<std::byte> content(raw, raw + image.content().size());
        const Sha256 sha = sha256_of(content);
        if (image.sha256() != std::string(reinterpret_cast<const char*>(sha.data()), sha.size())) {
            return Error{Code::kDataLoss, "snapshot.images",
                         "an image's bytes do not match its SHA-256"};
        }
        part_->content.keep_image(std::move(content));
    }
    return {};
}

Result<void> Service::prepare(const control::Prepare& prepare, Descriptors& in,
                              control::FromWorker* reply) {
    if (execution_->serving()) {
        return wrong_state("a worker with a guest cannot take another state");
    }
    GANTRY_TRY(take_images(in, 1, prepare.images_bytes()));
    GANTRY_ASSIGN(const control::MappedBlob blob, control::take_blob(in, 0, prepare.graph_bytes()));
    restoring_ = true;
    part_->target.set_new_memory_comes(prepare.new_memory_comes());
    process_->memory.device.share().set_counting(!prepare.counted_elsewhere());
    if (prepare.blocks_from_file()) {
        part_->target.expect_file();
    }
    GANTRY_ASSIGN(const auto missing,
                  part_->target.prepare({prepare.seed().low(), prepare.seed().high()}, blob.text(),
                                        prepare.arena_is_shared()));
    control::PrepareReply* body = reply->mutable_prepare();
    for (const Sha256& sha : missing) {
        body->add_missing_image_sha256(sha.data(), sha.size());
    }
    return {};
}

Result<void> Service::apply_blocks(const control::ApplyBlocks& apply) {
    if (execution_->serving()) {
        return wrong_state("a worker with a guest cannot take another state");
    }
    std::uint64_t offset = apply.offset();
    for (const control::IncomingRun& incoming : apply.runs()) {
        google::protobuf::RepeatedPtrField<control::BlockRun> one;
        *one.Add() = incoming.run();
        GANTRY_ASSIGN(const auto blocks, state::expand_runs(one));
        if (incoming.form() == control::IncomingRun::FORM_COPY) {
            *one.Mutable(0) = incoming.origin();
            GANTRY_ASSIGN(const auto origins, state::expand_runs(one));
            if (origins.size() != blocks.size()) {
                return Error{Code::kInvalidArgument, "worker.protocol",
                             fmt::format("{} blocks copy {}", blocks.size(), origins.size())};
            }
            for (std::size_t i = 0; i < blocks.size(); ++i) {
                GANTRY_TRY(part_->target.apply_copy(blocks[i], origins[i]));
            }
            continue;
        }
        std::span<const std::byte> bytes;  // None: zeros.
        if (incoming.form() == control::IncomingRun::FORM_BYTES) {
            GANTRY_ASSIGN(bytes, arena_part(apply.arena_id(), offset,
                                            blocks.size() * state::kBlockBytes, false));
            offset += bytes.size();
        }
        if (!blocks.empty()) {
            GANTRY_TRY(part_->target.apply_run(blocks.front(), blocks.size(), bytes));
        }
    }
    return part_->target.settle();  // The staging area is gantryd's again.
}

Result<void> Service::apply_final(const control::ApplyFinal& apply, Descriptors& in) {
    if (execution_->serving()) {
        return wrong_state("a worker with a guest cannot take another state");
    }
    GANTRY_TRY(take_images(in, 1, apply.images_bytes()));
    GANTRY_ASSIGN(const control::MappedBlob blob, control::take_blob(in, 0, apply.graph_bytes()));
    restoring_ = true;
    part_->target.set_new_memory_comes(apply.new_memory_comes());
    const MemorySum expected{apply.memory().count(), apply.memory().bytes(),
                             apply.memory().mixed()};
    GANTRY_ASSIGN(const auto missing, part_->content.memory.arena_is_shared()
                                          ? part_->target.apply_final(blob.text(), expected)
                                          : part_->target.apply_final(blob.text()));
    if (missing.empty() && apply.region_stays()) {
        part_->target.forget_pinned_writes();
    }
    if (!missing.empty()) {
        return Error{Code::kNotFound, "module.image_missing",
                     fmt::format("image {} did not arrive", to_hex(missing.front()))};
    }
    return {};
}

}  // namespace gantry::worker

// Service: requests by which a guest and its memory go to another worker of this host.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "host-daemon/state/blocks/block_ranges.h"
#include "host-daemon/worker/service.h"

namespace gantry::worker {
namespace {

Result<control::BlockRunList> take_runs(const control::PullBlocks& request,
                                        std::vector<control::UniqueFd>& in) {
    control::BlockRunList list;
    if (request.runs_bytes() != 0) {
        GANTRY_TRY(control::parse_blob(in, 0, request.runs_bytes(), &list));
    } else {
        *list.mutable_runs() = request.runs();
    }
    return list;
}

}  // namespace

Result<void> Service::lend_guest(control::FromWorker* reply, Descriptors* out) {
    if (process_->channel.memory() == nullptr || fenced_) {
        return wrong_state("this worker has no guest to lend");
    }
    if (guest_.kind() == control::GuestAttachment::KIND_MEMFD && !guest_socket_.valid()) {
        return Error{Code::kFailedPrecondition, "handover.guest_gone",
                     "the guest process has ended"};
    }
    *reply->mutable_release()->mutable_guest() = guest_;
    for (const int file : {process_->channel.memory()->file(), guest_socket_.get()}) {
        const int copy = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 3);
        if (file >= 0 && copy < 0) {
            return Error{Code::kInternal, "worker.release", std::strerror(errno)};
        }
        if (copy >= 0) {
            out->emplace_back(copy);
        }
    }
    return {};
}

Result<void> Service::export_memory(const control::ExportMemory& request,
                                    control::FromWorker* reply, Descriptors* out) {
    if (process_->is_broken()) {  // Nobody takes its memory.
        reply->mutable_export_memory()->mutable_sum();
        reply->mutable_export_memory()->set_last_serial(device_->last_serial());
        return {};
    }
    device_->bind_thread();
    bool more = false;
    GANTRY_ASSIGN(auto pieces, device_->export_pieces(request.after_serial(),
                                                      control::kMaxPacketDescriptors, &more));
    control::ExportMemoryReply* body = reply->mutable_export_memory();
    for (Device::Exported& exported : pieces) {
        control::MemoryPiece* piece = body->add_pieces();
        piece->set_address(exported.piece.address);
        piece->set_bytes(exported.piece.bytes);
        piece->set_serial(exported.piece.serial);
        out->push_back(std::move(exported.descriptor));
    }
    body->set_more(more);
    body->set_last_serial(device_->last_serial());
    const MemorySum sum = device_->piece_sum();
    body->mutable_sum()->set_count(sum.count);
    body->mutable_sum()->set_bytes(sum.bytes);
    body->mutable_sum()->set_mixed(sum.mixed);
    return {};
}

Result<void> Service::import_memory(const control::ImportMemory& request, Descriptors& in) {
    if (execution_->serving()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "a worker with a guest cannot take another state"};
    }
    if (in.size() != static_cast<std::size_t>(request.pieces_size())) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("{} descriptors for {} pieces of memory", in.size(),
                                 request.pieces_size())};
    }
    device_->bind_thread();
    if (request.as_window() && window_ == nullptr) {
        window_ = std::make_unique<PeerWindow>(*device_);
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
        const control::MemoryPiece& piece = request.pieces(static_cast<int>(i));
        const MemoryPiece taken{piece.address(), piece.bytes(), piece.serial()};
        GANTRY_TRY(request.as_window() ? window_->add(taken, std::move(in[i]))
                                       : device_->offer(taken, std::move(in[i])));
    }
    return {};
}

Result<void> Service::pull_blocks(const control::PullBlocks& request, Descriptors& in,
                                  control::FromWorker* reply, Descriptors* out) {
    if (execution_->serving()) {
        return wrong_state("a worker with a guest cannot take another state");
    }
    if (window_ == nullptr) {  // The other worker has no memory in its arena.
        window_ = std::make_unique<PeerWindow>(*device_);
    }
    GANTRY_ASSIGN(const control::BlockRunList list, take_runs(request, in));
    GANTRY_ASSIGN(const auto wanted, state::to_ranges(list.runs()));
    const auto fingerprints = request.without_fingerprints() ? state::Fingerprints::kNone
                                                             : state::Fingerprints::kOfCopies;
    GANTRY_ASSIGN(const state::Pulled pulled,
                  part_->target.pull(*window_, wanted, fingerprints, request.share_percent()));
    control::PulledBlocks blocks;
    state::add_ranges(pulled.copied, blocks.mutable_runs());
    state::add_ranges(pulled.outside, blocks.mutable_outside());
    state::add_ranges(pulled.absent, blocks.mutable_absent());
    blocks.set_fingerprints(pulled.fingerprints.data(),
                            pulled.fingerprints.size() * sizeof(snapshot::Fingerprint));
    const std::string bytes = blocks.SerializeAsString();
    GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(bytes));
    control::PullBlocksReply* body = reply->mutable_pull_blocks();
    body->set_pulled_bytes(bytes.size());
    body->set_block_count(state::count_of(pulled.copied));
    body->set_copy_us(pulled.copy_us);
    body->set_fingerprint_us(pulled.fingerprint_us);
    body->set_rest_us(pulled.rest_us);
    out->push_back(std::move(blob));
    return {};
}

Result<void> Service::note_sent(const control::NoteSent& request, Descriptors& in) {
    control::PulledBlocks blocks;
    GANTRY_TRY(control::parse_blob(in, 0, request.pulled_bytes(), &blocks));
    GANTRY_ASSIGN(const auto ranges, state::to_ranges(blocks.runs()));
    std::vector<snapshot::Fingerprint> fingerprints(state::count_of(ranges));
    if (blocks.fingerprints().size() != fingerprints.size() * sizeof(snapshot::Fingerprint)) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("{} bytes of fingerprints for {} blocks",
                                 blocks.fingerprints().size(), fingerprints.size())};
    }
    std::memcpy(fingerprints.data(), blocks.fingerprints().data(), blocks.fingerprints().size());
    return part_->source.note_sent(ranges, fingerprints);
}

}  // namespace gantry::worker

// Service: requests by which a guest and its memory go to another worker of this device.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "host-daemon/worker/service.h"

namespace gantry::worker {

Result<void> Service::lend_guest(control::FromWorker* reply, Descriptors* out) {
    *reply->mutable_release()->mutable_guest() = guest_;
    for (const int file : {process_->channel()->file(), guest_socket_.get()}) {
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
    const MemorySum sum = device_->piece_sum();
    body->mutable_sum()->set_count(sum.count);
    body->mutable_sum()->set_bytes(sum.bytes);
    body->mutable_sum()->set_mixed(sum.mixed);
    return {};
}

Result<void> Service::import_memory(const control::ImportMemory& request, Descriptors& in) {
    if (process_->serving()) {
        return Error{Code::kFailedPrecondition, "worker.state",
                     "a worker with a guest cannot take another state"};
    }
    if (in.size() != static_cast<std::size_t>(request.pieces_size())) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("{} descriptors for {} pieces of memory", in.size(),
                                 request.pieces_size())};
    }
    device_->bind_thread();
    for (std::size_t i = 0; i < in.size(); ++i) {
        const control::MemoryPiece& piece = request.pieces(static_cast<int>(i));
        GANTRY_TRY(device_->offer({piece.address(), piece.bytes(), piece.serial()},
                                  std::move(in[i])));
    }
    return {};
}

}  // namespace gantry::worker

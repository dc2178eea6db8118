#include "host-daemon/replacement/hand_over.h"

namespace gantry::replacement {

Result<void> HandOver::check_devices(const control::DeviceDescription& from,
                                     const control::DeviceDescription& to) {
    if (from.uuid() != to.uuid()) {
        return Error{Code::kFailedPrecondition, "handover.other_device",
                     "the old worker has device " + from.uuid() + ", the fresh one " + to.uuid() +
                         ": memory is handed over on one device only"};
    }
    // Whether the driver can share memory it says when it is asked to (handover.not_exportable).
    if (from.driver_version() != to.driver_version()) {
        return Error{Code::kFailedPrecondition, "handover.other_driver",
                     "the old worker's CUDA driver is " + std::to_string(from.driver_version()) +
                         ", the fresh one's " + std::to_string(to.driver_version()) +
                         ": move the session instead"};
    }
    return {};
}

Result<void> HandOver::move_pieces() {
    GANTRY_ASSIGN(sum_, transfer_pieces(PiecesAs::kOwn, &last_serial_, [](const Pieces&) {}));
    report_.pieces = sum_.count();
    report_.bytes_handed_over = sum_.bytes();
    return {};
}

Result<void> HandOver::copy_round(std::uint64_t* bytes) {
    GANTRY_ASSIGN(const Scanned scanned, scan(ScanHow::kChanged));
    GANTRY_TRY(copy_staged(scanned.runs));
    *bytes += count_of(scanned.runs) * kBlockBytes;
    return {};
}

Result<void> HandOver::prepare() {
    GANTRY_TRY(begin_precopy(true, Staging::kFew));
    GANTRY_ASSIGN(const Parcel early, take_graph());
    GANTRY_TRY(move_pieces());
    GANTRY_TRY(send_prepare(early, true));
    GANTRY_TRY(attach_early());
    return copy_round(&report_.bytes_copied);
}

Result<void> HandOver::send_final() {
    // The graph before the memory: taking it may give spare memory back.
    GANTRY_TRY(copy_round(&report_.bytes_copied_frozen));
    report_.bytes_copied += report_.bytes_copied_frozen;
    lap("copy");
    GANTRY_ASSIGN(const Parcel part, take_final());
    lap("graph");
    GANTRY_TRY(move_pieces());
    lap("memory");
    GANTRY_TRY(apply_final(part, &sum_));
    lap("build");
    return verify(part.digest, "what was copied of module variables and arrays");
}

}  // namespace gantry::replacement

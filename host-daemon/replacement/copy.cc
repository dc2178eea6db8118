// The device memory is copied, live: rounds of what has changed, then the last one in the pause.
//
// Peer: the fresh worker maps the old one's memory in a window and copies from device to device;
// rounds name blocks and carry no bytes of the arena. The fingerprints of its copies go back to the
// old worker, which counts them as sent. Module variables and arrays, which no driver exports, and
// all of it when staged, go through memory of the host.
//
// WHAT COUNTS AS COPIED. A piece of the old worker's memory may go, and another come at its place,
// at any time; a serial tells them apart. A graph that was taken after serial S was the last gives
// the fresh worker memory for every piece up to S that still lives, and it keeps that memory as
// long as the piece lives. Blocks of later pieces count as never sent once the next graph has come:
// whatever was copied before may have gone to memory that is no more.
//
// HOW MANY ROUNDS. engine::Rounds decides, as for moves. What is written all the time is found
// changed by every scan; copying it once more only takes from the guest. So a scan that finds no
// more than the pause may copy ends the rounds, without a copy.
//
// THE CHECK AT THE END. The frozen old worker looks at all its blocks by itself; the fresh one at
// all of its own. Both digests must be equal: neither says what the other's should be.
#include "host-daemon/replacement/copy.h"

#include <algorithm>
#include <future>
#include <iterator>

#include "proto/control/channel.h"

namespace gantry::replacement {
namespace {

/// Of the time, percent, that scans and copies from device to device may take while the guest is
/// served.
constexpr unsigned kLiveShare = 50;
constexpr std::uint64_t kNoPieces = ~0ull;  // After this serial there is none.

}  // namespace

Result<void> Copy::check_devices(const control::DeviceDescription&,
                                 const control::DeviceDescription&) {
    return {};
}

Result<std::uint64_t> Copy::last_serial() {
    control::ToWorker request;
    request.mutable_export_memory()->set_after_serial(kNoPieces);
    GANTRY_ASSIGN(const Answer answer, ask(old_, std::move(request)));
    return answer.message.export_memory().last_serial();
}

Result<void> Copy::take_pieces() {
    const auto note = [this](const Pieces& pieces) {
        std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(unprepared_),
                     [this](const control::MemoryPiece& piece) {
                         return piece.serial() > prepared_serial_;
                     });
    };
    GANTRY_ASSIGN(const control::MemorySum sum,
                  transfer_pieces(PiecesAs::kWindow, &last_serial_, note));
    report_.pieces = sum.count();
    return {};
}

Result<void> Copy::forget_unprepared() {
    if (unprepared_.empty()) {
        return {};
    }
    control::ToWorker request;
    for (const control::MemoryPiece& piece : unprepared_) {
        control::BlockRun* run = request.mutable_mark_unsent()->add_runs();
        run->set_space(static_cast<std::uint32_t>(engine::MemorySpace::kDevice));
        run->set_first(piece.address() / kBlockBytes);
        run->set_count(static_cast<std::uint32_t>(piece.bytes() / kBlockBytes));
        if (request.mark_unsent().runs_size() >= kInlineRunsMax) {
            GANTRY_TRY(ask(old_, std::exchange(request, {})));
        }
    }
    unprepared_.clear();
    // No runs would mean all of them.
    if (request.mark_unsent().runs_size() != 0) {
        GANTRY_TRY(ask(old_, std::move(request)));
    }
    return {};
}

Result<void> Copy::follow_pieces() {
    if (report_.way != Way::kPeer) {
        return {};
    }
    GANTRY_TRY(take_pieces());
    if (unprepared_.empty()) {
        return {};
    }
    const std::uint64_t known = last_serial_;
    GANTRY_ASSIGN(const Parcel parcel, take_graph());
    GANTRY_TRY(send_prepare(parcel, false));
    prepared_serial_ = known;
    return forget_unprepared();
}

/// What stands in the way is reported; the memory is staged then.
Result<void> Copy::open_window() {
    if (options_.way != Way::kPeer) {
        return {};
    }
    report_.way = Way::kPeer;
    if (const auto taken = take_pieces(); !taken.ok()) {
        report_.way = Way::kStaged;
        report_.staged_because = taken.error().to_string();
        unprepared_.clear();
        control::ToWorker close;
        close.mutable_close_window();
        (void)ask(fresh_, std::move(close));
        return attach_arenas(Staging::kAll);
    }
    return {};
}

Result<void> Copy::prepare() {
    report_.way = Way::kStaged;
    GANTRY_TRY(begin_precopy(false, options_.way == Way::kPeer ? Staging::kFew : Staging::kAll));
    if (options_.way == Way::kPeer) {
        GANTRY_ASSIGN(prepared_serial_, last_serial());
    }
    GANTRY_ASSIGN(const Parcel early, take_graph());
    GANTRY_TRY(send_prepare(early, false));
    GANTRY_TRY(attach_early());
    // Not before: a driver's own allocations, which have to lie where the old worker's do, come
    // first.
    GANTRY_TRY(open_window());
    for (bool more = true; more;) {
        GANTRY_TRY(follow_pieces());
        GANTRY_ASSIGN(more, live_round());
    }
    return follow_pieces();
}

Result<bool> Copy::live_round() {
    const auto begin = Clock::now();
    GANTRY_ASSIGN(const Scanned scanned, scan(ScanHow::kChanged, kLiveShare));
    const std::uint64_t bytes = count_of(scanned.runs) * kBlockBytes;
    if (rounds_.fits(rounds_.copy_time(bytes))) {
        report_.bytes_left = bytes;  // Much of it would be written again before the pause.
        return false;
    }
    Round& round = report_.rounds.emplace_back();
    round.scan_us = scanned.elapsed_us;
    round.rest_us = scanned.rest_us;
    GANTRY_TRY(copy(scanned.runs, Phase::kLive, &round));
    round.total_us = us_since(begin);
    rounds_.add({round.bytes, round.bytes, engine::Duration(round.copy_us)});
    return rounds_.judge(std::nullopt) == engine::Convergence::kAnotherRound;
}

Result<void> Copy::copy(const Runs& runs, Phase phase, Round* round) {
    if (count_of(runs) == 0) {
        return {};
    }
    if (report_.way == Way::kPeer) {
        GANTRY_TRY(pull(runs, phase, round));
    } else {
        const auto begin = Clock::now();
        GANTRY_TRY(copy_staged(runs));
        round->bytes = count_of(runs) * kBlockBytes;
        round->copy_us = us_since(begin);
    }
    report_.bytes_copied += round->bytes;
    return {};
}

Result<void> Copy::pull(const Runs& runs, Phase phase, Round* round) {
    control::ToWorker request;
    control::UniqueFd runs_blob;
    std::vector<int> descriptors;
    request.mutable_pull_blocks()->set_without_fingerprints(phase == Phase::kFrozen);
    request.mutable_pull_blocks()->set_share_percent(phase == Phase::kLive ? kLiveShare : 0);
    if (runs.size() <= kInlineRunsMax) {
        *request.mutable_pull_blocks()->mutable_runs() = runs;
    } else {
        control::BlockRunList list;
        *list.mutable_runs() = runs;
        const std::string bytes = list.SerializeAsString();
        GANTRY_ASSIGN(runs_blob, control::make_blob(bytes));
        request.mutable_pull_blocks()->set_runs_bytes(bytes.size());
        descriptors.push_back(runs_blob.get());
    }
    GANTRY_ASSIGN(Answer answer, ask(fresh_, std::move(request), descriptors));
    const control::PullBlocksReply& reply = answer.message.pull_blocks();
    round->copy_us = reply.copy_us();
    round->rest_us += reply.rest_us();
    round->fingerprint_us = reply.fingerprint_us();
    GANTRY_ASSIGN(const control::MappedBlob blob,
                  control::take_blob(answer.descriptors, 0, reply.pulled_bytes()));
    control::PulledBlocks pulled;
    GANTRY_TRY(blob.parse(&pulled));
    if (phase == Phase::kLive && pulled.runs_size() != 0) {
        control::ToWorker note;
        note.mutable_note_sent()->set_pulled_bytes(blob.bytes().size());
        GANTRY_TRY(ask(old_, std::move(note), {blob.fd()}));
    }
    GANTRY_TRY(copy_staged(pulled.outside()));
    round->bytes = (reply.block_count() + count_of(pulled.outside())) * kBlockBytes;
    if (phase == Phase::kFrozen && pulled.absent_size() != 0) {
        return Error{Code::kDataLoss, "handover.memory",
                     std::to_string(count_of(pulled.absent())) +
                         " blocks have no memory at the fresh worker or in its window"};
    }
    return {};  // The others' memory comes with a later graph.
}

Result<void> Copy::send_final() {
    // The graph before the memory: taking it may give spare memory back.
    GANTRY_ASSIGN(const Parcel part, take_final());
    lap("graph");
    if (report_.way == Way::kPeer) {
        GANTRY_TRY(take_pieces());
        GANTRY_TRY(forget_unprepared());
    }
    lap("memory");
    const auto begin = Clock::now();
    std::uint64_t build_us = 0;
    auto built = std::async(std::launch::async, [&] {
        auto applied = apply_final(part, nullptr);
        build_us = us_since(begin);
        return applied;
    });
    const auto scanned = scan(ScanHow::kLook);
    const std::uint64_t scan_us = us_since(begin);
    GANTRY_TRY(built.get());
    if (!scanned.ok()) {
        return scanned.error();
    }
    lap("scan_and_build");
    report_.pause_steps.emplace_back("scan", scan_us);
    report_.pause_steps.emplace_back("build", build_us);
    Round& round = report_.rounds.emplace_back();
    round.scan_us = scanned->elapsed_us;
    GANTRY_TRY(copy(scanned->runs, Phase::kFrozen, &round));
    round.total_us = us_since(begin);
    report_.bytes_copied_frozen = round.bytes;
    lap("copy");
    return verify(scanned->digest, "the memory");
}

void Copy::tidy_up() {
    control::ToWorker close;
    close.mutable_close_window();
    (void)ask(fresh_, std::move(close));
}

}  // namespace gantry::replacement

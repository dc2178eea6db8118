// How SourceRunner sends a round: graphs, images, changed blocks. Runs on its slow executor.
#include <spdlog/spdlog.h>

#include <algorithm>

#include "host-daemon/supervisor/moves/source_runner.h"
#include "host-daemon/supervisor/workers/worker_set.h"
#include "proto/control/worker.pb.h"

namespace gantry::supervisor {
namespace {

constexpr auto kProgressInterval = std::chrono::milliseconds{200};
constexpr auto kFailureDelay = std::chrono::milliseconds{100};
constexpr std::size_t kMarkBlocksMax = 512;

void append_run(control::BlockBatch* batch, engine::BlockAddress block, bool zero) {
    if (batch->runs_size() > 0) {
        control::BatchRun& last = *batch->mutable_runs(batch->runs_size() - 1);
        if (last.space() == static_cast<std::uint32_t>(block.space) &&
            last.first() + last.count() == block.index && last.zero() == zero) {
            last.set_count(last.count() + 1);
            return;
        }
    }
    control::BatchRun& run = *batch->add_runs();
    run.set_space(static_cast<std::uint32_t>(block.space));
    run.set_first(block.index);
    run.set_count(1);
    run.set_zero(zero);
}

}  // namespace

void SourceRunner::begin_precopy(engine::Seed seed) {
    zero_block_ = snapshot::FingerprintKey(seed).zero_block();
    images_sent_.clear();
    lost_.clear();
    if (auto bulk = current_bulk()) {
        (void)bulk->take_unacknowledged();  // everything counts as unsent anyway
    }
    const auto begun = source_.begin_precopy(seed);
    if (begun) {
        feed(engine::source_event::PrecopyBegun{});
    } else {
        feed(engine::source_event::RoundFailed{0, begun.error()});
    }
}

Result<void> SourceRunner::mark_lost_unsent() {
    const std::shared_ptr<BulkQueue> bulk = current_bulk();
    if (!bulk) {
        return {};
    }
    for (SentBlocks& sent : bulk->take_unacknowledged()) {
        auto& blocks = lost_[sent.part];
        blocks.insert(blocks.end(), sent.blocks.begin(), sent.blocks.end());
    }
    images_sent_.clear();     // a lost graph may have carried images
    while (!lost_.empty()) {  // What could not be marked now is marked before the next round.
        const engine::PartId part = lost_.begin()->first;
        GANTRY_TRY(unless_ended(part, mark_unsent(part, lost_.begin()->second)));
        lost_.erase(lost_.begin());
    }
    return {};
}

Result<void> SourceRunner::mark_unsent(engine::PartId part,
                                       std::vector<engine::BlockAddress>& blocks) {
    std::sort(blocks.begin(), blocks.end());
    for (std::size_t at = 0; at < blocks.size(); at += kMarkBlocksMax) {
        const std::size_t count = std::min(kMarkBlocksMax, blocks.size() - at);
        GANTRY_TRY(source_.mark_unsent(part, std::span(blocks).subspan(at, count)));
    }
    return {};
}

/// A part whose program has ended is no part of the move any more, and cannot fail it.
Result<void> SourceRunner::unless_ended(engine::PartId part, Result<void> outcome) const {
    return source_.has(part) ? std::move(outcome) : Result<void>{};
}

void SourceRunner::order_round(std::uint64_t number, bool resend) {
    Round round;
    round.number = number;
    round.cut_serial = cut_serial_;
    round.bulk = current_bulk();
    round.blocks_before = round.bulk ? round.bulk->acknowledged_blocks() : 0;
    on_slow([this, round = std::move(round), resend] { send_round(round, resend); });
}

void SourceRunner::send_round(Round round, bool resend) {
    next_batch_ = 1;
    const auto begun = runtime_.now();
    Result<void> outcome;
    if (resend) {
        outcome = mark_lost_unsent();
    }
    for (const engine::PartId part : source_.parts()) {
        if (!outcome || is_cut(round)) {
            break;
        }
        outcome = unless_ended(part, send_part(part, round));
    }
    round.stats.elapsed = std::chrono::duration_cast<engine::Duration>(runtime_.now() - begun);
    round.stats.batch_count = next_batch_ - 1;
    count_acknowledged(round);
    if (outcome) {
        feed(engine::source_event::RoundSent{round.number, round.stats});
        return;
    }
    spdlog::warn("session {}: round {} failed: {}", session_id_, round.number,
                 outcome.error().to_string());
    // The machine orders the round again at once: what fails at once must not spin.
    runtime_.sleep_for(kFailureDelay);
    feed(engine::source_event::RoundFailed{round.number, outcome.error()});
}

void SourceRunner::count_acknowledged(Round& round) {
    if (round.bulk) {
        round.stats.bytes_acknowledged =
            (round.bulk->acknowledged_blocks() - round.blocks_before) * engine::kBlockBytes;
    }
}

Result<void> SourceRunner::push(control::BulkDown batch, SentBlocks blocks, Round& round) {
    batch.set_batch(next_batch_++);  // Here: the target waits for every number.
    round.stats.bytes_content += blocks.blocks.size() * engine::kBlockBytes;
    round.stats.bytes_sent += batch.ByteSizeLong();
    if (!round.bulk ||
        !round.bulk->push(std::move(batch), std::move(blocks), [&] { return is_cut(round); })) {
        return Error{Code::kCancelled, "stream.closed", "the migration has ended"};
    }
    return {};
}

Result<void> SourceRunner::send_graph(engine::PartId part, Round& round) {
    control::BulkDown batch;
    batch.set_round(round.number);
    batch.set_part_id(part.value);
    GANTRY_ASSIGN(*batch.mutable_graph()->mutable_graph(), source_.graph(part));
    std::vector<std::string>& known = images_sent_[part];
    GANTRY_ASSIGN(std::string images, source_.images(part, known));
    if (!images.empty()) {
        control::ImageList list;
        if (!list.ParseFromString(images)) {
            return Error{Code::kInvalidArgument, "worker.protocol", "a damaged list of images"};
        }
        for (const control::ImageBytes& image : list.images()) {
            known.push_back(image.sha256());
        }
        batch.mutable_graph()->set_images(std::move(images));
    }
    return push(std::move(batch), {part, {}}, round);
}

Result<void> SourceRunner::send_part(engine::PartId part, Round& round) {
    const auto looking = runtime_.now();
    GANTRY_TRY(send_graph(part, round));
    GANTRY_ASSIGN(const engine::ScanResult scanned, source_.scan(part));
    round.stats.scan += std::chrono::duration_cast<engine::Duration>(runtime_.now() - looking) -
                        std::chrono::duration_cast<engine::Duration>(scanned.rested);
    round.stats.bytes_resident += scanned.scanned_block_count * engine::kBlockBytes;
    round.stats.bytes_changed += scanned.changed.size() * engine::kBlockBytes;
    const auto begun = runtime_.now();
    auto reported = begun;
    const std::uint64_t sent_before = round.stats.bytes_sent;
    std::uint64_t acknowledged = round.bulk ? round.bulk->acknowledged_bytes() : 0;
    for (std::size_t at = 0; at < scanned.changed.size() && !is_cut(round); at += kBatchBlocks) {
        const std::size_t count = std::min(kBatchBlocks, scanned.changed.size() - at);
        GANTRY_TRY(send_blocks(part, std::span(scanned.changed).subspan(at, count), round));
        const auto now = runtime_.now();
        if (now - reported >= kProgressInterval) {
            const std::chrono::duration<double> took = now - reported;
            const std::uint64_t before =
                std::exchange(acknowledged, round.bulk->acknowledged_bytes());
            if (round.bulk->waiting()) {  // else the workers are what limits
                compression_.note_link(static_cast<double>(acknowledged - before) / took.count());
            }
            reported = now;
            count_acknowledged(round);
            feed(engine::source_event::RoundProgress{round.number, round.stats});
        }
        pace(round, begun, sent_before);
    }
    return {};
}

/// Holds precopy to the configured bandwidth. Not while frozen: the pause is worth more.
void SourceRunner::pace(const Round& round, Runtime::Clock::time_point begun,
                        std::uint64_t sent_before) {
    if (bandwidth_bytes_s_ == 0 || status().state != engine::SourceState::kPrecopy) {
        return;
    }
    const std::chrono::duration<double> due{
        static_cast<double>(round.stats.bytes_sent - sent_before) /
        static_cast<double>(bandwidth_bytes_s_)};
    while (!is_cut(round) && runtime_.now() - begun < due) {
        runtime_.sleep_for(std::chrono::milliseconds{5});
    }
}

Result<void> SourceRunner::send_blocks(engine::PartId part,
                                       std::span<const engine::BlockAddress> blocks, Round& round) {
    GANTRY_ASSIGN(const auto staged, source_.read_blocks(part, blocks));
    if (staged->count() == 0) {
        return {};
    }
    control::BulkDown batch;
    batch.set_round(round.number);
    batch.set_part_id(part.value);
    control::BlockBatch& out = *batch.mutable_blocks();
    std::string content;
    SentBlocks sent{part, {}};
    for (std::size_t i = 0; i < staged->count(); ++i) {
        const bool zero = staged->fingerprint(i) == zero_block_;
        append_run(&out, staged->address(i), zero);
        sent.blocks.push_back(staged->address(i));
        if (!zero) {
            const auto bytes = staged->bytes(i);
            content.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        }
    }
    out.set_content_bytes(static_cast<std::uint32_t>(content.size()));
    out.set_lz4(compression_.pack(content, out.mutable_content()));
    if (!out.lz4()) {
        out.set_content(std::move(content));
    }
    return push(std::move(batch), std::move(sent), round);
}

void SourceRunner::send_complete(engine::FreezeToken token, std::uint64_t round) {
    engine::Message message;
    message.migration = token.migration;
    engine::MsgComplete complete;
    complete.token = token;
    complete.round = round;
    engine::BlockSetDigest digest;
    for (const engine::PartId part : source_.parts()) {
        auto final_part = source_.final_part(part);
        if (!final_part && !source_.has(part)) {
            continue;
        }
        if (!final_part) {
            spdlog::warn("session {}: the final state of worker {}: {}", session_id_, part.value,
                         final_part.error().to_string());
            runtime_.sleep_for(kFailureDelay);  // As after a round that failed.
            feed(engine::source_event::CompleteFailed{token, final_part.error()});
            return;
        }
        digest.merge(final_part->digest);
        complete.parts.push_back(std::move(*final_part));
    }
    {
        const MutexLock lock(mutex_);
        status_.digest = digest;
    }
    message.body = std::move(complete);
    main_->post([this, message = std::move(message)] { send(message); });
    feed(engine::source_event::CompleteSent{token});
}

}  // namespace gantry::supervisor

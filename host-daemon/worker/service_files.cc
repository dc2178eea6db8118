// Service: requests by which memory goes to a snapshot's file, and comes from one.
#include "host-daemon/state/blocks/block_ranges.h"
#include "host-daemon/state/files/file_blocks.h"
#include "host-daemon/worker/fingerprint_list.h"
#include "host-daemon/worker/service.h"

namespace gantry::worker {
namespace {

Result<state::BlockRange> one_range(const control::BlockRun& run) {
    state::RunList one;
    *one.Add() = run;
    GANTRY_ASSIGN(const auto ranges, state::to_ranges(one));
    if (ranges.empty()) {
        return Error{Code::kInvalidArgument, "worker.protocol", "an empty run"};
    }
    return ranges.front();
}

/// Descriptor 0 is the file, descriptor 1 the list.
Result<std::vector<state::FileRun>> take_file_runs(std::vector<control::UniqueFd>& in,
                                                   std::uint64_t bytes) {
    if (in.size() != 2) {
        return Error{Code::kInvalidArgument, "worker.protocol", "a file and a list are due"};
    }
    control::FileRunList list;
    GANTRY_TRY(control::parse_blob(in, 1, bytes, &list));
    std::vector<state::FileRun> runs;
    for (const control::FileRun& each : list.runs()) {
        state::FileRun run;
        GANTRY_ASSIGN(run.range, one_range(each.run()));
        run.offset = each.offset();
        if (each.form() == control::IncomingRun::FORM_COPY) {
            GANTRY_ASSIGN(const state::BlockRange origin, one_range(each.origin()));
            if (origin.count != run.range.count || origin.space != state::MemorySpace::kDevice) {
                return Error{Code::kInvalidArgument, "worker.protocol", "a copy of other blocks"};
            }
            run.form = state::FileRun::Form::kCopy;
            run.origin = origin.first;
        } else if (each.form() == control::IncomingRun::FORM_ZERO) {
            run.form = state::FileRun::Form::kZero;
        } else if (each.form() != control::IncomingRun::FORM_BYTES) {
            return Error{Code::kInvalidArgument, "worker.protocol", "a run of unknown form"};
        }
        runs.push_back(run);
    }
    return runs;
}

Result<void> answer(const state::FileOutcome& outcome, control::FromWorker* reply,
                    std::vector<control::UniqueFd>* out) {
    control::FileBlocksReply* body = reply->mutable_file_blocks();
    body->set_block_count(outcome.block_count);
    body->set_how(outcome.how);
    if (!outcome.outside.empty()) {
        control::BlockRunList list;
        state::add_ranges(outcome.outside, list.mutable_runs());
        const std::string bytes = list.SerializeAsString();
        GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(bytes));
        body->set_outside_bytes(bytes.size());
        out->push_back(std::move(blob));
    }
    return {};
}

}  // namespace

Result<void> Service::prepare_file(const control::PrepareFile& request, Descriptors& in) {
    if (!execution_->serving() || execution_->frozen()) {
        return wrong_state("a file is prepared while a guest is served");
    }
    if (in.size() != 1 || request.bytes() > ~request.offset()) {
        return Error{Code::kInvalidArgument, "worker.protocol", "a file and a part of it are due"};
    }
    return part_->source.prepare_file(std::move(in[0]),
                                      {request.offset(), request.offset() + request.bytes()});
}

void Service::ask_prepared_file(control::FromWorker* reply) {
    control::PreparedFileReply* body = reply->mutable_prepared_file();
    const state::PreparedFile* prepared = part_->source.prepared_file();
    body->set_is_there(prepared != nullptr);
    if (prepared == nullptr) {
        return;
    }
    const state::PreparedFile::Progress progress = prepared->progress();
    body->set_is_done(progress.is_done);
    body->set_how(progress.how);
    if (!progress.outcome) {
        const Error& error = progress.outcome.error();
        body->mutable_failure()->set_code(static_cast<std::uint32_t>(error.code));
        body->mutable_failure()->set_reason(error.reason);
        body->mutable_failure()->set_text(error.text);
    }
}

Result<void> Service::store_blocks(const control::StoreBlocks& request, Descriptors& in,
                                   control::FromWorker* reply, Descriptors* out) {
    if (!execution_->frozen()) {
        return wrong_state("only a frozen worker's memory goes to a file");
    }
    GANTRY_ASSIGN(const auto runs, take_file_runs(in, request.runs_bytes()));
    FingerprintList fingerprints;
    state::PartSource::Looked looked;
    const auto look = [&]() -> Result<void> {
        GANTRY_ASSIGN(looked, part_->source.look_on(request.look_count(), fingerprints.visit()));
        return {};
    };
    GANTRY_ASSIGN(
        const auto outcome,
        part_->source.store_blocks(
            in[0].get(), runs, request.look_count() != 0 ? look : std::function<Result<void>()>()));
    GANTRY_TRY(answer(outcome, reply, out));
    return put_looked(looked, std::move(fingerprints),
                      reply->mutable_file_blocks()->mutable_looked(), out);
}

Result<void> Service::load_blocks(const control::LoadBlocks& request, Descriptors& in,
                                  control::FromWorker* reply, Descriptors* out) {
    if (execution_->serving()) {
        return wrong_state("a worker with a guest cannot take another state");
    }
    GANTRY_ASSIGN(const auto runs, take_file_runs(in, request.runs_bytes()));
    GANTRY_ASSIGN(const auto outcome,
                  part_->target.load_blocks(in[0].get(), runs, request.more_follow()));
    return answer(outcome, reply, out);
}

}  // namespace gantry::worker

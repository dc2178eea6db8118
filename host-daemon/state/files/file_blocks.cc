#include "host-daemon/state/files/file_blocks.h"

#include <sys/stat.h>

#include "host-daemon/state/files/file_pieces.h"
#include "host-daemon/state/files/file_transfer.h"

namespace gantry::state {
namespace {

Result<FilePlan> plan_for(const MemoryImage& memory, int file, std::span<const FileRun> runs,
                          std::uint64_t chunk_bytes) {
    struct stat status {};
    if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
        return Error{Code::kInvalidArgument, "worker.protocol", "blocks go to and from files"};
    }
    return FilePlan::make(memory, runs, static_cast<std::uint64_t>(status.st_size), chunk_bytes);
}

}  // namespace

Result<FileOutcome> FileBlocks::store(int file, std::span<const FileRun> runs,
                                      const PreparedFile* prepared, const CopyHooks& beside) {
    process_.device.bind_thread();
    GANTRY_TRY(memory_.settle());
    GANTRY_ASSIGN(FilePlan plan, plan_for(memory_, file, runs, FilePlan::kStoreChunkBytes));
    if (!plan.zeros.empty() || !plan.copies.empty()) {
        return Error{Code::kInvalidArgument, "worker.protocol", "only bytes are stored"};
    }
    GANTRY_ASSIGN(Transferred done, transfer(process_, memory_.stream(), slots_, file,
                                             Direction::kToFile, plan.chunks, prepared, beside));
    return FileOutcome{std::move(plan.outside), plan.block_count, std::move(done.how), nullptr};
}

Result<FileOutcome> FileBlocks::load(int file, std::span<const FileRun> runs,
                                     const CopyHooks& beside) {
    process_.device.bind_thread();
    GANTRY_TRY(memory_.settle());
    GANTRY_ASSIGN(FilePlan plan, plan_for(memory_, file, runs, FilePlan::kLoadChunkBytes));
    const driver::DriverApi& api = process_.device.api();
    const auto check = [&api](CUresult result, const char* what) {
        return result == CUDA_SUCCESS ? Result<void>{}
                                      : driver::to_error(api, result, "state.file", what);
    };
    for (const FileRun& run : plan.zeros) {
        GANTRY_TRY(check(api.cuMemsetD8Async(run.range.first * kBlockBytes, 0,
                                             run.range.count * kBlockBytes, memory_.stream()),
                         "setting blocks to zero"));
    }
    GANTRY_ASSIGN(Transferred done, transfer(process_, memory_.stream(), slots_, file,
                                             Direction::kFromFile, plan.chunks, nullptr, beside));
    for (const FileRun& run : plan.copies) {
        GANTRY_TRY(
            check(api.cuMemcpyDtoDAsync_v2(run.range.first * kBlockBytes, run.origin * kBlockBytes,
                                           run.range.count * kBlockBytes, memory_.stream()),
                  "copying blocks"));
    }
    GANTRY_TRY(check(api.cuStreamSynchronize(memory_.stream()), "waiting for blocks"));
    return FileOutcome{std::move(plan.outside), plan.block_count, std::move(done.how),
                       std::move(done.map)};
}

}  // namespace gantry::state

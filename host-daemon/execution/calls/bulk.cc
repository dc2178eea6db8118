// Copies between the device and the guest's bytes: in a command's own record, or in the bulk area
// and the outbox, from where and to where the device copies by itself (proto/wire/region.h).
#include "host-daemon/execution/dispatch/handlers.h"
#include "proto/wire/control_ops.h"

namespace gantry::worker {
namespace {

using gantry::wire::BulkCopyCall;

CUresult refuse_copy(Call& call, const char* what) { return call.malformed(call.op(), what); }

/// The checked arguments; false when they make no sense.
bool read_bulk_copy(const Call& call, BulkCopyCall* out) {
    const auto copy = call.arguments<BulkCopyCall>();
    if (!copy || copy->bytes == 0 || copy->word >= gantry::wire::kBulkWords) {
        return false;
    }
    *out = *copy;
    return true;
}

CUresult copy_from_bulk(Call& call, const BulkCopyCall& copy, std::span<const std::byte> extent) {
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(copy.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    GuestProcess& process = call.process();
    if (!process.bulk_pages.lock()) {
        return write_staged(call, copy.device_address, extent, stream);
    }
    const CUresult result =
        call.api().cuMemcpyHtoDAsync_v2(copy.device_address, extent.data(), extent.size(), stream);
    if (result == CUDA_SUCCESS) {
        call.queued_in(stream);
        process.streams.bulk_board.started(copy.word, call.header().position,
                                           BulkBoard::Way::kFromGuest, stream);
    }
    return result;
}

}  // namespace

CUresult write_staged(Call& call, std::uint64_t address, std::span<const std::byte> bytes,
                      CUstream stream) {
    StagingPool& staging = call.process().memory.staging;
    StagingPool::Buffer buffer = staging.acquire(bytes.size());
    if (buffer.bytes == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::memcpy(buffer.bytes, bytes.data(), bytes.size());
    const CUresult result =
        call.api().cuMemcpyHtoDAsync_v2(address, buffer.bytes, bytes.size(), stream);
    if (result == CUDA_SUCCESS) {
        staging.release_after(buffer, stream);
    } else {
        staging.release(buffer);
    }
    return result;
}

CUresult write_from_bulk(Call& call) {
    BulkCopyCall copy;
    if (!read_bulk_copy(call, &copy)) {
        return refuse_copy(call, "a copy from the bulk area");
    }
    const auto extent = call.process().channel.memory()->bulk(copy.bulk_offset, copy.bytes);
    if (extent.empty()) {
        return refuse_copy(call, "an extent outside the bulk area");
    }
    const CUresult result = copy_from_bulk(call, copy, extent);
    if (result != CUDA_SUCCESS || !call.process().bulk_pages.lock()) {
        call.process().streams.bulk_board.ended(copy.word, call.header().position);
    }
    return result;
}

CUresult read_to_bulk(Call& call) {
    BulkCopyCall copy;
    if (!read_bulk_copy(call, &copy)) {
        return refuse_copy(call, "a copy to the bulk area");
    }
    GuestProcess& process = call.process();
    const auto extent = process.channel.memory()->bulk(copy.bulk_offset, copy.bytes);
    if (extent.empty()) {
        return refuse_copy(call, "an extent outside the bulk area");
    }
    CUstream stream = nullptr;
    if (const CUresult result = call.stream(copy.stream, &stream); result != CUDA_SUCCESS) {
        return result;
    }
    if (!process.bulk_pages.lock()) {
        return CUDA_SUCCESS;  // Would wait. Its end is never shown, and so the guest asks again.
    }
    const CUresult result =
        call.api().cuMemcpyDtoHAsync_v2(extent.data(), copy.device_address, extent.size(), stream);
    if (result == CUDA_SUCCESS) {
        const auto sign =
            process.streams.may_use_words() ? BulkBoard::Sign::kWord : BulkBoard::Sign::kEvent;
        process.streams.bulk_board.started(copy.word, call.header().position,
                                           BulkBoard::Way::kToGuest, stream, sign);
    }
    return result;
}

CUresult look_at_bulk(Call& call) {
    const auto look = call.arguments<gantry::wire::LookAtBulkCall>();
    if (!look || look->word >= gantry::wire::kBulkWords) {
        return refuse_copy(call, "a word of a bulk copy");
    }
    call.process().streams.bulk_board.look_at(look->word, look->position);
    return CUDA_SUCCESS;
}

}  // namespace gantry::worker

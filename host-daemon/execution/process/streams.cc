// GuestProcess: the guest's streams and the lanes' own, and what the driver says of them.
#include "host-daemon/execution/process/guest_process.h"

#include "proto/wire/wait.h"

namespace gantry::worker {

namespace region = gantry::wire;

namespace {

/// A driver knows of a stream's end a little later than a word behind its work lands: so long a
/// query right after one is tried again.
constexpr std::chrono::microseconds kSettles{50};
constexpr std::chrono::microseconds kSettlePatience{5};
constexpr int kLooksAtWord = 32;

}  // namespace

std::optional<CUstream> GuestProcess::find_stream(std::uint64_t stream, std::uint32_t lane) const {
    if (stream <= 1) {
        return nullptr;
    }
    CUstream found = nullptr;
    if (stream == 2) {
        found = lane_streams_.find(current_context(), lane);
    } else {
        found = objects.native_as<CUstream>(stream, HandleKind::kStream);
    }
    return found != nullptr ? std::optional(found) : std::nullopt;
}

CUresult GuestProcess::resolve_stream(std::uint64_t stream, std::uint32_t lane, CUstream* out) {
    if (stream != 2) {
        const std::optional<CUstream> found = find_stream(stream, lane);
        *out = found.value_or(nullptr);
        held.touch(stream <= 1 ? 0 : stream, *out);
        return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    const CUresult result = lane_streams_.open(current_context(), lane, out);
    held.touch(HeldWork::key_of_lane(lane), *out);
    return result;
}

bool GuestProcess::is_capturing(CUstream stream) const {
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    return captures.load() != 0 && device.api().cuStreamIsCapturing != nullptr &&
           device.api().cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// A thread's own stream ends with it, and its capture too; the next one with its lane has both.
void GuestProcess::drop_lane_capture(std::uint32_t lane) {
    const driver::DriverApi& api = device.api();
    for (const CUstream own : lane_streams_.of_lane(lane)) {
        if (!is_capturing(own)) {
            continue;
        }
        CUgraph graph = nullptr;
        (void)api.cuStreamEndCapture(own, &graph);
        const auto native = reinterpret_cast<std::uint64_t>(graph);
        if (graph != nullptr && objects.handle_of(native, HandleKind::kGraph) == 0) {
            api.cuGraphDestroy(graph);  // Not one that it was adding to.
        }
        end_capture(HeldWork::key_of_lane(lane));
    }
}

bool GuestProcess::may_query_streams() const {
    constexpr std::size_t kStreamsMax = 8;
    return captures.load(std::memory_order_relaxed) == 0 &&
           settled_streams_.load() == left_streams_.load() &&
           objects.count_kind(HandleKind::kStream) <= kStreamsMax &&
           objects.count_kind(HandleKind::kContext) <= 1;
}

CUresult GuestProcess::query_stream(CUstream stream) {
    CUresult result = device.api().cuStreamQuery(stream);
    const auto now = std::chrono::steady_clock::now;
    if (result == CUDA_ERROR_NOT_READY && stream == landed_stream_.load() &&
        now() < landed_at_.load() + kSettles) {
        const auto until = now() + kSettlePatience;
        while (result == CUDA_ERROR_NOT_READY && now() < until) {
            result = device.api().cuStreamQuery(stream);
        }
    }
    return result;
}

CUresult GuestProcess::synchronise_stream(CUstream stream, const std::optional<BusyStream>& busy) {
    std::optional<WaitWords::Ticket> ticket;
    if (busy && busy->stream == stream && may_use_words()) {
        ticket = busy->word ? busy->word : wait_words.queue(stream);
    }
    if (ticket) {
        const auto until = std::chrono::steady_clock::now() + options.word_patience;
        do {
            for (int look = 0; look < kLooksAtWord; ++look) {
                if (wait_words.has_landed(*ticket)) {
                    note_landed(stream, std::chrono::steady_clock::now());
                    return CUDA_SUCCESS;
                }
                wire::cpu_relax();
            }
        } while (std::chrono::steady_clock::now() < until);
    }
    return device.api().cuStreamSynchronize(stream);
}

GuestProcess::StreamsSeen GuestProcess::query_streams(bool wants_others_only) {
    StreamsSeen seen;
    std::size_t busy = 0;
    const auto look = [&](CUstream stream) {
        const CUresult result = query_stream(stream);
        if (result == CUDA_ERROR_NOT_READY) {
            seen.busy = ++busy == 1 ? std::optional(stream) : std::nullopt;
        }
        if (result != CUDA_SUCCESS) {
            seen.result = result;
        }
        return busy < 2 && (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    };
    if (!wants_others_only && !look(nullptr)) {
        return seen;
    }
    if (!lane_streams_.is_empty()) {
        for (const CUstream stream : lane_streams_.all()) {
            if (!look(stream)) {
                return seen;
            }
        }
    }
    if (objects.count_kind(HandleKind::kStream) != 0) {
        for (const std::uint64_t stream : objects.natives_of(HandleKind::kStream)) {
            if (!look(reinterpret_cast<CUstream>(stream))) {
                break;
            }
        }
    }
    return seen;
}

CUresult GuestProcess::synchronise_beside_captures() {
    const auto& api = device.api();
    if (api.cuStreamIsCapturing == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    std::vector<CUstream> streams = lane_streams_.all();
    streams.push_back(nullptr);
    for (const std::uint64_t stream : objects.natives_of(HandleKind::kStream)) {
        streams.push_back(reinterpret_cast<CUstream>(stream));
    }
    CUresult worst = CUDA_SUCCESS;
    for (const CUstream stream : streams) {
        auto status = CU_STREAM_CAPTURE_STATUS_NONE;
        CUresult result = api.cuStreamIsCapturing(stream, &status);
        if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) {
            result = api.cuStreamSynchronize(stream);
        }
        // Also where the legacy stream cannot be waited for, beside a captured one that blocks.
        worst = worst == CUDA_SUCCESS ? result : worst;
    }
    return worst;
}

void GuestProcess::leave_stream(CUstream stream) {
    if (captures.load() != 0 || query_stream(stream) != CUDA_SUCCESS) {
        left_streams_.fetch_add(1);
    }
    bulk_board.leave(stream);
}

void GuestProcess::begin_capture(std::uint64_t key) {
    std::lock_guard lock(captured_mutex_);
    if (captured_.insert(key).second) {
        captures.fetch_add(1);
        bulk_board.capturing(true);
    }
}

void GuestProcess::end_capture(std::uint64_t key) {
    std::lock_guard lock(captured_mutex_);
    if (captured_.erase(key) != 0) {
        captures.fetch_sub(1);
        bulk_board.capturing(false);
        schedule_reap();
    }
}

}  // namespace gantry::worker

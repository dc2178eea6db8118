#include "host-daemon/execution/process/guest_streams.h"

#include <algorithm>
#include <vector>

#include "proto/wire/wait.h"

namespace gantry::worker {
namespace {

using std::chrono::steady_clock;

/// A driver knows of a stream's end a little later than a word behind its work lands: so long a
/// query right after one is tried again.
constexpr std::chrono::microseconds kSettles{50};
constexpr std::chrono::microseconds kSettlePatience{5};
constexpr int kLooksAtWord = 32;

}  // namespace

GuestStreams::GuestStreams(const Needs& needs, std::chrono::microseconds word_patience)
    : event_times(needs.device),
      wait_words(needs.device),
      bulk_board(needs.device, wait_words, needs.own_events),
      device_(needs.device),
      objects_(needs.objects),
      code_(needs.code),
      contexts_(needs.contexts),
      captures_(needs.captures),
      held_(needs.held),
      errors_(needs.errors),
      event_board_(needs.event_board),
      own_events_(needs.own_events),
      word_patience_(word_patience),
      lanes_(needs.device) {}

std::optional<CUstream> GuestStreams::find(std::uint64_t stream, std::uint32_t lane) const {
    if (stream <= 1) {
        return nullptr;
    }
    CUstream found = nullptr;
    if (stream == 2) {
        found = lanes_.find(Contexts::current(), lane);
    } else {
        found = objects_.native_as<CUstream>(stream, HandleKind::kStream);
    }
    return found != nullptr ? std::optional(found) : std::nullopt;
}

CUresult GuestStreams::resolve(std::uint64_t stream, std::uint32_t lane, CUstream* out) {
    if (stream != 2) {
        const std::optional<CUstream> found = find(stream, lane);
        *out = found.value_or(nullptr);
        held_.touch(stream <= 1 ? 0 : stream, *out);
        return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    const CUresult result = lanes_.open(Contexts::current(), lane, out);
    held_.touch(HeldWork::key_of_lane(lane), *out);
    return result;
}

bool GuestStreams::has_one() const {
    return may_query() && lanes_.is_empty() && objects_.count_kind(HandleKind::kStream) == 0;
}

bool GuestStreams::may_query() const {
    constexpr std::size_t kStreamsMax = 8;
    return !captures_.any() && settled_.load() == left_.load() &&
           objects_.count_kind(HandleKind::kStream) <= kStreamsMax &&
           objects_.count_kind(HandleKind::kContext) <= 1;
}

bool GuestStreams::may_use_words() const {
    return may_skip_waits() && !errors_.is_broken() && !captures_.any() &&
           objects_.count_kind(HandleKind::kContext) <= 1;
}

CUresult GuestStreams::query(CUstream stream) {
    CUresult result = device_.api().cuStreamQuery(stream);
    const auto now = steady_clock::now;
    if (result == CUDA_ERROR_NOT_READY && stream == landed_stream_.load() &&
        now() < landed_at_.load() + kSettles) {
        const auto until = now() + kSettlePatience;
        while (result == CUDA_ERROR_NOT_READY && now() < until) {
            result = device_.api().cuStreamQuery(stream);
        }
    }
    return result;
}

GuestStreams::Seen GuestStreams::query_all(Which which) {
    Seen seen;
    std::size_t busy = 0;
    const auto look = [&](CUstream stream) {
        const CUresult result = query(stream);
        if (result == CUDA_ERROR_NOT_READY) {
            seen.busy = ++busy == 1 ? std::optional(stream) : std::nullopt;
        }
        if (result != CUDA_SUCCESS) {
            seen.result = result;
        }
        return busy < 2 && (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    };
    if (which == Which::kAll && !look(nullptr)) {
        return seen;
    }
    if (!lanes_.is_empty()) {
        for (const CUstream stream : lanes_.all()) {
            if (!look(stream)) {
                return seen;
            }
        }
    }
    if (objects_.count_kind(HandleKind::kStream) != 0) {
        for (const std::uint64_t stream : objects_.natives_of(HandleKind::kStream)) {
            if (!look(reinterpret_cast<CUstream>(stream))) {
                break;
            }
        }
    }
    return seen;
}

CUresult GuestStreams::synchronise(CUstream stream, const std::optional<BusyStream>& busy) {
    std::optional<WaitWords::Ticket> ticket;
    if (busy && busy->stream == stream && may_use_words()) {
        ticket = busy->word ? busy->word : wait_words.queue(stream);
    }
    if (ticket) {
        const auto until = steady_clock::now() + word_patience_;
        do {
            for (int look = 0; look < kLooksAtWord; ++look) {
                if (wait_words.has_landed(*ticket)) {
                    note_landed(stream, steady_clock::now());
                    return CUDA_SUCCESS;
                }
                wire::cpu_relax();
            }
        } while (steady_clock::now() < until);
    }
    return device_.api().cuStreamSynchronize(stream);
}

CUresult GuestStreams::synchronise_context(const std::optional<BusyStream>& busy) {
    if (captures_.any()) {
        return synchronise_beside_captures();
    }
    if (busy && busy->stream == nullptr && has_one()) {
        return synchronise(nullptr, busy);
    }
    const std::uint64_t left = left_.load();
    const CUresult result = device_.api().cuCtxSynchronize();
    std::uint64_t settled = settled_.load();
    while (settled < left && !settled_.compare_exchange_weak(settled, left)) {
    }
    return result;
}

CUresult GuestStreams::synchronise_device() {
    CUresult worst = synchronise_context();
    if (captures_.any()) {
        return worst;
    }
    const CUcontext own = Contexts::current();
    for (const Object& context : objects_.list_kind(HandleKind::kContext)) {
        const auto native = reinterpret_cast<CUcontext>(context.native);
        if (native == own || device_.api().cuCtxSetCurrent(native) != CUDA_SUCCESS) {
            continue;
        }
        const CUresult result = device_.api().cuCtxSynchronize();
        worst = worst == CUDA_SUCCESS ? result : worst;
        device_.api().cuCtxSetCurrent(own);
    }
    return worst;
}

CUresult GuestStreams::synchronise_beside_captures() {
    const auto& api = device_.api();
    if (api.cuStreamIsCapturing == nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    std::vector<CUstream> streams = lanes_.all();
    streams.push_back(nullptr);
    for (const std::uint64_t stream : objects_.natives_of(HandleKind::kStream)) {
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

void GuestStreams::leave(CUstream stream) {
    if (captures_.any() || query(stream) != CUDA_SUCCESS) {
        left_.fetch_add(1);
    }
    bulk_board.leave(stream);
}

void GuestStreams::drop_lane_capture(std::uint32_t lane) {
    const driver::DriverApi& api = device_.api();
    for (const CUstream own : lanes_.of_lane(lane)) {
        if (!captures_.is_capturing(own)) {
            continue;
        }
        CUgraph graph = nullptr;
        (void)api.cuStreamEndCapture(own, &graph);
        const std::uint64_t handle =
            objects_.handle_of(reinterpret_cast<std::uint64_t>(graph), HandleKind::kGraph);
        if (graph != nullptr && (handle == 0 || captures_.makes_graph(handle))) {
            captures_.drop_graph(handle);
            api.cuGraphDestroy(graph);  // Not one that it was adding to.
        }
        captures_.end(HeldWork::key_of_lane(lane));
    }
}

CUresult GuestStreams::end_context(CUcontext context) {
    own_events_.context_ends(context);
    for (const std::uint32_t lane : lanes_.context_ends(context)) {
        const std::vector<CUstream> left = lanes_.of_lane(lane);
        if (std::none_of(left.begin(), left.end(),
                         [this](CUstream stream) { return captures_.is_capturing(stream); })) {
            captures_.end(HeldWork::key_of_lane(lane));  // The driver gives it up with its stream.
        }
    }
    return contexts_.destroy(context);
}

void GuestStreams::look_at_events(Look look) {
    if (!captures_.any()) {  // A capture does not like questions.
        errors_.note(0, look == Look::kAll ? event_board_.look_at_all() : event_board_.look(),
                     true);
    }
}

void GuestStreams::look_at_bulk_copies() {
    if (!captures_.any()) {
        const auto before_arrivals = [this](CUstream stream) {
            note_landed(stream, steady_clock::now());
            look_at_events(Look::kAll);
        };
        errors_.note(0, bulk_board.look(before_arrivals), true);
    }
}

void GuestStreams::note_landed(CUstream stream, steady_clock::time_point now) {
    landed_stream_ = stream;
    landed_at_ = now;
}

}  // namespace gantry::worker

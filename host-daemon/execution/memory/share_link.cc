#include "host-daemon/execution/memory/share_link.h"

#include <cstring>

namespace gantry::worker {

using control::ShareKind;
using control::ShareOp;
using control::ShareRequest;
using control::ShareToken;

void ShareLink::connect(control::UniqueFd broker) {
    MutexLock lock(mutex_);
    broker_ = control::PacketSocket(std::move(broker));
    ++connections_;
}

std::uint64_t ShareLink::connection() {
    MutexLock lock(mutex_);
    return broker_.valid() ? connections_ : 0;
}

Result<ShareLink::Answer> ShareLink::ask(const ShareRequest& request, int descriptor) {
    MutexLock lock(mutex_);
    if (!broker_.valid()) {
        return Error{Code::kFailedPrecondition, "share.broker", "there is no broker"};
    }
    const std::span<const int> descriptors(&descriptor, descriptor >= 0 ? 1 : 0);
    GANTRY_TRY(broker_.send(std::as_bytes(std::span(&request, 1)), descriptors));
    auto packet = broker_.receive(kAnswerTime);
    Answer answer;
    answer.connection = connections_;
    if (!packet.ok() || packet->bytes.size() != sizeof(answer.reply)) {
        broker_.close();
        return packet.ok() ? Error{Code::kInternal, "share.protocol", "no answer of a broker's"}
                           : packet.error();
    }
    std::memcpy(&answer.reply, packet->bytes.data(), sizeof(answer.reply));
    if (!packet->descriptors.empty()) {
        answer.descriptor = std::move(packet->descriptors[0]);
    }
    return answer;
}

void ShareLink::tell(ShareOp op, const ShareToken& token) {
    ShareRequest request;
    request.op = op;
    request.token = token;
    MutexLock lock(mutex_);
    if (broker_.valid()) {
        (void)broker_.send(std::as_bytes(std::span(&request, 1)), {});
    }
}

void ShareLink::withdraw(const ShareToken& token) {
    tell(ShareOp::kWithdraw, token);
    (void)open_elsewhere(ShareKind::kDeviceMemory);  // Answered after what was told before.
}

std::uint64_t ShareLink::open_elsewhere(ShareKind kind) {
    ShareRequest request;
    request.op = ShareOp::kCount;
    request.kind = kind;
    const auto answer = ask(request);
    return answer.ok() ? answer->reply.bytes : 0;
}

}  // namespace gantry::worker

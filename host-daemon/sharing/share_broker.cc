#include "host-daemon/sharing/share_broker.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "proto/base/random.h"

namespace gantry::sharing {

using control::ShareKind;
using control::ShareOp;
using control::ShareReply;
using control::ShareRequest;
using control::ShareStatus;
using control::ShareToken;

namespace {

constexpr std::chrono::milliseconds kAtOnce{0};

ShareReply said(ShareStatus status) {
    ShareReply reply;
    reply.status = status;
    return reply;
}

}  // namespace

Result<std::unique_ptr<ShareBroker>> ShareBroker::start(std::chrono::milliseconds awaited) {
    control::UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake.valid()) {
        return Error{Code::kResourceExhausted, "share.start", std::strerror(errno)};
    }
    std::unique_ptr<ShareBroker> broker(new ShareBroker(std::move(wake), awaited));
    broker->thread_ = std::thread([raw = broker.get()] { raw->serve(); });
    return broker;
}

ShareBroker::~ShareBroker() {
    {
        const MutexLock lock(mutex_);
        ending_ = true;
    }
    (void)eventfd_write(wake_.get(), 1);
    thread_.join();
}

Result<control::UniqueFd> ShareBroker::connect(const std::string& group) {
    GANTRY_ASSIGN(auto pair, control::PacketSocket::pair());
    // A worker that does not read gets no answer, and holds nobody up.
    if (fcntl(pair.first.fd(), F_SETFL, O_NONBLOCK) != 0) {
        return Error{Code::kInternal, "share.connect", std::strerror(errno)};
    }
    control::UniqueFd theirs(fcntl(pair.second.fd(), F_DUPFD_CLOEXEC, 3));
    if (!theirs.valid()) {
        return Error{Code::kResourceExhausted, "share.connect", std::strerror(errno)};
    }
    auto connection = std::make_unique<Connection>();
    connection->group = group;
    connection->socket = std::move(pair.first);
    {
        const MutexLock lock(mutex_);
        connection->id = next_id_++;
        fresh_.push_back(std::move(connection));
    }
    (void)eventfd_write(wake_.get(), 1);
    return theirs;
}

void ShareBroker::serve() {
    for (;;) {
        {
            const MutexLock lock(mutex_);
            if (ending_) {
                return;
            }
            for (auto& connection : fresh_) {
                connections_.push_back(std::move(connection));
            }
            fresh_.clear();
        }
        std::vector<pollfd> waiting = {{wake_.get(), POLLIN, 0}};
        for (const auto& connection : connections_) {
            waiting.push_back({connection->socket.fd(), POLLIN, 0});
        }
        if (poll(waiting.data(), waiting.size(), -1) < 0) {
            continue;
        }
        eventfd_t count = 0;
        (void)eventfd_read(wake_.get(), &count);
        for (std::size_t i = connections_.size(); i-- != 0;) {
            if (waiting[i + 1].revents != 0 && !answer(*connections_[i])) {
                drop(*connections_[i]);
                connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
            }
        }
    }
}

bool ShareBroker::answer(Connection& asker) {
    auto packet = asker.socket.receive(kAtOnce);
    ShareRequest request;
    if (!packet.ok() || packet->bytes.size() != sizeof(request)) {
        return false;
    }
    std::memcpy(&request, packet->bytes.data(), sizeof(request));
    return act(asker, request, packet->descriptors);
}

bool ShareBroker::act(Connection& asker, const ShareRequest& request,
                      std::vector<control::UniqueFd>& in) {
    ShareReply reply;
    int out = -1;
    Group& group = groups_[asker.group];
    Offers& offers = group.offers;
    switch (request.op) {
        case ShareOp::kOffer: reply = offer(asker, request, in); break;
        case ShareOp::kOpen: reply = open(asker, request, &out); break;
        case ShareOp::kCount:
            reply = said(ShareStatus::kDone);
            for (const auto& [token, known] : offers) {
                const bool counts = known.owner == asker.id && known.kind == request.kind;
                reply.bytes += counts ? known.counts_as() : 0;
            }
            break;
        case ShareOp::kAgain:
        case ShareOp::kWithdraw: {
            const auto known = offers.find(request.token);
            if (known == offers.end() || known->second.owner != asker.id) {
                return true;
            }
            if (request.op == ShareOp::kAgain) {
                known->second.awaited_until = Clock::now() + awaited_;
            } else {
                withdraw(group, known);
            }
            return true;
        }
        case ShareOp::kClose: {
            const auto opened = asker.opened.find(request.token);
            if (opened != asker.opened.end()) {
                close(asker, request.token);
                if (--opened->second == 0) {
                    asker.opened.erase(opened);
                }
            }
            return true;
        }
        default: return false;
    }
    return asker.socket
        .send(std::as_bytes(std::span(&reply, 1)),
              out >= 0 ? std::span<const int>(&out, 1) : std::span<const int>())
        .ok();
}

ShareReply ShareBroker::offer(Connection& asker, const ShareRequest& request,
                              std::vector<control::UniqueFd>& in) {
    const bool is_memory =
        request.kind == ShareKind::kDeviceMemory && in.size() == 1 && request.bytes != 0;
    const bool is_event = request.kind == ShareKind::kEvent && in.empty();
    if (!is_memory && !is_event) {
        return said(ShareStatus::kMalformed);
    }
    Group& group = groups_[asker.group];
    std::size_t& count = group.counts[request.kind];
    if (count >= (is_memory ? kMemoryMax : kEventsMax)) {
        return said(ShareStatus::kFull);
    }
    const auto [low, high] = random_bits();
    const ShareToken token{low, high};
    ++count;
    Offer& made = group.offers[token];
    made.owner = asker.id;
    made.awaited_until = Clock::now() + awaited_;
    made.kind = request.kind;
    made.bytes = request.bytes;
    made.word = request.word;
    if (is_memory) {
        made.descriptor = std::move(in[0]);
    }
    ShareReply reply = said(ShareStatus::kDone);
    reply.token = token;
    return reply;
}

ShareReply ShareBroker::open(Connection& asker, const ShareRequest& request, int* out) {
    Offers& offers = groups_[asker.group].offers;
    const auto known = offers.find(request.token);
    if (known == offers.end() || known->second.owner == 0 || known->second.kind != request.kind) {
        return said(ShareStatus::kUnknown);
    }
    if (known->second.owner == asker.id) {
        return said(ShareStatus::kOwn);
    }
    ++known->second.open_count;
    known->second.awaited_until = {};
    ++asker.opened[request.token];
    *out = known->second.descriptor.get();
    ShareReply reply = said(ShareStatus::kDone);
    reply.kind = known->second.kind;
    reply.token = request.token;
    reply.bytes = known->second.bytes;
    reply.word = known->second.word;
    return reply;
}

void ShareBroker::withdraw(Group& group, Offers::iterator offer) {
    offer->second.owner = 0;
    offer->second.descriptor.reset();
    if (offer->second.open_count == 0) {
        erase(group, offer);
    }
}

void ShareBroker::erase(Group& group, Offers::iterator offer) {
    --group.counts[offer->second.kind];
    group.offers.erase(offer);
}

void ShareBroker::close(const Connection& asker, const ShareToken& token) {
    Group& group = groups_[asker.group];
    const auto known = group.offers.find(token);
    if (known != group.offers.end() && --known->second.open_count == 0 &&
        known->second.owner == 0) {
        erase(group, known);
    }
}

void ShareBroker::drop(Connection& connection) {
    for (const auto& [token, count] : connection.opened) {
        for (std::uint32_t i = 0; i < count; ++i) {
            close(connection, token);
        }
    }
    const auto group = groups_.find(connection.group);
    if (group == groups_.end()) {
        return;
    }
    Offers& offers = group->second.offers;
    for (auto known = offers.begin(); known != offers.end();) {
        const auto next = std::next(known);
        if (known->second.owner == connection.id) {
            withdraw(group->second, known);
        }
        known = next;
    }
    if (offers.empty()) {
        groups_.erase(group);
    }
}

}  // namespace gantry::sharing

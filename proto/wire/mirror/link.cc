#include "proto/wire/mirror/link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

namespace gantry::wire {

bool read_exactly(int fd, void* data, std::size_t bytes) {
    auto* cursor = static_cast<std::byte*>(data);
    while (bytes != 0) {
        const ssize_t got = ::recv(fd, cursor, bytes, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        cursor += got;
        bytes -= static_cast<std::size_t>(got);
    }
    return true;
}

bool write_exactly(int fd, const void* data, std::size_t bytes) {
    const auto* cursor = static_cast<const std::byte*>(data);
    while (bytes != 0) {
        const ssize_t sent = ::send(fd, cursor, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent <= 0) {
            return false;
        }
        cursor += sent;
        bytes -= static_cast<std::size_t>(sent);
    }
    return true;
}

ResumableLink::~ResumableLink() { close(); }

void ResumableLink::start_dialing(Dial dial, TakenOver taken_over) {
    dial_ = std::move(dial);
    taken_over_ = std::move(taken_over);
    thread_ = std::jthread([this] { dial_loop(); });
}

void ResumableLink::take_over(std::uint64_t received, std::uint64_t epoch) {
    const MutexLock lock(mutex_);
    received_ = received;
    epoch_ = epoch;
}

void ResumableLink::look_at_acks() {
    const MutexLock lock(mutex_);
    ack_wanted_ = true;
    changed_.notify_all();
}

bool ResumableLink::wait_for_name(std::uint64_t (*session)[2]) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) {
        return closed_.load() || session_[0] != 0 || session_[1] != 0;
    });
    std::memcpy(*session, session_, sizeof session_);
    return !closed_.load();
}

void ResumableLink::cut() {
    const MutexLock lock(mutex_);
    if (active_fd_ >= 0) {
        ::shutdown(active_fd_, SHUT_RDWR);
    }
}

void ResumableLink::adopt(int fd, const LinkHello& theirs, LinkHello mine) {
    MutexLock lock(mutex_);
    if (active_fd_ >= 0) {
        ::shutdown(active_fd_, SHUT_RDWR);
        changed_.wait(
            lock, [this]() GANTRY_REQUIRES(mutex_) { return active_fd_ < 0 || closed_.load(); });
    }
    mine.received = received_;
    mine.epoch = epoch_;
    // A dialler that has not heard of this stream has none of it.
    const bool is_new = theirs.epoch != epoch_;
    const std::uint64_t from = is_new ? 0 : theirs.received;
    mine.verdict = is_new ? LinkVerdict::kTakenOver : LinkVerdict::kAccepted;
    if (closed_.load() || from < acked_ || from > end_ || !write_exactly(fd, &mine, sizeof mine)) {
        ::close(fd);
        return;
    }
    if (pending_fd_ >= 0) {
        ::close(pending_fd_);
    }
    pending_fd_ = fd;
    next_ = from;
    changed_.notify_all();
    if (thread_.joinable()) {
        return;
    }
    try {
        thread_ = std::jthread([this] { serve_loop(); });
    } catch (const std::system_error&) {  // The dialler is told that there is no such session.
        closed_.store(true);
        ::close(std::exchange(pending_fd_, -1));
    }
}

bool ResumableLink::send(std::span<const std::byte> message) {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) {
        return closed_.load() || end_ - acked_ < kMaxUnackedBytes;
    });
    if (closed_.load()) {
        return false;
    }
    kept_.insert(kept_.end(), message.begin(), message.end());
    end_ += message.size();
    changed_.notify_all();
    return true;
}

void ResumableLink::close() {
    bool is_own_thread = false;
    {
        MutexLock lock(mutex_);
        is_own_thread = thread_.get_id() == std::this_thread::get_id();
        closed_.store(true);
        changed_.notify_all();
        // The writer says goodbye and ends the connection, unless the other end takes nothing: else
        // that would be taken for a cut, and what it holds kept until it has given up.
        if (!is_own_thread) {
            changed_.wait_for(lock, std::chrono::milliseconds(kGoodbyeMs),
                              [this]() GANTRY_REQUIRES(mutex_) { return active_fd_ < 0; });
        }
        if (active_fd_ >= 0) {
            ::shutdown(active_fd_, SHUT_RDWR);
        }
        changed_.notify_all();
    }
    if (thread_.joinable() && !is_own_thread) {
        thread_.join();
    }
}

void ResumableLink::finish() {
    {
        const MutexLock lock(mutex_);
        closed_.store(true);
        if (pending_fd_ >= 0) {
            ::close(pending_fd_);
            pending_fd_ = -1;
        }
        changed_.notify_all();
    }
    if (on_closed_) {
        on_closed_();
    }
}

// Drops what the peer will not ask for again.
void ResumableLink::note_acked(std::uint64_t offset) {
    acked_ = std::max(acked_, offset);
    const auto acked_bytes = static_cast<std::size_t>(acked_ - base_);
    if (acked_bytes == kept_.size() || acked_bytes > kept_.size() / 2) {
        kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(acked_bytes));
        base_ = acked_;
    }
    next_ = std::max(next_, offset);
}

bool ResumableLink::handshake(int fd) {
    LinkHello mine;
    {
        const MutexLock lock(mutex_);
        mine.session[0] = session_[0];
        mine.session[1] = session_[1];
        mine.received = received_;
        mine.epoch = epoch_;
    }
    LinkHello theirs;
    if (!write_exactly(fd, &mine, sizeof mine) || !read_exactly(fd, &theirs, sizeof theirs) ||
        theirs.magic != kLinkMagic ||
        (theirs.version == kLinkVersion && theirs.verdict == LinkVerdict::kNotNow)) {
        return false;
    }
    const bool is_new = theirs.verdict == LinkVerdict::kTakenOver;
    {
        const MutexLock lock(mutex_);
        if (theirs.version != kLinkVersion || theirs.received < acked_ || theirs.received > end_ ||
            (!is_new && theirs.verdict != LinkVerdict::kAccepted) || (is_new && !taken_over_)) {
            closed_.store(true);
            return false;
        }
        session_[0] = theirs.session[0];
        session_[1] = theirs.session[1];
        changed_.notify_all();
        next_ = theirs.received;
        if (is_new) {
            received_ = 0;
            epoch_ = theirs.epoch;
        }
    }
    if (is_new) {
        taken_over_(theirs.epoch);
    }
    return true;
}

void ResumableLink::dial_loop() {
    std::uint64_t waited_ms = 0;
    std::uint64_t pause_ms = 1;
    while (!closed_.load() && waited_ms < give_up_ms_) {
        const int fd = dial_();
        if (fd >= 0 && handshake(fd)) {
            waited_ms = 0;
            pause_ms = 1;
            if (run_connection(fd)) {
                break;
            }
            continue;
        }
        if (fd >= 0) {
            ::close(fd);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
        waited_ms += pause_ms;
        pause_ms = std::min<std::uint64_t>(pause_ms * 2, 100);
    }
    finish();
}

bool ResumableLink::wait_for_connection(int* fd) {
    MutexLock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(give_up_ms_),
                      [this]()
                          GANTRY_REQUIRES(mutex_) { return closed_.load() || pending_fd_ >= 0; });
    if (closed_.load() || pending_fd_ < 0) {
        return false;
    }
    *fd = pending_fd_;
    pending_fd_ = -1;
    return true;
}

void ResumableLink::serve_loop() {
    int fd = -1;
    while (wait_for_connection(&fd)) {
        if (run_connection(fd)) {
            break;
        }
    }
    finish();
}

// Serves one connection until it breaks; true when the peer closed the link for good.
bool ResumableLink::run_connection(int fd) {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    {
        const MutexLock lock(mutex_);
        active_fd_ = fd;
        if (closed_.load()) {
            ::shutdown(fd, SHUT_RDWR);
        }
    }
    std::atomic<bool> stop{false};
    bool peer_closed = false;
    {
        std::jthread writer;
        try {
            writer = std::jthread([this, fd, &stop] { write_packets(fd, stop); });
        } catch (const std::system_error&) {
            ::shutdown(fd, SHUT_RDWR);  // As if it had broken: there may be a thread for the next.
        }
        peer_closed = read_packets(fd);
        const MutexLock lock(mutex_);
        stop.store(true);
        ::shutdown(fd, SHUT_RDWR);
        changed_.notify_all();
    }
    const MutexLock lock(mutex_);
    ::close(fd);
    active_fd_ = -1;
    changed_.notify_all();
    return peer_closed;
}

bool ResumableLink::read_packets(int fd) {
    std::vector<std::byte> buffer;
    PacketHeader header;
    while (read_exactly(fd, &header, sizeof header)) {
        if (header.kind == PacketKind::kClose) {
            return true;
        }
        if (header.kind == PacketKind::kAck) {
            const MutexLock lock(mutex_);
            if (header.offset < acked_ || header.offset > end_) {
                return false;
            }
            note_acked(header.offset);
            changed_.notify_all();
            continue;
        }
        if (header.kind != PacketKind::kData || header.bytes > kMaxPacketBytes) {
            return false;
        }
        buffer.resize(header.bytes);
        if (!read_exactly(fd, buffer.data(), buffer.size())) {
            return false;
        }
        {
            const MutexLock lock(mutex_);
            if (header.offset != received_) {
                return false;
            }
        }
        receiver_(buffer);
        const MutexLock lock(mutex_);
        received_ += header.bytes;
        ack_wanted_ = true;
        changed_.notify_all();
    }
    return false;
}

void ResumableLink::write_packets(int fd, const std::atomic<bool>& stop) {
    std::vector<std::byte> chunk;
    MutexLock lock(mutex_);
    const auto is_due = [&]() GANTRY_REQUIRES(mutex_) {
        return stop.load() || closed_.load() || ack_wanted_ || next_ < end_;
    };
    while (true) {
        if (!dial_) {
            changed_.wait(lock, is_due);
        } else if (!changed_.wait_for(lock, std::chrono::milliseconds(kProbeMs), is_due)) {
            ack_wanted_ = true;
        }
        if (stop.load() || closed_.load()) {
            break;
        }
        const std::optional<std::uint64_t> ackable =
            ack_wanted_ && ackable_ ? ackable_() : std::optional(received_);
        const PacketHeader ack{PacketKind::kAck, 0, ackable.value_or(0)};
        const bool send_ack = ack_wanted_ && ackable;
        ack_wanted_ = false;
        PacketHeader data{PacketKind::kData, 0, next_};
        const auto first = kept_.begin() + static_cast<std::ptrdiff_t>(next_ - base_);
        const std::uint64_t take = std::min<std::uint64_t>(end_ - next_, kMaxPacketBytes);
        chunk.assign(first, first + static_cast<std::ptrdiff_t>(take));
        next_ += take;
        data.bytes = static_cast<std::uint32_t>(chunk.size());
        lock.unlock();
        bool good = !send_ack || write_exactly(fd, &ack, sizeof ack);
        good = good && (chunk.empty() || (write_exactly(fd, &data, sizeof data) &&
                                          write_exactly(fd, chunk.data(), chunk.size())));
        lock.lock();
        if (!good) {
            ::shutdown(fd, SHUT_RDWR);
            break;
        }
    }
    if (closed_.load() && !stop.load()) {
        const PacketHeader bye{PacketKind::kClose, 0, 0};
        (void)write_exactly(fd, &bye, sizeof bye);
        ::shutdown(fd, SHUT_RDWR);
    }
}

}  // namespace gantry::wire

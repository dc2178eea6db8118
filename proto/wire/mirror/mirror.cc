#include "proto/wire/mirror/mirror.h"

#include <algorithm>
#include <cstring>

#include "proto/wire/wait.h"

namespace gantry::wire {
namespace {

constexpr std::size_t kCompareBytes = 4096;

bool send_frame(const FrameSink& sink, FrameKind kind, std::uint64_t argument, const void* payload,
                std::size_t bytes) {
    std::vector<std::byte> frame(sizeof(FrameHeader) + bytes);
    const FrameHeader header{kind, static_cast<std::uint32_t>(bytes), argument};
    std::memcpy(frame.data(), &header, sizeof header);
    if (bytes != 0) {
        std::memcpy(frame.data() + sizeof header, payload, bytes);
    }
    return sink(frame);
}

// Sends a span as frames of at most kMaxFrameBytes; the argument counts along.
bool send_span(const FrameSink& sink, FrameKind kind, std::uint64_t argument, const std::byte* data,
               std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t take = std::min<std::uint64_t>(bytes - done, kMaxFrameBytes);
        if (!send_frame(sink, kind, argument + done, data + done, take)) {
            return false;
        }
        done += take;
    }
    return true;
}

template <typename T>
bool read_image(std::span<const std::byte> payload, T* image) {
    if (payload.size() != sizeof(T)) {
        return false;
    }
    std::memcpy(image, payload.data(), sizeof(T));
    return true;
}

}  // namespace

// ---- PinnedShadow ---------------------------------------------------------------------------

bool PinnedShadow::due() const { return monotonic_ns() - compared_ns_ >= kCompareIntervalNs; }

bool PinnedShadow::send_changes(std::uint64_t used_bytes, const FrameSink& sink) {
    compared_ns_ = monotonic_ns();
    const std::uint64_t used = std::min(used_bytes, channel_.layout.pinned_bytes);
    MutexLock lock(mutex_);
    if (shadow_.size() < used) {
        shadow_.resize(align_up(used, kCompareBytes));
    }
    std::byte now[kCompareBytes];
    std::byte old[kCompareBytes];
    for (std::uint64_t offset = 0; offset < used; offset += kCompareBytes) {
        const std::size_t bytes = std::min<std::uint64_t>(kCompareBytes, used - offset);
        if (std::memcmp(channel_.pinned() + offset, shadow_.data() + offset, bytes) == 0) {
            continue;
        }
        std::memcpy(now, channel_.pinned() + offset, bytes);
        std::memcpy(old, shadow_.data() + offset, bytes);
        std::memcpy(shadow_.data() + offset, now, bytes);
        lock.unlock();
        if (!send_runs(offset, std::span(now, bytes), old, sink)) {
            return false;
        }
        lock.lock();
    }
    return true;
}

// Only bytes that differ are sent: an equal byte may just be changing on the other side.
bool PinnedShadow::send_runs(std::uint64_t offset, std::span<const std::byte> now,
                             const std::byte* old, const FrameSink& sink) {
    for (std::size_t i = 0; i < now.size();) {
        if (now[i] == old[i]) {
            ++i;
            continue;
        }
        std::size_t end = i + 1;
        while (end < now.size() && now[end] != old[end]) {
            ++end;
        }
        if (!send_frame(sink, FrameKind::kPinned, offset + i, &now[i], end - i)) {
            return false;
        }
        i = end;
    }
    return true;
}

/// False when the extent does not lie in the pool.
bool PinnedShadow::grow_to(std::uint64_t offset, std::size_t bytes) {
    const std::uint64_t limit = channel_.layout.pinned_bytes;
    if (offset > limit || bytes > limit - offset) {
        return false;
    }
    if (shadow_.size() < offset + bytes) {
        shadow_.resize(align_up(offset + bytes, kCompareBytes));
    }
    return true;
}

bool PinnedShadow::send_image(std::uint64_t used_bytes, const FrameSink& sink) {
    const std::uint64_t used = std::min(used_bytes, channel_.layout.pinned_bytes);
    MutexLock lock(mutex_);
    if (!grow_to(0, used)) {
        return false;
    }
    std::memcpy(shadow_.data(), channel_.pinned(), used);
    std::vector<std::byte> piece;
    for (std::uint64_t done = 0; done < used; done += piece.size()) {
        const std::byte* from = shadow_.data() + done;
        piece.assign(from, from + std::min<std::uint64_t>(used - done, kMaxFrameBytes));
        lock.unlock();
        if (!send_frame(sink, FrameKind::kPinnedImage, done, piece.data(), piece.size())) {
            return false;
        }
        lock.lock();
    }
    return true;
}

bool PinnedShadow::merge(std::uint64_t offset, std::span<const std::byte> image) {
    const MutexLock lock(mutex_);
    if (!grow_to(offset, image.size())) {
        return false;
    }
    std::byte* shadow = shadow_.data() + offset;
    std::byte* pool = channel_.pinned() + offset;
    for (std::size_t i = 0; i < image.size(); ++i) {
        if (image[i] == shadow[i]) {
            continue;
        }
        if (pool[i] == shadow[i]) {
            pool[i] = image[i];
        }
        shadow[i] = image[i];
    }
    return true;
}

bool PinnedShadow::apply(std::uint64_t offset, std::span<const std::byte> bytes) {
    const MutexLock lock(mutex_);
    if (!grow_to(offset, bytes.size())) {
        return false;
    }
    if (bytes.empty()) {
        return true;
    }
    std::memcpy(shadow_.data() + offset, bytes.data(), bytes.size());
    std::memcpy(channel_.pinned() + offset, bytes.data(), bytes.size());
    return true;
}

// ---- FrameReader ----------------------------------------------------------------------------

bool FrameReader::feed(
    std::span<const std::byte> bytes,
    const std::function<bool(const FrameHeader&, std::span<const std::byte>)>& handle) {
    held_.insert(held_.end(), bytes.begin(), bytes.end());
    std::size_t used = 0;
    bool good = true;
    while (good && held_.size() - used >= sizeof(FrameHeader)) {
        FrameHeader header;
        std::memcpy(&header, held_.data() + used, sizeof header);
        if (header.kind == FrameKind::kInvalid || header.bytes > kMaxFrameBytes) {
            return false;
        }
        if (held_.size() - used - sizeof header < header.bytes) {
            break;
        }
        good = handle(header, std::span(held_.data() + used + sizeof header, header.bytes));
        used += sizeof header + header.bytes;
    }
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(used));
    return good;
}

// ---- GuestMirror ----------------------------------------------------------------------------

GuestMirror::GuestMirror(const MappedChannel& channel, FrameSink sink)
    : channel_(channel), sink_(std::move(sink)), pinned_(channel) {}

bool GuestMirror::open_if_claimed() {
    const ChannelClaim& claim = channel_.guest_directory()->claims[channel_.index];
    if (claim.state.load(std::memory_order_acquire) != ClaimState::kOpen) {
        return false;
    }
    const std::uint64_t start = claim.generation << kGenerationShift;
    consumer_.attach(channel_.ring(), channel_.layout.ring_bytes, start);
    ring_sent_ = start;
    open_ = true;
    return send_frame(sink_, FrameKind::kClaim, claim.generation, nullptr, 0);
}

void GuestMirror::taken_over(std::uint64_t epoch) {
    reader_.reset();
    resume_epoch_.store(epoch, std::memory_order_release);
}

bool GuestMirror::send_resume(std::uint64_t epoch) {
    ResumeImage image{};
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        image.reply_seq[lane] = channel_.reply(lane)->seq.load(std::memory_order_acquire);
    }
    resume_sent_ = epoch;
    return send_frame(sink_, FrameKind::kResume, epoch, &image, sizeof image);
}

bool GuestMirror::pump() {
    const std::uint64_t epoch = resume_epoch_.load(std::memory_order_acquire);
    if (epoch != resume_sent_) {
        return send_resume(epoch);
    }
    // What was sent now and lies in the pool that is on its way would be taken back by it.
    if (image_epoch_.load(std::memory_order_acquire) != epoch) {
        return false;
    }
    if (!open_ && !open_if_claimed()) {
        return false;
    }
    GuestWords* words = channel_.guest_words();
    bool did = false;
    const std::uint32_t seen = words->announce_seen.load(std::memory_order_acquire);
    const std::uint64_t high_water = words->pinned_high_water.load(std::memory_order_acquire);
    if (seen != announce_seen_ || high_water != high_water_) {
        const std::uint64_t image[2] = {seen, high_water};
        did = send_frame(sink_, FrameKind::kGuestWords, 0, image, sizeof image);
        announce_seen_ = seen;
        high_water_ = high_water;
    }
    CommandView view;
    const char* reason = nullptr;
    // A malformed record is forwarded as it is no longer: the worker would refuse it as well.
    while (consumer_.peek(&view, &reason) == PeekStatus::kReady) {
        consumer_.advance(view);
        if (consumer_.next() - ring_sent_ >= channel_.layout.ring_bytes / 2) {
            break;
        }
    }
    const std::uint64_t until = consumer_.next();
    if ((until != ring_sent_ || pinned_.due()) && !pinned_.send_changes(high_water_, sink_)) {
        return false;
    }
    if (until != ring_sent_) {
        did = send_ring(ring_sent_, until);
        ring_sent_ = until;
    }
    return did;
}

bool GuestMirror::send_ring(std::uint64_t from, std::uint64_t to) {
    const std::uint64_t mask = channel_.layout.ring_bytes - 1;
    while (from < to) {
        const std::uint64_t room = channel_.layout.ring_bytes - (from & mask);
        const std::uint64_t take = std::min(to - from, room);
        if (!send_span(sink_, FrameKind::kRing, from, channel_.ring() + (from & mask), take)) {
            return false;
        }
        from += take;
    }
    return true;
}

bool GuestMirror::receive(std::span<const std::byte> bytes) {
    return reader_.feed(bytes, [this](const FrameHeader& header, std::span<const std::byte> data) {
        return handle(header, data);
    });
}

bool GuestMirror::handle(const FrameHeader& header, std::span<const std::byte> payload) {
    switch (header.kind) {
        case FrameKind::kPinned: return pinned_.apply(header.argument, payload);
        case FrameKind::kPinnedImage: return pinned_.merge(header.argument, payload);
        case FrameKind::kPinnedEnd:
            image_epoch_.store(header.argument, std::memory_order_release);
            return true;
        case FrameKind::kBulk:
            if (header.argument > channel_.layout.bulk_bytes ||
                payload.size() > channel_.layout.bulk_bytes - header.argument) {
                return false;
            }
            std::memcpy(channel_.bulk() + header.argument, payload.data(), payload.size());
            return true;
        case FrameKind::kReply: return handle_reply(header.argument, payload);
        case FrameKind::kHostWords: return handle_host_words(payload);
        case FrameKind::kEvents: return handle_events(payload);
        case FrameKind::kServe: {
            ServeImage image{};
            if (!read_image(payload, &image)) {
                return false;
            }
            HostDirectory* directory = channel_.host_directory();
            std::memcpy(directory->refusal_text, image.text, sizeof directory->refusal_text);
            HostChannel& entry = directory->channels[channel_.index];
            entry.refusal = image.refusal;
            entry.state.store(image.state, std::memory_order_release);
            entry.generation.store(image.generation, std::memory_order_release);
            return true;
        }
        default: return false;
    }
}

bool GuestMirror::handle_reply(std::uint64_t lane, std::span<const std::byte> payload) {
    constexpr std::size_t kFixed = offsetof(ReplyPage, payload);
    if (lane >= kLaneCount || payload.size() < kFixed || payload.size() > kPageBytes) {
        return false;
    }
    ReplyPage* page = channel_.reply(static_cast<std::uint32_t>(lane));
    std::uint64_t seq = 0;
    std::memcpy(&seq, payload.data(), sizeof seq);
    std::memcpy(reinterpret_cast<std::byte*>(page) + sizeof seq, payload.data() + sizeof seq,
                payload.size() - sizeof seq);
    page->seq.store(seq, std::memory_order_seq_cst);
    if (channel_.guest_words()->lane_waiting[lane].load(std::memory_order_seq_cst) != 0) {
        futex_wake_all(reinterpret_cast<std::atomic<std::uint32_t>*>(&page->seq));
    }
    return true;
}

/// Another host end's words begin anew: what was shown stays, and errors are counted on.
bool GuestMirror::handle_events(std::span<const std::byte> payload) {
    EventsImage image{};
    if (payload.size() < sizeof image || (payload.size() - sizeof image) % sizeof(EventWord) != 0) {
        return false;
    }
    std::memcpy(&image, payload.data(), sizeof image);
    payload = payload.subspan(sizeof image);
    const auto raise = [](std::atomic<std::uint64_t>& word, std::uint64_t to) {
        if (word.load(std::memory_order_relaxed) < to) {
            word.store(to, std::memory_order_release);
        }
    };
    HostWords* words = channel_.host_words();
    if (image.late_errors != late_errors_seen_) {
        late_errors_seen_ = image.late_errors;
        words->late_errors.fetch_add(1, std::memory_order_release);
    }
    for (; !payload.empty(); payload = payload.subspan(sizeof(EventWord))) {
        EventWord event{};
        std::memcpy(&event, payload.data(), sizeof event);
        if (event.index >= kEventWords) {
            return false;
        }
        raise(words->event_done[event.index], event.done);
    }
    raise(words->looked, image.looked);
    words->shows_events.store(image.shows_events, std::memory_order_release);
    return true;
}

bool GuestMirror::handle_host_words(std::span<const std::byte> payload) {
    HostWordsImage image{};
    if (!read_image(payload, &image)) {
        return false;
    }
    HostWords* words = channel_.host_words();
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        words->confirm_seq[lane].store(image.confirm_seq[lane], std::memory_order_release);
    }
    words->sticky_error.store(image.sticky_error, std::memory_order_release);
    words->epoch.store(image.epoch, std::memory_order_release);
    words->announce.store(image.announce, std::memory_order_release);
    words->held_ns.store(image.held_ns, std::memory_order_relaxed);
    words->launch_ns.store(image.launch_ns, std::memory_order_relaxed);
    words->pause_ns.store(image.pause_ns, std::memory_order_relaxed);
    words->profile_worker.store(static_cast<std::uint32_t>(image.profile_worker),
                                std::memory_order_release);
    words->profile.store(image.profile, std::memory_order_release);
    words->worker_state.store(image.worker_state, std::memory_order_release);
    words->head.store(image.head, std::memory_order_seq_cst);
    futex_wake_all(reinterpret_cast<std::atomic<std::uint32_t>*>(&words->head));
    return true;
}

// ---- HostMirror -----------------------------------------------------------------------------

HostMirror::HostMirror(const MappedChannel& channel, std::uint64_t received, FrameSink sink)
    : channel_(channel), sink_(std::move(sink)), pinned_(channel), received_(received) {
    publish_position(mirror_words(*channel.guest_words()), {received, 0});
}

HostMirror::HostMirror(const MappedChannel& channel, MirrorPosition position, std::uint64_t epoch,
                       FrameSink sink)
    : channel_(channel),
      sink_(std::move(sink)),
      pinned_(channel),
      ring_position_(position.ring_position),
      received_(position.received),
      epoch_(epoch),
      resume_(Resume::kWanted),
      open_(position.ring_position != 0) {}

bool HostMirror::receive(std::span<const std::byte> bytes) {
    return reader_.feed(bytes, [this](const FrameHeader& header, std::span<const std::byte> data) {
        const bool good = handle(header, data);
        note_handled(sizeof header + data.size());
        return good;
    });
}

/// A record that has come in part counts with its last piece: the frames of one forwarding hold
/// whole records, and nothing else stands between them.
void HostMirror::note_handled(std::uint64_t bytes) {
    received_ += bytes;
    if (staged_ring_.empty()) {
        publish_position(mirror_words(*channel_.guest_words()), {received_, ring_position_});
    }
}

bool HostMirror::handle_resume(std::uint64_t epoch, std::span<const std::byte> payload) {
    ResumeImage image{};
    if (epoch_ == 0 || !read_image(payload, &image)) {
        return false;
    }
    // Others are for host ends between the old one and this one.
    if (epoch == epoch_ && resume_.load(std::memory_order_relaxed) == Resume::kWanted) {
        std::memcpy(reply_seen_, image.reply_seq, sizeof reply_seen_);
        resume_.store(Resume::kCame, std::memory_order_release);
    }
    return true;
}

bool HostMirror::send_image() {
    const std::uint64_t used =
        channel_.guest_words()->pinned_high_water.load(std::memory_order_acquire);
    resume_.store(Resume::kDone, std::memory_order_relaxed);
    return pinned_.send_image(used, sink_) &&
           send_frame(sink_, FrameKind::kPinnedEnd, epoch_, nullptr, 0);
}

bool HostMirror::handle(const FrameHeader& header, std::span<const std::byte> payload) {
    switch (header.kind) {
        case FrameKind::kClaim: return handle_claim(header.argument);
        case FrameKind::kGuestWords: {
            std::uint64_t image[2] = {};
            if (!read_image(payload, &image)) {
                return false;
            }
            channel_.guest_words()->pinned_high_water.store(image[1], std::memory_order_release);
            channel_.guest_words()->announce_seen.store(static_cast<std::uint32_t>(image[0]),
                                                        std::memory_order_release);
            return true;
        }
        case FrameKind::kPinned: return pinned_.apply(header.argument, payload);
        case FrameKind::kRing: return handle_ring(header.argument, payload);
        case FrameKind::kResume: return handle_resume(header.argument, payload);
        default: return false;
    }
}

bool HostMirror::handle_claim(std::uint64_t generation) {
    if (open_ || generation == 0) {
        return false;
    }
    GuestDirectory* directory = channel_.guest_directory();
    ChannelClaim& claim = directory->claims[channel_.index];
    if (directory->magic.load(std::memory_order_acquire) == kRegionMagic) {
        // The host laid the region out and gave the channel under a generation of its own.
        if (claim.generation != generation) {
            return false;
        }
    } else {
        directory->wire_version = kWireVersion;
        directory->region_bytes = channel_.layout.end;
        directory->channel_count = 1;
        directory->magic.store(kRegionMagic, std::memory_order_release);
    }
    ring_position_ = generation << kGenerationShift;
    open_ = true;
    claim.generation = generation;
    claim.state.store(ClaimState::kOpen, std::memory_order_release);
    return true;
}

bool HostMirror::handle_ring(std::uint64_t position, std::span<const std::byte> payload) {
    if (!open_ || position != ring_position_ + staged_ring_.size() ||
        staged_ring_.size() + payload.size() > channel_.layout.ring_bytes) {
        return false;
    }
    staged_ring_.insert(staged_ring_.end(), payload.begin(), payload.end());
    std::uint64_t whole = 0;
    while (staged_ring_.size() - whole >= sizeof(CommandHeader)) {
        std::uint32_t bytes = 0;
        std::memcpy(&bytes, staged_ring_.data() + whole + offsetof(CommandHeader, bytes),
                    sizeof bytes);
        const std::uint64_t room = channel_.layout.ring_bytes -
                                   ((ring_position_ + whole) & (channel_.layout.ring_bytes - 1));
        if (bytes < kRecordAlign || bytes % kRecordAlign != 0 || bytes > room) {
            return false;
        }
        if (staged_ring_.size() - whole < bytes) {
            break;
        }
        whole += bytes;
    }
    return publish_records(whole);
}

// Writes whole records: bodies first, each publication word last.
bool HostMirror::publish_records(std::uint64_t end) {
    const std::uint64_t mask = channel_.layout.ring_bytes - 1;
    for (std::uint64_t done = 0; done < end;) {
        std::uint32_t bytes = 0;
        std::memcpy(&bytes, staged_ring_.data() + done + offsetof(CommandHeader, bytes),
                    sizeof bytes);
        std::byte* target = channel_.ring() + ((ring_position_ + done) & mask);
        std::memcpy(target + sizeof(std::uint64_t),
                    staged_ring_.data() + done + sizeof(std::uint64_t),
                    bytes - sizeof(std::uint64_t));
        reinterpret_cast<CommandHeader*>(target)->publish.store(ring_position_ + done + 1,
                                                                std::memory_order_release);
        done += bytes;
    }
    staged_ring_.erase(staged_ring_.begin(),
                       staged_ring_.begin() + static_cast<std::ptrdiff_t>(end));
    ring_position_ += end;
    GuestWords* words = channel_.guest_words();
    words->doorbell.fetch_add(1, std::memory_order_seq_cst);
    if (channel_.host_words()->consumer_sleeps.load(std::memory_order_seq_cst) != 0) {
        futex_wake_all(&words->doorbell);
    }
    return true;
}

bool HostMirror::pump() {
    const Resume resume = resume_.load(std::memory_order_acquire);
    if (resume != Resume::kDone) {
        return resume == Resume::kCame && send_image();
    }
    if (!open_) {
        return false;
    }
    bool did = false;
    if (!serve_sent_) {
        const HostChannel& entry = channel_.host_directory()->channels[channel_.index];
        const ServeState state = entry.state.load(std::memory_order_acquire);
        const std::uint64_t generation = entry.generation.load(std::memory_order_acquire);
        const std::uint64_t claimed = channel_.guest_directory()->claims[channel_.index].generation;
        // What is said of an earlier claim of the channel is not this guest's.
        if (state != ServeState::kNone && generation != 0 && generation == claimed) {
            ServeImage image{};
            image.generation = generation;
            image.state = state;
            image.refusal = entry.refusal;
            std::memcpy(image.text, channel_.host_directory()->refusal_text, sizeof image.text);
            image.text[sizeof image.text - 1] = '\0';
            serve_sent_ = did = send_frame(sink_, FrameKind::kServe, 0, &image, sizeof image);
        }
    }
    std::uint64_t seqs[kLaneCount];
    bool answered = false;
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        seqs[lane] = channel_.reply(lane)->seq.load(std::memory_order_acquire);
        answered = answered || seqs[lane] != reply_seen_[lane];
    }
    if (answered || pinned_.due()) {
        const std::vector<std::byte> events = changed_events();  // Before what they vouch for.
        const std::uint64_t used =
            channel_.guest_words()->pinned_high_water.load(std::memory_order_acquire);
        if (!pinned_.send_changes(used, sink_) ||
            (!events.empty() &&
             !send_frame(sink_, FrameKind::kEvents, 0, events.data(), events.size()))) {
            return false;
        }
        did = did || !events.empty();
    }
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        if (seqs[lane] != reply_seen_[lane]) {
            reply_seen_[lane] = seqs[lane];
            did = send_reply(lane, seqs[lane]) || did;
        }
    }
    return send_host_words() || did;
}

bool HostMirror::send_reply(std::uint32_t lane, std::uint64_t seq) {
    ReplyPage page;
    std::memcpy(static_cast<void*>(&page), channel_.reply(lane), kPageBytes);
    page.seq.store(seq, std::memory_order_relaxed);
    const std::uint64_t limit = channel_.layout.bulk_bytes;
    if (page.bulk_bytes != 0 && page.bulk_offset <= limit &&
        page.bulk_bytes <= limit - page.bulk_offset &&
        !send_span(sink_, FrameKind::kBulk, page.bulk_offset, channel_.bulk() + page.bulk_offset,
                   page.bulk_bytes)) {
        return false;
    }
    const std::size_t inline_bytes = std::min<std::size_t>(page.payload_bytes, kReplyInlineBytes);
    return send_frame(sink_, FrameKind::kReply, lane, &page,
                      offsetof(ReplyPage, payload) + inline_bytes);
}

/// What is to be sent of events; empty when nothing has changed. The other words are read behind
/// event_done, before which the worker writes them.
std::vector<std::byte> HostMirror::changed_events() {
    const HostWords* words = channel_.host_words();
    std::vector<std::byte> changed(sizeof(EventsImage));
    for (std::uint64_t i = 0; i < kEventWords; ++i) {
        const EventWord event{i, words->event_done[i].load(std::memory_order_acquire)};
        if (event.done != event_done_sent_[i]) {
            event_done_sent_[i] = event.done;
            const auto* bytes = reinterpret_cast<const std::byte*>(&event);
            changed.insert(changed.end(), bytes, bytes + sizeof event);
        }
    }
    EventsImage image{};
    image.looked = words->looked.load(std::memory_order_acquire);
    image.late_errors = words->late_errors.load(std::memory_order_acquire);
    image.shows_events = words->shows_events.load(std::memory_order_acquire);
    if (changed.size() == sizeof image && std::memcmp(&image, &events_sent_, sizeof image) == 0) {
        return {};
    }
    events_sent_ = image;
    std::memcpy(changed.data(), &image, sizeof image);
    return changed;
}

bool HostMirror::send_host_words() {
    const HostWords* words = channel_.host_words();
    HostWordsImage image{};
    image.worker_state = words->worker_state.load(std::memory_order_acquire);
    image.head = words->head.load(std::memory_order_acquire);
    image.epoch = words->epoch.load(std::memory_order_acquire);
    image.announce = words->announce.load(std::memory_order_acquire);
    image.profile = words->profile.load(std::memory_order_acquire);
    image.profile_worker = words->profile_worker.load(std::memory_order_acquire);
    image.held_ns = words->held_ns.load(std::memory_order_acquire);
    image.launch_ns = words->launch_ns.load(std::memory_order_acquire);
    image.pause_ns = words->pause_ns.load(std::memory_order_acquire);
    image.sticky_error = words->sticky_error.load(std::memory_order_acquire);
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        image.confirm_seq[lane] = words->confirm_seq[lane].load(std::memory_order_acquire);
    }
    // Read behind them: a worker that has given the channel away holds it, and its last words are
    // no longer this guest's.
    const bool is_held = mirror_words(*channel_.guest_words()).hold.load() != 0;
    if (is_held || std::memcmp(&image, &words_sent_, sizeof image) == 0) {
        return false;
    }
    words_sent_ = image;
    return send_frame(sink_, FrameKind::kHostWords, 0, &image, sizeof image);
}

}  // namespace gantry::wire

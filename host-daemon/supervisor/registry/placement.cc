#include "host-daemon/supervisor/registry/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <tuple>

namespace gantry::supervisor {
namespace {

constexpr int kMibShift = 20;

bool is_word_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// `words` stands in `text` as whole words: "H100" in "NVIDIA H100 80GB", and not in "H1000".
bool has_words(std::string_view text, std::string_view words) {
    for (std::size_t at = text.find(words); at != std::string_view::npos;
         at = text.find(words, at + 1)) {
        const std::size_t end = at + words.size();
        if ((at == 0 || !is_word_letter(text[at - 1])) &&
            (end == text.size() || !is_word_letter(text[end]))) {
            return true;
        }
    }
    return false;
}

bool is_before(const GpuOffer& a, const GpuOffer& b, PlacementPolicy policy) {
    const auto least_first = [&](const GpuOffer& offer) {
        const std::uint64_t taken = ~offer.free_bytes();  // The most free comes first.
        switch (policy) {
            case PlacementPolicy::kFirst: return std::tuple{std::uint64_t{0}, std::uint64_t{0}};
            case PlacementPolicy::kSpread:
                return std::tuple{std::uint64_t{offer.session_count}, taken};
            case PlacementPolicy::kFreeMemory: break;
        }
        return std::tuple{taken, std::uint64_t{offer.session_count}};
    };
    return std::tuple{least_first(a), a.device} < std::tuple{least_first(b), b.device};
}

/// Why a session cannot begin on it; the worse one first, which another moment does not mend.
struct Obstacle {
    enum Kind { kNone, kInUse, kTooSmall, kTooOld } kind = kNone;
    std::string text;
};

Obstacle obstacle_of(const PlacementRequest& request, const GpuOffer& offer) {
    if (offer.cc < request.cc_min) {
        return {Obstacle::kTooOld, fmt::format("{} has compute capability {}.{}, {}.{} is wanted",
                                               offer.text(), offer.cc.major, offer.cc.minor,
                                               request.cc_min.major, request.cc_min.minor)};
    }
    if (request.quota_bytes > offer.memory_bytes) {
        return {Obstacle::kTooSmall,
                fmt::format("{} has {} MiB in all, {} MiB are wanted", offer.text(),
                            offer.memory_bytes >> kMibShift, request.quota_bytes >> kMibShift)};
    }
    if (request.quota_bytes > offer.free_bytes()) {
        return {Obstacle::kInUse,
                fmt::format("{} has {} MiB, of which {} MiB are promised to others; {} MiB are "
                            "wanted",
                            offer.text(), offer.memory_bytes >> kMibShift,
                            offer.promised_bytes >> kMibShift, request.quota_bytes >> kMibShift)};
    }
    return {};
}

std::string listed(const std::vector<GpuOffer>& offers) {
    std::string out;
    for (const GpuOffer& offer : offers) {
        out += (out.empty() ? "" : ", ") + offer.text();
    }
    return out.empty() ? "none" : out;
}

}  // namespace

std::string GpuOffer::text() const { return fmt::format("GPU {} ({})", device, name); }

PlacementPolicy placement_policy(std::string_view word) {
    return word == "first"    ? PlacementPolicy::kFirst
           : word == "spread" ? PlacementPolicy::kSpread
                              : PlacementPolicy::kFreeMemory;
}

bool is_wished(const GpuOffer& offer, const libvirt::GpuWish& wish) {
    return (!wish.number || *wish.number == offer.device) &&
           (wish.uuid.empty() || wish.uuid == offer.uuid) &&
           (wish.model.empty() || has_words(offer.name, wish.model));
}

std::vector<GpuOffer> candidates(std::vector<GpuOffer> offers, const libvirt::GpuWish& wish,
                                 PlacementPolicy policy) {
    std::erase_if(offers, [&](const GpuOffer& offer) { return !is_wished(offer, wish); });
    std::sort(offers.begin(), offers.end(),
              [policy](const GpuOffer& a, const GpuOffer& b) { return is_before(a, b, policy); });
    return offers;
}

Error no_such_gpu(const libvirt::GpuWish& wish, const std::vector<GpuOffer>& offers) {
    std::string wanted = wish.number ? fmt::format(" number {}", *wish.number) : "";
    wanted += wish.uuid.empty() ? "" : " UUID " + wish.uuid;
    wanted += wish.model.empty() ? "" : " model '" + wish.model + "'";
    return Error{Code::kFailedPrecondition, "gpu.not_served",
                 fmt::format("the VM's <device> metadata wants the GPU of{}; this host serves: {}",
                             wanted, listed(offers))};
}

Result<DeviceNumber> place(const PlacementRequest& request, const std::vector<GpuOffer>& offers,
                           PlacementPolicy policy) {
    if (offers.empty()) {
        return Error{Code::kFailedPrecondition, "gpu.absent", "this host has no usable GPU"};
    }
    const std::vector<GpuOffer> allowed = candidates(offers, request.wish, policy);
    if (allowed.empty()) {
        return no_such_gpu(request.wish, offers);
    }
    std::string texts;
    auto least = Obstacle::kTooOld;
    for (const GpuOffer& offer : allowed) {
        const Obstacle obstacle = obstacle_of(request, offer);
        if (obstacle.kind == Obstacle::kNone) {
            return offer.device;
        }
        texts += (texts.empty() ? "" : "; ") + obstacle.text;
        least = std::min(least, obstacle.kind);
    }
    switch (least) {
        case Obstacle::kInUse:
            return Error{Code::kResourceExhausted, "gpu.memory.in_use",
                         texts + ": move or stop another session first"};
        case Obstacle::kTooSmall:
            return Error{Code::kResourceExhausted, "gpu.memory.too_small",
                         texts + ": choose a host with a larger GPU, or lower the quota"};
        default:
            return Error{Code::kFailedPrecondition, "gpu.cc.unsupported",
                         texts + ": choose a host with a newer GPU, or lower cc_min"};
    }
}

}  // namespace gantry::supervisor

#include "host-daemon/supervisor/share/gpu_arbiter.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <set>

#include "proto/wire/wait.h"

namespace gantry::supervisor {
namespace {

using control::ArbiterPage;
using control::ClaimPage;
using scheduling::Time;

/// Short beside a window, and some percent of one processor while sessions contend.
constexpr Time kLook = std::chrono::microseconds{50};
constexpr unsigned long kSlackNs = 5'000;

Error page_error(const char* what) {
    return {Code::kUnavailable, "arbiter.page", std::string(what) + ": " + std::strerror(errno)};
}

Time now() { return std::chrono::steady_clock::now().time_since_epoch(); }

void nap(Time time) {
    const timespec part{0, static_cast<long>(time.count())};
    ::nanosleep(&part, nullptr);
}

/// Whoever wrote it may have lied.
constexpr std::uint64_t kLongestNs = 1'000'000'000'000;

scheduling::Claim read_claim(const ClaimPage& page) {
    const std::uint32_t state = page.state.load();
    const auto time = [](const std::atomic<std::uint64_t>& word) {
        return Time{
            static_cast<Time::rep>(std::min(word.load(std::memory_order_relaxed), kLongestNs))};
    };
    return {(state & ClaimPage::kWants) != 0, (state & ClaimPage::kRuns) != 0, time(page.next_ns),
            time(page.gap_ns)};
}

Result<control::UniqueFd> make_file(const char* name) {
    control::UniqueFd file{::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    if (!file.valid() || ::ftruncate(file.get(), control::kArbiterPageBytes) != 0) {
        return page_error("memfd_create");
    }
    return file;
}

Result<control::UniqueFd> copy_of(const control::UniqueFd& fd) {
    control::UniqueFd copy{::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)};
    return copy.valid() ? Result<control::UniqueFd>(std::move(copy)) : page_error("dup");
}

}  // namespace

Result<void> GpuArbiter::make_page() {
    GANTRY_ASSIGN(page_file_, make_file("gantry-arbiter"));
    void* const mapped = ::mmap(nullptr, control::kArbiterPageBytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED, page_file_.get(), 0);
    if (mapped == MAP_FAILED) {
        return page_error("mmap");
    }
    page_ = static_cast<ArbiterPage*>(mapped);
    if (::fcntl(page_file_.get(), F_ADD_SEALS,
                F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return page_error("sealing the arbiter page");
    }
    page_->window_ns.store(static_cast<std::uint64_t>(settings_.window.count()));
    page_->patience_ns.store(static_cast<std::uint64_t>(settings_.starvation.count()) * 2);
    return {};
}

Result<std::unique_ptr<GpuArbiter>> GpuArbiter::start(const scheduling::Settings& settings) {
    std::unique_ptr<GpuArbiter> arbiter(new GpuArbiter(settings));
    GANTRY_TRY(arbiter->make_page());
    arbiter->bell_ = control::UniqueFd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!arbiter->bell_.valid()) {
        return page_error("eventfd");
    }
    arbiter->thread_ = std::thread([raw = arbiter.get()] { raw->run(); });
    return arbiter;
}

GpuArbiter::~GpuArbiter() {
    if (thread_.joinable()) {
        {
            const MutexLock lock(mutex_);
            is_stopping_ = true;
        }
        ring();
        thread_.join();
    }
    const MutexLock lock(mutex_);
    for (const auto& [slot, place] : places_) {
        ::munmap(place.claim, control::kArbiterPageBytes);
    }
    if (page_ != nullptr) {
        for (ArbiterPage::Slot& slot : page_->slots) {  // Nobody decides any more.
            slot.verdict.store(0);
            wire::futex_wake_all(&slot.verdict);
        }
        ::munmap(page_, control::kArbiterPageBytes);
    }
}

void GpuArbiter::ring() {
    const std::uint64_t one = 1;
    (void)!::write(bell_.get(), &one, sizeof(one));
}

scheduling::Share GpuArbiter::share_of(const std::string& session) const {
    const auto found = shares_.find(session);
    return found != shares_.end() ? found->second : scheduling::Share{};
}

Result<GpuArbiter::Seat> GpuArbiter::join(const std::string& session) {
    Seat seat;
    Place place;
    place.session = session;
    GANTRY_ASSIGN(seat.page, copy_of(page_file_));
    GANTRY_ASSIGN(seat.claim, make_file("gantry-claim"));
    if (::fcntl(seat.claim.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return page_error("sealing a claim page");
    }
    seat.bell = control::UniqueFd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (!seat.bell.valid()) {
        return page_error("eventfd");
    }
    GANTRY_ASSIGN(control::UniqueFd bell, copy_of(seat.bell));
    place.bell = std::make_shared<control::UniqueFd>(std::move(bell));
    const MutexLock lock(mutex_);
    while (places_.contains(seat.slot)) {
        ++seat.slot;
    }
    if (seat.slot >= ArbiterPage::kSlots) {
        return Error{Code::kResourceExhausted, "arbiter.page",
                     "every slot of the GPU's arbiter page is taken"};
    }
    void* const mapped = ::mmap(nullptr, control::kArbiterPageBytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED, seat.claim.get(), 0);
    if (mapped == MAP_FAILED) {
        return page_error("mmap");
    }
    place.claim = static_cast<ClaimPage*>(mapped);
    places_.emplace(seat.slot, std::move(place));
    Client& client = clients_[session];
    if (client.places++ == 0) {
        client.id = ++last_id_;
        policy_.add(client.id, share_of(session), scheduling::Traffic::kLaunches, now());
    }
    look(now());  // Its first verdict is there before its worker is.
    ring();
    return seat;
}

void GpuArbiter::leave(std::uint32_t slot) {
    const MutexLock lock(mutex_);
    const auto found = places_.find(slot);
    if (found == places_.end()) {
        return;
    }
    const auto client = clients_.find(found->second.session);
    if (--client->second.places == 0) {
        policy_.remove(client->second.id);
        clients_.erase(client);
    }
    ::munmap(found->second.claim, control::kArbiterPageBytes);
    places_.erase(found);
    page_->slots[slot].verdict.store(0);
    ring();
}

void GpuArbiter::set_share(const std::string& session, std::optional<scheduling::Share> share) {
    const MutexLock lock(mutex_);
    if (share) {
        shares_[session] = *share;
    } else {
        shares_.erase(session);
    }
    if (const auto found = clients_.find(session); found != clients_.end()) {
        policy_.set_share(found->second.id, share_of(session));
    }
    ring();
}

void GpuArbiter::set_enabled(bool enabled) {
    const MutexLock lock(mutex_);
    is_enabled_ = enabled;
    look(now());
    ring();
}

bool GpuArbiter::arbitrates() const {
    return is_enabled_ && clients_.size() > 1 &&
           std::any_of(clients_.begin(), clients_.end(),
                       [this](const auto& one)
                           GANTRY_REQUIRES(mutex_) { return shares_.contains(one.first); });
}

bool GpuArbiter::is_contended() const {
    std::size_t busy = 0;
    bool is_away = false;  // Whoever waits meanwhile may be let in, and is to be stopped at once.
    for (const auto& [session, client] : clients_) {
        const auto standing = policy_.standing(client.id);
        const bool is_busy = standing && (standing->claim.wants || standing->claim.runs);
        busy += is_busy ? 1 : 0;
        is_away = is_away || (standing && standing->holds && !is_busy);
    }
    return busy > 1 || (busy == 1 && is_away);
}

void GpuArbiter::publish() {
    std::set<scheduling::ClientId> fills;
    for (const auto& [slot, place] : places_) {
        const scheduling::ClientId id = clients_.at(place.session).id;
        scheduling::Verdict verdict = policy_.verdict(id);
        if (verdict.permit == scheduling::Permit::kFill) {
            const scheduling::Claim claim = read_claim(*place.claim);
            if ((claim.wants || claim.runs) && fills.insert(id).second) {
                page_->slots[slot].until_ns.store(static_cast<std::uint64_t>(verdict.until.count()),
                                                  std::memory_order_relaxed);
            } else {
                verdict = {scheduling::Permit::kHold, 0, {}};  // One program of a session.
            }
        }
        const std::uint32_t word = (verdict.serial << ArbiterPage::kPermitBits) |
                                   static_cast<std::uint32_t>(verdict.permit);
        std::atomic<std::uint32_t>& published = page_->slots[slot].verdict;
        if (published.load(std::memory_order_relaxed) != word) {
            published.store(word, std::memory_order_release);
            wire::futex_wake_all(&published);
        }
    }
}

/// Reads the claims, decides and publishes.
void GpuArbiter::look(Time at) {
    std::map<std::string, scheduling::Claim> claims;
    std::map<std::string, bool> wanted;
    for (const auto& [slot, place] : places_) {
        const scheduling::Claim claim = read_claim(*place.claim);
        scheduling::Claim& all = claims[place.session];
        all.wants = all.wants || claim.wants;
        all.runs = all.runs || claim.runs;
        if (claim.wants) {  // Not known of one: not known.
            const bool is_known =
                claim.next != Time{} && (!wanted[place.session] || all.next != Time{});
            all.next = is_known ? std::max(all.next, claim.next) : Time{};
            wanted[place.session] = true;
        }
        if (claim.gap != Time{}) {  // Whoever comes back first ends it.
            all.gap = all.gap != Time{} ? std::min(all.gap, claim.gap) : claim.gap;
        }
    }
    for (const auto& [session, claim] : claims) {
        policy_.set_claim(clients_.at(session).id, claim, at);
    }
    policy_.set_enabled(arbitrates());
    policy_.step(at);
    publish();
}

/// Until a bell rings, or the policy is due.
void GpuArbiter::sleep(Time until) {
    std::vector<pollfd> bells{{bell_.get(), POLLIN, 0}};
    std::vector<std::shared_ptr<control::UniqueFd>> kept;
    {
        const MutexLock lock(mutex_);
        for (const auto& [slot, place] : places_) {
            kept.push_back(place.bell);
            bells.push_back({place.bell->get(), POLLIN, 0});
        }
    }
    const Time left = until == scheduling::kNever ? Time{} : std::max(until - now(), Time{1});
    const timespec time{static_cast<time_t>(left.count() / 1'000'000'000),
                        static_cast<long>(left.count() % 1'000'000'000)};
    ::ppoll(bells.data(), bells.size(), until == scheduling::kNever ? nullptr : &time, nullptr);
    for (const pollfd& bell : bells) {
        std::uint64_t rings = 0;
        (void)!::read(bell.fd, &rings, sizeof(rings));
    }
}

void GpuArbiter::run() {
    ::prctl(PR_SET_TIMERSLACK, kSlackNs);
    for (;;) {
        Time until = scheduling::kNever;
        {
            const MutexLock lock(mutex_);
            if (is_stopping_) {
                return;
            }
            look(now());
            if (!is_contended()) {
                page_->sleeps.store(1);
                look(now());  // Claims from before they could see that it sleeps.
                until = policy_.step(now());
                publish();
            }
            if (is_contended()) {
                page_->sleeps.store(0);
                until = Time{};
            }
        }
        if (until != Time{}) {
            sleep(until);
        }
        nap(kLook);  // Also behind a bell: one who rings all the time gets no more than this.
    }
}

GpuArbiter::Status GpuArbiter::status() {
    const MutexLock lock(mutex_);
    Status out;
    out.is_enabled = is_enabled_;
    out.arbitrates = arbitrates();
    for (const auto& [session, client] : clients_) {
        if (const auto standing = policy_.standing(client.id)) {
            out.sessions.push_back({session, *standing});
        }
    }
    return out;
}

}  // namespace gantry::supervisor

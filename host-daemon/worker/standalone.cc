#include "host-daemon/worker/standalone.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <list>
#include <memory>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/execution/ring/channel_memory.h"
#include "host-daemon/sharing/share_broker.h"
#include "host-daemon/worker/replace.h"
#include "host-daemon/worker/worker_link.h"
#include "proto/cuda/gen/opcodes.h"
#include "proto/wire/attach.h"

namespace gantry::worker {
namespace {

using gantry::wire::AttachReply;
using gantry::wire::AttachRequest;

constexpr char kControlSuffix[] = ".control";

/// What a replace asks for.
struct Wish {
    std::uint32_t to_device = kSameDevice;
    Copy copy = Copy::kNo;
    std::uint32_t rehearsals = 0;
};

struct Guest {
    std::uint64_t part_id = 0;
    control::UniqueFd socket;  ///< A second handle on the guest's socket, to see its end.
    WorkerLink worker;
    std::unique_ptr<ChannelMemory> directory;
};

/// By CUDA_VISIBLE_DEVICES. Of a driver that is named by its path (the soft GPU's) a worker sees
/// all, and is told the number; and a choice that was made around this program stands.
bool can_show_one_device(const StandaloneOptions& options) {
    return options.driver.find('/') == std::string::npos &&
           getenv("CUDA_VISIBLE_DEVICES") == nullptr;
}

class Standalone {
public:
    explicit Standalone(const StandaloneOptions& options) : options_(options) {}
    int run();

private:
    Result<void> attach(control::PacketSocket& guest);
    Result<void> admit(control::PacketSocket& guest, const AttachRequest& request);
    void refuse(control::PacketSocket& guest, const Error& error);
    void replace_all(control::PacketSocket& asker);
    Result<std::string> replace(Guest& guest, const Wish& wish);
    Result<std::string> replace(Guest& guest, const Wish& wish, replacement::Way way);
    [[nodiscard]] bool is_to_be_killed(replacement::Step step, const char* whom) const;
    Result<WorkerLink> launch(std::uint64_t part_id, std::uint32_t to_device = kSameDevice);
    static bool is_gone(const Guest& guest);

    const StandaloneOptions& options_;
    std::string directory_;
    std::unique_ptr<sharing::ShareBroker> broker_;
    std::list<Guest> guests_;
    std::uint64_t next_part_ = 1;
};

bool Standalone::is_gone(const Guest& guest) {
    char byte = 0;
    const ssize_t got = recv(guest.socket.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

Result<WorkerLink> Standalone::launch(std::uint64_t part_id, std::uint32_t to_device) {
    // NVIDIA's driver then gives every worker the same addresses, whichever device it has, and the
    // device has the number that the guest knows it by.
    const std::uint32_t device = to_device != kSameDevice ? to_device : options_.device;
    const bool alone = can_show_one_device(options_);
    GANTRY_ASSIGN(WorkerLink worker,
                  WorkerLink::launch(directory_, options_.spin_us,
                                     alone ? std::optional(device) : std::nullopt));
    control::ToWorker request;
    control::Start* start = request.mutable_start();
    start->set_protocol_version(control::kWorkerProtocolVersion);
    start->set_gantry_version("0.1.0");
    start->set_session_id("standalone");
    start->set_part_id(part_id);
    start->mutable_device()->set_driver_library(options_.driver);
    start->mutable_device()->set_driver_profile(options_.profile);
    start->mutable_device()->set_device_ordinal(alone ? 0 : device);
    start->mutable_limits()->set_device_memory_bytes(options_.memory_mib << 20);
    start->mutable_sandbox()->set_seccomp(options_.seccomp);
    start->set_single_launches(!options_.batches_launches);
    GANTRY_TRY(worker.call(std::move(request)));
    GANTRY_ASSIGN(const control::UniqueFd broker, broker_->connect("standalone"));
    control::ToWorker share;
    share.mutable_share();
    const int descriptors[] = {broker.get()};
    GANTRY_TRY(worker.call(std::move(share), descriptors));
    return worker;
}

Result<void> Standalone::admit(control::PacketSocket& socket, const AttachRequest& request) {
    if (request.magic != gantry::wire::kRegionMagic ||
        request.wire_version != gantry::wire::kWireVersion ||
        request.table_hash != cuda::kTableHash) {
        return Error{Code::kFailedPrecondition, "shim.version",
                     fmt::format("this libcuda.so.1 (wire version {}, API table {:016x}) and this "
                                 "worker ({}, {:016x}) are of different Gantry versions",
                                 request.wire_version, request.table_hash,
                                 gantry::wire::kWireVersion, cuda::kTableHash)};
    }
    Guest guest;
    guest.part_id = next_part_++;
    GANTRY_ASSIGN(guest.worker, launch(guest.part_id));
    const std::uint64_t bytes = options_.region_mib << 20;
    GANTRY_ASSIGN(const control::UniqueFd region, ChannelMemory::create_region(bytes));
    GANTRY_ASSIGN(guest.directory,
                  ChannelMemory::map_directory(control::UniqueFd(dup(region.get())), bytes));
    control::ToWorker serve;
    control::GuestAttachment* attachment = serve.mutable_serve()->mutable_guest();
    attachment->set_kind(control::GuestAttachment::KIND_MEMFD);
    attachment->set_region_bytes(bytes);
    attachment->set_channel_count(1);
    attachment->set_generation(1);
    attachment->set_guest_pid(request.guest_pid);
    attachment->set_table_hash(request.table_hash);
    const int descriptors[] = {region.get(), socket.fd()};
    GANTRY_TRY(guest.worker.call(std::move(serve), descriptors));
    auto& channel = guest.directory->host_directory().channels[0];
    channel.state.store(gantry::wire::ServeState::kServing, std::memory_order_relaxed);
    channel.generation.store(1, std::memory_order_release);
    AttachReply reply;
    reply.accepted = 1;
    reply.region_bytes = bytes;
    const int handed[] = {region.get()};
    GANTRY_TRY(socket.send(std::as_bytes(std::span(&reply, 1)), handed));
    guest.socket = control::UniqueFd(dup(socket.fd()));
    guests_.push_back(std::move(guest));
    return {};
}

void Standalone::refuse(control::PacketSocket& guest, const Error& error) {
    AttachReply reply;
    reply.cuda_error = error.reason == "shim.version" ? 803 : 100;  // Driver mismatch, no device.
    error.text.copy(reply.text, sizeof(reply.text) - 1);
    log_line("refused a guest process: %s", error.to_string().c_str());
    (void)guest.send(std::as_bytes(std::span(&reply, 1)), {});
}

Result<void> Standalone::attach(control::PacketSocket& guest) {
    GANTRY_ASSIGN(const control::Packet packet, guest.receive(std::chrono::milliseconds(2000)));
    AttachRequest request;
    if (packet.bytes.size() != sizeof(request)) {
        return Error{Code::kInvalidArgument, "shim.version", "this is no attach request"};
    }
    std::memcpy(&request, packet.bytes.data(), sizeof(request));
    return admit(guest, request);
}

bool Standalone::is_to_be_killed(replacement::Step step, const char* whom) const {
    return options_.kill_at == std::string(replacement::to_string(step)) + ":" + whom;
}

/// The JSON of the report. A guest that nobody serves any more loses its socket, and so learns it.
Result<std::string> Standalone::replace(Guest& guest, const Wish& wish, replacement::Way way) {
    replacement::Options options;
    options.rehearsals = wish.rehearsals;
    GANTRY_ASSIGN(WorkerLink fresh, launch(guest.part_id, wish.to_device));
    options.way = way;
    options.epoch = 2;
    options.at_step = [&](replacement::Step step) {
        for (const auto& [whom, pid] :
             {std::pair("old", guest.worker.pid()), std::pair("fresh", fresh.pid())}) {
            if (is_to_be_killed(step, whom)) {
                kill(pid, SIGKILL);
            }
        }
    };
    replacement::Outcome outcome = replace_worker(guest.worker, fresh, options);
    if (outcome.owner == replacement::Owner::kFresh) {
        guest.worker = std::move(fresh);
    } else if (outcome.owner == replacement::Owner::kNobody) {
        guest.worker.kill_now();
        guest.socket.reset();
    }
    if (!outcome.report.ok()) {
        return outcome.report.error();
    }
    return outcome.report->to_json();
}

/// In the best way that there is: each way that is refused leaves the old worker serving.
Result<std::string> Standalone::replace(Guest& guest, const Wish& wish) {
    using replacement::Way;
    const auto said = [&](const Error& error, const char* next) {
        log_line("part %llu: %s; %s", static_cast<unsigned long long>(guest.part_id),
                 error.to_string().c_str(), next);
    };
    if (wish.to_device == kSameDevice && wish.copy == Copy::kNo) {
        auto handed = replace(guest, wish, Way::kHandOver);
        if (handed.ok() || handed.error().reason != "handover.not_exportable") {
            return handed;
        }
        said(handed.error(), "it is copied");
    }
    if (wish.copy != Copy::kStaged) {
        auto pulled = replace(guest, wish, Way::kPeer);
        const auto is_of_the_way = [](const std::string& reason) {
            return reason == "state.pull" ||
                   (reason.starts_with("handover.") && reason != "handover.guest_gone");
        };
        if (pulled.ok() || !is_of_the_way(pulled.error().reason)) {
            return pulled;
        }
        said(pulled.error(), "it is copied by way of the host's memory");
    }
    return replace(guest, wish, Way::kStaged);
}

void Standalone::replace_all(control::PacketSocket& asker) {
    Wish wish;
    if (const auto asked = asker.receive(std::chrono::milliseconds(2000));
        asked.ok() && asked->bytes.size() == sizeof(wish)) {
        std::memcpy(&wish, asked->bytes.data(), sizeof(wish));
    }
    std::string answer;
    bool failed = false;
    bool is_any_left = false;
    for (Guest& guest : guests_) {
        const auto replaced = replace(guest, wish);
        // A program that ended meanwhile leaves nothing to be moved.
        const bool has_ended = !replaced.ok() && is_gone(guest);
        is_any_left = is_any_left || !has_ended;
        failed = failed || (!replaced.ok() && !has_ended);
        answer += fmt::format("part {}: {}\n", guest.part_id,
                              replaced.ok() ? *replaced : replaced.error().to_string());
    }
    answer = (!is_any_left           ? "no guest\n"
              : failed               ? "failed\n"
              : wish.rehearsals != 0 ? "rehearsed\n"
                                     : "moved\n") +
             answer;
    (void)asker.send(std::as_bytes(std::span(answer)), {});
}

int Standalone::run() {
    char pattern[] = "/tmp/gantry-worker-XXXXXX";
    if (mkdtemp(pattern) == nullptr) {
        log_line("cannot make a directory: %s", std::strerror(errno));
        return 1;
    }
    directory_ = pattern;
    auto guests = control::PacketListener::bind(options_.socket_path);
    auto control = control::PacketListener::bind(options_.socket_path + kControlSuffix);
    if (!guests.ok() || !control.ok()) {
        log_line("%s", (guests.ok() ? control.error() : guests.error()).to_string().c_str());
        return 1;
    }
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigprocmask(SIG_BLOCK, &ending, nullptr);
    const control::UniqueFd signals(signalfd(-1, &ending, SFD_CLOEXEC));
    auto broker = sharing::ShareBroker::start();
    if (!broker.ok()) {
        log_line("%s", broker.error().to_string().c_str());
        return 1;
    }
    broker_ = std::move(broker).value();
    // A driver, device or profile that cannot serve is told of now, not to the first program.
    if (const auto probe = launch(0); !probe.ok()) {
        log_line("%s; see --driver, --device and --profile", probe.error().to_string().c_str());
        return 1;
    }
    log_line("serving local guest processes on %s", options_.socket_path.c_str());
    for (bool ended = false; !ended;) {
        std::vector<pollfd> waiting = {
            {guests->fd(), POLLIN, 0}, {control->fd(), POLLIN, 0}, {signals.get(), POLLIN, 0}};
        for (const Guest& guest : guests_) {
            waiting.push_back({guest.socket.get(), POLLIN, 0});
            waiting.push_back({guest.worker.fd(), 0, 0});
        }
        poll(waiting.data(), waiting.size(), 500);
        ended = waiting[2].revents != 0;
        guests_.remove_if([](Guest& guest) {
            const bool has_guest_ended = is_gone(guest);
            const bool has_worker_ended = guest.worker.has_broken_off();
            if (has_worker_ended && !has_guest_ended) {
                const pid_t pid = guest.worker.pid();
                const std::string how = guest.worker.how_it_ended();
                if (how != "exit status 0") {  // That is after the program's goodbye.
                    log_line(
                        "part %llu: its worker, process %d, ended: %s; the program gets CUDA "
                        "errors from now on, and has to be started again",
                        static_cast<unsigned long long>(guest.part_id), pid, how.c_str());
                }
            }
            return has_worker_ended || has_guest_ended;
        });
        if (waiting[0].revents != 0) {
            if (auto guest = guests->accept(std::chrono::milliseconds(0)); guest.ok()) {
                if (const auto attached = attach(*guest); !attached.ok()) {
                    refuse(*guest, attached.error());
                }
            }
        }
        if (waiting[1].revents != 0) {
            if (auto asker = control->accept(std::chrono::milliseconds(0)); asker.ok()) {
                replace_all(*asker);
            }
        }
    }
    guests_.clear();
    unlink(options_.socket_path.c_str());
    unlink((options_.socket_path + kControlSuffix).c_str());
    std::filesystem::remove_all(directory_);
    return 0;
}

}  // namespace

int run_standalone(const StandaloneOptions& options) { return Standalone(options).run(); }

int ask_replace(const std::string& socket_path, std::uint32_t to_device, Copy copy,
                unsigned rehearsals) {
    const Wish wish{to_device, copy, rehearsals};
    auto socket = control::PacketSocket::connect(socket_path + kControlSuffix);
    if (socket.ok()) {
        (void)socket->send(std::as_bytes(std::span(&wish, 1)), {});
    }
    auto answer = socket.ok() ? socket->receive(std::chrono::minutes(5))
                              : Result<control::Packet>(socket.error());
    if (!answer.ok()) {
        fmt::print(stderr, "gantry-worker: {}\n", answer.error().to_string());
        return 1;
    }
    const std::string text(reinterpret_cast<const char*>(answer->bytes.data()),
                           answer->bytes.size());
    fmt::print("{}", text);
    return text.starts_with(rehearsals != 0 ? "rehearsed\n" : "moved\n") ? 0 : 1;
}

}  // namespace gantry::worker

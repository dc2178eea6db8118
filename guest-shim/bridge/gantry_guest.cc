// gantry-guest: lets CUDA processes reach a host with which they share no memory.
//
// It listens on the unix socket where the shim looks for its host, gives each process a region of
// its own, and keeps that region alike with one at the host (proto/wire/mirror). A connection that
// is cut is dialled again and resumed: no call is lost or made twice, also where the address leads
// to another host by then, because the VM was moved there with its session. One thread pair a
// process.
#include <openssl/crypto.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "proto/base/hex.h"
#include "proto/base/mutex.h"
#include "proto/base/settings.h"
#include "proto/wire/mirror/endpoint.h"
#include "proto/wire/mirror/link.h"
#include "proto/wire/vm_proof.h"
#include "proto/wire/wait.h"

namespace gantry::guest {
namespace {

struct Settings {
    std::string listen = wire::kDefaultGuestSocket;
    std::string host;
    std::uint64_t give_up_ms = 60'000;
    wire::VmProof vm;  ///< Without its proof, which is of one link.
    Sha256 key{};
};

bool read_uuid(const std::string& text, wire::VmProof* vm) {
    const auto uuid = from_uuid_text(text);
    if (uuid) {
        std::memcpy(vm->vm, uuid->data(), sizeof vm->vm);
    }
    return uuid.has_value();
}

/// The key's file: one line of 64 hex digits.
bool read_key_file(const std::string& path, Sha256* key) {
    std::FILE* file = std::fopen(path.c_str(), "re");
    if (file == nullptr) {
        return false;
    }
    char line[80] = {};
    const bool has_line = std::fgets(line, sizeof line, file) != nullptr;
    std::fclose(file);
    line[std::strcspn(line, "\r\n")] = '\0';
    const auto read = has_line ? from_hex<32>(line) : std::nullopt;
    *key = read.value_or(Sha256{});
    return read.has_value();
}

/// One CUDA process of the guest: its socket, its region and the link to the host.
class Process {
public:
    Process(int socket, const Settings& settings)
        : socket_(socket),
          settings_(settings),
          link_([this](std::span<const std::byte> bytes) { receive(bytes); },
                [this] { note_closed(); }, settings.give_up_ms) {}

    ~Process() {
        {
            const MutexLock lock(mutex_);
            stopping_ = true;  // The link's thread may wait for a region that could not be made.
            changed_.notify_all();
        }
        link_.close();
        wire::unmap_region(&channel_);
        ::close(socket_);
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    void run() {
        wire::GuestAttach attach{{}, settings_.vm};
        int passed = -1;
        if (!wire::receive_packet(socket_, &attach.request, sizeof attach.request, &passed)) {
            return;
        }
        link_.start_dialing([this] { return wire::connect_tcp(settings_.host); },
                            [this](std::uint64_t epoch) { begin_stream(epoch); });
        if (attach.vm.names_vm()) {
            std::uint64_t session[2];
            (void)link_.wait_for_name(&session);  // Closed: the reply says so.
            attach.vm.proof = wire::vm_proof(settings_.key, session, attach.request, attach.vm);
        }
        if (!wire::send_opening(link_, wire::FrameKind::kAttach, attach)) {
            answer_attach(refusal());
            return;
        }
        if (answer_attach(wait_for_reply())) {
            pump();
        }
    }

private:
    wire::GuestAttached wait_for_reply() {
        MutexLock lock(mutex_);
        changed_.wait(lock, [this]() GANTRY_REQUIRES(mutex_) { return have_reply_ || closed_; });
        return have_reply_ ? reply_ : refusal();
    }

    wire::GuestAttached refusal() const {
        wire::GuestAttached attached;
        wire::AttachReply& refusal = attached.reply;
        refusal.cuda_error = 802;  // CUDA_ERROR_SYSTEM_NOT_READY
        std::snprintf(refusal.text, sizeof refusal.text,
                      "gantry-guest cannot reach %s; is gantry-relay running there?",
                      settings_.host.c_str());
        return attached;
    }

    bool answer_attach(wire::GuestAttached attached) {
        wire::AttachReply& reply = attached.reply;
        int memfd = -1;
        if (reply.accepted != 0) {
            memfd = ::memfd_create("gantry-region", MFD_CLOEXEC);
            if (memfd < 0 || ::ftruncate(memfd, static_cast<off_t>(reply.region_bytes)) != 0 ||
                !wire::map_region(memfd, reply.region_bytes, &channel_)) {
                reply.accepted = 0;
                reply.cuda_error = 304;  // CUDA_ERROR_OPERATING_SYSTEM
                std::snprintf(reply.text, sizeof reply.text,
                              "gantry-guest cannot make a region of %llu bytes: %s",
                              static_cast<unsigned long long>(reply.region_bytes),
                              std::strerror(errno));
            }
        }
        if (reply.accepted != 0) {
            // The program claims the generation after this one.
            channel_.guest_directory()->claims[0].generation = attached.generation - 1;
            const MutexLock lock(mutex_);
            mirror_.emplace(channel_,
                            [this](std::span<const std::byte> frame) { return link_.send(frame); });
            if (stream_epoch_ != 0) {
                mirror_->taken_over(stream_epoch_);
            }
            mirror_ready_ = true;
            changed_.notify_all();
        }
        const bool sent =
            wire::send_packet(socket_, &reply, sizeof reply, reply.accepted != 0 ? memfd : -1);
        if (memfd >= 0) {
            ::close(memfd);
        }
        return sent && reply.accepted != 0;
    }

    // On the link's thread: another host serves this process from here on.
    void begin_stream(std::uint64_t epoch) {
        const MutexLock lock(mutex_);
        opening_ = {};
        is_open_ = false;
        stream_epoch_ = epoch;
        if (mirror_ready_) {
            mirror_->taken_over(epoch);
        }
    }

    // Runs on the link's thread: first the answer to the attach, which begins every stream, then
    // the mirror's frames.
    void receive(std::span<const std::byte> bytes) {
        MutexLock lock(mutex_);
        if (!is_open_) {
            if (closed_ || !opening_.add(bytes)) {
                return;
            }
            wire::GuestAttached reply;
            if (!opening_.read(wire::FrameKind::kAttached, &reply)) {
                std::fprintf(stderr,
                             "gantry-guest: the host's first frame is malformed; closing\n");
                closed_ = true;
                changed_.notify_all();
                return;
            }
            is_open_ = true;
            if (!have_reply_) {
                reply_ = reply;
                have_reply_ = true;
                changed_.notify_all();
            }
            bytes = opening_.rest();
            if (bytes.empty()) {
                return;
            }
        }
        changed_.wait(lock,
                      [this]() GANTRY_REQUIRES(mutex_) { return mirror_ready_ || stopping_; });
        const bool usable = mirror_ready_;
        lock.unlock();
        if (usable && !mirror_->receive(bytes)) {
            std::fprintf(stderr, "gantry-guest: the host sent a malformed frame; closing\n");
            note_closed();
        }
    }

    void note_closed() {
        const MutexLock lock(mutex_);
        closed_ = true;
        changed_.notify_all();
    }

    // Forwards until the process ends (its socket hangs up) or the link is over.
    void pump() {
        wire::HostWords* host = channel_.host_words();
        wire::GuestWords* guest = channel_.guest_words();
        wire::Backoff backoff;
        wire::SleepNumbers sleeps;
        while (!backoff.affords_system_call() || !wire::hung_up(socket_)) {
            if (link_.closed() || closed_) {
                host->worker_state.store(wire::WorkerState::kDead, std::memory_order_release);
                break;
            }
            const std::uint32_t bell = guest->doorbell.load(std::memory_order_seq_cst);
            if (mirror_->pump()) {
                backoff.reset();
            } else if (backoff.spinning()) {
                backoff.pause();
            } else {
                host->consumer_sleeps.store(sleeps.next(), std::memory_order_seq_cst);
                if (!mirror_->pump()) {
                    wire::futex_wait(&guest->doorbell, bell, 1'000'000);
                }
                host->consumer_sleeps.store(0, std::memory_order_seq_cst);
            }
        }
    }

    int socket_;
    Settings settings_;
    wire::MappedChannel channel_;
    std::optional<wire::GuestMirror> mirror_;  ///< Made once, before mirror_ready_ says so.

    Mutex mutex_;
    CondVar changed_;
    wire::OpeningFrame<wire::GuestAttached> opening_ GANTRY_GUARDED_BY(mutex_);
    wire::GuestAttached reply_ GANTRY_GUARDED_BY(mutex_);
    /// The host's present stream has begun.
    bool is_open_ GANTRY_GUARDED_BY(mutex_) = false;
    std::uint64_t stream_epoch_ GANTRY_GUARDED_BY(mutex_) = 0;  ///< 0: the first host's.
    bool have_reply_ GANTRY_GUARDED_BY(mutex_) = false;
    bool mirror_ready_ GANTRY_GUARDED_BY(mutex_) = false;
    bool stopping_ GANTRY_GUARDED_BY(mutex_) = false;
    std::atomic<bool> closed_{false};
    wire::ResumableLink link_;  // Last: its thread uses everything above.
};

std::string help(const Settings& defaults) {
    return "usage: gantry-guest --host ADDRESS:PORT [--listen SOCKET] [--vm UUID --key FILE] "
           "[--give-up-ms N]\n"
           "Lets CUDA programs reach a host with which they share no memory.\n"
           "  --host ADDRESS:PORT  where the host's gantry-relay listens\n"
           "  --listen SOCKET      where programs look for their host (" +
           defaults.listen +
           ")\n"
           "  --vm UUID            the VM in which this runs; left out: it is no VM's\n"
           "  --key FILE           the VM's key: a line of 64 hex digits\n"
           "  --give-up-ms N       how long a link that was cut is dialled again (" +
           std::to_string(defaults.give_up_ms) + ")\n";
}

int main_of(int argc, char** argv) {
    if (wire::asks_for_help(argc, argv)) {
        return wire::print_help("gantry-guest", help({}));
    }
    char unknown[300];
    if (!check_setting_names(environ, unknown, sizeof unknown)) {
        std::fprintf(stderr, "gantry-guest: %s\n", unknown);
        return 2;
    }
    // A guest's openssl.cnf may name modules of another OpenSSL than the one inside this program.
    OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
    Settings settings;
    std::string vm;
    std::string key;
    std::string problem = wire::read_options(argc, argv,
                                             {{"host", &settings.host},
                                              {"listen", &settings.listen},
                                              {"vm", &vm},
                                              {"key", &key},
                                              {"give-up-ms", nullptr, &settings.give_up_ms}});
    if (problem.empty() && settings.host.find(':') == std::string::npos) {
        problem = "--host needs ADDRESS:PORT, got '" + settings.host + "'";
    }
    if (problem.empty() && vm.empty() != key.empty()) {
        problem = "--vm and --key go together";
    }
    if (problem.empty() && !vm.empty() && !read_uuid(vm, &settings.vm)) {
        problem = "--vm needs the VM's UUID, got '" + vm + "'";
    }
    if (problem.empty() && !key.empty() && !read_key_file(key, &settings.key)) {
        problem = "--key needs a readable file with 64 hex digits, got '" + key + "'";
    }
    if (!problem.empty()) {
        return wire::refuse_arguments("gantry-guest", problem);
    }
    const int listener = wire::listen_unix(settings.listen);
    if (listener < 0) {
        std::fprintf(stderr, "gantry-guest: cannot listen on %s: %s\n", settings.listen.c_str(),
                     std::strerror(errno));
        return 1;
    }
    wire::accept_forever("gantry-guest", listener, [&settings](int socket) {
        std::thread([socket, settings] { Process(socket, settings).run(); }).detach();
    });
    return 1;
}

}  // namespace
}  // namespace gantry::guest

int main(int argc, char** argv) { return gantry::guest::main_of(argc, argv); }

#include "host-daemon/supervisor/checks/host_checks.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "host-daemon/supervisor/config/accounts.h"
#include "host-daemon/supervisor/workers/worker_stock.h"
#include "migration/libvirt/host.h"
#include "migration/transport/tls.h"

namespace gantry::supervisor {
namespace {

namespace fs = std::filesystem;

constexpr char kHookPath[] = "/etc/libvirt/hooks/qemu.d/50-gantry";
constexpr std::uint64_t kStateBytesMin = 16ULL << 20;
constexpr std::time_t kCertificateSoon = 30 * 86'400;
constexpr unsigned kTmpfsMagic = 0x01021994;

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

class Checker {
public:
    Checker(const Config& config, std::string root) : config_(config), root_(std::move(root)) {}

    std::vector<Check> run() {
        programs();
        accounts();
        folders();
        certificates();
        addresses();
        device();
        hypervisor();
        kernel();
        clock();
        return std::move(checks_);
    }

private:
    void ok(const char* name, std::string text) {
        checks_.push_back({name, Verdict::kOk, "", std::move(text), ""});
    }
    void not_tried(const char* name, std::string text) {
        checks_.push_back({name, Verdict::kNotTried, "", std::move(text), ""});
    }
    void warn(const char* name, const char* reason, std::string text, std::string remedy) {
        checks_.push_back({name, Verdict::kWarning, reason, std::move(text), std::move(remedy)});
    }
    void fail(const char* name, std::string reason, std::string text, std::string remedy) {
        checks_.push_back(
            {name, Verdict::kFailed, std::move(reason), std::move(text), std::move(remedy)});
    }

    void programs() {
        const std::string& worker = config_.worker.executable;
        has_worker_ = ::access(worker.c_str(), X_OK) == 0;
        if (has_worker_) {
            ok("worker program", worker);
        } else {
            fail("worker program", "config.file",
                 "worker.executable: cannot run " + worker + ": " + std::strerror(errno),
                 "Install gantry-host, or correct worker.executable.");
        }
    }

    void accounts() {
        if (config_.worker.user.empty()) {
            ok("worker user", "workers run as gantryd's own user");
        } else if (const auto user = find_worker_user(config_.worker.user); !user) {
            fail("worker user", user.error().reason, user.error().text,
                 "Create the user, or correct worker.user.");
            has_worker_ = false;
        } else {
            ok("worker user", config_.worker.user);
        }
        if (config_.operator_.group.empty()) {
            ok("operator group", "none: only root may use the command gantry");
        } else if (const auto group = find_operator_group(config_.operator_.group); !group) {
            fail("operator group", group.error().reason, group.error().text,
                 "Create the group, or correct operator.group.");
        } else {
            ok("operator group", config_.operator_.group);
        }
    }

    /// The nearest folder that is there: gantryd makes the last ones itself.
    static fs::path present(fs::path path) {
        std::error_code ignored;
        while (!path.empty() && path != "/" && !fs::exists(path, ignored)) {
            path = path.parent_path();
        }
        return path;
    }

    void folder(const char* name, const char* key, const std::string& path) {
        const fs::path there = present(path);
        std::error_code ignored;
        if (!fs::is_directory(there, ignored)) {
            fail(name, "host.folder", fmt::format("{}: {} is no folder", key, there.string()),
                 fmt::format("Correct {}.", key));
        } else if (::access(there.c_str(), W_OK) != 0) {
            fail(name, "host.folder",
                 fmt::format("{}: cannot write {}: {}", key, there.string(), std::strerror(errno)),
                 fmt::format("Run gantryd as root, or correct {}.", key));
        } else {
            ok(name, path);
        }
    }

    void folders() {
        folder("run folder", "daemon.run_directory", config_.daemon.run_directory);
        folder("state folder", "daemon.state_directory", config_.daemon.state_directory);
        const fs::path state = present(config_.daemon.state_directory);
        struct statfs kind {};
        struct statvfs room {};
        if (::statfs(state.c_str(), &kind) == 0 &&
            static_cast<unsigned>(kind.f_type) == kTmpfsMagic) {
            fail("state folder lasts", "host.state_lost",
                 state.string() +
                     " is in memory: after a reboot nobody knows who owns which "
                     "session",
                 "Put daemon.state_directory on a disk.");
        } else {
            ok("state folder lasts", state.string());
        }
        if (::statvfs(state.c_str(), &room) == 0 &&
            room.f_bavail * room.f_frsize < kStateBytesMin) {
            fail("room for records", "host.disk_full",
                 fmt::format("{} has {} KiB free", state.string(),
                             room.f_bavail * room.f_frsize / 1024),
                 "Free space there: a move is granted only when its record is on disk.");
        } else {
            ok("room for records", state.string());
        }
        if (!config_.vm.libvirt_uri.empty()) {
            folder("region folder", "vm.region_directory", config_.vm.region_directory);
        }
    }

    void certificates() {
        const PeerConfig& peer = config_.peer;
        if (peer.listen.empty()) {
            not_tried("certificates", "peer.listen is empty: this host takes part in no migration");
            return;
        }
        for (const auto& [key, path] :
             {std::pair{"peer.authority", peer.authority},
              std::pair{"peer.certificate", peer.certificate}, std::pair{"peer.key", peer.key}}) {
            if (::access(path.c_str(), R_OK) != 0) {
                fail("certificates", "config.file",
                     fmt::format("{}: cannot read {}: {}", key, path, std::strerror(errno)),
                     "Issue this host's certificate (operator's guide, section 2) and copy it "
                     "there.");
                return;
            }
        }
        const auto tls = transport::load_tls({peer.authority, peer.certificate, peer.key});
        if (!tls) {
            fail("certificates", tls.error().reason, tls.error().text,
                 "Issue this host's certificate anew (operator's guide, section 2).");
            return;
        }
        ok("certificates", peer.certificate);
        certificate_names(*tls);
        const auto end = transport::certificate_expiry(tls->certificate_pem);
        if (end && *end - std::time(nullptr) < kCertificateSoon) {
            warn("certificate's end", "certificate.ends_soon",
                 fmt::format("{} ends in {} days", peer.certificate,
                             (*end - std::time(nullptr)) / 86'400),
                 "Issue it anew and restart gantryd before: an expired one refuses moves.");
        } else {
            ok("certificate's end", "more than 30 days away");
        }
        struct stat key {};
        if (::stat(peer.key.c_str(), &key) == 0 && (key.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
            fail("private key", "certificate.key_mode",
                 fmt::format("{} has mode {:04o}: others may read this host's key", peer.key,
                             key.st_mode & 07777),
                 "chmod 0600 " + peer.key);
        } else {
            ok("private key", "its owner alone may read it");
        }
    }

    /// Other hosts dial what gantryd writes into the VM: it must be a name of the certificate.
    void certificate_names(const transport::TlsMaterial& tls) {
        const std::string& told =
            config_.peer.advertise.empty() ? config_.peer.listen : config_.peer.advertise;
        const std::string host = transport::host_of(told);
        if (host == "0.0.0.0" || host == "::") {
            fail("advertised address", "peer.not_advertised",
                 "other hosts would be told to dial " + host,
                 "Set peer.advertise to the name and port by which others reach this host.");
        } else if (!transport::certificate_names(tls.certificate_pem, host)) {
            fail("advertised address", "certificate.name",
                 fmt::format("the certificate in {} is not for {}, which other hosts dial",
                             config_.peer.certificate, host),
                 "Issue it with that name in subjectAltName, or correct peer.advertise.");
        } else {
            ok("advertised address", told);
        }
    }

    [[nodiscard]] bool daemon_runs() const {
        const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        config_.operator_.socket.copy(address.sun_path, sizeof(address.sun_path) - 1);
        const bool runs =
            ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
        ::close(fd);
        return runs;
    }

    void address(const char* name, const char* key, const std::string& listen) {
        if (listen.empty()) {
            not_tried(name, std::string(key) + " is empty");
            return;
        }
        const std::string host = transport::host_of(listen);
        const std::string port = listen.substr(listen.rfind(':') + 1);
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = AI_PASSIVE;
        addrinfo* list = nullptr;
        if (const int wrong = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
            wrong != 0) {
            fail(name, "host.address", fmt::format("{}: {}: {}", key, listen, gai_strerror(wrong)),
                 fmt::format("Correct {}.", key));
            return;
        }
        const int fd = ::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const int yes = 1;
        ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
        const bool is_bound = ::bind(fd, list->ai_addr, list->ai_addrlen) == 0;
        const int wrong = is_bound ? 0 : errno;
        ::close(fd);
        ::freeaddrinfo(list);
        if (is_bound) {
            ok(name, listen);
        } else if (wrong == EADDRINUSE && daemon_runs()) {
            ok(name, listen + ", which the running gantryd has");
        } else {
            fail(name, "host.address",
                 fmt::format("{}: cannot listen on {}: {}", key, listen, std::strerror(wrong)),
                 wrong == EADDRINUSE ? fmt::format("End what listens there, or correct {}.", key)
                                     : fmt::format("Correct {}: an address of this host.", key));
        }
    }

    void addresses() {
        address("peer address", "peer.listen", config_.peer.listen);
        address("metrics address", "metrics.listen", config_.metrics.listen);
    }

    /// Those that gantryd would serve.
    [[nodiscard]] std::vector<DeviceNumber> devices() const {
        std::vector<DeviceNumber> out = named_devices(config_.worker);
        if (out.empty()) {
            if (const auto listed = list_worker_devices(config_.worker)) {
                for (const ListedDevice& one : *listed) {
                    out.push_back(one.number);
                }
            } else {
                out.push_back(0);  // Its worker says what is the matter.
            }
        }
        return out;
    }

    void device() {
        if (!has_worker_) {
            not_tried("GPU", "no worker can be started");
            return;
        }
        char folder[] = "/tmp/gantry-validate-XXXXXX";
        if (::mkdtemp(folder) == nullptr) {
            fail("GPU", "host.folder", std::string("/tmp: ") + std::strerror(errno),
                 "Make /tmp writable.");
            return;
        }
        Config probe = config_;
        probe.daemon.run_directory = folder;
        probe.worker.spares = 0;
        fs::create_directories(fs::path(folder) / "workers");
        {
            WorkerStock stock(probe, [] { return WorkerStock::Awaited{}; });
            const WorkerHandlers nobody{[](engine::PartId, const std::string&) {},
                                        [](engine::PartId, const control::Event&) {}};
            for (const DeviceNumber number : devices()) {
                const auto worker =
                    stock.launch_new("validate", engine::PartId{1}, number, 0, nobody);
                if (worker) {
                    const control::DeviceDescription& device = (*worker)->device();
                    ok("GPU",
                       fmt::format("{}: {}, compute capability {}.{}, {} MiB", number,
                                   device.name(), device.compute_capability_major(),
                                   device.compute_capability_minor(), device.memory_bytes() >> 20));
                    (*worker)->end();
                } else {
                    fail("GPU", worker.error().reason,
                         fmt::format("{}: {}", number, worker.error().text),
                         "Install NVIDIA's driver, or correct worker.driver, worker.devices and "
                         "(soft GPU) worker.profile.");
                }
            }
        }
        std::error_code ignored;
        fs::remove_all(folder, ignored);
    }

    void hypervisor() {
        const std::string& uri = config_.vm.libvirt_uri;
        if (uri.empty()) {
            not_tried("libvirt", "vm.libvirt_uri is empty");
            not_tried("libvirt's hook", "vm.libvirt_uri is empty");
            return;
        }
        libvirt::Host host(uri);
        if (const auto report = host.report("00000000-0000-4000-8000-000000000000"); !report) {
            fail("libvirt", report.error().reason, report.error().text,
                 "Start libvirtd, run gantryd as root, or correct vm.libvirt_uri.");
        } else {
            ok("libvirt", uri);
        }
        hook();
    }

    void hook() {
        const std::string path = root_ + kHookPath;
        std::error_code error;
        if (!fs::exists(path, error)) {
            fail("libvirt's hook", "hook.absent",
                 "there is no " + path + ": VMs would come here without their GPU state",
                 "Install gantry-host, or copy migration/libvirt/hooks/50-gantry there, and "
                 "restart libvirtd.");
        } else if (::access(path.c_str(), X_OK) != 0) {
            fail("libvirt's hook", "hook.mode", path + " cannot be run, so libvirt leaves it out",
                 "chmod 0755 " + path);
        } else {
            ok("libvirt's hook", path);
        }
    }

    void kernel() {
        const std::string scope = first_line(root_ + "/proc/sys/kernel/yama/ptrace_scope");
        if (scope == "0") {
            fail("ptrace", "host.ptrace",
                 "kernel.yama.ptrace_scope is 0: one tenant's worker could look into another's",
                 "sysctl kernel.yama.ptrace_scope=1, and in /etc/sysctl.d");
        } else if (scope.empty()) {
            warn("ptrace", "host.ptrace",
                 "this kernel has no kernel.yama.ptrace_scope: workers of one user may look into "
                 "each other",
                 "Use a kernel with Yama, as Debian's.");
        } else {
            ok("ptrace", "kernel.yama.ptrace_scope is " + scope);
        }
        const std::string huge = first_line(root_ + "/sys/kernel/mm/transparent_hugepage/enabled");
        if (huge.find("[never]") != std::string::npos || huge.empty()) {
            warn("huge pages", "host.huge_pages",
                 "transparent huge pages are off: copies of page-locked memory are slower",
                 "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled");
        } else {
            ok("huge pages", huge);
        }
    }

    void clock() {
        timex now{};
        if (::adjtimex(&now) == TIME_ERROR || (now.status & STA_UNSYNC) != 0) {
            warn("clock", "host.clock",
                 "this host's clock is not synchronised: certificates and logs need one",
                 "Run systemd-timesyncd, chrony or ntpd.");
        } else {
            ok("clock", "synchronised");
        }
    }

    const Config& config_;
    const std::string root_;
    bool has_worker_ = false;
    std::vector<Check> checks_;
};

const char* word(Verdict verdict) {
    switch (verdict) {
        case Verdict::kOk: return "ok";
        case Verdict::kWarning: return "warning";
        case Verdict::kFailed: return "failed";
        case Verdict::kNotTried: return "not tried";
    }
    return "?";
}

}  // namespace

std::vector<Check> check_whole_host(const Config& config, const std::string& root) {
    return Checker(config, root).run();
}

std::vector<Check> unreadable_config(const Error& error) {
    return {{"configuration", Verdict::kFailed, error.reason, error.text,
             "Correct it; gantryd --print-config shows every key with its default."}};
}

bool is_fit(const std::vector<Check>& checks) {
    return std::ranges::none_of(checks,
                                [](const Check& one) { return one.verdict == Verdict::kFailed; });
}

std::string checks_text(const std::vector<Check>& checks) {
    std::string out;
    for (const Check& one : checks) {
        out += fmt::format("{:<9} {:<20} {}", word(one.verdict), one.name, one.text);
        out += one.reason.empty() ? "" : " [" + one.reason + "]";
        out += "\n";
        if (!one.remedy.empty()) {
            out += fmt::format("{:<30} -> {}\n", "", one.remedy);
        }
    }
    return out + (is_fit(checks) ? "This host is fit.\n" : "This host is not fit.\n");
}

std::string checks_json(const std::vector<Check>& checks) {
    nlohmann::ordered_json json{{"fit", is_fit(checks)}};
    for (const Check& one : checks) {
        json["checks"].push_back({{"name", one.name},
                                  {"verdict", word(one.verdict)},
                                  {"reason", one.reason},
                                  {"text", one.text},
                                  {"remedy", one.remedy}});
    }
    return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gantry::supervisor

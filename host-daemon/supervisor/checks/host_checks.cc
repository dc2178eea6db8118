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
#include <map>

#include "host-daemon/supervisor/config/accounts.h"
#include "host-daemon/supervisor/config/file_modes.h"
#include "host-daemon/supervisor/config/task_limit.h"
#include "host-daemon/supervisor/workers/worker_stock.h"
#include "migration/libvirt/host.h"
#include "migration/transport/tls.h"

namespace gantry::supervisor {
namespace {

namespace fs = std::filesystem;

constexpr char kHookPath[] = "/etc/libvirt/hooks/qemu.d/50-gantry";
constexpr char kGuide[] = "(operator's guide, section 7)";
constexpr std::uint64_t kStateBytesMin = 16ULL << 20;
/// The smallest region of a VM, and the smallest with all 16 channels.
constexpr std::uint64_t kRegionBytesMin = 64ULL << 20;
constexpr std::uint64_t kRegionBytesGood = 1ULL << 30;
constexpr std::time_t kCertificateSoon = 30 * 86'400;
constexpr unsigned kTmpfsMagic = 0x01021994;
/// Of CUDA: the newest whose driver was tried.
constexpr std::uint32_t kDriverMajorMax = 13;

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// Of the file system that a path is on; nothing: it cannot be asked.
std::optional<std::uint64_t> free_bytes(const fs::path& path) {
    struct statvfs room {};
    if (::statvfs(path.c_str(), &room) != 0) {
        return std::nullopt;
    }
    return static_cast<std::uint64_t>(room.f_bavail) * room.f_frsize;
}

Error found(const char* reason, std::string text) {
    return Error{Code::kFailedPrecondition, reason, std::move(text)};
}

/// A key of the configuration and the file or folder that it names.
struct Named {
    const char* key;
    const std::string& path;
};

class Checker {
public:
    Checker(const Config& config, const HostPlaces& places) : config_(config), places_(places) {}

    CheckList run(Depth depth) {
        programs();
        accounts();
        modes();
        tasks();
        certificates();
        if (depth == Depth::kConfiguration) {
            listed_devices();
        } else {
            folders();
            addresses();
            started_devices();
            hypervisor();
            kernel();
            clock();
        }
        return std::move(list_);
    }

private:
    bool can_read(const char* name, const Named& file, const std::string& remedy) {
        if (::access(file.path.c_str(), R_OK) == 0) {
            return true;
        }
        list_.fail(name, file.key,
                   found("config.file", fmt::format("{}: cannot read {}: {}", file.key, file.path,
                                                    std::strerror(errno))),
                   remedy);
        return false;
    }

    void programs() {
        const std::string& worker = config_.worker.executable;
        has_worker_ = ::access(worker.c_str(), X_OK) == 0;
        if (has_worker_) {
            list_.ok("worker program", worker);
        } else {
            list_.fail("worker program", "worker.executable",
                       found("config.file", "worker.executable: cannot run " + worker + ": " +
                                                std::strerror(errno)),
                       "Install gantry-host, or correct worker.executable.");
        }
        // Without a folder they are found elsewhere: by the loader, and among the built-in ones.
        for (const auto& [name, file, remedy] :
             {std::tuple{"driver", Named{"worker.driver", config_.worker.driver},
                         "Install NVIDIA's driver, or correct worker.driver."},
              std::tuple{"soft GPU's profile", Named{"worker.profile", config_.worker.profile},
                         "Correct worker.profile: a file, or the name of a built-in one."}}) {
            if (file.path.find('/') != std::string::npos && can_read(name, file, remedy)) {
                list_.ok(name, file.path);
            }
        }
    }

    template <typename Account>
    bool account(const char* name, const char* key, const std::string& value,
                 const Result<Account>& asked) {
        if (asked) {
            list_.ok(name, value);
            return true;
        }
        list_.fail(name, key, asked.error(),
                   fmt::format("Create it (gantry-host does), or correct {}.", key));
        return false;
    }

    void accounts() {
        const std::string& user = config_.worker.user;
        if (user.empty()) {
            list_.ok("worker user", "workers run as gantryd's own user");
        } else if (!account("worker user", "worker.user", user, find_worker_user(user))) {
            has_worker_ = false;
        }
        const std::string& operators = config_.operator_.group;
        if (operators.empty()) {
            list_.ok("operator group", "none: only root may use the command gantry");
        } else {
            account("operator group", "operator.group", operators, find_operator_group(operators));
        }
        const std::string& guests = config_.guest.group;
        if (!guests.empty()) {
            account("guest group", "guest.group", guests, find_guest_group(guests));
        }
    }

    void modes() {
        bool is_safe = true;
        bool is_key_safe = true;
        for (const ModeFault& fault : mode_faults(config_, places_.config_path)) {
            const bool is_key = fault.is_private_key;
            (is_key ? is_key_safe : is_safe) = false;
            list_.fail(is_key ? "private key" : "file modes", fault.path,
                       found(is_key ? "certificate.key_mode" : "config.mode", fault.text),
                       is_key ? "chmod 0600 " + fault.path +
                                    "; if somebody may have read it, issue another one."
                              : "Give it to root, and take the rights of others from it (chmod).");
        }
        if (is_safe) {
            list_.ok("file modes", "root alone may change what gantryd trusts");
        }
        if (is_key_safe && !config_.peer.listen.empty()) {
            list_.ok("private key", "its owner alone, or its group, may read it");
        }
    }

    void tasks() {
        const auto limit = find_task_limit(
            {places_.root + "/proc/self/cgroup", places_.root + "/sys/fs/cgroup", std::nullopt});
        if (const auto fits = check_tasks(config_, limit); !fits) {
            list_.fail("tasks", "guest.sessions_max", fits.error(),
                       "Raise TasksMax of the service, or lower guest.sessions_max.");
        } else {
            list_.ok("tasks",
                     limit ? fmt::format("{} is {}", limit->from, limit->tasks) : "no limit");
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

    void folder(const char* name, const Named& folder) {
        const fs::path there = present(folder.path);
        std::error_code ignored;
        if (!fs::is_directory(there, ignored)) {
            list_.fail(name, folder.key,
                       found("host.folder",
                             fmt::format("{}: {} is no folder", folder.key, there.string())),
                       fmt::format("Correct {}.", folder.key));
        } else if (::access(there.c_str(), W_OK) != 0) {
            list_.fail(name, folder.key,
                       found("host.folder", fmt::format("{}: cannot write {}: {}", folder.key,
                                                        there.string(), std::strerror(errno))),
                       fmt::format("Run gantryd as root, or correct {}.", folder.key));
        } else {
            list_.ok(name, folder.path);
        }
    }

    void folders() {
        folder("run folder", {"daemon.run_directory", config_.daemon.run_directory});
        folder("state folder", {"daemon.state_directory", config_.daemon.state_directory});
        const fs::path state = present(config_.daemon.state_directory);
        struct statfs kind {};
        if (::statfs(state.c_str(), &kind) == 0 &&
            static_cast<unsigned>(kind.f_type) == kTmpfsMagic) {
            list_.fail(
                "state folder lasts", "daemon.state_directory",
                found("host.state_lost",
                      state.string() + " is in memory: after a reboot nobody knows who owns which "
                                       "session"),
                "Put daemon.state_directory on a disk.");
        } else {
            list_.ok("state folder lasts", state.string());
        }
        if (const auto room = free_bytes(state); room && *room < kStateBytesMin) {
            list_.fail("room for records", "daemon.state_directory",
                       found("host.disk_full",
                             fmt::format("{} has {} KiB free", state.string(), *room / 1024)),
                       "Free space there: a move is granted only when its record is on disk.");
        } else {
            list_.ok("room for records", state.string());
        }
        if (!config_.vm.libvirt_uri.empty()) {
            folder("region folder", {"vm.region_directory", config_.vm.region_directory});
            shared_memory();
        }
    }

    void shared_memory() {
        const std::string& path = config_.vm.region_directory;
        const auto room = free_bytes(present(path));
        if (!room || *room >= kRegionBytesGood) {
            list_.ok("shared memory", path);
            return;
        }
        const bool is_enough = *room >= kRegionBytesMin;
        const Error error =
            found("host.shared_memory",
                  fmt::format("{} has {} MiB free, where {}", path, *room >> 20,
                              is_enough ? "a VM's region of 1 GiB or more does not fit"
                                        : "not even the smallest region of a VM fits (64 MiB)"));
        const std::string remedy =
            "Remove what fills it, or make it larger: mount -o "
            "remount,size=16G " +
            path + ", and in /etc/fstab.";
        is_enough ? list_.warn("shared memory", "vm.region_directory", error, remedy)
                  : list_.fail("shared memory", "vm.region_directory", error, remedy);
    }

    void certificates() {
        const PeerConfig& peer = config_.peer;
        if (peer.listen.empty()) {
            list_.not_tried("certificates",
                            "peer.listen is empty: this host takes part in no migration");
            return;
        }
        bool are_there = true;
        for (const Named& file :
             {Named{"peer.authority", peer.authority}, Named{"peer.certificate", peer.certificate},
              Named{"peer.key", peer.key}}) {
            are_there &= can_read("certificates", file,
                                  "Issue this host's certificate (operator's guide, section 2) and "
                                  "copy it there.");
        }
        if (!are_there) {
            return;
        }
        const auto tls = transport::load_tls({peer.authority, peer.certificate, peer.key});
        if (!tls) {
            list_.fail("certificates", "peer.certificate", tls.error(),
                       "Issue this host's certificate anew (operator's guide, section 2).");
            return;
        }
        if (const auto chain = transport::check_chain(*tls); !chain) {
            list_.fail("certificates", peer.authority,
                       {chain.error().code, chain.error().reason,
                        fmt::format("{} and {}: {}", peer.certificate, peer.authority,
                                    chain.error().text)},
                       "Copy the authority that signed it there, or issue the certificate anew "
                       "(operator's guide, section 2).");
        } else {
            list_.ok("certificates", peer.certificate);
        }
        certificate_names(*tls);
        const auto end = transport::certificate_expiry(tls->certificate_pem);
        if (end && *end - std::time(nullptr) < kCertificateSoon) {
            list_.warn(
                "certificate's end", peer.certificate,
                found("certificate.ends_soon", fmt::format("{} ends in {} days", peer.certificate,
                                                           (*end - std::time(nullptr)) / 86'400)),
                "Issue it anew and restart gantryd before: an expired one refuses moves.");
        } else {
            list_.ok("certificate's end", "more than 30 days away");
        }
    }

    /// Other hosts dial what gantryd writes into the VM: it must be a name of the certificate.
    void certificate_names(const transport::TlsMaterial& tls) {
        const std::string& told =
            config_.peer.advertise.empty() ? config_.peer.listen : config_.peer.advertise;
        const std::string host = transport::host_of(told);
        if (host == "0.0.0.0" || host == "::") {
            list_.fail("advertised address", "peer.advertise",
                       found("peer.not_advertised", "other hosts would be told to dial " + host),
                       "Set peer.advertise to the name and port by which others reach this host.");
        } else if (!transport::certificate_names(tls.certificate_pem, host)) {
            list_.fail("advertised address", config_.peer.certificate,
                       found("certificate.name",
                             fmt::format("the certificate in {} is not for {}, which other hosts "
                                         "dial",
                                         config_.peer.certificate, host)),
                       "Issue it with that name in subjectAltName, or correct peer.advertise.");
        } else {
            list_.ok("advertised address", told);
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
            list_.not_tried(name, std::string(key) + " is empty");
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
            list_.fail(
                name, key,
                found("host.address", fmt::format("{}: {}: {}", key, listen, gai_strerror(wrong))),
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
            list_.ok(name, listen);
        } else if (wrong == EADDRINUSE && daemon_runs()) {
            list_.ok(name, listen + ", which the running gantryd has");
        } else {
            list_.fail(name, key,
                       found("host.address", fmt::format("{}: cannot listen on {}: {}", key, listen,
                                                         std::strerror(wrong))),
                       wrong == EADDRINUSE
                           ? fmt::format("End what listens there, or correct {}.", key)
                           : fmt::format("Correct {}: an address of this host.", key));
        }
    }

    void addresses() {
        address("peer address", "peer.listen", config_.peer.listen);
        address("metrics address", "metrics.listen", config_.metrics.listen);
    }

    /// Why there is no list, by the driver's own reason where it gives one.
    static Error list_error(const Error& error) {
        const std::size_t colon = error.text.find(": ");
        const bool is_drivers = error.text.starts_with("driver.") && colon != std::string::npos;
        return is_drivers
                   ? Error{error.code, error.text.substr(0, colon), error.text.substr(colon + 2)}
                   : error;
    }

    void driver_fails(const Error& error, const std::string& before = "") {
        list_.fail("GPU", "worker.driver", {error.code, error.reason, before + error.text},
                   error.reason == "gpu.pageable_access"
                       ? "Switch HMM off, or use another GPU; worker.pageable_access = true where "
                         "one tenant alone uses this host."
                       : "Install NVIDIA's driver, or correct worker.driver, worker.devices and "
                         "(soft GPU) worker.profile.");
    }

    /// Those that gantryd would serve, without a context on any.
    void listed_devices() {
        if (!has_worker_) {
            list_.not_tried("GPU", "no worker can be started");
            return;
        }
        const auto listed = list_worker_devices(config_.worker);
        std::vector<DeviceNumber> served = named_devices(config_.worker);
        if (!listed) {
            const Error error = list_error(listed.error());
            // A worker of another kind says nothing of GPUs.
            error.reason == "gpu.list" ? list_.not_tried("GPU", error.text) : driver_fails(error);
        }
        const bool are_named = !served.empty();
        for (const ListedDevice& one : listed ? *listed : std::vector<ListedDevice>{}) {
            if (are_named && std::ranges::count(served, one.number) == 0) {
                continue;
            }
            if (!are_named) {
                served.push_back(one.number);
            }
            list_.ok("GPU", fmt::format("{}: {}, UUID {}, compute capability {}.{}, {} MiB",
                                        one.number, one.name, one.uuid, one.cc_major, one.cc_minor,
                                        one.memory_bytes >> 20));
        }
        for (const DeviceNumber number : served) {
            WorkerConfig one = config_.worker;
            one.device = number;
            const auto has_it = [number](const ListedDevice& device) {
                return device.number == number;
            };
            if (listed && std::ranges::none_of(*listed, has_it)) {
                driver_fails(
                    found("driver.device", fmt::format("worker.devices has {}: {} has no such GPU",
                                                       number, config_.worker.driver)));
            } else if (const auto may = check_worker_device(one);
                       !may && !config_.worker.pageable_access) {
                driver_fails(may.error());
            }
        }
    }

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

    void started_devices() {
        if (!has_worker_) {
            list_.not_tried("GPU", "no worker can be started");
            return;
        }
        char folder[] = "/tmp/gantry-validate-XXXXXX";
        if (::mkdtemp(folder) == nullptr) {
            list_.fail("GPU", "/tmp",
                       found("host.folder", std::string("/tmp: ") + std::strerror(errno)),
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
                    started(number, (*worker)->device());
                    (*worker)->end();
                } else {
                    driver_fails(worker.error(), fmt::format("{}: ", number));
                }
            }
        }
        std::error_code ignored;
        fs::remove_all(folder, ignored);
    }

    void started(DeviceNumber number, const control::DeviceDescription& device) {
        const std::uint32_t version = device.driver_version();
        list_.ok("GPU", fmt::format("{}: {}, compute capability {}.{}, {} MiB, driver for CUDA "
                                    "{}.{}",
                                    number, device.name(), device.compute_capability_major(),
                                    device.compute_capability_minor(), device.memory_bytes() >> 20,
                                    version / 1000, version % 1000 / 10));
        if (version / 1000 > kDriverMajorMax) {
            list_.warn("driver's release", "worker.driver",
                       found("driver.untried",
                             fmt::format("{} is for CUDA {}.{}: this release of Gantry was tried "
                                         "with drivers up to CUDA {}",
                                         config_.worker.driver, version / 1000, version % 1000 / 10,
                                         kDriverMajorMax)),
                       "Use a driver of a release that was tried, or a newer Gantry.");
        }
    }

    void hypervisor() {
        const std::string& uri = config_.vm.libvirt_uri;
        if (uri.empty()) {
            for (const char* name : {"libvirt", "libvirt's hook", "VMs"}) {
                list_.not_tried(name, "vm.libvirt_uri is empty");
            }
            return;
        }
        libvirt::Host host(uri);
        if (const auto versions = host.versions(); !versions) {
            list_.fail("libvirt", "vm.libvirt_uri", versions.error(),
                       "Start libvirtd, run gantryd as root, or correct vm.libvirt_uri.");
        } else {
            list_.ok("libvirt", uri + ": " + *versions);
        }
        hook();
        if (const auto domains = host.read_domains(); !domains) {
            list_.not_tried("VMs", domains.error().text);
        } else {
            vms(*domains);
        }
    }

    void hook() {
        const std::string path = places_.root + kHookPath;
        std::error_code error;
        if (!fs::exists(path, error)) {
            list_.fail("libvirt's hook", path,
                       found("hook.absent", "there is no " + path +
                                                ": VMs would come here without their GPU state"),
                       "Install gantry-host, or copy migration/libvirt/hooks/50-gantry there, and "
                       "restart libvirtd.");
        } else if (::access(path.c_str(), X_OK) != 0) {
            list_.fail("libvirt's hook", path,
                       found("hook.mode", path + " cannot be run, so libvirt leaves it out"),
                       "chmod 0755 " + path);
        } else {
            list_.ok("libvirt's hook", path);
        }
    }

    void vms(const std::vector<libvirt::ListedDomain>& domains) {
        std::map<std::string, std::string> first_of;  // By region.
        std::size_t with_gpu = 0;
        for (const libvirt::ListedDomain& domain : domains) {
            const std::string where = "VM " + domain.name;
            if (!domain.info) {
                Error error = domain.info.error();
                error.text = where + ": " + error.text;
                list_.fail("VMs", where, std::move(error),
                           fmt::format("Correct it with `virsh edit {}` {}.", domain.name, kGuide));
                continue;
            }
            if (!domain.info->gpu) {
                continue;
            }
            ++with_gpu;
            const std::string& shmem = domain.info->gpu->region.shmem_name;
            const auto [other, is_first] = first_of.emplace(shmem, domain.name);
            if (!shmem.empty() && !is_first) {
                list_.fail("VMs", where,
                           found("vm.region_shared",
                                 fmt::format("{} and {} both have the <shmem name='{}'>: each sees "
                                             "and changes the other's GPU calls",
                                             domain.name, other->second, shmem)),
                           fmt::format("Give {} another name of <shmem> and <gantry:region> {}.",
                                       domain.name, kGuide));
            }
        }
        list_.ok("VMs", fmt::format("{} of {} have a GPU", with_gpu, domains.size()));
    }

    void kernel() {
        const std::string scope = first_line(places_.root + "/proc/sys/kernel/yama/ptrace_scope");
        if (scope == "0") {
            list_.fail("ptrace", "kernel.yama.ptrace_scope",
                       found("host.ptrace",
                             "kernel.yama.ptrace_scope is 0: one tenant's worker could look into "
                             "another's"),
                       "sysctl kernel.yama.ptrace_scope=1, and in /etc/sysctl.d");
        } else if (scope.empty()) {
            list_.warn("ptrace", "kernel.yama.ptrace_scope",
                       found("host.ptrace",
                             "this kernel has no kernel.yama.ptrace_scope: workers of one user may "
                             "look into each other"),
                       "Use a kernel with Yama, as Debian's.");
        } else {
            list_.ok("ptrace", "kernel.yama.ptrace_scope is " + scope);
        }
        const std::string pages = "/sys/kernel/mm/transparent_hugepage/enabled";
        const std::string huge = first_line(places_.root + pages);
        if (huge.find("[never]") != std::string::npos || huge.empty()) {
            list_.warn("huge pages", pages,
                       found("host.huge_pages",
                             "transparent huge pages are off: copies of page-locked memory are "
                             "slower"),
                       "echo madvise >" + pages);
        } else {
            list_.ok("huge pages", huge);
        }
    }

    void clock() {
        timex now{};
        if (::adjtimex(&now) == TIME_ERROR || (now.status & STA_UNSYNC) != 0) {
            list_.warn("clock", "clock",
                       found("host.clock",
                             "this host's clock is not synchronised: certificates and logs need "
                             "one"),
                       "Run systemd-timesyncd, chrony or ntpd.");
        } else {
            list_.ok("clock", "synchronised");
        }
    }

    const Config& config_;
    const HostPlaces& places_;
    bool has_worker_ = false;
    CheckList list_;
};

}  // namespace

CheckList check_host(const Config& config, const HostPlaces& places, Depth depth) {
    return Checker(config, places).run(depth);
}

CheckList unreadable_config(const Error& error, const std::string& config_path) {
    CheckList list;
    list.fail("configuration", config_path, error,
              "Correct it; gantryd --print-config shows every key with its default.");
    return list;
}

}  // namespace gantry::supervisor

#include "host-daemon/supervisor/config/config_schema.h"

namespace gantry::supervisor {
namespace {

#define GANTRY_PLACE(member) [](Config& c) { return &c.member; }
#define GANTRY_STRING(member) StringPlace(GANTRY_PLACE(member))
#define GANTRY_BOOL(member) BoolPlace(GANTRY_PLACE(member))
#define GANTRY_ADDRESS(member) (AddressPlace{GANTRY_PLACE(member)})
#define GANTRY_PATH(member, otherwise) (PathPlace{GANTRY_PLACE(member), Otherwise::otherwise})
#define GANTRY_INT(member, min, max) \
    IntPlace { GANTRY_PLACE(member), min, max }

constexpr std::int64_t kMibMax = 1LL << 24;  // 16 TiB

const ConfigKey kKeys[] = {
    {"daemon", "run_directory", GANTRY_PATH(daemon.run_directory, kNothing),
     "sockets and the list of running workers; gone after a reboot"},
    {"daemon", "state_directory", GANTRY_PATH(daemon.state_directory, kNothing),
     "which sessions this host owns or has granted away; must survive a reboot"},
    {"daemon", "host_name", GANTRY_STRING(daemon.host_name),
     "this host in messages; empty: the system's host name"},
    {"daemon", "log_level",
     (ChoicePlace{GANTRY_PLACE(daemon.log_level), "trace|debug|info|warn|error"}),
     "trace, debug, info, warn or error"},
    {"daemon", "log_file", GANTRY_PATH(daemon.log_file, kEmpty), "empty: standard error"},

    {"operator", "socket", GANTRY_PATH(operator_.socket, kNothing),
     "unix socket of the gantry command and of the libvirt hook"},
    {"operator", "group", GANTRY_STRING(operator_.group),
     "group that may use the socket besides gantryd's own user; empty: none"},
    {"operator", "snapshot_directory", GANTRY_PATH(operator_.snapshot_directory, kNothing),
     "where operator.group is set: the only folder, gantryd's own, that snapshots go to and come "
     "from"},

    {"guest", "socket", GANTRY_PATH(guest.socket, kEmpty),
     "unix socket of programs on this host itself; empty: none"},
    {"guest", "group", GANTRY_STRING(guest.group),
     "members of this group may use it; empty: no group"},
    {"guest", "allow_uids", IntListPlace([](Config& c) { return &c.guest.allow_uids; }),
     "user ids that may use it; empty: gantryd's own and root"},
    {"guest", "any_user", GANTRY_BOOL(guest.any_user), "every user of this host may use it"},
    {"guest", "sessions_of_user", GANTRY_INT(guest.sessions_of_user, 1, 65536),
     "programs of one user that are served at a time"},
    {"guest", "sessions_max", GANTRY_INT(guest.sessions_max, 1, 65536),
     "programs of all users that are served at a time; --check compares it with what the system "
     "allows this service"},
    {"guest", "region_mib", GANTRY_INT(guest.region_mib, 8, 65536),
     "memory that each program shares with its worker, MiB; its page-locked and managed memory "
     "lies there, and what is used of it counts"},
    {"guest", "memory_mib", GANTRY_INT(guest.memory_mib, 0, kMibMax),
     "device memory of each program, MiB; 0: the device's"},

    {"vm", "libvirt_uri", GANTRY_STRING(vm.libvirt_uri), "empty: no libvirt on this host"},
    {"vm", "region_directory", GANTRY_PATH(vm.region_directory, kNothing),
     "where QEMU keeps the files of ivshmem devices"},
    {"vm", "poll_ms", GANTRY_INT(vm.poll_ms, 1, 1000),
     "how often a VM's region is looked at for new programs while one runs; else every 100 ms"},
    {"vm", "destroy_split_brain", GANTRY_BOOL(vm.destroy_split_brain),
     "destroy the source's VM when it runs although its session was granted away"},

    {"worker", "executable", GANTRY_PATH(worker.executable, kNothing), "the gantry-worker program"},
    {"worker", "driver", GANTRY_PATH(worker.driver, kName),
     "CUDA driver library: libcuda.so.1, or libcuda-soft.so.1 for the CPU"},
    {"worker", "profile", GANTRY_PATH(worker.profile, kEmptyOrName),
     "soft GPU only: profile file, or the name of a built-in one; empty: its default"},
    {"worker", "devices", IntListPlace([](Config& c) { return &c.worker.devices; }),
     "numbers of the GPUs that are served, as the driver counts them; empty: all of them"},
    {"worker", "device", GANTRY_INT(worker.only_device, -1, 255),
     "number of the one GPU that is served, in place of devices; -1: as devices says"},
    {"worker", "user", GANTRY_STRING(worker.user),
     "unprivileged user that workers run as; empty: gantryd's own"},
    {"worker", "seccomp", GANTRY_BOOL(worker.seccomp), "let workers filter their system calls"},
    {"worker", "private_tmp", GANTRY_BOOL(worker.private_tmp),
     "give workers an empty /tmp of their own (needs root)"},
    {"worker", "private_network", GANTRY_BOOL(worker.private_network),
     "give workers network and IPC namespaces of their own, with nothing in them (needs root)"},
    {"worker", "pageable_access", GANTRY_BOOL(worker.pageable_access),
     "serve also a GPU whose kernels reach all memory of a worker (HMM, ATS): one tenant only"},
    {"worker", "fixed_addresses", GANTRY_BOOL(worker.fixed_addresses),
     "start workers without address randomisation, for module globals at equal addresses"},
    {"worker", "files_max", GANTRY_INT(worker.files_max, 64, 1 << 20), "open files of a worker"},
    {"worker", "memory_limit_mib", GANTRY_INT(worker.memory_limit_mib, 0, kMibMax),
     "data segment of a worker, MiB; 0: no limit"},
    {"worker", "start_timeout_s", GANTRY_INT(worker.start_timeout_s, 1, 3600),
     "how long a worker may take to make its context"},
    {"worker", "spares", GANTRY_INT(worker.spares, 0, 64),
     "workers that make their context before a program asks; each takes the device memory of one"},
    {"worker", "await_restore", GANTRY_BOOL(worker.await_restore),
     "while a session is suspended, keep a worker ready whose context is made, for its restore"},
    {"worker", "batch_launches", GANTRY_BOOL(worker.batch_launches),
     "hand launches that repeat to the driver as graphs, many together where a program is ahead"},
    {"worker", "arbitrate", GANTRY_BOOL(worker.arbitrate),
     "where sessions share a GPU and one has a share of its own: by priority and weight"},
    {"worker", "fill_gaps", GANTRY_BOOL(worker.fill_gaps),
     "with arbitrate: let what fits into the pauses of a program of higher priority run there"},
    {"worker", "fill_margin_us", GANTRY_INT(worker.fill_margin_us, 0, 10000),
     "what of such a pause is left free: to change from one process to another and back"},
    {"worker", "account", GANTRY_BOOL(worker.account),
     "count launches by kernel and measure some of them, for `gantry account` and metrics"},
    {"worker", "profile_level", GANTRY_INT(worker.profile_level, 0, 2),
     "level at which programs begin, for `gantry profile`: 0 nothing, 1 totals of operations, 2 "
     "also when each was; not 0 does what worker.account does, too"},

    {"placement", "policy",
     (ChoicePlace{GANTRY_PLACE(placement.policy), "free_memory|first|spread"}),
     "which GPU a session begins on, of those that have room: free_memory, the one with the most "
     "memory that is not promised; first, the lowest number; spread, the fewest sessions"},

    {"peer", "listen", GANTRY_ADDRESS(peer.listen),
     "ADDRESS:PORT for other gantryds (mutual TLS); empty: no migration to or from this host"},
    {"peer", "advertise", GANTRY_ADDRESS(peer.advertise),
     "ADDRESS:PORT that other hosts reach it by; empty: as listen"},
    {"peer", "authority", GANTRY_PATH(peer.authority, kEmpty),
     "PEM: who signs the hosts' certificates"},
    {"peer", "certificate", GANTRY_PATH(peer.certificate, kEmpty), "PEM: this host's certificate"},
    {"peer", "key", GANTRY_PATH(peer.key, kEmpty), "PEM: this host's private key"},
    {"peer", "allow", NameListPlace([](Config& c) { return &c.peer.allow; }),
     "certificates of other hosts that may call: subject alternative names or common names; empty: "
     "every certificate of the authority"},
    {"peer", "streams", GANTRY_INT(peer.streams, 1, 64), "parallel bulk streams of a move"},

    {"migration", "downtime_target_ms", GANTRY_INT(migration.downtime_target_ms, 1, 600000),
     "precopy has converged when the pause is expected to be no longer"},
    {"migration", "downtime_max_ms", GANTRY_INT(migration.downtime_max_ms, 0, 3'600'000),
     "a move away is refused while the VM runs when its pause would be longer; 0: never"},
    {"migration", "rounds_max", GANTRY_INT(migration.rounds_max, 1, 1000),
     "rounds of precopy after which a pause within downtime_max_ms will do"},
    {"migration", "hook_wait_s", GANTRY_INT(migration.hook_wait_s, 0, 3600),
     "seconds of precopy after which a pause within downtime_max_ms will do"},
    {"migration", "hook_hold_s", GANTRY_INT(migration.hook_hold_s, 0, 3600),
     "how long the migrate-begin hook waits for such a pause before it refuses; below "
     "GANTRY_HOOK_ADMIT_S"},
    {"migration", "reservation_s", GANTRY_INT(migration.reservation_s, 1, 86400),
     "how long a reservation outlives the source's silence"},
    {"migration", "arrival_s", GANTRY_INT(migration.arrival_s, 1, 86400),
     "how long an admitted VM may take to arrive"},
    {"migration", "may_abort_job", GANTRY_BOOL(migration.may_abort_job),
     "abort libvirt's migration job when the target's gantryd stays away"},
    {"migration", "compression", (ChoicePlace{GANTRY_PLACE(migration.compression), "auto|on|off"}),
     "auto: LZ4 when the link is slower than the codec"},
    {"migration", "bandwidth_mib_s", GANTRY_INT(migration.bandwidth_mib_s, 0, 1 << 20),
     "bound of precopy, MiB/s; 0: none"},

    {"metrics", "listen", GANTRY_ADDRESS(metrics.listen),
     "ADDRESS:PORT of the Prometheus endpoint, for example 127.0.0.1:9464; empty: none"},
};

}  // namespace

std::span<const ConfigKey> config_keys() { return kKeys; }

}  // namespace gantry::supervisor

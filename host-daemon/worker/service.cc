#include "host-daemon/worker/service.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/personality.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "host-daemon/execution/base/log.h"
#include "host-daemon/state/blocks/block_runs.h"
#include "host-daemon/state/files/file_pieces.h"
#include "host-daemon/worker/sandbox.h"
#include "proto/base/hex.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::worker {
namespace {

constexpr int kPollMs = 200;
/// While the guest's first command is awaited after an activation: gantryd stamps its event.
constexpr int kFirstPollMs = 5;
constexpr std::chrono::seconds kFirstPolls{5};
constexpr std::chrono::seconds kComeMax{60};

/// Address randomisation is off: the driver then gives the variables of modules the same addresses
/// again when they are loaded in the same order; a target checks each before the pause. Asked when
/// the process begins, since the sandbox forbids the question.
const bool kAddressesRepeat = (personality(0xffffffff) & ADDR_NO_RANDOMIZE) != 0;

/// GANTRY_FINGERPRINTS: auto (or not set), cpu, gpu; see fingerprint_by.h.
Result<state::FingerprintBy> fingerprints_by() {
    const char* value = std::getenv("GANTRY_FINGERPRINTS");
    const std::string_view text = value == nullptr ? "auto" : value;
    if (text == "auto") {
        return state::FingerprintBy::kAuto;
    }
    if (text == "cpu") {
        return state::FingerprintBy::kCpu;
    }
    if (text == "gpu") {
        return state::FingerprintBy::kGpu;
    }
    return Error{Code::kInvalidArgument, "worker.settings",
                 fmt::format("GANTRY_FINGERPRINTS is '{}'; it can be auto, cpu or gpu", text)};
}

}  // namespace

Error wrong_state(const char* what) {
    return Error{Code::kFailedPrecondition, "worker.state", what};
}

Service::Service(control::PacketListener listener, ServiceOptions options)
    : listener_(std::move(listener)), options_(options) {}

Service::~Service() {
    if (process_ != nullptr && execution_->has_carried_work()) {
        // Ending the callbacks would let the streams run on, into memory that is another's now.
        log_line("ends with work in its streams that another worker does");
        std::_Exit(0);
    }
    part_.reset();
    process_ = nullptr;
    execution_.reset();
    window_.reset();
    fingerprints_.reset();
    device_.reset();
    while (!arenas_.empty()) {
        (void)detach_arena(arenas_.begin()->first);
    }
}

int Service::run() {
    const auto begun = std::chrono::steady_clock::now();
    while (!done_) {
        if (process_ == nullptr && !connection_.valid() &&
            std::chrono::steady_clock::now() - begun > kComeMax) {
            break;  // Whoever made this worker has ended before it came.
        }
        pollfd waiting[3] = {{listener_.fd(), POLLIN, 0},
                             {connection_.valid() ? connection_.fd() : -1, POLLIN, 0},
                             {guest_socket_.valid() ? guest_socket_.get() : -1, POLLIN, 0}};
        const int ready = poll(waiting, 3, poll_ms());
        flush_events();
        if (ready <= 0) {
            continue;
        }
        if (waiting[0].revents != 0) {
            if (auto accepted = listener_.accept(std::chrono::milliseconds(0)); accepted.ok()) {
                connection_ = std::move(accepted).value();  // A new connection replaces the old.
                end_connections_work();
                continue;
            }
        }
        if (waiting[1].revents != 0 && !answer_one()) {
            connection_.close();
            end_connections_work();
            if (process_ != nullptr && execution_->serving()) {
                window_.reset();
            }
            if (process_ == nullptr) {
                done_ = true;  // Nobody has written it down.
            }
        }
        if (waiting[2].revents != 0) {
            check_guest();
        }
        // Nobody else would end this worker.
        const bool holds_others_memory =
            restoring_ && (part_->content.memory.arena_is_shared() || window_ != nullptr);
        const bool is_left_alone = guest_gone_ || holds_others_memory;
        if (is_left_alone && !connection_.valid()) {
            done_ = true;
        }
    }
    return 0;
}

/// Whoever had a file prepared for a snapshot does not come for it any more.
void Service::end_connections_work() {
    if (part_ != nullptr) {
        part_->source.drop_prepared_file();
    }
}

/// A guest process sends nothing on its socket after the attachment: readable means its end.
void Service::check_guest() {
    char byte = 0;
    const ssize_t got = recv(guest_socket_.get(), &byte, 1, MSG_DONTWAIT);
    if (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR))) {
        return;
    }
    guest_socket_.reset();
    log_line("the guest process has ended%s", goodbye_.load() ? "" : " without a goodbye");
    if (process_ != nullptr) {
        execution_->abandon();
    }
    control::Event event;
    event.mutable_guest_gone()->set_orderly(goodbye_.load());
    send_event(event);
    guest_gone_ = true;
}

void Service::send_event(const control::Event& event) {
    if (!connection_.valid()) {
        return;
    }
    control::FromWorker message;
    *message.mutable_event() = event;
    (void)connection_.send_message(message);
}

int Service::poll_ms() const {
    return std::chrono::steady_clock::now() < first_awaited_until_ ? kFirstPollMs : kPollMs;
}

void Service::flush_events() {
    if (first_command_.exchange(0) != 0) {
        first_awaited_until_ = {};
        control::Event event;
        event.mutable_first_request();
        send_event(event);
    }
}

bool Service::answer_one() {
    control::ToWorker request;
    auto received = connection_.receive_message(request, std::chrono::milliseconds(1000));
    if (!received.ok()) {
        return received.error().code == Code::kDeadlineExceeded;
    }
    Descriptors in = std::move(received).value();
    if (request.descriptor_count() != in.size() || request.request_id() == 0) {
        log_line("gantryd's packet announces %u descriptors and has %zu; connection closed",
                 request.descriptor_count(), in.size());
        return false;
    }
    control::FromWorker reply;
    Descriptors out;
    const Result<void> done = handle(request, in, &reply, &out);
    reply.set_request_id(request.request_id());
    control::WorkerStatus* status = reply.mutable_status();
    if (!done.ok()) {
        reply.clear_body();
        out.clear();
        status->set_code(static_cast<std::uint32_t>(done.error().code));
        status->set_reason(done.error().reason);
        status->set_text(done.error().text);
        log_line("refused a request: %s", done.error().to_string().c_str());
    }
    reply.set_descriptor_count(static_cast<std::uint32_t>(out.size()));
    std::vector<int> raw;
    for (const control::UniqueFd& fd : out) {
        raw.push_back(fd.get());
    }
    return connection_.send_message(reply, raw).ok();
}

namespace {

/// All but what a worker does for a guest that may not have a context yet.
bool concerns_memory(control::ToWorker::RequestCase kind) {
    using Kind = control::ToWorker::RequestCase;
    switch (kind) {
        case Kind::kWarm:
        case Kind::kStart:
        case Kind::kServe:
        case Kind::kStatus:
        case Kind::kDescribe:
        case Kind::kGetAccount:
        case Kind::kSetProfile:
        case Kind::kGetProfile:
        case Kind::kJoinArbiter:
        case Kind::kAnnounce:
        case Kind::kShutdown:
        case Kind::kShare:
        case Kind::kAttachArena:
        case Kind::kDetachArena: return false;
        default: return true;
    }
}

}  // namespace

Result<void> Service::handle(const control::ToWorker& request, Descriptors& in,
                             control::FromWorker* reply, Descriptors* out) {
    using Kind = control::ToWorker::RequestCase;
    const Kind kind = request.request_case();
    if (kind != Kind::kStart && kind != Kind::kWarm && kind != Kind::kStatus &&
        kind != Kind::kShutdown && process_ == nullptr) {
        return wrong_state("Start comes first");
    }
    if (process_ != nullptr && !device_->has_context() && concerns_memory(kind)) {
        GANTRY_TRY(device_->make_context());  // Nothing of a move goes without.
    }
    switch (kind) {
        case Kind::kWarm: return warm(request.warm());
        case Kind::kStart: return start(request.start(), in, reply);
        case Kind::kServe: return serve(request.serve().guest(), in);
        case Kind::kStatus: status(reply); return {};
        case Kind::kDescribe: return describe(reply, out);
        case Kind::kGetAccount: return account(reply, out);
        case Kind::kSetProfile:
            process_->channel.profile.set_level(request.set_profile().level());
            return {};
        case Kind::kGetProfile: return profile(reply, out);
        case Kind::kJoinArbiter: {
            if (in.size() != 3) {
                return Error{Code::kInvalidArgument, "worker.protocol",
                             "the arbiter's descriptors are missing"};
            }
            GANTRY_ASSIGN(auto seat, ShareSeat::join(request.join_arbiter().slot(), in[0], in[1],
                                                     std::move(in[2])));
            process_->launch_gate.join(std::move(seat));
            return {};
        }
        case Kind::kAnnounce:
            if (ChannelMemory* channel = process_->channel.memory(); channel != nullptr) {
                execution_->announce(request.announce().migrating());
                announced_ = request.announce().migrating();
            }
            return {};
        case Kind::kShutdown: done_ = true; return {};
        case Kind::kShare:
            if (in.size() != 1) {
                return Error{Code::kInvalidArgument, "worker.protocol",
                             "the broker's connection is missing"};
            }
            process_->shares.link.connect(std::move(in[0]));
            return {};
        case Kind::kAttachArena: return attach_arena(request.attach_arena(), in);
        case Kind::kDetachArena: return detach_arena(request.detach_arena().arena_id());
        case Kind::kBeginPrecopy:
            part_->source.begin_precopy(
                {request.begin_precopy().seed().low(), request.begin_precopy().seed().high()},
                request.begin_precopy().arena_is_shared());
            return {};
        case Kind::kScan: return scan(request.scan(), reply, out);
        case Kind::kReadBlocks: return read_blocks(request.read_blocks(), reply);
        case Kind::kMarkUnsent: {
            GANTRY_ASSIGN(const auto blocks, state::expand_runs(request.mark_unsent().runs()));
            part_->source.mark_unsent(blocks);
            return {};
        }
        case Kind::kGetGraph: {
            GANTRY_ASSIGN(const std::string graph, part_->source.graph());
            GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(graph));
            reply->mutable_graph()->set_bytes(graph.size());
            out->push_back(std::move(blob));
            return {};
        }
        case Kind::kGetImages: return get_images(request.get_images(), reply, out);
        case Kind::kFreeze: return freeze(request.freeze(), reply);
        case Kind::kFinalPart: return final_part(reply, out);
        case Kind::kThaw:
            if (fenced_) {
                return wrong_state("the session was granted away; it cannot be thawed");
            }
            frozen_.reset();
            part_->content.end_files();
            execution_->thaw();
            return {};
        case Kind::kFence: return fence(request.fence().guest_is_here());
        case Kind::kUnfence: return unfence(request.unfence().epoch());
        case Kind::kEndPrecopy: part_->source.end_precopy(); return {};
        case Kind::kRelease: return release(request.release(), reply, out);
        case Kind::kExportMemory: return export_memory(request.export_memory(), reply, out);
        case Kind::kImportMemory: return import_memory(request.import_memory(), in);
        case Kind::kPullBlocks: return pull_blocks(request.pull_blocks(), in, reply, out);
        case Kind::kNoteSent: return note_sent(request.note_sent(), in);
        case Kind::kPrepareFile: return prepare_file(request.prepare_file(), in);
        case Kind::kAskPreparedFile: ask_prepared_file(reply); return {};
        case Kind::kDropPreparedFile: part_->source.drop_prepared_file(); return {};
        case Kind::kStoreBlocks: return store_blocks(request.store_blocks(), in, reply, out);
        case Kind::kLoadBlocks: return load_blocks(request.load_blocks(), in, reply, out);
        case Kind::kCloseWindow: window_.reset(); return {};
        case Kind::kCheckGraph: return check_graph(request.check_graph().graph_bytes(), in, reply);
        case Kind::kPrepare: return prepare(request.prepare(), in, reply);
        case Kind::kApplyBlocks: return apply_blocks(request.apply_blocks());
        case Kind::kApplyFinal: return apply_final(request.apply_final(), in);
        case Kind::kGetDigest: return get_digest(request.get_digest(), reply, out);
        case Kind::kMarkComplete:
            if (!part_->target.channel_state()) {
                return wrong_state("there is no complete state to mark");
            }
            complete_ = request.mark_complete().token();
            return {};
        case Kind::kAttachGuest: return attach_guest(request.attach_guest().guest(), in);
        case Kind::kActivate: return activate(request.activate(), in);
        default:
            return Error{Code::kUnimplemented, "worker.request",
                         "this worker does not know the request; update Gantry on this host"};
    }
}

Result<void> Service::check_version(std::uint32_t version) {
    if (version == control::kWorkerProtocolVersion) {
        return {};
    }
    return Error{Code::kFailedPrecondition, "worker.version",
                 fmt::format("gantryd speaks worker protocol {}, this worker {}; install the same "
                             "Gantry version",
                             version, control::kWorkerProtocolVersion)};
}

Result<void> Service::warm(const control::Warm& warm) {
    if (library_ != nullptr) {
        return wrong_state("this worker has its device already");
    }
    GANTRY_TRY(check_version(warm.protocol_version()));
    GANTRY_TRY(open_device(warm.device()));
    if (!device_->is_host_addressable()) {  // It may be for a restore.
        slot_pages_ = state::CopySlots::make_pages(state::FilePlan::kLoadChunkBytes);
    }
    return {};
}

/// Whether asked for by Warm or by Start, the driver is called for the same things in the same
/// order: variables of modules must come to lie where they lay in another worker.
Result<void> Service::open_device(const control::DeviceChoice& device) {
    if (!device.driver_profile().empty()) {
        setenv("GANTRY_SOFT_PROFILE", device.driver_profile().c_str(), 1);
    }
    GANTRY_ASSIGN(library_, driver::DriverLibrary::load(device.driver_library()));
    GANTRY_ASSIGN(device_, Device::open(*library_, static_cast<int>(device.device_ordinal()),
                                        device.pageable_access() ? PageableAccess::kAllowed
                                                                 : PageableAccess::kRefused));
    GANTRY_ASSIGN(const state::FingerprintBy by, fingerprints_by());
    if (!device_->has_context()) {
        log_line("the GPU has no room for a context: the program's first one tries again");
    } else if (auto fingerprints = state::make_gpu_fingerprints(*device_, by)) {
        fingerprints_ =
            std::move(*fingerprints);  // Else Part tries again, and says what is the matter.
    }
    opened_ = device;
    return {};
}

Result<void> Service::start(const control::Start& start, const Descriptors& in,
                            control::FromWorker* reply) {
    if (process_ != nullptr) {
        return wrong_state("this worker was started already");
    }
    GANTRY_TRY(check_version(start.protocol_version()));
    if (device_ == nullptr) {
        GANTRY_TRY(open_device(start.device()));
    } else if (start.device().SerializeAsString() != opened_.SerializeAsString()) {
        return wrong_state("this worker was warmed for another device");
    } else {
        // It may have waited for long: a card can lose all contexts, and go on with new ones.
        device_->bind_thread();
        if (const CUresult state = device_->api().cuStreamQuery(nullptr);
            driver::is_sticky(state)) {
            return driver::to_error(device_->api(), state, "worker.context",
                                    "the context that was made ahead");
        }
    }
    if (options_.capture_output) {
        GANTRY_ASSIGN(const int log_fd, output_.redirect());
        set_log_descriptor(log_fd);
    }
    output_.attach(device_->extension());
    ProcessOptions process_options;
    process_options.spin_us = options_.spin_us;
    process_options.batches_launches = !start.single_launches();
    process_options.accounts_launches = start.account_launches();
    DeviceBaseline& baseline = process_options.baseline;
    baseline.memory_bytes = start.limits().device_memory_bytes();
    baseline.device_name = start.baseline().device_name();
    if (start.baseline().compute_capability_major() != 0) {
        baseline.compute_capability_major = start.baseline().compute_capability_major();
        baseline.compute_capability_minor = start.baseline().compute_capability_minor();
    }
    for (const auto& [number, value] : start.baseline().attributes()) {
        baseline.attributes[number] = value;
    }
    if (const std::string& uuid = start.baseline().uuid(); uuid.size() == sizeof(DeviceUuid)) {
        std::memcpy(baseline.uuid.emplace().data(), uuid.data(), uuid.size());
    }
    process_options.limits.device_memory_bytes = start.limits().device_memory_bytes();
    if (start.limits().image_bytes() != 0) {
        process_options.limits.image_bytes = start.limits().image_bytes();
    }
    if (start.limits().object_count() != 0) {
        process_options.limits.object_count = start.limits().object_count();
    }
    GANTRY_ASSIGN(const gantry::wire::DeviceFacts facts, device_->facts(baseline));
    execution_ = std::make_unique<Execution>(*device_, output_, process_options);
    process_ = &execution_->process();
    if (start.limits().shares_device_memory()) {
        if (in.empty()) {
            return Error{Code::kInvalidArgument, "worker.protocol", "the memory page is missing"};
        }
        GANTRY_TRY(process_->memory.device.share().join(in[0].get(), start.limits().memory_slot(),
                                                        process_->memory.device.quota_bytes()));
    }
    process_->facts = facts;
    if (start.profile_level() != 0) {
        process_->channel.profile.set_level(start.profile_level());
    }
    process_->channel.on_goodbye = [this] { goodbye_.store(true); };
    execution_->on_first_command = [this](std::uint64_t position) {
        first_command_.store(position + 1);
    };
    execution_->on_breach = [this](const std::string& reason) {
        const MutexLock lock(failure_mutex_);
        failure_ = Error{Code::kInvalidArgument, "guest.ring", reason};
    };
    GANTRY_ASSIGN(const state::FingerprintBy by, fingerprints_by());
    part_ = std::make_unique<state::Part>(*execution_, start.part_id(), by,
                                          std::move(fingerprints_), std::move(slot_pages_));
    started_ = start;
    GANTRY_TRY(lock_down(start.sandbox().seccomp()));
    control::StartReply* body = reply->mutable_start();
    body->set_protocol_version(control::kWorkerProtocolVersion);
    body->set_gantry_version(start.gantry_version());
    describe_device(body->mutable_device());
    body->set_pid(static_cast<std::uint32_t>(getpid()));
    body->set_table_hash(cuda::kTableHash);
    return {};
}

void Service::describe_device(control::DeviceDescription* out) const {
    const gantry::wire::DeviceFacts& facts = process_->facts;
    device_->bind_thread();
    out->set_name(facts.name);
    const DeviceUuid uuid = device_->uuid();
    out->set_uuid(to_hex(std::as_bytes(std::span(uuid))));
    auto attribute = [&facts](CUdevice_attribute number) {
        return static_cast<std::uint32_t>(facts.attributes[number]);
    };
    out->set_compute_capability_major(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
    out->set_compute_capability_minor(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
    out->set_memory_bytes(device_->memory_bytes());
    out->set_memory_free_bytes(device_->memory_free_bytes().value_or(0));
    out->set_driver_version(static_cast<std::uint32_t>(library_->version()));
    for (std::uint32_t i = 0; i < gantry::wire::kMaxDeviceAttributes; ++i) {
        if (facts.attribute_status[i] == CUDA_SUCCESS) {
            (*out->mutable_attributes())[i] = facts.attributes[i];
        }
    }
    out->set_takes_any_profile(device_->takes_any_profile());
    out->set_soft_only(is_soft_only(facts));
    out->set_can_place_globals(device_->can_place() || kAddressesRepeat);
    out->set_profile_name(opened_.driver_profile());
    out->set_snapshot_version_min(1);
    out->set_snapshot_version_max(state::kGraphVersion);
    out->set_table_hash(cuda::kTableHash);
}

Result<std::unique_ptr<ChannelMemory>> Service::map_channel(const control::GuestAttachment& guest,
                                                            Descriptors& in) {
    const bool is_memfd = guest.kind() == control::GuestAttachment::KIND_MEMFD;
    if (!is_memfd && guest.kind() != control::GuestAttachment::KIND_FILE) {
        return Error{Code::kUnimplemented, "worker.transport",
                     "this worker serves regions (memfd or file) only"};
    }
    if (in.size() != (is_memfd ? 2u : 1u)) {
        return Error{Code::kInvalidArgument, "worker.protocol",
                     fmt::format("{} descriptors for a guest", in.size())};
    }
    ChannelMemory::Where where;
    where.region_bytes = guest.region_bytes();
    where.channel_count = guest.channel_count() != 0 ? guest.channel_count() : 1;
    where.channel_index = guest.channel_index();
    where.sleep = is_memfd ? gantry::wire::Sleep::kFutex : gantry::wire::Sleep::kPoll;
    GANTRY_ASSIGN(auto memory, ChannelMemory::map(std::move(in[0]), where));
    if (is_memfd) {
        guest_socket_ = std::move(in[1]);
    }
    guest_ = guest;
    return memory;
}

Result<void> Service::serve(const control::GuestAttachment& guest, Descriptors& in) {
    if (execution_->serving() || restoring_) {
        return wrong_state("this worker has a guest already");
    }
    if (guest.table_hash() != 0 && guest.table_hash() != cuda::kTableHash) {
        return Error{Code::kFailedPrecondition, "shim.version",
                     fmt::format("the guest's libcuda.so.1 was built from API table {:016x}, this "
                                 "worker from {:016x}; install the same Gantry version on both "
                                 "sides",
                                 guest.table_hash(), cuda::kTableHash)};
    }
    GANTRY_ASSIGN(auto memory, map_channel(guest, in));
    std::uint64_t generation = guest.generation();
    if (generation == 0) {
        generation = memory->guest_directory().claims[memory->where().channel_index].generation;
    }
    if (generation == 0) {
        generation = 1;  // The first claim of a fresh region, made after the region is handed out.
    }
    if (generation > gantry::wire::kMaxGeneration) {
        return Error{Code::kInvalidArgument, "region.generation", "a generation beyond its bits"};
    }
    part_->content.end_files();  // A spare one's, which is for no restore.
    return execution_->serve(std::move(memory), generation);
}

/// The region is mapped once; what is page-locked follows the last graph each time.
Result<void> Service::attach(const control::GuestAttachment& guest, Descriptors& in) {
    if (attached_ == nullptr) {
        GANTRY_ASSIGN(attached_, map_channel(guest, in));
        process_->memory.device.set_pinned_pool(attached_->layout().pinned_bytes);
    }
    return part_->target.register_pinned();
}

Result<void> Service::attach_guest(const control::GuestAttachment& guest, Descriptors& in) {
    if (execution_->serving() || !restoring_) {
        return wrong_state("a worker attaches between Prepare and Activate");
    }
    return attach(guest, in);
}

Result<void> Service::activate(const control::Activate& activate, Descriptors& in) {
    if (execution_->serving()) {
        return activate.epoch() == epoch_ ? Result<void>{}
                                          : wrong_state("this worker serves another epoch");
    }
    if (!part_->target.channel_state()) {
        return wrong_state("there is no restored state to activate");
    }
    GANTRY_TRY(attach(activate.guest(), in));
    if (activate.stay_back()) {
        return {};
    }
    epoch_ = activate.epoch();
    process_->memory.device.share().set_counting(true);
    part_->content.end_files();
    process_->code.settle_variables();
    GANTRY_TRY(execution_->take_over(std::move(attached_), *part_->target.channel_state(), epoch_));
    part_->source.end_precopy();
    restoring_ = false;
    first_awaited_until_ = std::chrono::steady_clock::now() + kFirstPolls;
    return {};
}

Result<void> Service::account(control::FromWorker* reply, Descriptors* out) {
    control::Account account;
    for (const LaunchAccount::Kernel& kernel : process_->account.list()) {
        control::KernelAccount& one = *account.add_kernels();
        if (kernel.image != Sha256{}) {
            one.set_image_sha256(to_hex(kernel.image));
        }
        one.set_entry(kernel.entry);
        one.mutable_grid()->Add(kernel.shape.grid.begin(), kernel.shape.grid.end());
        one.mutable_block()->Add(kernel.shape.block.begin(), kernel.shape.block.end());
        one.set_shared_bytes(kernel.shape.shared_bytes);
        one.set_launches(kernel.launches);
        one.set_samples(kernel.samples);
        one.set_gpu_us(kernel.gpu_us());
    }
    const std::string bytes = account.SerializeAsString();
    GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(bytes));
    reply->mutable_account()->set_bytes(bytes.size());
    out->push_back(std::move(blob));
    return {};
}

namespace {

void put_operation(const gantry::wire::ProfileRow& row, const gantry::wire::ProfileCall& newest,
                   control::Operation* out) {
    using gantry::wire::Part;
    const auto part = [&](Part which) { return row.part_ns[static_cast<std::size_t>(which)]; };
    out->set_id(row.row + 1);
    out->set_parent(row.parent + 1);  // kNoProfileRow + 1 is 0
    out->set_thread(row.thread);
    out->set_name(row.name);
    out->set_count(row.count);
    out->set_wall_ns(row.wall_ns);
    out->set_guest_ns(part(Part::kGuest));
    out->set_shim_ns(part(Part::kShim));
    out->set_transport_ns(part(Part::kTransport));
    out->set_scheduler_ns(part(Part::kScheduler));
    out->set_gpu_ns(part(Part::kGpu));
    out->set_overlapped_ns(part(Part::kOverlapped));
    out->set_pause_ns(part(Part::kPause));
    out->set_pauses(row.pauses);
    const double own_ps = static_cast<double>(row.stamps) * newest.stamp_ps +
                          static_cast<double>(row.count) * newest.range_ps;
    out->set_own_ns(static_cast<std::uint64_t>(
        std::min(own_ps / 1000, static_cast<double>(row.wall_ns - part(Part::kPause)))));
}

}  // namespace

Result<void> Service::profile(control::FromWorker* reply, Descriptors* out) {
    const ProfileBoard& board = process_->channel.profile;
    const ProfileBoard::Kept kept = board.kept();
    control::Profile profile;
    profile.set_level(gantry::wire::profile_level(board.word()));
    for (const gantry::wire::ProfileRow& row : kept.rows) {
        put_operation(row, kept.newest, profile.add_operations());
    }
    for (const gantry::wire::ProfileRange& range : kept.ranges) {
        control::OperationRange& one = *profile.add_ranges();
        one.set_operation(range.row + 1);
        one.set_begin_ns(range.begin_ns);
        one.set_end_ns(range.end_ns);
        one.set_is_pause(range.part == static_cast<std::uint32_t>(gantry::wire::Part::kPause));
    }
    profile.set_operations_lost(kept.newest.rows_lost);
    profile.set_unmatched(kept.newest.unmatched);
    profile.set_refused(kept.refused);
    profile.set_ranges_lost(kept.ranges_lost);
    profile.set_stamp_ns(kept.newest.stamp_ps / 1000.0);
    profile.set_range_ns(kept.newest.range_ps / 1000.0);
    profile.set_knows_overlap(process_->account.is_on());
    const std::string bytes = profile.SerializeAsString();
    GANTRY_ASSIGN(control::UniqueFd blob, control::make_blob(bytes));
    reply->mutable_profile()->set_bytes(bytes.size());
    out->push_back(std::move(blob));
    return {};
}

control::WorkerState Service::state() const {
    if (fenced_) {
        return control::WORKER_STATE_FENCED;
    }
    if (failure_) {
        return control::WORKER_STATE_FAILED;
    }
    if (process_ != nullptr && execution_->frozen()) {
        return control::WORKER_STATE_FROZEN;
    }
    if (process_ != nullptr && execution_->serving()) {
        return control::WORKER_STATE_SERVING;
    }
    return restoring_ ? control::WORKER_STATE_RESTORING : control::WORKER_STATE_STARTED;
}

void Service::status(control::FromWorker* reply) {
    control::StatusReply* body = reply->mutable_status_reply();
    const MutexLock lock(failure_mutex_);
    body->set_state(state());
    body->set_protocol_version(control::kWorkerProtocolVersion);
    body->set_session_id(started_.session_id());
    body->set_part_id(started_.part_id());
    body->set_epoch(epoch_);
    if (failure_) {
        body->mutable_failure()->set_code(static_cast<std::uint32_t>(failure_->code));
        body->mutable_failure()->set_reason(failure_->reason);
        body->mutable_failure()->set_text(failure_->text);
    }
    if (frozen_) {
        *body->mutable_frozen() = *frozen_;
    }
    if (complete_) {
        *body->mutable_complete() = *complete_;
    }
    *body->mutable_limits() = started_.limits();
    body->set_announced(announced_);
    if (process_ == nullptr) {
        return;
    }
    *body->mutable_guest() = guest_;
    describe_device(body->mutable_device());
    const GuestProgram program = process_->channel.program();
    body->set_process_name(program.name);
    body->set_guest_pid(program.pid);
    control::Statistics* statistics = body->mutable_statistics();
    statistics->set_commands_executed(execution_->loop().executed_count());
    statistics->set_kernel_launches(process_->launches.counters.launches.load());
    statistics->set_batched_launches(process_->launches.counters.batched_launches.load());
    statistics->set_prepared_launches(process_->launches.counters.prepared_launches.load());
    statistics->set_device_memory_bytes(process_->memory.device.mapped_bytes());
    std::uint64_t pinned = 0;
    for (const PinnedRange& range : process_->memory.device.pinned_ranges()) {
        pinned += range.bytes;
    }
    statistics->set_pinned_memory_bytes(pinned);
    statistics->set_object_count(process_->objects.size());
    statistics->set_refused_commands(process_->counters.refused.load());
}

}  // namespace gantry::worker

#include "tests/fuzz/worker_packets.h"

#include <fcntl.h>
#include <google/protobuf/message.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "host-daemon/supervisor/registry/registry.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"
#include "tests/unit/supervisor/one_vm.h"
#include "tests/unit/supervisor/stand.h"

namespace gantry::supervisor {
namespace {

namespace pb = google::protobuf;

constexpr const char* kSession = "5f3b7a60-0000-4000-8000-000000000002";
constexpr engine::PartId kPart = part_of({0, 1});
constexpr std::uint64_t kRegionBytes = 64 << 20;

/// What the input says, one byte after the other; 0 when it is used up.
class Choices {
public:
    explicit Choices(std::span<const std::uint8_t> input) : input_(input) {}
    [[nodiscard]] bool is_used_up() const { return at_ >= input_.size(); }
    std::uint8_t byte() { return is_used_up() ? 0 : input_[at_++]; }
    bool one_in(unsigned count) { return byte() % count == 0; }
    /// Small ones, those at borders, and any.
    std::uint64_t number() {
        const std::uint8_t kind = byte();
        if (kind < 128) {
            return kind % 16;
        }
        if (kind < 192) {
            const std::uint64_t power = 1ULL << (kind % 64);
            return power + byte() % 3 - 1;
        }
        std::uint64_t out = 0;
        for (int i = 0; i < 8; ++i) {
            out = out << 8 | byte();
        }
        return out;
    }
    std::string text() {
        std::string out(byte() % 40, '\0');
        for (char& c : out) {
            c = static_cast<char>(byte());
        }
        return out;
    }

private:
    std::span<const std::uint8_t> input_;
    std::size_t at_ = 0;
};

void fill(pb::Message& message, Choices& choices, int depth);

void fill_one(pb::Message& message, const pb::FieldDescriptor& field, Choices& choices, int depth) {
    const pb::Reflection& to = *message.GetReflection();
    const bool many = field.is_repeated();
    const std::uint64_t number = choices.number();
#define GANTRY_PUT(Kind, value) \
    (many ? to.Add##Kind(&message, &field, value) : to.Set##Kind(&message, &field, value))
    switch (field.cpp_type()) {
        case pb::FieldDescriptor::CPPTYPE_INT32:
            GANTRY_PUT(Int32, static_cast<std::int32_t>(number));
            break;
        case pb::FieldDescriptor::CPPTYPE_INT64:
            GANTRY_PUT(Int64, static_cast<std::int64_t>(number));
            break;
        case pb::FieldDescriptor::CPPTYPE_UINT32:
            GANTRY_PUT(UInt32, static_cast<std::uint32_t>(number));
            break;
        case pb::FieldDescriptor::CPPTYPE_UINT64: GANTRY_PUT(UInt64, number); break;
        case pb::FieldDescriptor::CPPTYPE_DOUBLE:
            GANTRY_PUT(Double, static_cast<double>(number));
            break;
        case pb::FieldDescriptor::CPPTYPE_FLOAT:
            GANTRY_PUT(Float, static_cast<float>(number));
            break;
        case pb::FieldDescriptor::CPPTYPE_BOOL: GANTRY_PUT(Bool, number % 2 != 0); break;
        case pb::FieldDescriptor::CPPTYPE_ENUM:
            GANTRY_PUT(EnumValue, static_cast<int>(number % 256));
            break;
        case pb::FieldDescriptor::CPPTYPE_STRING: {
            std::string text = choices.text();
            if (field.type() == pb::FieldDescriptor::TYPE_STRING) {
                for (char& c : text) {
                    c = static_cast<char>(c & 0x7f);  // else it does not parse at all
                }
            }
            GANTRY_PUT(String, text);
            break;
        }
        case pb::FieldDescriptor::CPPTYPE_MESSAGE:
            fill(many ? *to.AddMessage(&message, &field) : *to.MutableMessage(&message, &field),
                 choices, depth + 1);
            break;
    }
#undef GANTRY_PUT
}

void fill(pb::Message& message, Choices& choices, int depth) {
    constexpr int kDepthMax = 6;
    const pb::Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count() && depth < kDepthMax && !choices.is_used_up(); ++i) {
        const pb::FieldDescriptor& field = *type.field(i);
        const int count = field.is_repeated() ? choices.byte() % 4 : (choices.one_in(4) ? 0 : 1);
        for (int n = 0; n < count; ++n) {
            fill_one(message, field, choices, depth);
        }
    }
}

/// Its numbers of bytes say what comes beside it.
void name_blob(pb::Message& message, std::uint64_t bytes) {
    const pb::Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
        const pb::FieldDescriptor& field = *type.field(i);
        const std::string name(field.name());
        if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_UINT64 && !field.is_repeated() &&
            name.find("bytes") != std::string::npos) {
            message.GetReflection()->SetUInt64(&message, &field, bytes);
        }
    }
}

class HostileWorker {
public:
    HostileWorker(pid_t process, control::PacketListener listener, Choices choices)
        : process_(process),
          listener_(std::move(listener)),
          choices_(choices),
          thread_([this] { serve(); }) {}
    ~HostileWorker() {
        stopping_ = true;
        thread_.join();
    }
    HostileWorker(const HostileWorker&) = delete;
    HostileWorker& operator=(const HostileWorker&) = delete;
    /// When it serves no more.
    [[nodiscard]] HostileRun run() const { return run_; }
    [[nodiscard]] bool is_silent() const { return has_ended_; }

private:
    static constexpr std::chrono::milliseconds kLook{20};

    void serve() {
        while (!stopping_ && !choices_.is_used_up()) {
            if (auto socket = listener_.accept(kLook)) {
                serve_connection(*socket);
                ::kill(process_, SIGKILL);  // with its connection, or gantryd waits for its end
            }
        }
        listener_ = {};
        has_ended_ = true;
    }

    void serve_connection(control::PacketSocket& socket) {
        while (!stopping_ && !choices_.is_used_up()) {
            auto packet = socket.receive(kLook);
            if (!packet) {
                if (packet.error().code == Code::kDeadlineExceeded) {
                    continue;
                }
                return;
            }
            control::ToWorker request;
            if (!request.ParseFromArray(packet->bytes.data(),
                                        static_cast<int>(packet->bytes.size()))) {
                std::abort();  // gantryd sent what is no request
            }
            ++run_.requests;
            if (!answer(socket, request)) {
                return;
            }
        }
    }

    /// What adopts it, so that what comes after is reached.
    static void be_honest(control::FromWorker& reply) {
        control::StatusReply& status = *reply.mutable_status_reply();
        status.set_state(control::WORKER_STATE_SERVING);
        status.set_protocol_version(control::kWorkerProtocolVersion);
        status.set_session_id(kSession);
        status.set_part_id(kPart.value);
        status.mutable_guest()->set_guest_pid(7);
        reply.mutable_status();
    }

    /// The body that answers that request; else any.
    const pb::FieldDescriptor* body_of(const control::ToWorker& request) {
        const pb::OneofDescriptor& bodies =
            *control::FromWorker::descriptor()->FindOneofByName("body");
        const pb::FieldDescriptor* asked = request.GetReflection()->GetOneofFieldDescriptor(
            request, control::ToWorker::descriptor()->FindOneofByName("request"));
        if (asked == nullptr || choices_.one_in(8)) {
            return bodies.field(choices_.byte() % bodies.field_count());
        }
        std::string name(asked->name());
        name = name.starts_with("get_") ? name.substr(4) : name;
        name = name == "store_blocks" || name == "load_blocks" ? "file_blocks" : name;
        name = name == "prepare_file" || name == "ask_prepared_file" ? "prepared_file" : name;
        name = name == "status" ? "status_reply" : name;
        for (int i = 0; i < bodies.field_count(); ++i) {
            if (std::string(bodies.field(i)->name()) == name) {
                return bodies.field(i);
            }
        }
        return nullptr;  // an empty reply
    }

    bool send(control::PacketSocket& socket, control::FromWorker& message,
              std::span<const int> descriptors) {
        message.set_descriptor_count(static_cast<std::uint32_t>(descriptors.size()) +
                                     (choices_.one_in(64) ? 1U : 0U));
        return socket.send_message(message, descriptors).ok();
    }

    bool answer(control::PacketSocket& socket, const control::ToWorker& request) {
        for (int i = choices_.byte() % 16; i > 12; --i) {
            control::FromWorker event;
            fill(*event.mutable_event(), choices_, 0);
            send(socket, event, {});
        }
        if (choices_.one_in(64)) {
            return false;
        }
        if (choices_.one_in(64)) {
            const std::string text = choices_.text() + "x";
            return socket.send(std::as_bytes(std::span(text)), {}).ok();
        }
        control::FromWorker reply;
        std::vector<control::UniqueFd> blobs;
        if (request.has_status() && !was_adopted_) {
            was_adopted_ = true;
            be_honest(reply);
        } else if (choices_.one_in(12)) {
            fill(*reply.mutable_status(), choices_, 0);
        } else if (const pb::FieldDescriptor* body = body_of(request)) {
            pb::Message& message = *reply.GetReflection()->MutableMessage(&reply, body);
            fill(message, choices_, 0);
            for (int count = choices_.byte() % 3; count > 0; --count) {
                const std::string content = choices_.text() + "blob";
                if (auto blob = control::make_blob(content)) {
                    blobs.push_back(std::move(*blob));
                    name_blob(message, content.size());
                }
            }
            if (choices_.one_in(16)) {  // one that may change
                blobs.emplace_back(::memfd_create("unsealed", MFD_CLOEXEC));
                (void)!::ftruncate(blobs.back().get(), static_cast<off_t>(choices_.byte()));
            }
        }
        run_.replies_fit += reply.status().code() == 0 ? 1 : 0;
        reply.set_request_id(request.request_id() + (choices_.one_in(64) ? 1 : 0));
        std::vector<int> descriptors;
        for (const control::UniqueFd& blob : blobs) {
            descriptors.push_back(blob.get());
        }
        return send(socket, reply, descriptors);
    }

    const pid_t process_;
    control::PacketListener listener_;
    Choices choices_;
    HostileRun run_;
    bool was_adopted_ = false;
    std::atomic<bool> stopping_{false};
    std::atomic<bool> has_ended_{false};
    std::thread thread_;
};

class NoPeer final : public transport::MessageLink {
public:
    void send(const engine::Message&) override {}
};

void drive(Registry& registry, OneVm& vm, Choices& choices, const HostileWorker& worker) {
    const engine::MigrationId move{1, choices.byte()};
    const auto link = std::make_shared<NoPeer>();
    const auto say = [&](engine::MessageBody body) {
        registry.receive(kSession, {move, std::move(body)}, "hostb", link);
    };
    engine::TargetCapabilities target;
    target.host = "hostb";
    target.gpu_name = "another";
    target.cc = {9, 0};
    target.memory_total_bytes = target.memory_free_bytes = ~0ULL;
    target.driver_version = target.ptx_isa_version_max = 99999;
    target.snapshot_version_max = 99999;
    (void)registry.list("");
    (void)registry.inspect(kSession);
    (void)registry.needs(kSession);
    control::PreflightRequest preflight;
    preflight.set_session(kSession);
    (void)registry.preflight(preflight);
    vm.is_now(engine::DomainState::kRunning, engine::JobState::kOutgoing);
    say(engine::MsgPrepare{engine::kEngineProtocolVersion, kSession, target, vm.ticket()});
    for (int i = 0; i < 200 && !worker.is_silent(); ++i) {
        switch (choices.byte() % 6) {
            case 0: say(engine::MsgReady{}); break;
            case 1: say(engine::MsgFreezeRequest{}); break;
            case 2: say(engine::MsgAbort{"test", "given up"}); break;
            case 3: (void)registry.list(""); break;
            case 4: say(engine::MsgRoundAck{choices.number() % 4}); break;
            default: std::this_thread::sleep_for(std::chrono::milliseconds{1}); break;
        }
    }
}

}  // namespace

HostileRun run_hostile_worker(std::span<const std::uint8_t> input) {
    spdlog::set_level(spdlog::level::off);
    char pattern[] = "/tmp/hostile_worker.XXXXXX";
    const std::string folder = ::mkdtemp(pattern);
    const Stand stand;
    Config config;
    config.daemon.run_directory = folder;
    config.peer.listen = "hosta:7700";
    config.worker.executable = "/bin/false";
    config.worker.user.clear();
    config.worker.private_tmp = false;
    std::filesystem::create_directories(folder + "/sessions");
    std::filesystem::create_directories(folder + "/workers");
    SessionInfo info;
    info.id = kSession;
    info.kind = SessionKind::kVm;
    info.vm_name = "g1";
    info.region_path = folder + "/region";
    info.region_bytes = kRegionBytes;
    WorkerRecord record;
    record.session_id = kSession;
    record.part = kPart;
    record.process = {stand.pid(), stand.start_time(), folder + "/workers/w.sock"};
    auto listener = control::PacketListener::bind(record.process.control_path);
    std::ofstream(folder + "/sessions/s.json")
        << nlohmann::json{{"session", to_json(info)}, {"workers", {to_json(record)}}};
    EpochStore store = std::move(*EpochStore::open(folder + "/state"));
    engine::DurableRecord owned;
    owned.epoch = Epoch{1};
    (void)store.save(kSession, owned);
    HostileRun run;
    {
        Choices choices(input.first(input.size() / 8));
        OneVm vm;
        Registry registry(config, store, vm);
        HostileWorker worker(stand.pid(), std::move(*listener),
                             Choices(input.subspan(input.size() / 8)));
        if (registry.start()) {
            drive(registry, vm, choices, worker);
        }
        registry.stop();
        run = worker.run();
    }
    std::filesystem::remove_all(folder);
    return run;
}

}  // namespace gantry::supervisor

// Service: what a gantry-worker does for gantryd (proto/control/worker.proto), one request at a
// time.
//
// It owns the driver, the device, the guest process and its state. Requests come over a
// SOCK_SEQPACKET connection; a lost connection changes nothing, the next one takes over. The
// guest's own socket is watched beside it: its end means that the guest process has ended, and the
// worker exits.
//
// Threads: run() is the control thread; the ring has its own (CommandLoop). Failure: a request that
// does not fit the worker's state is refused with reason `worker.state`; a packet that does not
// parse closes the connection.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host-daemon/execution/device/peer_window.h"
#include "host-daemon/execution/dispatch/execution.h"
#include "host-daemon/state/parts/part.h"
#include "proto/base/mutex.h"
#include "proto/control/channel.h"
#include "proto/control/worker.pb.h"

namespace gantry::worker {

struct ServiceOptions {
    std::uint32_t spin_us = 20;
    bool capture_output = true;  ///< Off in tests that read the worker's own output.
};

/// The refusal of a request that does not fit what the worker is doing, reason `worker.state`.
Error wrong_state(const char* what);

class Service {
public:
    Service(control::PacketListener listener, ServiceOptions options);
    ~Service();

    /// Until Shutdown, the guest's end without a gantryd, or a fatal error. Returns the exit
    /// status.
    int run();

private:
    struct Arena {
        std::byte* base = nullptr;
        std::uint64_t bytes = 0;
        bool read_only = false;
    };
    using Descriptors = std::vector<control::UniqueFd>;

    bool answer_one();
    Result<void> handle(const control::ToWorker& request, Descriptors& in,
                        control::FromWorker* reply, Descriptors* out);
    void send_event(const control::Event& event);
    void check_guest();
    void end_connections_work();
    void flush_events();
    [[nodiscard]] int poll_ms() const;

    Result<void> warm(const control::Warm& warm);
    Result<void> open_device(const control::DeviceChoice& device);
    static Result<void> check_version(std::uint32_t version);
    Result<void> start(const control::Start& start, const Descriptors& in,
                       control::FromWorker* reply);
    Result<void> serve(const control::GuestAttachment& guest, Descriptors& in);
    Result<void> attach(const control::GuestAttachment& guest, Descriptors& in);
    Result<void> attach_guest(const control::GuestAttachment& guest, Descriptors& in);
    Result<void> activate(const control::Activate& activate, Descriptors& in);
    Result<void> describe(control::FromWorker* reply, Descriptors* out);
    Result<void> account(control::FromWorker* reply, Descriptors* out);
    Result<void> profile(control::FromWorker* reply, Descriptors* out);
    void status(control::FromWorker* reply);
    Result<void> attach_arena(const control::AttachArena& attach, Descriptors& in);
    Result<void> detach_arena(std::uint32_t id);
    Result<void> scan(const control::Scan& scan, control::FromWorker* reply, Descriptors* out);
    Result<void> read_blocks(const control::ReadBlocks& read, control::FromWorker* reply);
    Result<void> get_images(const control::GetImages& get, control::FromWorker* reply,
                            Descriptors* out);
    Result<void> freeze(const control::Freeze& freeze, control::FromWorker* reply);
    Result<void> final_part(control::FromWorker* reply, Descriptors* out);
    Result<void> fence(bool guest_is_here);
    Result<void> unfence(std::uint64_t epoch);
    Result<void> release(const control::Release& release, control::FromWorker* reply,
                         Descriptors* out);
    Result<void> lend_guest(control::FromWorker* reply, Descriptors* out);
    Result<void> export_memory(const control::ExportMemory& request, control::FromWorker* reply,
                               Descriptors* out);
    Result<void> import_memory(const control::ImportMemory& request, Descriptors& in);
    Result<void> pull_blocks(const control::PullBlocks& request, Descriptors& in,
                             control::FromWorker* reply, Descriptors* out);
    Result<void> note_sent(const control::NoteSent& request, Descriptors& in);
    Result<void> check_graph(std::uint64_t bytes, Descriptors& in, control::FromWorker* reply);
    Result<void> prepare(const control::Prepare& prepare, Descriptors& in,
                         control::FromWorker* reply);
    Result<void> apply_blocks(const control::ApplyBlocks& apply);
    Result<void> apply_final(const control::ApplyFinal& apply, Descriptors& in);
    Result<void> prepare_file(const control::PrepareFile& request, Descriptors& in);
    void ask_prepared_file(control::FromWorker* reply);
    Result<void> store_blocks(const control::StoreBlocks& request, Descriptors& in,
                              control::FromWorker* reply, Descriptors* out);
    Result<void> load_blocks(const control::LoadBlocks& request, Descriptors& in,
                             control::FromWorker* reply, Descriptors* out);
    Result<void> get_digest(const control::GetDigest& get, control::FromWorker* reply,
                            Descriptors* out);
    Result<void> take_images(Descriptors& in, std::size_t index, std::uint64_t bytes);

    Result<std::unique_ptr<ChannelMemory>> map_channel(const control::GuestAttachment& guest,
                                                       Descriptors& in);
    [[nodiscard]] control::WorkerState state() const GANTRY_REQUIRES(failure_mutex_);
    void describe_device(control::DeviceDescription* out) const;
    Result<std::span<std::byte>> arena_part(std::uint32_t id, std::uint64_t offset,
                                            std::uint64_t bytes, bool for_writing);

    control::PacketListener listener_;
    ServiceOptions options_;
    control::PacketSocket connection_;
    std::unique_ptr<driver::DriverLibrary> library_;
    std::unique_ptr<Device> device_;
    control::DeviceChoice opened_;
    std::unique_ptr<state::GpuFingerprints> fingerprints_;  ///< For part_.
    std::unique_ptr<state::Mapping> slot_pages_;            ///< For part_; null: none are ready.
    std::unique_ptr<PeerWindow> window_;                    ///< Null: none is open.
    OutputCapture output_;
    std::unique_ptr<Execution> execution_;
    GuestProcess* process_ = nullptr;  ///< That of execution_.
    std::unique_ptr<state::Part> part_;
    control::Start started_;
    control::GuestAttachment guest_;
    control::UniqueFd guest_socket_;
    std::optional<control::FreezeToken> frozen_;
    std::optional<control::FreezeToken> complete_;
    std::map<std::uint32_t, Arena> arenas_;
    std::vector<Arena> retired_arenas_;        ///< Detached, and not given back yet.
    std::unique_ptr<ChannelMemory> attached_;  ///< Of an Activate that stayed back.
    std::uint64_t epoch_ = 0;
    bool fenced_ = false;
    bool announced_ = false;  ///< The last kAnnounce was that of a migration.
    bool restoring_ = false;
    bool guest_gone_ = false;
    bool done_ = false;
    std::atomic<bool> goodbye_{false};
    std::atomic<std::uint64_t> first_command_{0};
    std::chrono::steady_clock::time_point first_awaited_until_;  ///< Control thread.
    Mutex failure_mutex_;
    std::optional<Error> failure_ GANTRY_GUARDED_BY(failure_mutex_);
};

}  // namespace gantry::worker

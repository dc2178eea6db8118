// GuestProcess: everything this worker holds for the one guest process it serves.
//
// WHAT. It executes the commands that the loop takes from the ring: control commands and CUDA calls
// with hand-written payloads by the handlers of this folder, all others by generated dispatch. What
// may block runs on the calling lane's executor thread; everything else on the consumer thread.
//
// ANSWERS. A synchronous command is answered exactly once, by whoever runs it. Errors of commands
// without an answer are kept per lane and reported by that lane's next answer; a sticky error is
// put into HostWords.sticky_error as well.
//
// Owner: worker/main's service; it outlives no guest. Threads: execute() on the loop's thread; the
// members lock for themselves. Failure: what the guest sends can fail only its own calls; a broken
// ring closes the channel and is reported by on_breach.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "host-daemon/execution/code/image_store.h"
#include "host-daemon/execution/code/link_book.h"
#include "host-daemon/execution/code/module_registry.h"
#include "host-daemon/execution/device/device.h"
#include "host-daemon/execution/device/event_pool.h"
#include "host-daemon/execution/device/event_times.h"
#include "host-daemon/execution/device/lane_streams.h"
#include "host-daemon/execution/device/staging_pool.h"
#include "host-daemon/execution/device/wait_words.h"
#include "host-daemon/execution/memory/device_memory.h"
#include "host-daemon/execution/memory/pinned_writes.h"
#include "host-daemon/execution/memory/pool_book.h"
#include "host-daemon/execution/memory/share_link.h"
#include "host-daemon/execution/memory/shared_events.h"
#include "host-daemon/execution/memory/shared_memory.h"
#include "host-daemon/execution/memory/variable_memory.h"
#include "host-daemon/execution/memory/virtual_memory.h"
#include "host-daemon/execution/objects/cuda_graph_book.h"
#include "host-daemon/execution/objects/cuda_graph_params.h"
#include "host-daemon/execution/objects/objects.h"
#include "host-daemon/execution/process/device_use.h"
#include "host-daemon/execution/process/held_work.h"
#include "host-daemon/execution/process/launch_batcher.h"
#include "host-daemon/execution/process/mirror_state.h"
#include "host-daemon/execution/ring/bulk_board.h"
#include "host-daemon/execution/ring/callback_broker.h"
#include "host-daemon/execution/ring/channel_memory.h"
#include "host-daemon/execution/ring/command_loop.h"
#include "host-daemon/execution/ring/event_board.h"
#include "host-daemon/execution/ring/lane_executors.h"
#include "host-daemon/execution/ring/output_capture.h"
#include "host-daemon/execution/ring/reply_board.h"
#include "proto/cuda/wire_hand.h"

namespace gantry::worker {

struct ProcessLimits {
    std::uint64_t device_memory_bytes = 0;  ///< 0: what the device has.
    std::uint64_t image_bytes = 4ull << 30;
    std::uint64_t object_count = 1u << 20;
};

struct ProcessOptions {
    enum class WaitHere { kWithProcessorsToSpare, kNever, kAlways };

    DeviceBaseline baseline;
    ProcessLimits limits;
    std::uint32_t spin_us = 20;
    /// Whether short waits may take place on the loop's thread (waits.cc).
    WaitHere wait_here = WaitHere::kWithProcessorsToSpare;
    /// How long such a wait looks at a word. Longer than the waits of which a microsecond matters;
    /// then the driver waits, and tells errors.
    std::chrono::microseconds word_patience{1000};
    /// Whether launches may go to the driver together (launch_batcher.h).
    bool batches_launches = true;
    /// Single ones too where it does not pay: a soft GPU executes a graph no faster.
    bool always_prepares_launches = false;
};

/// The guest's process, for people.
struct GuestProgram {
    std::uint32_t pid = 0;  ///< Its number in the guest; 0: not known.
    std::string name;
};

/// What a channel's commands need to go on after a move, beside the objects.
struct ChannelState {
    std::uint64_t next_position = 0;
    std::set<std::uint64_t> executed_ahead;
    std::vector<Answer> answers;
    std::vector<std::uint64_t> confirmed;
    std::optional<CallbackBroker::Parked> parked_callback;
    std::optional<CallbackBroker::Open> open_callback;  ///< The guest runs it meanwhile.
    std::array<std::uint32_t, wire::kLaneCount> async_errors{};
    std::vector<std::byte> pending_output;
    std::vector<PinnedBytes> pinned;    ///< What copies wrote and no stream of memory carries.
    std::optional<MirrorState> mirror;  ///< Of a guest over TCP.
};

struct ProcessCounters {
    std::atomic<std::uint64_t> launches{0};
    std::atomic<std::uint64_t> batched_launches{0};   ///< Of these.
    std::atomic<std::uint64_t> prepared_launches{0};  ///< Of the others.
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> bytes_to_guest{0};
};

class Call;

class GuestProcess {
public:
    GuestProcess(Device& device, OutputCapture& output, ProcessOptions options);
    ~GuestProcess();
    GuestProcess(const GuestProcess&) = delete;
    GuestProcess& operator=(const GuestProcess&) = delete;

    /// Serves a channel from its beginning (generation << kGenerationShift). Not one whose program
    /// has begun (guest.worker_lost): that is told that its worker is dead.
    Result<void> serve(std::unique_ptr<ChannelMemory> memory, std::uint64_t generation);
    /// Takes a channel over where another worker left it: publishes every host-owned word and the
    /// kept answers again, then goes on.
    Result<void> take_over(std::unique_ptr<ChannelMemory> memory, const ChannelState& state,
                           std::uint64_t epoch);
    /// Ends serving; the channel's memory is given back. The guest gets no further answer.
    std::unique_ptr<ChannelMemory> detach();
    [[nodiscard]] bool serving() const { return memory_ != nullptr; }
    [[nodiscard]] ChannelMemory* channel() { return memory_.get(); }
    /// The guest is gone: ends what waits for it.
    void abandon();
    /// Of the name is kept what a terminal can show, and no more than a hello has room for.
    void set_program(GuestProgram program);
    [[nodiscard]] GuestProgram program() const;
    /// Tells the guest that a migration is under way (or no longer).
    void announce(bool migrating);
    /// The session was granted away: the guest here gets a hard error for whatever it does. Memory
    /// that a hypervisor moves is written only if `guest_is_here`: else the guest runs elsewhere,
    /// and may be pulling that very page.
    void disown(bool guest_is_here);
    /// Undoes disown, for a session that came back unserved.
    void own_again();

    /// Stops at a command boundary and drains the device. On error it runs on as before.
    Result<std::chrono::microseconds> freeze(std::chrono::microseconds deadline);
    void thaw();
    [[nodiscard]] bool frozen() const { return frozen_; }
    [[nodiscard]] Result<ChannelState> channel_state() const;  ///< Only while frozen.

    /// The driver's streams hold work that was carried to another worker: they must never run on.
    [[nodiscard]] bool has_carried_work() const { return has_carried_work_; }
    /// The guest has run a callback. False for one that it does not have.
    bool callback_done(std::uint64_t callback_id);

    /// A sticky error has come: nothing of the device can be used any more. All that is left to
    /// carry is the error, and the channel.
    [[nodiscard]] bool is_broken() const { return sticky_error.load() != 0; }
    /// The driver's answer to a question of no consequence: tells an error that no call has told
    /// yet. Not asked while a stream is captured, which it would cost.
    bool finds_broken();
    /// The context stayed behind with its error, which is what every call of the device gets here.
    void lose_context(CUresult error);

    /// Runs one recorded command again. kReset: not as a part of a restore, which brings the
    /// contents of variables; they are as the image has them.
    enum class Replay { kRestore, kReset };
    CUresult replay(const RecordedCommand& command, Replay why = Replay::kRestore);

    std::function<void(const std::string&)> on_breach;
    std::function<void()> on_goodbye;
    std::function<void(std::uint64_t)> on_first_command;
    /// Held shared by a lane's call that may make or end objects, while it runs: whoever has it
    /// alone, with the loop held, sees objects and what is kept beside them agree.
    std::shared_timed_mutex lane_changes;
    /// The value that the object made by replay() must get (textures and surfaces); 0: any.
    std::uint64_t wanted_native = 0;

    // Parts, for handlers and for state/.
    Device& device;
    OutputCapture& output;
    const ProcessOptions options;
    ObjectTable objects;
    DeviceMemory memory;
    VirtualMemory virtual_memory{device, memory};
    ShareLink share_link;
    SharedMemory shared{device, memory, share_link};
    SharedEvents shared_events{device, share_link};
    ImageStore images;
    VariableMemory variable_memory{device};
    ModuleRegistry modules;
    DeviceUse device_use{device, objects};
    LaunchBatcher launch_batcher{device, objects};
    CallbackBroker callbacks;
    EventPool own_events{device};
    StagingPool staging;
    PinnedWrites pinned_writes;
    HeldWork held;
    EventTimes event_times{device};
    EventBoard event_board{device};
    WaitWords wait_words{device};
    BulkBoard bulk_board{device, wait_words, own_events};
    CudaGraphBook graphs{device};
    KernelNames kernel_names{device, objects};
    LinkBook links;
    PoolBook pools;
    ReplyBoard replies;
    ProcessCounters counters;
    wire::DeviceFacts facts{};
    std::atomic<std::uint32_t> sticky_error{0};
    std::atomic<std::uint32_t> captures{0};  ///< Streams being captured now.
    /// Held while a capture begins, and while the worker by itself waits for the device: a context
    /// that is waited for costs its captures.
    std::mutex capture_gate;
    /// Code that may print was loaded: drivers give its text out in calls that synchronise.
    std::atomic<bool> may_print{false};

    /// Asking streams is cheap and allowed, and they are all there is: few of them, one context,
    /// no capture going on, none destroyed at work since the context was last synchronised.
    [[nodiscard]] bool may_query_streams() const;
    struct StreamsSeen {
        /// CUDA_SUCCESS when all are idle, CUDA_ERROR_NOT_READY, or the error that a driver told.
        CUresult result = CUDA_SUCCESS;
        std::optional<CUstream> busy;  ///< The one that is, where all others are idle.
    };
    /// All streams, or all but the legacy one.
    StreamsSeen query_streams(bool wants_others_only = false);
    CUresult query_stream(CUstream stream);
    /// What cuStreamSynchronize does; it looks at a word where the stream is the busy one. The
    /// thread may block.
    CUresult synchronise_stream(CUstream stream, const std::optional<BusyStream>& busy = {});
    /// A call that waits for what was just seen to have ended may be answered at once.
    [[nodiscard]] bool may_skip_waits() const {
        return !may_print.load(std::memory_order_relaxed) && !held.active();
    }
    /// A word in a stream tells all that there is to know of its end, but for errors.
    [[nodiscard]] bool may_use_words() const;
    /// The stream is about to be destroyed.
    void leave_stream(CUstream stream);
    /// True while the stream is being captured.
    [[nodiscard]] bool is_capturing(CUstream stream) const;
    /// A capture began on the stream, which `key` names (HeldWork).
    void begin_capture(std::uint64_t key);
    /// The stream is not captured any more, or is gone; nothing if no capture began on it.
    void end_capture(std::uint64_t key);
    /// Synchronises the calling thread's context; it looks at a word where the busy stream is the
    /// only one. The thread may block.
    CUresult synchronise_context(const std::optional<BusyStream>& busy = {});
    /// Waits for what runs while streams are captured: to wait for a context then is refused, and
    /// costs its captures.
    CUresult synchronise_beside_captures();

    /// No stream but the legacy one exists, or may still be at work.
    [[nodiscard]] bool has_one_stream() const;
    /// 0, 1: the legacy stream; 2: the lane's own; else a stream handle.
    CUresult resolve_stream(std::uint64_t stream, std::uint32_t lane, CUstream* out);
    /// The same for who only looks: the stream is not touched, and a lane's own is not made.
    [[nodiscard]] std::optional<CUstream> find_stream(std::uint64_t stream,
                                                      std::uint32_t lane) const;
    /// Makes the context of a command current in the calling thread.
    CUresult enter_context(std::uint64_t context);
    void note_result(std::uint32_t lane, CUresult result, bool is_answered);
    void note_sticky(CUresult result);
    [[nodiscard]] std::uint32_t take_async_error(std::uint32_t lane);
    /// Frees parked memory as soon as the device is idle, on the chore thread.
    void schedule_reap();
    /// Page-locks the channel's bulk area, once: a copy into it is one transfer then, without the
    /// driver's own staging. False when the driver refuses: it copies all the same, only slower.
    bool register_bulk();
    /// Counts a read; true once there were so many that page-locking the bulk area pays.
    bool is_frequent_reader();
    /// Launches by the graph of its shape, if it has one (launch_batcher.h).
    bool launch_as_graph(const Call& call, const cuda::wire_hand::LaunchCall& launch,
                         std::span<const std::byte> arguments, CUstream stream);
    /// Synchronises every context of the guest. The calling thread may block.
    CUresult synchronise_device();
    /// Ends an object at the driver and forgets it.
    void destroy_object(const Object& object);
    /// Destroys a context, whose objects have ended and whose work was waited for; the calling
    /// thread is in the primary one then.
    CUresult end_context(CUcontext context);
    /// What enter_context() has made current in the calling thread.
    [[nodiscard]] static CUcontext current_context();
    /// Looks whether the image's kernels print.
    void learn_printing(const LoadedImage& loaded);
    /// Asks the driver's extension where the variables of a module or library lie, once it is
    /// loaded into the current context. Without the extension only variables asked for by name are
    /// known.
    void learn_variables(std::uint64_t root);
    /// Where a variable lies now; asks the driver by name where its extension does not list it.
    [[nodiscard]] std::optional<std::uint64_t> variable_address(std::uint64_t root,
                                                                const std::string& name);
    /// Brings the driver's private ranges into the books; before a scan and a capture.
    void refresh_private_ranges();
    /// The object without a parent that `handle` hangs on (a library's module: the library).
    [[nodiscard]] std::uint64_t root_of(std::uint64_t handle) const;
    LaneExecutors& executors() { return *executors_; }
    [[nodiscard]] CommandLoop& loop() { return loop_; }

private:
    friend class Call;
    struct Waiting {
        std::shared_ptr<Call> call;
        std::chrono::steady_clock::time_point since;
        CUstream stream = nullptr;              ///< The word's.
        std::optional<WaitWords::Ticket> word;  ///< Lands when what the call waits for has ended.
        std::chrono::steady_clock::time_point ask_at;  ///< ... or the driver tells an error.
        bool may_have_word = false;                    ///< It was not tried yet.
        bool waits_here = false;                       ///< Unless another call comes to wait first.
    };

    void execute(const Command& command);
    /// What is launched in this context now may go to the driver as a graph.
    [[nodiscard]] bool may_launch_graphs(std::uint64_t context) const;
    [[nodiscard]] bool joins_batch(std::span<const Command> batch, const Command& next) const;
    bool execute_batch(std::span<const Command> batch);
    void begin_wait(const Call& call);
    bool poll();
    bool watch_waiting(std::chrono::steady_clock::time_point now);
    bool has_come(Waiting& waiting, std::chrono::steady_clock::time_point now);
    void begin_watch(Waiting& waiting, std::chrono::steady_clock::time_point now);
    void note_lane(std::uint32_t lane);
    void drop_lane_capture(std::uint32_t lane);
    [[nodiscard]] bool is_alone() const;
    void wait_or_run(Call& call);
    void expect_wait(const Call& call);
    [[nodiscard]] bool ends_with(const gantry::wire::CommandView& wait, CUstream stream) const;
    CommandLoop::Waited wait_here();
    void note_landed(CUstream stream, std::chrono::steady_clock::time_point now);
    [[nodiscard]] std::size_t waiting_count() const {
        const std::size_t waiting = waiting_count_.load();  // First: they go from here to there.
        return waiting + waits_here_.load();
    }
    /// A call waits on another thread than the loop's.
    [[nodiscard]] bool waits_elsewhere() const {
        return waits_here_.load() != 0 || executors_->busy_count() != 0;
    }
    enum class Look : std::uint8_t { kSome, kAll };
    void look_at_events(Look look);
    void look_at_bulk_copies();
    /// Shows the guest's other programs how much memory this one has (nvidia-smi).
    void show_memory();
    [[nodiscard]] bool is_drained_to_callbacks();
    void run_call(Call& call);
    void callback_command(const gantry::wire::CommandView& view, std::span<const std::byte> args);
    void note_work(const Call& call, CUresult result);
    [[nodiscard]] std::uint64_t kept_from();
    /// False: the call needs no device.
    bool refuse_for_lost_context(Call& call);
    /// Asks now and then only. The loop's thread.
    bool finds_broken(std::chrono::steady_clock::time_point now);
    void bind_thread();
    void unregister_bulk();

    std::unique_ptr<ChannelMemory> memory_;
    bool frozen_ = false;
    bool first_command_ = false;
    bool has_carried_work_ = false;
    bool has_lost_context_ = false;
    std::chrono::steady_clock::time_point broken_due_{};
    /// Below it commands may be executed again, after a move.
    std::uint64_t first_new_position_ = 0;
    std::vector<Waiting> waiting_;        ///< The loop's thread only.
    std::uint32_t last_lane_ = 0;         ///< The loop's thread only.
    std::uint32_t commands_of_lane_ = 0;  ///< ... of the last one, in a row.
    std::optional<BusyStream> queued_;    ///< ... Where the last command has queued work.
    std::chrono::steady_clock::time_point events_due_;  ///< The loop's thread only.
    std::uint64_t shown_bytes_ = 0;                     ///< The loop's thread only.
    std::atomic<CUstream> landed_stream_{nullptr};  ///< Where a word was seen to have landed last.
    std::atomic<std::chrono::steady_clock::time_point> landed_at_{};
    std::atomic<std::size_t> waiting_count_{0};
    std::atomic<std::size_t> waits_here_{0};  ///< On threads that lent the loop.
    std::array<std::atomic<std::uint32_t>, wire::kLaneCount> async_errors_{};
    LaneStreams lane_streams_{device};
    std::atomic<std::uint64_t> ended_contexts_{0};
    /// Streams that were destroyed and may still be at work, and how many of them are known not to.
    std::atomic<std::uint64_t> left_streams_{0};
    std::mutex captured_mutex_;
    std::set<std::uint64_t> captured_;  ///< Keys of the streams that captures began on.
    std::atomic<std::uint64_t> settled_streams_{0};
    std::atomic<bool> reap_scheduled_{false};
    std::mutex bulk_mutex_;
    std::atomic<bool> bulk_tried_{false};
    std::atomic<bool> bulk_registered_{false};  ///< Changed under bulk_mutex_.
    std::atomic<std::uint32_t> reads_{0};
    const std::uint32_t awake_us_;  ///< How long the loop stays awake while a call waits elsewhere.
    const std::uint32_t wait_spin_us_;  ///< How long a call that waits is looked at before a thread
                                        ///< of its own waits for it.
    const bool batches_launches_;       ///< The options want it, and the device can.
    const bool prepares_launches_;
    mutable std::mutex program_mutex_;
    GuestProgram program_;  ///< Under program_mutex_.
    std::unique_ptr<LaneExecutors> executors_;
    CommandLoop loop_;
};

}  // namespace gantry::worker

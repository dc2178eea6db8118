// Call: one command of the guest under execution; what handlers and generated dispatch work with.
//
// It owns copies of the command's bytes, resolves the guest's handles, collects the answer and
// publishes it once. Threads: one at a time (the consumer, or a lane's executor).
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host-daemon/execution/objects/op_traits.h"
#include "host-daemon/execution/process/guest_process.h"
#include "proto/cuda/dispatch_interface.h"
#include "proto/cuda/gen/opcodes.h"

namespace gantry::worker {

/// What a guest process may have of them: far more than programs do, less than harms others. Beside
/// its primary context.
inline constexpr std::size_t kMostContexts = 8;
inline constexpr std::size_t kMostStreams = 8192;
inline constexpr std::size_t kMostEvents = std::size_t{1} << 18;

/// Why a recorded command runs again. kReset: not as a part of a restore, which brings the contents
/// of variables; they are as the image has them.
enum class Replay { kRestore, kReset };

class Call final : public CallContext, public Reply {
public:
    /// `command` must outlive the call, unless keep() is called first.
    Call(GuestProcess& process, const Command& command)
        : process_(process), command_(&command), traits_(op_traits(command.header.op)) {}
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    /// Copies the command's bytes, so that the call can go to another thread.
    std::shared_ptr<Call> keep() const;

    // ---- the command
    [[nodiscard]] GuestProcess& process() { return process_; }
    [[nodiscard]] const GuestProcess& process() const { return process_; }
    [[nodiscard]] const Command& command() const { return *command_; }
    [[nodiscard]] const wire::CommandView& header() const { return command_->header; }
    [[nodiscard]] std::uint16_t number() const { return command_->header.op; }
    [[nodiscard]] cuda::Op op() const { return static_cast<cuda::Op>(command_->header.op); }
    [[nodiscard]] bool has(OpTrait trait) const { return (traits_ & trait) != 0; }
    [[nodiscard]] std::uint32_t lane() const { return command_->header.lane; }
    [[nodiscard]] bool wants_reply() const { return command_->wants_reply(); }
    [[nodiscard]] std::span<const std::byte> args() const { return command_->args; }
    [[nodiscard]] std::span<const std::byte> trailing_bytes() const { return command_->trailing; }
    /// True inside a restore: nothing is answered, addresses and orders come from a snapshot.
    [[nodiscard]] bool is_replay() const { return is_replay_; }
    void mark_replay(Replay why, std::uint64_t wanted_native) {
        is_replay_ = true;
        is_restore_ = why == Replay::kRestore;
        wanted_native_ = wanted_native;
    }
    [[nodiscard]] bool is_restore() const { return is_restore_; }
    /// The value that the object made by a replay must get; 0: any.
    [[nodiscard]] std::uint64_t wanted_native() const { return wanted_native_; }

    /// The fixed arguments; null when the command is shorter.
    template <typename T>
    [[nodiscard]] std::optional<T> arguments() const {
        return command_->arguments<T>();
    }
    /// An array at the front of `bytes`, which then starts behind it; nullopt if it does not fit.
    template <typename T>
    static std::optional<std::vector<T>> read_array(std::span<const std::byte>& bytes,
                                                    std::uint64_t count) {
        if (count > bytes.size() / sizeof(T)) {
            return std::nullopt;
        }
        std::vector<T> values(count);
        if (count != 0) {
            std::memcpy(values.data(), bytes.data(), count * sizeof(T));
        }
        bytes = bytes.subspan(count * sizeof(T));
        return values;
    }

    // ---- handles
    [[nodiscard]] const driver::DriverApi& api() const { return process_.device.api(); }
    CUresult stream(std::uint64_t handle, CUstream* out) {
        return process_.streams.resolve(handle, lane(), out);
    }
    /// Counts device memory that this command takes beside the arena's, before the driver is asked:
    /// the object that it makes has it from then on, or it is given back with the call. False: the
    /// VM's quota would be exceeded (not in a restore). See charge_memory() in handlers.h.
    [[nodiscard]] bool charge(std::uint64_t bytes);
    [[nodiscard]] const MemoryChargePtr& charged() const { return charge_; }
    [[nodiscard]] RecordedCommand recorded() const;
    /// Adds an object that this command has made; undo on failure is the caller's.
    CUresult add_object(std::uint64_t handle, std::uint64_t native, std::uint64_t parent = 0);

    // ---- the answer
    /// Space of the bulk extent that the guest offers with this command.
    [[nodiscard]] std::span<std::byte> offered_bulk(std::uint64_t* offset);
    /// Names an extent that was written.
    void wrote_bulk(std::uint64_t offset, std::uint64_t bytes);
    /// Publishes the answer (if the command wants one) and keeps the books about errors.
    void finish(CUresult result);
    /// The answer is not published by finish() (parked, or published elsewhere already).
    void leave_unanswered() { answered_ = true; }
    /// On the consumer only: run the handler again on the lane's executor, where it may wait.
    void defer() { is_deferred_ = true; }
    [[nodiscard]] bool is_deferred() const { return is_deferred_; }
    /// True on an executor, where waiting is allowed.
    [[nodiscard]] bool may_wait() const { return is_kept_ || is_replay_; }

    /// From now on the call waits for the device, as its answer is to tell.
    void begin_device_wait() { device_wait_since_ = std::chrono::steady_clock::now(); }
    /// What the call waits for was seen to have ended without an error.
    void saw_end() { has_ended_ = number() >= cuda::kFirstOp; }
    /// ... and the call does nothing but wait, so that only its answer is left.
    [[nodiscard]] bool has_ended() const { return has_ended_; }
    /// What the driver said when it was asked ahead of the call, and says once only.
    void saw_failure(CUresult failure) { failure_ = failure; }
    [[nodiscard]] CUresult failure() const { return failure_; }
    /// The handler has given this stream work to do.
    void queued_in(CUstream stream) { queued_ = stream; }
    [[nodiscard]] std::optional<CUstream> queued() const { return queued_; }
    /// Where the command right in front of this one has queued work a moment ago.
    void set_busy(const BusyStream& busy) { busy_ = busy; }
    [[nodiscard]] const std::optional<BusyStream>& busy() const { return busy_; }
    /// The end of what is in this stream now is all that the call waits for.
    void set_awaited(CUstream stream) { awaited_ = stream; }
    [[nodiscard]] std::optional<CUstream> awaited() const { return awaited_; }

    // CallContext
    const driver::DriverApi& driver() override { return api(); }
    CUresult resolve(cuda::HandleKind kind, std::uint64_t handle, std::uint64_t* native) override;
    CUresult guest_handle(cuda::HandleKind kind, std::uint64_t native,
                          std::uint64_t* handle) override;
    CUresult device(std::int32_t guest, std::int32_t* native) override;
    CUresult reserve(cuda::HandleKind kind, std::uint64_t handle) override;
    CUresult bind(cuda::HandleKind kind, std::uint64_t handle, std::uint64_t native,
                  const Recipe& recipe) override;
    CUresult name(cuda::HandleKind kind, std::uint64_t new_handle, std::uint64_t native,
                  const Recipe& recipe, std::uint64_t* handle) override;
    void unbind(cuda::HandleKind kind, std::uint64_t handle) override;
    void configured(cuda::HandleKind kind, std::uint64_t handle, const Recipe& recipe) override;
    CUresult unsupported(cuda::Op op) override;
    CUresult malformed(cuda::Op op, const char* what) override;

    // Reply
    void fixed(std::span<const std::byte> bytes) override;
    void trailing(std::span<const std::byte> bytes) override;

private:
    /// An attribute of a kernel node that no driver tells is kept for a snapshot.
    void note_untold(std::uint64_t node, const Recipe& recipe);
    /// The fixed part, and behind it what trailing bytes a page has room for; else these go into
    /// the extent that the guest has offered, and `answer` names it.
    std::span<const std::byte> place_payload(AnswerHead* answer);
    CUresult resolve_exec_node(std::uint64_t* native);

    struct Own {
        Command command;
        std::vector<std::byte> bytes;  ///< Its arguments and trailing bytes.
    };

    GuestProcess& process_;
    const Command* command_;
    std::unique_ptr<Own> own_;  ///< Of a kept call: its command.
    std::size_t fixed_bytes_ = 0;
    std::array<std::byte, 64> few_;  ///< The answer's fixed part where it fits: most do.
    std::vector<std::byte> many_;    ///< Else that, and any inline payload with trailing bytes.
    std::vector<std::byte> trailing_;
    std::uint64_t bulk_offset_ = 0;
    std::uint64_t bulk_bytes_ = 0;
    const std::uint8_t traits_;
    bool answered_ = false;
    bool is_replay_ = false;
    bool is_restore_ = false;
    bool is_deferred_ = false;
    bool is_kept_ = false;
    bool has_ended_ = false;
    CUresult failure_ = CUDA_SUCCESS;
    std::uint64_t wanted_native_ = 0;
    std::optional<CUstream> awaited_;
    std::optional<CUstream> queued_;
    std::optional<BusyStream> busy_;
    std::optional<std::chrono::steady_clock::time_point> device_wait_since_;
    MemoryChargePtr charge_;
    std::uint64_t exec_ = 0;           ///< The graph exec that the command names, once resolved.
    CUgraphNode exec_node_ = nullptr;  ///< And its node, as the guest's graph has it.
};

/// What the generated dispatch hands to a handler is always a Call.
inline Call& as_call(CallContext& context) { return static_cast<Call&>(context); }

}  // namespace gantry::worker
